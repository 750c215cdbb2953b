"""Configurations that another one can stand in for, whatever the rest of the graph does.

Going from configuration *j* of a variable to *k* changes each table around it by at most its worst difference. If these
add up to <= 0 for time and for memory, every strategy with *j* is matched by the one with *k* instead.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tensoropt.problem.frontier_tables import FrontierTable
from tensoropt.problem.problem import FloatArray, IntArray

__all__ = ["drop_dominated"]

_VISITS = 4
"""How often a variable's configurations are compared again after a neighbour lost some. Later visits find
little."""

_SAMPLE = 5
"""Columns in which configurations are compared at first."""

_SEEN_ROWS = 128
"""Tables of more configurations are compared again each time, rather than that all comparisons are held."""

_ALL = 1 << 62

Wanted = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class _Side:
    """A table seen from one of its variables: a row per configuration, a column per configuration of the other one.

    Attributes:
        table: over one or two variables.
        cells: ``(rows, columns)``, the table's.
    """

    table: FrontierTable
    cells: IntArray

    @classmethod
    def of(cls, table: FrontierTable, first: bool) -> _Side:
        """Makes the side of the table's first variable, or of its second one."""
        cells = np.arange(table.cells).reshape(table.shape[0], -1)
        return cls(table, cells if first else np.ascontiguousarray(cells.T))

    @property
    def size(self) -> int:
        """The number of rows."""
        return len(self.cells)

    def differences(self, rows: IntArray, columns: IntArray, wanted: Wanted, sample: int) -> FloatArray:
        """Returns by how much row *k* exceeds row *j* at most, in time and in memory.

        Each point of row *j* is compared with the largest point of row *k* that is no larger.

        Args:
            rows: that are compared.
            columns: in which; the only one of a table of one variable.
            wanted: ``(rows, rows)``, which pairs *k*, *j* to compare.
            sample: look at so many columns only, spread evenly: results are then at most the true ones.

        Returns:
            ``(2, rows, rows)``, of time and of memory; +inf where *k* is impossible beside something that *j* is
            possible beside, 0.0 where not wanted.
        """
        from tensoropt.ft.kernels import worst_points

        found = np.zeros((2, len(rows), len(rows)))
        costs = self.table.offsets, self.table.time_s, self.table.memory_bytes
        worst_points(*costs, self.cells, rows, columns, wanted, sample, *found)
        return found


_ONLY = np.zeros(1, np.int64)
"""The column of a table of one variable."""


def drop_dominated(alive: dict[int, IntArray], tables: Sequence[tuple[tuple[int, ...], FrontierTable]]) -> None:
    """Drops configurations for which another is at least as good in both costs, beside anything; of equals all but one.

    Args:
        alive: per variable its configurations, ascending; is changed.
        tables: the variables, one or two, and frontiers of each table. Equal ones should be one object.
    """
    of: dict[int, list[tuple[tuple[int, ...], FrontierTable]]] = {v: [] for v in alive}
    for scope, table in tables:
        for v in scope:
            of[v].append((scope, table))
    comparison = _Comparison()
    made: dict[tuple[int, bool], _Side] = {}
    done: dict[tuple[object, ...], IntArray] = {}
    queue = deque(alive)
    waiting, visits = dict.fromkeys(alive, True), dict.fromkeys(alive, 0)
    while queue:
        v = queue.popleft()
        waiting[v] = False
        visits[v] += 1
        rows = alive[v]
        if len(rows) == 1:
            continue
        around: dict[tuple[object, ...], _Around] = {}
        for scope, table in of[v]:
            first = scope[0] == v
            columns = _ONLY if len(scope) == 1 else alive[scope[1 if first else 0]]
            key = (id(table), first, columns.tobytes())
            known = around.get(key)
            if known is None:
                if key[:2] not in made:
                    made[id(table), first] = _Side.of(table, first)
                around[key] = _Around(made[id(table), first], columns, 1)
            else:
                around[key] = _Around(known.side, columns, known.count + 1)
        what = (rows.tobytes(), *((key, a.count) for key, a in around.items()))
        if what not in done:
            done[what] = comparison.undominated(rows, around)
        if len(done[what]) < len(rows):
            alive[v] = done[what]
            for scope, _ in of[v]:
                for w in scope:
                    if w != v and not waiting[w] and visits[w] < _VISITS:
                        waiting[w] = True
                        queue.append(w)


@dataclass(frozen=True, slots=True, eq=False)
class _Around:
    """A table beside a variable, between the configurations that are left, and how often it is there."""

    side: _Side
    columns: IntArray
    count: int


class _Comparison:
    """A few columns rule most pairs out, and are compared once per table; the other pairs are compared in all."""

    def __init__(self) -> None:
        self._seen: dict[tuple[object, ...], FloatArray] = {}

    def undominated(self, rows: IntArray, around: dict[tuple[object, ...], _Around]) -> IntArray:
        """The configurations among ``rows`` that none of the others can stand in for."""
        count = len(rows)
        totals = np.zeros((2, count, count))
        with np.errstate(invalid="ignore"):  # of impossible ones, whose sums rule pairs out
            for key, beside in around.items():
                totals += beside.count * self._sampled(key, beside, rows)
            wanted = (totals[0] <= 0.0) & (totals[1] <= 0.0)
            np.fill_diagonal(wanted, False)
            if not wanted.any():
                return rows
            totals[:] = 0.0
            for beside in around.values():
                totals += beside.count * beside.side.differences(rows, beside.columns, wanted, _ALL)
        wanted &= (totals[0] <= 0.0) & (totals[1] <= 0.0)
        index = np.arange(count)
        gone = (wanted & (~wanted.T | (index[:, None] < index))).any(axis=0)
        kept: IntArray = rows[~gone]
        return kept

    def _sampled(self, key: tuple[object, ...], beside: _Around, rows: IntArray) -> FloatArray:
        size = beside.side.size
        if size > _SEEN_ROWS or 2 * len(rows) < size:
            return beside.side.differences(rows, beside.columns, np.ones((len(rows), len(rows)), np.bool_), _SAMPLE)
        if key not in self._seen:
            every = np.ones((size, size), np.bool_)
            self._seen[key] = beside.side.differences(np.arange(size), beside.columns, every, _SAMPLE)
        found = self._seen[key]
        return found if len(rows) == size else found[:, rows[:, None], rows]
