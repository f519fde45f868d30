"""How long a compiled function may be: a reader has to keep all of it in mind."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
MAX_LINES = 80
# decorators of Triton's functions and of numba's
COMPILERS = ("triton.jit", "Program", "inlined")


def compiled_functions() -> Iterator[tuple[str, int]]:
    """Name and lines, signature included, of all that a compiler takes."""
    for file in sorted((ROOT / "kernels").rglob("*.py")):
        for function in ast.walk(ast.parse(file.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef) and any(
                ast.unparse(decorator).startswith(COMPILERS)
                for decorator in function.decorator_list
            ):
                assert function.end_lineno is not None
                yield function.name, function.end_lineno - function.lineno + 1


def test_kernels_are_short_enough_to_read():
    functions = list(compiled_functions())
    assert {"attention_kernel", "_attend", "gather_tile"} <= {name for name, _ in functions}
    assert [(name, lines) for name, lines in functions if lines > MAX_LINES] == []
