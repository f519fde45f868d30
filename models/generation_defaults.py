"""How a checkpoint wants its text to be generated where a caller doesn't say."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from blockstride.models.engine.sampling import SamplingParams
from blockstride.models.engine.values import expect_type

logger = logging.getLogger(__name__)

TOP_K = 50
"""What transformers takes where a file asks for draws and says nothing of their number."""

NEUTRAL: dict[str, object] = {
    "begin_suppress_tokens": None,
    "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "exponential_decay_length_penalty": None,
    "forced_bos_token_id": None,
    "forced_eos_token_id": None,
    "guidance_scale": 1.0,
    "min_length": 0,
    "no_repeat_ngram_size": 0,
    "num_beams": 1,
    "penalty_alpha": 0.0,
    "top_h": None,
    "typical_p": 1.0,
}
"""What changes the next token in transformers and not here, and the value that changes nothing."""


def default_params(generation: Mapping[str, Any] | None) -> SamplingParams:
    """The sampling parameters in a parsed generation_config.json, as transformers understands them.

    `do_sample` is what makes draws of a temperature; without it the most likely token is taken, as
    without a file. Tokens that end a text are the model's, not these parameters'. What can't be
    done here is logged by name.

    Args:
        generation: The file; None where there is none.

    Raises:
        ValueError: A value of another type or out of its range.
    """
    said = {key: value for key, value in (generation or {}).items() if value is not None}
    without = [key for key, neutral in NEUTRAL.items() if said.get(key, neutral) != neutral]
    for key in without:
        logger.warning(
            "generation_config.json: %s=%s has no counterpart here and changes nothing",
            key,
            said[key],
        )
    is_drawn = bool(said.get("do_sample"))
    try:
        values = {
            "max_tokens": said.get("max_new_tokens"),
            "min_tokens": said.get("min_new_tokens"),
            "temperature": said.get("temperature", 1.0) if is_drawn else None,
            "top_k": said.get("top_k", TOP_K if is_drawn else None),
            "top_p": said.get("top_p"),
            "min_p": said.get("min_p"),
            "repetition_penalty": said.get("repetition_penalty"),
            "stop": said.get("stop_strings"),
            "bad_token_ids": _bad_tokens(said),
            "logit_bias": _biases(said.get("sequence_bias", ())),
        }
        return SamplingParams(**{name: v for name, v in values.items() if v is not None})
    except (TypeError, ValueError) as error:
        raise ValueError(f"generation_config.json: {error}") from error


def _bad_tokens(said: Mapping[str, Any]) -> set[Any]:
    """Tokens that are never chosen; an end token among the words is, as in transformers."""
    words, ends = _listed("bad_words_ids", said.get("bad_words_ids", ())), said.get("eos_token_id")
    bad = {word[0] for word in words if _is_single("bad_words_ids", word)}
    bad -= set(ends) if isinstance(ends, list) else {ends}
    return bad | set(_listed("suppress_tokens", said.get("suppress_tokens", ())))


def _biases(said: Any) -> dict[Any, Any]:
    biases = _listed("sequence_bias", said)
    return {word[0]: bias for word, bias in biases if _is_single("sequence_bias", word)}


def _listed(key: str, value: Any) -> Any:
    expect_type(value, key, (list, tuple), "a list")
    return value


def _is_single(key: str, word: Any) -> bool:
    """Whether a word is a token; others are told, since nothing is done about them."""
    expect_type(word, key, list, "words as lists of tokens")
    if len(word) != 1:
        logger.warning("generation_config.json: %s: %s is not one token: unused", key, word)
    return len(word) == 1
