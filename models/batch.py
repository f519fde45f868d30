"""One step's tokens: everything a forward pass needs to know, made once a step."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
from jaxtyping import Bool, Int32, Int64
from torch import Tensor

from blockstride.kernels import AttentionSchedule


@dataclass(frozen=True)
class GroupTable:
    """The blocks of one cache group in this step.

    Attributes:
        block_table: Logical block -> kernel block of the pool, 0 = padding.
        slot_mapping: Token -> slot of the pool, `block * block_size + offset`; None for states.
    """

    block_table: Int32[Tensor, "num_seqs max_blocks"]
    slot_mapping: Int64[Tensor, " num_tokens"] | None

    @property
    def state_indices(self) -> Int32[Tensor, " num_seqs"]:
        """State block of each sequence: the first and only column of a state group's table."""
        return self.block_table[:, 0]

    def to(self, device: torch.device) -> GroupTable:
        """The same on a device; itself if it is there."""
        slots = None if self.slot_mapping is None else self.slot_mapping.to(device)
        return GroupTable(self.block_table.to(device), slots)


@dataclass(frozen=True)
class StepBatch:
    """The new tokens of several sequences, one after the other.

    Attributes:
        token_ids: New tokens.
        query_start_loc: Prefix sum of the number of new tokens of each sequence.
        positions: Position of each new token in its sequence.
        seq_lens: Tokens of each sequence, the new ones included.
        known_lens: Tokens of each sequence that are known, be it that they are computed later.
        has_initial_state: Whether a sequence has tokens before the new ones.
        tables: One for each cache group, in the order of the groups.
        logits_rows: New tokens after which a distribution is asked for.
        max_query_len: New tokens of the sequence that has most.
        is_decode: Whether every sequence has exactly one new token, after others.
        schedules: Plan of the attention of each group, by its index; the first layer of a group
            that attends makes it for all.
        embedded: Embeddings of the new tokens, where a model's layers look back at them.
        angles: What rotary positions make of `positions`; the first layer that asks for some has
            them computed for all.
        before: Blocks that are copied before the tokens are computed, in all layers: group, block
            that is read, block that is written; on the CPU. None for none.
        after: Those that are copied afterwards.
    """

    token_ids: Int64[Tensor, " num_tokens"]
    query_start_loc: Int32[Tensor, " num_seqs_plus_1"]
    positions: Int64[Tensor, " num_tokens"]
    seq_lens: Int32[Tensor, " num_seqs"]
    known_lens: Int32[Tensor, " num_seqs"]
    has_initial_state: Bool[Tensor, " num_seqs"]
    tables: tuple[GroupTable, ...]
    logits_rows: Int64[Tensor, " num_rows"]
    max_query_len: int
    is_decode: bool
    schedules: dict[int, AttentionSchedule | None] = field(default_factory=dict)
    embedded: Tensor | None = None
    angles: dict[Any, tuple[Tensor, Tensor]] = field(default_factory=dict)
    before: Int32[Tensor, "num_before 3"] | None = None
    after: Int32[Tensor, "num_after 3"] | None = None

    def to(self, device: torch.device) -> StepBatch:
        """The same on a device, without what layers have made; itself if it is there."""
        if self.token_ids.device == device:
            return self
        return replace(
            self,
            token_ids=self.token_ids.to(device),
            query_start_loc=self.query_start_loc.to(device),
            positions=self.positions.to(device),
            seq_lens=self.seq_lens.to(device),
            known_lens=self.known_lens.to(device),
            has_initial_state=self.has_initial_state.to(device),
            tables=tuple(table.to(device) for table in self.tables),
            logits_rows=self.logits_rows.to(device),
            schedules={},
            angles={},
        )
