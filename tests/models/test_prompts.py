"""Prompts of files and of a command line: bytes in, prompts out, or one sentence about why not."""

import io
import sys

import pytest

from blockstride.models.commands.prompts import read_prompts, typed_prompts


@pytest.mark.parametrize(
    ("content", "prompts"),
    [
        (b"one\ntwo\n", ["one", "two"]),
        (b"one\r\ntwo\r\n", ["one", "two"]),
        (b"one\rtwo", ["one", "two"]),
        (b"one\n\r\n \t\n\rtwo", ["one", "two"]),
        (b"\xef\xbb\xbfone\n\xef\xbb\xbftwo", ["one", "\ufefftwo"]),
        # what Python's splitlines would cut at
        (
            "a\fb\vc\x1cd\x1de\x1ef\x85g\u2028h\u2029i".encode(),
            ["a\fb\vc\x1cd\x1de\x1ef\x85g\u2028h\u2029i"],
        ),
        (b"\f\n\x00", ["\f", "\x00"]),
        (b" kept as it is ", [" kept as it is "]),
    ],
)
def test_a_prompt_is_a_line_and_lines_end_where_every_system_ends_them(
    tmp_path, monkeypatch, content, prompts
):
    file = tmp_path / "prompts.txt"
    file.write_bytes(content)
    assert read_prompts(str(file)) == prompts
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content), encoding="ascii"))
    assert read_prompts("-") == prompts


@pytest.mark.parametrize(
    ("content", "got"),
    [
        (b"one\r\ntwo\xff", "the byte 0xff in line 2 of {file}"),
        (b"\xff\xfeo\x00", "the byte 0xff in line 1 of {file}"),
        (b"a\rb\n\xed\xa0\x80", "the byte 0xed in line 3 of {file}"),
        (b"cut \xe2\x82", "the byte 0xe2 in line 1 of {file}"),
        (b"", "none in {file}"),
        (b"\xef\xbb\xbf\r\n \n", "none in {file}"),
    ],
)
def test_what_is_no_prompt_is_named_by_file_and_line(tmp_path, content, got):
    file = tmp_path / "prompts.txt"
    file.write_bytes(content)
    with pytest.raises(ValueError, match=r"--prompt-file: expected .*, got ") as refusal:
        read_prompts(str(file))
    assert str(refusal.value).endswith(got.format(file=file))


def test_a_folder_and_no_file_are_told_apart(tmp_path):
    with pytest.raises(
        ValueError, match=f"a file that can be read, got {tmp_path}: Is a directory"
    ):
        read_prompts(str(tmp_path))
    with pytest.raises(ValueError, match=r"got .*nowhere: No such file"):
        read_prompts(str(tmp_path / "nowhere"))


def test_typed_bytes_that_are_no_text_are_named():
    assert typed_prompts(["a\x00b", "é"]) == ["a\x00b", "é"]
    with pytest.raises(ValueError, match="--prompt: expected text in UTF-8, got the byte 0xff"):
        typed_prompts(["fine", "a\udcff"])
    with pytest.raises(ValueError, match="--prompt: expected some text, got an empty prompt"):
        typed_prompts(["fine", ""])
