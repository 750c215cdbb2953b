"""A search over strategies as flat arrays: which tasks there may be, what they take, and what waits for what."""

from __future__ import annotations

import copy
from operator import contains
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tensoropt.errors import ProblemError
from tensoropt.mcmc import blob
from tensoropt.search.stages import Ints, Route, Routes, Signature, Tables, ticks

__all__ = ["IMPOSSIBLE", "Arrays", "Frame", "Network"]

# In the place of a path: no strategy may have it.
IMPOSSIBLE = -2


class Frame(NamedTuple):
    """Devices that some strategies tell apart, and the links between them; everything else is alike for all devices.

    Devices whose coordinates differ only along axes where no operator is placed do the same at the same time, whatever
    the strategy: exchanging them changes nothing. So one task stands for all of them, and times are the same to the
    last bit. Classes are numbered row-major over the *kept* axes.

    Attributes:
        kept: the axes that are told apart.
        shape: of the classes.
        lanes: ``(1 + levels, classes)``, the class that names the resource of a class: itself for devices, the first
            of its unit for a link that devices share.
        masks: ``(signatures,)``, over which kept axes tasks of a signature wait for one another, as bits.
        kinds: ``(signatures,)``, -1 or the row of ``lanes``.
        present: ``(signatures, classes)``, which classes have a task.
        zeroed: ``(2^kept, classes)``, a class with the coordinates of some axes set to 0.
        first: ``(2^kept + 1,)``, where the offsets of each set of axes begin.
        offsets: of all classes that differ only along a set of axes, from that which is zeroed.
    """

    kept: tuple[int, ...]
    shape: tuple[int, ...]
    lanes: Ints
    masks: Ints
    kinds: Ints
    present: NDArray[np.uint8]
    zeroed: Ints
    first: Ints
    offsets: Ints

    @property
    def classes(self) -> int:
        """How many there are."""
        return int(self.present.shape[1])

    def blob(self) -> Ints:
        """All of this for compiled loops."""
        arrays = {
            blob.MASKS: self.masks,
            blob.KINDS: self.kinds,
            blob.LANE_OF: self.lanes,
            blob.PRESENT: self.present.astype(np.int64),
            blob.ZEROED: self.zeroed,
            blob.FIRST: self.first,
            blob.OFFSETS: self.offsets,
        }
        return blob.pack({blob.CLASSES: self.classes}, arrays)


class Arrays(NamedTuple):
    """What compiled loops read of a :class:`Network`.

    Attributes:
        net: a blob, of what does not change.
        pool: of each path the number of stages, then their ticks and signatures; a path's number is where it begins.
        rows: where each row of routes begins, -1 if it is not known.
        routes: the path of each route.
    """

    net: Ints
    pool: Ints
    rows: Ints
    routes: Ints

    @property
    def complete(self) -> bool:
        """Whether all rows are known."""
        return bool((self.rows[:-1] >= 0).all())


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
        self._fixed = self._static(tables)
        self._blob = blob.pack({blob.EDGES: len(tables.edges)}, self._fixed)
        self._row_at = np.full(int(self._table_first[-1]) + 1, -1, np.int64)
        self._arrays: Arrays | None = None
        self._frames: dict[tuple[int, ...], Frame] = {}

    @property
    def operators(self) -> int:
        """How many there are."""
        return len(self.choices)

    @property
    def slots(self) -> int:
        """How many there are."""
        return len(self._fixed[blob.SLOT_KIND])

    @property
    def signatures(self) -> tuple[Signature, ...]:
        """All that are known so far, by number."""
        return tuple(self._signatures)

    @property
    def signature_count(self) -> int:
        """How many are known so far."""
        return len(self._signatures)

    @property
    def arrays(self) -> Arrays:
        """What compiled loops read; made again after rows were added."""
        if self._arrays is None:
            # Pieces are joined once, so that many small additions do not each copy all that came before.
            self._pool = [np.concatenate(self._pool)]
            self._known = [np.concatenate([*self._known, np.zeros(0, np.int64)])]
            self._arrays = Arrays(self._blob, self._pool[0], self._row_at, self._known[0])
        return self._arrays

    def field(self, number: int) -> Ints:
        """One of the arrays that do not change, by its number in :mod:`tensoropt.mcmc.blob`."""
        return self._fixed[number]

    def add_row(self, place: int) -> None:
        """Gets the ways of one row, by its place among all rows."""
        if self._row_at[place] >= 0:
            return
        if self._routes is None:
            raise ProblemError(
                "Network: a copy that was detached knows all ways that there are, and another was asked for."
            )
        table = int(np.searchsorted(self._table_first, place, side="right")) - 1
        found = self._routes.row(table, place - int(self._table_first[table]))
        numbers = self._add_paths(*found)
        self._row_at[place] = self._routed
        self._known.append(numbers)
        self._routed += len(numbers)
        self._arrays = None

    def add_all_rows(self) -> None:
        """Gets all ways."""
        for place in range(len(self._row_at) - 1):
            self.add_row(place)

    def allows(self, assignment: Ints, edges: Ints | None = None) -> bool:
        """Whether all edges, or some, allow their ends' configurations beside one another."""
        fixed = self._fixed
        some = np.arange(len(fixed[blob.EDGE_FROM])) if edges is None else edges
        starts, ends = (assignment[fixed[field][some]] for field in (blob.EDGE_FROM, blob.EDGE_TO))
        layouts = fixed[blob.LAYOUTS]
        places = fixed[blob.WAY_TABLE][some] + layouts[fixed[blob.WAY_FROM][some] + starts]
        for place in np.unique(places).tolist():
            self.add_row(place)
        arrays = self.arrays
        return not np.any(arrays.routes[arrays.rows[places] + layouts[fixed[blob.WAY_TO][some] + ends]] == IMPOSSIBLE)

    def edges_among(self, operators: NDArray[np.bool_], near: Ints) -> Ints:
        """The edges between some operators of which one end is ``near``, ascending."""
        ends = np.stack([self._fixed[field] for field in (blob.EDGE_FROM, blob.EDGE_TO)])
        return np.flatnonzero(operators[ends].all(axis=0) & np.isin(ends, near).any(axis=0))

    def detached(self) -> Network:
        """A copy that holds all ways, and so can go to another process."""
        self.add_all_rows()
        result = copy.copy(self)
        result._routes = None
        return result

    def frame(self, kept: tuple[int, ...]) -> Frame:
        """The classes of devices that differ along the axes ``kept``."""
        if kept not in self._frames:
            self._frames[kept] = self._bare_frame(kept)
        known = self._frames[kept]
        if len(known.kinds) == len(self._signatures):
            return known
        shared = [0] + [self._unit_axes(level) for level in range(len(self.levels))]
        coordinates = list(np.ndindex(*known.shape))
        masks, kinds, present = [], [], []
        for sign in self.signatures[len(known.kinds) :]:
            unit = shared[sign.lane] if sign.lane > 0 else 0
            at = dict(sign.at)
            masks.append(self._among(sign.axes | unit, kept))
            kinds.append(sign.lane)
            allowed = []
            for axis in kept:
                if axis in at:
                    # Of devices that share a link one stands for all.
                    allowed.append(at[axis][:1] if unit >> axis & 1 else at[axis])
                else:
                    allowed.append((0,) if unit >> axis & 1 else tuple(range(self.mesh[axis])))
            present.append([all(map(contains, allowed, place)) for place in coordinates])
        self._frames[kept] = known._replace(
            masks=np.concatenate([known.masks, masks]).astype(np.int64),
            kinds=np.concatenate([known.kinds, kinds]).astype(np.int64),
            present=np.concatenate([known.present, np.array(present, np.uint8)]),
        )
        return self._frames[kept]

    def _bare_frame(self, kept: tuple[int, ...]) -> Frame:
        """The classes, without signatures."""
        shape = tuple(self.mesh[axis] for axis in kept)
        coordinates = np.array(list(np.ndindex(*shape)), np.int64).reshape(int(np.prod(shape)), len(kept))
        classes, sets = len(coordinates), 1 << len(kept)
        radix = np.array([int(np.prod(shape[position + 1 :])) for position in range(len(kept))], np.int64)
        zeroed = np.zeros((sets, classes), np.int64)
        offsets: list[Ints] = []
        for axes in range(sets):
            inside = (axes >> np.arange(len(kept))) & 1
            zeroed[axes] = (coordinates * (1 - inside) * radix).sum(axis=1)
            offsets.append(np.unique((coordinates * inside * radix).sum(axis=1)))
        shared = [0] + [self._unit_axes(level) for level in range(len(self.levels))]
        return Frame(
            kept,
            shape,
            np.stack([zeroed[self._among(axes, kept)] for axes in shared]),
            np.zeros(0, np.int64),
            np.zeros(0, np.int64),
            np.zeros((0, classes), np.uint8),
            zeroed,
            np.concatenate([[0], np.cumsum([len(some) for some in offsets])]).astype(np.int64),
            np.concatenate(offsets),
        )

    def placed_axes(self, first: int = 0) -> tuple[int, ...]:
        """The axes along which some stage is at one place, of signatures from number ``first`` on."""
        return tuple(sorted({axis for sign in self.signatures[first:] for axis, _ in sign.at}))

    def path(self, number: int) -> tuple[tuple[int, int], ...]:
        """Ticks and signature of each stage of a path."""
        arrays = self.arrays
        stages = arrays.pool[number + 1 : number + 1 + 2 * int(arrays.pool[number])].reshape(-1, 2)
        return tuple((int(spent), int(sign)) for spent, sign in stages)

    def load(self, number: int) -> Ints:
        """Ticks of a path by kind of resource: devices, then the links of each level."""
        result = np.zeros(1 + len(self.levels), np.int64)
        signatures = self.signatures
        for spent, sign in self.path(number):
            if signatures[sign].lane >= 0:
                result[signatures[sign].lane] += spent
        return result

    def _unit_axes(self, level: int) -> int:
        """The axes of devices that share a link of a level, as bits.

        At the innermost level the devices of one unit of the level above share a bus; elsewhere those of a unit.
        """
        axes, shared = self.levels[level]
        if not shared:
            return 0
        before = sum(count for count, _ in self.levels[:level])
        first = before if level == len(self.levels) - 1 else before + axes
        return sum(1 << axis for axis in range(first, len(self.mesh)))

    @staticmethod
    def _among(axes: int, kept: tuple[int, ...]) -> int:
        return sum(1 << position for position, axis in enumerate(kept) if axes >> axis & 1)

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
        """Many paths at once; see :class:`tensoropt.search.stages.Routes`."""
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

    def _static(self, tables: Tables) -> dict[int, Ints]:
        operators, edges = len(tables.forward), len(tables.edges)
        for number, (start, end) in enumerate(tables.edges):
            if not 0 <= start < end < operators:
                raise ProblemError(
                    f"Network: edge {number} goes from operator {start} to {end}; it must go from an earlier to a "
                    f"later one of {operators}. Number operators in topological order."
                )
        incoming: list[list[int]] = [[] for _ in range(operators)]
        outgoing: list[list[int]] = [[] for _ in range(operators)]
        for number, (start, end) in enumerate(tables.edges):
            outgoing[start].append(number)
            incoming[end].append(number)
            if tables.returns[number] and (tables.backward[start] is None or tables.backward[end] is None):
                raise ProblemError(
                    f"Network: a gradient returns along edge {number}, from operator {end} to {start}, and one of them "
                    "has no backward pass. Give it one, if only of no seconds."
                )
        forward_slot, backward_slot = np.full(operators, -1, np.int64), np.full(operators, -1, np.int64)
        way_slot, way_back_slot = np.full(edges, -1, np.int64), np.full(edges, -1, np.int64)
        kinds: list[int] = []
        refs: list[int] = []

        def slot(kind: int, ref: int) -> int:
            kinds.append(kind)
            refs.append(ref)
            return len(kinds) - 1

        for op in range(operators):
            for edge in incoming[op]:
                way_slot[edge] = slot(0, edge)
            forward_slot[op] = slot(1, op)
        for op in reversed(range(operators)):
            backward_slot[op] = slot(2, op)
            for edge in incoming[op]:
                way_back_slot[edge] = slot(3, edge)
        forward: list[int] = []
        backward: list[int] = []
        base: list[int] = []
        paths: dict[Route, int] = {}
        for op in range(operators):
            base.append(len(forward))
            for index, path in enumerate(tables.forward[op]):
                back = tables.backward[op]
                pair = path, () if back is None else back[index]
                if not path or (back is not None and not pair[1]):
                    raise ProblemError(
                        f"Network: configuration {index} of operator {op} has no stages. Give it one, of no seconds."
                    )
                for side, found in zip(pair, (forward, backward), strict=True):
                    if side not in paths:
                        paths[side] = self._add_path(side)
                    found.append(paths[side])
        layouts: list[Ints] = []
        placed: dict[int, int] = {}
        kept: list[Ints] = []  # so that no other array has their id meanwhile
        total = 0

        def layout_base(indices: Ints) -> int:
            nonlocal total
            if id(indices) not in placed:
                placed[id(indices)] = total
                kept.append(indices)
                layouts.append(np.asarray(indices, np.int64))
                total += len(indices)
            return placed[id(indices)]

        way = [(self._table_first[t], layout_base(a), layout_base(b)) for t, a, b in tables.ways]
        back_ways = [
            (-1, 0, 0) if found is None else (self._table_first[found[0]], layout_base(found[1]), layout_base(found[2]))
            for found in tables.ways_back
        ]
        columns = np.array(way, np.int64).reshape(-1, 3)
        back_columns = np.array(back_ways, np.int64).reshape(-1, 3)
        ends = np.array(tables.edges, np.int64).reshape(-1, 2)
        # Who waits for whom: an entry per operator whose backward work follows its forward work, and per way.
        count = len(kinds)
        source, target = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
        after: list[list[int]] = [[] for _ in range(count)]
        before: list[list[int]] = [[] for _ in range(count)]
        source_place, target_place = np.zeros(count, np.int64), np.zeros(count, np.int64)
        for op in range(operators):
            if tables.backward[op] is not None:
                after[forward_slot[op]].append(int(backward_slot[op]))
                before[backward_slot[op]].append(int(forward_slot[op]))
        for edge, (start, end) in enumerate(tables.edges):
            legs = [(way_slot[edge], forward_slot[start], forward_slot[end])]
            if tables.returns[edge]:
                legs.append((way_back_slot[edge], backward_slot[end], backward_slot[start]))
            for way_of, one, other in legs:
                source[way_of], target[way_of] = one, other
                source_place[way_of], target_place[way_of] = len(after[one]), len(before[other])
                after[one].append(int(way_of))
                before[other].append(int(way_of))
        for way_of in np.flatnonzero(source >= 0).tolist():
            after[way_of].append(int(target[way_of]))
            before[way_of].append(int(source[way_of]))
        # Slots that wait for a single other one; see tensoropt.mcmc.links.
        marked = [~slot if len(some) == 1 else slot for slot, some in enumerate(before)]
        after_first, before_first = (np.cumsum([0, *map(len, some)]).astype(np.int64) for some in (after, before))
        return {
            blob.EDGE_FROM: ends[:, 0].copy(),
            blob.EDGE_TO: ends[:, 1].copy(),
            blob.RETURNS: np.array(tables.returns, np.int64),
            blob.IN_FIRST: np.cumsum([0, *map(len, incoming)]).astype(np.int64),
            blob.IN_EDGE: np.array([e for some in incoming for e in some], np.int64),
            blob.OUT_FIRST: np.cumsum([0, *map(len, outgoing)]).astype(np.int64),
            blob.OUT_EDGE: np.array([e for some in outgoing for e in some], np.int64),
            blob.HAS_BACK: np.array([back is not None for back in tables.backward], np.int64),
            blob.FORWARD_SLOT: forward_slot,
            blob.BACKWARD_SLOT: backward_slot,
            blob.WAY_SLOT: way_slot,
            blob.WAY_BACK_SLOT: way_back_slot,
            blob.SLOT_KIND: np.array(kinds, np.int64),
            blob.SLOT_REF: np.array(refs, np.int64),
            blob.OP_BASE: np.array(base, np.int64),
            blob.OP_FORWARD: np.array(forward, np.int64),
            blob.OP_BACKWARD: np.array(backward, np.int64),
            blob.WAY_TABLE: columns[:, 0].copy(),
            blob.WAY_FROM: columns[:, 1].copy(),
            blob.WAY_TO: columns[:, 2].copy(),
            blob.BACK_TABLE: back_columns[:, 0].copy(),
            blob.BACK_FROM: back_columns[:, 1].copy(),
            blob.BACK_TO: back_columns[:, 2].copy(),
            blob.LAYOUTS: np.concatenate(layouts) if layouts else np.zeros(0, np.int64),
            blob.AFTER_FIRST: after_first,
            blob.BEFORE_FIRST: before_first,
            blob.SOURCE: source,
            blob.TARGET: np.array(marked, np.int64)[target],
            blob.SOURCE_ENTRY: after_first[source] + source_place,
            blob.TARGET_ENTRY: before_first[target] + target_place,
            blob.AFTER_ALL: np.array([marked[other] for some in after for other in some], np.int64),
            blob.BEFORE_ALL: np.array([other for some in before for other in some], np.int64),
        }
