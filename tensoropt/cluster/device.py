"""The capabilities of one device of a cluster."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tensoropt.errors import ClusterError, did_you_mean
from tensoropt.storage.document import Fields, read_object

__all__ = ["FUSIONS", "Device"]

FUSIONS = ("none", "pointwise", "attention")
"""What operators a device's compiler makes one kernel of; see :mod:`tensoropt.cost.fusion`."""
_USUAL: dict[str, Any] = {"wide_products": False, "product_efficiency": 1.0, "fusion": "none"}


@dataclass(frozen=True, slots=True)
class Device:
    """The capabilities of one device: its rates of computation, its memory, and its overheads.

    Attributes:
        name: for people.
        flops_per_s: pairs of dtype name and rate, sorted; a mapping is accepted. ``float32`` must be there.
        memory_bandwidth_bytes_per_s: of the device's own memory, reads and writes together.
        memory_bytes: that a process on the device can use.
        op_overhead_s: time of an op that computes nothing.
        wide_products: whether products of 16-bit numbers give float32 at the 16-bit rate, as tensor cores do.
        product_efficiency: the share of ``flops_per_s`` that products and convolutions reach.
        fusion: what operators its compiler makes one kernel of (:mod:`tensoropt.cost.fusion`): ``none``, ``pointwise``
            or ``attention``.
    """

    name: str
    flops_per_s: tuple[tuple[str, float], ...]
    memory_bandwidth_bytes_per_s: float
    memory_bytes: int
    op_overhead_s: float
    wide_products: bool
    product_efficiency: float
    fusion: str

    def __init__(
        self,
        name: str,
        flops_per_s: Mapping[str, float] | Sequence[tuple[str, float]],
        memory_bandwidth_bytes_per_s: float,
        memory_bytes: int,
        op_overhead_s: float,
        wide_products: bool = False,
        product_efficiency: float = 1.0,
        fusion: str = "none",
    ) -> None:
        # A frozen value cannot hold a mapping, but a mapping is what people write.
        rates = tuple(sorted((str(dtype), float(rate)) for dtype, rate in dict(flops_per_s).items()))
        object.__setattr__(self, "name", name)
        object.__setattr__(self, "flops_per_s", rates)
        object.__setattr__(self, "memory_bandwidth_bytes_per_s", float(memory_bandwidth_bytes_per_s))
        object.__setattr__(self, "memory_bytes", int(memory_bytes))
        object.__setattr__(self, "op_overhead_s", float(op_overhead_s))
        object.__setattr__(self, "wide_products", bool(wide_products))
        object.__setattr__(self, "product_efficiency", float(product_efficiency))
        object.__setattr__(self, "fusion", str(fusion))
        self._validate()

    def _validate(self) -> None:
        subject = f"Device {self.name!r}"
        if "float32" not in dict(self.flops_per_s):
            raise ClusterError(f"{subject}: flops_per_s has no 'float32'. It is the figure that other dtypes fall to.")
        positive = {f"flops_per_s[{dtype!r}]": rate for dtype, rate in self.flops_per_s}
        positive["memory_bandwidth_bytes_per_s"] = self.memory_bandwidth_bytes_per_s
        positive["memory_bytes"] = self.memory_bytes
        for name, value in positive.items():
            if not (math.isfinite(value) and value > 0):
                raise ClusterError(f"{subject}: {name} must be finite and positive, got {value}.")
        if not (math.isfinite(self.op_overhead_s) and self.op_overhead_s >= 0):
            raise ClusterError(f"{subject}: op_overhead_s must be finite and not negative, got {self.op_overhead_s}.")
        if not 0 < self.product_efficiency <= 1:
            raise ClusterError(
                f"{subject}: product_efficiency must be above 0 and at most 1, got {self.product_efficiency}."
            )
        if self.fusion not in FUSIONS:
            raise ClusterError(
                f"{subject}: fusion {self.fusion!r} is unknown.{did_you_mean(self.fusion, FUSIONS)} Use one of "
                f"{', '.join(map(repr, FUSIONS))}."
            )

    def flops(self, dtype: str) -> float:
        """Floating-point operations per second with operands of ``dtype``.

        A dtype without a figure runs at the rate of ``float32``, ``complex128`` at that of ``float64``:
        devices without units for a narrow type widen it, and integer arithmetic has the width of
        ``float32``'s.
        """
        rates = dict(self.flops_per_s)
        if dtype == "complex128":
            dtype = "float64"
        return rates.get(dtype, rates["float32"])

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all fields."""
        fields = {**dataclasses.asdict(self), "flops_per_s": dict(self.flops_per_s)}
        # What is as usual is left out, so that descriptions of before stay what they were.
        return {name: value for name, value in fields.items() if name not in _USUAL or value != _USUAL[name]}

    @classmethod
    def from_json(cls, data: object) -> Device:
        """The device that ``to_json`` wrote.

        Raises:
            ClusterError: if a field is missing, unknown, of the wrong type or out of range.
        """
        where = "Topology JSON: device"
        known = ("name", "flops_per_s", "memory_bandwidth_bytes_per_s", "memory_bytes", "op_overhead_s")
        fields = Fields.of(data, where, ClusterError, known, _USUAL)
        rates = Fields(
            read_object(fields.values["flops_per_s"], f"{where}.flops_per_s", ClusterError),
            f"{where}.flops_per_s",
            ClusterError,
        )
        return cls(
            fields.label("name"),
            {dtype: rates.number(dtype) for dtype in rates.values},
            fields.number("memory_bandwidth_bytes_per_s"),
            fields.integer("memory_bytes"),
            fields.number("op_overhead_s"),
            fields.boolean("wide_products"),
            fields.number("product_efficiency"),
            fields.label("fusion"),
        )
