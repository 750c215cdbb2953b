"""`Comparison`: what searches and baselines find for one model on one cluster, side by side."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tensoropt.errors import ProblemError, did_you_mean
from tensoropt.plan.plan import Plan
from tensoropt.search.report import Report, figure
from tensoropt.storage.document import Fields

__all__ = ["Comparison", "ComparisonRow"]

_HEADERS = (
    "method", "time, ms", "simulated, ms", "memory, MiB", "network, ms", "network, MiB", "search, s", "remark",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One method, with the fastest strategy of those that it finds that fits.

    Attributes:
        method: its name.
        kind: ``search`` or ``baseline``.
        time_s: predicted seconds per step, all added (TensorOpt Eq. 1); None where there is no strategy.
        simulated_time_s: predicted by the simulator (FlexFlow section 5), as `Comparison.overlap` says; None of steps
            in micro-batches, or in which operators are made again.
        memory_bytes: what the strategy takes per device.
        network_time_s: the part of ``time_s`` that is communication.
        network_bytes: what all devices send in a step.
        search_s: seconds that finding it took, tables not included.
        fits: whether it keeps to the memory; if none of the method's does, it is the smallest of them.
        strategies: how many the method offers (a frontier's points).
        exact: of a frontier, whether it is exact (`Frontier.exact`); None of one strategy.
        reason: why there is no strategy; None where there is one.
        searched: over what, and what of that the method left out (`Frontier.searched`).
        plan: the strategy, with what was noted of it; None where there is none.
    """

    method: str
    kind: str
    time_s: float | None = None
    simulated_time_s: float | None = None
    memory_bytes: float | None = None
    network_time_s: float | None = None
    network_bytes: float | None = None
    search_s: float | None = None
    fits: bool | None = None
    strategies: int = 0
    exact: bool | None = None
    reason: str | None = None
    searched: str | None = None
    plan: Plan | None = None

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {**fields, "plan": None if self.plan is None else self.plan.to_json()}

    @classmethod
    def from_json(cls, data: object) -> ComparisonRow:
        """Reads what :meth:`to_json` wrote.

        Raises:
            PlanError: its plan is none.
            ProblemError: a field is unknown, missing or malformed.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        figures = [name for name in names if name.endswith(("_s", "_bytes"))]
        fields = Fields.of(data, "cannot be read: a row", ProblemError, names)
        plan = fields.values["plan"]
        return cls(
            fields.text("method"),
            fields.text("kind"),
            **{name: fields.optional(name, lambda name: fields.number(name, least=0)) for name in figures},
            fits=fields.optional("fits", fields.boolean),
            strategies=fields.integer("strategies", least=0),
            exact=fields.optional("exact", fields.boolean),
            reason=fields.optional("reason", fields.text),
            searched=fields.optional("searched", fields.text),
            plan=None if plan is None else Plan.from_json(plan),
        )

    def remark(self) -> str:
        """Returns the row's remark: why the method failed, or how its result is restricted."""
        if self.reason is not None:
            return self.reason
        parts = [] if self.fits else ["does not fit"]
        if self.kind == "search" and self.exact is False:
            parts.append("not exact")
        if self.searched is not None and not self.exact:
            parts.append(self.searched)
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class Comparison(Report):
    """All methods on one model and one cluster.

    Attributes:
        topology: the cluster's name.
        devices: how many it has.
        memory_limit: per device, for people.
        batch: samples per step; None where the model's inputs have no common batch.
        overlap: whether simulated times have communication beside computation; else collectives keep devices busy, as
            when a plan runs.
        tables_s: seconds that it took to price all strategies, once for all methods.
        rows: in the order in which they were asked for.
    """

    _SCHEMA: ClassVar[int] = 4
    _TEXTS: ClassVar[tuple[int, ...]] = (0, len(_HEADERS) - 1)
    _COLUMNS: ClassVar[int] = 160

    topology: str
    devices: int
    memory_limit: str
    batch: int | None
    overlap: bool
    tables_s: float
    rows: tuple[ComparisonRow, ...]

    def row(self, method: str) -> ComparisonRow:
        """The row of a method.

        Raises:
            ProblemError: if it was not compared.
        """
        for row in self.rows:
            if row.method == method:
                return row
        names = [row.method for row in self.rows]
        raise ProblemError(
            f"Comparison: {method!r} must be one of those compared, {', '.join(map(repr, names))}."
            f"{did_you_mean(method, names)}"
        )

    def plan(self, method: str) -> Plan:
        """The strategy of a method's row: for ``show_strategy``, ``find_strategy``, or to save.

        Raises:
            ProblemError: it was not compared, or has no strategy; the message says why.
        """
        row = self.row(method)
        if row.plan is None:
            known = ", ".join(repr(other.method) for other in self.rows if other.plan is not None)
            raise ProblemError(
                f"Comparison: {method!r} has no strategy to take. {row.reason or 'Its plan was not kept.'} "
                f"{f'Take one of {known}.' if known else 'Compare others.'}"
            )
        return row.plan

    def fastest(self, *, simulated: bool = False) -> ComparisonRow | None:
        """The row of least time of those that fit, of equal ones that of least memory; None where there is none.

        Args:
            simulated: whether the simulated time counts.
        """
        timed = [(row.simulated_time_s if simulated else row.time_s, row) for row in self.rows if row.fits]
        rows = [(time_s, row.memory_bytes or 0.0, row) for time_s, row in timed if time_s is not None]
        return min(rows, key=lambda found: found[:2], default=(0.0, 0.0, None))[2]

    def to_json(self) -> str:
        """JSON text; :meth:`from_json` gives the comparison back unchanged."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name != "rows"}
        return json.dumps({"schema": self._SCHEMA, **fields, "rows": [row.to_json() for row in self.rows]})

    def _title(self) -> str:
        batch = "" if self.batch is None else f", {self.batch} samples per step"
        return f"Predicted for {self.devices} devices of {self.topology}{batch}; at most {self.memory_limit}"

    def _remarks(self) -> str:
        """Returns the sentences below the table: the fastest methods, and how they were simulated."""
        added, simulated = self.fastest(), self.fastest(simulated=True)
        first, how = "Nothing fits.", ""
        if added is not None:
            first = f"Fastest of those that fit: {added.method}."
        if added is not None and simulated is not None:
            first = f"Fastest of those that fit: {added.method} by the sum, {simulated.method} by simulation."
            how = "communication beside computation" if self.overlap else "collectives that keep devices busy"
            how = f"Simulated with {how}. "
        return f"{first}\n{how}Pricing all strategies took {self.tables_s:.3g} s."

    def _headers(self) -> Sequence[str]:
        return _HEADERS

    def _cells(self) -> Sequence[Sequence[str]]:
        return [
            [
                row.method,
                figure(row.time_s, 1e3),
                figure(row.simulated_time_s, 1e3),
                figure(row.memory_bytes, 2**-20),
                figure(row.network_time_s, 1e3),
                figure(row.network_bytes, 2**-20),
                figure(row.search_s),
                row.remark(),
            ]
            for row in self.rows
        ]

    @classmethod
    def _read(cls, data: object) -> Comparison:
        names = ("schema", "topology", "devices", "memory_limit", "batch", "overlap", "tables_s", "rows")
        fields = Fields.of(data, "cannot be read", ProblemError, names)
        return cls(
            fields.text("topology"),
            fields.integer("devices", least=1),
            fields.text("memory_limit"),
            fields.optional("batch", lambda name: fields.integer(name, least=1)),
            fields.boolean("overlap"),
            fields.number("tables_s", least=0),
            tuple(map(ComparisonRow.from_json, fields.array("rows"))),
        )
