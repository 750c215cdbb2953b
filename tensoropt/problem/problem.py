"""`Problem`: what a search is given, tables of costs and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from tensoropt.errors import ProblemError
from tensoropt.problem.arrays import FloatArray, IntArray, cost_array, int_array, same_memory
from tensoropt.problem.units import on_grid, unit_of
from tensoropt.storage.document import quoted

__all__ = ["FloatArray", "IntArray", "Problem", "same_memory"]


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """Costs of every configuration of every node, and of every pair of configurations of every edge.

    A strategy (an *assignment*) takes one configuration index per node. Its time is the sum of its nodes' and
    edges' times and of a constant, its memory the sum of their memories and of another (TensorOpt, section 2.1,
    Eq. 3). Where a table has alternatives (such as tensor reuse: keep the copy before a reshard, after it, or both)
    one of them is chosen per node or edge, freely.

    Invariants: every array is float64, >= 0 or +inf; +inf in time or memory marks what does not exist. All times are
    multiples of one unit, and all memories of another, of which every sum of costs is exact
    (`tensoropt.problem.units`). Arrays are read-only, views of what was given unless that had to be rounded, and tables
    shared by many edges are held once.

    Attributes:
        names: one name per node, all different.
        node_time_s: per node *i*, shape ``(K_i,)`` or ``(K_i, P)`` for P alternatives, seconds.
        node_memory_bytes: per node, the same shape, bytes.
        edges: ``(E, 2)`` node indices; a pair may repeat, in either direction.
        edge_time_s: per edge ``(u, v)``, shape ``(K_u, K_v)`` or ``(K_u, K_v, P)``, seconds.
        edge_memory_bytes: per edge, the same shape, bytes; an omitted one (None) is zero.
        groups: ``(N,)`` or None; nodes with equal numbers take the same configuration index.
        constant_time_s: what every strategy takes beside, such as to begin a training step; seconds.
        constant_memory_bytes: the same, bytes.
        time_unit_s: a power of two of which all times are multiples; 0.0 if all are zero.
        memory_unit_bytes: the same of memories.
    """

    names: tuple[str, ...]
    node_time_s: tuple[FloatArray, ...]
    node_memory_bytes: tuple[FloatArray, ...]
    edges: IntArray
    edge_time_s: tuple[FloatArray, ...]
    edge_memory_bytes: tuple[FloatArray, ...]
    groups: IntArray | None
    constant_time_s: float
    constant_memory_bytes: float
    time_unit_s: float = field(init=False)
    memory_unit_bytes: float = field(init=False)

    def __init__(
        self,
        names: Iterable[str],
        node_time_s: Iterable[npt.ArrayLike],
        node_memory_bytes: Iterable[npt.ArrayLike],
        edges: npt.ArrayLike = (),
        edge_time_s: Iterable[npt.ArrayLike] = (),
        edge_memory_bytes: Iterable[npt.ArrayLike | None] | None = None,
        groups: npt.ArrayLike | None = None,
        constant_time_s: npt.ArrayLike = 0.0,
        constant_memory_bytes: npt.ArrayLike = 0.0,
    ) -> None:
        """Checks and takes the tables.

        Raises:
            ProblemError: an array breaks the format, or costs are too far apart for exact sums; the message names what.
        """
        put = object.__setattr__
        # Tables that are given more than once are checked once, and stay one object; the given ones are held, so that
        # no other has their id meanwhile.
        taken: dict[int, tuple[Any, FloatArray]] = {}

        def table(name: str, value: Any) -> FloatArray:
            if id(value) not in taken:
                taken[id(value)] = (value, cost_array(name, value))
            return taken[id(value)][1]

        put(self, "names", tuple(str(name) for name in names))
        put(self, "node_time_s", tuple(table(f"node_time_s[{i}]", a) for i, a in enumerate(node_time_s)))
        put(
            self,
            "node_memory_bytes",
            tuple(table(f"node_memory_bytes[{i}]", a) for i, a in enumerate(node_memory_bytes)),
        )
        edge_array = int_array("edges", edges)
        put(self, "edges", edge_array.reshape(0, 2) if edge_array.size == 0 else edge_array)
        put(self, "edge_time_s", tuple(table(f"edge_time_s[{e}]", a) for e, a in enumerate(edge_time_s)))
        given = [None] * len(self.edge_time_s) if edge_memory_bytes is None else list(edge_memory_bytes)
        put(
            self,
            "edge_memory_bytes",
            tuple(
                # A broadcast zero costs no memory, and says (strides 0) that nothing was given.
                np.broadcast_to(np.float64(0.0), self.edge_time_s[e].shape)
                if a is None and e < len(self.edge_time_s)
                else table(f"edge_memory_bytes[{e}]", a)
                for e, a in enumerate(given)
            ),
        )
        put(self, "groups", None if groups is None else int_array("groups", groups))
        self._check_nodes()
        self._check_edges()
        self._check_groups()
        for kind, constant in (("time_s", constant_time_s), ("memory_bytes", constant_memory_bytes)):
            self._take_units(kind, _constant(f"constant_{kind}", constant))

    def _take_units(self, kind: str, constant: FloatArray) -> None:
        """Rounds all times, or all memories, to a unit of which sums are exact."""
        put = object.__setattr__
        nodes, edges = f"node_{kind}", f"edge_{kind}"
        unit = unit_of(kind, [*getattr(self, nodes), *getattr(self, edges), constant])
        # Tables that are shared stay shared.
        rounded: dict[tuple[object, ...], FloatArray] = {}

        def table(costs: FloatArray) -> FloatArray:
            key = same_memory(costs)
            if key not in rounded:
                rounded[key] = on_grid(costs, unit)
                rounded[key].flags.writeable = False
            return rounded[key]

        for several in (nodes, edges):
            put(self, several, tuple(map(table, getattr(self, several))))
        put(self, f"constant_{kind}", float(table(constant)))
        put(self, f"{kind.replace('_', '_unit_')}", unit)

    def _check_nodes(self) -> None:
        n = len(self.names)
        if n == 0:
            raise ProblemError("Problem names: there must be at least 1 node, got 0. Add the graph's operators.")
        first: dict[str, int] = {}
        for i, name in enumerate(self.names):
            if first.setdefault(name, i) != i:
                raise ProblemError(
                    f"Problem names: every name must be unique, got {quoted(name)} at {first[name]} and {i}. Rename "
                    "one."
                )
        for name, arrays in (
            ("node_time_s", self.node_time_s),
            ("node_memory_bytes", self.node_memory_bytes),
        ):
            if len(arrays) != n:
                raise ProblemError(
                    f"Problem {name}: needs one array per node, {n} for names, got {len(arrays)}. "
                    "Give an array for each node."
                )
        for i, (time, memory) in enumerate(zip(self.node_time_s, self.node_memory_bytes, strict=True)):
            if time.ndim not in (1, 2) or time.size == 0:
                raise ProblemError(
                    f"Problem node_time_s[{i}] ({quoted(self.names[i])}): shape must be (K,) or (K, P) with K, P "
                    f">= 1, got {time.shape}. Give one time per configuration."
                )
            if memory.shape != time.shape:
                raise ProblemError(
                    f"Problem node_memory_bytes[{i}] ({quoted(self.names[i])}): shape must equal that of "
                    f"node_time_s[{i}], {time.shape}, got {memory.shape}. Give one memory per time."
                )

    def _check_edges(self) -> None:
        if self.edges.ndim != 2 or self.edges.shape[1] != 2:
            raise ProblemError(
                f"Problem edges: shape must be (E, 2), got {self.edges.shape}. Give one (from, to) pair per row."
            )
        n = len(self.names)
        for name, arrays in (
            ("edge_time_s", self.edge_time_s),
            ("edge_memory_bytes", self.edge_memory_bytes),
        ):
            if len(arrays) != len(self.edges):
                raise ProblemError(
                    f"Problem {name}: needs one array per edge, {len(self.edges)} for edges, got "
                    f"{len(arrays)}. Give an array for each edge."
                )
        for e, (u, v) in enumerate(self.edges.tolist()):
            if not (0 <= u < n and 0 <= v < n):
                raise ProblemError(
                    f"Problem edges[{e}]: node indices must be in 0..{n - 1}, got ({u}, {v}). Correct the pair."
                )
            time, memory = self.edge_time_s[e], self.edge_memory_bytes[e]
            pair = (self.configurations(u), self.configurations(v))
            if time.ndim not in (2, 3) or time.shape[:2] != pair or time.size == 0:
                raise ProblemError(
                    f"Problem edge_time_s[{e}] ({quoted(self.names[u])} -> {quoted(self.names[v])}): shape must be "
                    f"{pair} or {(*pair, 'P')}, got {time.shape}. Give one time per pair of configurations."
                )
            if memory.shape != time.shape:
                raise ProblemError(
                    f"Problem edge_memory_bytes[{e}] ({quoted(self.names[u])} -> {quoted(self.names[v])}): shape must "
                    f"equal that of edge_time_s[{e}], {time.shape}, got {memory.shape}. Give one memory per "
                    "time."
                )

    def _check_groups(self) -> None:
        if self.groups is None:
            return
        if self.groups.shape != (len(self.names),):
            raise ProblemError(
                f"Problem groups: shape must be ({len(self.names)},), one number per node, got "
                f"{self.groups.shape}. Give every node a group (its own number if it shares none)."
            )
        leader: dict[int, int] = {}
        for i, group in enumerate(self.groups.tolist()):
            j = leader.setdefault(group, i)
            if self.configurations(i) != self.configurations(j):
                raise ProblemError(
                    f"Problem groups: nodes of group {group} must have equally many configurations, got "
                    f"{self.configurations(j)} for {quoted(self.names[j])} and {self.configurations(i)} for "
                    f"{quoted(self.names[i])}. Give them the same list of configurations, or different groups."
                )

    @property
    def nodes(self) -> int:
        """The number of nodes, N."""
        return len(self.names)

    def configurations(self, node: int) -> int:
        """The number of configurations of a node, K_i."""
        return int(self.node_time_s[node].shape[0])

    def node_tables(self, node: int) -> tuple[FloatArray, FloatArray]:
        """(time, memory) of a node, both of shape ``(K, P)`` with P = 1 where there are no alternatives."""
        time, memory = self.node_time_s[node], self.node_memory_bytes[node]
        return (time, memory) if time.ndim == 2 else (time[:, None], memory[:, None])

    def edge_tables(self, edge: int) -> tuple[FloatArray, FloatArray]:
        """(time, memory) of an edge, both of shape ``(K_u, K_v, P)``."""
        time, memory = self.edge_time_s[edge], self.edge_memory_bytes[edge]
        return (time, memory) if time.ndim == 3 else (time[:, :, None], memory[:, :, None])

    def with_tables(self, change: Callable[[FloatArray, FloatArray, int], tuple[FloatArray, FloatArray]]) -> Problem:
        """The problem with other tables; those that are shared stay shared.

        Args:
            change: takes the time and memory of a node or an edge, and how many of their axes are configurations (1
                for a node, 2 for an edge, 0 for the constants); gives others.
        """
        memo: dict[tuple[int, int, int], tuple[FloatArray, FloatArray]] = {}

        def changed(time_s: FloatArray, memory_bytes: FloatArray, axes: int) -> tuple[FloatArray, FloatArray]:
            key = (id(time_s), id(memory_bytes), axes)
            if key not in memo:
                memo[key] = change(time_s, memory_bytes, axes)
            return memo[key]

        nodes = [changed(t, m, 1) for t, m in zip(self.node_time_s, self.node_memory_bytes, strict=True)]
        edges = [changed(t, m, 2) for t, m in zip(self.edge_time_s, self.edge_memory_bytes, strict=True)]
        return Problem(
            self.names,
            [time_s for time_s, _ in nodes],
            [memory_bytes for _, memory_bytes in nodes],
            self.edges,
            [time_s for time_s, _ in edges],
            [memory_bytes for _, memory_bytes in edges],
            self.groups,
            *change(np.array(self.constant_time_s), np.array(self.constant_memory_bytes), 0),
        )

    def check_assignments(self, assignments: npt.ArrayLike) -> IntArray:
        """Checks configuration indices of shape ``(N,)`` or ``(points, N)``; returns them as ``(points, N)``.

        Raises:
            ProblemError: wrong shape, an index out of range, or nodes of one group that differ.
        """
        array = np.atleast_2d(int_array("assignment", assignments))
        if array.ndim != 2 or array.shape[1] != self.nodes:
            raise ProblemError(
                f"Problem assignment: needs one configuration index per node, {self.nodes}, got shape "
                f"{np.shape(assignments)}. Give indices in the order of names."
            )
        limits = np.array([self.configurations(i) for i in range(self.nodes)])
        bad = np.argwhere((array < 0) | (array >= limits))
        if len(bad):
            p, i = bad[0]
            raise ProblemError(
                f"Problem assignment: configuration of {quoted(self.names[i])} must be in 0..{limits[i] - 1}, got "
                f"{array[p, i]}. Choose one of its {limits[i]} configurations."
            )
        if self.groups is not None:
            _, leaders, member = np.unique(self.groups, return_index=True, return_inverse=True)
            bad = np.argwhere(array != array[:, leaders][:, member])
            if len(bad):
                p, i = bad[0]
                j = leaders[member[i]]
                raise ProblemError(
                    f"Problem assignment: nodes of group {self.groups[i]} must take one configuration, got "
                    f"{array[p, j]} for {quoted(self.names[j])} and {array[p, i]} for {quoted(self.names[i])}. "
                    "Make them equal."
                )
        return array

    def costs(
        self, assignments: npt.ArrayLike, alternatives: npt.ArrayLike | None = None
    ) -> tuple[FloatArray, FloatArray]:
        """Exact (time, memory) of strategies: the sum of the tables' entries and of the constants.

        Whoever adds the same entries, in any order, gets the same number to the last bit. An impossible strategy costs
        +inf in both.

        Args:
            assignments: ``(points, N)`` configuration indices.
            alternatives: ``(points, N + E)``, the alternative of each node, then of each edge; zeros if
                omitted.

        Returns:
            time in seconds and memory in bytes, each of shape ``(points,)``.

        Raises:
            ProblemError: indices out of range or of the wrong shape.
        """
        chosen = self.check_assignments(assignments)
        terms = self.nodes + len(self.edges)
        picks = (
            np.zeros((len(chosen), terms), np.int64)
            if alternatives is None
            else np.atleast_2d(int_array("alternatives", alternatives))
        )
        if picks.shape != (len(chosen), terms):
            raise ProblemError(
                f"Problem alternatives: shape must be ({len(chosen)}, {terms}), one per point, node and "
                f"edge, got {picks.shape}. Give those that came with the assignments."
            )
        self._check_alternatives(picks)
        # Equal layers that are configured alike have equal terms: each is looked up once, and counted.
        columns: dict[bytes, int] = {}
        nodes = [columns.setdefault(column.tobytes(), len(columns)) for column in np.ascontiguousarray(chosen.T)]
        ways = [columns.setdefault(column.tobytes(), len(columns)) for column in np.ascontiguousarray(picks.T)]
        counted: dict[tuple[int, ...], int] = {}
        first: list[int] = []
        ends = self.edges.tolist()
        for i in range(terms):
            if i < self.nodes:
                key: tuple[int, ...] = (id(self.node_time_s[i]), id(self.node_memory_bytes[i]), nodes[i], ways[i])
            else:
                e = i - self.nodes
                u, v = ends[e]
                key = (id(self.edge_time_s[e]), id(self.edge_memory_bytes[e]), nodes[u], nodes[v], ways[i])
            if key not in counted:
                first.append(i)
            counted[key] = counted.get(key, 0) + 1
        sums = np.empty((2, len(chosen)))
        sums[0], sums[1] = self.constant_time_s, self.constant_memory_bytes
        for term, count in zip(first, counted.values(), strict=True):
            for total, entries in zip(sums, self._entries(term, chosen, picks[:, term]), strict=True):
                total += entries * count
        sums[:, np.isinf(sums).any(axis=0)] = np.inf
        return sums[0], sums[1]

    def _entries(self, term: int, chosen: IntArray, picks: IntArray) -> tuple[FloatArray, FloatArray]:
        """Time and memory of a node, or of edge ``term - nodes``, ``(points,)`` each."""
        if term < self.nodes:
            tables = self.node_tables(term)
            where: tuple[IntArray, ...] = (chosen[:, term], picks)
        else:
            u, v = self.edges[term - self.nodes].tolist()
            tables = self.edge_tables(term - self.nodes)
            where = (chosen[:, u], chosen[:, v], picks)
        return tables[0][where], tables[1][where]

    def _check_alternatives(self, picks: IntArray) -> None:
        """Checks that all alternatives, an array ``(points, N + E)``, exist; raises ProblemError otherwise."""
        counts = [table.shape[1] if table.ndim == 2 else 1 for table in self.node_time_s]
        counts += [table.shape[2] if table.ndim == 3 else 1 for table in self.edge_time_s]
        wrong = np.flatnonzero(((picks < 0) | (picks >= np.array(counts, np.int64))).any(axis=0))
        if len(wrong):
            term = int(wrong[0])
            if term < self.nodes:
                subject = f"{quoted(self.names[term])}"
            else:
                u, v = self.edges[term - self.nodes].tolist()
                subject = f"edge {term - self.nodes} ({quoted(self.names[u])} -> {quoted(self.names[v])})"
            raise ProblemError(
                f"Problem alternatives: that of {subject} must be in 0..{counts[term] - 1}, got "
                f"{picks[:, term].min()}..{picks[:, term].max()}. Choose one that exists."
            )


def _constant(name: str, value: Any) -> FloatArray:
    constant = cost_array(name, value)
    if constant.ndim or not np.isfinite(constant):
        raise ProblemError(f"Problem {name}: must be one finite number, got {value!r}. Give what every strategy takes.")
    return constant
