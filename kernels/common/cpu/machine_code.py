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
from typing import Any, NamedTuple, cast

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
    module = binding.parse_assembly(_llvm_of(function))
    machine = _target_machine()
    _optimise(module, machine)
    left = {each.name for each in module.functions if each.name.startswith(PYTHON)}
    if left:
        name = function.__qualname__
        raise TypeError(f"{name}: expected a program that raises nothing, got {sorted(left)}")
    return machine.emit_object(module)


def _llvm_of(function: Callable[[int], None]) -> str:
    """A function and its helpers in LLVM's language, unoptimised, for `ENTRY` to be called.

    numba would optimise every helper before it is inlined, and the rest then finds less to do: that
    takes longer, and gives loops that are up to twice as slow.
    """
    from numba import cfunc, config
    from numba.core.compiler_lock import global_compiler_lock
    from numba.core.registry import cpu_target

    settings, target = cast(Any, config), cast(Any, cpu_target)
    # what others compile is optimised as they want it
    with global_compiler_lock:
        # some of numba keeps the level that it is made with
        target.target_context.codegen()
        level, settings.OPT = settings.OPT, type(settings.OPT)(0)
        try:
            made = cfunc("void(intp)", error_model="numpy")(with_helpers(function))
        finally:
            settings.OPT = level
    return made.inspect_llvm().replace(made.native_name, ENTRY)


def _optimise(module: binding.ModuleRef, machine: binding.TargetMachine) -> None:
    """Inline all helpers, and find that nothing fails, so that no interpreter need hear of it."""
    for each in (*module.functions, *module.global_variables):
        if not each.is_declaration and each.name != ENTRY:
            each.linkage = "internal"
    options = binding.create_pipeline_tuning_options(speed_level=3)
    options.loop_vectorization = options.slp_vectorization = True
    options.loop_interleaving = options.loop_unrolling = True
    builder = binding.create_pass_builder(machine, options)
    builder.getModulePassManager().run(module, builder)


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
