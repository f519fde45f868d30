"""What a checkpoint makes tokens of text with, and text of tokens."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Unpack

from tokenizers import Tokenizer

from blockstride.checks import expect
from blockstride.models.chat_template import ChatTemplate, Messages, TemplateOptions
from blockstride.models.checkpoint import Checkpoint
from blockstride.models.detokenizer import Detokenizer, TokenDecoder
from blockstride.models.engine import SamplingParams
from blockstride.models.prompts import encode
from blockstride.models.text_stream import TextStream

logger = logging.getLogger(__name__)


class Texts:
    """The tokenizer and the chat template of a checkpoint, which may have neither.

    Args:
        checkpoint: The checkpoint; of its folder the template is read when it is first asked for.

    Raises:
        ValueError: tokenizer.json is not a tokenizer.
    """

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._folder, self._tokenizer = checkpoint.path, checkpoint.tokenizer()
        self._decoder = None if self._tokenizer is None else TokenDecoder(self._tokenizer)
        self._template: ChatTemplate | None = None

    @property
    def has_tokenizer(self) -> bool:
        """Whether there is any text at all."""
        return self._tokenizer is not None

    @property
    def tokenizer(self) -> Tokenizer:
        """What makes tokens of text, and text of tokens.

        Raises:
            ValueError: The checkpoint has none.
        """
        has_one = self._tokenizer is not None
        expect(has_one, "tokenizer", "a tokenizer.json in the checkpoint", "none")
        assert self._tokenizer is not None
        return self._tokenizer

    def encode(self, prompt: str | tuple[int, ...]) -> Sequence[int]:
        """The tokens of a prompt; see `prompts.encode`."""
        return encode(self._tokenizer, prompt)

    def chat_prompt(
        self, messages: Messages, **options: Unpack[TemplateOptions]
    ) -> tuple[int, ...]:
        """The tokens of a conversation.

        Args:
            messages: The conversation.
            options: What else `ChatTemplate.render` takes.

        Raises:
            TypeError: Something else was given.
            ValueError: The checkpoint has no chat template or no tokenizer, or the template
                refuses the messages.
        """
        tokenizer = self.tokenizer
        if self._template is None:
            self._template = ChatTemplate.of(self._folder)
        text = self._template.render(messages, **options)
        # a template writes the tokens that texts begin with itself
        return tuple(encode(tokenizer, text, add_special_tokens=False))

    def stream(self, prompt_ids: Sequence[int], params: SamplingParams) -> TextStream:
        """What makes the text of an answer.

        Raises:
            ValueError: Stop texts where there is no text.
        """
        detokenizer = None
        if self._decoder is not None:
            detokenizer = Detokenizer(self._decoder, prompt_ids)
        no_stop = not params.stop or detokenizer is not None
        expect(no_stop, "stop", "none, as the checkpoint has no tokenizer.json", params.stop)
        return TextStream(detokenizer, params.stop, params.min_tokens, params.include_stop)
