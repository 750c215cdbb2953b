"""Actions of rank 0 alone, such as writing a file, while other ranks send it the pieces of variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensoropt.api.functions.values import announced_by, bring_announced
from tensoropt.api.session.job import Job, asked_ranks, current_job
from tensoropt.exec.engines.watch import current_watch
from tensoropt.stages import working

__all__ = ["acting", "alone", "on_rank_0"]

_acting: list[str] = []  # what this rank does alone


def on_rank_0(act: Callable[[], Any]) -> Any:
    """Makes rank 0 act alone, such as save a ``tf.train.Checkpoint`` of a function's or Keras model's variables.

    All ranks call it together. Ranks other than 0 send rank 0 the values of variables that are stored in pieces,
    whenever it asks for them, so that few variables are whole at a time. ``act`` must not call anything else that needs
    all ranks.

    Args:
        act: a function without arguments.

    Returns:
        The result of ``act``, on rank 0; None on others.

    Raises:
        SessionError: on a rank that has left the job.
        CollectiveError: if not all ranks are here, or one fails in sending values.
    """
    job = current_job()
    asked_ranks().require_member("on_rank_0")
    return alone(job, "on_rank_0", act)


def acting() -> str | None:
    """Returns the name of the action that this rank performs alone at the moment, or None."""
    return _acting[-1] if _acting else None


def alone(job: Job, what: str, act: Callable[[], Any], tell: Callable[[], Any] = lambda: None) -> Any:
    """Makes rank 0 act, while all ranks send it the values of variables that it asks for; collective.

    Within such an action of rank 0, rank 0 acts at once, and no other rank takes part.

    Args:
        job: of the ranks.
        what: the name of the action, alike on all ranks.
        act: performs the action.
        tell: gives what other ranks are to be told once the action is done.

    Returns:
        On rank 0, the result of ``act``; on others, the result of rank 0's ``tell``, and None if ``act`` failed.

    Raises:
        CollectiveError: if not all ranks are here, or one fails in sending values.
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
