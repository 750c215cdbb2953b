"""`StrategyTable`: a plan by its layers, for people."""

from __future__ import annotations

import dataclasses
import math
import re
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tensoropt.plan.plan import Plan
from tensoropt.plan.summary import LayerRow, PlanSummary, family_name
from tensoropt.search.report import Grid, Shown, figure
from tensoropt.storage.document import shortened
from tensoropt.viz.canvas import bytes_unit, seconds_unit

__all__ = ["StrategyTable", "family_text", "fitted", "in_units", "kept_text", "plan_title"]

_NAME, _SPLIT = 25, 25
_MARK = "*"


@dataclass(frozen=True, slots=True)
class StrategyTable(Shown):
    """One row for each layer of a plan, equal layers once.

    Attributes:
        plan: that is shown.
        rows: its layers, equal ones in one.
        title: the plan in a line.
    """

    _COLUMNS: ClassVar[int] = 80

    plan: Plan
    rows: tuple[LayerRow, ...]
    title: str

    @classmethod
    def of(cls, plan: Plan) -> StrategyTable:
        """The table of a plan, which needs no model.

        Raises:
            PlanError: the plan says nothing of its layers.
        """
        summary = PlanSummary(plan)
        return cls(plan, summary.rows(), plan_title(summary))

    def to_json(self) -> list[dict[str, Any]]:
        """The rows as plain values; figures are of all layers of a row together."""
        return [dataclasses.asdict(row) for row in self.rows]

    def _parts(self) -> Sequence[str | Grid]:
        rows = self.rows
        constant_s = self.plan.setting.constant_s if self.plan.setting is not None else 0.0
        figures = [(row.own_s, row.network_s, row.memory_bytes) for row in rows]
        total = [math.fsum(column) for column in zip(*figures, strict=True)] or [0.0, 0.0, 0.0]
        second, second_name = seconds_unit([value for own_s, network_s, _ in figures for value in (own_s, network_s)])
        byte, byte_name = bytes_unit([size_bytes for _, _, size_bytes in figures])

        def in_columns(values: Sequence[float]) -> list[str]:
            return [figure(value, 1 / scale) for value, scale in zip(values, (second, second, byte), strict=True)]

        cells = [["", "", "", second_name, second_name, byte_name]]
        for row, values in zip(rows, figures, strict=True):
            first, *further = _broken(row.split)
            mark = _MARK if row.differs else " "
            cells.append(
                [f"{mark} {family_text(row.layers, _NAME)}", first, kept_text(row.pieces), *in_columns(values)]
            )
            cells += [["", more, "", "", "", ""] for more in further]
        cells.append(["  total", "", "", *in_columns(total)])
        headers = ("  layer", "split", "kept", "compute", "network", "memory")
        remarks = [f"{_MARK} not as in data parallelism" if any(row.differs for row in rows) else ""]
        if constant_s:
            remarks.append(f"every step takes {in_units(constant_s)} besides")
        remarks.append("kept: of the variables, by a device; ×n: figures of all n")
        if any(entry.configuration.at for entry in self.plan.operators.values()):
            remarks.append("each layer's figures are of its own devices, and devices work at the same time")
        return (self.title, Grid(headers, cells, (0, 1, 2), framed=False), _sentence(remarks) + _noted(self.plan))


def plan_title(summary: PlanSummary) -> str:
    """A plan in a line or two: option, cluster, mesh, time and memory."""
    plan, setting = summary.plan, summary.setting
    mesh = " × ".join(f"{axis.name} {axis.size}" for axis in summary.mesh) or "1 device"
    devices = f"{plan.mesh.size} device{'s' * (plan.mesh.size != 1)}"
    used, parts = plan.utilization, plan.micro_batches
    pipeline: Any = plan.notes.get("pipeline")
    through = "" if pipeline is None else f" through {pipeline['stages']} stages"
    split = f" of {parts} micro-batches{through}" if parts > 1 else ""
    return (
        f"{plan.option} on {devices} of {setting.cluster} (mesh: {mesh}):\n"
        f"{in_units(plan.time_s)} a step{split}, {in_units(plan.memory_bytes, 'bytes')} a device, predicted"
        f"{'' if used is None else f'; {used:.0%} of peak FLOPS'}"
    )


def fitted(name: str, width: int) -> str:
    """A name of at most so many characters: what is left out is in the middle."""
    if len(name) <= width:
        return name
    head = (width - 1) // 3
    return f"{name[:head]}…{name[len(name) - (width - 1 - head) :]}"


def family_text(names: Sequence[str], width: int | None = None) -> str:
    """One name for several that differ in numbers, and how many they are; in so many characters, if that is said."""
    count, name = f" ×{len(names)}" if len(names) > 1 else "", family_name(names)
    return (name if width is None else fitted(name, width - len(count))) + count


def _broken(text: str) -> list[str]:
    """Lines of a split's words, broken between its parts."""
    joined = re.sub(r"\S+( channels)? over \d+", lambda match: match[0].replace(" ", "\x00"), text)
    return [line.replace("\x00", " ") for line in textwrap.wrap(joined, _SPLIT)] or [""]


def kept_text(pieces: int | None) -> str:
    """Returns which part of a layer's variables a device keeps; nothing where there are none."""
    return "" if pieces is None else "all" if pieces == 1 else f"1/{pieces}"


def in_units(value: float, kind: str = "seconds") -> str:
    """Seconds, or bytes, in a unit that suits them."""
    scale, unit = seconds_unit([value]) if kind == "seconds" else bytes_unit([value])
    return f"{figure(value, 1 / scale)} {unit}"


def _sentence(remarks: Sequence[str]) -> str:
    said = "; ".join(filter(None, remarks))
    return f"{said}." if said else ""


def _noted(plan: Plan) -> str:
    """Returns a line on the search space and the search."""
    count = len(plan.again)
    said = [f"Made again in the backward pass: {count} operator{'s' * (count != 1)}"] if count else []
    said += [
        shortened(f"{label}: {plan.notes[key]}")
        for key, label in (("space", "Space"), ("searched", "Search"), ("kernels", "Kernels"))
        if key in plan.notes
    ]
    return "\n" + ". ".join(said) if said else ""
