"""mpi4py's communicator, whose calls the watch knows to be waits for other ranks."""

from __future__ import annotations

import functools
from typing import Any

from tensoropt.exec.engines.watch import current_watch

__all__ = ["watched"]

_BLOCKING = ("Allreduce", "Barrier", "Dup", "Free", "Split", "allgather", "allreduce", "bcast", "gather")
_STARTING = ("Iallreduce", "Ibarrier")


def watched(comm: Any) -> Any:
    """The same communicator, of a class whose collective calls are waits; so are those of its duplicates.

    Parts of it (``Split``) are mpi4py's own: an engine's groups, whose collectives the engine itself reports.
    """
    return _watched_class()(comm)


@functools.cache
def _watched_class() -> Any:
    from mpi4py import MPI

    methods = {name: _blocking(getattr(MPI.Intracomm, name), name) for name in _BLOCKING}
    methods |= {name: _starting(getattr(MPI.Intracomm, name), name) for name in _STARTING}
    return type("WatchedIntracomm", (MPI.Intracomm,), methods)


def _blocking(method: Any, name: str) -> Any:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        with current_watch().calling(name):
            return method(self, *arguments, **named)

    return call


def _starting(method: Any, name: str) -> Any:
    @functools.wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        return _Request(method(self, *arguments, **named), name)

    return call


class _Request:
    """A call under way: who asks again and again whether it is over waits from its start on."""

    def __init__(self, request: Any, name: str) -> None:
        self._request = request
        self._wait = current_watch().calling(name)
        self._wait.__enter__()
        self._is_over = False

    def Test(self) -> bool:
        """Tells whether the request is complete."""
        return self._over(self._request.Test())

    def Wait(self) -> bool:
        """Until it is over."""
        return self._over(self._request.Wait())

    def _over(self, is_over: bool) -> bool:
        if is_over and not self._is_over:
            self._is_over = True
            self._wait.__exit__(None, None, None)
        return bool(is_over)
