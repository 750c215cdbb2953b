"""`Frontier`: what a search gives back, all strategies that are worth having."""

from __future__ import annotations

import importlib
import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
import numpy.typing as npt

from tensoropt.errors import InfeasibleError, ProblemError, TensorOptError
from tensoropt.problem.pareto import reduce_segments, spread
from tensoropt.problem.problem import FloatArray, IntArray, Problem
from tensoropt.problem.provenance import Provenance
from tensoropt.storage.document import Fields, parse_json, refused, shortened
from tensoropt.viz.frontier import draw_frontiers

__all__ = [
    "Candidates",
    "Elimination",
    "Frontier",
    "FrontierPoint",
    "by_both_costs",
    "frontier_among",
    "frontier_of",
    "joined",
]

_SCHEMA = 1


@dataclass(frozen=True, slots=True)
class Elimination:
    """One step of a search.

    Attributes:
        kind: ``edge``, ``node``, ``branch``, ``heuristic``, ``condition``, ``narrow``, ``ldp``,
            ``final`` or ``product``.
        nodes: names of the nodes that it decides (of the edge's ends, for ``edge``).
        into: names of the nodes over whose configurations the result is a table.
        configuration: for ``heuristic``, the configuration index that was fixed.
    """

    kind: str
    nodes: tuple[str, ...]
    into: tuple[str, ...] = ()
    configuration: int | None = None

    def __str__(self) -> str:
        fixed = "" if self.configuration is None else f" = {self.configuration}"
        into = f" -> ({', '.join(self.into)})" if self.into else ""
        return f"{self.kind} {', '.join(self.nodes)}{fixed}{into}"


@dataclass(frozen=True, slots=True)
class FrontierPoint:
    """One strategy of a frontier.

    Attributes:
        index: its place in the frontier.
        time_s: seconds per iteration.
        memory_bytes: bytes per device.
        assignment: the configuration index of each node.
        alternatives: the alternative of each node, then of each edge.
        provenance: the model and the devices that it is for; None where only a problem was given.
        exact: of its frontier.
        searched: of its frontier.
        bound_s: seconds that every strategy of no more memory takes at least; None where that is not known.
    """

    index: int
    time_s: float
    memory_bytes: float
    assignment: tuple[int, ...]
    alternatives: tuple[int, ...]
    provenance: Provenance | None = None
    exact: bool = False
    searched: str | None = None
    bound_s: float | None = None

    @property
    def gap(self) -> float | None:
        """By how much the strategy is slower, at most, than any other of no more memory: 0.01 is a hundredth.

        None where no bound is known, or none above nothing.
        """
        if self.bound_s is None or (self.bound_s <= 0.0 < self.time_s):
            return None
        return 0.0 if self.time_s <= self.bound_s else self.time_s / self.bound_s - 1.0


@dataclass(frozen=True, slots=True, eq=False)
class Frontier:
    """Strategies of which none is beaten in both time and memory.

    Invariants: at least one point; memory strictly ascends, time strictly descends; every point is what
    ``Problem.costs(assignments, alternatives)`` gives, to the last bit.

    Attributes:
        names: the problem's nodes.
        time_s: ``(points,)`` seconds per iteration.
        memory_bytes: ``(points,)`` bytes per device.
        assignments: ``(points, N)`` configuration indices.
        alternatives: ``(points, N + E)``, the alternative of each node, then of each edge.
        exact: whether it is certain that no strategy beats a point, and that none that is not beaten is missing.
        eliminations: what was done, in order.
        seconds: how long the search took.
        provenance: the model and the devices that it is for; None where only a problem was given.
        searched: over what, and what of that was left out, in words; None where all that was given was searched.
        bound_s: ``(points,)``, see `FrontierPoint`; None where bounds are not known.
    """

    names: tuple[str, ...]
    time_s: FloatArray
    memory_bytes: FloatArray
    assignments: IntArray
    alternatives: IntArray
    exact: bool
    eliminations: tuple[Elimination, ...]
    seconds: float
    provenance: Provenance | None = None
    searched: str | None = None
    bound_s: FloatArray | None = None

    def __post_init__(self) -> None:
        points, nodes = len(self.time_s), len(self.names)
        if points == 0:
            raise ProblemError("Frontier: must have at least 1 point, got 0. An infeasible problem has no frontier.")
        if (
            self.memory_bytes.shape != (points,)
            or self.assignments.shape != (points, nodes)
            or self.alternatives.ndim != 2
            or self.alternatives.shape[0] != points
            or self.alternatives.shape[1] < nodes
            or (self.bound_s is not None and self.bound_s.shape != (points,))
        ):
            raise ProblemError(
                f"Frontier: arrays must agree on {points} points and {nodes} nodes, got memory_bytes "
                f"{self.memory_bytes.shape}, assignments {self.assignments.shape}, alternatives "
                f"{self.alternatives.shape}. Give one row per point."
            )
        if not (np.all(np.diff(self.memory_bytes) > 0) and np.all(np.diff(self.time_s) < 0)):
            raise ProblemError(
                "Frontier: memory must ascend and time descend strictly, got "
                f"memory_bytes={self.memory_bytes.tolist()[:8]}, time_s={self.time_s.tolist()[:8]}. Reduce "
                "the points."
            )
        for array in (self.time_s, self.memory_bytes, self.assignments, self.alternatives):
            array.flags.writeable = False

    def _repr_html_(self) -> str:
        """The frontier as notebooks show it."""
        # By its name: pages belong to a later room, and a frontier does without them.
        text: str = importlib.import_module("tensoropt.search.plan_page").frontier_page(self).fragment()
        return text

    def __len__(self) -> int:
        return len(self.time_s)

    def __str__(self) -> str:
        first, last = self.point(0), self.point(len(self) - 1)
        return (
            f"Frontier({len(self)} points{'' if self.exact else ', not exact'}: {first.time_s:.6g} s in "
            f"{first.memory_bytes:.6g} bytes ... {last.time_s:.6g} s in {last.memory_bytes:.6g} bytes)"
        )

    def rows(self, points: IntArray | slice = slice(None)) -> tuple[IntArray, IntArray]:
        """Assignments and alternatives of some points, or of all."""
        return self.assignments.T[:, points].T, self.alternatives.T[:, points].T

    def point(self, index: int) -> FrontierPoint:
        """The point at ``index`` (0 has the least memory, the last the least time)."""
        return FrontierPoint(
            index=index,
            time_s=float(self.time_s[index]),
            memory_bytes=float(self.memory_bytes[index]),
            assignment=tuple(self.assignments[index].tolist()),
            alternatives=tuple(self.alternatives[index].tolist()),
            provenance=self.provenance,
            exact=self.exact,
            searched=self.searched,
            bound_s=None if self.bound_s is None else float(self.bound_s[index]),
        )

    def best(self, memory_bytes: float | None = None) -> FrontierPoint:
        """The fastest point that takes at most ``memory_bytes`` (no limit if None).

        Raises:
            InfeasibleError: nothing fits; the message says how much is missing.
            ProblemError: the limit is no number.
        """
        if memory_bytes is None:
            return self.point(len(self) - 1)
        given: Any = memory_bytes
        if not isinstance(given, Real) or math.isnan(given):
            raise ProblemError(
                f"Frontier: memory_bytes must be a number of bytes, got {memory_bytes!r}. Give for example 8e9, or "
                "leave it out for no limit."
            )
        index = int(np.searchsorted(self.memory_bytes, memory_bytes, side="right")) - 1
        if index < 0:
            least = float(self.memory_bytes[0])
            raise InfeasibleError(
                f"Frontier: a strategy must fit in {memory_bytes:.0f} bytes, but the least that any takes is "
                f"{least:.0f} bytes: {least - memory_bytes:.0f} bytes are missing. Allow {least:.0f} bytes, "
                "use more devices, or make the batch smaller."
            )
        return self.point(index)

    def turning_point(self) -> FrontierPoint:
        """The knee (TensorOpt, section 5.1): below its memory time rises fast, beyond it time hardly falls.

        It is the point farthest below the straight line from the first point to the last, both axes scaled to
        0..1; of equal ones, that of least memory. A frontier of one or two points turns at its first.
        """
        memory = self.memory_bytes - self.memory_bytes[0]
        time = self.time_s - self.time_s[-1]
        if len(self) < 3:
            return self.point(0)
        return self.point(int(np.argmin(memory / memory[-1] + time / time[0])))

    def plot(
        self,
        path: str | os.PathLike[str],
        *,
        memory_limit_bytes: float | None = None,
        title: str | None = None,
        others: Mapping[str, Frontier] | None = None,
    ) -> None:
        """Draws time per iteration over memory per device, with the turning point, to an image file.

        Args:
            path: where to; its ending says the format (``.png``, ``.svg``, ``.pdf``).
            memory_limit_bytes: drawn as a line.
            title: above the picture; by default the devices, where they are known.
            others: frontiers (of one point, for single strategies) to draw beside this one, by name.

        Raises:
            PlotError: matplotlib is missing, or cannot write such a file.
        """
        where = "" if self.provenance is None else str(self.provenance.topology)
        knee = self.turning_point()
        draw_frontiers(
            path,
            {"frontier": (self.memory_bytes, self.time_s)}
            | {name: (other.memory_bytes, other.time_s) for name, other in (others or {}).items()},
            turning_points={"frontier": (knee.memory_bytes, knee.time_s)},
            memory_limit_bytes=memory_limit_bytes,
            title=title if title is not None else where,
        )

    def to_json(self) -> str:
        """The frontier as JSON text; `from_json` gives it back unchanged."""
        return json.dumps(
            {
                "schema": _SCHEMA,
                "names": self.names,
                "time_s": self.time_s.tolist(),
                "memory_bytes": self.memory_bytes.tolist(),
                "assignments": self.assignments.tolist(),
                "alternatives": self.alternatives.tolist(),
                "exact": self.exact,
                "eliminations": [
                    {
                        "kind": step.kind,
                        "nodes": step.nodes,
                        "into": step.into,
                        "configuration": step.configuration,
                    }
                    for step in self.eliminations
                ],
                "seconds": self.seconds,
                # Left out where there is none, so that frontiers of bare problems stay what they were.
                **({} if self.provenance is None else {"provenance": self.provenance.to_json()}),
                **({} if self.searched is None else {"searched": self.searched}),
                **({} if self.bound_s is None else {"bound_s": self.bound_s.tolist()}),
            }
        )

    @classmethod
    def from_json(cls, text: str | bytes) -> Frontier:
        """Reads what `to_json` wrote.

        Raises:
            ProblemError: the text is not JSON, of another schema, or malformed; in at most 500 characters.
        """
        remedy = "Give the text that Frontier.to_json wrote."
        try:
            return _read_frontier(parse_json(text))
        except ValueError as error:  # no JSON, bytes that are no text, or no text at all
            raise refused(ProblemError, "Frontier JSON", f"cannot be read ({error}).", remedy) from None
        except TensorOptError as error:
            raise refused(ProblemError, "Frontier JSON", error.args[0], remedy) from None


def _read_frontier(data: object) -> Frontier:
    schema = data.get("schema") if isinstance(data, dict) else type(data).__name__
    if isinstance(schema, bool) or schema != _SCHEMA:
        raise ProblemError(f"schema must be {_SCHEMA}, got {shortened(repr(schema), 40)}.")
    names = (
        "schema", "names", "time_s", "memory_bytes", "assignments", "alternatives", "exact", "eliminations", "seconds",
    )  # fmt: skip
    absent = object()
    fields = Fields.of(
        data, "malformed", ProblemError, names, dict.fromkeys(("provenance", "searched", "bound_s"), absent)
    )
    provenance, searched, bound_s = (fields.values[name] for name in ("provenance", "searched", "bound_s"))
    nodes = fields.texts("names")
    if len(set(nodes)) != len(nodes):
        raise ProblemError("malformed: two of 'names' are equal.")
    return Frontier(
        names=nodes,
        time_s=np.array(fields.numbers("time_s", least=0), np.float64),
        memory_bytes=np.array(fields.numbers("memory_bytes", least=0), np.float64),
        assignments=_indices(fields, "assignments"),
        alternatives=_indices(fields, "alternatives"),
        exact=fields.boolean("exact"),
        eliminations=tuple(_read_elimination(step) for step in fields.array("eliminations")),
        seconds=fields.number("seconds", least=0),
        provenance=None if provenance is absent else Provenance.from_json(provenance),
        searched=None if searched is absent else fields.text("searched"),
        bound_s=None if bound_s is absent else np.array(fields.numbers("bound_s", least=0), np.float64),
    )


def _read_elimination(data: object) -> Elimination:
    names = ("kind", "nodes", "into", "configuration")
    fields = Fields.of(data, "malformed: an elimination", ProblemError, names)
    configuration = fields.optional("configuration", lambda name: fields.integer(name, least=0))
    return Elimination(fields.text("kind"), fields.texts("nodes"), fields.texts("into"), configuration)


def _indices(fields: Fields, name: str) -> IntArray:
    """An array of arrays of integers from 0; there may be millions, so types are looked at by the row."""
    rows = fields.array(name)
    if all(isinstance(row, list) and set(map(type, row)) <= {int} for row in rows) and len(set(map(len, rows))) == 1:
        try:
            found = np.array(rows, np.int64)
        except OverflowError:
            found = np.array([[-1]])
        if not (found < 0).any():
            return found
    raise ProblemError(f"malformed: field {name!r} must be arrays of indices from 0, all of one length.")


def frontier_of(
    problem: Problem,
    assignments: npt.ArrayLike,
    alternatives: npt.ArrayLike | None = None,
    *,
    exact: bool,
    eliminations: Sequence[Elimination],
    seconds: float,
    searched: str | None = None,
) -> Frontier:
    """The frontier of given strategies: evaluated exactly by ``problem``, then reduced.

    Args:
        problem: what the strategies are for.
        assignments: ``(points, N)`` configuration indices, of which impossible ones drop out.
        alternatives: ``(points, N + E)``; zeros if omitted.
        exact: what the search claims.
        eliminations: what the search did.
        seconds: how long it took.
        searched: over what, if not over all strategies of the problem.

    Raises:
        ProblemError: indices break the format, or no strategy is possible.
    """
    rows = np.atleast_2d(np.asarray(assignments))
    picks = (
        np.zeros((len(rows), problem.nodes + len(problem.edges)), np.int64)
        if alternatives is None
        else np.atleast_2d(np.asarray(alternatives))
    )

    def kept(points: IntArray) -> tuple[IntArray, IntArray]:
        return rows[points].astype(np.int64, copy=False), picks[points].astype(np.int64, copy=False)

    given = Candidates(*problem.costs(rows, picks), kept)
    return frontier_among(
        problem.names, [given], exact=exact, eliminations=eliminations, seconds=seconds, searched=searched
    )


@dataclass(frozen=True, slots=True, eq=False)
class Candidates:
    """Strategies with their costs. Most are beaten, and those of a large model are large: rows are made of the others.

    Attributes:
        time_s: ``(points,)``, as ``Problem.costs`` gives them.
        memory_bytes: the same.
        rows: gives the assignments and the alternatives of such of them as it is told.
    """

    time_s: FloatArray
    memory_bytes: FloatArray
    rows: Callable[[IntArray], tuple[IntArray, IntArray]]


def frontier_among(
    names: tuple[str, ...],
    candidates: Sequence[Candidates],
    *,
    apart: float = 0.0,
    exact: bool,
    eliminations: Sequence[Elimination],
    seconds: float,
    searched: str | None = None,
) -> Frontier:
    """The frontier of strategies whose costs are known; of equal ones the first stays.

    Args:
        names: the problem's nodes.
        candidates: what there is, of which impossible ones drop out.
        apart: how near points may be to others that stand for them, see `spread`.
        exact: what the search claims.
        eliminations: what the search did.
        seconds: how long it took.
        searched: over what, if not over all strategies of the problem.

    Raises:
        ProblemError: no strategy is possible.
    """
    time = np.concatenate([each.time_s for each in candidates])
    memory = np.concatenate([each.memory_bytes for each in candidates])
    kept, _ = reduce_segments(np.array([0, len(time)]), time, memory)
    if apart and len(kept):
        kept = kept[spread(time[kept], memory[kept], apart)]
    starts = np.cumsum([0, *(len(each.time_s) for each in candidates)])
    owner = np.searchsorted(starts, kept, side="right") - 1
    places = [np.flatnonzero(owner == number) for number in range(len(candidates))]
    parts = [each.rows(kept[own] - start) for each, own, start in zip(candidates, places, starts[:-1], strict=True)]
    assignments, alternatives = (_together(rows, places) for rows in zip(*parts, strict=True))
    return Frontier(
        names=names,
        time_s=time[kept],
        memory_bytes=memory[kept],
        assignments=assignments,
        alternatives=alternatives,
        exact=exact,
        eliminations=tuple(eliminations),
        seconds=seconds,
        searched=searched,
    )


def joined(frontiers: Sequence[Frontier], *, apart: float = 0.0) -> Frontier:
    """Frontiers of one problem as one, which is not called exact; its eliminations are those of the first.

    Args:
        frontiers: at least one.
        apart: see `frontier_among`.
    """
    return frontier_among(
        frontiers[0].names,
        [Candidates(one.time_s, one.memory_bytes, one.rows) for one in frontiers],
        apart=apart,
        exact=False,
        eliminations=frontiers[0].eliminations,
        seconds=sum(one.seconds for one in frontiers),
    )


def by_both_costs(problem: Problem, search: Callable[[Problem], Frontier], *, apart: float = 0.0) -> Frontier:
    """What a search finds that thins strategies by time, with what it finds where memory stands for time, as one.

    Args:
        problem: what strategies are for.
        search: gives strategies of a problem, of no more memory than others and almost as fast.
        apart: see `frontier_among`.

    Raises:
        ProblemError: no strategy is possible.
    """
    by_time = search(problem)
    by_memory = search(problem.with_tables(lambda time_s, memory_bytes, _: (memory_bytes, time_s)))
    return frontier_among(
        problem.names,
        [
            Candidates(by_time.time_s, by_time.memory_bytes, by_time.rows),
            Candidates(by_memory.memory_bytes, by_memory.time_s, by_memory.rows),
        ],
        apart=apart,
        exact=False,
        eliminations=by_time.eliminations,
        seconds=by_time.seconds + by_memory.seconds,
    )


def _together(parts: Sequence[IntArray], places: Sequence[IntArray]) -> IntArray:
    """Rows of all, each at its place; of several, a column lies in one piece, as costs are looked up by the column."""
    if len(parts) == 1:
        return parts[0]
    columns = np.concatenate([part.T for part in parts], axis=1)
    return columns.take(np.argsort(np.concatenate(places)), axis=1).T
