"""``tensoropt doctor``: whether jobs can run here, and the remedy of what keeps them from it."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from tensoropt.cli.answers import run_ranks
from tensoropt.cli.hosts import read_hosts
from tensoropt.cli.launcher import Launch, Launcher, find_launcher, launch, refuse_ranks
from tensoropt.cli.output import FINE, NO, Json, UsageError, answer, example
from tensoropt.cluster.host import affinity, available_memory_bytes, cpu_model
from tensoropt.exec.engines.shared_memory import segments_folder
from tensoropt.stages import announce, came_to, stage
from tensoropt.storage import wanted_cache

__all__ = ["Finding", "findings_of_ranks", "register"]

_PYTHON, _TENSORFLOW, _KERAS = (3, 10), (2, 18), (3, 0)
# Compiling the collectives takes most of it, once.
_PATIENCE_S = 300
_GPU_DRIVER = Path("/dev/nvidiactl")
_SHARED_BYTES = 2**26  # what Docker gives a container
_FAMILIES = (("Open MPI", r"Open MPI v?(\d+\.\d+[\w.]*)"), ("Intel MPI", r"Intel\(R\) MPI Library (\d+[\w.]*)"),
             ("MPICH", r"MPICH Version:\s*(\d+[\w.]*)"))  # fmt: skip
_MARKS = {"fine": "✓", "note": "!", "wrong": "✗"}


@dataclass(frozen=True, slots=True)
class Finding:
    """The doctor's finding on one subject.

    Attributes:
        name: of the subject.
        state: ``fine``; ``note``: jobs run, but something could be better; ``wrong``: jobs do not run.
        text: the finding.
        remedy: what to do; empty where all is well.
    """

    name: str
    state: Literal["fine", "note", "wrong"]
    text: str
    remedy: str = ""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command("doctor", epilog=example("tensoropt doctor", "tensoropt doctor -n 8 --hosts hosts.txt --json"))(_doctor)


def _doctor(
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=2, help="Ranks of the job that is tried.")] = 2,
    hosts: Annotated[Path | None, typer.Option(help="A file of hosts to try them on; see tensoropt run.")] = None,
    mpirun: Annotated[str | None, typer.Option(help="The launcher; by default this environment's own.")] = None,
    as_json: Json = False,
) -> None:
    """Says whether jobs run here, and what to do.

    It looks at versions, MPI, the compiler, engines of collectives, cores, memory, the cache, and runs a job of two
    ranks. Each ✗ has its remedy. The exit code is 0 without any ✗, else 1.
    """
    refuse_ranks("doctor")
    findings = [*_findings(ranks, hosts, mpirun)]
    fine = all(finding.state != "wrong" for finding in findings)
    line = f"tensoropt run -n {ranks} {'' if hosts is None else f'--hosts {hosts} '}script.py"
    answer(as_json, {"fine": fine, "findings": [asdict(each) for each in findings]}, lambda: _show(findings, line))
    raise typer.Exit(FINE if fine else NO)


def _show(findings: Sequence[Finding], line: str) -> None:
    from rich.console import Console

    console = Console(markup=False, highlight=False)
    for finding in findings:
        console.print(f"{_MARKS[finding.state]} {finding.name}: {finding.text}", soft_wrap=True)
        if finding.remedy:
            console.print(f"    → {finding.remedy}", soft_wrap=True)
    wrong = sum(finding.state == "wrong" for finding in findings)
    console.print(f"{wrong} to mend" if wrong else f"Jobs run: {line}", soft_wrap=True)


def _findings(ranks: int, hosts: Path | None, mpirun: str | None) -> Iterator[Finding]:
    given = () if hosts is None else read_hosts(hosts, ranks)
    launcher: Launcher | None = None
    missing = ""
    try:
        launcher = find_launcher(mpirun)
    except UsageError as error:
        if mpirun is not None:
            raise
        missing = str(error)
    yield _version("Python", platform.python_version(), _PYTHON, f", {sys.executable}")
    program = [sys.executable, "-m", "tensoropt.cli.doctor_rank"]
    started = Launch({}, tuple(program)) if launcher is None else launch(launcher, ranks, program, given)
    announce(f"doctor: tries a job of {ranks} ranks")
    with stage("doctor", f"a job of {ranks} ranks"):
        done = run_ranks(started, quiet=True, patience_s=_PATIENCE_S)
        came_to(f"{sum(map(len, done.answers))} ranks answered")
    yield from findings_of_ranks(done.answers, ranks, launcher, done.said)
    if launcher is None:
        what, _, remedy = missing.partition(". ")
        yield Finding("mpirun", "wrong", what, remedy)
    yield from _keras()
    if all(host.is_here for host in given):
        yield _cores(ranks if not given else sum(host.slots for host in given))
        yield Finding("memory", "fine", f"{available_memory_bytes() / 2**30:.1f} GiB to be had here")
    yield from _shared_memory()
    yield _cache()


def findings_of_ranks(
    reports: Sequence[Sequence[Mapping[str, Any]]], ranks: int, launcher: Launcher | None, said: str
) -> Iterator[Finding]:
    """Yields the findings from the reports of ranks.

    Args:
        reports: for each world of ranks, the report of each of its ranks.
        ranks: how many were started.
        launcher: the launcher that started them; None for one process without any.
        said: the end of the job's other output.
    """
    found = [rank for report in reports for rank in report]
    if not found:
        yield Finding(
            "job", "wrong", f"a job of {ranks} ranks gave no answer: {said or 'it said nothing'}",
            "Run `tensoropt run --dry-run script.py` with these ranks and hosts, and start its line by hand; with "
            "hosts, look whether ssh reaches each without a password, and whether this Python is there.",
        )  # fmt: skip
        return
    if launcher is not None:
        yield Finding("mpirun", "fine", f"{launcher}, {launcher.path}")
    failed: dict[str, str] = {name: text for rank in found for name, text in rank.get("failed", {}).items()}
    for name in ("python", "tensorflow", "mpi4py", "mpi"):
        of_ranks = {_versioned(rank.get(name)): rank["host"] for rank in found if rank.get(name)}
        if len(of_ranks) > 1:
            text = ", ".join(f"{version} on {host}" for version, host in sorted(of_ranks.items()))
            yield Finding(f"{name} of all ranks", "wrong", text, "Install the same versions on every host.")
    if "tensorflow" in failed:
        yield Finding("TensorFlow", "wrong", failed["tensorflow"], "Install it: pip install 'tensorflow>=2.18'.")
    else:
        tensorflow = found[0]["tensorflow"]
        yield _version(
            "TensorFlow", tensorflow["version"], _TENSORFLOW, f", imported in {tensorflow['import_s']:.1f} s"
        )
        yield _gpus(tensorflow)
        yield _compiler(found, failed)
    yield from _mpi(reports, ranks, launcher, failed)
    yield from _engines(found, failed)


def _versioned(value: Any) -> str:
    return str(value.get("version") or value.get("library")) if isinstance(value, dict) else str(value)


def _version(name: str, version: str, least: tuple[int, int], more: str = "") -> Finding:
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    if numbers >= least:
        return Finding(name, "fine", f"{version}{more}")
    wanted = ".".join(map(str, least))
    return Finding(name, "wrong", f"{version}{more}; {wanted} or newer is needed", f"Install {name} {wanted} or newer.")


def _keras() -> Iterator[Finding]:
    try:
        version = metadata.version("keras")
    except metadata.PackageNotFoundError:
        yield Finding("Keras", "note", "not installed: no Keras models", "Install it: pip install 'keras>=3'.")
        return
    old, backend = os.environ.get("TF_USE_LEGACY_KERAS", "").lower(), os.environ.get("KERAS_BACKEND", "tensorflow")
    if old in ("1", "true") or backend != "tensorflow":
        setting = f"KERAS_BACKEND={backend}" if backend != "tensorflow" else f"TF_USE_LEGACY_KERAS={old}"
        yield Finding("Keras", "note", f"{version}, but {setting}: no Keras models", "Unset it to train Keras models.")
        return
    yield _version("Keras", version, _KERAS)


def _gpus(tensorflow: Mapping[str, Any]) -> Finding:
    gpus = tensorflow["gpus"]
    if gpus:
        return Finding(
            "GPUs", "fine", f"each rank computes on one; rank 0 on {gpus[0]}",
        )  # fmt: skip
    if _GPU_DRIVER.exists():
        with_cuda = "" if tensorflow["with_cuda"] else ", which was built without CUDA,"
        return Finding(
            "GPUs", "note", f"there is a driver, and TensorFlow{with_cuda} sees none",
            "Install TensorFlow with CUDA (pip install 'tensorflow[and-cuda]'), or train on CPUs.",
        )  # fmt: skip
    return Finding("GPUs", "fine", "none: ranks train on CPUs")


def _compiler(found: Sequence[Mapping[str, Any]], failed: Mapping[str, str]) -> Finding:
    if "compiler" in failed:
        what = failed["compiler"].partition(": ")[2]
        return Finding(
            "compiler", "note", f"none: {what.partition('. Install')[0]}. Collectives go through mpi4py, more slowly",
            "Install g++ or clang++ and MPI's wrapper mpicxx (pip install 'tensoropt[mpi]', apt-get install g++).",
        )  # fmt: skip
    return Finding("compiler", "fine", str(found[0]["compiler"]))


def _mpi(
    reports: Sequence[Sequence[Mapping[str, Any]]], ranks: int, launcher: Launcher | None, failed: Mapping[str, str]
) -> Iterator[Finding]:
    if "mpi" in failed:
        remedy = "Install mpi4py, and the MPI of mpirun: pip install 'tensoropt[mpi]'."
        yield Finding("mpi4py", "wrong", failed["mpi"], remedy)
        return
    rank = reports[0][0]
    library = " ".join(rank["mpi"]["library"].split())
    text = f"{rank['mpi4py']} with {library.partition(',')[0]}"
    family, version = next(
        ((name, match[1]) for name, pattern in _FAMILIES if (match := re.search(pattern, library))), ("", "")
    )
    if launcher is None:
        yield Finding("mpi4py", "fine", text)
        return
    sizes, folder = [len(report) for report in reports], Path(launcher.path).parent
    if sizes != [ranks]:
        yield Finding(
            "mpi4py", "wrong", f"{text}: {sum(sizes)} ranks of {launcher} do not find one another (worlds of {sizes})",
            f"mpi4py and mpirun must be of one MPI. Name mpi4py's own mpirun (--mpirun), or have all use {launcher}: "
            f"MPI4PY_MPIABI={'openmpi' if launcher.kind == 'openmpi' else 'mpich'}, MPICXX={folder}/mpicxx, and "
            f"{folder.parent}/lib in LD_LIBRARY_PATH. An mpi4py that was built here is built anew with {folder}/mpicc.",
        )  # fmt: skip
    elif (family, version) != (launcher.name, launcher.version) and family and launcher.kind != "srun":
        yield Finding(
            "mpi4py", "note", f"{text}, mpirun is of {launcher}", "Use one version of one MPI: others may fail later."
        )
    else:
        yield Finding("mpi4py", "fine", f"{text}: {ranks} ranks found one another")


def _engines(found: Sequence[Mapping[str, Any]], failed: Mapping[str, str]) -> Iterator[Finding]:
    tried = sorted({name for rank in found for name in (*rank, *rank.get("failed", {})) if name.startswith("engine ")})
    chosen = found[0].get("chosen")
    for name in tried:
        if name not in failed:
            yield Finding(name, "fine", "runs" + (", and is what jobs choose" if name == f"engine {chosen}" else ""))
            continue
        if name == "engine horovod" and not found[0].get("tensorflow", {}).get("gpus"):
            yield Finding(name, "fine", "not built, and not needed: it is for graphics cards")
            continue
        *what, remedy = re.split(r"(?<=\.) ", " ".join(failed[name].partition(": ")[2].split()))
        yield Finding(name, "note", f"does not run: {' '.join(what)}", remedy)
    if not tried:
        return
    if chosen is None or "all_reduce" in failed:
        why = failed.get("all_reduce") or failed.get("chosen") or "no engine runs"
        yield Finding("all_reduce", "wrong", why, "Mend what is said of the engines above.")
        return
    times = {int(size): seconds for size, seconds in found[0]["all_reduce"].items()}
    small, large = min(times), max(times)
    yield Finding(
        "all_reduce", "fine",
        f"of {len(found)} ranks: {large // 2**20} MiB in {times[large] * 1e3:.2f} ms, {small // 2**10} KiB in "
        f"{times[small] * 1e6:.0f} µs",
    )  # fmt: skip


def _cores(ranks: int) -> Finding:
    cores = len(affinity())
    text = f"{cores} of {cpu_model()} for {ranks} ranks a host"
    if ranks <= cores:
        return Finding("cores", "fine", text)
    return Finding("cores", "note", f"{text}, which take turns", f"Start {cores} ranks a host for speed.")


def _shared_memory() -> Iterator[Finding]:
    folder = segments_folder()
    if not folder.is_dir():
        return  # not Linux
    found = os.statvfs(folder)
    free_bytes = found.f_bavail * found.f_frsize
    text = f"{free_bytes / 2**20:,.0f} MiB free in {folder}, through which ranks of a host talk"
    if free_bytes > _SHARED_BYTES:
        yield Finding("shared memory", "fine", text)
    else:
        remedy = "Give a container more (docker run --shm-size=1g), or delete what killed jobs left there."
        yield Finding("shared memory", "note", f"{text}: jobs of many ranks may end with a bus error", remedy)


def _cache() -> Finding:
    folder, reason = wanted_cache()
    if reason is None:
        return Finding("cache", "fine", f"{folder}, which nobody else can write to")
    return Finding(
        "cache", "note", f"{folder} is not used: {reason}; each job measures and compiles again",
        "Name a folder of your own in TENSOROPT_CACHE_DIR, or chmod -R go-w it and the folders above it.",
    )  # fmt: skip
