"""`blockstride generate` with engines in processes of their own."""

import pytest

from blockstride.models.cli import main

ENGINES = ["--prefill", "tp=1,layout=BHLNC,mib=16", "--decode", "layout=LBNHC,block=48,mib=16"]


@pytest.mark.parametrize("transfer", ["pull", "push"])
def test_engines_in_processes_print_the_text_of_one_engine(reference, capsys, transfer):
    arguments = ["generate", "--model", str(reference.path), "--prompt", "hello", "--stats"]
    assert main([*arguments, "--max-tokens", "20", "--ignore-eos"]) == 0
    alone = capsys.readouterr().out
    assert (
        main([*arguments, "--max-tokens", "20", "--ignore-eos", *ENGINES, "--transfer", transfer])
        == 0
    )
    out, err = capsys.readouterr()
    assert out == alone
    assert "prefill-0" in err
    assert "decode-0" in err
    assert "sequences taken over" in err


@pytest.mark.parametrize(
    ("engine", "message"),
    [
        ("tp", "--prefill: expected key=value with a key of tp, layout"),
        ("tp=two", "--prefill tp: expected a positive number, got two"),
        ("layout=XYZ", "expected a permutation of LBHNC"),
    ],
)
def test_a_refused_engine_is_explained(reference, capsys, engine, message):
    arguments = ["--model", str(reference.path), "--prompt", "hello", "--prefill", engine]
    assert main(["generate", *arguments]) == 2
    assert message in capsys.readouterr().err
