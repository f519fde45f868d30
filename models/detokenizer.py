"""Tokens to text as they come, exactly as decoding all of them at once would have it.

The text of a request is what decoding prompt and output gives, beyond what it has in common with
that of the prompt alone. Decoders look around: at the bytes that a character still lacks, at the
token before, at the whole run of byte tokens (`<0xC3>`), which is no text at all if one of it is
wrong. So new tokens are decoded together with some before them, and held back while what follows
can change them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from tokenizers import Tokenizer

CONTEXT = 4
"""Tokens that the text of the next ones may depend on: a character has four bytes at most."""

WINDOW = 12
"""Tokens that are decoded together at most, runs of byte tokens apart."""

REPLACEMENT = "\ufffd"
BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class TokenDecoder:
    """A tokenizer's way from tokens to text, without special tokens, which have none.

    Args:
        tokenizer: The tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder().values()
        self._special = {token.content for token in added if token.special}

    def spelling(self, token_id: int) -> str | None:
        """The token as the vocabulary has it; None when it is special, or not there."""
        spelling = self._tokenizer.id_to_token(token_id)
        return None if spelling in self._special else spelling

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of tokens that have a spelling."""
        return self._tokenizer.decode(list(token_ids), skip_special_tokens=False)

    def context(self, token_ids: Sequence[int]) -> list[int]:
        """The last tokens, as many as the text of what follows may depend on."""
        tail: list[int] = []
        run_is_over = False
        num_settled = 0
        for token in reversed(token_ids):
            spelling = self.spelling(token)
            if spelling is None:
                continue
            tail.append(token)
            run_is_over = run_is_over or byte_of(spelling) is None
            num_settled += run_is_over
            # a decoder that strips what the text begins with has to meet some text
            if num_settled >= CONTEXT and self.decode(tail[: -num_settled - 1 : -1]):
                break
        return tail[::-1]


def byte_of(spelling: str) -> int | None:
    """The byte that a token stands for, if it does."""
    match = BYTE_TOKEN.fullmatch(spelling)
    return None if match is None else int(match[1], 16)


class Detokenizer:
    """The text of one request.

    Args:
        decoder: Of its tokenizer.
        prompt_ids: Tokens of the prompt.
    """

    def __init__(self, decoder: TokenDecoder, prompt_ids: Sequence[int]) -> None:
        self._decoder = decoder
        self._window = decoder.context(prompt_ids)
        # characters of the window's text that are the prompt's, or were returned already
        self._num_done = 0
        # the prompt's text in the window, until something differs from it
        self._prompt: str | None = decoder.decode(self._window)
        # the bytes that the window ends with
        self._run = bytearray()
        for token in self._window:
            self._extend_run(token)

    def _extend_run(self, token_id: int) -> bool:
        """Whether a token is one of a run of bytes."""
        byte = byte_of(self._decoder.spelling(token_id) or "")
        if byte is None:
            self._run.clear()
            return False
        self._run.append(byte)
        return True

    def push(self, token_id: int) -> str:
        """Takes a token in, and returns the text that no further one can change."""
        if self._decoder.spelling(token_id) is None:
            return ""
        self._window.append(token_id)
        if self._extend_run(token_id):
            return ""
        text = self._decoder.decode(self._window)
        # perhaps the beginning of a character
        size = len(text) - text.endswith(REPLACEMENT)
        piece = self._take(text, size)
        if len(self._window) > WINDOW and self._prompt is None:
            self._shorten(len(text) - self._num_done)
        return piece

    def rest(self) -> str:
        """The text that has not been returned, if no token follows."""
        text = self._decoder.decode(self._window)
        return text[self._begin(text) :]

    def may_end_with(self, text: str) -> bool:
        """Whether bytes that are held back could end with a text, or be the end of one."""
        wanted = text.encode("utf-8", "surrogatepass")
        touches = self._run.endswith(wanted) or wanted.endswith(self._run)
        return bool(self._run) and touches and _is_text(self._run)

    def _begin(self, text: str) -> int:
        """Where new text begins in that of the window."""
        if self._prompt is None:
            return self._num_done
        pairs = enumerate(zip(self._prompt, text, strict=False))
        return next((at for at, (a, b) in pairs if a != b), min(len(self._prompt), len(text)))

    def _take(self, text: str, size: int) -> str:
        begin = self._begin(text)
        if begin >= size:
            return ""
        self._prompt, self._num_done = None, size
        return text[begin:size]

    def _shorten(self, num_held: int) -> None:
        """Drops tokens that don't bear on the text of the next ones any more."""
        context = self._window[-CONTEXT:]
        text = self._decoder.decode(context)
        if len(text) > num_held:
            self._window, self._num_done = context, len(text) - num_held


def _is_text(data: bytearray) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True
