"""Find products that a compiler leaves running where the next step of their loop spoils them.

On sm_90 a product may be issued and waited for later. One that takes an operand from registers must
be waited for before these are written again; where loads are pipelined, Triton (3.6 to 3.9) lets a
loop's only product run over the end of the loop, and the next step computes its operand into
registers that are still being read.
"""

import re

START, END = re.compile(r"\bscf\.for\b"), re.compile(r"\bscf\.yield\b")
# the first operand of a product is in registers if it has a layout of its own
FROM_REGISTERS = re.compile(r"\bttng\.warp_group_dot .*isAsync = true.*dot_op<\{opIdx = 0")
WAIT_FOR_ALL = re.compile(r"warp_group_dot_wait .*pendings = 0\b")


def products_left_running(ttgir: str) -> int:
    """Loops that end with a product of registers under way and begin without waiting for it."""
    lines, starts, count = ttgir.splitlines(), [], 0
    for number, line in enumerate(lines):
        if START.search(line):
            starts.append(number)
        elif END.search(line) and starts:
            count += _leaves_running(lines[starts.pop() : number])
    return count


def _leaves_running(body: list[str]) -> bool:
    products = [i for i, line in enumerate(body) if FROM_REGISTERS.search(line)]
    waits = [i for i, line in enumerate(body) if WAIT_FOR_ALL.search(line)]
    if not products:
        return False
    return not waits or (waits[0] > products[0] and waits[-1] < products[-1])
