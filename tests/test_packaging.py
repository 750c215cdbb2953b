"""What a user gets: an import without side effects, and a package with all its files and rules."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tensoropt"

# The packages that stand for TensorFlow's side of the house; nothing else may import it.
WITH_TENSORFLOW = {"api", "cli", "contrib", "exec", "measure", "viz"}


def run_python(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def settings() -> dict[str, Any]:
    tomllib = pytest.importorskip("tomllib", reason="Python 3.10 cannot read TOML by itself")
    loaded: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    return loaded


def packages() -> set[str]:
    return {init.parent.name for init in PACKAGE.glob("*/__init__.py")}


def contract(settings: dict[str, Any], name: str) -> dict[str, Any]:
    found = [one for one in settings["tool"]["importlinter"]["contracts"] if one["id"] == name]
    assert len(found) == 1
    return dict(found[0])


def test_import_loads_neither_tensorflow_nor_mpi_nor_horovod() -> None:
    heavy = "{'tensorflow', 'keras', 'mpi4py', 'horovod'}"
    assert run_python(f"import sys, tensoropt; print(sorted({heavy} & set(sys.modules)))").strip() == "[]"


def test_import_prints_nothing_and_leaves_the_environment_alone() -> None:
    code = "import os; before = dict(os.environ); import tensoropt; assert dict(os.environ) == before"
    assert run_python(code) == ""


def test_version_is_one_string_that_a_build_can_read_without_importing() -> None:
    lines = (PACKAGE / "__init__.py").read_text(encoding="utf-8").splitlines()
    version = run_python("import tensoropt; print(tensoropt.__version__)").strip()
    assert f'__version__ = "{version}"' in lines


def test_every_file_that_is_not_python_is_declared_as_package_data(settings: dict[str, Any]) -> None:
    declared: set[Path] = set()
    for package, patterns in settings["tool"]["setuptools"]["package-data"].items():
        folder = ROOT.joinpath(*package.split("."))
        declared.update(path for pattern in patterns for path in folder.glob(pattern))
    present = {
        path
        for path in PACKAGE.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts and path.suffix not in (".py", ".pyc", ".so")
    }
    assert PACKAGE / "py.typed" in present
    assert sorted(present - declared) == []


@pytest.mark.parametrize("folder", ["tensoropt", "examples", "benchmarks"])
def test_every_import_is_of_what_is_named_as_a_dependency(settings: dict[str, Any], folder: str) -> None:
    project = settings["project"]
    named = [*project["dependencies"], *(name for group in project["optional-dependencies"].values() for name in group)]
    known = {re.split(r"[^\w-]", name)[0].replace("scikit-learn", "sklearn").replace("-", "_") for name in named}
    known |= {
        "tensoropt",
        "examples",
        "benchmarks",
        "keras",
        "google",
        "typing_extensions",
        *sys.stdlib_module_names,
    }  # TensorFlow brings Keras and Protobuf; type checkers know typing_extensions, which nothing loads
    files = list((ROOT / folder).rglob("*.py"))
    known |= {file.stem for file in files}  # scripts import what lies beside them
    imported: dict[str, str] = {}
    for file in files:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0]: str(file) for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported[node.module.partition(".")[0]] = str(file)
    assert {name: file for name, file in imported.items() if name not in known} == {}


def test_every_folder_with_code_is_a_package() -> None:
    folders = {path.parent for path in PACKAGE.rglob("*.py")}
    assert sorted(folder for folder in folders if not (folder / "__init__.py").exists()) == []


def test_every_package_has_its_place_in_the_direction_of_imports(settings: dict[str, Any]) -> None:
    layers = contract(settings, "layers")["layers"]
    placed = {name.strip(" ()").rpartition(".")[2] for layer in layers for name in layer.split("|")}
    assert sorted(packages() - placed) == []


def test_every_planning_package_is_forbidden_to_import_tensorflow(settings: dict[str, Any]) -> None:
    forbidden = {name.rpartition(".")[2] for name in contract(settings, "tensorflow")["source_modules"]}
    assert sorted(packages() - WITH_TENSORFLOW - forbidden) == []


def test_every_package_is_bound_by_the_rule_about_mpi(settings: dict[str, Any]) -> None:
    bound = {name.rpartition(".")[2] for name in contract(settings, "mpi")["source_modules"]}
    assert sorted(packages() - bound) == []
