"""Checkpoints by their names on the Hub: found where huggingface_hub keeps them, by it alone."""

import os
import shutil
import socket
import subprocess
import sys

import huggingface_hub
import pytest
from huggingface_hub import constants

from blockstride.models import LLM, EngineConfig, SamplingParams
from blockstride.models.cli import main
from blockstride.models.hub import FILES, find_checkpoint

OLD, NEW = "0123456789abcdef" * 2 + "01234567", "fedcba9876543210" * 2 + "01234567"


@pytest.fixture
def cache(reference, tmp_path, monkeypatch):
    """A cache with two commits of a checkpoint, as the library lays it out, and no network."""
    folder = tmp_path / "hub" / "models--org--tiny.model"
    for commit in (OLD, NEW):
        shutil.copytree(reference.path, folder / "snapshots" / commit)
    (folder / "snapshots" / OLD / "generation_config.json").write_text('{"max_new_tokens": 3}')
    for ref, commit in (("main", NEW), ("v1", OLD)):
        (folder / "refs").mkdir(exist_ok=True)
        (folder / "refs" / ref).write_text(commit)

    def refuse(*_, **__):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(socket.socket, "connect", refuse)
    return tmp_path / "hub"


@pytest.mark.parametrize(
    ("revision", "commit"), [(None, NEW), ("main", NEW), ("v1", OLD), (OLD, OLD)]
)
def test_a_name_is_the_snapshot_of_its_revision(cache, revision, commit):
    found = find_checkpoint("org/tiny.model", revision=revision)
    assert found == cache / "models--org--tiny.model" / "snapshots" / commit


def test_a_model_runs_by_its_name(cache, reference, capsys):
    ids, config = [5, 6, 7], EngineConfig(cache_bytes=1 << 24)
    wanted = reference.greedy(ids, 4)
    with LLM("org/tiny.model", config=config, revision="v1") as llm:
        assert llm.default_params.max_tokens == 3
        (completion,) = llm.generate(ids, SamplingParams(4, ignore_eos=True))
    assert list(completion.token_ids) == wanted
    given = ["generate", "--model", "org/tiny.model", "--token-ids", "5,6,7", "--ignore-eos"]
    assert main([*given, "--max-tokens", "4", "--cache-mib", "16"]) == 0
    assert capsys.readouterr().out == ",".join(map(str, wanted)) + "\n"


@pytest.mark.parametrize("variable", ["HF_HOME", "HF_HUB_CACHE"])
def test_the_cache_is_where_the_environment_says(cache, variable):
    where = cache.parent if variable == "HF_HOME" else cache
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGINGFACE_"))}
    program = "from blockstride.models.hub import find_checkpoint as f; print(f('org/tiny.model'))"
    ran = subprocess.run(
        [sys.executable, "-c", program],
        env={**clean, variable: str(where)},
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert ran.stdout.strip() == str(find_checkpoint("org/tiny.model"))


def test_a_folder_goes_before_a_name(cache, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "org" / "tiny.model").mkdir(parents=True)
    assert not find_checkpoint("org/tiny.model").is_absolute()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--model", "org/other"],
            "--model: expected a checkpoint folder, or a name that is cached",
        ),
        (["--model", "org/tiny.model", "--revision", "v2"], "got org/tiny.model at v2, which is"),
        (["--model", "./org/other"], "--model: expected a checkpoint folder, got org/other"),
        (["--model", ".", "--revision", "v2"], "--revision: expected None for a folder, got v2"),
        (["--model", ".", "--download"], "--download: expected the name of a checkpoint"),
    ],
)
def test_what_is_not_there_is_told_with_what_to_do(cache, capsys, options, message):
    assert main(["generate", "--token-ids", "5", *options]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    if "which is" in err:
        assert f"{cache}, got" in err
        assert "'hf download org/" in err
        assert "gets it, as does --download" in err


def test_the_network_is_asked_only_where_download_says_so(cache, monkeypatch):
    asked = []
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda *a, **k: asked.append((a, k)) or str(cache)
    )
    find_checkpoint("org/other", revision="v1", download=True)
    find_checkpoint("org/other")
    options = {"revision": "v1", "local_files_only": False, "allow_patterns": FILES}
    assert asked[0] == (("org/other",), options)
    assert asked[1][1]["local_files_only"] is True
