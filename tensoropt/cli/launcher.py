"""The program that starts ranks, and the line that starts a job with it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tensoropt.cli.hosts import Host
from tensoropt.cli.output import UsageError
from tensoropt.cluster.host import affinity
from tensoropt.logs import is_launched

__all__ = ["Launch", "Launcher", "environment", "find_launcher", "identified", "launch", "refuse_ranks", "threads_of"]

Kind = Literal["openmpi", "hydra", "srun"]

_NAMES = ("mpirun", "mpiexec")
_PATIENCE_S = 60
_KINDS: tuple[tuple[Kind, str, re.Pattern[str]], ...] = (
    ("openmpi", "Open MPI", re.compile(r"(?:Open MPI\)|OpenRTE\)|Open MPI v?)\s*(\d+\.\d+[\w.]*)")),
    ("hydra", "Intel MPI", re.compile(r"Intel\(R\) MPI Library.*?Version\s+(\d+[\w.]*)", re.S)),
    ("hydra", "MPICH", re.compile(r"HYDRA build details.*?Version:\s*(\d+[\w.]*)", re.S)),
    ("srun", "SLURM", re.compile(r"\bslurm(?:-wlm)?\s+(\d+[\w.]*)")),
)
# What Open MPI passes to other hosts only if it is told to.
_PASSED = re.compile(
    r"TENSOROPT_|TF_|KERAS_|OMP_|XLA_|CUDA_|NCCL_|HOROVOD_|MALLOC_|PYTHON|MPI4PY_|"
    r"(LD_LIBRARY_PATH|MPICXX|PATH|VIRTUAL_ENV)$"
)
# 1 GiB and 4 GiB: else glibc gives every large buffer back to the system at the end of its step, and the next step
# waits for the pages again.
_KEEP_PAGES = {"MALLOC_MMAP_THRESHOLD_": "1073741824", "MALLOC_TRIM_THRESHOLD_": "4294967296"}


@dataclass(frozen=True, slots=True)
class Launcher:
    """A program that starts ranks.

    Attributes:
        path: of it.
        kind: which flags it takes.
        name: of what it belongs to.
        version: of it.
    """

    path: str
    kind: Kind
    name: str
    version: str

    def __str__(self) -> str:
        return f"{self.name} {self.version}"

    @property
    def major(self) -> int:
        """The first part of the version."""
        return int(re.match(r"\d+", self.version)[0])  # type: ignore[index]


@dataclass(frozen=True, slots=True)
class Launch:
    """How a job is started.

    Attributes:
        environment: variables that are added to this process's own.
        command: the launcher and its arguments.
    """

    environment: Mapping[str, str]
    command: tuple[str, ...]

    def __str__(self) -> str:
        path = os.environ.get("PATH", "")
        words = [
            # What stands before the path that there is already says enough.
            f'PATH={shlex.quote(value.removesuffix(path))}"$PATH"' if name == "PATH" else f"{name}={shlex.quote(value)}"
            for name, value in self.environment.items()
        ]
        return " ".join([*words, shlex.join(self.command)])


def refuse_ranks(caller: str) -> None:
    """Checks that this process is no rank of an MPI job, so that it can start ranks.

    Raises:
        UsageError: a launcher has started it as a rank.
    """
    if is_launched():
        raise UsageError(f"{caller}: this process is a rank of an MPI job already. Call it outside: it starts its own.")


def find_launcher(named: str | None = None) -> Launcher:
    """The launcher: a named one, that of this Python's environment, or the first in the path; in SLURM also ``srun``.

    Raises:
        UsageError: there is none, or it is of no known kind.
    """
    beside = str(Path(sys.executable).parent)
    if named is not None:
        found = shutil.which(named)
        if found is None:
            raise UsageError(f"--mpirun: must be a program that can be run, got '{named}'. Give its path.")
    else:
        in_job = ("srun",) if "SLURM_JOB_ID" in os.environ else ()
        tried = [(name, path) for path in (beside, None) for name in _NAMES] + [(name, None) for name in in_job]
        found = next(filter(None, (shutil.which(name, path=path) for name, path in tried)), None)
        if found is None:
            raise UsageError(
                f"There is no mpirun, neither in {beside} nor in the path. Install MPI (pip install 'tensoropt[mpi]' "
                "brings Open MPI), load your cluster's module, or name one by --mpirun."
            )
    try:
        done = subprocess.run(
            [found, "--version"],
            env={**os.environ, **_reachable(found)},
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE_S,
            check=False,
        )
        said = f"{done.stdout}\n{done.stderr}"
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"'{found}' must say its version. Got {error}. Name another launcher by --mpirun.") from error
    return identified(found, said)


def _reachable(path: str) -> dict[str, str]:
    """The path with the folder of a launcher, which may start what lies beside it; nothing if it has that already."""
    folder, known = str(Path(path).parent), os.environ.get("PATH", os.defpath)
    return {} if folder in known.split(os.pathsep) else {"PATH": f"{folder}{os.pathsep}{known}"}


def identified(path: str, said: str) -> Launcher:
    """The launcher that says so of its version.

    Raises:
        UsageError: it is of no known kind.
    """
    for kind, name, pattern in _KINDS:
        version = pattern.search(said)
        if version is not None:
            return Launcher(path, kind, name, version[1])
    first = next((line.strip() for line in said.splitlines() if line.strip()), "nothing")
    raise UsageError(
        f"'{path}' must be the mpirun of Open MPI, MPICH or Intel MPI, or SLURM's srun. Of its version it says: "
        f"{first[:100]!r}. Name another one by --mpirun, or start the job by its own flags: {Path(path).name} -n RANKS "
        "python SCRIPT."
    )


def threads_of(ranks_a_host: int) -> int:
    """Threads of each rank where so many share this machine's cores."""
    return max(len(affinity()) // ranks_a_host, 1)


def environment(threads: int, known: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment variables that ranks on CPUs need and do not have yet.

    Each rank gets as many threads as it has cores; by default it would start one for each core of the host.
    TensorFlow's log level is raised: by default TensorFlow reports each rank's missing graphics card as an error.

    Args:
        threads: of each rank.
        known: the environment of the ranks.
    """
    wanted = {
        "TF_NUM_INTRAOP_THREADS": str(threads),
        "OMP_NUM_THREADS": str(threads),
        **_KEEP_PAGES,
        **({} if known.get("TENSOROPT_LOG") == "debug" else {"TF_CPP_MIN_LOG_LEVEL": "3"}),
    }
    return {name: value for name, value in wanted.items() if name not in known}


def launch(
    launcher: Launcher, ranks: int, program: Sequence[str], hosts: Sequence[Host] = (), threads: int | None = None
) -> Launch:
    """Returns the command and environment that start a program on some ranks.

    Args:
        launcher: that starts them.
        ranks: how many.
        program: what each runs, with its arguments.
        hosts: that they run on; none is this machine, or the allocation of a batch system.
        threads: of each rank; by default a host's cores are shared, which are taken to be as many as here.

    Only of this machine is it known how many cores there are. A rank on another host is bound to a core as long as
    there are enough, and ranks share cores where there are not.
    """
    a_host = max((host.slots for host in hosts), default=ranks)
    alone = not hosts and launcher.kind != "srun" and "SLURM_JOB_ID" not in os.environ
    added = environment(threads_of(a_host) if threads is None else threads, os.environ) | _reachable(launcher.path)
    line = [launcher.path, "-n", str(ranks)]
    if launcher.kind == "openmpi":
        line += _open_mpi(launcher, hosts, threads is None and a_host > len(affinity()), alone, added)
    elif launcher.kind == "hydra":
        line += ["-hosts", ",".join(map(str, hosts))] if hosts else []
    else:
        line += ["--mpi=pmix", "--kill-on-bad-exit=1"]
        line += ["--nodelist", ",".join(host.name for host in hosts)] if hosts else []
    return Launch(added, (*line, *program))


def _open_mpi(
    launcher: Launcher, hosts: Sequence[Host], share_cores: bool, alone: bool, added: Mapping[str, str]
) -> list[str]:
    line = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    if hosts:
        line += ["--host", ",".join(map(str, hosts))]
        for name in sorted({*added, *filter(_PASSED.match, os.environ)}):
            line += ["-x", name]
    elif alone:
        # It counts cores as slots, where systems count the threads of cores, and refuses more ranks than slots.
        line += ["--map-by", ":OVERSUBSCRIBE"] if launcher.major >= 5 else ["--oversubscribe"]
    if share_cores:
        line += ["--mca", "mpi_yield_when_idle", "1"]  # a rank that waits gives its core away
    if int(added.get("OMP_NUM_THREADS", "1")) > 1:
        line += ["--bind-to", "none"]  # else all threads of a rank share one core
    elif hosts:
        line += ["--bind-to", "core:overload-allowed"]
    return line
