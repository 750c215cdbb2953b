"""What rank 0 does alone, such as to write a file, while other ranks bring it what is in pieces."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tensoropt.api.functions.values import announced_by, bring_announced
from tensoropt.api.session.job import Job
from tensoropt.exec.engines.watch import current_watch
from tensoropt.stages import working

__all__ = ["alone"]


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
