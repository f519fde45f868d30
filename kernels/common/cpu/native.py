"""Compiled loops over raw addresses, run by torch's own OpenMP threads.

A program is one thread's share of an operation: a Python function that numba compiles to a C
function of one address. There it finds its arguments, and a counter from which it claims task after
task, so that threads that other work slows down get fewer. It sees tensors as addresses and
strides, as a Triton kernel does; hence it exists once whatever the layouts are, and a call costs
microseconds.

The threads are the ones that torch keeps for its own operations. A second pool, such as numba's,
would compete with them for the cores while they spin. So the rule for a forked process is that of
torch too: `torch.set_num_threads(1)` first, for the threads did not come along.
"""

import array
import ctypes
import inspect
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from threading import Lock
from types import FunctionType
from typing import Protocol, cast, runtime_checkable

import torch
from llvmlite import ir

from blockstride.kernels.common.cpu.code_cache import CodeFile
from blockstride.kernels.common.cpu.machine_code import (
    Helper,
    Loaded,
    compile_program,
    load,
    types,
)

INT64, FLOAT = ir.IntType(64), ir.FloatType()
# what stands before the arguments: next task, number of tasks, fault
HEADER = 3


def _find_team() -> tuple[Callable[..., None] | None, int]:
    """What runs a C function on every OpenMP thread of torch, if torch has such.

    And the address of what tells each of them how many they are.
    """
    library = Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"
    try:
        openmp = ctypes.CDLL(str(library))
        team, size = openmp.GOMP_parallel, openmp.omp_get_num_threads
    except (OSError, AttributeError):
        return None, 0
    team.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint)
    team.restype = None
    return team, ctypes.cast(size, ctypes.c_void_p).value or 0


TEAM, TEAM_SIZE = _find_team()
# compilers and loaders serve one thread at a time
LOADING = Lock()


@runtime_checkable
class Recorder(Protocol):
    """What keeps the calls of programs, to make them again."""

    def add_call(self, address: int, block: array.array, is_shared: bool) -> None:
        """Keeps a call of the program at an address, with its arguments, on one or all threads."""


class _Here(threading.local):
    """Of this thread alone, as others may compute something else meanwhile."""

    recorder: Recorder | None = None


HERE = _Here()


class Program:
    """A compiled loop, called with the number of its tasks and then its arguments.

    It is compiled when it is first called, unless that was done before on this machine.

    Args:
        function: One thread's share, of the address of its arguments.
    """

    def __init__(self, function: Callable[[int], None]) -> None:
        # the import hook of the tests wraps every function
        self.function = cast(FunctionType, inspect.unwrap(function))
        self._code: Loaded | None = None

    @property
    def address(self) -> int:
        """Where its machine code is; it is loaded, or compiled, by now."""
        return self._loaded().address

    def _loaded(self) -> Loaded:
        if self._code is None:
            with LOADING:
                if self._code is None:
                    self._code = load(self._machine_code())
        return self._code

    def _machine_code(self) -> bytes:
        function = self.function
        folder = Path(function.__code__.co_filename).parent
        file = CodeFile(folder, f"{function.__module__}.{function.__name__}")
        code = file.read()
        if code is None:
            with file.lock():
                # another process may have compiled it meanwhile
                code = file.read()
                if code is None:
                    code = compile_program(function)
                    file.write(code)
        return code

    def __call__(self, num_tasks: int, grain: int, *arguments: int) -> int:
        """Run every task, on the calling thread or on all that torch uses.

        Args:
            num_tasks: How many tasks there are to claim.
            grain: Tasks that are worth a thread; below two such the calling thread does them all.
            arguments: Addresses, sizes and strides, in the order in which the program takes them.

        Returns:
            The fault that a task reported, or 0.
        """
        block = array.array("q", (0, num_tasks, 0, *arguments))
        is_shared = num_tasks >= 2 * grain
        if HERE.recorder is not None:
            HERE.recorder.add_call(self.address, block, is_shared)
        if num_tasks > 0:
            self.run(block.buffer_info()[0], is_shared)
        return block[2]

    def run(self, block: int, is_shared: bool) -> None:
        """Run the tasks of the arguments at an address, on the calling thread or on all."""
        # never fewer than torch's: OpenMP ends threads that a smaller team leaves over
        num_threads = torch.get_num_threads() if is_shared else 1
        code = self._code or self._loaded()
        if num_threads > 1 and TEAM is not None:
            TEAM(code.address, block, num_threads, 0)
        else:
            code.call(block)


def inlined(function: Callable) -> Helper:
    """Compile a helper into the programs that call it."""

    def make(bound: Callable) -> Callable:
        from numba import njit

        options = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
        return njit(bound, error_model="numpy", forceinline=True, **options)

    return Helper(inspect.unwrap(function), make)


def primitive(function: Callable) -> Helper:
    """Make a helper of what `function` says in LLVM's language; literal arguments reach it."""

    def make(bound: Callable) -> Callable:
        from numba.extending import intrinsic

        return intrinsic(prefer_literal=True)(bound)

    return Helper(inspect.unwrap(function), make)


def float_bits(value: float) -> int:
    """Bits of a double, so that it can stand among integer arguments."""
    return struct.unpack("=q", struct.pack("=d", value))[0]


@primitive
def arguments(typing_context, address, count):
    """The `count` arguments of a program as a tuple of integers."""
    returned = types.UniTuple(types.int64, count.literal_value)

    def generate(context, builder, signature, values):
        first = builder.inttoptr(values[0], INT64.as_pointer())
        places = range(HEADER, HEADER + count.literal_value)
        loads = [builder.load(builder.gep(first, [INT64(place)])) for place in places]
        return context.make_tuple(builder, returned, loads)

    return returned(types.int64, count), generate


@primitive
def claim(typing_context, address):
    """The next task of a program; one past the last (or more) when none is left."""

    def generate(context, builder, signature, values):
        counter = builder.inttoptr(values[0], INT64.as_pointer())
        return builder.atomic_rmw("add", counter, INT64(1), "monotonic")

    return types.int64(types.int64), generate


@primitive
def arrive(typing_context, address):
    """Count an arrival at a counter, and tell how many came before.

    What those threads wrote before they arrived can be read after this.
    """

    def generate(context, builder, signature, values):
        counter = builder.inttoptr(values[0], INT64.as_pointer())
        return builder.atomic_rmw("add", counter, INT64(1), "seq_cst")

    return types.int64(types.int64), generate


def _pointer(element: str) -> Helper:
    """An intrinsic that makes an address indexable."""

    @primitive
    def pointer(typing_context, address):
        def generate(context, builder, signature, values):
            return builder.inttoptr(values[0], context.get_value_type(signature.return_type))

        return types.CPointer(getattr(types, element))(types.int64), generate

    return pointer


f32_at = _pointer("float32")
i32_at = _pointer("int32")
i64_at = _pointer("int64")
u8_at = _pointer("uint8")
u16_at = _pointer("uint16")
u32_at = _pointer("uint32")


@inlined
def num_tasks(address):
    """How many tasks a program was called with."""
    return i64_at(address)[1]


@inlined
def report(address, fault):
    """Make the call return `fault`, which is not 0."""
    i64_at(address)[2] = fault


@inlined
def is_padding(address, block, num_blocks):
    """Whether a block is none to read or write; an id past the pool is a fault."""
    if block >= num_blocks:
        report(address, block)
    return block <= 0 or block >= num_blocks


@primitive
def stack_f32(typing_context, count):
    """An uninitialised array on the stack, which the compiler knows to alias nothing else."""

    def generate(context, builder, signature, values):
        with builder.goto_entry_block():
            memory = builder.alloca(ir.ArrayType(FLOAT, count.literal_value))
            memory.align = 64
        return builder.bitcast(memory, FLOAT.as_pointer())

    return types.CPointer(types.float32)(count), generate


@primitive
def float_of(typing_context, bits):
    """The inverse of `float_bits`, rounded to float32."""

    def generate(context, builder, signature, values):
        return builder.fptrunc(builder.bitcast(values[0], ir.DoubleType()), FLOAT)

    return types.float32(types.int64), generate


@primitive
def shifted(typing_context, pointer, count):
    """The pointer to the element `count` places further on."""

    def generate(context, builder, signature, values):
        return builder.gep(values[0], [values[1]])

    return pointer(pointer, types.int64), generate


@primitive
def transpose_16(typing_context, target, target_stride, source, source_stride):
    """Copy a square of 16 by 16 floats, rows becoming columns; strides are between rows."""

    def generate(context, builder, signature, values):
        target, target_stride, source, source_stride = values
        row = ir.VectorType(FLOAT, 16).as_pointer()

        def place(base, stride, index):
            element = builder.gep(base, [builder.mul(stride, stride.type(index))])
            return builder.bitcast(element, row)

        rows = [builder.load(place(source, source_stride, i), align=4) for i in range(16)]
        for i, column in enumerate(columns_of(builder, rows)):
            builder.store(column, place(target, target_stride, i), align=4)
        return context.get_dummy_value()

    return types.void(target, types.int64, source, types.int64), generate


def columns_of(builder, rows):
    """The columns of 16 rows of 16 floats each, all in registers."""
    for bit in (1, 2, 4, 8):  # swap this bit of the row's index with that of the column's
        rows = [_exchanged(builder, rows, i, bit) for i in range(16)]
    return rows


def _exchanged(builder, rows, index, bit):
    """Row `index` after the squares of side `bit` across the diagonal have changed places."""
    upper, lower = rows[index & ~bit], rows[index | bit]
    places = [(j & ~bit) + bit * (index & bit > 0) + (16 if j & bit else 0) for j in range(16)]
    mask = ir.Constant(ir.VectorType(ir.IntType(32), 16), places)
    return builder.shuffle_vector(upper, lower, mask)
