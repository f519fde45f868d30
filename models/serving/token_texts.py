"""Single tokens as text and bytes, for whoever is told how likely they were."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

from tokenizers import Tokenizer, pre_tokenizers

from blockstride.models.detokenizer import REPLACEMENT, byte_of

CACHED = 65_536
"""Tokens whose text is kept."""


class TokenText(NamedTuple):
    r"""A token.

    Attributes:
        text: What it adds to a text; `bytes:\xe2\x80` where it is a part of a character.
        data: Its bytes.
    """

    text: str
    data: bytes


def token_texts(tokenizer: Tokenizer | None) -> Callable[[int], TokenText]:
    """What tells the text of a token; its number, where there is no tokenizer."""
    alphabet = _alphabet()

    @lru_cache(CACHED)
    def text_of(token_id: int) -> TokenText:
        if tokenizer is None or (spelling := tokenizer.id_to_token(token_id)) is None:
            return _of_text(f"token_id:{token_id}")
        if (byte := byte_of(spelling)) is not None:
            return _of_bytes(bytes([byte]))
        # decoders strip what a text begins with, so it is taken from behind itself
        once, twice = (
            tokenizer.decode([token_id] * count, skip_special_tokens=False) for count in (1, 2)
        )
        text = twice[len(once) :] if twice.startswith(once) else once
        if REPLACEMENT in text and alphabet.keys() >= set(spelling):
            return _of_bytes(bytes(alphabet[sign] for sign in spelling))
        return _of_text(text)

    return text_of


def _of_text(text: str) -> TokenText:
    return TokenText(text, text.encode("utf-8", "replace"))


def _of_bytes(data: bytes) -> TokenText:
    try:
        return TokenText(data.decode(), data)
    except UnicodeDecodeError:
        return TokenText("bytes:" + "".join(f"\\x{byte:02x}" for byte in data), data)


def _alphabet() -> dict[str, int]:
    """How tokenizers of bytes spell each: printable ones as themselves, others from 256 on."""
    signs = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = {sign: ord(sign) for sign in signs if ord(sign) < 256}
    others = (byte for byte in range(256) if byte not in plain.values())
    return plain | dict(zip((sign for sign in signs if ord(sign) >= 256), others, strict=True))
