"""Variables that a script fetches one by one, as it does to save them: the others come with the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tensoropt.exec.program.executor import Executor
from tensoropt.exec.program.fetch import Fetch, groups_read_together
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId

__all__ = ["OneByOne"]

_ALONE = 2
"""So many variables have programs of their own."""


class OneByOne:
    """Fetches of single variables.

    A program takes a quarter of a second to build where a graph is large. Who fetches a third variable by itself is
    likely to fetch all in turn, so others are fetched with it. Who fetches one again may do so after each step.
    """

    def __init__(self, executor: Executor) -> None:
        """Takes the executor of the plan's graph."""
        self._executor = executor
        self._alone: set[TensorId] = set()  # those with programs of their own
        self._brought_for: set[TensorId] = set()  # those with which others were fetched

    def values(self, fetches: Sequence[Fetch]) -> list[Any] | None:
        """The value of a variable that is fetched as one of many; None for all other fetches.

        All ranks must call this with the same fetches, as :meth:`Executor.run`, which it may call.
        """
        fetch = fetches[0] if len(fetches) == 1 else ""
        state, graph = self._executor.state, self._executor.graph
        if isinstance(fetch, str) or not traits(graph[fetch.op]).is_variable:
            return None
        if fetch not in state.fetched:
            if len(self._alone) < _ALONE or fetch in self._brought_for:
                self._alone.add(fetch)
            if fetch in self._alone:
                return None
            self._brought_for.add(fetch)
            names = {op.name for op in graph.variables()} & state.initialized
            groups = groups_read_together(names, lambda name: graph[name].outputs[0].size_bytes)
            together = next(([TensorId(name) for name in group] for group in groups if fetch.op in group), [fetch])
            state.fetched = dict(zip(together, self._executor.run(together), strict=True))
        return [state.fetched.pop(fetch)]
