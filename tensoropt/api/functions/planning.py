"""Functions that are traced and planned: no ranks, no devices, nothing runs."""

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
from tensoropt.terms import ARGUMENTS, Terms

__all__ = ["Planning"]


class Planning:
    """Traces that are planned together: one model. :class:`~tensoropt.api.functions.program.Program` also runs them."""

    def __init__(self, named: Callable[[Any], str | None] = lambda variable: None, terms: Terms = ARGUMENTS) -> None:
        """Begins with no trace; see :class:`TracedModel`."""
        self._traced = TracedModel(named, terms)
        with job_beside() as job:
            self._job: Job = job

    def trace(self, traceable: Traceable) -> Trace:
        """Traces a function of tensors; collective. See :meth:`TracedModel.trace`."""
        with job_beside(self._job) as job, job.world.step(f"tracing {traceable.name}"):
            return self._traced.trace(traceable)

    def pin(self, pins: Callable[[Mapping[str, Any]], Any]) -> None:
        """As :meth:`TracedModel.pin`."""
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
    def _entered(self) -> Iterator[Job]:
        with job_beside(self._job) as job, self._traced.model.graph.as_default():
            yield job
