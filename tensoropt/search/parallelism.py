"""`ParallelismProfile`: what a model takes on different numbers of devices (TensorOpt section 4.1, "Profiling")."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from tensoropt.errors import ProblemError
from tensoropt.search.report import Report, figure
from tensoropt.storage.document import Fields
from tensoropt.viz.parallelism import draw_parallelism

__all__ = ["ParallelismProfile", "ParallelismRow"]

_HOUR_S = 3600.0
_MEMORY = (
    "Memory is what must fit: all that a device holds in a step, added up. The peak follows buffers through the step, "
    "and is mostly less."
)
_HINT = (
    "No plan was made. Start the job with the number of ranks of a row and call find_strategy('mini_time'); "
    "find_strategy('mini_parallelism') takes the fewest devices that fit."
)


@dataclass(frozen=True, slots=True)
class ParallelismRow:
    """One number of devices.

    Attributes:
        devices: how many.
        time_s: predicted seconds per step of the fastest strategy that fits; None where there is none.
        network_time_s: the part of it that is communication.
        memory_bytes: what it takes per device, added up over operators as searches and limits count it.
        peak_bytes: the most that a device holds at any time of a step, with temporaries (`tensoropt.space.peak`).
        samples_per_s: throughput; None also where the model's inputs have no common batch.
        cost_per_hour: of all devices, in the unit of the price; None without a price.
        cost_per_million_samples: the same.
        reason: why there is no strategy; None where there is one.
        micro_batches: of a step.
    """

    devices: int
    time_s: float | None = None
    network_time_s: float | None = None
    memory_bytes: float | None = None
    peak_bytes: float | None = None
    samples_per_s: float | None = None
    cost_per_hour: float | None = None
    cost_per_million_samples: float | None = None
    reason: str | None = None
    micro_batches: int = 1

    @classmethod
    def of(
        cls,
        devices: int,
        time_s: float,
        network_time_s: float,
        memory_bytes: float,
        peak_bytes: float,
        *,
        batch: int | None,
        price_per_device_hour: float | None,
        micro_batches: int = 1,
    ) -> ParallelismRow:
        """The row of a strategy, with what follows from its costs.

        Args:
            devices: how many.
            time_s: seconds per step.
            network_time_s: of which communication.
            memory_bytes: per device, added up.
            peak_bytes: per device, at its peak.
            batch: samples per step, if known.
            price_per_device_hour: in any unit.
            micro_batches: of a step.
        """
        rate = None if batch is None or time_s <= 0 else batch / time_s
        per_hour = None if price_per_device_hour is None else price_per_device_hour * devices
        per_million = None if per_hour is None or rate is None else per_hour / _HOUR_S / rate * 1e6
        return cls(
            devices,
            time_s,
            network_time_s,
            memory_bytes,
            peak_bytes,
            rate,
            per_hour,
            per_million,
            micro_batches=micro_batches,
        )


@dataclass(frozen=True, slots=True)
class ParallelismProfile(Report):
    """The fastest strategy on each of a range of device counts, found without running the job.

    Attributes:
        topology: the cluster's name.
        memory_limit: per device, for people; the rows kept to it.
        batch: samples per step; None where the model's inputs have no common batch.
        price_per_device_hour: in any unit.
        rows: ascending in devices; also those counts on which the job cannot run.
    """

    _SCHEMA: ClassVar[int] = 1
    _COLUMNS: ClassVar[int] = 120

    topology: str
    memory_limit: str
    batch: int | None
    price_per_device_hour: float | None
    rows: tuple[ParallelismRow, ...]

    def row(self, devices: int) -> ParallelismRow:
        """The row of a number of devices.

        Raises:
            ProblemError: if it was not profiled.
        """
        for row in self.rows:
            if row.devices == devices:
                return row
        counts = ", ".join(str(row.devices) for row in self.rows)
        raise ProblemError(f"ParallelismProfile: {devices} devices must be one of those profiled, {counts}.")

    def fastest(self) -> ParallelismRow | None:
        """The row of least time, of equal ones that of fewest devices; None where none fits."""
        fitting = [row for row in self.rows if row.time_s is not None]
        return min(fitting, key=lambda row: (row.time_s or 0.0, row.devices), default=None)

    def most_effective(self) -> ParallelismRow | None:
        """The row of least device time per step, and so of least cost; None where none fits."""
        fitting = [row for row in self.rows if row.time_s is not None]
        return min(fitting, key=lambda row: ((row.time_s or 0.0) * row.devices, row.devices), default=None)

    def to_json(self) -> str:
        """JSON text; :meth:`from_json` gives the profile back unchanged."""
        fields = {name: getattr(self, name) for name in ("topology", "memory_limit", "batch", "price_per_device_hour")}
        rows = [dataclasses.asdict(row) for row in self.rows]
        for row in rows:
            if row["micro_batches"] == 1:
                del row["micro_batches"]
        return json.dumps({"schema": self._SCHEMA, **fields, "rows": rows})

    def plot(self, path: str | os.PathLike[str]) -> None:
        """Draws time, throughput and, with a price, cost over the number of devices to an image file.

        Args:
            path: where to; its ending says the format (``.png``, ``.svg``, ``.pdf``).

        Raises:
            PlotError: matplotlib is missing, or cannot write such a file.
        """
        fitting = [row for row in self.rows if row.time_s is not None]
        draw_parallelism(
            path,
            [row.devices for row in fitting],
            [row.time_s or 0.0 for row in fitting],
            [row.network_time_s or 0.0 for row in fitting],
            unfit=[row.devices for row in self.rows if row.time_s is None],
            samples_per_s=None if self.batch is None else [row.samples_per_s or 0.0 for row in fitting],
            cost_per_million=self._costs(fitting),
            title=self.topology,
        )

    def _costs(self, fitting: Sequence[ParallelismRow]) -> list[float] | None:
        if self.batch is None or self.price_per_device_hour is None:
            return None
        return [row.cost_per_million_samples or 0.0 for row in fitting]

    def _title(self) -> str:
        batch = "" if self.batch is None else f", {self.batch} samples per step"
        return f"Predicted for {self.topology}{batch}; at most {self.memory_limit}"

    def _remarks(self) -> str:
        """Returns the remarks below the table: why some counts have no strategy, what stands out, and how to go on."""
        lines = [f"{_devices(row)}: {row.reason}." for row in self.rows if row.reason is not None]
        fastest, effective = self.fastest(), self.most_effective()
        if fastest is not None and effective is not None:
            lines += [f"Fastest: {_devices(fastest)}. Least device time per step: {_devices(effective)}."]
            lines.append(_MEMORY)
        return "\n".join([*lines, _HINT])

    def _headers(self) -> Sequence[str]:
        money = [] if self.price_per_device_hour is None else ["cost/hour", "cost/million samples"]
        steps = ["micro-batches"] if self._are_split() else []
        return ["devices", *steps, "time, ms", "network, ms", "memory, MiB", "peak, MiB", "samples/s", *money]

    def _are_split(self) -> bool:
        return any(row.micro_batches > 1 for row in self.rows)

    def _cells(self) -> Sequence[Sequence[str]]:
        priced = self.price_per_device_hour is not None
        return [
            [
                str(row.devices),
                *([str(row.micro_batches)] if self._are_split() else []),
                figure(row.time_s, 1e3),
                figure(row.network_time_s, 1e3),
                figure(row.memory_bytes, 2**-20),
                figure(row.peak_bytes, 2**-20),
                figure(row.samples_per_s),
                *map(figure, [row.cost_per_hour, row.cost_per_million_samples] if priced else []),
            ]
            for row in self.rows
        ]

    @classmethod
    def _read(cls, data: object) -> ParallelismProfile:
        names = ("schema", "topology", "memory_limit", "batch", "price_per_device_hour", "rows")
        fields = Fields.of(data, "cannot be read", ProblemError, names)
        return cls(
            fields.text("topology"),
            fields.text("memory_limit"),
            fields.optional("batch", lambda name: fields.integer(name, least=1)),
            fields.optional("price_per_device_hour", lambda name: fields.number(name, least=0)),
            tuple(map(_read_row, fields.array("rows"))),
        )


def _read_row(data: object) -> ParallelismRow:
    others = ("devices", "reason", "micro_batches")
    figures = [field.name for field in dataclasses.fields(ParallelismRow) if field.name not in others]
    names, later = ("devices", *figures, "reason"), {"micro_batches": 1}  # of whole batches they are left out
    fields = Fields.of(data, "cannot be read: a row", ProblemError, names, later)
    return ParallelismRow(
        fields.integer("devices", least=1),
        reason=fields.optional("reason", fields.text),
        micro_batches=fields.integer("micro_batches", least=1),
        **{name: fields.optional(name, lambda name: fields.number(name, least=0)) for name in figures},
    )


def _devices(row: ParallelismRow) -> str:
    return f"{row.devices} device{'s' * (row.devices != 1)}"
