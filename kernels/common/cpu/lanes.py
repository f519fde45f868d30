"""Rows of 64 floats: what an elementwise program works on at once.

A task brings rows onto its stack, computes there in loops of constant length, which compile to full
vectors, and stores them. A last block that is narrower is padded with zeros on the stack, where the
padding does no harm.
"""

import numpy as np
from llvmlite import ir

from blockstride.kernels.common.cpu.native import f32_at, inlined, primitive, types

LANES = 64
ZERO = np.float32(0)
FLOAT, INT32 = ir.FloatType(), ir.IntType(32)
ROW, MASK = ir.VectorType(FLOAT, LANES), ir.VectorType(ir.IntType(1), LANES)


def vector_function(builder, name, returned, parameters):
    """An LLVM intrinsic of rows."""
    kind = ir.FunctionType(returned, parameters)
    return builder.module.declare_intrinsic(f"llvm.{name}", fnty=kind)


def first_lanes(builder, width, lanes=LANES):
    """A mask of the first `width` of so many lanes."""
    places = ir.Constant(ir.VectorType(INT32, lanes), list(range(lanes)))
    single = builder.insert_element(places, builder.trunc(width, INT32), INT32(0))
    everywhere = ir.Constant(ir.VectorType(INT32, lanes), [0] * lanes)
    return builder.icmp_signed("<", places, builder.shuffle_vector(single, single, everywhere))


def _row_at(builder, pointer):
    return builder.bitcast(pointer, ROW.as_pointer())


@primitive
def _copy_row(typing_context, target, source):
    """Copy a whole row, wherever the two are: a loop would be unrolled and stay scalar."""

    def generate(context, builder, signature, values):
        target, source = (_row_at(builder, pointer) for pointer in values)
        builder.store(builder.load(source, align=4), target, align=4)
        return context.get_dummy_value()

    return types.void(target, source), generate


@primitive
def _load_first(typing_context, target, source, width):
    """Read `width` floats, and zeros after them."""

    def generate(context, builder, signature, values):
        target, source, width = values
        source = _row_at(builder, source)
        load = vector_function(
            builder, f"masked.load.v{LANES}f32.p0", ROW, (source.type, INT32, MASK, ROW)
        )
        zeros = ir.Constant(ROW, [0.0] * LANES)
        row = builder.call(load, (source, INT32(4), first_lanes(builder, width), zeros))
        builder.store(row, _row_at(builder, target), align=4)
        return context.get_dummy_value()

    return types.void(target, source, types.int64), generate


@primitive
def _store_first(typing_context, target, source, width):
    """Write `width` floats."""

    def generate(context, builder, signature, values):
        target, source, width = values
        target = _row_at(builder, target)
        store = vector_function(
            builder, f"masked.store.v{LANES}f32.p0", ir.VoidType(), (ROW, target.type, INT32, MASK)
        )
        row = builder.load(_row_at(builder, source), align=4)
        builder.call(store, (row, target, INT32(4), first_lanes(builder, width)))
        return context.get_dummy_value()

    return types.void(target, source, types.int64), generate


@primitive
def sum_lanes(typing_context, row):
    """The sum of a row, by halves."""

    def generate(context, builder, signature, values):
        name = f"vector.reduce.fadd.v{LANES}f32"
        add = vector_function(builder, name, FLOAT, (FLOAT, ROW))
        lanes = builder.load(_row_at(builder, values[0]), align=4)
        return builder.call(add, (FLOAT(-0.0), lanes), fastmath=("reassoc",))

    return types.float32(row), generate


@primitive
def max_lanes(typing_context, row):
    """The largest of a row; NaN is passed over."""

    def generate(context, builder, signature, values):
        largest = vector_function(builder, f"vector.reduce.fmax.v{LANES}f32", FLOAT, (ROW,))
        lanes = builder.load(_row_at(builder, values[0]), align=4)
        return builder.call(largest, (lanes,), fastmath=("nsz",))

    return types.float32(row), generate


@inlined
def load(target, source, width):
    """Read `width` floats of a row, and zeros up to a whole one."""
    if width == LANES:
        _copy_row(target, source)
    else:
        _load_first(target, source, width)


@inlined
def load_or_zero(target, row, channel, width):
    """Read part of a vector, or zeros if its address is 0."""
    if row != 0:
        load(target, f32_at(row + 4 * channel), width)
    else:
        fill(target, ZERO)


@inlined
def store(target, source, width):
    """Write `width` floats of a row."""
    if width == LANES:
        _copy_row(target, source)
    else:
        _store_first(target, source, width)


@inlined
def fill(row, value):
    """Set a row on the stack."""
    for lane in range(LANES):
        row[lane] = value


@inlined
def zero_rows(out, stride, num_rows, width):
    """Write zeros for a padding sequence."""
    for row in range(num_rows):
        target = f32_at(out + 4 * row * stride)
        for lane in range(width):
            target[lane] = ZERO
