"""Ranks that a command starts for itself: the first answers in a line of JSON among what they print."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

from tensoropt.cli.launcher import Launch

__all__ = ["Answered", "answer_of_rank", "run_ranks"]

_MARK = "tensoropt-answer "
_LAST = 8  # lines that end a job which fails, as launchers fold their sentences
_GRACE_S = 10


@dataclass(frozen=True, slots=True)
class Answered:
    """The result of a job.

    Attributes:
        answers: the answer of each world of ranks: several where ranks did not find one another.
        code: the exit code of the launcher.
        said: the end of the job's other output.
    """

    answers: tuple[Any, ...]
    code: int
    said: str


def answer_of_rank(value: Any) -> None:
    """Answers the command that has started this rank."""
    sys.stdout.write(f"{_MARK}{json.dumps(value)}\n")
    sys.stdout.flush()


def run_ranks(started: Launch, *, quiet: bool = False, patience_s: float | None = None) -> Answered:
    """Runs a job to its end.

    Args:
        started: the job.
        quiet: whether it writes nothing to standard error.
        patience_s: seconds after which it is ended.
    """
    settings = {"TENSOROPT_LOG": "error"} if quiet else {}
    try:
        # A session of its own: Ctrl-C comes here first, and ends it below.
        process = subprocess.Popen(
            started.command,
            env={**os.environ, **started.environment, **settings},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if quiet else None,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return Answered((), 127, str(error))
    try:
        out, err = process.communicate(timeout=patience_s)
    except subprocess.TimeoutExpired:
        _end(process)
        out, err = process.communicate()
        err = f"{err or ''}\nit was not over after {patience_s} s"
    except BaseException:
        _end(process)
        raise
    answers, rest = [], []
    for line in (*out.splitlines(), *(err or "").splitlines()):
        if _MARK in line:
            answers.append(json.loads(line.partition(_MARK)[2]))
        elif line.strip():
            rest.append(line)
    if not quiet:
        sys.stderr.write("".join(f"{line}\n" for line in rest))
    told = [line.strip() for line in rest if any(map(str.isalnum, line))]
    return Answered(tuple(answers), process.returncode, " ".join(told[-_LAST:]))


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a launcher, which ends its ranks; kills what is left of them on this host."""
    process.terminate()
    deadline_s = time.monotonic() + _GRACE_S
    while process.poll() is None and time.monotonic() < deadline_s:
        time.sleep(0.05)
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
