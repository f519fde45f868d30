"""`blockstride layouts`: what it prints, the numbers behind it, and what bad input gets."""

import argparse
import json
import subprocess
import sys

import pytest

from blockstride.layouts import choose_block_size, plan_pools, tokens_that_fit
from blockstride.models.cli import main
from blockstride.models.commands import layouts
from blockstride.models.engine import Engine, EngineConfig
from blockstride.models.families import cache_specs
from blockstride.models.loading import load_model
from tests.models.conftest import FAMILIES

JAMBA = {
    "model_type": "jamba",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "attn_layer_period": 8,
    "attn_layer_offset": 4,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "mamba_expand": 2,
    "dtype": "bfloat16",
}
MISTRAL = {
    "model_type": "mistral",
    "hidden_size": 4096,
    "num_hidden_layers": 2,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "sliding_window": 64,
}
MAMBA = {
    "model_type": "mamba",
    "hidden_size": 768,
    "num_hidden_layers": 4,
    "state_size": 16,
    "conv_kernel": 4,
    "expand": 2,
}


@pytest.fixture
def command(tmp_path, capsys, monkeypatch):
    """Runs the command on a config and gives what it printed."""
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")

    def run(config, *options: str) -> str:
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert main(["layouts", "--config", str(tmp_path), *options]) == 0
        return capsys.readouterr().out

    return run


def numbers(command, config, *options: str) -> dict:
    return json.loads(command(config, *options, "--json"))


def test_tables_drawings_and_both_policies_are_printed(command):
    text = command(JAMBA)
    assert "mamba-1             28       1     573,440   0.0%  0-3, 5-11" in text
    assert "full attention       4       1      65,536   0.0%  4, 12, 20, 28" in text
    assert "  ssm           524,288  8,192 of 8,192  channel 8,192, state 16, fp32" in text
    assert "  k              32,768          8 of 8  head 8, token 16, content 128, bf16" in text
    assert "a token, bytes                       16,384" in text
    assert "| token 0 | 1 | ... | 15 |  16 x 512" in text
    assert text.splitlines()[-2].startswith("unified: 144 tokens a block, 1 x ")
    assert text.splitlines()[-1].startswith("split: 16 tokens a block, 1 x ")


def test_every_line_fits_80_columns(command):
    for options in ((), ("--policy", "unified", "--layout", "LBNHC", "--conv-order", "SD")):
        *tables, _, _ = command(JAMBA, *options).splitlines()
        assert max(map(len, tables)) <= 80


@pytest.mark.parametrize("policy", ["unified", "split"])
@pytest.mark.parametrize("tp", [1, 4])
def test_numbers_are_those_of_the_pools_that_an_engine_would_make(command, policy, tp):
    options = ("--policy", policy, "--tp", str(tp), "--layout", "LBHNC", "--num-seqs", "3")
    report = numbers(command, JAMBA, *options, "--memory", "2GiB")
    model = cache_specs(JAMBA)
    pools = plan_pools(
        model,
        layout="LBHNC",
        policy=policy,
        block_size=choose_block_size(model, policy),
        memory_bytes=2 << 30,
        num_seqs=3,
        kept_states=9,
        tp_size=tp,
    )
    assert [pool["num_blocks"] for pool in report["pools"]] == [pool.num_blocks for pool in pools]
    assert [pool["bytes"] for pool in report["pools"]] == [pool.nbytes for pool in pools]
    fits = {str(n): tokens_that_fit(pools, n) for n in (1, 3)}
    assert report["costs"]["tokens_that_fit"] == fits
    assert report["costs"]["bytes_per_token"] == 16384 / tp
    layers_told = [name for group in report["groups"] for name in group["layers"]]
    assert sorted(layers_told) == sorted(model)


@pytest.mark.parametrize(
    ("family", "policy"), [(f, "split") for f in FAMILIES] + [("bamba", "unified")]
)
def test_an_engine_makes_the_pools_that_are_shown(capsys, make_reference, family, policy):
    path = make_reference(family=family).path
    config = EngineConfig(cache_bytes=4 << 20, policy=policy, max_num_seqs=3)
    engine = Engine(load_model(path, config, device="cpu"), config)
    types = ("--kv-cache-dtype", "fp32", "--conv-dtype", "fp32")
    sizes = ("--policy", policy, "--memory", "4MiB", "--num-seqs", "3")
    assert main(["layouts", "--config", str(path), "--json", *types, *sizes]) == 0
    report = json.loads(capsys.readouterr().out)
    shown = [(pool["num_blocks"], pool["block_bytes"], pool["bytes"]) for pool in report["pools"]]
    made = [
        (pool.layout.num_blocks, pool.layout.block_bytes, pool.storage.nbytes)
        for pool in engine.pools
    ]
    assert shown == made
    pages = {group["kind"]: group["page_bytes"] for group in report["groups"]}
    assert pages == {group.group.spec.kind: group.page_bytes for group in engine.groups}


def test_costs_count_windows_and_states_apart(command):
    windows = numbers(command, MISTRAL)["costs"]
    # 63 earlier tokens and the next one straddle 5 blocks of 16
    assert windows["bytes_per_token"] == 0
    assert windows["window_bytes_per_sequence"] == 5 * 16 * 2 * 4096
    assert windows["tokens_that_fit"]["1"] == "any"
    states = numbers(command, MAMBA)["costs"]
    assert states["state_bytes_per_sequence"] == 4 * 1536 * (3 * 2 + 16 * 4)
    assert states["bytes_per_token"] == 0


def test_windows_have_a_line_of_their_own(command):
    assert "the windows of a sequence, bytes  655,360" in command(MISTRAL)


def test_dtypes_and_kernel_blocks_reach_the_page(command):
    options = ("--kv-cache-dtype", "fp8", "--ssm-dtype", "bfloat16", "--conv-dtype", "float32")
    sizes = ("--policy", "unified", "--kernel-block-size", "16")
    report = numbers(command, JAMBA, *options, *sizes)
    fields = {field["name"]: field for group in report["groups"] for field in group["fields"]}
    found = {name: field["dtype"] for name, field in fields.items()}
    assert found["k"] == found["v"] == "float8_e4m3fn"
    assert (found["ssm"], found["conv.x"]) == ("bfloat16", "float32")
    attention = next(group for group in report["groups"] if "attention" in group["kind"])
    assert fields["k"]["axes"] == {"head": 8, "token": 16, "content": 128}
    assert attention["kernel_blocks"] * 16 == report["pools"][0]["block_size"]


def test_a_policy_that_cannot_be_says_why(command):
    report = numbers(command, JAMBA, "--layout", "LHBNC")
    assert "tokens a block" in report["policies"]["split"]
    assert "layout: expected H, N and C inside B" in report["policies"]["unified"]


@pytest.mark.parametrize(
    ("memory", "nbytes"),
    [
        ("4GiB", 4 << 30),
        ("4 gib", 4 << 30),
        ("0.5GiB", 1 << 29),
        ("2e9", 2 * 10**9),
        ("2000000000", 2 * 10**9),
        ("3GB", 3 * 10**9),
        ("900 MB", 9 * 10**8),
    ],
)
def test_memory_is_given_in_the_units_people_write(command, memory, nbytes):
    assert numbers(command, JAMBA, "--memory", memory)["memory_bytes"] == nbytes


def test_defaults_are_those_of_the_engine():
    parser = argparse.ArgumentParser()
    layouts.add_arguments(parser)
    args, engine = parser.parse_args(["--config", "x"]), EngineConfig()
    ours = (args.layout, args.policy, args.block_size, args.kernel_block_size)
    theirs = (engine.layout, engine.policy, engine.block_size, engine.kernel_block_size)
    assert ours == theirs


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--tp", "3"), "--tp: expected a divisor of 8192 (conv.x.channel), got 3"),
        (("--tp", "0"), "--tp: expected at least 1, got 0"),
        (("--layout", "XYZ"), "--layout: expected a permutation of LBHNC"),
        (("--layout", "LHBNC", "--policy", "unified"), "--layout: expected H, N and C inside B"),
        (("--policy", "both"), "--policy: expected one of ('unified', 'split'), got 'both'"),
        (("--block-size", "0"), "--block-size: expected a positive number of tokens, got 0"),
        (("--kernel-block-size", "5"), "--kernel-block-size: expected a divisor of 16, got 5"),
        (("--kv-cache-dtype", "fp4"), "--kv-cache-dtype: expected one of"),
        (("--conv-order", "DDS"), "--conv-order: expected 'DS' or 'SD', got 'DDS'"),
        (("--memory", "lots"), "--memory: expected a number of bytes such as 8GiB or 500MB"),
        (("--memory", "1.2.3GiB"), "--memory: expected a number of bytes such as 8GiB or 500MB"),
        (("--memory", "8GiBs"), "--memory: expected a number of bytes such as 8GiB or 500MB"),
        (("--memory", "1MiB"), "--memory: expected at least"),
        (("--num-seqs", "0"), "--num-seqs: expected at least 1, got 0"),
    ],
)
def test_bad_input_gets_one_sentence_and_code_2(options, message, tmp_path, capsys):
    (tmp_path / "config.json").write_text(json.dumps(JAMBA))
    assert main(["layouts", "--config", str(tmp_path), *options]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"blockstride layouts: {message}")
    assert err.count("\n") == 1


def test_a_config_that_is_not_there_gets_one_sentence_and_code_2(tmp_path, capsys):
    assert main(["layouts", "--config", str(tmp_path / "absent")]) == 2
    assert "config: expected a config.json or a folder with one, got" in capsys.readouterr().err


def test_it_runs_from_a_shell(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(MAMBA))
    line = [sys.executable, "-m", "blockstride.models.cli", "layouts", "--config", str(tmp_path)]
    good = subprocess.run(line, capture_output=True, text=True, check=True)
    assert "mamba-1 in BLHNC" in good.stdout
    bad = subprocess.run([*line, "--tp", "7"], capture_output=True, text=True, check=False)
    assert (bad.returncode, bad.stdout) == (2, "")
    assert "Traceback" not in bad.stderr
