"""`blockstride warm`, and the word that is said while programs are compiled."""

import json
import re
import subprocess

import pytest
import transformers

from blockstride.kernels import CompileAhead
from blockstride.kernels.common.cpu import code_cache, native
from blockstride.models import LLM, SamplingParams, cache_specs, compiling
from blockstride.models.cli import main
from blockstride.models.compiling import rooms_of
from tests.models.hf_families import CONFIGS

ROOM_OF = {
    "mamba-1": "mamba1",
    "mamba-2": "mamba2",
    "gated delta net": "delta",
    "rg-lru": "lru",
    "short convolution": "conv",
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, of which all models need one small room."""
    monkeypatch.setenv(code_cache.VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(compiling, "ALWAYS", ("mlp",))
    monkeypatch.setattr(compiling, "SIGNS", {})
    return tmp_path / "cache" / "programs"


def test_what_a_model_needs_is_compiled_once_and_counted(reference, cache, capsys):
    assert main(["warm", "--model", str(reference.path)]) == 0
    out, err = capsys.readouterr()
    count = len(CompileAhead(("mlp",)).names)
    assert re.fullmatch(rf"{count} programs compiled in [\d.]+ s, 0 were there; .*\n", out)
    assert str(cache) in out
    assert err == f"blockstride: compiling {count} programs for this CPU, which is done once\n"
    assert main(["warm", "--model", str(reference.path)]) == 0
    out, err = capsys.readouterr()
    assert out.startswith(f"0 programs compiled in 0.0 s, {count} were there")
    assert err == ""


def test_what_can_not_be_kept_is_told(reference, cache, capsys, monkeypatch):
    monkeypatch.setenv(code_cache.VARIABLE, "/dev/null/nowhere")
    assert main(["warm", "--model", str(reference.path)]) == 1
    out, err = capsys.readouterr()
    assert out.startswith("0 programs compiled")
    assert "blockstride warm: expected to keep all programs, got blockstride.kernels.mlp" in err


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("[]", "config.json: expected a JSON object, got list"),
        ("{", "--model: expected a config.json in"),
        (None, "--model: expected a config.json in"),
    ],
)
def test_a_folder_without_a_config_is_refused(tmp_path, capsys, content, message):
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    assert main(["warm", "--model", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith(f"blockstride warm: {message}")


@pytest.mark.parametrize("model_type", CONFIGS)
def test_what_layers_cache_in_is_among_what_is_compiled_ahead(model_type):
    name, arguments = CONFIGS[model_type]
    if not hasattr(transformers, name):
        pytest.skip(f"this version of transformers has no {name}")
    config = getattr(transformers, name)(**arguments).to_dict()
    kinds = {spec.kind for spec in cache_specs(config).values()}
    needed = {ROOM_OF.get(kind, "attention") for kind in kinds}
    if kinds & {"mamba-1", "mamba-2", "gated delta net", "rg-lru"}:
        needed.add("conv")
    assert needed <= {*rooms_of(config)}


def test_whatever_a_model_calls_was_compiled_ahead(shipped, monkeypatch):
    called, call = set(), native.Program.__call__

    def noted(program, *arguments):
        called.add(f"{program.function.__module__}.{program.function.__name__}")
        return call(program, *arguments)

    monkeypatch.setattr(native.Program, "__call__", noted)
    with LLM(shipped.path, device="cpu") as llm:
        llm.generate(["In the beginning"] * 2, SamplingParams(max_tokens=3))
    config = json.loads((shipped.path / "config.json").read_text())
    assert called
    assert called <= {*CompileAhead(rooms_of(config)).names}


@pytest.mark.parametrize("is_terminal", [False, True])
def test_a_start_says_that_it_compiles(reference, cache, capsys, monkeypatch, is_terminal):
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(is_terminal)))
    line = ["generate", "--model", str(reference.path), "--prompt", "a", "--max-tokens", "1"]
    assert main([*line, "--device", "cpu"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("a")
    count = len(CompileAhead(("mlp",)).names)
    assert f"compiling {count} programs for this CPU" in err
    # a start that is done leaves what it never called half done
    CompileAhead(("mlp",)).help()
    assert main(line) == 0
    assert capsys.readouterr().err == ""


def test_a_start_with_all_compiled_begins_no_process(reference, monkeypatch):
    CompileAhead(rooms_of(json.loads((reference.path / "config.json").read_text()))).help()

    def no_process(*_, **__):
        raise AssertionError("a process was started")

    monkeypatch.setattr(subprocess, "Popen", no_process)
    LLM(reference.path, device="cpu").close()
