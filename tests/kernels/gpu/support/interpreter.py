"""Make Triton's interpreter compute what a GPU computes, and refuse what a GPU would not forgive.

The interpreter of Triton 3.6 to 3.9 truncates fp32 -> bf16, drops carries and saturation of fp32 ->
fp8, multiplies the bit patterns of bf16 in `tl.dot` and in arithmetic, and lets every address
through. Here casts go through torch, narrow floats are computed in float32 and rounded once, and an
access outside the tensors of the launch is an error. Addresses are checked against the extent of
each tensor argument.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch
import triton.language as tl
from triton.runtime import interpreter
from triton.tools.tensor_descriptor import TensorDescriptor

FLOATS = {
    tl.float64: torch.float64,
    tl.float32: torch.float32,
    tl.float16: torch.float16,
    tl.bfloat16: torch.bfloat16,
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
}
# numpy has no such types: the interpreter holds them as unsigned integers
NARROW = {tl.bfloat16, tl.float8e4nv, tl.float8e5}
SATURATING = {tl.float8e4nv, tl.float8e5}
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
COMPARISONS = {
    np.less, np.less_equal, np.greater, np.greater_equal, np.equal, np.not_equal,
}  # fmt: skip

Handle = interpreter.TensorHandle
Builder = interpreter.InterpreterBuilder

_original = {
    name: getattr(Builder, name)
    for name in (
        "cast_impl", "create_dot", "binary_op", "unary_op",
        "create_masked_load", "create_masked_store",
    )
}  # fmt: skip
_original_launch = interpreter.GridExecutor.__call__
_original_patch_tensor = interpreter._patch_lang_tensor

# address ranges [begin, end) that the running launch may touch, disjoint and sorted
_allowed = {"begins": np.empty(0, np.uint64), "ends": np.empty(0, np.uint64)}
_patched_modules: set[int] = set()


def repair() -> None:
    """Replace the faulty methods, once and for the life of the process."""
    for method in (
        cast_impl, create_dot, binary_op, unary_op, create_fp_to_fp,
        create_masked_load, create_masked_store,
    ):  # fmt: skip
        setattr(Builder, method.__name__, method)
    interpreter.GridExecutor.__call__ = launch
    # tensors are on the CPU already: copying each storage onto itself would touch all its pages
    setattr(interpreter.GridExecutor, "_restore_args_dev", lambda *_: None)  # noqa: B010
    interpreter.InterpretedFunction.__call__ = call_helper
    interpreter._patch_lang_tensor = patch_tensor
    if not hasattr(interpreter._interpreter, "fma_fp32"):
        setattr(Builder, "create_fma", create_fma)  # noqa: B010
    check_overflow(False)


def check_overflow(enabled: bool) -> None:
    """Make integer overflow an error, or do not look for it, which saves 40 % of the time."""
    interpreter.interpreter_builder.options = interpreter.InterpreterOptions(
        debug=enabled, sanitize_overflow=enabled
    )


@contextmanager
def overflow_is_an_error() -> Iterator[None]:
    check_overflow(True)
    try:
        yield
    finally:
        check_overflow(False)


# ---- numbers


def convert(data: np.ndarray, source: tl.dtype, target: tl.dtype) -> np.ndarray:
    """Floats of one Triton type as another: nearest even; fp8 saturates, like satfinite."""
    values = _as_torch(data, source)
    if target in SATURATING:
        values = values.float()
        limit = torch.finfo(FLOATS[target]).max
        values = torch.where(values.isnan(), values, values.clamp(-limit, limit))
    return _as_numpy(values.to(FLOATS[target]), target)


def cast_impl(self, src, dst_type):
    source, target = src.dtype.scalar, dst_type.scalar
    if source in FLOATS and target in FLOATS:
        return Handle(convert(src.data, source, target), target)
    if source in NARROW:
        return _original["cast_impl"](self, _widen(src), dst_type)
    if target in NARROW:
        return Handle(convert(src.data.astype(np.float32), tl.float32, target), target)
    return _original["cast_impl"](self, src, dst_type)


def create_fp_to_fp(self, src, dst_type, rounding_mode):
    return cast_impl(self, src, dst_type)


def create_dot(self, a, b, d, input_precision, max_num_imprecise_acc):
    """Sums as a tensor core's: what one row gets does not depend on where in the tile it stands.

    In numpy's product of float32 it does, on some CPUs; a sum in float64 is rounded alike.
    """
    a, b = _widen(a), _widen(b)
    if not np.issubdtype(d.data.dtype, np.floating):
        return _original["create_dot"](self, a, b, d, input_precision, max_num_imprecise_acc)
    product = np.matmul(a.data, b.data, dtype=np.float64).astype(d.data.dtype)
    return Handle(product + d.data, d.dtype.scalar)


def binary_op(self, lhs, rhs, op):
    kind = lhs.dtype.scalar
    if op in COMPARISONS:
        # the interpreter keeps the operands' type, so that a scalar truth becomes a tile of
        # integers
        return Handle(op(_widen(lhs).data, _widen(rhs).data), tl.int1)
    if kind not in NARROW:
        return _original["binary_op"](self, lhs, rhs, op)
    return _narrow(op(_widen(lhs).data, _widen(rhs).data), kind)


def unary_op(self, arg, op):
    kind = arg.dtype.scalar
    if kind not in NARROW:
        return _original["unary_op"](self, arg, op)
    return _narrow(op(_widen(arg).data), kind)


def create_fma(self, x, y, z):
    """One rounding, but for ties of float64: Triton 3.6 rounds the product by itself."""
    product = x.data.astype(np.float64) * y.data.astype(np.float64)
    return Handle((product + z.data).astype(z.data.dtype), z.dtype.scalar)


def _widen(handle):
    kind = handle.dtype.scalar
    if kind not in NARROW:
        return handle
    return Handle(convert(handle.data, kind, tl.float32), tl.float32)


def _narrow(data: np.ndarray, kind: tl.dtype):
    return Handle(convert(data.astype(np.float32), tl.float32, kind), kind)


def _as_torch(data: np.ndarray, kind: tl.dtype) -> torch.Tensor:
    data = np.ascontiguousarray(data)
    bits = data.reshape(-1).view("u1" if data.itemsize == 1 else f"i{data.itemsize}")
    return torch.from_numpy(bits.copy()).view(FLOATS[kind]).reshape(data.shape)


def _as_numpy(values: torch.Tensor, kind: tl.dtype) -> np.ndarray:
    flat = values.contiguous().reshape(-1).view(INTEGERS[values.element_size()]).numpy()
    return flat.view(interpreter._get_np_dtype(kind)).reshape(tuple(values.shape))


def patch_tensor(tensor, scope):
    """Let a scalar be an index, as a loop bound is; Triton 3.6 asks numpy for less."""
    _original_patch_tensor(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


# ---- addresses


# Triton 3.6 hands over more cache policies than 3.9 does
def create_masked_load(self, ptrs, mask, *policies, **named_policies):
    expect_inside(ptrs, mask, "load")
    return _original["create_masked_load"](self, ptrs, mask, *policies, **named_policies)


def create_masked_store(self, ptrs, value, mask, *policies, **named_policies):
    expect_inside(ptrs, mask, "store")
    return _original["create_masked_store"](self, ptrs, value, mask, *policies, **named_policies)


def expect_inside(ptrs, mask, access: str) -> None:
    """Raise if an active lane's address lies in none of the launch's tensors."""
    addresses = ptrs.data[np.broadcast_to(mask.data, ptrs.data.shape)]
    if addresses.size == 0:
        return
    size = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
    index = np.searchsorted(_allowed["begins"], addresses, side="right") - 1
    outside = (index < 0) | (addresses + np.uint64(size) > _allowed["ends"][index])
    if outside.any():
        raise IndexError(f"{access} outside every tensor of the launch: {outside.sum()} lanes")


def launch(self, *args, **kwargs):
    _patched_modules.clear()
    ranges = sorted(_ranges([*args, *kwargs.values()]))
    merged: list[list[int]] = []
    for begin, end in ranges:
        if merged and begin <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([begin, end])
    _allowed["begins"] = np.array([begin for begin, _ in merged], np.uint64)
    _allowed["ends"] = np.array([end for _, end in merged], np.uint64)
    return _original_launch(self, *args, **kwargs)


def _ranges(arguments) -> Iterator[tuple[int, int]]:
    for argument in arguments:
        if isinstance(argument, tuple):
            yield from _ranges(argument)
        elif isinstance(argument, TensorDescriptor):
            yield from _ranges([argument.base])
        elif isinstance(argument, torch.Tensor) and argument.numel():
            last = sum((n - 1) * s for n, s in zip(argument.shape, argument.stride(), strict=True))
            begin = argument.data_ptr()
            yield begin, begin + (last + 1) * argument.element_size()


# ---- speed


def call_helper(self, *args, **kwargs):
    """A jit helper called from a kernel. Patches the language once a module, not once a call."""
    module = id(self.fn.__globals__)
    if module not in _patched_modules:
        interpreter._patch_lang(self.fn)
        _patched_modules.add(module)
    return self.rewrite()(*args, **kwargs)
