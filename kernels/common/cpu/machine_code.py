"""Machine code of programs: made by numba once, and loaded without it from then on.

numba takes half a second to import and seconds to compile; LLVM alone loads what was compiled in a
few milliseconds. So programs and their helpers are plain functions until one has to be compiled.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import cached_property
from importlib import import_module
from types import FunctionType
from typing import Any, NamedTuple

from llvmlite import binding

ENTRY = "blockstride_program"
"""What the function of a program is called in its machine code."""

PYTHON = ("Py", "_Py", "numba_", "NRT_")
"""What begins the names of functions that need an interpreter."""


class _Types:
    """numba's types, which is imported when the first of them is asked for."""

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module("numba.types"), name)


types = _Types()


class Helper:
    """A function that is compiled into the programs that call it.

    Args:
        function: The function.
        make: Makes what numba inlines of the function, with the helpers that this calls in place.
    """

    def __init__(self, function: Callable[..., Any], make: Callable[[Callable], Any]) -> None:
        self.function, self._make = function, make

    @cached_property
    def compiled(self) -> Any:
        """What numba knows the function as."""
        return self._make(with_helpers(self.function))

    def __call__(self, *_: Any) -> Any:
        """Only programs call helpers."""
        raise TypeError(f"{self.function.__name__}: expected to be called by a compiled program")


class Loaded(NamedTuple):
    """A program in memory.

    Attributes:
        address: Where its function is.
        call: Calls it on this thread.
        owner: What keeps it there.
    """

    address: int
    call: Callable[[int], None]
    owner: object


def with_helpers(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, which finds what numba knows its helpers as where they stood."""
    if not isinstance(function, FunctionType):
        return function
    named = {name: function.__globals__.get(name) for name in function.__code__.co_names}
    known = {name: each.compiled for name, each in named.items() if isinstance(each, Helper)}
    bound = FunctionType(
        function.__code__,
        {**function.__globals__, **known},
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    bound.__module__, bound.__qualname__ = function.__module__, function.__qualname__
    return bound


def host() -> str:
    """What machine code made here is good for: the system, the CPU, and what that can do."""
    return " ".join(
        (
            binding.get_process_triple(),
            binding.get_host_cpu_name(),
            binding.get_host_cpu_features().flatten(),
        )
    )


def compile_program(function: Callable[[int], None]) -> bytes:
    """Machine code for this CPU of a function of one address, as an object file.

    Raises:
        TypeError: It may raise an exception, which no thread of OpenMP can.
    """
    from numba import cfunc

    made = cfunc("void(intp)", error_model="numpy")(with_helpers(function))
    module = binding.parse_assembly(made.inspect_llvm())
    for each in (*module.functions, *module.global_variables):
        if not each.is_declaration and each.name != made.native_name:
            each.linkage = "internal"
    module.get_function(made.native_name).name = ENTRY
    machine = _target_machine()
    _drop_interpreter(module, machine)
    left = {each.name for each in module.functions if each.name.startswith(PYTHON)}
    if left:
        name = function.__qualname__
        raise TypeError(f"{name}: expected a program that raises nothing, got {sorted(left)}")
    return machine.emit_object(module)


def _drop_interpreter(module: binding.ModuleRef, machine: binding.TargetMachine) -> None:
    """Find that the function can't fail, and take out what would be done about it."""
    passes = binding.create_new_module_pass_manager()
    passes.add_ipsccp_pass()
    passes.add_simplify_cfg_pass()
    passes.add_global_dead_code_eliminate_pass()
    passes.add_strip_dead_prototype_pass()
    options = binding.create_pipeline_tuning_options(speed_level=0)
    passes.run(module, binding.create_pass_builder(machine, options))


def load(code: bytes) -> Loaded:
    """Bring the machine code of a program into memory."""
    engine = binding.create_mcjit_compiler(binding.parse_assembly(""), _target_machine())
    engine.add_object_file(binding.ObjectFileRef.from_data(code))
    engine.finalize_object()
    address = engine.get_function_address(ENTRY)
    return Loaded(address, ctypes.CFUNCTYPE(None, ctypes.c_void_p)(address), engine)


def _target_machine() -> binding.TargetMachine:
    """The machine that code is made for; each engine owns its own."""
    binding.initialize_native_target()
    binding.initialize_native_asmprinter()
    target = binding.Target.from_triple(binding.get_process_triple())
    return target.create_target_machine(
        cpu=binding.get_host_cpu_name(),
        features=binding.get_host_cpu_features().flatten(),
        opt=3,
        # what is loaded where it runs need not be movable; others than x86 can't have it so
        reloc="static" if target.name.startswith("x86") else "default",
        codemodel="jitdefault",
        jit=True,
    )
