"""Triton's interpreter without what it computes anew for each of its operations.

An interpreted kernel is a million small operations in Python, and each makes types and shapes, of
which a kernel has a few dozen. Here they are remembered. No number is computed otherwise.
"""

import inspect
from functools import cache
from typing import Any

import numpy as np
import triton.language as tl
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter

_original = {
    "tensor": tl.tensor.__init__,
    "block_type": tl.block_type.__init__,
    "equal": tl.dtype.__eq__,
    "np_dtype": interpreter._get_np_dtype,
    "broadcast": TritonSemantic.broadcast_impl_value,
    "computation_type": TritonSemantic.computation_type_impl,
}

# by extents: what all tensors, or types, of a shape have alike
_tensors: dict[tuple[int, ...], tuple[Any, Any]] = {}
_blocks: dict[tuple[int, ...], tuple[Any, Any, str]] = {}
_np_dtypes: dict[str, np.dtype] = {}
_computation_types: dict[tuple[str, bool, str, bool, bool], tl.dtype] = {}


def speed_up() -> None:
    """Replace the slow functions, once and for the life of the process."""
    tl.tensor.__init__ = init_tensor
    tl.block_type.__init__ = init_block_type
    tl.dtype.__eq__ = is_equal
    interpreter._get_np_dtype = np_dtype
    interpreter._patch_builtin = patch_builtins
    TritonSemantic.broadcast_impl_value = broadcast
    TritonSemantic.computation_type_impl = computation_type


def init_tensor(self, handle, type):
    extents = tuple(type.shape) if type.is_block() else ()
    known = _tensors.get(extents)
    if known is None:
        _original["tensor"](self, handle, type)
        _tensors[extents] = self.numel, self.shape
        return
    self.handle, self.type, self.dtype = handle, type, type.scalar
    self.numel, self.shape = known


def init_block_type(self, element_ty, shape):
    extents = tuple(e.value if isinstance(e, tl.constexpr) else e for e in shape)
    known = _blocks.get(extents)
    if known is None:
        # refuses what is no shape
        _original["block_type"](self, element_ty, shape)
        _blocks[extents] = self.shape, self.numel, str(self.shape)
        return
    self.element_ty = element_ty
    self.shape, self.numel, named = known
    self.name = f"<{named}, {element_ty}>"


def is_equal(self, other):
    return self is other or _original["equal"](self, other)


def np_dtype(kind):
    scalar = kind.scalar
    # a pointer's name is that of what it points to, and more
    found = _np_dtypes.get(scalar.name)
    if found is None:
        found = _np_dtypes[scalar.name] = _original["np_dtype"](kind)
    return found


def broadcast(self, lhs, rhs):
    # types of one shape share it
    if lhs.type.is_block() and rhs.type.is_block() and lhs.type.shape is rhs.type.shape:
        return lhs, rhs
    return _original["broadcast"](self, lhs, rhs)


def computation_type(self, a_ty, a_is_scalar, b_ty, b_is_scalar, div_or_mod):
    key = a_ty.name, a_is_scalar, b_ty.name, b_is_scalar, div_or_mod
    found = _computation_types.get(key)
    if found is None:
        found = _original["computation_type"](
            self, a_ty, a_is_scalar, b_ty, b_is_scalar, div_or_mod
        )
        _computation_types[key] = found
    return found


@cache
def builtins_of(package) -> list[tuple[str, Any, Any]]:
    """Name and function of each that is to be patched, and what it is patched with."""
    found = []
    for name, member in inspect.getmembers(package):
        if tl.core.is_builtin(member):
            found.append((name, member, interpreted(inspect.unwrap(member))))
    return found


def interpreted(function):
    """A function of the language for the interpreter's semantics, whatever else it is given."""

    def call(*args, **kwargs):
        kwargs["_semantic"] = interpreter.interpreter_semantic
        return function(*args, **kwargs)

    return call


def patch_builtins(package, builder, scope):
    for name, member, patched in builtins_of(package):
        # a helper is called within a launch, which has patched the language already
        if getattr(package, name) is member:
            scope.set_attr(package, name, patched)
