"""Running programs one after the other with one team of threads, without Python in between."""

import ctypes
import platform
import sys

from llvmlite import ir

from blockstride.kernels.common.cpu.native import (
    INT64,
    Program,
    arguments,
    arrive,
    claim,
    i64_at,
    inlined,
    num_tasks,
    primitive,
    types,
)

# looks at a counter before a thread sleeps: some 20 microseconds, in which most programs end
PATIENCE = 2000
# what Linux is asked to let a thread sleep, and to wake all that do; 0 elsewhere
FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine(), 0) if sys.platform == "linux" else 0
FUTEX_WAIT, FUTEX_WAKE = 128, 129
IS_X86 = platform.machine() in {"x86_64", "AMD64"}
# a step of a play: address of a program, of its arguments, and whether all threads take part
COLUMNS = 3
# the address of what calls Linux; 0 where threads wait without sleeping
KERNEL = ctypes.cast(ctypes.CDLL(None).syscall, ctypes.c_void_p).value or 0 if FUTEX else 0


@primitive
def _call(typing_context, function, argument):
    """Call a C function of one address."""

    def generate(context, builder, signature, values):
        kind = ir.FunctionType(ir.VoidType(), (INT64,)).as_pointer()
        builder.call(builder.inttoptr(values[0], kind), (values[1],))
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), generate


@primitive
def _ask(typing_context, function):
    """Call a C function of nothing that returns an int."""

    def generate(context, builder, signature, values):
        kind = ir.FunctionType(ir.IntType(32), ()).as_pointer()
        return builder.sext(builder.call(builder.inttoptr(values[0], kind), ()), INT64)

    return types.int64(types.int64), generate


@primitive
def _look(typing_context, address):
    """Read a counter, and all that was written before it was counted up."""

    def generate(context, builder, signature, values):
        return builder.load_atomic(builder.inttoptr(values[0], INT64.as_pointer()), "seq_cst", 8)

    return types.int64(types.int64), generate


@primitive
def _leave(typing_context, counter):
    """Count one less."""

    def generate(context, builder, signature, values):
        place = builder.inttoptr(values[0], INT64.as_pointer())
        builder.atomic_rmw("sub", place, INT64(1), "seq_cst")
        return context.get_dummy_value()

    return types.void(types.int64), generate


@primitive
def _relax(typing_context):
    """Tell the processor that this thread waits."""

    def generate(context, builder, signature, values):
        if IS_X86:
            kind = ir.FunctionType(ir.VoidType(), ())
            pause = builder.module.declare_intrinsic("llvm.x86.sse2.pause", fnty=kind)
            builder.call(pause, ())
        return context.get_dummy_value()

    return types.void(), generate


@primitive
def _futex(typing_context, kernel, counter, operation, value):
    """Ask Linux to let this thread sleep at a counter, or to wake those that do.

    Args:
        typing_context: Of numba.
        kernel: Address of the C library's `syscall`.
        counter: Address of the counter.
        operation: `FUTEX_WAIT` or `FUTEX_WAKE`.
        value: What the counter was when it was looked at, or how many to wake.
    """

    def generate(context, builder, signature, values):
        kernel, counter, operation, value = values
        kind = ir.FunctionType(INT64, (INT64,), var_arg=True).as_pointer()
        call = (INT64(FUTEX), counter, operation, builder.trunc(value, ir.IntType(32)), INT64(0))
        builder.call(builder.inttoptr(kernel, kind), call)
        return context.get_dummy_value()

    return types.void(*[types.int64] * 4), generate


@inlined
def _wait(counter, arrivals, kernel):
    """Arrive at a counter, behind which sleepers are counted, and wait until so many have."""
    if arrive(counter) + 1 == arrivals:
        if _look(counter + 8) > 0:
            _futex(kernel, counter, FUTEX_WAKE, 1 << 30)
        return
    looks = 0
    while _look(counter) < arrivals:
        looks += 1
        if looks < PATIENCE or kernel == 0:
            _relax()
            continue
        arrive(counter + 8)
        seen = _look(counter)
        if seen < arrivals:
            _futex(kernel, counter, FUTEX_WAIT, seen)
        _leave(counter + 8)


@Program
def play(address):
    """Run programs one after the other; threads wait for each other after what they share."""
    steps, counter, team_size, kernel = arguments(address, 4)
    me, threads = claim(address), 1
    if team_size != 0:
        threads = _ask(team_size)
    rows, passed = i64_at(steps), 0
    for step in range(num_tasks(address)):
        is_shared = rows[COLUMNS * step + 2] != 0
        if is_shared or me == 0:
            _call(rows[COLUMNS * step], rows[COLUMNS * step + 1])
        # what one thread does in a row needs no agreement
        goes_on = step + 1 < num_tasks(address)
        if goes_on and (is_shared or rows[COLUMNS * (step + 1) + 2] != 0):
            passed += threads
            _wait(counter, passed, kernel)
