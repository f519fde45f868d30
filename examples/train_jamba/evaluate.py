"""Bits per byte of a model on text it was not trained on."""

import math
from collections.abc import Sequence

import torch
from torch.nn import functional

from train_jamba.model import Hybrid
from train_jamba.text import as_tokens, with_bos


@torch.no_grad()
def bits_per_byte(model: Hybrid, blocks: Sequence[bytes], context_size: int) -> float:
    """Mean cost of predicting each byte of some blocks of text once.

    A block is read in windows that overlap by half: the bytes of its first window see all bytes of
    the block before them, later ones at least `context_size // 2` and less than `context_size`.

    Args:
        model: The model to judge.
        blocks: Stretches of text; a block knows nothing of the block before it.
        context_size: Bytes of a window.

    Returns:
        Mean of `-log2 p(byte)`.
    """
    stride = context_size - context_size // 2
    nats = 0.0
    for block in blocks:
        tokens = as_tokens(block)[None]
        scored = 0
        for begin in range(0, max(1, len(block) - context_size + stride), stride):
            window = tokens[:, begin : begin + context_size]
            fresh = slice(scored - begin, None)
            logits = model(with_bos(window))[0, fresh]
            nats += functional.cross_entropy(logits, window[0, fresh], reduction="sum").item()
            scored = begin + window.shape[1]
    return nats / math.log(2) / sum(len(block) for block in blocks)
