"""A process of a deployment: one rank of one engine.

python -m blockstride.models.distributed.worker PARENT [FOLLOWER ...]

The numbers are file descriptors of pipes: to whoever tells this rank what to do, the front end or
rank 0, and from rank 0 to its followers. What it is comes through the first one. It ends with the
process at that other end, however that ends.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from threading import Thread
from time import sleep
from typing import Any

import torch

from blockstride.layouts import KVCachePool
from blockstride.layouts.poison import poison_blocks
from blockstride.models.distributed.heartbeat import Pulse
from blockstride.models.distributed.leader import Leader
from blockstride.models.distributed.letters import Wake
from blockstride.models.distributed.messages import (
    Close,
    Failed,
    Forward,
    Meet,
    Poison,
    Ready,
    Setup,
)
from blockstride.models.distributed.pipes import Inbox, LockedPipe
from blockstride.models.distributed.rank_transfers import RankTransfers
from blockstride.models.distributed.ranks import Ranks, join_ranks, load_rank
from blockstride.models.engine import tiers as engine_tiers
from blockstride.models.engine.pools import make_pools
from blockstride.models.engine.tiers.commands import TierCommand
from blockstride.models.hybrid_model import HybridModel
from blockstride.models.logs import log_to_stderr

PARENT = "parent"
ORPHAN_SECONDS = 0.5


def main(argv: Sequence[str]) -> int:
    """Does what the first letter says, to the end."""
    parent, *followers = (Connection(int(number)) for number in argv)
    Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    return run_rank(parent.recv(), parent, followers)


def run_rank(setup: Setup, parent: Connection, followers: Sequence[Connection]) -> int:
    """Runs a rank, and ends this process if whoever tells it what to do has ended.

    Args:
        setup: What it is.
        parent: To whoever tells it what to do, the front end or rank 0.
        followers: From rank 0 to the others.

    Returns:
        What this process ends with.
    """
    name = f"{setup.engine_id}, rank {setup.rank}"
    if setup.log_format is None:
        logging.basicConfig(format=f"{name}: %(name)s: %(message)s")
    else:
        log_to_stderr(setup.log_format, engine=setup.engine_id, rank=setup.rank)
    logging.getLogger("blockstride").setLevel(setup.log_level)
    inbox, speaker = Inbox(), LockedPipe(parent)
    inbox.listen(PARENT, parent, lambda: os._exit(1))
    for i, follower in enumerate(followers):
        inbox.listen(i + 1, follower)
    try:
        if setup.rank == 0:
            Leader(setup, load_rank(setup), Ranks(followers), inbox, speaker).run()
        else:
            follow(setup, inbox, speaker)
    except Exception as error:
        # nobody is left to tell, where whoever is told has ended
        with suppress(OSError):
            speaker.send(Failed.of(error))
        return 1
    return 0


def _end_with(parent: int) -> None:
    """Ends this process with the one that started it, even where pipes have been inherited."""
    while os.getppid() == parent:
        sleep(ORPHAN_SECONDS)
    os._exit(1)


def _tiers_of(
    setup: Setup, model: HybridModel, pools: Sequence[KVCachePool], leader: LockedPipe
) -> engine_tiers.RankTiers | None:
    """A rank's part of the tiers of its engine; None where there are none."""
    if not setup.config.has_tiers:
        return None
    whose = setup.config, model.parallel, setup.model_fingerprint
    return engine_tiers.RankTiers(pools, model.cache_specs(), *whose, leader.send)


def follow(setup: Setup, inbox: Inbox, leader: LockedPipe) -> None:
    """Runs any rank but 0: it computes what it is told, and does its part of hand-overs."""
    model = load_rank(setup)
    pools = make_pools(model, setup.config)
    model.bind(pools)
    transfers = None
    if setup.transfer is not None:
        transfers = RankTransfers(
            setup, setup.transfer, model, pools, lambda: inbox.put(setup.rank, Wake())
        )
    tiers = _tiers_of(setup, model, pools, leader)
    leader.send(Ready((transfers.address if transfers else "",)))
    pulse = Pulse(setup.timeout_seconds, leader.send)
    pulse.start()
    while True:
        with pulse.idle():
            letter = inbox.take()
        assert letter is not None, "it waits as long as it takes"
        match letter.message:
            case Forward() as message:
                with torch.inference_mode():
                    model.forward(message.batch.to(model.device))
            case Meet(address):
                join_ranks(setup, address)
            case Poison(freed):
                for pool, blocks in zip(pools, freed, strict=True):
                    poison_blocks(pool, blocks)
            case Wake():
                for event in transfers.events() if transfers else ():
                    leader.send(event)
            case Close():
                break
            case command:
                part: Any = tiers if isinstance(command, TierCommand) else transfers
                assert part is not None, "all ranks have it or none"
                part.do(command)
    for part in (transfers, tiers):
        if part is not None:
            part.close()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # all is closed; taking libraries down would cost most of a second
    os._exit(code)
