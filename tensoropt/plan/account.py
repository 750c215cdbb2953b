"""The account of a plan, for readers without its model and cluster: its operators, their layers, and their costs.

An account consists of names, words, shapes, seconds and bytes only, so a plan's file is enough to show the plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from tensoropt.errors import PlanError
from tensoropt.graph.spec import TensorSpec
from tensoropt.layout import Mesh
from tensoropt.storage.document import Fields

__all__ = ["HELD", "ROLES", "About", "Links", "Move", "Setting", "read_about", "read_move", "read_setting"]

ROLES = ("variable", "slot", "input", "constant", "activation", "gradient", "update")
"""The roles of operators in a training step. A slot is an optimizer's variable, laid out as its trained variable."""

HELD = ("weights", "slots", "activations", "inputs")
"""The kinds of memory of an operator and of copies of its tensors; gradients of variables are counted apart."""

_WHEN = ("forward", "backward", "again", "inside")


@dataclass(frozen=True, slots=True)
class Move:
    """A part of an edge's cost: one reshard step of its tensor or of its gradient, or a recomputation.

    Attributes:
        kind: that of the step (:class:`tensoropt.layout.StepKind`), or ``compute``: its consumer computes again what
            its gradient needs, or ``add``: gradients of micro-batches are added up.
        when: ``forward``; ``backward`` for a gradient; ``again`` for a copy that is made again in the backward pass.
        axes: mesh axes over which devices talk to one another.
        seconds: predicted.
        size_bytes: of the piece that a device begins with.
        sent_bytes: what all devices together send.
    """

    kind: str
    when: str
    axes: tuple[int, ...]
    seconds: float
    size_bytes: float
    sent_bytes: float

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "kind": self.kind,
            "when": self.when,
            "axes": list(self.axes),
            "seconds": self.seconds,
            "size_bytes": self.size_bytes,
            "sent_bytes": self.sent_bytes,
        }


@dataclass(frozen=True, slots=True)
class About:
    """An operator of the training step, to people.

    Attributes:
        place: among the operators of the graph, which come after what they read.
        type: its op type.
        role: one of :data:`ROLES`.
        layer: the layer or scope that it belongs to, with all that is done for the layer's variables.
        inputs: what it reads, as ``operator:number``.
        outputs: what it makes, whole.
        source: ``file:line`` of the user's call, where it is known.
        work: the kind of heavy computation that it is (:class:`tensoropt.graph.traits.Work`), if any.
        flops: floating-point operations of the whole operator, forward.
        words: what its split iteration axes are to people, by their names: ``{"n": "columns"}``.
        held: what its memory counts as, one of :data:`HELD`.
        gradient_bytes: the part of its memory that is its gradient, for a trained variable.
        inside_s: the part of its time in which it communicates itself.
    """

    place: int
    type: str
    role: str
    layer: str
    inputs: tuple[str, ...] = ()
    outputs: tuple[TensorSpec, ...] = ()
    source: str | None = None
    work: str | None = None
    flops: float = 0.0
    words: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    held: str = "activations"
    gradient_bytes: float = 0.0
    inside_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "place": self.place,
            "type": self.type,
            "role": self.role,
            "layer": self.layer,
            "inputs": list(self.inputs),
            "outputs": [{"shape": list(spec.shape), "dtype": spec.dtype} for spec in self.outputs],
            "source": self.source,
            "work": self.work,
            "flops": self.flops,
            "words": dict(sorted(self.words.items())),
            "held": self.held,
            "gradient_bytes": self.gradient_bytes,
            "inside_s": self.inside_s,
        }


@dataclass(frozen=True, slots=True)
class Links:
    """One level of a cluster: so many units in one of the level above, and the links that join them."""

    name: str
    size: int
    latency_s: float
    bandwidth_bytes_per_s: float

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "name": self.name,
            "size": self.size,
            "latency_s": self.latency_s,
            "bandwidth_bytes_per_s": self.bandwidth_bytes_per_s,
        }


@dataclass(frozen=True, slots=True)
class Setting:
    """The cluster that a plan is for, and what else its figures go by.

    Attributes:
        cluster: its name.
        device: the name of its devices.
        memory_bytes: of a device.
        levels: of links, outermost first.
        constant_s: seconds that every step takes, whatever the strategy.
        batch: samples per step; None where inputs have no common batch.
    """

    cluster: str
    device: str
    memory_bytes: float
    levels: tuple[Links, ...]
    constant_s: float
    batch: int | None

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {
            "cluster": self.cluster,
            "device": self.device,
            "memory_bytes": self.memory_bytes,
            "levels": [level.to_json() for level in self.levels],
            "constant_s": self.constant_s,
            "batch": self.batch,
        }


def read_move(data: object, where: str, mesh: Mesh) -> Move:
    """Reads the JSON object that :meth:`Move.to_json` wrote.

    Raises:
        PlanError: the data is no such object.
    """
    fields = Fields.of(data, where, PlanError, ("kind", "when", "axes", "seconds", "size_bytes", "sent_bytes"))
    axes = fields.integers("axes", least=0)
    if not set(axes) <= set(mesh.axes):
        raise PlanError(f"{where}: field 'axes' must name axes of {mesh}, 0..{len(mesh.axes) - 1}.")
    figures = (fields.number(name, least=0) for name in ("seconds", "size_bytes", "sent_bytes"))
    return Move(fields.label("kind"), _one_of(fields, "when", _WHEN), axes, *figures)


def read_about(data: object, where: str) -> About:
    """Reads the JSON object that :meth:`About.to_json` wrote.

    Raises:
        PlanError: the data is no such object.
    """
    names = (
        "place", "type", "role", "layer", "inputs", "outputs", "source", "work", "flops", "words", "held",
        "gradient_bytes", "inside_s",
    )  # fmt: skip
    fields = Fields.of(data, where, PlanError, names)
    words = Fields(fields.mapping("words"), f"{where}: field 'words'", PlanError)
    return About(
        fields.integer("place", least=0),
        fields.label("type"),
        _one_of(fields, "role", ROLES),
        fields.text("layer"),
        fields.texts("inputs"),
        tuple(_read_spec(spec, f"{where}: outputs[{i}]") for i, spec in enumerate(fields.array("outputs"))),
        fields.optional("source", fields.text),
        fields.optional("work", fields.label),
        fields.number("flops", least=0),
        {axis: words.label(axis) for axis in words.values},
        _one_of(fields, "held", HELD),
        fields.number("gradient_bytes", least=0),
        fields.number("inside_s", least=0),
    )


def read_setting(data: object) -> Setting:
    """Reads the JSON object that :meth:`Setting.to_json` wrote.

    Raises:
        PlanError: the data is no such object.
    """
    names = ("cluster", "device", "memory_bytes", "levels", "constant_s", "batch")
    fields = Fields.of(data, "field 'setting'", PlanError, names)
    return Setting(
        fields.label("cluster"),
        fields.label("device"),
        fields.number("memory_bytes", least=0),
        tuple(_read_links(level, f"setting: levels[{i}]") for i, level in enumerate(fields.array("levels"))),
        fields.number("constant_s", least=0),
        fields.optional("batch", lambda name: fields.integer(name, least=1)),
    )


def _read_links(data: object, where: str) -> Links:
    fields = Fields.of(data, where, PlanError, ("name", "size", "latency_s", "bandwidth_bytes_per_s"))
    figures = (fields.number(name, least=0) for name in ("latency_s", "bandwidth_bytes_per_s"))
    return Links(fields.label("name"), fields.integer("size", least=1), *figures)


def _read_spec(data: object, where: str) -> TensorSpec:
    fields = Fields.of(data, where, PlanError, ("shape", "dtype"))
    return TensorSpec(fields.integers("shape", least=0), fields.label("dtype"))


def _one_of(fields: Fields, name: str, known: tuple[str, ...]) -> str:
    value = fields.label(name)
    if value not in known:
        raise PlanError(f"{fields.where}: field {name!r} must be one of {', '.join(known)}, got {value!r}.")
    return value
