"""A rehearsal: a script runs up to its first training step, for its plan or for what is made of that or the model.

On a cluster that is described, the job starts no MPI: its ranks are that cluster's devices, this process is the first
of them, and all have what it has. Where the job would make an executor, :class:`Reached` ends the script.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import numpy as np

    from tensoropt.api.find.planner import Planner
    from tensoropt.cluster import Topology
    from tensoropt.plan.plan import Plan

__all__ = ["DescribedRanks", "Reached", "Rehearsal"]

_Value = TypeVar("_Value")


class Reached(BaseException):
    """The script came to where its rehearsal ends. No :class:`Exception`, which a script may catch.

    Attributes:
        result: the plan, or what was made of the model instead.
    """

    def __init__(self, result: Any) -> None:
        """Takes the result."""
        super().__init__("the rehearsal has come to its end")
        self.result = result


@dataclass(slots=True)
class Rehearsal:
    """A rehearsal of a script: it replaces parts of the script's job, and ends with a result.

    Attributes:
        topology: the cluster that the job is to have, whatever the script says to ``init``; None starts MPI.
        instead: makes the result of the model, the cluster and the number of micro-batches where the script would
            search; None lets the script search.
        after: makes the result of the plan, where devices are needed; None ends with the plan.
        option: of ``find_strategy``, in the place of the script's.
        memory_bytes: of ``find_strategy``, in the place of the script's.
        search: of ``find_strategy``, in the place of the script's.
        steps: ``micro_batches`` and ``recompute`` of ``find_strategy``, in the place of the script's where not None.
        batch_size: of ``find_strategy``, where the script leaves sizes open.
        shares: whether arrays of open sizes that the script feeds are a rank's share of the batch, where nothing else
            says so.
        reached: the rehearsal's end, once the script has reached it; a script that goes on reaches it again.
    """

    topology: Topology | None
    instead: Callable[[Planner, Topology, int | str], Any] | None = None
    after: Callable[[Plan], Any] | None = None
    option: Any = None
    memory_bytes: float | None = None
    search: Any = None
    steps: tuple[int | str | None, bool | None] = (None, None)
    batch_size: int | None = None
    shares: bool = False
    reached: Reached | None = None
    _is_made: bool = False  # the result, now

    def asked(self, option: Any, memory_bytes: Any, search: Any, batch_size: Any) -> tuple[Any, Any, Any, Any]:
        """Returns the arguments for ``find_strategy``, given those of the script."""
        if self.instead is not None:
            option, search = "mini_time", "ft"  # there is no search, which a plan or a point would be checked for
        return (
            option if self.option is None else self.option,
            memory_bytes if self.memory_bytes is None else self.memory_bytes,
            search if self.search is None else self.search,
            batch_size if self.batch_size is None else self.batch_size,
        )

    def asked_steps(self, micro_batches: int | str, recompute: bool) -> tuple[int | str, bool]:
        """Returns the micro-batches and the recomputation to plan for, given those of the script."""
        times, again = self.steps
        return micro_batches if times is None else times, recompute if again is None else again

    def end_at_search(self, planner: Planner, topology: Topology, micro_batches: int | str) -> None:
        """Ends the script where it would search, if the rehearsal is for something else than its plan.

        Args:
            planner: of the model, in as many micro-batches; in whole batches where ``auto`` leaves the number open.
            topology: the cluster.
            micro_batches: that are asked for.

        Raises:
            Reached: with what was made.
        """
        instead = self.instead
        if instead is not None:
            self._end(lambda: instead(planner, topology, micro_batches))

    def end(self, plan: Plan) -> None:
        """Ends the script where devices are needed; what is made of the plan then may use them.

        Raises:
            Reached: with the plan, or what was made of it.
        """
        after = self.after
        self._end(lambda: plan if after is None else after(plan))

    def _end(self, make: Callable[[], Any]) -> None:
        if self._is_made:
            return
        if self.reached is None:
            self._is_made = True
            try:
                self.reached = Reached(make())
            finally:
                self._is_made = False
        raise self.reached


class DescribedRanks:
    """In the place of a communicator: ranks of which all have what the first, this process, has."""

    rank = 0

    def __init__(self, size: int) -> None:
        """Takes their number."""
        self.size = size

    def allgather(self, value: _Value) -> list[_Value]:
        """Every rank's value."""
        return [value] * self.size

    def bcast(self, value: _Value, root: int = 0) -> _Value:
        """The root's value."""
        del root
        return value

    def Allgather(self, mine: np.ndarray, everybodys: np.ndarray) -> None:
        """Every rank's array, a row each."""
        everybodys[:] = mine
