"""Bounds of the time of every strategy, by which most configurations go before the recurrence makes tables of them."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from tensoropt.pase.tables import TimeTables
from tensoropt.problem.problem import FloatArray, IntArray

__all__ = ["Bounds", "Mask"]

Mask = npt.NDArray[np.bool_]
"""Some of the indices of all variables, one variable after the other."""

_BITS = 52
"""Sums of whole numbers of so many bits are exact."""

_PROVEN = 1e-9
"""Relative: a strategy this close to the bound leaves nothing to gain from a better bound."""


class Bounds:
    """Lower bounds on the time of every strategy and of each configuration, and the best strategy found.

    A configuration whose bound reaches the time of a known strategy cannot improve on that strategy, so it is removed.
    Bounds are sums of whole multiples of the unit of times. Such sums are exact, so rounding errors never lift a bound.

    Attributes:
        variables: those that are bounded.
        time_s: of the best known strategy; +inf if none is known.
        labels: the configuration index of each variable in the best known strategy; meaningless if none is known.
    """

    def __init__(self, tables: TimeTables) -> None:
        """Takes tables over at most two variables each; they stay as they are."""
        self._factors = dict(tables.factors)
        self._unit = tables.unit_s or 1.0
        self.variables = sorted({v for scope in self._factors for v in scope})
        place = {v: i for i, v in enumerate(self.variables)}
        self._pairs = [scope for scope in sorted(self._factors) if len(scope) == 2]
        self._ends = np.array([(place[u], place[v]) for u, v in self._pairs], np.int64).reshape(-1, 2)
        self._sizes = np.array([len(tables.configurations[v]) for v in self.variables], np.int64)
        self._starts = _offsets(self._sizes)
        self._around = np.ascontiguousarray(np.argsort(self._ends.reshape(-1), kind="stable") // 2)
        self._around_starts = _offsets(np.bincount(self._ends.reshape(-1), minlength=len(self.variables)))
        self.labels, self.time_s = self._greedy()
        self._start()

    def _start(self) -> None:
        """Counts all times in units. Those beyond that of the best strategy become impossible."""
        self._unary = np.zeros(int(self._starts[-1]))
        for v, start in zip(self.variables, self._starts.tolist(), strict=False):
            if (v,) in self._factors:
                table = self._counted(self._factors[v,])
                self._unary[start : start + len(table)] = table
        where: dict[int, tuple[int, int]] = {}
        parts, used, starts = [np.empty(0)], 0, []
        for scope in self._pairs:
            table = self._factors[scope]
            if id(table) not in where:
                where[id(table)] = (used, used + table.size)
                counted = self._counted(table)
                parts += [counted.reshape(-1), counted.T.reshape(-1)]
                used += 2 * table.size
            starts.append(where[id(table)])
        self._tables = np.concatenate(parts)
        self._table_starts = np.array(starts, np.int64).reshape(-1, 2)
        lengths = self._sizes[self._ends].reshape(-1)
        self._message_starts = np.ascontiguousarray(_offsets(lengths)[:-1].reshape(-1, 2))
        self._messages = np.zeros(int(lengths.sum()))
        self._left_least = np.array([part.min() for part in np.split(self._unary, self._starts[1:-1])])
        self._least_with = np.full(len(self._unary), -np.inf)

    def _counted(self, table: FloatArray) -> FloatArray:
        return np.where(table > self.time_s, np.inf, table / self._unit)

    def sweep(self) -> None:
        """Passes messages forward and backward; the bounds rise, or stay."""
        # Imported here because it takes Numba.
        from tensoropt.pase import kernels

        labels = np.zeros(len(self.variables), np.int64)
        for backwards in (False, True):
            kernels.sweep(
                backwards,
                self._around_starts,
                self._around,
                self._ends,
                self._table_starts,
                self._tables,
                self._starts,
                self._unary,
                self._sizes,
                self._message_starts,
                self._messages,
                self._left_least,
                self._least_with,
                labels,
            )
            self.learn(labels)

    @property
    def bound_s(self) -> float:
        """The least time that any strategy of these variables can take."""
        return float(self._left_least.sum()) * self._unit

    @property
    def proven(self) -> bool:
        """True if the best known strategy is optimal up to rounding, or no strategy is possible."""
        return self.bound_s >= self.time_s * (1.0 - _PROVEN) or self.bound_s == math.inf

    @property
    def exact(self) -> bool:
        """True if all figures stayed small enough for exact sums; if not, the bounds do not hold."""
        finite = self._messages[np.isfinite(self._messages)]
        return not len(finite) or float(np.abs(finite).max()) < 2.0**_BITS

    def learn(self, labels: IntArray) -> None:
        """Takes a strategy, an index for each of the variables, if it is better than the best known one."""
        first, second = self._ends.T
        pairs = self._table_starts[:, 0] + labels[first] * self._sizes[second] + labels[second]
        units = float(self._unary[self._starts[:-1] + labels].sum()) + float(self._tables[pairs].sum())
        if units * self._unit < self.time_s:
            self.time_s, self.labels = units * self._unit, labels.copy()

    def improving(self) -> Mask:
        """The indices that a strategy better than the best known one may have."""
        return self._least_with * self._unit < self.time_s

    def promising(self) -> Callable[[int], Mask]:
        """Returns what gives so many indices of each variable: those of the least bounds, and the best known one's."""
        first = self._starts[:-1]
        variable = np.repeat(np.arange(len(first)), self._sizes)
        place = np.empty(len(variable), np.int64)
        place[np.lexsort((self._least_with, variable))] = np.arange(len(variable))
        place -= first[variable]  # among the indices of a variable
        place[first + self.labels] = 0
        return lambda count: place < count

    def indices(self, chosen: Mask) -> dict[int, IntArray]:
        """The chosen indices by variable, ascending."""
        parts = np.split(np.flatnonzero(chosen), np.cumsum(self.counts(chosen))[:-1])
        starts = self._starts.tolist()
        return {v: part - start for v, part, start in zip(self.variables, parts, starts, strict=False)}

    def counts(self, chosen: Mask) -> IntArray:
        """``(variables,)``, how many indices of each are chosen."""
        return np.add.reduceat(chosen.astype(np.int64), self._starts[:-1])

    def _greedy(self) -> tuple[IntArray, float]:
        """A strategy, configuration by configuration the best after those before it, and its time."""
        labels: dict[int, int] = {}
        time_s = 0.0
        before: dict[int, list[int]] = {v: [] for v in self.variables}
        for u, v in self._pairs:
            before[v].append(u)
        for v, size in zip(self.variables, self._sizes.tolist(), strict=True):
            total = np.zeros(size) + self._factors.get((v,), 0.0)
            for u in before[v]:
                total += self._factors[u, v][labels[u]]
            labels[v] = int(total.argmin())
            time_s += float(total[labels[v]])
        return np.array([labels[v] for v in self.variables], np.int64), time_s


def _offsets(counts: npt.ArrayLike) -> IntArray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
