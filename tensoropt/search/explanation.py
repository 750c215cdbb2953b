"""`Explanation`: where a plan's time and memory go, what its layers' second-best splits cost, and why others lose."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tensoropt.graph.graph import Edge
from tensoropt.plan.account import Move
from tensoropt.plan.plan import Plan
from tensoropt.plan.summary import LayerRow, MeshAxis, PlanSummary, axes_text, communicates, family_key, part_of
from tensoropt.search.report import Grid, Shown, figure
from tensoropt.search.strategy_table import family_text, fitted, in_units, plan_title
from tensoropt.viz.canvas import bytes_unit, seconds_unit

__all__ = [
    "COLLECTIVES",
    "Collective",
    "Explanation",
    "Peak",
    "Rival",
    "RunnerUp",
    "differences",
    "differing_text",
    "signed",
]

COLLECTIVES = 10
"""So many of a plan's collectives are explained, those that take longest."""

_SCHEMA = 1
_NAME = 30
_SAME = 5e-4
"""A part of the time, or of the memory, that differs by less than this share of the whole is the same to people."""


@dataclass(frozen=True, slots=True)
class Collective:
    """An exchange of data between devices on an edge, or on the equal edges of several layers.

    Attributes:
        kind: of the step (:class:`tensoropt.layout.StepKind`).
        when: ``forward``, ``backward``, or ``again`` for a copy that is made again in the backward pass.
        axes: the mesh axes that take part, by their names.
        edges: the edges, as ``tensor -> consumer[position]``.
        seconds: of all of them.
        size_bytes: of the piece that a device begins with, on one edge.
        sent_bytes: what all devices send, on all edges.
    """

    kind: str
    when: str
    axes: str
    edges: tuple[str, ...]
    seconds: float
    size_bytes: float
    sent_bytes: float


@dataclass(frozen=True, slots=True)
class Peak:
    """The most that a device is predicted to hold at any time of a step, and when.

    Attributes:
        memory_bytes: all together.
        operator: whose work it is at that time.
        layer: the operator's.
        backward: whether that is in the backward pass.
        bytes: by what they are: ``variables``, ``inputs``, ``activations``, ``moved``, ``gradients`` (of activations),
            ``variable_gradients``, ``scratch``.
    """

    memory_bytes: float
    operator: str
    layer: str | None
    backward: bool
    bytes: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class RunnerUp:
    """The best strategy in which a layer's main operator is split otherwise.

    Attributes:
        layers: the layer, with those that are equal to it.
        operator: of the first of them, that is split otherwise.
        split: how the plan splits it, in words.
        instead: how the runner-up does.
        time_s: predicted seconds of a step; None if every other split is impossible, or does not fit.
        lost_s: how much more that is than the plan's, by the same costs.
        memory_bytes: what it takes on a device.
        why: which parts take longer, and what it needs more.
    """

    layers: tuple[str, ...]
    operator: str
    split: str
    instead: str | None
    time_s: float | None
    lost_s: float | None
    memory_bytes: float | None
    why: str


@dataclass(frozen=True, slots=True)
class Rival:
    """A known layout as a rival of the plan, with its predicted costs.

    Attributes:
        name: of the baseline.
        time_s: predicted seconds of a step; None where it does not apply.
        memory_bytes: on a device.
        fits: whether it keeps to the memory.
        why: why it loses, in a sentence, or does not apply.
    """

    name: str
    time_s: float | None
    memory_bytes: float | None
    fits: bool | None
    why: str


@dataclass(frozen=True, slots=True)
class Explanation(Shown):
    """A plan explained.

    Attributes:
        title: the plan in two lines.
        option: what chose it.
        devices: how many.
        cluster: the cluster's name.
        mesh: its axes.
        time_s: predicted seconds per step, the sum of ``seconds``.
        memory_bytes: predicted per device, the sum of ``bytes``.
        seconds: by parts, see :attr:`tensoropt.plan.summary.PlanSummary.seconds`.
        bytes: by parts, see :attr:`tensoropt.plan.summary.PlanSummary.bytes`.
        layers: their shares of both, how they are split; equal ones in one row.
        peak: the most that is held at once; None where operators are on a part of the devices.
        collectives: those that take longest; equal ones of several layers are one.
        collectives_in_all: how many there are.
        runner_ups: of every layer that is split; None where the model is not here.
        rivals: data parallelism, Megatron's and ZeRO's layouts; None where the model is not here.
        missing: why there are no runner-ups, and perhaps no rivals; None where there are both.
        searched: over what the plan was searched, if it was.
    """

    _COLUMNS: ClassVar[int] = 100

    title: str
    option: str
    devices: int
    cluster: str
    mesh: tuple[MeshAxis, ...]
    time_s: float
    memory_bytes: float
    seconds: Mapping[str, float]
    bytes: Mapping[str, float]
    layers: tuple[LayerRow, ...]
    peak: Peak | None
    collectives: tuple[Collective, ...]
    collectives_in_all: int
    runner_ups: tuple[RunnerUp, ...] | None = None
    rivals: tuple[Rival, ...] | None = None
    missing: str | None = None
    searched: str | None = None

    @classmethod
    def of(cls, plan: Plan, missing: str = "the plan's model is not here") -> Explanation:
        """Makes the explanation that a plan gives by itself, without its model.

        Args:
            plan: any plan.
            missing: why the explanation has no more.

        Raises:
            PlanError: the plan has no account of its operators.
        """
        summary = PlanSummary(plan)
        found = _collectives(summary)
        return cls(
            plan_title(summary),
            plan.option,
            plan.mesh.size,
            summary.setting.cluster,
            summary.mesh,
            plan.time_s,
            plan.memory_bytes,
            summary.seconds,
            summary.bytes,
            summary.rows(),
            _peak(summary),
            found[:COLLECTIVES],
            sum(len(one.edges) for one in found),
            missing=missing,
            searched=str(plan.notes["searched"]) if plan.notes.get("searched") else None,
        )

    @property
    def lacking(self) -> str | None:
        """A sentence that names the missing parts of the explanation and the reason; None if nothing is missing."""
        what = "second-best splits" if self.rivals is not None else "second-best splits and known layouts"
        return None if self.missing is None else f"No {what}: {self.missing}."

    def to_json(self) -> str:
        """JSON text: all attributes by their names."""
        return json.dumps({"schema": _SCHEMA, **dataclasses.asdict(self)})

    def _parts(self) -> Sequence[str | Grid]:
        parts: list[str | Grid] = [self.title]
        parts += ["\nTime of a step", _shares(self.seconds, self.time_s, "seconds")]
        parts += ["\nMemory of a device", _shares(self.bytes, self.memory_bytes, "bytes")]
        if self.peak is not None:
            parts.append(_peak_text(self.peak))
        if self.collectives:
            shown = sum(len(one.edges) for one in self.collectives)
            parts += [f"\nCollectives that take longest ({shown} of {self.collectives_in_all})", self._collectives()]
        if self.runner_ups:
            parts += ["\nSecond-best splits of layers, all else as suits them best", self._runner_ups()]
        elif self.runner_ups is not None:
            parts.append("\nNo layer is split.")
        if self.rivals is not None:
            parts += ["\nKnown layouts", self._rivals()]
        if self.lacking is not None:
            parts.append(f"\n{self.lacking}")
        if self.searched is not None:
            parts.append(f"\nSearched: {self.searched}.")
        return parts

    def _collectives(self) -> Grid:
        second, second_name = seconds_unit([one.seconds for one in self.collectives])
        byte, byte_name = bytes_unit([one.sent_bytes for one in self.collectives])
        cells = []
        for one in self.collectives:
            cells.append(
                [
                    one.kind,
                    one.axes,
                    one.when,
                    family_text(one.edges, 2 * _NAME),
                    figure(one.seconds, 1 / second),
                    figure(one.sent_bytes, 1 / byte),
                ]
            )
        return Grid(
            ("kind", "over", "when", "edge", second_name, f"{byte_name} sent"), cells, (0, 1, 2, 3), framed=False
        )

    def _runner_ups(self) -> Grid:
        cells = []
        for one in self.runner_ups or ():
            lost = "-" if one.lost_s is None else signed(one.lost_s, "seconds")
            cells.append([family_text(one.layers, _NAME - 4), one.split, one.instead or "-", lost, one.why])
        return Grid(("layer", "split", "second best", "slower by", "why"), cells, (0, 1, 2, 4), framed=False)

    def _rivals(self) -> Grid:
        cells = []
        for one in self.rivals or ():
            time = "-" if one.time_s is None else in_units(one.time_s)
            memory = "-" if one.memory_bytes is None else in_units(one.memory_bytes, "bytes")
            cells.append([one.name, time, memory, one.why])
        return Grid(("layout", "step", "memory", "why"), cells, (0, 3), framed=False)


def differences(mine: Mapping[str, float], other: Mapping[str, float], whole: float) -> dict[str, float]:
    """Returns the differences of two plans by part, ``other`` less ``mine``, without parts that are about equal.

    The largest differences come first.

    Args:
        mine: figures by part.
        other: the same figures of the other plan.
        whole: the sum of ``mine``; differences that are small beside it are left out.
    """
    more = {part: other.get(part, 0.0) - mine.get(part, 0.0) for part in {**mine, **other}}
    told = {part: value for part, value in more.items() if abs(value) > _SAME * whole}
    return dict(sorted(told.items(), key=lambda item: (-abs(item[1]), item[0])))


def signed(value: float, kind: str) -> str:
    """Seconds, or bytes, with a sign and a unit."""
    return f"{'+' if value > 0 else '−' if value < 0 else ''}{in_units(abs(value), kind)}"


def differing_text(mine: PlanSummary, other: PlanSummary) -> str:
    """Describes in words how another plan's costs differ: ``all_reduce +1.2 ms, compute −0.3 ms; weights +2 MiB``."""
    said = []
    for one, two, whole, kind, most in (
        (mine.seconds, other.seconds, mine.plan.time_s, "seconds", 2),
        (mine.bytes, other.bytes, mine.plan.memory_bytes, "bytes", 1),
    ):
        parts = list(differences(one, two, whole).items())[:most]
        if parts:
            said.append(", ".join(f"{part} {signed(value, kind)}" for part, value in parts))
    return "; ".join(said) or "the same"


def _shares(values: Mapping[str, float], whole: float, kind: str) -> Grid:
    scale, unit = seconds_unit([whole]) if kind == "seconds" else bytes_unit([whole])
    rows = [(part, value) for part, value in values.items() if value or part == "constant"]
    cells = [
        [f"  {part}", figure(value, 1 / scale), f"{value / whole:.1%}" if whole else "-"]
        for part, value in [*rows, ("total", whole)]
    ]
    return Grid(("", unit, "share"), cells, (0,), framed=False)


def _peak(summary: PlanSummary) -> Peak | None:
    noted = summary.plan.notes.get("peak_memory")
    if not noted:
        return None
    operator, parts = str(noted["operator"]), noted["parts"]
    known = summary.plan.operators.get(operator)
    return Peak(
        float(noted["memory_bytes"]),
        operator,
        None if known is None or known.about is None else known.about.layer,
        bool(noted["backward"]),
        {str(part): float(value) for part, value in parts.items()} if isinstance(parts, Mapping) else {},
    )


def _peak_text(peak: Peak) -> str:
    pass_ = "backward" if peak.backward else "forward"
    parts = ", ".join(
        f"{part.replace('_', ' ')} {in_units(value, 'bytes')}"
        for part, value in sorted(peak.bytes.items(), key=lambda item: -item[1])
    )
    where = f"'{fitted(peak.operator, 2 * _NAME)}'"
    return f"  peak {in_units(peak.memory_bytes, 'bytes')}, in the {pass_} pass of {where}: {parts}"


def _collectives(summary: PlanSummary) -> tuple[Collective, ...]:
    """All collectives, those that take longest first; equal ones of equal layers are one."""
    alike: dict[tuple[object, ...], list[tuple[Edge, Move]]] = defaultdict(list)
    for edge, move in summary.moves():
        if communicates(part_of(move)):
            alike[family_key(str(edge)), move.kind, move.when, move.axes, move.size_bytes, move.sent_bytes].append(
                (edge, move)
            )
    found = [
        Collective(
            moves[0][1].kind,
            moves[0][1].when,
            axes_text(moves[0][1].axes, summary.mesh),
            tuple(str(edge) for edge, _ in moves),
            math.fsum(move.seconds for _, move in moves),
            moves[0][1].size_bytes,
            math.fsum(move.sent_bytes for _, move in moves),
        )
        for moves in alike.values()
    ]
    return tuple(sorted(found, key=lambda one: (-one.seconds, one.edges)))
