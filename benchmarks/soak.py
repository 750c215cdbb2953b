"""Starts, trains and ends many short jobs, none of which may fail; keeps what those printed that do.

    python -m benchmarks.soak --jobs 200 --keep failures --json soak.json
    python -m benchmarks.soak --jobs 60 --models transformer --options data_parallel --ranks 2

Jobs differ in model, option, ranks, engine, threads and costs, in an order that is the same every time. Every 25th
begins with an empty cache: it compiles the library, and measures links and operators. A job fails by an exit code, by
not being over in time, or by a loss that is not the one of the model's other jobs. What a failed one printed, where
each of its threads was, and the stacks of the cores that it left (``ulimit -c unlimited``, where gdb is there) stay in
a folder.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import math
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import track

from benchmarks.launch import command_of
from benchmarks.models import SHORT
from benchmarks.soak_job import OPTIONS

__all__ = ["Job", "jobs", "why_failed"]

_ENGINES = ("mpi", "mpi4py")
_FRESH_EVERY = 25
_SEED = 1
# Losses of one model may differ by the order of sums.
_LOSS_TOLERANCE = 1e-3
# Before a job is ended that does not end, its ranks say where they are.
_DUMP_S = 5.0
_GRACE_S = 5.0
_MODULE = "benchmarks.soak_job"


@dataclass(frozen=True, slots=True)
class Job:
    """What a job runs.

    Attributes:
        number: counted from 1.
        model: in :data:`benchmarks.models.SHORT`.
        option: in :data:`benchmarks.soak_job.OPTIONS`.
        ranks: how many.
        engine: of collectives.
        threads: TensorFlow's for operators that run side by side; 0 for as many as it likes.
        costs: ``analytic`` or ``measured``.
        fresh: whether its cache is empty.
    """

    number: int
    model: str
    option: str
    ranks: int
    engine: str
    threads: int
    costs: str
    fresh: bool

    def __str__(self) -> str:
        parts = (f"{self.number:03}", self.model, self.option, f"{self.ranks}ranks", self.engine, self.costs)
        return "-".join((*parts, f"{self.threads}threads", *(["fresh"] if self.fresh else [])))


def jobs(count: int, models: Sequence[str], options: Sequence[str], ranks: Sequence[int]) -> list[Job]:
    """The first ``count`` jobs; every combination comes up before one comes up again."""
    kinds = list(itertools.product(models, options, ranks, _ENGINES, (0, 1), ("analytic", "analytic", "measured")))
    random.Random(_SEED).shuffle(kinds)
    chosen = itertools.islice(itertools.cycle(kinds), count)
    return [
        Job(number, model, option, size, engine, threads, "measured" if fresh else costs, fresh)
        for number, (model, option, size, engine, threads, costs) in enumerate(chosen, start=1)
        for fresh in (number % _FRESH_EVERY == 0,)
    ]


def why_failed(job: Job, code: int | None, output: str, expected: dict[str, float]) -> str | None:
    """What is wrong with a job that is over; None if nothing is.

    Args:
        job: which one.
        code: its exit code; None if it was ended because its time was over.
        output: what its ranks wrote to standard output.
        expected: last losses by model, of the first job of each; one that is not there yet is added.
    """
    if code is None:
        return "was not over in time"
    if code:
        return f"ended with exit code {code}"
    lines = [json.loads(line) for line in output.splitlines() if line.startswith('{"rank"')]
    missing = sorted(set(range(job.ranks)) - {line["rank"] for line in lines})
    if missing:
        return f"ended with exit code 0, though ranks {missing} did not train to the end"
    losses = {line["loss"] for line in lines}
    if len(losses) > 1:
        return f"ranks have losses of their own: {sorted(losses)}"
    loss = losses.pop()
    if not math.isclose(loss, expected.setdefault(job.model, loss), rel_tol=_LOSS_TOLERANCE):
        return f"the last loss is {loss:.6g}, but {expected[job.model]:.6g} in the model's first job"
    return None


def main() -> None:
    """Runs the jobs; exits with 1 if one fails."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200, help="how many (default %(default)s)")
    parser.add_argument("--models", nargs="+", choices=sorted(SHORT), default=sorted(SHORT))
    parser.add_argument("--options", nargs="+", choices=OPTIONS, default=OPTIONS)
    parser.add_argument("--ranks", type=int, nargs="+", default=(2, 2, 4), help="(default 2 2 4: a third has 4)")
    parser.add_argument("--steps", type=int, default=10, help="of each job (default %(default)s)")
    parser.add_argument(
        "--timeout", type=float, default=120.0, metavar="SECONDS", help="of a job (default %(default)s)"
    )
    parser.add_argument(
        "--keep", type=Path, default=Path("soak-failures"), metavar="FOLDER", help="(default %(default)s)"
    )
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    flags = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("benchmarks.soak: ended from outside"))  # with its job
    console = Console(stderr=True)
    expected: dict[str, float] = {}
    failures: list[dict[str, Any]] = []
    seconds: list[float] = []
    for job in track(
        jobs(flags.jobs, flags.models, flags.options, flags.ranks), description="soaking", console=console
    ):
        with tempfile.TemporaryDirectory(prefix="soak-") as scratch:
            started = time.monotonic()
            # Compiling takes a minute or so on a busy machine.
            code = _run(job, Path(scratch), flags.steps, flags.timeout * (3 if job.fresh else 1))
            seconds.append(time.monotonic() - started)
            output = (Path(scratch) / "stdout").read_text(encoding="utf-8", errors="replace")
            reason = why_failed(job, code, output, expected)
            if reason is None:
                _save(flags.json, seconds, failures)
                continue
            folder = flags.keep.absolute() / str(job)
            _write_stacks_of_cores(Path(scratch))
            shutil.rmtree(Path(scratch) / "cache", ignore_errors=True)
            shutil.copytree(scratch, folder, dirs_exist_ok=True)
        failures.append({**asdict(job), "reason": reason, "folder": str(folder)})
        console.print(f"{job} {reason}; see {folder}", markup=False)
        _save(flags.json, seconds, failures)
    print(f"{len(failures)} of {flags.jobs} jobs failed; the median took {statistics.median(seconds):.1f} s")
    if failures:
        raise SystemExit(1)


def _run(job: Job, folder: Path, steps: int, limit_s: float) -> int | None:
    """Runs a job in a folder, which has what it printed afterwards; its exit code, or None if its time was over."""
    arguments = ["--model", job.model, "--option", job.option, "--engine", job.engine, "--costs", job.costs]
    arguments += ["--steps", str(steps), "--dump-after", str(limit_s)]
    extra = {
        "TF_NUM_INTEROP_THREADS": str(job.threads) if job.threads else "",
        "TENSOROPT_PROFILE_SECONDS": "2",
        # TensorFlow then looks for Keras 2, in vain. To load Keras 3, as other jobs do, takes half of a start: every
        # other job does.
        "TF_USE_LEGACY_KERAS": "1" if job.threads else "",
        **({"TENSOROPT_CACHE_DIR": str(folder / "cache")} if job.fresh else {}),
    }
    command, environment = command_of(_MODULE, arguments, job.ranks, extra)
    (folder / "command").write_text(" ".join(command) + "\n", encoding="utf-8")
    with (folder / "stdout").open("w") as stdout, (folder / "stderr").open("w") as stderr:
        # A session of its own has mpirun and all ranks, which are then found, whatever became of mpirun.
        process = subprocess.Popen(
            command,
            env=environment,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
        )
        try:
            return process.wait(limit_s + _DUMP_S)
        except subprocess.TimeoutExpired:
            _write_stacks(process.pid, folder)
            return None
        finally:
            _end_session(process)


def _write_stacks(session: int, folder: Path) -> None:
    """What each rank that is still there does outside of Python, too, where gdb can look at it."""
    if shutil.which("gdb") is None:
        return
    for pid in _members(session):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it may end meanwhile
            name = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if _MODULE in name and "mpirun" not in name:
                _gdb(["-p", str(pid)], folder / f"stacks-{pid}")


def _write_stacks_of_cores(folder: Path) -> None:
    """Puts a core's stacks in its place: it has all of a process's memory."""
    for core in sorted(folder.glob("core*")):
        if shutil.which("gdb") is not None:
            _gdb([sys.executable, str(core)], folder / f"stacks-{core.name}")
        core.unlink()


def _gdb(arguments: list[str], path: Path) -> None:
    command = ["gdb", "-batch", "-ex", "thread apply all bt", *arguments]
    with path.open("w") as out, contextlib.suppress(subprocess.TimeoutExpired):
        subprocess.run(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, timeout=120, check=False)


def _end_session(process: subprocess.Popen[bytes]) -> None:
    """Ends what is left of a job: asks mpirun, which ends its ranks, then kills."""
    if process.poll() is None:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_GRACE_S)
    for pid in _members(process.pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    process.wait()


def _members(session: int) -> list[int]:
    """The processes of a session that have not ended."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            # The program's name is in brackets, and may have brackets and spaces in it.
            state, _, _, its_session = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
            if int(its_session) == session and state not in "ZX":
                found.append(int(entry.name))
    return sorted(found)


def _save(path: Path | None, seconds: Sequence[float], failures: list[dict[str, Any]]) -> None:
    if path is not None:
        report = {"jobs": len(seconds), "failed": len(failures), "seconds": seconds, "failures": failures}
        path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
