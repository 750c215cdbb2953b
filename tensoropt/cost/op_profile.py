"""Measured times of operators on a machine: what was measured under which key, and how it is kept."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoropt.errors import ClusterError
from tensoropt.graph.operator import Operator
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorSpec
from tensoropt.layout import Mesh
from tensoropt.plan.configuration import Configuration
from tensoropt.storage.document import Fields, refused, shortened

__all__ = ["PROFILE_SCHEMA", "Curve", "OpProfile", "OpTime", "collective_key", "profile_key", "whole_key"]

PROFILE_SCHEMA = 7
"""The schema version of :meth:`OpProfile.to_json`."""
_SEEDS = ("seed", "seed2")
_COLLECTIVE = "collective "


@dataclass(frozen=True, slots=True)
class OpTime:
    """The measured time and scratch memory of an operator on one device.

    Attributes:
        type: of the operator.
        forward_s: forward, without the collectives of its lowering.
        backward_s: backward, without these collectives.
        analytic_s: the analytic model's prediction of both together.
        forward_reduced_bytes: input bytes of each all_reduce inside the operator, forward.
        backward_reduced_bytes: input bytes of each all_reduce inside the operator, backward.
        scratch_bytes: memory that kernels hold beside the operator's tensors: at most forward, kept for the backward
            pass, at most backward.
        whole: the :func:`whole_key` of the operator, which its configurations have in common.
    """

    type: str
    forward_s: float
    backward_s: float
    analytic_s: float
    forward_reduced_bytes: tuple[int, ...] = ()
    backward_reduced_bytes: tuple[int, ...] = ()
    scratch_bytes: tuple[int, int, int] = (0, 0, 0)
    whole: str = ""

    def __post_init__(self) -> None:
        figures = (self.forward_s, self.backward_s, self.analytic_s, *self.scratch_bytes)
        if not all(math.isfinite(figure) and figure >= 0 for figure in figures):
            raise ClusterError(
                f"Profile of {self.type}: times and bytes must be finite and not negative, got {figures}. Measure it "
                "again with init(refresh=True)."
            )


@dataclass(frozen=True, slots=True)
class Curve:
    """Seconds by bytes, for work that is alike at every size.

    Invariants:
        At least one size, strictly ascending and positive; one finite, positive time for each.
    """

    sizes_bytes: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        ascending = all(a < b for a, b in zip((0, *self.sizes_bytes), self.sizes_bytes, strict=False))
        valid = all(math.isfinite(second) and second > 0 for second in self.seconds)
        if not self.sizes_bytes or len(self.sizes_bytes) != len(self.seconds) or not ascending or not valid:
            raise ClusterError(
                "Profile curve: needs ascending sizes above 0 with one positive time each, got sizes "
                f"{self.sizes_bytes} and times {self.seconds}. Measure it again with init(refresh=True)."
            )

    def at(self, size_bytes: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds at sizes of any shape: linear between measured ones, and beyond the largest as fast as there."""
        sizes = np.asarray(self.sizes_bytes, dtype=np.float64)
        seconds = np.asarray(self.seconds)
        return np.interp(size_bytes, sizes, seconds) * np.maximum(1.0, np.asarray(size_bytes) / sizes[-1])


@dataclass(frozen=True, slots=True)
class OpProfile:
    """All that was measured of one machine with one number of ranks per host.

    Attributes:
        times: by :func:`profile_key`.
        curves: by name: ``sum`` (adding two tensors of the size), ``slice``, ``transpose`` (a tensor of the size is
            cut and stacked along a dimension that is not the first), ``mask`` (all but one device drop theirs),
            ``feed`` (an array of the size goes in), and ``update <op type>`` (a variable with its gradient and
            slots of the size).
        iteration_s: of a training step that computes nothing.
        refused: keys of operators that cannot be measured by themselves.
        collectives: how many times longer than the topology says collectives take in a step, by
            :func:`collective_key`, where that was found out.
    """

    times: Mapping[str, OpTime] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    iteration_s: float = 0.0
    refused: frozenset[str] = frozenset()
    collectives: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not all(math.isfinite(factor) and factor > 0 for factor in self.collectives.values()):
            raise ClusterError(
                f"Profile of collectives: factors must be finite and above 0, got {dict(self.collectives)}. Measure "
                "again with init(refresh=True)."
            )

    def with_more(self, other: OpProfile) -> OpProfile:
        """This profile with what ``other`` has; where both have something, ``other``'s."""
        return OpProfile(
            {**self.times, **other.times},
            {**self.curves, **other.curves},
            other.iteration_s or self.iteration_s,
            self.refused | other.refused,
            {**self.collectives, **other.collectives},
        )

    def scaled(self, factors: Mapping[str, float]) -> OpProfile:
        """This profile with times multiplied.

        Args:
            factors: by an operator's :func:`whole_key`, for all its configurations that were measured; by the name of
                a curve; or by a :func:`collective_key`.
        """
        collectives = {name: factor for name, factor in factors.items() if name.startswith(_COLLECTIVE)}
        return dataclasses.replace(
            self,
            times={
                key: dataclasses.replace(
                    entry,
                    forward_s=entry.forward_s * factors.get(entry.whole, 1.0),
                    backward_s=entry.backward_s * factors.get(entry.whole, 1.0),
                )
                for key, entry in self.times.items()
            },
            curves={
                name: Curve(curve.sizes_bytes, tuple(second * factors.get(name, 1.0) for second in curve.seconds))
                for name, curve in self.curves.items()
            },
            collectives={
                **self.collectives,
                **{name: factor * self.collectives.get(name, 1.0) for name, factor in collectives.items()},
            },
        )

    def ratios(self) -> dict[str, float]:
        """Returns the median ratios of measured to analytic time.

        By :func:`whole_key`, of all configurations that were measured of one operator; by op type; and ``""``, of all.
        """
        found: dict[str, list[float]] = {}
        for entry in self.times.values():
            if entry.analytic_s > 0:
                ratio = (entry.forward_s + entry.backward_s) / entry.analytic_s
                for name in {entry.whole, entry.type, ""}:
                    found.setdefault(name, []).append(ratio)
        return {name: float(np.median(values)) for name, values in found.items()}

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "schema": PROFILE_SCHEMA,
            "iteration_s": self.iteration_s,
            "refused": sorted(self.refused),
            "collectives": dict(self.collectives),
            "curves": {name: [list(curve.sizes_bytes), list(curve.seconds)] for name, curve in self.curves.items()},
            "times": {
                key: [
                    entry.type,
                    entry.forward_s,
                    entry.backward_s,
                    entry.analytic_s,
                    list(entry.forward_reduced_bytes),
                    list(entry.backward_reduced_bytes),
                    list(entry.scratch_bytes),
                    entry.whole,
                ]
                for key, entry in sorted(self.times.items())
            },
        }

    @classmethod
    def from_json(cls, data: object) -> OpProfile:
        """The profile that ``to_json`` wrote.

        Raises:
            ClusterError: if it is not one.
        """
        remedy = "Measure with init(refresh=True)."
        schema = data.get("schema") if isinstance(data, dict) else type(data).__name__
        if isinstance(schema, bool) or schema != PROFILE_SCHEMA:
            raise ClusterError(
                f"Profile JSON: schema must be {PROFILE_SCHEMA}, got {shortened(repr(schema), 40)}. {remedy}"
            )
        try:
            names = ("schema", "iteration_s", "refused", "collectives", "curves", "times")
            fields = Fields.of(data, "a field is missing or malformed", ClusterError, names)
            return cls(
                {key: _read_time(entry) for key, entry in fields.mapping("times").items()},
                {name: _read_curve(entry) for name, entry in fields.mapping("curves").items()},
                fields.number("iteration_s", least=0),
                frozenset(fields.texts("refused")),
                _read_factors(fields.mapping("collectives")),
            )
        except ClusterError as error:
            raise refused(ClusterError, "Profile JSON", error.args[0], remedy) from None


def _row(data: object, names: Sequence[str]) -> Fields:
    """The fields of an array, in the order of their names."""
    where = "a field is missing or malformed"
    if not isinstance(data, list) or len(data) != len(names):
        raise ClusterError(f"{where}: an entry must be an array of {', '.join(names)}.")
    return Fields(dict(zip(names, data, strict=True)), where, ClusterError)


def _read_time(data: object) -> OpTime:
    reduced = ("forward_reduced_bytes", "backward_reduced_bytes")
    fields = _row(data, ("type", "forward_s", "backward_s", "analytic_s", *reduced, "scratch_bytes", "whole"))
    scratch = fields.integers("scratch_bytes", least=0)
    if len(scratch) != 3:
        raise ClusterError(f"{fields.where}: scratch_bytes must be 3 integers, got {len(scratch)}.")
    return OpTime(
        fields.text("type"),
        fields.number("forward_s"),
        fields.number("backward_s"),
        fields.number("analytic_s"),
        fields.integers(reduced[0], least=0),
        fields.integers(reduced[1], least=0),
        (scratch[0], scratch[1], scratch[2]),
        fields.text("whole"),
    )


def _read_factors(data: Mapping[str, Any]) -> dict[str, float]:
    fields = Fields(data, "a field is missing or malformed", ClusterError)
    return {name: fields.number(name) for name in data}


def _read_curve(data: object) -> Curve:
    fields = _row(data, ("sizes_bytes", "seconds"))
    return Curve(fields.integers("sizes_bytes"), fields.numbers("seconds"))


def collective_key(kind: str, axes: tuple[int, ...]) -> str:
    """Returns the name of the factor of a kind of collective over mesh axes."""
    return f"{_COLLECTIVE}{kind} over {', '.join(map(str, axes))}"


def profile_key(
    op: Operator,
    rule: OpRule,
    inputs: Sequence[TensorSpec],
    configuration: Configuration,
    mesh: Mesh,
    wanted: Sequence[int],
    outgoing: Sequence[int],
) -> str:
    """Returns a key of all that decides an operator's time on a device; equal keys mean equal times.

    The key covers op type, attributes, static operands, local shapes and dtypes, the numbers of pieces of axes over
    which the lowering communicates, and which gradients are computed.
    """
    layouts = [configuration.input_layouts(rule, i).value for i in range(len(inputs))]
    results = [configuration.output_layouts(rule, i).value for i in range(len(op.outputs))]
    described = repr(
        (
            sorted((name, _described(value)) for name, value in op.attrs.items() if name not in _SEEDS),
            sorted((position, _described(value)) for position, value in op.static.items()),
            [(layout.local_shape(s.shape, mesh), s.dtype) for s, layout in zip(inputs, layouts, strict=True)],
            [(layout.local_shape(s.shape, mesh), s.dtype) for s, layout in zip(op.outputs, results, strict=True)],
            sorted((axis, mesh.extent(configuration.mesh_axes(axis))) for axis in rule.communicates_over),
            tuple(wanted),
            tuple(outgoing),
        )
    )
    return f"{op.type}:{hashlib.sha256(described.encode()).hexdigest()[:20]}"


def whole_key(
    op: Operator,
    rule: OpRule,
    inputs: Sequence[TensorSpec],
    mesh: Mesh,
    wanted: Sequence[int],
    outgoing: Sequence[int],
) -> str:
    """The :func:`profile_key` of an operator that is not divided."""
    return profile_key(op, rule, inputs, Configuration((None,) * len(mesh.shape)), mesh, wanted, outgoing)


def _described(value: object) -> str:
    if isinstance(value, np.ndarray) and value.dtype == object:  # texts, which an array has by their address
        return repr(value.tolist())
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    return repr(value)
