"""The additive cost of a problem as a task graph: everything runs on one device, one after the other."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.mcmc.memory import Memory, limited_memory, no_memory
from tensoropt.mcmc.network import Network
from tensoropt.search.problem import FloatArray, Problem
from tensoropt.search.stages import TICKS_PER_S, Ints, Route, Signature, Tables, Way, Work

__all__ = ["AdditiveProblem"]


@dataclass(frozen=True, slots=True)
class AdditiveProblem:
    """A problem whose strategies' simulated time is the sum of their costs, to a tick for each.

    Where tables have alternatives, each entry has its fastest one.

    Attributes:
        problem: the tables.
        network: of tasks: one per operator, and one per edge, all on one device.
        possible: for each operator the indices of its configurations that are not impossible, which are the network's.
        picks: for each operator and edge the fastest alternative of each of its entries.
    """

    problem: Problem
    network: Network
    possible: tuple[Ints, ...]
    picks: tuple[Ints, ...]

    @classmethod
    def of(cls, problem: Problem) -> AdditiveProblem:
        """Makes the tasks of a problem.

        Raises:
            ProblemError: the problem ties operators to one another, which change one at a time.
            InfeasibleError: an operator has no possible configuration.
        """
        if problem.groups is not None and len(np.unique(problem.groups)) < problem.nodes:
            raise ProblemError(
                f"MCMC: changes one operator at a time, and this problem ties {problem.nodes} of them into "
                f"{len(np.unique(problem.groups))} groups. Use another search, or a problem without groups."
            )
        nodes = [problem.node_tables(node) for node in range(problem.nodes)]
        tables = [problem.edge_tables(edge) for edge in range(len(problem.edges))]
        # What takes infinite memory does not exist either.
        whole = [np.where(np.isinf(memory), np.inf, time) for time, memory in (*nodes, *tables)]
        picks = tuple(np.argmin(time, axis=-1) for time in whole)
        times = [_picked(time, pick) for time, pick in zip(whole, picks, strict=True)]
        possible = []
        for name, time in zip(problem.names, times[: problem.nodes], strict=True):
            possible.append(np.flatnonzero(np.isfinite(time)))
            if not len(possible[-1]):
                raise InfeasibleError(
                    f"MCMC: each of the {len(time)} configurations of operator '{name}' has an infinite cost. "
                    "Allow it others."
                )
        here = Signature(0)
        forward: list[list[Route]] = [
            [(Work(float(time[index]), here),) for index in some.tolist()]
            for time, some in zip(times, possible, strict=False)
        ]
        rows = [times[problem.nodes + edge] for edge in range(len(problem.edges))]
        # Which way an edge goes does not matter: nothing is ever idle.
        ends = [tuple(sorted(pair)) for pair in problem.edges.tolist()]
        ways = []
        for edge, (source, target) in enumerate(problem.edges.tolist()):
            if source > target:
                rows[edge] = rows[edge].T
            ways.append(Way(edge, *(possible[node] for node in ends[edge])))
        network = Network(
            Tables(
                forward,
                [None] * problem.nodes,
                [(one, other) for one, other in ends],
                ways,
                [None] * len(ends),
                [False] * len(ends),
                [max(table.shape) for table in rows],
            ),
            _Rows(rows),
            (),
            (),
        )
        return cls(problem, network, tuple(possible), picks)

    def memory(self, limit_bytes: float | None) -> Memory:
        """The limit, with the memory of the fastest alternatives."""
        if limit_bytes is None:
            return no_memory()
        problem = self.problem
        nodes = [
            _picked(problem.node_tables(node)[1], self.picks[node])[self.possible[node]]
            for node in range(problem.nodes)
        ]
        edges = []
        for edge, (source, target) in enumerate(problem.edges.tolist()):
            table = _picked(problem.edge_tables(edge)[1], self.picks[problem.nodes + edge])
            edges.append(table[np.ix_(self.possible[source], self.possible[target])])
            if source > target:
                edges[-1] = edges[-1].T
        return limited_memory(problem.names, nodes, np.sort(problem.edges, axis=1), edges, limit_bytes)

    def original(self, assignment: tuple[int, ...]) -> tuple[tuple[int, ...], Ints]:
        """A strategy of the network as configuration indices of the problem, and its alternatives."""
        chosen = tuple(int(some[index]) for some, index in zip(self.possible, assignment, strict=True))
        nodes = self.problem.nodes
        alternatives = [int(self.picks[node][chosen[node]]) for node in range(nodes)]
        for edge, (source, target) in enumerate(self.problem.edges.tolist()):
            alternatives.append(int(self.picks[nodes + edge][chosen[source], chosen[target]]))
        return chosen, np.array(alternatives, np.int64)

    def reduced(self, assignment: tuple[int, ...]) -> tuple[int, ...]:
        """A strategy of the problem as one of the network.

        Raises:
            ProblemError: a configuration is not possible.
        """
        if len(assignment) != len(self.possible):
            raise ProblemError(
                f"MCMC: the initial strategy must have a configuration for each of {len(self.possible)} operators, got "
                f"{len(assignment)}. Give the indices in the order of names."
            )
        result = []
        for node, (index, some) in enumerate(zip(assignment, self.possible, strict=True)):
            place = int(np.searchsorted(some, index))
            if place == len(some) or some[place] != index:
                raise ProblemError(
                    f"MCMC: the initial strategy has configuration {index} of operator '{self.problem.names[node]}', "
                    f"which is not one of its {len(some)} possible ones. Choose one of {some[:8].tolist()} …."
                )
            result.append(place)
        return tuple(result)


class _Rows:
    """Routes that are one task each."""

    def __init__(self, tables: list[FloatArray]) -> None:
        self._tables = tables

    def row(self, table: int, start: int) -> tuple[Ints, Ints, Ints, list[Signature]]:
        """See :class:`tensoropt.search.stages.Routes`."""
        times = self._tables[table]
        lengths = np.zeros(max(times.shape), np.int64)
        if start >= len(times):
            return lengths, lengths[:0], lengths[:0], []
        row = times[start]
        lengths[: len(row)] = np.where(np.isfinite(row), row > 0, -1)
        spent = np.rint(row[np.isfinite(row) & (row > 0)] * TICKS_PER_S).astype(np.int64)
        return lengths, spent, np.zeros(len(spent), np.int64), [Signature(0)]


def _picked(table: FloatArray, picks: Ints) -> FloatArray:
    return np.take_along_axis(table, picks[..., None], axis=-1)[..., 0]
