import dataclasses
import json
import math

import pytest
import torch
from torch.nn import functional

from train_jamba import trainer
from train_jamba.__main__ import main
from train_jamba.config import HybridConfig
from train_jamba.evaluate import bits_per_byte
from train_jamba.model import Hybrid, initialise
from train_jamba.options import TrainingOptions
from train_jamba.text import as_tokens, split_text, windows, with_bos
from train_jamba.trainer import train

CONFIG = HybridConfig(
    hidden_size=32, intermediate_size=24, num_hidden_layers=2, mamba_d_state=4, mamba_dt_rank=2
)
OPTIONS = TrainingOptions(steps=5, batch_size=2, context_size=32, warmup_steps=1)


@pytest.fixture
def text(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("The quick brown fox jumps over the lazy dog. " * 60)
    return path


class KilledError(Exception):
    pass


def kill_after_three_steps(progress):
    if progress.step == 3:
        raise KilledError


def test_five_steps_lower_the_loss(text, tmp_path):
    options = dataclasses.replace(OPTIONS, learning_rate=1e-2)
    losses = []

    def keep(progress):
        losses.append(progress.train_bits_per_byte)

    bits = train(text, tmp_path, config=CONFIG, options=options, report=keep)
    assert bits < losses[0] - 1


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_killed_and_resumed_run_ends_with_the_same_bits(text, tmp_path, precision):
    options = dataclasses.replace(OPTIONS, precision=precision, save_every=2)
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    train(text, whole, config=CONFIG, options=options)
    with pytest.raises(KilledError):
        train(text, resumed, config=CONFIG, options=options, report=kill_after_three_steps)
    steps, resumes = [], []

    def keep(progress):
        steps.append(progress.step)

    def tell(done, seconds):
        resumes.append(done)
        assert seconds > 0

    train(text, resumed, config=CONFIG, options=options, report=keep, on_resume=tell)
    assert (resumes, steps) == ([2], [3, 4, 5])
    name = "model.safetensors"
    assert (whole / name).read_bytes() == (resumed / name).read_bytes()
    assert not (resumed / "training_state.pt").exists()


def test_state_of_another_run_is_refused_and_kept(text, tmp_path):
    options = dataclasses.replace(OPTIONS, save_every=1)
    with pytest.raises(KilledError):
        train(text, tmp_path, config=CONFIG, options=options, report=kill_after_three_steps)
    state = (tmp_path / "training_state.pt").read_bytes()
    other = dataclasses.replace(OPTIONS, learning_rate=0.5)
    with pytest.raises(ValueError, match=r"learning_rate: expected 0\.003, as .*, got 0\.5"):
        train(text, tmp_path, config=CONFIG, options=other)
    assert (tmp_path / "training_state.pt").read_bytes() == state


def test_resumed_run_may_be_longer_but_not_shorter_than_what_is_done(text, tmp_path):
    options = dataclasses.replace(OPTIONS, save_every=1)
    with pytest.raises(KilledError):
        train(text, tmp_path, config=CONFIG, options=options, report=kill_after_three_steps)
    with pytest.raises(ValueError, match=r"steps: expected at least 3, as many as .*, got 2"):
        train(text, tmp_path, config=CONFIG, options=dataclasses.replace(options, steps=2))
    steps = []

    def keep(progress):
        steps.append(progress.step)

    longer = dataclasses.replace(options, steps=7)
    train(text, tmp_path, config=CONFIG, options=longer, report=keep)
    assert steps == [4, 5, 6, 7]


@pytest.mark.parametrize("content", [b"", b"not a state", b"PK\x03\x04"])
def test_file_that_is_no_state_is_refused(text, tmp_path, content):
    (tmp_path / "training_state.pt").write_bytes(content)
    with pytest.raises(
        ValueError, match=r"training_state\.pt: expected the state of a run, got another"
    ):
        train(text, tmp_path, config=CONFIG, options=OPTIONS)


def test_a_folder_with_files_that_a_run_has_not_made_is_left_alone(text, tmp_path):
    train(text, tmp_path / "run", config=CONFIG, options=OPTIONS)
    before = {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    for name in before:
        folder = tmp_path / f"with {name}"
        folder.mkdir()
        (folder / name).write_bytes(b"somebody's")
        with pytest.raises(ValueError, match=f"out: expected a folder .*, got {name} in {folder}"):
            train(text, folder, config=CONFIG, options=OPTIONS)
        assert [file.read_bytes() for file in folder.iterdir()] == [b"somebody's"]
    # its own, once it is finished, as much as another's
    with pytest.raises(ValueError, match=r"out: expected a folder .*, got config\.json, .* in"):
        train(text, tmp_path / "run", config=CONFIG, options=OPTIONS)
    assert before == {file.name: file.read_bytes() for file in (tmp_path / "run").iterdir()}
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "README.md").write_text("of no run")
    train(text, tmp_path / "notes", config=CONFIG, options=OPTIONS)
    with pytest.raises(ValueError, match="out: expected a folder, or none yet, got the file"):
        train(text, text, config=CONFIG, options=OPTIONS)


def test_a_run_whose_files_could_not_be_written_goes_on(text, tmp_path, monkeypatch):
    def full(*_, **__):
        raise OSError(28, "No space left on device")

    steps = []
    with monkeypatch.context() as context:
        context.setattr(trainer, "save_checkpoint", full)
        with pytest.raises(OSError, match="No space left"):
            train(text, tmp_path / "out", config=CONFIG, options=OPTIONS)
    train(text, tmp_path / "out", config=CONFIG, options=OPTIONS, report=steps.append)
    assert steps == []
    assert (tmp_path / "out" / "model.safetensors").exists()


def test_missing_text_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"text: expected a file to train on, got .*nowhere"):
        train(tmp_path / "nowhere", tmp_path / "out", config=CONFIG)
    assert not (tmp_path / "out").exists()


def test_short_text_is_refused(text, tmp_path):
    options = TrainingOptions(context_size=2000)
    with pytest.raises(ValueError, match=r"text: expected at least 4000 bytes, .* got 2565 in"):
        train(text, tmp_path / "out", config=CONFIG, options=options)
    assert not (tmp_path / "out").exists()


def test_diverging_run_is_stopped(text, tmp_path):
    options = dataclasses.replace(OPTIONS, learning_rate=1e30)
    with pytest.raises(ValueError, match=r"learning_rate: .* got 1e\+30: the loss of step \d is"):
        train(text, tmp_path, config=CONFIG, options=options)
    assert not (tmp_path / "model.safetensors").exists()


def test_text_of_a_few_bytes_is_refused(tmp_path):
    path = tmp_path / "text"
    path.write_bytes(b"short")
    with pytest.raises(ValueError, match="text: expected at least 20 bytes"):
        split_text(path, context_size=1)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("steps", 0, "steps: expected a positive number, got 0"),
        ("learning_rate", -1.0, "learning_rate: expected a positive number"),
        ("learning_rate", math.inf, "learning_rate: expected a finite number, got inf"),
        ("weight_decay", math.nan, "weight_decay: expected a finite number, got nan"),
        ("seed", 1 << 70, r"seed: expected less than 2\*\*63"),
        ("warmup_steps", -1, "warmup_steps: expected no negative number"),
        ("precision", "float16", "precision: expected one of"),
    ],
)
def test_option_out_of_range_is_refused(name, value, message):
    with pytest.raises(ValueError, match=message):
        TrainingOptions(**{name: value})


def test_learning_rate_rises_to_its_peak_and_falls_to_a_hundredth():
    options = TrainingOptions(steps=100, warmup_steps=10, learning_rate=1.0)
    rates = [options.learning_rate_at(step) for step in range(101)]
    assert rates[0] == pytest.approx(0.1)
    assert max(rates) == rates[10] == 1.0
    assert rates[10:] == sorted(rates[10:], reverse=True)
    assert rates[100] == pytest.approx(0.01)


def test_held_out_blocks_and_training_text_make_up_the_text(tmp_path):
    path = tmp_path / "text"
    content = torch.randint(0, 256, (100_003,), generator=torch.Generator().manual_seed(0))
    path.write_bytes(bytes(content.tolist()))
    split = split_text(path, context_size=64)
    assert len(split.train) + sum(map(len, split.held_out)) == 100_003
    assert sum(map(len, split.held_out)) == pytest.approx(100_003 / 20, rel=0.01)
    assert not any(block[:64] in split.train for block in split.held_out)


def test_an_epoch_shows_every_window_once_and_the_next_one_at_another_phase():
    tokens = torch.arange(33 * 16)
    first = torch.cat([windows(tokens, 16, 4, seed=3, step=step) for step in range(8)])
    assert torch.equal(first[:, 1:], first[:, :-1] + 1)
    starts = first[:, 0].sort().values
    assert torch.equal(starts.diff(), torch.full((31,), 16))
    second = torch.cat([windows(tokens, 16, 4, seed=3, step=step) for step in range(8, 16)])
    assert int(second[:, 0].min()) % 16 != int(starts[0]) % 16
    assert torch.equal(second[4:8], windows(tokens, 16, 4, seed=3, step=9))


def test_model_that_knows_nothing_costs_the_logarithm_of_its_vocabulary():
    model = Hybrid(CONFIG)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    # lengths: shorter than a window, whole windows, a rest
    bits = bits_per_byte(model, [b"a" * 5, b"b" * 32, b"c" * 43], context_size=16)
    assert bits == pytest.approx(math.log2(264))


def test_bits_per_byte_of_overlapping_windows_equal_those_scored_byte_by_byte():
    model = Hybrid(CONFIG)
    initialise(model, seed=0)
    text = bytes(range(65, 90))
    tokens = as_tokens(text)
    total = 0.0
    with torch.no_grad():
        for position in range(len(text)):
            # context 8: windows begin at multiples of 4 and score what no window has scored
            begin = max(0, position // 4 - 1) * 4
            logits = model(with_bos(tokens[None, begin : position + 1]))[0, -1]
            total += float(functional.cross_entropy(logits, tokens[position]))
    expected = total / math.log(2) / len(text)
    assert bits_per_byte(model, [text], context_size=8) == pytest.approx(expected, rel=1e-5)


def test_command_trains_and_records_what_it_did(text, tmp_path, capsys):
    flags = ["--config", "nano", "--steps", "2", "--context-size", "32", "--evaluate-every", "2"]
    out = tmp_path / "out"
    main(["--text", str(text), "--out", str(out), *flags])
    record = json.loads((out / "training.json").read_text())
    printed = capsys.readouterr().out
    assert f"{record['held_out_bits_per_byte']:.3f} bits/byte on held-out text" in printed
    assert "step 2:" in printed
    assert record["options"]["context_size"] == 32
    assert record["held_out_bytes"] == 135
    sample = (out / "held_out_sample.txt").read_text()
    assert sample in text.read_text()


def test_command_says_in_one_sentence_what_it_refuses(text, tmp_path, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(["--text", str(text), "--out", str(tmp_path), "--steps", "0"])
    assert "steps: expected a positive number, got 0" in capsys.readouterr().err
