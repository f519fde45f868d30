"""The shape of the source: who imports whom, what is public, how long a file may be."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kernels", "layouts", "transfer", "models")
KNOWN = {
    "kernels": ("kernels",),
    "layouts": ("layouts",),
    "transfer": ("kernels", "layouts", "transfer"),
    "models": PACKAGES,
}
"""Package -> those that it may import."""
FOLDERS = (*PACKAGES, "examples", "tests", "bench")
MAX_LINES = 400
# written so that this file does not match itself
MACHINE_PATH = re.compile(r"(?<![\w.~])/(home|Users|root|work|farm)/|\.\./shared")
TEXT_SUFFIXES = {"", ".ipynb", ".json", ".lock", ".md", ".py", ".toml", ".txt", ".yml"}
UNTRACKED = {
    *(".coverage", ".git", ".hypothesis", ".pytest_cache", ".ruff_cache", ".venv"),
    *("__pycache__", "runs"),
}


def sources(*folders: str) -> list[Path]:
    """Python files below folders of the root, relative to it."""
    files = (file for folder in folders for file in sorted((ROOT / folder).rglob("*.py")))
    return [file.relative_to(ROOT) for file in files]


def imported_modules(source: Path) -> Iterator[str]:
    """Full name of every module or name that a file imports, at any depth; dots where relative."""
    for node in ast.walk(ast.parse((ROOT / source).read_text(encoding="utf-8"))):
        yield from imported_modules_of(node)


def imported_modules_of(node: ast.AST) -> Iterator[str]:
    """The same of one statement."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        prefix = "." * node.level + (f"{node.module}." if node.module else "")
        yield from (prefix + alias.name for alias in node.names)


def run_python(code: str) -> str:
    """What a fresh interpreter prints for ``code``."""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.strip()


def test_imports_go_one_way_and_kernels_and_layouts_know_nothing_of_each_other():
    wrong = [
        f"{source}: {name}"
        for package, known in KNOWN.items()
        for source in sources(package)
        for name in imported_modules(source)
        if name.startswith(tuple(f"blockstride.{other}" for other in {*PACKAGES} - {*known}))
    ]
    assert not wrong


def test_packages_are_attributes_of_the_import_name_and_imported_at_first_use():
    code = """
import sys, blockstride
assert not {"torch", "blockstride.layouts"} & {*sys.modules}
assert {"kernels", "layouts", "transfer", "models"} <= {*dir(blockstride)}
assert not hasattr(blockstride, "training")
print(blockstride.layouts.plan_pools.__name__, "blockstride.models" in sys.modules)
"""
    assert run_python(code) == "plan_pools False"


def test_rooms_of_kernels_share_through_common_and_public_functions_alone():
    implementation = re.compile(r"blockstride\.kernels\.(\w+)\.[cg]pu\b")
    crossing = [
        f"{source}: {name}"
        for source in sources("kernels")
        for name in imported_modules(source)
        if (match := implementation.match(name)) and match[1] not in {source.parts[1], "common"}
    ]
    assert not crossing


def test_imports_are_absolute_and_begin_with_the_import_name():
    others = [
        f"{source}: {name}"
        for source in sources(*FOLDERS)
        for name in imported_modules(source)
        if name.startswith(".") or name.split(".")[0] in PACKAGES
    ]
    assert not others


@pytest.mark.parametrize("package", ["kernels", "layouts", "transfer"])
def test_packages_import_without_compilers_and_without_nixl(package: str):
    heavy = {"numba", "nixl", "triton"}
    code = f"import sys, blockstride.{package}; print(sorted({heavy} & sys.modules.keys()))"
    assert run_python(code) == "[]"


def test_every_package_imports_where_triton_and_nixl_are_missing():
    imports = "; ".join(f"import blockstride.{package}" for package in PACKAGES)
    run_python(f"import sys; sys.modules.update(triton=None, nixl=None); {imports}")


def test_one_package_speaks_nixl():
    speakers = {
        str(source.parent)
        for source in sources(*PACKAGES)
        for node in ast.walk(ast.parse((ROOT / source).read_text(encoding="utf-8")))
        # by a statement, or by `import_module`
        if any(name.split(".")[0] == "nixl" for name in imported_modules_of(node))
        or (isinstance(node, ast.Constant) and re.fullmatch(r"nixl[._][\w.]+", str(node.value)))
    }
    assert speakers == {"transfer/nixl"}


@pytest.mark.parametrize("package", PACKAGES)
def test_every_public_name_exists_and_is_documented(package: str):
    module = importlib.import_module(f"blockstride.{package}")
    public = {name: getattr(module, name) for name in module.__all__}
    undocumented = [
        name
        for name, value in public.items()
        if (inspect.isclass(value) or inspect.isroutine(value))
        # a dataclass or named tuple without a docstring gets its signature for one
        and (not value.__doc__ or value.__doc__.startswith(f"{name}("))
    ]
    assert not undocumented
    assert module.__doc__


def test_files_are_short_enough_to_read():
    lines = {source: (ROOT / source).read_text("utf-8").count("\n") for source in sources(*FOLDERS)}
    assert not {str(source): count for source, count in lines.items() if count > MAX_LINES}


def test_no_file_names_a_path_of_one_machine():
    offenders = []
    for folder, subfolders, names in os.walk(ROOT):
        subfolders[:] = [name for name in subfolders if name not in UNTRACKED]
        for file in (Path(folder, name) for name in names if name not in UNTRACKED):
            if file.suffix in TEXT_SUFFIXES and MACHINE_PATH.search(file.read_text("utf-8")):
                offenders.append(str(file.relative_to(ROOT)))
    assert not offenders
