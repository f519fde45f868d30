"""The folders in the root, the links in src/ and the built packages hold the same modules."""

import importlib.metadata
import importlib.util
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import blockstride

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("kernels", "layouts", "transfer", "models")
UNSHIPPED = {"__pycache__", "checkpoints"}
BUILD_INPUTS = ("pyproject.toml", "README.md", "LICENSE", "src", *PACKAGES)


def files_of_library() -> set[str]:
    """Every file that a wheel must hold, named as in a wheel."""
    library = ROOT / "src" / "blockstride"
    files = [file for package in PACKAGES for file in (ROOT / package).rglob("*") if file.is_file()]
    names = {file.relative_to(ROOT).as_posix() for file in files if not UNSHIPPED & {*file.parts}}
    names |= {file.name for file in library.iterdir() if file.is_file()}
    return {f"blockstride/{name}" for name in names}


def build(kind: str, source: Path, destination: Path) -> Path:
    """Run setuptools' ``build_wheel`` or ``build_sdist`` in ``source``, as pip does."""
    destination.mkdir(parents=True, exist_ok=True)
    hook = f"from setuptools import build_meta; build_meta.build_{kind}({str(destination)!r})"
    ran = subprocess.run(
        [sys.executable, "-c", hook], cwd=source, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    (built,) = destination.iterdir()
    return built


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the build's inputs: a build leaves build/ and egg-info beside them."""
    copy = tmp_path_factory.mktemp("source")
    unwanted = shutil.ignore_patterns("*.egg-info", *UNSHIPPED)
    for name in BUILD_INPUTS:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, copy / name)
    return copy


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", source, tmp_path_factory.mktemp("sdist"))


def names_in_wheel(wheel: Path) -> set[str]:
    with zipfile.ZipFile(wheel) as archive:
        return {name for name in archive.namelist() if ".dist-info/" not in name}


def test_every_root_package_is_linked():
    folders = {file.parent.name for file in ROOT.glob("*/__init__.py")}
    links = {path.name for path in (ROOT / "src" / "blockstride").iterdir() if path.is_symlink()}
    assert folders == links == set(PACKAGES)


@pytest.mark.parametrize("package", PACKAGES)
def test_links_are_relative_and_end_in_the_root(package: str):
    link = ROOT / "src" / "blockstride" / package
    assert not link.readlink().is_absolute()
    assert link.resolve() == ROOT / package


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_not_importable_without_the_prefix(package: str):
    assert importlib.util.find_spec(package) is None


def test_wheel_holds_every_file_of_the_library(source: Path, tmp_path: Path):
    assert names_in_wheel(build("wheel", source, tmp_path)) == files_of_library()


def test_sdist_holds_every_file_of_the_library_and_the_licence(sdist: Path):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {f"src/{name}" for name in files_of_library()} | {"LICENSE", "README.md"} <= names


def test_sdist_builds_the_same_wheel(sdist: Path, tmp_path: Path):
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (unpacked,) = tmp_path.iterdir()
    assert names_in_wheel(build("wheel", unpacked, tmp_path / "wheel")) == files_of_library()


def test_version_is_the_one_that_was_installed():
    assert blockstride.__version__ == importlib.metadata.version("blockstride")
