"""Topology: who this rank is, and which other engines it knows."""

from __future__ import annotations

from dataclasses import fields

from blockstride.checks import expect
from blockstride.transfer.compatibility import expect_same_model
from blockstride.transfer.engine_info import EngineTransferInfo
from blockstride.transfer.mapping import TPMapping, compute_tp_mapping


class TransferTopology:
    """One rank of the local engine, and the engines that it may exchange caches with.

    Args:
        local: The local engine.
        local_rank: This rank's number in it.

    Raises:
        ValueError: A rank that the engine does not have.
    """

    def __init__(self, local: EngineTransferInfo, local_rank: int = 0) -> None:
        local.coordinates(local_rank)
        self.local = local
        self.local_rank = local_rank
        self._remotes: dict[str, EngineTransferInfo] = {}
        self._mappings: dict[str, TPMapping] = {}

    def register_remote_engine(self, info: EngineTransferInfo) -> None:
        """Makes an engine known; once more with the same information changes nothing.

        Raises:
            ValueError: Another model's caches, or other information than was registered before; the
                message names the first field that differs and both values.
        """
        known = self._remotes.get(info.engine_id)
        if known is None:
            expect_same_model(self.local, info)
            self._remotes[info.engine_id] = info
            return
        for field in fields(info):
            was, now = getattr(known, field.name), getattr(info, field.name)
            same = not field.compare or was == now
            expect(same, f"{info.engine_id}.{field.name}", f"{was}, as registered before", now)

    def unregister_remote_engine(self, engine_id: str) -> None:
        """Forgets an engine; one that is not known is no error."""
        self._remotes.pop(engine_id, None)
        self._mappings.pop(engine_id, None)

    def get_engine_info(self, engine_id: str) -> EngineTransferInfo:
        """What was registered.

        Raises:
            ValueError: An engine that is not known.
        """
        known = engine_id in self._remotes
        expect(known, "engine_id", f"one of {sorted(self._remotes)}", repr(engine_id))
        return self._remotes[engine_id]

    def mapping(self, engine_id: str) -> TPMapping:
        """What this rank reads from each rank of an engine; made at the first call."""
        info = self.get_engine_info(engine_id)
        if engine_id not in self._mappings:
            self._mappings[engine_id] = compute_tp_mapping(self.local, self.local_rank, info)
        return self._mappings[engine_id]

    def handshake_target_ranks(self, engine_id: str) -> tuple[int, ...]:
        """Remote ranks to shake hands with: those that this rank reads from, and no others."""
        return self.mapping(engine_id).all_source_ranks

    def expected_readers(self, engine_id: str) -> int:
        """As a producer: how many ranks of a registered engine read from this rank.

        Each of them says when it is done, whatever a single request moves; with none, blocks are
        free at once.
        """
        return expected_readers(self.get_engine_info(engine_id), self.local)[self.local_rank]

    def describe(self, engine_id: str) -> str:
        """One line for a log: both engines and whom this rank reads from."""
        remote = self.get_engine_info(engine_id)
        ranks = ", ".join(str(rank) for rank in self.handshake_target_ranks(engine_id))
        return f"{describe_engine(self.local)} rank {self.local_rank} reads ranks {ranks} of " + (
            describe_engine(remote)
        )


def expected_readers(reader: EngineTransferInfo, producer: EngineTransferInfo) -> tuple[int, ...]:
    """For each rank of a producer, the number of ranks of a reading engine that read from it."""
    counts = [0] * producer.world_size
    for rank in range(reader.world_size):
        for source in compute_tp_mapping(reader, rank, producer).all_source_ranks:
            counts[source] += 1
    return tuple(counts)


def describe_engine(info: EngineTransferInfo) -> str:
    """Name, parallel sizes, stride order, policy and block size of an engine, in a few words."""
    sizes = [f"tp {info.tp_size}"]
    sizes += [f"pp {info.pp_size}"] if info.pp_size > 1 else []
    sizes += [f"cp {info.cp_size}"] if info.cp_size > 1 else []
    kernel = f" of {info.kernel_blocks} kernel blocks" if info.kernel_blocks > 1 else ""
    return (
        f"{info.engine_id} ({', '.join(sizes)}, {info.layout}, {info.policy}, "
        f"blocks of {info.block_size} tokens{kernel})"
    )
