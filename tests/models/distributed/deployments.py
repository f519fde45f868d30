"""What tests ask of deployments and their processes."""

import contextlib
import os
import signal
from pathlib import Path
from time import monotonic, sleep

from blockstride.models import LLM, EngineConfig, SamplingParams

SECONDS = 60.0


def engine(**config) -> EngineConfig:
    """An engine with little memory, whose unused bytes are NaN."""
    return EngineConfig(**{"cache_bytes": 1 << 24, "max_num_seqs": 4, "poison": True, **config})


def greedy(count: int) -> SamplingParams:
    return SamplingParams(max_tokens=count, ignore_eos=True)


def tokens_of(llm, prompts, params) -> list[tuple[int, ...]]:
    return [completion.token_ids for completion in llm.generate(prompts, params)]


def tokens_of_transformers(reference, llm, prompts, count) -> list[tuple[int, ...]]:
    encode = llm.tokenizer.encode
    return [tuple(reference.greedy(encode(prompt).ids, count)) for prompt in prompts]


def until(condition, seconds: float = SECONDS) -> None:
    """Waits for something that comes of itself."""
    end = monotonic() + seconds
    while not condition():
        assert monotonic() < end, f"not within {seconds} s: {condition}"
        sleep(0.02)


def all_blocks_are_free(llm: LLM) -> bool:
    """Whether every block of every engine that lives is back, the null blocks apart."""
    return all(
        report.num_free == tuple(pool.num_blocks - 1 for pool in report.pools)
        for report in llm.reports()
    )


def kill(engine, rank: int = 0) -> None:
    """Kills a rank of an engine."""
    os.kill(engine.pids[rank], signal.SIGKILL)


def stop(engine, rank: int = 0) -> None:
    """Stops a rank where it is, alive."""
    os.kill(engine.pids[rank], signal.SIGSTOP)


def resume(engine, rank: int = 0) -> None:
    """Lets a rank that was stopped go on."""
    os.kill(engine.pids[rank], signal.SIGCONT)


def is_running(pid: int) -> bool:
    """Whether a process is there, and isn't just waiting to be forgotten."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        return status(pid)[0] != "Z"
    return False


def cpu_seconds(pid: int) -> float:
    """Time that a process has computed."""
    user, system = status(pid)[11:13]
    return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


def status(pid: int) -> list[str]:
    """Fields of /proc/PID/stat, from the state on."""
    return Path(f"/proc/{pid}/stat").read_text("ascii").rpartition(")")[2].split()
