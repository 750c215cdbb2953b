"""What rank 0 does alone, such as to write a file, while other ranks bring it what is in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensoropt.api.functions.values import announced_by, bring_announced
from tensoropt.api.session.job import Job, current_job
from tensoropt.exec.engines.watch import current_watch
from tensoropt.stages import working

__all__ = ["alone", "on_rank_0"]


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
    job.require_member("on_rank_0")
    return alone(job, "on_rank_0", act)


def alone(job: Job, what: str, act: Callable[[], Any]) -> Any:
    """Has rank 0 act, and all ranks bring the values of variables that it asks for meanwhile; collective.

    Returns:
        What ``act`` returns, on rank 0.

    Raises:
        CollectiveError: if not all ranks are here, or one fails in bringing values.
    """
    if job.guard is None or job.size == 1:
        return act()
    job.guard.meet(what)
    if job.rank == 0:
        try:
            with working(what), announced_by(lambda announced: job.comm.bcast(announced, root=0)):
                return act()
        finally:
            job.comm.bcast(None, root=0)
    while True:
        with current_watch().waiting(f"{what} on rank 0"):
            announced = job.comm.bcast(None, root=0)
        if announced is None:
            return None
        bring_announced(announced)
