"""Copying runs of elements whose bits do not matter: 1, 2 or 4 bytes each, at any stride."""

from blockstride.kernels.common.cpu.native import inlined, u8_at, u16_at, u32_at


@inlined
def move_row(target, source, count, stride_target, stride_source, itemsize):
    """Copy `count` elements between addresses; strides are in elements."""
    if stride_target == 1 and stride_source == 1:
        to, of = u8_at(target), u8_at(source)
        for i in range(count * itemsize):
            to[i] = of[i]
    elif itemsize == 4:
        for i in range(count):
            u32_at(target)[i * stride_target] = u32_at(source)[i * stride_source]
    elif itemsize == 2:
        for i in range(count):
            u16_at(target)[i * stride_target] = u16_at(source)[i * stride_source]
    else:
        for i in range(count):
            u8_at(target)[i * stride_target] = u8_at(source)[i * stride_source]
