"""The additive cost of a problem in whole ticks, so that moves change it by what they concern, to the last bit."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.mcmc.integer_sums import Sums
from tensoropt.mcmc.memory_limit import Memory, limited_memory, no_memory
from tensoropt.mcmc.moves import Moves
from tensoropt.mcmc.neighbours import find_regions
from tensoropt.problem.problem import FloatArray, Problem
from tensoropt.space.work import TICKS_PER_S, Ints
from tensoropt.storage.document import quoted

__all__ = ["AdditiveCost", "AdditiveProblem"]

# What takes so many powers of two more than a known strategy may be meant as impossible, and is not told from others.
_CLIPPED_BITS = 16


@dataclass(frozen=True, slots=True)
class AdditiveCost:
    """A cost that is a sum over operators and edges.

    Attributes:
        choices: ``(N,)``, how many configurations each operator has.
        ticks: of configurations and of pairs of them.
    """

    choices: Ints
    ticks: Sums

    def allows(self, assignment: Ints, edges: Ints | None = None) -> bool:
        """Tells whether all edges, or the given ones, allow the configurations of their ends together."""
        return not np.any(self.ticks.of_pairs(assignment, edges) < 0)

    def edges_among(self, operators: NDArray[np.bool_], near: Ints) -> Ints:
        """The edges between some operators of which one end is ``near``, ascending."""
        ends = np.stack([self.ticks.producer, self.ticks.consumer])
        return np.flatnonzero(operators[ends].all(axis=0) & np.isin(ends, near).any(axis=0))


@dataclass(frozen=True, slots=True)
class AdditiveProblem:
    """A problem whose costs are whole ticks, of a unit of its own.

    Where tables have alternatives, each entry has its fastest one. Nodes of one group are one operator.

    Attributes:
        problem: the tables.
        reduced_problem: seconds and bytes of operators and edges, by configurations that are not impossible.
        scale: the cost's seconds for one of the problem, whose unit may be any: a power of two by which whole ticks
            are as fine as they can be.
        cost: of operators, and of pairs of them that have edges.
        operator: ``(N,)``, for each node its operator.
        possible: for each operator the indices of its configurations that are not impossible, which are the cost's.
        picks: for each node and edge the fastest alternative of each of its entries, the first of equal ones.
    """

    problem: Problem
    reduced_problem: Problem
    scale: float
    cost: AdditiveCost
    operator: Ints
    possible: tuple[Ints, ...]
    picks: tuple[Ints, ...]

    @classmethod
    def of(cls, problem: Problem) -> AdditiveProblem:
        """Takes the fastest alternatives of a problem, and its groups as operators.

        Raises:
            InfeasibleError: an operator has no possible configuration.
        """
        groups = np.arange(problem.nodes) if problem.groups is None else problem.groups
        firsts, operator = np.unique(groups, return_inverse=True)
        names = [problem.names[int(np.argmax(operator == number))] for number in range(len(firsts))]
        nodes = [problem.node_tables(node) for node in range(problem.nodes)]
        tables = [problem.edge_tables(edge) for edge in range(len(problem.edges))]
        # What takes infinite memory does not exist either.
        whole = [np.where(np.isinf(memory), np.inf, time) for time, memory in (*nodes, *tables)]
        picks = tuple(np.argmin(time, axis=-1) for time in whole)
        times = [_picked(time, pick) for time, pick in zip(whole, picks, strict=True)]
        memories = [_picked(memory, pick) for (_, memory), pick in zip((*nodes, *tables), picks, strict=True)]
        merged_times, ends, edge_times = _merged(problem, operator, times)
        merged_memories, _, edge_memories = _merged(problem, operator, memories)
        possible = []
        for name, time in zip(names, merged_times, strict=True):
            possible.append(np.flatnonzero(np.isfinite(time)))
            if not len(possible[-1]):
                raise InfeasibleError(
                    f"MCMC: each of the {len(time)} configurations of operator '{name}' has an infinite cost. "
                    "Allow it others."
                )
        between = [np.ix_(possible[one], possible[other]) for one, other in ends]
        reduced = Problem(
            names,
            [time[some] for time, some in zip(merged_times, possible, strict=True)],
            [memory[some] for memory, some in zip(merged_memories, possible, strict=True)],
            np.array(ends, np.int64).reshape(-1, 2),
            [table[some] for table, some in zip(edge_times, between, strict=True)],
            [table[some] for table, some in zip(edge_memories, between, strict=True)],
        )
        scale, most_s = _fine_scale(reduced)
        # What takes very much more than a strategy that is known is hardly in the best one, and may take less for it.
        own, pairs = (
            [_ticks(np.where(np.isfinite(time), np.minimum(time * scale, most_s), np.inf)) for time in tables]
            for tables in (reduced.node_time_s, reduced.edge_time_s)
        )
        choices = np.array([len(ticks) for ticks in own], np.int64)
        cost = AdditiveCost(choices, Sums.of(own, reduced.edges, pairs))
        return cls(problem, reduced, scale, cost, operator.astype(np.int64), tuple(possible), picks)

    def moves(self) -> Moves:
        """Returns the sets of operators that a proposal may change: a single operator, or several near one another."""
        each, own = np.arange(len(self.possible)), [None] * len(self.possible)
        return Moves.of(self.cost.choices, each, own, find_regions(self.reduced_problem, each, own))

    def memory(self, limit_bytes: float | None) -> Memory:
        """The limit, with the memory of the fastest alternatives."""
        if limit_bytes is None:
            return no_memory()
        held = self.reduced_problem
        limit_bytes -= self.problem.constant_memory_bytes
        return limited_memory(held.names, held.node_memory_bytes, held.edges, held.edge_memory_bytes, limit_bytes)

    def original(self, assignment: tuple[int, ...]) -> tuple[tuple[int, ...], Ints]:
        """A strategy of the cost as configuration indices of the problem, and its alternatives."""
        chosen = tuple(int(self.possible[number][assignment[number]]) for number in self.operator.tolist())
        nodes = self.problem.nodes
        alternatives = [int(self.picks[node][chosen[node]]) for node in range(nodes)]
        for edge, (source, target) in enumerate(self.problem.edges.tolist()):
            alternatives.append(int(self.picks[nodes + edge][chosen[source], chosen[target]]))
        return chosen, np.array(alternatives, np.int64)

    def reduced(self, assignment: tuple[int, ...]) -> tuple[int, ...]:
        """A strategy of the problem as one of the cost.

        Raises:
            ProblemError: a configuration is not possible, or those of one group are not the same.
        """
        if len(assignment) != self.problem.nodes:
            raise ProblemError(
                f"MCMC: the initial strategy must have a configuration for each of {self.problem.nodes} operators, got "
                f"{len(assignment)}. Give the indices in the order of names."
            )
        result = [-1] * len(self.possible)
        for node, (index, number) in enumerate(zip(assignment, self.operator.tolist(), strict=True)):
            some = self.possible[number]
            place = int(np.searchsorted(some, index))
            if place == len(some) or some[place] != index:
                raise ProblemError(
                    f"MCMC: the initial strategy has configuration {index} of operator "
                    f"{quoted(self.problem.names[node])}, which is not one of its {len(some)} possible ones. Choose "
                    f"one of {some[:8].tolist()} …."
                )
            if result[number] not in (-1, place):
                raise ProblemError(
                    f"MCMC: the initial strategy has configuration {index} of operator "
                    f"{quoted(self.problem.names[node])}, and {some[result[number]]} of another one of its group. "
                    "Nodes of a group take the same."
                )
            result[number] = place
        return tuple(result)


def _merged(
    problem: Problem, operator: Ints, tables: list[FloatArray]
) -> tuple[list[FloatArray], list[tuple[int, int]], list[FloatArray]]:
    """Tables of nodes and edges added up by operator; an edge goes from the operator of the lower number."""
    owns: dict[int, FloatArray] = {}
    for number, table in zip(operator.tolist(), tables, strict=False):
        owns[number] = owns[number] + table if number in owns else table
    between: dict[tuple[int, int], FloatArray] = {}
    for edge, (source, target) in enumerate(problem.edges.tolist()):
        table = tables[problem.nodes + edge]
        one, other = int(operator[source]), int(operator[target])
        if one == other:
            owns[one] = owns[one] + np.diagonal(table)
            continue
        # Which way an edge goes does not matter.
        if one > other:
            one, other, table = other, one, table.T
        between[one, other] = between[one, other] + table if (one, other) in between else table
    return [owns[number] for number in range(len(owns))], list(between), list(between.values())


def _fine_scale(problem: Problem) -> tuple[float, float]:
    """A power of two for times, by which the longest one of all just fits, or the known strategy takes enough ticks.

    Returns:
        the power, and the most that an operator or an edge may then take: so that sums of all fit 64 bits.
    """
    bits = 60 - (problem.nodes + len(problem.edges)).bit_length()
    most_s = 2.0**bits / TICKS_PER_S
    every = (*problem.node_time_s, *problem.edge_time_s)
    longest_s = max(float(table.max(where=np.isfinite(table), initial=0.0)) for table in every)
    known_s = _known_s(problem)
    exponent = math.frexp(longest_s)[1]
    if math.isfinite(known_s):
        exponent = min(exponent, math.frexp(known_s)[1] + _CLIPPED_BITS)
    return 2.0 ** min(max(math.frexp(most_s)[1] - 1 - exponent, -1000), 1000), most_s


def _known_s(problem: Problem) -> float:
    """The time of a strategy: operator by operator the fastest choice beside those before it.

    Infinite where that leads nowhere.
    """
    before: list[list[tuple[int, FloatArray]]] = [[] for _ in range(problem.nodes)]
    for (start, end), table in zip(problem.edges.tolist(), problem.edge_time_s, strict=True):
        before[end].append((start, table))
    chosen: list[int] = []
    total = 0.0
    for time, edges in zip(problem.node_time_s, before, strict=True):
        cost = time + sum(table[chosen[start]] for start, table in edges)
        chosen.append(int(np.argmin(cost)))
        total += float(cost[chosen[-1]])
    return total


def _ticks(time: FloatArray) -> Ints:
    """Whole ticks of seconds, -1 for what must not be."""
    return np.rint(np.where(np.isfinite(time), time * TICKS_PER_S, -1.0)).astype(np.int64)


def _picked(table: FloatArray, picks: Ints) -> FloatArray:
    return np.take_along_axis(table, picks[..., None], axis=-1)[..., 0]
