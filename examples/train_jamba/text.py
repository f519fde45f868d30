"""Text as token ids: a tokenizer whose ids are bytes, the held-out split, the training windows."""

import dataclasses
import hashlib
import itertools
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Int
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
from torch import Tensor
from torch.nn import functional

from blockstride.checks import expect
from train_jamba.config import BOS_ID

HELD_OUT_EVERY = 20  # one block in 20 is held out
BLOCK_BYTES = 16384  # of the longest block
SPECIAL_TOKENS = ("<pad>", "<bos>", "<eos>")  # ids 256, 257, 258


def byte_tokenizer() -> Tokenizer:
    """A tokenizer whose ids 0 to 255 are the bytes of UTF-8; it puts `<bos>` before a text."""
    symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    # printable Latin-1 stands for its own byte, the symbols above for the other bytes in order
    own = [ord(symbol) for symbol in symbols if ord(symbol) < 256]
    others = sorted(set(range(256)) - set(own))
    vocabulary = dict(zip(symbols, own + others, strict=True))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(name, special=True) for name in SPECIAL_TOKENS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A", pair="<bos> $A $B", special_tokens=[("<bos>", BOS_ID)]
    )
    return tokenizer


@dataclasses.dataclass(frozen=True)
class SplitText:
    """The bytes of a text: those to train on, the held-out blocks, and the digest of them all."""

    train: bytes
    held_out: list[bytes]
    sha256: str


def split_text(path: Path, context_size: int) -> SplitText:
    """Read a text and hold out one block in 20, spread evenly over it.

    Args:
        path: A text in UTF-8, or any other bytes.
        context_size: Bytes of a training window.

    Raises:
        ValueError: There is no such file, or it is too short to train on.
    """
    expect(path.is_file(), "text", "a file to train on", str(path))
    text = path.read_bytes()
    num_blocks = HELD_OUT_EVERY * max(1, -(-len(text) // (HELD_OUT_EVERY * BLOCK_BYTES)))
    cuts = [len(text) * block // num_blocks for block in range(num_blocks + 1)]
    blocks = [text[begin:end] for begin, end in itertools.pairwise(cuts)]
    held_out = blocks[HELD_OUT_EVERY // 2 :: HELD_OUT_EVERY]
    del blocks[HELD_OUT_EVERY // 2 :: HELD_OUT_EVERY]
    train = b"".join(blocks)
    needed = max(2 * context_size, HELD_OUT_EVERY)
    wanted = f"at least {needed} bytes, two windows, besides those held out"
    expect(len(train) >= needed, "text", wanted, f"{len(train)} in {path}")
    return SplitText(train, held_out, hashlib.sha256(text).hexdigest())


def as_tokens(text: bytes) -> Int[Tensor, " num_bytes"]:
    """Token ids of a text, without `<bos>`."""
    return torch.from_numpy(np.frombuffer(text, np.uint8).astype(np.int64))


def with_bos(tokens: Int[Tensor, "batch num_tokens"]) -> Int[Tensor, "batch num_tokens"]:
    """The inputs that predict `tokens`: `<bos>`, then all but the last of them."""
    return functional.pad(tokens[:, :-1], (1, 0), value=BOS_ID)


def windows(
    tokens: Int[Tensor, " num_bytes"], context_size: int, batch_size: int, seed: int, step: int
) -> Int[Tensor, "batch_size context_size"]:
    """Training windows of one step.

    Every epoch cuts the text at a new phase and takes its windows in a new order. The result
    depends on the arguments alone: a resumed run sees what an undisturbed one would have seen.
    """
    per_epoch = len(tokens) // context_size - 1
    rows = []
    for number in range(step * batch_size, (step + 1) * batch_size):
        epoch, index = divmod(number, per_epoch)
        rng = np.random.default_rng((seed, epoch))
        phase = rng.integers(context_size)
        begin = int(phase + rng.permutation(per_epoch)[index] * context_size)
        rows.append(tokens[begin : begin + context_size])
    return torch.stack(rows)
