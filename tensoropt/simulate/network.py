"""The tasks that strategies may have, as flat arrays: which there may be, what they take, and what waits for what."""

from __future__ import annotations

import copy

import numpy as np
from numpy.typing import NDArray

from tensoropt.errors import ProblemError
from tensoropt.simulate.frame import Frame
from tensoropt.simulate.simulation_state import Graph
from tensoropt.simulate.slots import lay_out
from tensoropt.space.work import Ints, Route, Routes, Signature, Tables, ticks

__all__ = ["IMPOSSIBLE", "Network"]

# In the place of a path: no strategy may have it.
IMPOSSIBLE = -2


class Network:
    """The tasks of all strategies of a problem.

    An operator has a *slot* for its forward and one for its backward tasks, an edge one for the way of the tensor and
    one for the way of the gradient. Slots are numbered so that tasks never wait for tasks of a later slot. A slot holds
    a path: stages one after the other, each with a task per class of devices or links.
    """

    def __init__(
        self, tables: Tables, routes: Routes, mesh: tuple[int, ...], levels: tuple[tuple[int, bool], ...]
    ) -> None:
        """Takes what there is; ways are asked for when they are needed.

        Args:
            tables: of operators and edges.
            routes: what gives the ways.
            mesh: extents of the device mesh's axes.
            levels: of links, outermost first: how many of the mesh's axes each has, and whether its units share a link.
        """
        if sum(axes for axes, _ in levels) != len(mesh):
            raise ProblemError(
                f"Network: levels {levels} have {sum(axes for axes, _ in levels)} axes in all, the mesh {mesh} has "
                f"{len(mesh)}. Give each axis to one level."
            )
        self.mesh = mesh
        self.levels = levels
        self._routes: Routes | None = routes
        self._signatures: dict[Signature, int] = {}
        self._pool: list[Ints] = [np.zeros(1, np.int64)]  # path 0 is empty
        self._paths: dict[bytes, int] = {self._pool[0].tobytes(): 0}  # equal ones are one
        self._size = 1
        self._table_first = np.concatenate([[0], np.cumsum(tables.table_sizes)]).astype(np.int64)
        self._known: list[Ints] = []
        self._routed = 0
        self.longest = 2
        self.choices: Ints = np.array([len(some) for some in tables.forward], np.int64)
        self._rows: Ints = np.full(int(self._table_first[-1]) + 1, -1, np.int64)
        self._graph = lay_out(tables, self._table_first, self._add_path)
        self._changed = True
        self._frames: dict[tuple[int, ...], Frame] = {}

    @property
    def operators(self) -> int:
        """How many there are."""
        return len(self.choices)

    @property
    def slots(self) -> int:
        """How many there are."""
        return len(self._graph.slots)

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """All that are known so far, by number."""
        return tuple(self._signatures)

    @property
    def signature_count(self) -> int:
        """How many are known so far."""
        return len(self._signatures)

    @property
    def graph(self) -> Graph:
        """The arrays that compiled loops read; made again after rows were added."""
        if self._changed:
            # Pieces are joined once, so that many small additions do not each copy all that came before.
            self._pool = [np.concatenate(self._pool)]
            self._known = [np.concatenate([*self._known, np.zeros(0, np.int64)])]
            self._graph = self._graph._replace(pool=self._pool[0], rows=self._rows, routes=self._known[0])
            self._changed = False
        return self._graph

    def add_row(self, place: int) -> None:
        """Gets the ways of one row, by its place among all rows."""
        if self._rows[place] >= 0:
            return
        if self._routes is None:
            raise ProblemError(
                "Network: a copy that was detached knows all ways that there are, and another was asked for."
            )
        table = int(np.searchsorted(self._table_first, place, side="right")) - 1
        found = self._routes.row(table, place - int(self._table_first[table]))
        numbers = self._add_paths(*found)
        self._rows[place] = self._routed
        self._known.append(numbers)
        self._routed += len(numbers)
        self._changed = True

    def add_all_rows(self) -> None:
        """Gets all ways."""
        for place in range(len(self._rows) - 1):
            self.add_row(place)

    def allows(self, assignment: Ints, edges: Ints | None = None) -> bool:
        """Tells whether all edges, or the given ones, allow the configurations of their ends together."""
        given, layouts = self._graph.edges, self._graph.layouts
        given = given if edges is None else given[edges]
        starts, ends = (assignment[given[field]] for field in ("producer", "consumer"))
        places = given["way_table"] + layouts[given["way_from"] + starts]
        for place in np.unique(places).tolist():
            self.add_row(place)
        graph = self.graph
        return not np.any(graph.routes[graph.rows[places] + layouts[given["way_to"] + ends]] == IMPOSSIBLE)

    def edges_among(self, operators: NDArray[np.bool_], near: Ints) -> Ints:
        """The edges between some operators of which one end is ``near``, ascending."""
        ends = np.stack([self._graph.edges[field] for field in ("producer", "consumer")])
        return np.flatnonzero(operators[ends].all(axis=0) & np.isin(ends, near).any(axis=0))

    def detached(self) -> Network:
        """A copy that holds all ways, and so can go to another process."""
        self.add_all_rows()
        result = copy.copy(self)
        result._routes = None
        return result

    def frame(self, kept: tuple[int, ...]) -> Frame:
        """The classes of devices that differ along the axes ``kept``."""
        known = self._frames[kept] if kept in self._frames else Frame.of(self.mesh, self.levels, kept)
        self._frames[kept] = known.extended(self.mesh, self.levels, self.signatures)
        return self._frames[kept]

    def placed_axes(self, first: int = 0) -> tuple[int, ...]:
        """The axes along which some stage is at one place, of signatures from number ``first`` on."""
        return tuple(sorted({axis for sign in self.signatures[first:] for axis, _ in sign.at}))

    def path(self, number: int) -> tuple[tuple[int, int], ...]:
        """Ticks and signature of each stage of a path."""
        pool = self.graph.pool
        stages = pool[number + 1 : number + 1 + 2 * int(pool[number])].reshape(-1, 2)
        return tuple((int(spent), int(sign)) for spent, sign in stages)

    def load(self, number: int) -> Ints:
        """Ticks of a path by kind of resource: devices, then the links of each level."""
        result = np.zeros(1 + len(self.levels), np.int64)
        signatures = self.signatures
        for spent, sign in self.path(number):
            if signatures[sign].lane >= 0:
                result[signatures[sign].lane] += spent
        return result

    def _sign(self, signature: Signature) -> int:
        if signature in self._signatures:
            return self._signatures[signature]
        at = dict(signature.at)
        outside = [
            (axis, places)
            for axis, places in at.items()
            if not 0 <= axis < len(self.mesh) or not places or not 0 <= min(places) <= max(places) < self.mesh[axis]
        ]
        if outside or not -1 <= signature.lane <= len(self.levels):
            raise ProblemError(
                f"Task on {signature}: the mesh {self.mesh} with {len(self.levels)} levels of links has no such device "
                "or link. Use coordinates and levels that exist."
            )
        self._signatures[signature] = len(self._signatures)
        return self._signatures[signature]

    def _add_path(self, path: Route) -> int:
        if not path:
            return 0
        if any(work.seconds and work.signature.lane < 0 for work in path):
            raise ProblemError(f"Path {path}: a task of no resource takes no time. Give it a lane.")
        stages = [(ticks(work.seconds), self._sign(work.signature)) for work in path]
        return self._put(np.array(stages, np.int64).reshape(-1))

    def _add_paths(self, lengths: Ints, stage_ticks: Ints, signs: Ints, signatures: list[Signature]) -> Ints:
        """Many paths at once; see :class:`tensoropt.space.work.Routes`."""
        number = np.array([self._sign(signature) for signature in signatures], np.int64)
        stages = np.stack([stage_ticks, number[signs] if len(signs) else signs], axis=1).reshape(-1)
        content, width = stages.astype(np.int64).tobytes(), 2 * np.dtype(np.int64).itemsize
        ends = width * np.cumsum(np.maximum(lengths, 0))
        numbers: list[int] = []
        for length, end in zip(lengths.tolist(), ends.tolist(), strict=True):
            key = content[end - width * max(length, 0) : end]  # most paths are known, and looked up as they are
            known = IMPOSSIBLE if length < 0 else self._paths.get(key)
            numbers.append(self._put(np.frombuffer(key, np.int64)) if known is None else known)
        return np.array(numbers, np.int64)

    def _put(self, stages: Ints) -> int:
        """The number of a path of these ticks and signatures."""
        key = stages.tobytes() if len(stages) else b"\0" * 8
        if key not in self._paths:
            self._paths[key] = self._size
            self._pool.append(np.concatenate([[len(stages) // 2], stages]).astype(np.int64))
            self._size += 1 + len(stages)
            self.longest = max(self.longest, len(stages) // 2)
        return self._paths[key]
