"""Functions that are traced and planned only: no ranks, no devices, nothing runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from tensoropt.api.functions.traced_model import Trace, Traceable, TracedModel
from tensoropt.api.session.compare import compare
from tensoropt.api.session.job import Job, job_beside
from tensoropt.api.session.strategy_search import find_frontier, find_strategy
from tensoropt.problem.frontier import Frontier
from tensoropt.search.comparison import Comparison

__all__ = ["Planning"]


class Planning:
    """The counterpart of :class:`~tensoropt.api.functions.program.Program` for planning alone: nothing runs."""

    def __init__(self) -> None:
        """Begins with no trace."""
        self._traced = TracedModel()
        with job_beside() as job:
            self._job: Job = job

    def trace(self, traceable: Traceable) -> Trace:
        """Traces a function of tensors. See :meth:`TracedModel.trace`."""
        with job_beside(self._job) as job, job.world.step(f"tracing {traceable.name}"):
            return self._traced.trace(traceable)

    def pin(self, pins: Callable[[Mapping[str, Any]], Any]) -> None:
        """As :meth:`~tensoropt.api.functions.program.Program.pin`."""
        self._traced.pin(pins)

    def strategy(self, option: Any, arguments: Mapping[str, Any]) -> Any:
        """Returns the plan that ``find_strategy`` finds for the traces."""
        with self._entered():
            return find_strategy(option, **arguments)

    def frontier(self, arguments: Mapping[str, Any]) -> Frontier:
        """Returns the frontier that ``find_frontier`` finds for the traces."""
        with self._entered():
            return find_frontier(**arguments)

    def compare(self, arguments: Mapping[str, Any]) -> Comparison:
        """Returns the comparison that ``compare`` makes for the traces."""
        with self._entered():
            return compare(**arguments)

    @contextlib.contextmanager
    def _entered(self) -> Iterator[None]:
        with job_beside(self._job), self._traced.model.graph.as_default():
            yield
