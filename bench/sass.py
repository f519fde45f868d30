"""Read a compiled kernel: registers, spills, occupancy, and what its hottest loop costs to issue.

An SM issues at most four warp instructions a cycle. A loop of `n` instructions a warp that moves
`b` bytes a warp therefore moves at most `4 b / n` bytes a cycle and SM, whatever its occupancy;
likewise for FLOP. These ceilings rank candidates and catch regressions. They are not speeds.
"""

import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from aot import Launch
from triton import knobs

INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:@!?U?P\w+\s+)?(.*?)\s*;")
LABEL = re.compile(r"^(\.L\w+):")
BRANCH = re.compile(r"^BRA\b.*`\((\.L\w+)\)")
# LDG also names the global side of an asynchronous copy to shared memory (LDGSTS)
ACCESS = re.compile(r"^(?:LDG|STG)\w*(\S*)")
WGMMA = re.compile(r"^[HQIB]GMMA\.(\d+)x(\d+)x(\d+)")
MMA = re.compile(r"^[HQID]MMA\.168(\d+)")
INTEGER = re.compile(
    r"^U?(?:IMAD|IADD|LEA|SHF|SHL|SHR|LOP3|ISETP|PRMT|IMNMX|IABS|SEL|VIADD|VIMNMX)"
)

REGISTERS_PER_SM, SHARED_PER_SM, WARPS_PER_SM, BLOCKS_PER_SM = 65536, 228 * 1024, 64, 32
ISSUES_PER_CYCLE = 4


@dataclass(frozen=True)
class Code:
    """What a run of instructions issues, a warp: counts, global bytes, tensor-core FLOP.

    `narrow` counts global accesses of fewer than 4 bytes a lane.
    """

    instructions: int
    integer: int
    narrow: int
    global_bytes: int
    flop: int
    wgmma: int

    def ceiling(self, amount: float) -> float:
        """The most of `amount`, of one warp once through this code, that an SM does in a cycle."""
        return round(ISSUES_PER_CYCLE * amount / self.instructions, 1)


@dataclass(frozen=True)
class Reading:
    """One compiled kernel, read. `loop` is its hottest loop, or all of it where it has none."""

    registers: int
    spill_bytes: int
    shared_bytes: int
    num_warps: int
    blocks_per_sm: int | None
    loop: Code | None


def read(launch: Launch) -> Reading:
    """Registers, spills, occupancy and hot loop of a launch; AMD code has no `loop` here."""
    if "amdgcn" in launch.kernel.asm:
        return _read_amd(launch)
    usage, text = _disassembled(launch.kernel.asm["cubin"])
    resources = {key: int(value) for key, value in re.findall(r"([A-Z]+):(\d+)", usage)}
    registers = resources["REG"]
    return Reading(
        registers=registers,
        spill_bytes=resources["STACK"] + resources.get("LOCAL", 0),
        shared_bytes=launch.shared_bytes,
        num_warps=launch.num_warps,
        blocks_per_sm=_blocks_per_sm(registers, launch.shared_bytes, launch.num_warps),
        loop=hottest_loop(text),
    )


def hottest_loop(text: str) -> Code:
    """The innermost loop with the most tensor-core work, then bytes; all if there is no loop.

    Of loops with equal work, the shortest: a long range is walked by the loop that has no masks.
    """
    rows: list[str] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if label := LABEL.match(line.strip()):
            labels[label[1]] = len(rows)
        elif (instruction := INSTRUCTION.match(line)) and not instruction[1].startswith("NOP"):
            rows.append(instruction[1])
    spans = []
    for end, row in enumerate(rows):
        branch = BRANCH.match(row)
        if branch and labels.get(branch[1], len(rows)) < end:
            spans.append((labels[branch[1]], end))
    inner = [s for s in spans if not any(o != s and s[0] <= o[0] and o[1] <= s[1] for o in spans)]
    loops = [_count(rows[start : end + 1]) for start, end in inner]
    busy = [loop for loop in loops if loop.flop or loop.global_bytes]
    return max(busy, key=_work, default=_count(rows))


def _work(code: Code) -> tuple[int, int, int]:
    return code.flop, -code.instructions if code.flop else code.global_bytes, -code.instructions


def _count(rows: list[str]) -> Code:
    return Code(
        instructions=len(rows),
        integer=sum(bool(INTEGER.match(row)) for row in rows),
        narrow=sum(0 < _bytes(row) < 32 * 4 for row in rows),
        global_bytes=sum(_bytes(row) for row in rows),
        flop=sum(_flop(row) for row in rows),
        wgmma=sum(bool(WGMMA.match(row)) for row in rows),
    )


def _bytes(row: str) -> int:
    """Global bytes of one warp instruction, all 32 lanes taken as active."""
    access = ACCESS.match(row)
    if not access:
        return 0
    suffix = access[1]
    for width, size in ((".128", 16), (".64", 8), (".U16", 2), (".S16", 2), (".U8", 1), (".S8", 1)):
        if width in suffix:
            return 32 * size
    return 32 * 4


def _flop(row: str) -> int:
    """Tensor-core operations of one warp instruction; a WGMMA is issued by each of four."""
    if match := WGMMA.match(row):
        m, n, k = map(int, match.groups())
        return 2 * m * n * k // 4
    if match := MMA.match(row):
        return 2 * 16 * 8 * int(match[1])
    return 0


def _blocks_per_sm(registers: int, shared_bytes: int, num_warps: int) -> int:
    """Resident blocks of an H100's SM; registers go out by 256, each block reserves 1 KiB."""
    by_registers = REGISTERS_PER_SM // (-(-registers * 32 // 256) * 256) // num_warps
    by_shared = SHARED_PER_SM // (shared_bytes + 1024)
    return min(by_registers, by_shared, WARPS_PER_SM // num_warps, BLOCKS_PER_SM)


def _read_amd(launch: Launch) -> Reading:
    text = launch.kernel.asm["amdgcn"]
    fields = {key: int(value) for key, value in re.findall(r"\.(\w+):\s+(\d+)", text)}
    return Reading(
        registers=fields["vgpr_count"],
        # scalar registers spill into lanes of a vector register, not to memory
        spill_bytes=4 * fields["vgpr_spill_count"],
        shared_bytes=launch.shared_bytes,
        num_warps=launch.num_warps,
        blocks_per_sm=None,
        loop=None,
    )


@cache
def _disassembled(cubin: bytes) -> tuple[str, str]:
    """What it uses, and its code; many variants launch the same small kernels."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cubin"
        path.write_bytes(cubin)
        usage = _tool("cuobjdump", "--dump-resource-usage", path)
        return usage, _tool("nvdisasm", "--print-code", path)


def _tool(name: str, *arguments: object) -> str:
    command = [getattr(knobs.nvidia, name).path, *map(str, arguments)]
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout
