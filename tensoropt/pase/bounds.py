"""Bounds of the time of every strategy, by which most configurations go before the recurrence makes tables of them."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from tensoropt.pase.tables import TimeTables
from tensoropt.problem.problem import FloatArray, IntArray

__all__ = ["Bounds"]

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
        self.labels = np.zeros(len(self.variables), np.int64)
        self.time_s = math.inf
        self.learn(self._greedy())
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
        index = dict(zip(self.variables, labels.tolist(), strict=True))
        time_s = sum(float(table[tuple(index[v] for v in scope)]) for scope, table in self._factors.items() if scope)
        if time_s < self.time_s:
            self.time_s, self.labels = time_s, labels.copy()

    def least_with(self) -> dict[int, FloatArray]:
        """Per variable, the seconds that a strategy with each configuration takes at least."""
        parts = np.split(self._least_with * self._unit, self._starts[1:-1])
        return dict(zip(self.variables, parts, strict=True))

    def improving(self) -> dict[int, IntArray]:
        """Per variable, the indices that a strategy better than the best known one may have."""
        return {v: np.flatnonzero(least < self.time_s) for v, least in self.least_with().items()}

    def promising(self, count: int) -> dict[int, IntArray]:
        """Per variable so many indices, those of the least bounds and that of the best known strategy."""
        return {
            v: np.unique([*np.argsort(least, kind="stable")[:count], known])
            for (v, least), known in zip(self.least_with().items(), self.labels.tolist(), strict=True)
        }

    def _greedy(self) -> IntArray:
        """A strategy, configuration by configuration the best after those before it."""
        labels: dict[int, int] = {}
        before: dict[int, list[int]] = {v: [] for v in self.variables}
        for u, v in self._pairs:
            before[v].append(u)
        for v, size in zip(self.variables, self._sizes.tolist(), strict=True):
            total = np.zeros(size) + self._factors.get((v,), 0.0)
            for u in before[v]:
                total += self._factors[u, v][labels[u]]
            labels[v] = int(total.argmin())
        return np.array([labels[v] for v in self.variables], np.int64)


def _offsets(counts: npt.ArrayLike) -> IntArray:
    return np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
