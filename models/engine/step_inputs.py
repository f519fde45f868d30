"""Memory that the inputs of one decode step after the other are put into."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from blockstride.kernels import PAD_SLOT_ID
from blockstride.models.batch import GroupTable, StepBatch

# where fields lie apart, as tensor maps and wide loads like it
ALIGNMENT = 64
# what a sequence has one of
BY_SEQUENCE = ("token_ids", "positions", "seq_lens", "known_lens", "has_initial_state")


class StepInputs:
    """The inputs of a decode step at addresses that stay, in one piece that is copied at once.

    Args:
        like: A decode step on the CPU.
        num_seqs: Sequences that there is room for; those that are not there are padding.
        widths: Columns that there is room for in the block table of each group.
        device: Where steps are computed.

    Attributes:
        batch: The step that they make, on the device. It is one of padding until it is filled.
    """

    def __init__(
        self, like: StepBatch, num_seqs: int, widths: tuple[int, ...], device: torch.device
    ) -> None:
        empty = _padding(like, num_seqs, widths)
        places = np.cumsum([0, *(-(-t.nbytes // ALIGNMENT) * ALIGNMENT for t in empty.values())])
        self._host = torch.zeros(int(places[-1]), dtype=torch.uint8)
        if device.type == "cuda":
            self._host = self._host.pin_memory()
        self._there = self._host.to(device)
        self._arrays, there = {}, {}
        for (name, tensor), place in zip(empty.items(), places.tolist(), strict=False):
            piece = slice(place, place + tensor.nbytes)
            on_host = self._host[piece].view(tensor.dtype).view(tensor.shape).copy_(tensor)
            self._arrays[name] = on_host.numpy()
            there[name] = self._there[piece].view(tensor.dtype).view(tensor.shape)
        self._send()
        tables = tuple(
            GroupTable(there[f"table {i}"], there.get(f"slots {i}")) for i in range(len(widths))
        )
        vectors = {name: there[name] for name in (*BY_SEQUENCE, "query_start_loc", "logits_rows")}
        self.batch = replace(like, **vectors, tables=tables, before=None, after=None)

    def fill(self, batch: StepBatch) -> None:
        """Puts a step's inputs there, and padding behind them.

        Args:
            batch: A decode step on the CPU, with no more sequences and blocks than there is room
                for.
        """
        arrays, count = self._arrays, len(batch.seq_lens)
        for name in BY_SEQUENCE:
            arrays[name][:count] = getattr(batch, name).numpy()
            arrays[name][count:] = 0
        starts = arrays["query_start_loc"]
        # sequences that are padding have no tokens
        starts[: count + 1], starts[count + 1 :] = np.arange(count + 1), count
        for i, given in enumerate(batch.tables):
            table = arrays[f"table {i}"]
            # what lies behind a sequence's last block is not read
            table[:count, : given.block_table.shape[1]] = given.block_table.numpy()
            table[count:] = 0
            if given.slot_mapping is not None:
                slots = arrays[f"slots {i}"]
                slots[:count], slots[count:] = given.slot_mapping.numpy(), PAD_SLOT_ID
        self._send()

    def _send(self) -> None:
        if self._there is not self._host:
            # a step waits for its tokens, and so for this, before the next one is filled in
            self._there.copy_(self._host, non_blocking=True)


def _padding(like: StepBatch, num_seqs: int, widths: tuple[int, ...]) -> dict[str, Tensor]:
    """Inputs of a step of padding alone, by name."""
    fields = {name: torch.zeros(num_seqs, dtype=getattr(like, name).dtype) for name in BY_SEQUENCE}
    fields["query_start_loc"] = torch.zeros(num_seqs + 1, dtype=torch.int32)
    fields["logits_rows"] = torch.arange(num_seqs)
    for i, (table, width) in enumerate(zip(like.tables, widths, strict=True)):
        fields[f"table {i}"] = torch.zeros(num_seqs, width, dtype=torch.int32)
        if table.slot_mapping is not None:
            fields[f"slots {i}"] = torch.full((num_seqs,), PAD_SLOT_ID)
    return fields
