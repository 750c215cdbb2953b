"""Starts benchmark programs: alone or under mpirun, all with the same allocator, MPI and thread settings."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

__all__ = ["OF_A_RANK", "ROOT", "command_of", "launch", "mpirun_path", "search_path"]

ROOT = Path(__file__).resolve().parents[1]
OF_A_RANK = ("OMPI_COMM_", "OMPI_FILE_", "OMPI_UNIVERSE_", "PMIX_", "PMI_", "PRTE_NODE", "PRTE_LAUNCHED")
"""What names of variables begin with that mpirun gives to what it starts.

A program that runs under mpirun itself must not hand them on, or the inner job takes itself for a part of the outer.
"""


def mpirun_path() -> str | None:
    """The ``mpirun`` beside the running interpreter, else the one on ``PATH``, else ``None``."""
    return shutil.which("mpirun", path=search_path())


def search_path() -> str:
    """The search path with the running interpreter's programs first."""
    return os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", os.defpath)))


def command_of(
    module: str,
    arguments: list[str],
    ranks: int | None,
    extra: dict[str, str] | None = None,
    *,
    bind: bool = True,
    launcher: Sequence[str] = (),
) -> tuple[list[str], dict[str, str]]:
    """The command that runs ``python -m module``, and its environment.

    Args:
        module: what to run.
        arguments: its flags.
        ranks: processes under mpirun; None for one process without it.
        extra: more environment variables; one that is empty is taken away.
        bind: each rank to a core of its own, where there are enough cores.
        launcher: what starts so many ranks, if it is not mpirun on this machine (:mod:`benchmarks.two_hosts`).
    """
    cores = len(os.sched_getaffinity(0))
    environment = {name: value for name, value in os.environ.items() if not name.startswith(OF_A_RANK)} | {
        "TF_CPP_MIN_LOG_LEVEL": "3",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        # Keep freed pages: without this, every large buffer is mapped anew in every step.
        "MALLOC_MMAP_THRESHOLD_": str(2**30),
        "MALLOC_TRIM_THRESHOLD_": str(2**32),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, "-m", module, *arguments]
    if ranks is not None:
        crowded = ranks > cores
        if os.getuid() == 0:
            environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        flags = ["-n", str(ranks), "--mca", "mpi_yield_when_idle", "1"]
        flags += ["--oversubscribe"] if crowded else []
        flags += ["--bind-to", "core" if bind and not crowded else "none"]
        command = [*(launcher or (mpirun_path() or "mpirun", *flags)), *command]
    return command, {name: value for name, value in (environment | (extra or {})).items() if value}


def launch(
    module: str,
    arguments: list[str],
    ranks: int | None,
    extra: dict[str, str] | None = None,
    *,
    launcher: Sequence[str] = (),
) -> str:
    """Runs ``python -m module`` and gives its standard output.

    Args:
        module: what to run.
        arguments: its flags.
        ranks: processes under mpirun; None for one process without it.
        extra: more environment variables.
        launcher: see :func:`command_of`.

    Raises:
        RuntimeError: with the program's output, if it fails.
    """
    command, environment = command_of(module, arguments, ranks, extra, launcher=launcher)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=ROOT)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}")
    return done.stdout
