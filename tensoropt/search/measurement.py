"""`Measurement`: what steps of a run took, beside what the plan predicts for them."""

from __future__ import annotations

import dataclasses
import json
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tensoropt.cost import collective_key, gradient_positions, whole_key
from tensoropt.errors import ProblemError
from tensoropt.graph.registry import traits
from tensoropt.plan.plan import Plan
from tensoropt.plan.recorded_steps import Kernel, RankSteps
from tensoropt.plan.summary import communicates, part_of
from tensoropt.search.report import Grid, Shown, figure
from tensoropt.search.strategy_table import fitted, in_units
from tensoropt.space.space import SearchSpace
from tensoropt.viz.canvas import seconds_unit

__all__ = ["Measured", "Measurement"]

_SCHEMA = 1
_SHOWN = 20
_NAME = 50


@dataclass(frozen=True, slots=True)
class Measured:
    """An operator or an edge, predicted and measured.

    Attributes:
        subject: its name.
        communicates: whether what was measured of it is collectives.
        predicted_s: seconds per step, by the plan, with those of gradients.
        seconds: measured: of work the slowest rank's, of collectives the time of the rank that came last.
        waited_s: what other ranks waited in its collectives, at most.
    """

    subject: str
    communicates: bool
    predicted_s: float
    seconds: float
    waited_s: float

    @property
    def error_s(self) -> float:
        """How much longer than predicted it took."""
        return self.seconds - self.predicted_s


@dataclass(frozen=True, slots=True)
class Measurement(Shown):
    """Steps of a run beside the plan that they ran by.

    Attributes:
        plan: of the run.
        ranks: what each rank recorded, at the pace of steps that are not traced.
        step_s: seconds of a step, the median of those that were not traced, of the slowest rank.
        predicted_s: the plan's.
        rows: operators and edges, those that took longest first.
    """

    _COLUMNS: ClassVar[int] = 110

    plan: Plan
    ranks: tuple[RankSteps, ...]
    step_s: float
    predicted_s: float
    rows: tuple[Measured, ...]

    @classmethod
    def of(cls, plan: Plan, ranks: Sequence[RankSteps]) -> Measurement:
        """Adds up what ranks recorded.

        Raises:
            ProblemError: they recorded no step of training, or other ones on each.
        """
        counts = [(len(rank.timed_s), len(rank.traced)) for rank in ranks]
        if len(set(counts)) != 1 or 0 in counts[0]:
            raise ProblemError(
                "Measurement: all ranks must have run the same training steps, two at least: one is timed, one traced. "
                f"Got, by rank, {counts} of each. Train some steps while it records."
            )
        step_s = max(statistics.median(rank.timed_s) for rank in ranks)
        ranks = _at_the_pace_of(step_s, ranks)
        predicted = _predicted(plan)
        found: dict[str, list[tuple[float, float, bool]]] = defaultdict(list)
        for steps in zip(*(rank.traced for rank in ranks), strict=True):
            for subject, entry in _of_step(steps).items():
                found[subject].append(entry)
        rows = [
            Measured(
                subject,
                any(entry[2] for entry in entries),
                predicted.get(subject, 0.0),
                statistics.median(entry[0] for entry in entries),
                statistics.median(entry[1] for entry in entries),
            )
            for subject, entries in found.items()
        ]
        rows.sort(key=lambda row: (-max(row.seconds, row.predicted_s), row.subject))
        return cls(plan, tuple(ranks), step_s, plan.time_s, tuple(rows))

    @property
    def work_s(self) -> dict[str, float]:
        """Seconds of each operator's and edge's own work in a step, without collectives: the median, of the rank that
        works most in all.
        """
        found: dict[str, list[float]] = defaultdict(list)
        for steps in zip(*(rank.traced for rank in self.ranks), strict=True):
            work = _work_of_step([_shared(kernels) for kernels in steps])
            totals = [sum(column) for column in zip(*work.values(), strict=True)]
            busiest = totals.index(max(totals)) if totals else 0
            for subject, seconds in work.items():
                found[subject].append(seconds[busiest])
        return {subject: statistics.median(seconds) for subject, seconds in found.items()}

    def factors(self, space: SearchSpace) -> dict[str, float]:
        """Returns the ratios of measured to predicted operator times, for :meth:`OpProfile.scaled`.

        An operator that takes longer in a step than alone does so however it is split: its factor is for all its
        configurations, and those of an optimizer's updates are for the curve of their type. An edge's is shared by its
        collectives, each of which has one factor for its kind and mesh axes.

        Args:
            space: of the plan's model and cluster, with measured costs.

        Raises:
            PlanError: the plan is not of the space.
        """
        took: dict[str, float] = defaultdict(float)
        told: dict[str, float] = defaultdict(float)
        work_s, rows = self.work_s, {row.subject: row.seconds for row in self.rows}
        assignment, alternatives = space.strategy_of(self.plan)
        for op, index in zip(space.operators, assignment.tolist(), strict=True):
            own_s = space.node_costs(op.name, index)[0] - space.internal_seconds(op.name, index)
            if work_s.get(op.name, 0.0) <= 0 or own_s <= 0:
                continue
            key = f"update {op.type}"
            if not traits(op).updates:
                inputs, positions = space.graph.input_specs(op), gradient_positions(space.graph, op)
                key = whole_key(op, space.rules[op.name], inputs, space.mesh, *positions)
            took[key] += work_s[op.name]
            told[key] += own_s
        now = space.plan(assignment.tolist(), self.plan.option, alternatives=alternatives, peak=False)
        for edge, entry in now.edges.items():
            for move in entry.moves:
                if communicates(part_of(move)) and rows.get(str(edge), 0.0) > 0 and move.seconds > 0:
                    key = collective_key(move.kind, move.axes)
                    took[key] += rows[str(edge)] * move.seconds / entry.time_s
                    told[key] += move.seconds
        return {key: seconds / told[key] for key, seconds in took.items()}

    @property
    def error(self) -> float:
        """By which share of the measured step the prediction is off."""
        return abs(self.predicted_s - self.step_s) / self.step_s

    def to_json(self) -> str:
        """JSON text: the step and all rows."""
        value = {
            "schema": _SCHEMA,
            "option": self.plan.option,
            "devices": self.plan.mesh.size,
            "graph": self.plan.fingerprint,
            "step_s": self.step_s,
            "predicted_s": self.predicted_s,
            "rows": [dataclasses.asdict(row) | {"error_s": row.error_s} for row in self.rows],
        }
        return json.dumps(value)

    def chrome_trace(self, predicted: Mapping[str, Any] | None = None) -> str:
        """The last traced step of all ranks, as ``chrome://tracing`` and Perfetto read it.

        Args:
            predicted: another trace, as JSON has it, whose processes come below.
        """
        events: list[dict[str, Any]] = []
        for number, rank in enumerate(self.ranks):
            events.append(_metadata("process_name", number, 0, f"rank {number}, measured"))
            events.append(_metadata("process_sort_index", number, 0, number, "sort_index"))
            for thread, name in ((0, "compute"), (1, "collectives")):
                events.append(_metadata("thread_name", number, thread, name))
            for kernel in rank.traced[-1]:
                events.append(
                    {
                        "ph": "X",
                        "name": kernel.subject,
                        "cat": "backward" if kernel.backward else "forward",
                        "pid": number,
                        "tid": int(kernel.collective),
                        "ts": kernel.start_s * 1e6,
                        "dur": kernel.seconds * 1e6,
                        "args": {"kernel": kernel.name},
                    }
                )
        below = len(self.ranks)
        for event in (predicted or {}).get("traceEvents", []):
            moved = {**event, "pid": event["pid"] + below}
            if event.get("name") == "process_name":
                moved["args"] = {"name": f"{event['args']['name']}, predicted"}
                events.append(_metadata("process_sort_index", moved["pid"], 0, moved["pid"], "sort_index"))
            events.append(moved)
        return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})

    @property
    def verdict(self) -> str:
        """The step's time beside its prediction, in a sentence."""
        return (
            f"{self.plan.option} on {self.plan.mesh.size} devices: a step took {in_units(self.step_s)}, predicted were "
            f"{in_units(self.predicted_s)} ({self.predicted_s / self.step_s - 1:+.0%})."
        )

    def longest(self) -> Grid:
        """A table of what took longest, or was to."""
        rows = self.rows[:_SHOWN]
        second, second_name = seconds_unit([max(row.seconds, row.predicted_s) for row in rows] or [1.0])
        cells = [
            [
                fitted(row.subject, _NAME),
                "network" if row.communicates else "work",
                *(figure(value, 1 / second) for value in (row.predicted_s, row.seconds, row.error_s, row.waited_s)),
            ]
            for row in rows
        ]
        headers = ("operator or edge", "", f"predicted, {second_name}", "measured", "more by", "others waited")
        return Grid(headers, cells, (0, 1), framed=False)

    def _parts(self) -> Sequence[str | Grid]:
        kinds = []
        for name, is_network in (("work", False), ("network", True)):
            mine = [row for row in self.rows if row.communicates is is_network]
            predicted, measured = sum(row.predicted_s for row in mine), sum(row.seconds for row in mine)
            kinds.append(f"{name} {in_units(measured)}, predicted {in_units(predicted)}")
        more = f"; {len(self.rows) - _SHOWN} more" if len(self.rows) > _SHOWN else ""
        return (
            self.verdict,
            self.longest(),
            f"In all {'; '.join(kinds)}{more}. Every other step was traced, and is set to the pace of the rest.",
        )


def _at_the_pace_of(step_s: float, ranks: Sequence[RankSteps]) -> list[RankSteps]:
    """Ranks with traced kernels as long as they are in steps without a trace, which makes all of them longer."""
    spans = [
        max((kernel.start_s + kernel.seconds for kernels in each for kernel in kernels), default=0.0)
        for each in zip(*(rank.traced for rank in ranks), strict=True)
    ]
    pace = min(1.0, step_s / max(statistics.median(spans), step_s))
    return [
        RankSteps(
            rank.timed_s,
            tuple(
                tuple(
                    dataclasses.replace(kernel, start_s=kernel.start_s * pace, seconds=kernel.seconds * pace)
                    for kernel in kernels
                )
                for kernels in rank.traced
            ),
        )
        for rank in ranks
    ]


def _predicted(plan: Plan) -> dict[str, float]:
    """Seconds per step by operator and by edge."""
    return {name: entry.time_s for name, entry in plan.operators.items()} | {
        str(edge): entry.time_s for edge, entry in plan.edges.items()
    }


def _of_step(ranks: Sequence[Sequence[Kernel]]) -> dict[str, tuple[float, float, bool]]:
    """Returns by subject, for one step: seconds, the most seconds that a rank waited, and whether it is a collective.

    Ranks run the same collectives in the same order. The rank that comes last to a collective waits for nobody.
    """
    ranks = [_shared(kernels) for kernels in ranks]
    calls: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for kernels in ranks:
        for kernel in kernels:
            if kernel.collective:
                calls[kernel.subject][kernel.name].append(kernel.seconds)
    found = {subject: (max(seconds), 0.0, False) for subject, seconds in _work_of_step(ranks).items()}
    for subject, named in calls.items():
        talked = sum(min(seconds) for seconds in named.values())
        waited = sum(max(seconds) - min(seconds) for seconds in named.values())
        own = found.get(subject, (0.0, 0.0, False))[0]
        found[subject] = (talked + own, waited, True)
    return found


def _shared(kernels: Sequence[Kernel]) -> list[Kernel]:
    """Kernels with their parts of the device's time: those that run at one moment have equal parts of it."""
    starts = np.array([kernel.start_s for kernel in kernels])
    ends = starts + np.array([kernel.seconds for kernel in kernels])
    moments = np.unique(np.concatenate([starts, ends]))
    running = np.searchsorted(np.sort(starts), moments[:-1], "right") - np.searchsorted(
        np.sort(ends), moments[:-1], "right"
    )
    passed = np.concatenate([[0.0], np.cumsum(np.diff(moments) / np.maximum(running, 1))])
    parts = passed[np.searchsorted(moments, ends)] - passed[np.searchsorted(moments, starts)]
    return [dataclasses.replace(kernel, seconds=part) for kernel, part in zip(kernels, parts.tolist(), strict=True)]


def _work_of_step(ranks: Sequence[Sequence[Kernel]]) -> dict[str, list[float]]:
    """Returns by subject, for one step, each rank's seconds outside of collectives."""
    work: dict[str, list[float]] = defaultdict(lambda: [0.0] * len(ranks))
    for place, kernels in enumerate(ranks):
        for kernel in kernels:
            if not kernel.collective:
                work[kernel.subject][place] += kernel.seconds
    return work


def _metadata(name: str, process: int, thread: int, value: object, key: str = "name") -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": process, "tid": thread, "args": {key: value}}
