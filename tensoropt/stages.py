"""The stages of a job: people see one line for each, with its seconds, and progress every few seconds of a long one.

A listener may pass the current stage on, for example to ranks that wait for this process (``exec/engines/watch.py``).

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
from typing import TypeVar

from tensoropt.logs import is_speaker, set_up_logging

__all__ = ["Work", "announce", "came_to", "counting", "doing", "listen", "stage", "working"]

_log = logging.getLogger("tensoropt")
_EVERY_S = 4.0  # nobody should have to look at nothing for more than five
_SOON_S = 1.0  # of a stage that is younger there is nothing to say, however long all was silent before

_running: list[Work] = []  # the innermost last
_listener: Callable[[Work | None], None] | None = None
_said_s = 0.0  # when something was said last, on the monotonic clock


class Work:
    """A part of a job.

    Attributes:
        what: it is.
        began_s: when, on the monotonic clock.
        detail: what it does now.
    """

    def __init__(self, what: str) -> None:
        """Begins now."""
        self.what = what
        self.began_s = time.monotonic()
        self.detail = ""

    def __str__(self) -> str:
        return f"{self.what}: {self.detail}" if self.detail else self.what


class _Stage(Work):
    """A part that has a line.

    Attributes:
        name: of the stage, in its line.
        result: what came of it, for its line.
        is_drawn: whether a bar shows that it goes on.
    """

    def __init__(self, name: str, what: str) -> None:
        """Begins now."""
        super().__init__(what)
        self.name = name
        self.result = ""
        self.is_drawn = False
        self._over = threading.Event()

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began_s

    def end(self) -> None:
        """Nothing more is said about it."""
        self._over.set()

    def say_that_it_goes_on(self) -> None:
        """Says so whenever nothing was said for some seconds, until the end; in a thread of its own."""
        while not self._over.wait(max(_said_s + _EVERY_S - time.monotonic(), _SOON_S - self.seconds, 0.05)):
            if time.monotonic() - _said_s >= _EVERY_S and _innermost(_Stage) is self and not self.is_drawn:
                announce(f"{self.name}: {f'{self.detail}, ' if self.detail else ''}{self.seconds:.0f} s so far")


def listen(listener: Callable[[Work | None], None] | None) -> None:
    """Sets the function that is called with this process's innermost work whenever that changes.

    It replaces the listener before. It is called at once with the work that goes on now, if any, and with None when no
    work goes on any more.
    """
    global _listener
    _listener = listener
    if _running:
        _tell()


def _tell() -> None:
    if _listener is not None:
        _listener(_running[-1] if _running else None)


_Kind = TypeVar("_Kind", bound=Work)


def _innermost(kind: type[_Kind]) -> _Kind | None:
    # A copy, as the thread of a stage asks, too.
    return next((work for work in reversed(_running.copy()) if isinstance(work, kind)), None)


@contextlib.contextmanager
def _run(work: Work) -> Iterator[None]:
    _running.append(work)
    _tell()
    try:
        yield
    finally:
        _running.remove(work)
        _tell()


def working(what: str) -> contextlib.AbstractContextManager[None]:
    """This process does its own part of something inside the block, for which others may have to wait long."""
    return _run(Work(what))


@contextlib.contextmanager
def stage(name: str, what: str | None = None, *, if_long: bool = False) -> Iterator[None]:
    """A stage, whose line rank 0 says at its end, at the level ``info``. One that fails has none: its error tells.

    Inside, this process is at work, as inside :func:`working`.

    Args:
        name: of the stage.
        what: it is to those who wait for it; by default its name.
        if_long: a stage that is over before a word was said of it has no line.

    Raises:
        SessionError: TENSOROPT_LOG is no level.
    """
    set_up_logging()
    this = _Stage(name, name if what is None else what)
    if is_speaker() and _log.isEnabledFor(logging.INFO):
        threading.Thread(target=this.say_that_it_goes_on, name=f"tensoropt-{name}", daemon=True).start()
    try:
        with _run(this):
            yield
    finally:
        this.end()
    if if_long and this.seconds < _EVERY_S:
        return
    announce(f"{name}: {f'{this.result}, ' if this.result else ''}{this.seconds:.1f} s")


def doing(detail: str) -> None:
    """Says what this process does now: to people of the running stage, to listeners of the innermost work."""
    _set_detail(detail)
    _log.debug("%s", detail)


def _set_detail(detail: str) -> None:
    of_people = _innermost(_Stage)
    if of_people is not None:
        of_people.detail = detail
    if _running:
        _running[-1].detail = detail
        _tell()


def came_to(result: str) -> None:
    """Says what came of the running stage, if there is one, for its line."""
    of = _innermost(_Stage)
    if of is not None:
        of.result = result


@contextlib.contextmanager
def counting(total: int, what: str) -> Iterator[Callable[[], None]]:
    """Counts the parts of the running stage: in a bar where the terminal draws, else in what is said while it is long.

    Args:
        total: how many there are.
        what: they are, in the plural.

    Returns:
        To be called after each part.
    """
    with _bar(_innermost(_Stage), total, what) as draw:
        done = 0
        _set_detail(f"{done} of {total} {what}")

        def advance() -> None:
            nonlocal done
            done += 1
            _set_detail(f"{done} of {total} {what}")
            draw()

        yield advance


@contextlib.contextmanager
def _bar(of: _Stage | None, total: int, what: str) -> Iterator[Callable[[], None]]:
    if of is None or not (is_speaker() and _log.isEnabledFor(logging.INFO)):
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
