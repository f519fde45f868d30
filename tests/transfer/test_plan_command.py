"""`blockstride plan`: tables and drawings for people, JSON for programs, a sentence for errors."""

import json
from pathlib import Path

import pytest

from blockstride.models.cli import main
from blockstride.transfer import CostModel

CONFIG = {
    "model_type": "jamba",
    "num_hidden_layers": 4,
    "hidden_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "attn_layer_period": 2,
    "attn_layer_offset": 1,
    "mamba_expand": 2,
    "mamba_d_state": 16,
    "mamba_d_conv": 4,
    "torch_dtype": "bfloat16",
}


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    path = tmp_path / "config.json"
    path.write_text(json.dumps(CONFIG), encoding="utf-8")
    return str(path)


ENGINES = ["--prefill", "tp=4,layout=BHLNC,block=16", "--decode", "tp=2,layout=LBHNC,block=64"]


def plan(config: str, *more: str) -> int:
    return main(["plan", "--config", config, *ENGINES, "--tokens", "200", *more])


def test_json_has_mapping_descriptors_and_the_time_of_every_strategy_for_every_rank(config, capsys):
    assert plan(config, "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [rank["source_ranks"] for rank in found["ranks"]] == [[0, 1], [2, 3]]
    assert found["expected_readers"] == [1, 1, 1, 1]
    first = found["ranks"][0]
    assert {
        "group": 1,
        "kind": "full attention",
        "layers": 2,
        "field": "k",
        "interval": [1, 2],
        "remote_rank": 1,
        "remote_group": 1,
    } in first["mapping"]
    assert first["strategies"].keys() == {"direct", "pages", "pack", "auto"}
    for entry in first["strategies"].values():
        assert 0 < entry["lower_bound"] <= entry["descriptors"]
        assert entry["seconds"] > 0
    # 200 tokens: 13 blocks of 16, of 2 heads, K and V, 8 elements of bf16, 2 layers
    attention = 13 * 16 * 2 * 2 * 8 * 2 * 2
    state = 64 * (3 * 2 + 16 * 4) * 2
    assert first["strategies"]["direct"]["nbytes"] == attention + state


def test_tables_and_a_drawing_are_for_people(config, capsys):
    assert plan(config) == 0
    shown = capsys.readouterr().out
    for text in ("prefill (tp 4, BHLNC", "decode rank 1", "[1, 2)", "direct", "each written once"):
        assert text in shown
    assert "full attention: 4096 bytes of a page, in 8 runs" in shown
    assert f"local    {'0' * 32}{'1' * 32}" in shown


def test_one_rank_alone_can_be_asked_for(config, capsys):
    assert plan(config, "--rank", "1", "--json") == 0
    assert [rank["rank"] for rank in json.loads(capsys.readouterr().out)["ranks"]] == [1]


def test_a_stored_cost_model_is_used(config, capsys, tmp_path):
    CostModel(1.0, 1e9, 1e9, "a slow place").save(tmp_path / "blockstride" / "cost_model.json")
    assert plan(config, "--json", "--rank", "0") == 0
    found = json.loads(capsys.readouterr().out)
    direct = found["ranks"][0]["strategies"]["direct"]
    assert found["cost_model"]["source"] == "a slow place"
    assert direct["seconds"] == pytest.approx(direct["descriptors"], rel=1e-3)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--prefill", "tp=3"], "--prefill tp: expected a divisor of 128 (conv.x.channel)"),
        (["--prefill", "tp=two"], "--prefill tp: expected a positive number, got two"),
        (["--decode", "heads=2"], "--decode: expected key=value with a key of tp"),
        (["--decode", "layout=LBHN"], "layout: expected a permutation of LBHNC"),
        (["--decode", "policy=both"], "--decode policy: expected unified or split"),
        (["--tokens", "0"], "--tokens: expected at least 1, got 0"),
        (["--rank", "2"], "rank: expected 0 to 1, got 2"),
        (["--cost-model", "nowhere.json"], "--cost-model: expected a file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_bad_input_is_one_sentence_and_exit_code_2(config, capsys, more, message):
    assert plan(config, *more) == 2
    error = capsys.readouterr().err
    assert error.startswith("blockstride plan: ")
    assert message in error
    assert error.count("\n") == 1
