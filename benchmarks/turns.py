"""Programs that are all there at once and train in turns, so that a machine whose speed drifts is fair to all."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from benchmarks.launch import ROOT, command_of

__all__ = ["Setting", "Team", "Turns", "take_turns"]

_POLL_S = 0.005
_GRACE_S = 15.0


@dataclass(frozen=True, slots=True)
class Setting:
    """How a program is started.

    Attributes:
        arguments: of the program.
        ranks: processes under mpirun; None for one without it.
        environment: more variables.
        bind: each rank to a core of its own, where there are enough.
        launcher: what starts the ranks, if it is not mpirun on this machine.
    """

    arguments: tuple[str, ...]
    ranks: int | None
    environment: Mapping[str, str] = field(default_factory=dict)
    bind: bool = True
    launcher: tuple[str, ...] = ()


class Turns(Protocol):
    """Ranks that train in turns.

    Attributes:
        turns_s: per turn the seconds of each step that counts, on the rank that took longest.
        losses: of steps.
    """

    turns_s: list[list[float]]
    losses: list[float]

    def turn(self, steps: int) -> None:
        """Trains for so many steps, and some before them that do not count."""

    def end(self) -> None:
        """Ends for good."""


class Team:
    """The ranks of one program, which do nothing until it is their turn.

    Each rank says in a file that it is ready, or done with a turn (:func:`take_turns`). Between turns the operating
    system holds all ranks, as some have threads that never rest: Horovod's look for work a thousand times a second.
    """

    def __init__(self, module: str, setting: Setting, limit_s: float = 600.0) -> None:
        """Starts the program, and waits until it is ready.

        Args:
            module: what to run; it calls :func:`take_turns`.
            setting: how.
            limit_s: how long its start, or a turn, may take.

        Raises:
            RuntimeError: with what it printed, if it fails or takes too long.
        """
        self._size = setting.ranks or 1
        self._limit_s = limit_s
        self._turns = 0
        self._pids: list[int] = []
        self._folder = tempfile.TemporaryDirectory(prefix="turns-")
        self._path = Path(self._folder.name)
        arguments = [*setting.arguments, "--turns", str(self._path)]
        self._command, environment = command_of(
            module, arguments, setting.ranks, dict(setting.environment), bind=setting.bind, launcher=setting.launcher
        )
        with (self._path / "printed").open("w") as printed:
            self._process = subprocess.Popen(
                self._command,
                env=environment,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=printed,
                stderr=printed,
                start_new_session=True,
            )
        try:
            found = self._answers("ready")
        except BaseException:
            self.end()
            raise
        self._pids = [answer["pid"] for answer in found]
        self.about: dict[str, Any] = found[0]["about"]
        """What rank 0 says of its start."""
        self.losses: list[float] = []
        """Of all steps so far."""
        self.turns_s: list[list[float]] = []
        """Per turn the seconds of each step, on the rank that took longest; the first one is left out."""
        self._signal(signal.SIGSTOP)

    def turn(self, steps: int) -> None:
        """Lets all ranks train for so many steps and one before them, which meets cold caches and is not counted.

        Raises:
            RuntimeError: with what the program printed, if it fails or takes too long.
        """
        _write(self._path / f"turn-{self._turns}", steps + 1)
        self._signal(signal.SIGCONT)
        found = self._answers(f"done-{self._turns}")
        self._signal(signal.SIGSTOP)
        self._turns += 1
        self.losses += found[0]["losses"]
        self.turns_s.append([max(step) for step in zip(*(answer["seconds"][1:] for answer in found), strict=True)])

    def end(self) -> None:
        """Lets the program end, by force if it does not by itself; nothing if it has."""
        if not self._path.exists():
            return
        _write(self._path / f"turn-{self._turns}", 0)
        self._signal(signal.SIGCONT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_GRACE_S)
        if self._process.poll() is None:
            self._process.terminate()  # of mpirun, which ends its ranks
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_GRACE_S)
            self._process.kill()
            self._signal(signal.SIGKILL)
            self._process.wait()
        self._pids = []
        self._folder.cleanup()

    def _answers(self, name: str) -> list[Any]:
        """What all ranks say, once they have."""
        paths = [self._path / f"{name}-{rank}" for rank in range(self._size)]
        deadline = time.monotonic() + self._limit_s
        while not all(path.exists() for path in paths):
            late = time.monotonic() > deadline
            if late or self._process.poll() is not None:
                what = f"took longer than {self._limit_s:g} s" if late else "failed"
                printed = (self._path / "printed").read_text(encoding="utf-8", errors="replace")
                raise RuntimeError(f"{' '.join(self._command)} {what}:\n{printed[-8000:]}")
            time.sleep(_POLL_S)
        return [json.loads(path.read_text(encoding="utf-8")) for path in paths]

    def _signal(self, number: signal.Signals) -> None:
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)


def take_turns(folder: Path, rank: int, about: Mapping[str, Any], train: Callable[[int], dict[str, Any]]) -> None:
    """A rank's side: says that it is ready, and trains when it is asked to, until it is asked to end.

    Args:
        folder: that of ``--turns``.
        rank: this one.
        about: what to say of the start.
        train: takes a number of steps, gives their ``seconds`` and ``losses``.
    """
    _write(folder / f"ready-{rank}", {"pid": os.getpid(), "about": about})
    number = 0
    while True:
        turn = folder / f"turn-{number}"
        while not turn.exists():
            time.sleep(_POLL_S)
            if not folder.exists():
                sys.exit("take_turns: who gave turns is gone")
        steps = json.loads(turn.read_text(encoding="utf-8"))
        if not steps:
            return
        _write(folder / f"done-{number}-{rank}", train(steps))
        number += 1


def _write(path: Path, value: Any) -> None:
    """Whole or not at all: who waits for the file reads it at once."""
    made = path.with_suffix(".new")
    made.write_text(json.dumps(value), encoding="utf-8")
    made.replace(path)
