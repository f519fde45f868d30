"""Pools in every stride order, poisoned where a kernel has no business, and batches on them."""

import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

# memory order of the logical axes [layer, block, head, token, content]
STRIDE_ORDERS = ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
AXES = "LBHNC"
GUARD = 64


def pool(shape: tuple[int, ...], dtype: torch.dtype, order: str = "LBHNC", pad: int = 0) -> Tensor:
    """A poisoned pool [layer, block, head, token, content] in a stride order, between two guards.

    Args:
        shape: Extents of the logical axes.
        dtype: Floats are filled with NaN, integers with 0x7F.
        order: The axes from outer to inner memory.
        pad: Elements between the pages of the outermost axis but one, as when blocks lie in larger
            pages.
    """
    extents = dict(zip(AXES, shape, strict=True))
    strides, step = {}, 1
    for place, axis in enumerate(reversed(order)):
        strides[axis] = step
        step *= extents[axis]
        if place == 2:
            step += pad
    storage = torch.empty(step + 2 * GUARD, dtype=dtype)
    poison(storage)
    return storage.as_strided(shape, [strides[axis] for axis in AXES], GUARD)


def poison(tensor: Tensor) -> None:
    if tensor.dtype == torch.int8:
        tensor.fill_(0x7F)
    elif tensor.element_size() == 1:
        tensor.view(torch.uint8).fill_(0x7F)  # the NaN of e4m3
    else:
        tensor.fill_(torch.nan)


def memory_of(view: Tensor) -> Tensor:
    """All bytes of the storage behind a view, guards included."""
    return torch.empty(0, dtype=torch.uint8, device=view.device).set_(view.untyped_storage())


@dataclass
class Batch:
    """Arguments of attention over a poisoned pool, in the order of the call."""

    query: Tensor
    key_cache: Tensor
    value_cache: Tensor
    block_table: Tensor
    seq_lens: Tensor
    query_start_loc: Tensor

    @property
    def arguments(self) -> tuple[Tensor, ...]:
        return (
            self.query, self.key_cache, self.value_cache,
            self.block_table, self.seq_lens, self.query_start_loc,
        )  # fmt: skip

    def to(self, device: str) -> "Batch":
        return Batch(*(_moved(tensor, device) for tensor in self.arguments))


def _moved(tensor: Tensor, device: str) -> Tensor:
    """The same strides over a copy of the whole storage."""
    if tensor.device.type == torch.device(device).type:
        return tensor
    whole = torch.empty(0, dtype=tensor.dtype).set_(tensor.untyped_storage()).to(device)
    return whole.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())


def batch(
    sequences: list[tuple[int, int]],
    *,
    num_heads: int = 4,
    num_kv_heads: int = 2,
    head_size: int = 32,
    value_size: int | None = None,
    block_size: int = 16,
    dtype: torch.dtype = torch.bfloat16,
    cache_dtype: torch.dtype | None = None,
    order: str = "LBHNC",
    pad: int = 0,
    latent: bool = False,
    window: int | None = None,
    seed: int = 0,
) -> Batch:
    """Sequences of (query tokens, context tokens), their keys and values in shuffled blocks.

    Everything but the tokens that some query may see is poison: other layers, other blocks, the end
    of a sequence's last block, and whatever a window has left behind (its blocks are gone from the
    table too).
    """
    torch.manual_seed(seed)
    value_size = value_size or head_size
    content = head_size if latent else head_size + value_size
    lengths = [query + context for query, context in sequences]
    counts = [-(-length // block_size) for length in lengths]
    num_blocks = sum(counts) + 2
    shape = (2, num_blocks, num_kv_heads, block_size, content)
    layer = pool(shape, cache_dtype or dtype, order, pad)[1]
    ids = (torch.randperm(num_blocks - 1) + 1).tolist()
    table = torch.zeros((len(sequences), max([*counts, 1])), dtype=torch.int32)
    for sequence, (queries, context) in enumerate(sequences):
        first = 0 if window is None else max(0, context - window + 1)
        for position in range(first, queries + context):
            entry = position // block_size
            if table[sequence, entry] == 0:
                table[sequence, entry] = ids.pop()
            token = torch.randn(num_kv_heads, content)
            if layer.dtype == torch.int8:
                token = (token * 40).round().clamp(-127, 127)
            layer[table[sequence, entry], :, position % block_size] = token.to(layer.dtype)
    starts = torch.tensor([0, *(query for query, _ in sequences)]).cumsum(0).int()
    query = torch.randn(int(starts[-1]), num_heads, head_size).to(dtype)
    values = layer[..., :value_size] if latent else layer[..., head_size:]
    return Batch(
        query,
        layer[..., :head_size],
        values,
        table,
        torch.tensor(lengths, dtype=torch.int32),
        starts,
    )


def lazy_pool(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A view whose elements may be gigabytes apart, over memory that exists where touched."""
    last = sum((n - 1) * stride for n, stride in zip(shape, strides, strict=True))
    no_reserve = getattr(mmap, "MAP_NORESERVE", 0x4000)  # named since Python 3.13
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | no_reserve
    memory = mmap.mmap(-1, (last + 1) * dtype.itemsize, flags=flags)
    return torch.frombuffer(memory, dtype=dtype).as_strided(shape, strides)
