"""What the processes of a test do: produce, read, look. Every function runs in a process."""

import asyncio
import gc
import logging
import os
import signal
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import get_ident
from time import monotonic, perf_counter
from typing import Any

import numpy as np
import torch

from blockstride.transfer import EngineTransferInfo
from blockstride.transfer.connector import (
    Connector,
    ConnectorSettings,
    ReadHandle,
    ReadRequest,
    TransferError,
)
from blockstride.transfer.connector.local_rank import LocalRank
from blockstride.transfer.connector.staging import Area
from tests.transfer.connector.resources import resources_of, wait_settled
from tests.transfer.connector.worker import STATE
from tests.transfer.support import POISON, HandOver, storages

Factory = Callable[[], HandOver]
"""Makes the same case in every process."""


_staging = LocalRank.staging


def poisoned_staging(self: LocalRank, info: EngineTransferInfo, rank: int) -> Area:
    """A staging area where, as in the pools of a test, whatever isn't written can be told."""
    area = _staging(self, info, rank)
    for storage in area.storages.values():
        storage.view(torch.uint8).fill_(POISON)
    return area


LocalRank.staging = poisoned_staging


def tensors(memory: Mapping[int, np.ndarray]) -> dict[int, torch.Tensor]:
    return {pool: torch.from_numpy(part.view(np.int8)) for pool, part in memory.items()}


def reset() -> None:
    """Ends what a process did."""
    STATE.pop("undo", lambda: None)()
    logging.getLogger("blockstride").setLevel(logging.WARNING)
    for connector in STATE.pop("connectors", {}).values():
        connector.close(0.2)
    STATE.clear()
    gc.collect()


def _begin(
    name: str,
    connector: Connector,
    memory: Mapping[int, np.ndarray],
) -> str:
    STATE.setdefault("connectors", {})[name] = connector
    STATE.setdefault("memory", {})[name] = memory
    return connector.register_kv_caches(tensors(memory))


def produce(
    case: Factory, ranks: Sequence[int], settings: ConnectorSettings, offer: str = "r"
) -> dict[int, str]:
    """Starts some ranks of the producer and offers the case's sequence; returns addresses."""
    made = case()
    STATE["case"] = made
    addresses = {}
    for rank in ranks:
        producer = Connector(made.remote, rank, settings)
        if offer:
            producer.offer(offer, made.num_tokens, made.request().remote)
        addresses[rank] = _begin(f"p{rank}", producer, made.source(rank))
    return addresses


def prepare_reader(
    case: Factory, rank: int, settings: ConnectorSettings, addresses: Sequence[str]
) -> None:
    """Starts one rank of the reader."""
    made = case()
    STATE["case"], STATE["rank"] = made, rank
    _begin("d", Connector(made.local, rank, settings), storages(made.local, rank))
    connector().add_peer(made.remote.engine_id, addresses)


def connector(name: str = "d") -> Connector:
    return STATE["connectors"][name]


def link_ahead(seconds: float = 20.0) -> None:
    """Links to the producer before there is a request."""
    connector().connect(STATE["case"].remote.engine_id)
    end = monotonic() + seconds
    while resources()["links"] == 0:
        assert monotonic() < end, f"no link within {seconds} s"


def start(
    name: str = "r",
    seconds: float = 20.0,
    sources: tuple[str, ...] = (),
) -> None:
    """Begins to read."""
    made: HandOver = STATE["case"]
    request = ReadRequest(
        name,
        made.num_tokens,
        made.request().local,
        sources or (made.remote.engine_id,),
        seconds,
    )
    STATE.setdefault("handles", {})[name] = connector().start_read(request)


def ask_to_be_written_to() -> None:
    """Makes a reader ask for what its settings would not let it ask for."""
    object.__setattr__(connector().settings, "push", True)


def handle(name: str = "r") -> ReadHandle:
    return STATE["handles"][name]


def outcome(name: str = "r") -> dict[str, Any]:
    """Waits for a read to be done; says how it ended."""
    begin, held = perf_counter(), handle(name)
    with suppress(TransferError):
        held.wait()
    error = held.error
    return {
        "error": "" if error is None else str(error),
        "kind": "" if error is None else error.kind,
        "invalid": [blocks.tolist() for blocks in held.invalid_blocks],
        "settled": held.settled,
        "source": held.source,
        "seconds": perf_counter() - begin,
    }


def settled(seconds: float, name: str = "r") -> bool:
    return wait_settled(handle(name), seconds)


def abort(name: str = "r") -> None:
    handle(name).abort()


def compare() -> None:
    """Compares all memory of the reader with the direct re-shard."""
    made: HandOver = STATE["case"]
    rank = STATE["rank"]
    made.compare(rank, STATE["memory"]["d"], *made.expected(rank))


def compare_untouched() -> None:
    """Checks that no byte of the reader was written."""
    made: HandOver = STATE["case"]
    for pool, memory in storages(made.local, STATE["rank"]).items():
        assert np.array_equal(STATE["memory"]["d"][pool], memory), f"pool {pool}"


def move(case: Factory, rank: int, settings: ConnectorSettings, addresses: Sequence[str]) -> Any:
    """Reads one case and checks every byte; returns the reader's counters."""
    prepare_reader(case, rank, settings, addresses)
    start()
    found = outcome()
    assert not found["error"], found["error"]
    assert settled(5.0)
    compare()
    return connector().counters()


def counters(name: str = "d") -> Any:
    return connector(name).counters()


def resources(name: str = "d") -> dict[str, int]:
    return resources_of(connector(name))


def ended(name: str = "p0") -> list[tuple[str, str]]:
    return [(end.request_id, end.outcome) for end in connector(name).ended_leases()]


def offer(request_id: str, name: str = "p0") -> None:
    made: HandOver = STATE["case"]
    connector(name).offer(request_id, made.num_tokens, made.request().remote)


def withdraw(request_id: str, name: str = "p0") -> bool:
    return connector(name).withdraw(request_id)


def overwrite(byte: int, name: str = "p0") -> None:
    """Fills all memory, as new tenants of the blocks would."""
    for memory in STATE["memory"][name].values():
        memory[:] = byte


def holds_only(byte: int, name: str = "d") -> bool:
    return all(bool((memory == byte).all()) for memory in STATE["memory"][name].values())


def freeze_when_written_to(pid: int, byte: int, seconds: float = 15.0) -> None:
    """Stops another process as soon as memory here, which held but one byte, holds others."""
    end, samples = monotonic() + seconds, [m[::4096] for m in STATE["memory"]["d"].values()]
    while all(bool((sample == byte).all()) for sample in samples):
        assert not handle().done, handle().error
        assert monotonic() < end, f"nothing written within {seconds} s"
    os.kill(pid, signal.SIGSTOP)


def process_use() -> dict[str, int]:
    """What the system says that this process uses."""
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text("ascii").split()[1])
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": len(os.listdir("/proc/self/task")),
        "memory": pages * os.sysconf("SC_PAGE_SIZE"),
    }


def until(name: str, what: str, value: int, seconds: float = 15.0) -> None:
    """Waits until a rank uses so much of a resource."""
    end = monotonic() + seconds
    while (found := resources(name)[what]) != value:
        assert monotonic() < end, f"{name}: {what} is {found} after {seconds} s"


def until_ended(name: str = "p0", seconds: float = 15.0) -> list[tuple[str, str]]:
    """Waits for a lease to end; says which and how."""
    end = monotonic() + seconds
    while not (found := ended(name)):
        assert monotonic() < end, f"{name}: no lease ended within {seconds} s"
    return found


def freeze_when_in_flight(pid: int, seconds: float = 15.0) -> None:
    """Stops another process as soon as bytes are on their way here."""
    end = monotonic() + seconds
    # the handshake posts something too, before anything is granted
    while not ((found := resources())["granted"] and found["postings"]):
        assert not handle().done, handle().error
        assert monotonic() < end, f"nothing in flight within {seconds} s"
    os.kill(pid, signal.SIGSTOP)


def _replace_move(moved: Callable[..., Any]) -> None:
    local: Any = LocalRank
    STATE["undo"] = partial(setattr, local, "move", local.move)
    local.move = moved


def send_me(signum: int, after: bool) -> None:
    """Makes this process get a signal as it moves bytes: before the first, or after the last."""
    move = LocalRank.move

    async def moved(self: LocalRank, *arguments: Any) -> None:
        # to this thread, so that it does nothing more before the signal has its effect
        if not after:
            signal.pthread_kill(get_ident(), signum)
        await move(self, *arguments)
        signal.pthread_kill(get_ident(), signum)

    _replace_move(moved)


def dawdle(seconds: float) -> None:
    """Makes this process, which goes on to say that it is alive, take long to move bytes."""
    move = LocalRank.move

    async def moved(self: LocalRank, *arguments: Any) -> None:
        await asyncio.sleep(seconds)
        await move(self, *arguments)

    _replace_move(moved)


def add_peer(engine_id: str, addresses: Sequence[str]) -> None:
    connector().add_peer(engine_id, addresses)


def close(name: str = "p0") -> None:
    connector(name).close(0.2)


def start_again(rank: int, settings: ConnectorSettings, *offers: str) -> str:
    """Gives a producing rank another life, in the same process."""
    made: HandOver = STATE["case"]
    again = Connector(made.remote, rank, settings)
    for request_id in offers:
        again.offer(request_id, made.num_tokens, made.request().remote)
    return _begin(f"p{rank}", again, STATE["memory"][f"p{rank}"])


def refusal_of(function: Callable[..., Any], *arguments: Any) -> str:
    """The message with which a call is refused."""
    try:
        function(*arguments)
    except ValueError as error:
        return str(error)
    raise AssertionError(f"{function.__name__} was not refused")


def until_failed_handshakes(count: int, seconds: float = 15.0) -> None:
    """Waits until a reader has tried to reach somebody so often."""
    end = monotonic() + seconds
    while counters().failed_handshakes < count:
        assert monotonic() < end, f"no {count} handshakes failed within {seconds} s"


def until_claimed(seconds: float = 15.0) -> None:
    """Waits until a producer has granted what is read."""
    end = monotonic() + seconds
    while not resources()["granted"]:
        assert monotonic() < end, f"nothing granted within {seconds} s"


def compare_over(byte: int) -> None:
    """Compares the reader's memory, which held but one byte before the case was read again."""
    made: HandOver = STATE["case"]
    wanted, _ = made.expected(STATE["rank"])
    untouched = storages(made.local, STATE["rank"])
    for pool, memory in STATE["memory"]["d"].items():
        # POISON stands for what is left alone; where it is data, both are the same
        right = (memory == wanted[pool]) | ((wanted[pool] == untouched[pool]) & (memory == byte))
        assert right.all(), f"pool {pool}: {np.flatnonzero(~right)[:8]}"


def check_values() -> None:
    """Compares the values of a reader with those of the source, which can be made here as well."""
    made: Any = STATE["case"]
    made.check(STATE["memory"]["d"], made.source(0))


def forget(name: str) -> None:
    """Drops the handle of a read that is over, and what its producer says of it."""
    del STATE["handles"][name]
