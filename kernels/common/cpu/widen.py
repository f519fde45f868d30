"""Rows of any cache dtype as float32, exactly."""

import torch
from llvmlite import ir

from blockstride.kernels.common.cpu.lanes import LANES, ZERO, fill, load
from blockstride.kernels.common.cpu.native import f32_at, inlined, primitive, shifted, types

FLOAT, HALF, INT = ir.FloatType(), ir.HalfType(), ir.IntType
F32, BF16, F16, F8, I8 = range(5)
# how a program is told what a cache holds
KINDS = {
    torch.float32: F32,
    torch.bfloat16: BF16,
    torch.float16: F16,
    torch.float8_e4m3fn: F8,
    torch.int8: I8,
}


def _from_bfloat16(builder, bits, vector):
    wide = builder.shl(builder.zext(bits, vector(INT(32))), vector.splat(INT(32), 16))
    return builder.bitcast(wide, vector(FLOAT))


def _from_float16(builder, bits, vector):
    return builder.fpext(builder.bitcast(bits, vector(HALF)), vector(FLOAT))


def _from_float8(builder, bits, vector):
    """A float16 with the same sign, exponent and mantissa is smaller by the biases' difference."""
    wide = builder.zext(bits, vector(INT(16)))
    sign = builder.shl(builder.and_(wide, vector.splat(INT(16), 0x80)), vector.splat(INT(16), 8))
    rest = builder.and_(wide, vector.splat(INT(16), 0x7F))
    half = builder.or_(sign, builder.shl(rest, vector.splat(INT(16), 7)))
    value = builder.fpext(builder.bitcast(half, vector(HALF)), vector(FLOAT))
    value = builder.fmul(value, vector.splat(FLOAT, 2.0 ** (15 - 7)))
    is_nan = builder.icmp_unsigned("==", rest, vector.splat(INT(16), 0x7F))
    return builder.select(is_nan, vector.splat(FLOAT, float("nan")), value)


def _from_int8(builder, bits, vector):
    return builder.sitofp(bits, vector(FLOAT))


class _Vector:
    """The type of `count` elements, or of one."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __call__(self, element: ir.Type) -> ir.Type:
        return element if self.count == 1 else ir.VectorType(element, self.count)

    def splat(self, element: ir.Type, value: int | float) -> ir.Constant:
        return ir.Constant(self(element), value if self.count == 1 else [value] * self.count)


def _widening(convert, bits: int, count: int):
    """An intrinsic that reads `count` elements at an address and writes floats."""
    vector = _Vector(count)

    @primitive
    def widening(typing_context, target, address):
        def generate(context, builder, signature, values):
            source = builder.inttoptr(values[1], vector(INT(bits)).as_pointer())
            value = convert(builder, builder.load(source, align=bits // 8), vector)
            target = builder.bitcast(values[0], vector(FLOAT).as_pointer())
            builder.store(value, target, align=4)
            return context.get_dummy_value()

        return types.void(target, types.int64), generate

    return widening


_bfloat16_row, _bfloat16 = (_widening(_from_bfloat16, 16, count) for count in (LANES, 1))
_float16_row, _float16 = (_widening(_from_float16, 16, count) for count in (LANES, 1))
_float8_row, _float8 = (_widening(_from_float8, 8, count) for count in (LANES, 1))
_int8_row, _int8 = (_widening(_from_int8, 8, count) for count in (LANES, 1))


@inlined
def itemsize_of(kind):
    """Bytes of an element of a cache."""
    return 4 if kind == F32 else (2 if kind <= F16 else 1)


@inlined
def _widen_whole(target, address, kind):
    """Read 64 elements that lie side by side."""
    if kind == F32:
        load(target, f32_at(address), LANES)
    elif kind == BF16:
        _bfloat16_row(target, address)
    elif kind == F16:
        _float16_row(target, address)
    elif kind == F8:
        _float8_row(target, address)
    else:
        _int8_row(target, address)


@inlined
def _widen_one(target, address, kind):
    """Read one element."""
    if kind == F32:
        target[0] = f32_at(address)[0]
    elif kind == BF16:
        _bfloat16(target, address)
    elif kind == F16:
        _float16(target, address)
    elif kind == F8:
        _float8(target, address)
    else:
        _int8(target, address)


@inlined
def widen(target, address, width, stride, kind):
    """Read `width` elements of a row as float32, and zeros up to a whole row."""
    if width == LANES and stride == 1:
        _widen_whole(target, address, kind)
    elif kind == F32 and stride == 1:
        load(target, f32_at(address), width)
    else:
        fill(target, ZERO)
        step = itemsize_of(kind) * stride
        for lane in range(width):
            _widen_one(shifted(target, lane), address + lane * step, kind)
