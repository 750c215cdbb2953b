"""`TimeTables`: the times of a problem as tables over variables, and the one step of the recurrence on them."""

from __future__ import annotations

import functools
import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import NoReturn

import numpy as np

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.problem.problem import FloatArray, IntArray, Problem, same_memory
from tensoropt.problem.variables import VariableTable, node_variables, tables_over_variables
from tensoropt.storage.document import quoted

__all__ = ["MAX_TABLE_ENTRIES", "Decision", "TimeTables"]

MAX_TABLE_ENTRIES = 1 << 26
"""The largest table that is made: half a gigabyte."""

_AT_ONCE = 1 << 15
"""Candidates that are made at once: a quarter of a megabyte, which stays in a core's cache."""

_MOST_AT_ONCE = 1 << 24
"""Entries of a sum of tables that is made as a whole: 128 megabytes."""

_SHARED_FROM = 20_000_000
"""Candidates from which threads share the work: some milliseconds."""

Scope = tuple[int, ...]


@dataclass(frozen=True, slots=True, eq=False)
class Decision:
    """The tables on which one vertex's configuration depends, to choose it once its dependent set is decided.

    Attributes:
        variable: the vertex.
        scopes: of the tables that the recurrence added there.
        tables: these tables, one axis per variable of the scope.
        configurations: for every variable in them the configuration of each index.
    """

    variable: int
    scopes: tuple[Scope, ...]
    tables: tuple[FloatArray, ...]
    configurations: Mapping[int, IntArray]

    def best(self, chosen: Mapping[int, int]) -> int:
        """The configuration of least time, of equal ones the first."""
        total = np.zeros(len(self.configurations[self.variable]))
        for scope, table in zip(self.scopes, self.tables, strict=True):
            where = tuple(
                slice(None) if w == self.variable else int(np.searchsorted(self.configurations[w], chosen[w]))
                for w in scope
            )
            total += table[where]
        return int(self.configurations[self.variable][total.argmin()])


class TimeTables:
    """Tables of times over variables, at most one per set of variables; their sum is the time of a strategy.

    A variable is a node, or all nodes of one group. Tables that are equal because layers repeat are one object, and are
    worked on once.

    Attributes:
        names: per variable, its nodes' names.
        configurations: per variable, the configurations that its tables' indices stand for, ascending.
        unit_s: a power of two of which all times are multiples; 0.0 if all are zero.
        factors: the tables by their scope, ascending variables; seconds.
    """

    def __init__(
        self,
        names: tuple[tuple[str, ...], ...],
        configurations: list[IntArray],
        unit_s: float,
        memo: dict[object, object],
    ) -> None:
        self.names = names
        self.configurations = configurations
        self.unit_s = unit_s
        self.factors: dict[Scope, FloatArray] = {}
        self._at: list[dict[Scope, None]] = [{} for _ in names]
        # Results by what they were made of, which is held with them: no other array has its id meanwhile.
        self._memo = memo

    @classmethod
    def of(cls, problem: Problem) -> tuple[TimeTables, tuple[int, ...]]:
        """The tables of a problem, and for each node its variable."""
        variable, members = node_variables(problem)
        made = cls(
            tuple(tuple(problem.names[i] for i in nodes) for nodes in members),
            [np.arange(problem.configurations(nodes[0])) for nodes in members],
            problem.time_unit_s,
            {},
        )
        for table in tables_over_variables(problem, variable):
            made._take(table)
        return made, variable

    @property
    def sizes(self) -> list[int]:
        """The number of configurations of each variable."""
        return [len(several) for several in self.configurations]

    def neighbours(self) -> tuple[frozenset[int], ...]:
        """Per variable the others that it has a table with."""
        return tuple(frozenset(w for scope in self._at[v] for w in scope if w != v) for v in range(len(self.names)))

    def add(self, scope: Scope, table: FloatArray) -> None:
        """Adds a table."""
        before = self.factors.get(scope)
        if before is None:
            self.factors[scope] = table
            for v in scope:
                self._at[v][scope] = None
        else:
            self.factors[scope] = self._once(("sum", id(before), id(table)), (before, table), lambda: before + table)

    def restricted(self, kept: Mapping[int, IntArray]) -> TimeTables:
        """The tables over some indices only of the variables that ``kept`` has, without those of one configuration.

        A variable that is left with one joins no others: the tables it had with them are theirs.

        Raises:
            InfeasibleError: the configurations that variables are left with exclude one another.
        """
        configurations = [c[kept[v]] if v in kept else c for v, c in enumerate(self.configurations)]
        other = TimeTables(self.names, configurations, self.unit_s, self._memo)
        whole = {v: len(kept[v]) == len(self.configurations[v]) for v in kept}
        for scope, table in self.factors.items():
            left = tuple(v for v in scope if len(configurations[v]) > 1)
            if left == scope and all(whole.get(v, True) for v in scope):
                other.add(scope, table)
                continue
            rows = [kept[v] if v in kept else np.arange(len(self.configurations[v])) for v in scope]
            shape = tuple(len(configurations[v]) for v in left)
            key = ("part", id(table), *(part.tobytes() for part in rows))
            part = self._once(key, (table,), functools.partial(_part, table, rows, shape))
            if not left and np.isinf(part):
                self._raise_impossible(scope[0], scope[1:])
            other.add(left, part)
        return other

    def around(self, variable: int) -> list[int]:
        """The other variables, of more than one configuration, that its tables have; ascending."""
        others = {w for scope in self._at[variable] for w in scope if w != variable}
        return sorted(w for w in others if len(self.configurations[w]) > 1)

    def check_entries(self, variable: int, dependent_set: Sequence[int]) -> None:
        """Checks that the table which deciding a variable makes is not too large.

        Raises:
            ProblemError: it would have more than `MAX_TABLE_ENTRIES`.
        """
        kept = [w for w in dependent_set if len(self.configurations[w]) > 1]
        shape = self._shape(kept)
        entries = math.prod(shape)
        if entries > MAX_TABLE_ENTRIES:
            names = ", ".join(quoted(self.names[w][0]) for w in kept)
            raise ProblemError(
                f"find_best_strategy: a table may have at most {MAX_TABLE_ENTRIES} entries, but that of "
                f"{quoted(self.names[variable][0])} would have {' × '.join(map(str, shape))} = {entries}, one axis for "
                f"each of its dependent set ({names}). Use order='generate_seq', fewer configurations, or groups of "
                "nodes that take the same one."
            )

    def _shape(self, scope: Sequence[int]) -> tuple[int, ...]:
        return tuple(len(self.configurations[w]) for w in scope)

    def decide(self, variable: int) -> Decision:
        """One step of the recurrence (PaSE, Eq. 4): replaces a variable's tables by the least of their sums.

        Raises:
            ProblemError: as `check_entries`.
            InfeasibleError: no combination of configurations is possible.
        """
        scopes = sorted(self._at[variable])
        tables = tuple(self.factors.pop(scope) for scope in scopes)
        kept = self.around(variable)
        for scope in scopes:
            for v in scope:
                del self._at[v][scope]
        result = self._least(variable, scopes, tables, kept)
        if not np.isfinite(result).any():
            self._raise_impossible(variable, sorted({v for scope in scopes for v in scope if v != variable}))
        self.add(tuple(kept), result)
        mentioned = {v: self.configurations[v] for scope in scopes for v in scope}
        mentioned[variable] = self.configurations[variable]
        return Decision(variable, tuple(scopes), tables, mentioned)

    def _raise_impossible(self, variable: int, others: Sequence[int]) -> NoReturn:
        beside = ", ".join(quoted(name) for v in others for name in self.names[v])
        raise InfeasibleError(
            f"Problem node {', '.join(map(quoted, self.names[variable]))}: must have a configuration of finite "
            f"time beside those of {beside or 'the nodes before it'}, but every combination is impossible. Allow "
            "more configurations there."
        )

    def _least(
        self, variable: int, scopes: Sequence[Scope], tables: Sequence[FloatArray], kept: Sequence[int]
    ) -> FloatArray:
        self.check_entries(variable, kept)
        shape = self._shape(kept)
        axis = {w: i for i, w in enumerate(kept, 1)} | {variable: 0}
        patterns = tuple(tuple(axis.get(w, -1) for w in scope) for scope in scopes)
        size = len(self.configurations[variable])
        key = ("least", size, shape, patterns, *map(id, tables))
        return self._once(key, tables, lambda: _least_sum(size, shape, patterns, tables))

    def _once(self, key: object, inputs: Sequence[FloatArray], make: Callable[[], FloatArray]) -> FloatArray:
        known = self._memo.get(key)
        if known is None:
            known = self._memo[key] = (make(), inputs)
        result: FloatArray = known[0]  # type: ignore[index]
        return result

    def _take(self, table: VariableTable) -> None:
        """Adds a table of the problem: the least time of its alternatives."""
        given = (table.time_s, table.memory_bytes)
        key = (table.form, *map(same_memory, given))
        self.add(table.scope, self._once(key, given, lambda: _taken(table)))


def _part(table: FloatArray, rows: Sequence[IntArray], shape: tuple[int, ...]) -> FloatArray:
    return np.ascontiguousarray(table[np.ix_(*rows)].reshape(shape))


def _taken(table: VariableTable) -> FloatArray:
    """The table over variables: the least of its alternatives."""
    return np.ascontiguousarray(least_alternative(*table.over_variables(), len(table.scope)))


def least_alternative(time_s: FloatArray, memory_bytes: FloatArray, axes: int) -> FloatArray:
    """The time of the fastest alternative that exists; +inf where none does."""
    free = not any(memory_bytes.strides)  # a broadcast zero
    if time_s.ndim == axes:
        return time_s if free else np.where(np.isinf(memory_bytes), np.inf, time_s)
    least = np.full(time_s.shape[:axes], np.inf)
    for p in range(time_s.shape[axes]):
        one = time_s[..., p] if free else np.where(np.isinf(memory_bytes[..., p]), np.inf, time_s[..., p])
        np.minimum(least, one, out=least)
    return least


def _least_sum(
    size: int, shape: tuple[int, ...], patterns: Sequence[tuple[int, ...]], tables: Sequence[FloatArray]
) -> FloatArray:
    """``min over k of the sum of tables``, each with axes where its pattern says; *k* is axis 0.

    Args:
        size: how many *k* there are.
        shape: of the result: axes 1, 2, ….
        patterns: for each axis of each table, which axis it is; -1 for one of length 1 that has none.
        tables: to be added.

    Complexity: O(size · entries of the result).
    """
    if not tables:
        return np.zeros(shape)
    whole = []
    for pattern, table in zip(patterns, tables, strict=True):
        table = table.reshape([n for n, axis in zip(table.shape, pattern, strict=True) if axis >= 0])
        axes = [axis for axis in pattern if axis >= 0]
        table = table.transpose(np.argsort(axes))
        lengths = dict(zip(sorted(axes), table.shape, strict=True))
        whole.append(table.reshape([lengths.get(axis, 1) for axis in range(len(shape) + 1)]))
    return _least_of(_absorbed(sorted(whole, key=lambda table: table.size)), shape)


def _least_of(tables: list[FloatArray], shape: tuple[int, ...]) -> FloatArray:
    """``min`` over axis 0 of the sum of tables, whose other axes are those of the result or of length 1."""
    size = max(len(table) for table in tables)
    if size * math.prod(shape) <= _AT_ONCE or len(tables) == 1:
        total = tables[0]
        for table in tables[1:]:
            total = total + table
        return np.asarray(np.broadcast_to(total, (size, *shape)).min(axis=0))
    tables = sorted(tables, key=lambda table: table.size)
    while len(tables) > 2:
        entries = math.prod(max(n, m) for n, m in zip(tables[0].shape, tables[1].shape, strict=True))
        if entries > _MOST_AT_ONCE and max(shape) > 1:
            # One part of the result after the other, along its longest axis.
            axis = int(np.argmax(shape))
            result = np.empty(shape)
            for i in range(shape[axis]):
                cut = [table if table.shape[axis + 1] == 1 else table.take([i], axis + 1) for table in tables]
                part = _least_of(_absorbed(cut), (*shape[:axis], 1, *shape[axis + 1 :]))
                result[(slice(None),) * axis + (i,)] = part.squeeze(axis)
            return result
        tables[:2] = [tables[0] + tables[1]]
        tables.sort(key=lambda table: table.size)
    return _least_of_two(tables[0], tables[1], shape)


def _absorbed(tables: list[FloatArray]) -> list[FloatArray]:
    """Adds each table to the next larger one that has all of its axes: what remains is added for each entry."""
    left: list[FloatArray] = []
    tables = list(tables)
    while tables:
        table = tables.pop(0)
        for i, larger in enumerate(tables):
            if all(n in (1, m) for n, m in zip(table.shape, larger.shape, strict=True)):
                tables[i] = larger + table
                break
        else:
            left.append(table)
    return left


def _least_of_two(left: FloatArray, right: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """The least over axis 0 of the sum of two tables."""
    # Axes that both have, then those of the left table alone, then those of the right one alone.
    kinds = [2 if n == 1 else 1 if m == 1 else 0 for n, m in zip(left.shape[1:], right.shape[1:], strict=True)]
    order = np.argsort(kinds, kind="stable")
    lengths = [math.prod(n for n, kind in zip(shape, kinds, strict=True) if kind == which) for which in range(3)]
    both = sum(kind == 0 for kind in kinds)
    sides = []
    for table, alone in ((left, lengths[1]), (right, lengths[2])):
        table = table.transpose([*(order[:both] + 1), 0, *(order[both:] + 1)])
        sides.append(np.ascontiguousarray(table).reshape(lengths[0], -1, alone))
    flat = least_of_sums(*sides)
    return flat.reshape([shape[axis] for axis in order]).transpose(np.argsort(order))


def least_of_sums(left: FloatArray, right: FloatArray) -> FloatArray:
    """``min over k of left[s, k, i] + right[s, k, j]`` for all *s*, *i* and *j*."""
    # Imported here because it takes Numba.
    from tensoropt.pase import kernels

    several, _, rows = left.shape
    result = np.empty((several, rows, right.shape[2]))
    threads = os.cpu_count() or 1
    if threads == 1 or left.size * right.shape[2] < _SHARED_FROM:
        kernels.least_of_sums(left, right, result, 0, several * rows)
        return result
    cuts = np.linspace(0, several * rows, threads + 1).astype(int).tolist()
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(lambda ends: kernels.least_of_sums(left, right, result, *ends), itertools.pairwise(cuts)))
    return result
