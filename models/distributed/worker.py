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
from datetime import timedelta
from multiprocessing.connection import Connection
from threading import Thread
from time import monotonic, sleep

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from blockstride.layouts.poison import poison_blocks
from blockstride.models.distributed.heartbeat import STEP_SECONDS, Pulse
from blockstride.models.distributed.inbox import Ended, Inbox
from blockstride.models.distributed.leader import Leader
from blockstride.models.distributed.messages import START_SECONDS, Close, Failed, Ready, Setup
from blockstride.models.distributed.outbox import Speaker
from blockstride.models.distributed.rank_messages import Changed, Forward, Join, Listening, Poison
from blockstride.models.distributed.rank_transfers import RankTransfers
from blockstride.models.distributed.ranks import Ranks
from blockstride.models.engine.pools import make_pools
from blockstride.models.hybrid_model import HybridModel
from blockstride.models.loading import load_model
from blockstride.models.parallel import TensorParallel

PARENT = "parent"
ORPHAN_SECONDS = 0.5


def main(argv: Sequence[str]) -> int:
    """Does what the first letter says, to the end."""
    parent, *followers = (Connection(int(number)) for number in argv)
    Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    setup = parent.recv()
    logging.basicConfig(format=f"{setup.engine_id}, rank {setup.rank}: %(name)s: %(message)s")
    logging.getLogger("blockstride").setLevel(setup.log_level)
    speaker = Speaker(parent)
    try:
        if setup.rank == 0:
            lead(setup, speaker, followers)
        else:
            follow(setup, speaker)
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


def lead(setup: Setup, front_end: Speaker, followers: Sequence[Connection]) -> None:
    """Runs rank 0."""
    inbox = Inbox()
    inbox.listen(PARENT, front_end.pipe, lambda: os._exit(1))
    for i, follower in enumerate(followers):
        inbox.listen(i + 1, follower)
    model, ranks = _load(setup), Ranks(followers)
    leader = Leader(setup, model, ranks, inbox, front_end)
    addresses = {0: ranks.transfers.address if ranks.transfers else ""}
    deadline = monotonic() + START_SECONDS
    while len(addresses) < len(ranks):
        letter = inbox.take(max(0.0, deadline - monotonic()))
        if letter is None:
            raise TimeoutError(f"ranks: expected all to load in {START_SECONDS} s")
        match letter.message:
            case Listening():
                addresses[letter.sender] = letter.message.address
            case Failed():
                raise letter.message.error(letter.message.reason)
            case Close():
                return
            case Ended():
                raise RuntimeError(f"rank {letter.sender}: its process has ended")
    ranks.join()
    _join(setup)
    ordered = tuple(addresses[rank] for rank in range(len(ranks)))
    leader.engine.warm_up()
    front_end.send(Ready(leader.engine.limits, ordered))
    leader.run()


def follow(setup: Setup, leader: Speaker) -> None:
    """Runs any other rank."""
    inbox = Inbox()
    inbox.listen(PARENT, leader.pipe, lambda: os._exit(1))
    model = _load(setup)
    pools = make_pools(model, setup.config)
    model.bind(pools)
    transfers = None
    if setup.transfer is not None:
        transfers = RankTransfers(
            setup, setup.transfer, model, pools, lambda: inbox.put(setup.rank, Changed())
        )
    leader.send(Listening(transfers.address if transfers else ""))
    pulse = Pulse(setup.answer_seconds, leader.send)
    pulse.start()
    while True:
        with pulse.resting():
            letter = inbox.take(None)
        assert letter is not None, "it waits as long as it takes"
        match letter.message:
            case Join():
                _join(setup)
            case Forward():
                with torch.inference_mode():
                    model.forward(letter.message.batch.to(model.device))
            case Poison():
                for pool, blocks in zip(pools, letter.message.blocks, strict=True):
                    poison_blocks(pool, blocks)
            case Changed():
                for event in transfers.events() if transfers else ():
                    leader.send(event)
            case Close():
                break
            case command:
                assert transfers is not None, "hand-overs are set up on all ranks or none"
                transfers.do(command)
    if transfers is not None:
        transfers.close()


def _load(setup: Setup) -> HybridModel:
    """This rank's part of the model."""
    if setup.device.startswith("cuda"):
        # what ranks tell each other goes through the current device
        torch.cuda.set_device(setup.device)
    return load_model(
        setup.path,
        setup.config,
        dtype=setup.dtype,
        device=setup.device,
        parallel=TensorParallel(setup.rank, setup.config.tp_size),
    )


def _join(setup: Setup) -> None:
    """Makes a group of all ranks."""
    if setup.config.tp_size > 1:
        dist.init_process_group(
            "nccl" if setup.device.startswith("cuda") else "gloo",
            store=FileStore(setup.store, setup.config.tp_size),
            rank=setup.rank,
            world_size=setup.config.tp_size,
            # a rank that is stopped misses its beats; one that compiles makes others wait
            timeout=timedelta(seconds=STEP_SECONDS),
        )


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stderr.flush()
    # all is closed; taking libraries down would cost most of a second
    os._exit(code)
