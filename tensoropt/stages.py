"""The stages of a job as people see them: one line each with its seconds, and a word every few seconds of a long one.

Example::

    with stage("search"):
        doing("pricing 20 operators")  # said while it takes long
        came_to("3 strategies")
    # tensoropt: search: 3 strategies, 1.2 s
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator

from tensoropt.logs import is_speaker, set_up_logging

__all__ = ["announce", "came_to", "counting", "doing", "stage"]

_log = logging.getLogger("tensoropt")
_EVERY_S = 4.0  # nobody should have to look at nothing for more than five

_running: list[_Stage] = []  # the innermost last
_said_s = 0.0  # when something was said last, on the monotonic clock


class _Stage:
    """A part of a job.

    Attributes:
        name: of the stage.
        result: what came of it, for its line.
        detail: what it does now, for what is said while it takes long.
        is_drawn: whether a bar shows that it goes on.
    """

    def __init__(self, name: str) -> None:
        """Begins now."""
        self.name = name
        self.result = ""
        self.detail = ""
        self.is_drawn = False
        self._began_s = time.monotonic()
        self._over = threading.Event()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self._began_s

    def end(self) -> None:
        """Nothing more is said about it."""
        self._over.set()

    def say_that_it_goes_on(self) -> None:
        """Says so whenever nothing was said for some seconds, until the end; in a thread of its own."""
        while not self._over.wait(max(_said_s + _EVERY_S - time.monotonic(), 0.05)):
            if time.monotonic() - _said_s >= _EVERY_S and _running[-1:] == [self] and not self.is_drawn:
                announce(f"{self.name}: {f'{self.detail}, ' if self.detail else ''}{self.seconds:.0f} s so far")


@contextlib.contextmanager
def stage(name: str) -> Iterator[None]:
    """A stage, whose line rank 0 says at its end, at the level ``info``. One that fails has none: its error tells.

    Args:
        name: of the stage.

    Raises:
        SessionError: TENSOROPT_LOG is no level.
    """
    set_up_logging()
    this = _Stage(name)
    _running.append(this)
    if is_speaker() and _log.isEnabledFor(logging.INFO):
        threading.Thread(target=this.say_that_it_goes_on, name=f"tensoropt-{name}", daemon=True).start()
    try:
        yield
    finally:
        this.end()
        _running.remove(this)
    announce(f"{name}: {f'{this.result}, ' if this.result else ''}{this.seconds:.1f} s")


def doing(detail: str) -> None:
    """Says what the running stage, if there is one, does now."""
    if _running:
        _running[-1].detail = detail
    _log.debug("%s", detail)


def came_to(result: str) -> None:
    """Says what came of the running stage, if there is one, for its line."""
    if _running:
        _running[-1].result = result


@contextlib.contextmanager
def counting(total: int, what: str) -> Iterator[Callable[[], None]]:
    """Counts the parts of the running stage: in a bar where the terminal draws, else in what is said while it is long.

    Args:
        total: how many there are.
        what: they are, in the plural.

    Returns:
        To be called after each part.
    """
    of = _running[-1] if _running else _Stage("")
    with _bar(of, total, what) as draw:
        done = 0
        of.detail = f"{done} of {total} {what}"

        def advance() -> None:
            nonlocal done
            done += 1
            of.detail = f"{done} of {total} {what}"
            draw()

        yield advance


@contextlib.contextmanager
def _bar(of: _Stage, total: int, what: str) -> Iterator[Callable[[], None]]:
    if not (is_speaker() and _log.isEnabledFor(logging.INFO)):
        yield lambda: None
        return
    from rich.console import Console
    from rich.progress import Progress

    console = Console(stderr=True)
    if not console.is_interactive:  # a pipe, as under mpirun, a file, or a terminal that cannot draw
        yield lambda: None
        return
    of.is_drawn = True
    try:
        with Progress(console=console, transient=True) as progress:
            task = progress.add_task(f"{of.name}: {what}", total=total)
            yield lambda: progress.advance(task)
    finally:
        of.is_drawn = False


def announce(line: str) -> None:
    """Says a line, by rank 0, at the level ``info``.

    Raises:
        SessionError: TENSOROPT_LOG is no level.
    """
    global _said_s
    set_up_logging()
    _said_s = time.monotonic()
    _log.log(logging.INFO if is_speaker() else logging.DEBUG, "%s", line)
