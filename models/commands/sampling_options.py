"""How the command line says how prompts are to be continued."""

from __future__ import annotations

import argparse
from typing import Any

from blockstride.models.commands.prompts import expect_text, typed_tokens
from blockstride.models.commands.values import biases, positive, positive_or_all, real, whole
from blockstride.models.engine import SamplingParams

SAMPLING_HELP = "What is left out is as generation_config.json says, or the most likely token."

OPTIONS: dict[str, dict[str, Any]] = {
    "max_tokens": {
        "type": positive_or_all,
        "metavar": "N",
        "help": "most tokens to add (128); all: as many as the model and the cache allow",
    },
    "min_tokens": {"type": whole, "metavar": "N", "help": "tokens to add before anything ends it"},
    "temperature": {"type": real, "metavar": "T", "help": "0: the most likely token"},
    "top_k": {"type": whole, "metavar": "K", "help": "0: all tokens"},
    "top_p": {"type": real, "metavar": "P", "help": "1: all tokens"},
    "min_p": {"type": real, "metavar": "P", "help": "least share of the likeliest token's chance"},
    "repetition_penalty": {
        "type": real,
        "metavar": "R",
        "help": "divides what speaks for tokens that are in prompt or answer; 1: nothing",
    },
    "presence_penalty": {
        "type": real,
        "metavar": "X",
        "help": "taken from the logits of tokens that are in the answer",
    },
    "frequency_penalty": {
        "type": real,
        "metavar": "X",
        "help": "the same, for each time that they are in it",
    },
    "logit_bias": {
        "type": biases,
        "metavar": "ID=X,...",
        "help": "added to the logits of tokens, as in 5=-2,7=1.5",
    },
    "seed": {"type": whole, "help": "makes it repeatable"},
    "n": {"type": positive, "help": "answers to each prompt"},
    "stop": {"action": "append", "metavar": "TEXT", "help": "ends it; repeat for several"},
    "include_stop": {"action": "store_true", "help": "print the text that has ended it, too"},
    "stop_token_ids": {"type": typed_tokens, "metavar": "IDS", "help": "end it, as in 1,2,3"},
    "ignore_eos": {"action": "store_true", "help": "go on after an end token"},
}
"""Field of `SamplingParams` -> its option."""


def add_sampling(group: Any) -> None:
    """Declares the options."""
    for name, option in OPTIONS.items():
        # what isn't typed isn't there, so that None can be
        group.add_argument(
            f"--{name.replace('_', '-')}", dest=name, default=argparse.SUPPRESS, **option
        )


def given_sampling(args: argparse.Namespace) -> dict[str, Any]:
    """What was typed, as fields of `SamplingParams`.

    Raises:
        ValueError: A value out of its range.
    """
    given = {name: value for name, value in vars(args).items() if name in OPTIONS}
    for text in given.get("stop", ()):
        expect_text("--stop", text)
    SamplingParams(**given)
    return given
