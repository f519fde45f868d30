"""Lets benchmarks use the tests' helpers, with the root kept off `sys.path` as in the tests."""

import sys
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec
from pathlib import Path

if "tests" not in sys.modules:
    spec = ModuleSpec("tests", None, is_package=True)
    spec.submodule_search_locations = [str(Path(__file__).resolve().parents[1] / "tests")]
    sys.modules["tests"] = module_from_spec(spec)
