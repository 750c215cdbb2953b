"""What rank 0 does alone, such as to write a file, while other ranks bring it what is in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensoropt.api.functions.values import announced_by, bring_announced
from tensoropt.api.session.job import Job, current_job
from tensoropt.exec.engines.watch import current_watch
from tensoropt.stages import working

__all__ = ["acting", "alone", "on_rank_0"]

_acting: list[str] = []  # what this rank does alone


def on_rank_0(act: Callable[[], Any]) -> Any:
    """Has rank 0 act alone, such as save a ``tf.train.Checkpoint`` of a function's or Keras model's variables.

    All ranks call it together. Those but rank 0 bring it the values of variables that are stored in pieces, when it
    asks for them, so that few of them are whole at a time. Nothing else that needs all ranks may be called in ``act``.

    Args:
        act: a function without arguments.

    Returns:
        What it returns, on rank 0; None on others.

    Raises:
        SessionError: on a rank that has left the job.
        CollectiveError: if not all ranks are here, or one fails in bringing values.
    """
    job = current_job()
    job.world.require_member("on_rank_0")
    return alone(job, "on_rank_0", act)


def acting() -> str | None:
    """What this rank is doing alone at the moment, if anything."""
    return _acting[-1] if _acting else None


def alone(job: Job, what: str, act: Callable[[], Any], tell: Callable[[], Any] = lambda: None) -> Any:
    """Has rank 0 act, and all ranks bring the values of variables that it asks for meanwhile; collective.

    In what rank 0 does alone already, it acts, and no other rank takes part.

    Args:
        job: of the ranks.
        what: is done, alike on all ranks.
        act: does it.
        tell: gives what others are to be told, once it is done.

    Returns:
        What ``act`` returns, on rank 0; what ``tell`` returns there, on others, and None if ``act`` failed.

    Raises:
        CollectiveError: if not all ranks are here, or one fails in bringing values.
    """
    if not job.world.are_several or _acting:
        return act()
    job.world.meet(what)
    if job.world.rank == 0:
        told = None
        _acting.append(what)
        try:
            with working(what), announced_by(lambda announced: job.world.comm.bcast((announced, None), root=0)):
                result = act()
            told = tell()
            return result
        finally:
            _acting.pop()
            job.world.comm.bcast((None, told), root=0)
    while True:
        with current_watch().waiting(f"{what} on rank 0"):
            announced, told = job.world.comm.bcast(None, root=0)
        if announced is None:
            return told
        bring_announced(announced)
