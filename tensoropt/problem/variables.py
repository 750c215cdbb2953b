"""A problem over variables: nodes of one group are one, so that every table lies over one variable or two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tensoropt.problem.problem import FloatArray, Problem

__all__ = ["VariableTable", "node_variables", "tables_over_variables"]


class VariableTable(NamedTuple):
    """A node, or an edge, of a problem.

    Attributes:
        scope: its variables, ascending, so that parallel edges meet however they point.
        form: ``node``; or of an edge whether both ends are one variable (``within``), or how they are ordered in it
            (``forward``, ``backward``).
        time_s: as the problem has it.
        memory_bytes: as the problem has it.
    """

    scope: tuple[int, ...]
    form: str
    time_s: FloatArray
    memory_bytes: FloatArray

    def over_variables(self) -> tuple[FloatArray, FloatArray]:
        """Time and memory with an axis for each variable, and behind them one for alternatives, if there are any."""
        time, memory = self.time_s, self.memory_bytes
        if self.form == "within":
            diagonal = np.arange(time.shape[0])
            return time[diagonal, diagonal], memory[diagonal, diagonal]
        return (time.swapaxes(0, 1), memory.swapaxes(0, 1)) if self.form == "backward" else (time, memory)


def node_variables(problem: Problem) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """The variable of each node, and the nodes of each variable; these are in the order of their first nodes."""
    groups = range(problem.nodes) if problem.groups is None else problem.groups.tolist()
    members: dict[int, list[int]] = {}
    for node, group in enumerate(groups):
        members.setdefault(group, []).append(node)
    number = {group: v for v, group in enumerate(members)}
    return tuple(number[group] for group in groups), tuple(map(tuple, members.values()))


def tables_over_variables(problem: Problem, variable: tuple[int, ...]) -> Iterator[VariableTable]:
    """All nodes, then all edges."""
    for v, time_s, memory_bytes in zip(variable, problem.node_time_s, problem.node_memory_bytes, strict=True):
        yield VariableTable((v,), "node", time_s, memory_bytes)
    tables = zip(problem.edges.tolist(), problem.edge_time_s, problem.edge_memory_bytes, strict=True)
    for (start, end), time_s, memory_bytes in tables:
        u, v = variable[start], variable[end]
        form = "within" if u == v else "forward" if u < v else "backward"
        yield VariableTable(tuple(sorted({u, v})), form, time_s, memory_bytes)
