"""The summary of a plan, computed from its account alone: layers, parts of time and memory, and named mesh axes."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tensoropt.errors import PlanError
from tensoropt.graph.graph import Edge
from tensoropt.layout import Mesh, StepKind
from tensoropt.plan.account import HELD, About, Move, Setting
from tensoropt.plan.configuration import DEFER, Configuration, place_of
from tensoropt.plan.plan import EdgePlan, OperatorPlan, Plan

__all__ = [
    "BATCH",
    "LayerRow",
    "LayerSummary",
    "MeshAxis",
    "PlanSummary",
    "axes_text",
    "communicates",
    "family_key",
    "family_name",
    "part_of",
    "split_text",
]

BATCH = "batch"
_WHOLE = "whole"
_LOCAL = {"add", *(kind.value for kind in StepKind if kind.is_local)}
_COMPUTE, _AGAIN, _COPIES, _UPDATE, _INSIDE, _CONSTANT, _AT_ONCE = (
    "compute", "compute again", "local copies", "update", "inside operators", "constant", "at the same time",
)  # fmt: skip
_ALONE = (_COMPUTE, _AGAIN, _COPIES, _UPDATE, _CONSTANT, _AT_ONCE)
"""Parts of the time in which no device waits for another."""
_GRADIENTS, _ELSEWHERE = "gradients", "on other devices"
_MOST = 0.9
"""The share of operations from which an axis has a role."""
_DIGITS = 6
"""Figures of equal layers are sums in other orders: so many digits of them are the same."""


@dataclass(frozen=True, slots=True)
class MeshAxis:
    """Neighbouring mesh axes that products and the like use together, with a name for people.

    Attributes:
        name: ``data``, if nine tenths of all that is computed along it are for pieces of the batch; ``model``, if they
            are for pieces of something else; else a letter.
        axes: of the factor mesh.
        size: devices along it.
    """

    name: str
    axes: tuple[int, ...]
    size: int


@dataclass(frozen=True, slots=True)
class LayerSummary:
    """A layer of a plan: its weights, slots, activations and gradients together.

    Attributes:
        name: the layer's.
        splits: how its products are split, in words; of a layer without any, its largest operator.
        pieces: into how many its variables are cut, of which a device keeps one; None if it has no variables.
        differs: whether it is not as in data parallelism.
        operators: how many there are.
        seconds: by parts of the step's time, see :attr:`PlanSummary.seconds`.
        bytes: by parts of the memory, see :attr:`PlanSummary.bytes`.
    """

    name: str
    splits: tuple[str, ...]
    pieces: int | None
    differs: bool
    operators: int
    seconds: Mapping[str, float]
    bytes: Mapping[str, float]

    @property
    def text(self) -> str:
        """How the layer is split, in words."""
        return ", ".join(self.splits) or _WHOLE

    @property
    def network_s(self) -> float:
        """The part of its time in which devices talk to one another."""
        return math.fsum(value for part, value in self.seconds.items() if communicates(part))

    @property
    def own_s(self) -> float:
        """The rest of its time."""
        return math.fsum(value for part, value in self.seconds.items() if not communicates(part))

    @property
    def memory_bytes(self) -> float:
        """The layer's memory on a device."""
        return math.fsum(self.bytes.values())

    def alike(self) -> tuple[object, ...]:
        """Equal for equal layers, as those of a deep model are that have numbers in their names."""
        figures = (f"{value:.{_DIGITS}g}" for value in (self.network_s, self.own_s, self.memory_bytes))
        return (family_key(self.name), self.splits, self.pieces, *figures)


@dataclass(frozen=True, slots=True)
class LayerRow:
    """Equal layers of a plan, as plain values; figures are of all of them together.

    Attributes:
        layers: their names.
        split: how their products are split, in words.
        pieces: into how many their variables are cut; None without variables.
        differs: whether they are not as in data parallelism.
        own_s: seconds of computing, updating and copying.
        network_s: seconds of communication.
        memory_bytes: of a device.
        seconds: by parts, see :attr:`PlanSummary.seconds`.
        bytes: by parts, see :attr:`PlanSummary.bytes`.
    """

    layers: tuple[str, ...]
    split: str
    pieces: int | None
    differs: bool
    own_s: float
    network_s: float
    memory_bytes: float
    seconds: Mapping[str, float]
    bytes: Mapping[str, float]

    @classmethod
    def of(cls, group: Sequence[LayerSummary]) -> LayerRow:
        """The row of equal layers."""
        first = group[0]
        return cls(
            tuple(layer.name for layer in group),
            first.text,
            first.pieces,
            first.differs,
            math.fsum(layer.own_s for layer in group),
            math.fsum(layer.network_s for layer in group),
            math.fsum(layer.memory_bytes for layer in group),
            _summed({part: [value] for part, value in layer.seconds.items()} for layer in group),
            _summed({part: [value] for part, value in layer.bytes.items()} for layer in group),
        )


class PlanSummary:
    """A plan by its layers and parts. Nothing but the plan is needed: neither its model nor TensorFlow.

    Attributes:
        plan: itself.
        setting: the cluster that it is for.
        seconds: the step's time by its parts: ``compute``, ``compute again`` (for the backward pass), ``update`` of
            variables, ``local copies``, each kind of collective (``all_reduce``, …), ``inside operators`` that
            communicate themselves, and ``constant``, what every step takes. Where operators are on a part of the
            devices, ``at the same time`` is negative: what devices do while others work. They add up to the plan's
            time.
        bytes: its memory: ``weights``, ``slots``, ``gradients`` of variables, ``activations``, ``inputs``, and
            negative, where operators are on a part of the devices, what is ``on other devices`` than the fullest. They
            add up to the plan's.
        mesh: its axes, which have names.
        layers: in the order of the model.
    """

    def __init__(self, plan: Plan) -> None:
        """Takes a plan apart.

        Raises:
            PlanError: its file was saved by a version that did not note what this needs, or it was adapted.
        """
        if plan.setting is None:
            raise PlanError(
                "Plan: says nothing of its operators, as it was saved by an earlier version, or made from another plan "
                "for other sizes. Make it again with find_strategy, or show its operators with "
                "show_strategy(plan, full=True), where its model is."
            )
        self.plan = plan
        self.setting: Setting = plan.setting
        known = ((name, entry, entry.about) for name, entry in plan.operators.items())
        self._operators = {name: (entry, about) for name, entry, about in known if about is not None}
        self.mesh = _mesh_axes(plan, self._operators)
        seconds: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        held: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for layer, part, value in self._time_parts():
            seconds[layer][part].append(value)
        for layer, part, value in self._memory_parts():
            held[layer][part].append(value)
        members: dict[str, list[tuple[OperatorPlan, About]]] = defaultdict(list)
        for entry, about in sorted(self._operators.values(), key=lambda pair: pair[1].place):
            members[about.layer].append((entry, about))
        order = sorted(members, key=lambda layer: _first_place(members[layer]))
        self.layers = tuple(
            self._layer(layer, members[layer], _summed([seconds[layer]]), _summed([held[layer]])) for layer in order
        )
        self.seconds = {**_summed(seconds.values()), _CONSTANT: self.setting.constant_s}
        self.bytes = {part: 0.0 for part in (*HELD[:2], _GRADIENTS, *HELD[2:])} | _summed(held.values())
        if any(entry.configuration.at for entry, _ in self._operators.values()):
            self.seconds[_AT_ONCE] = min(0.0, plan.time_s - math.fsum(self.seconds.values()))
            self.bytes[_ELSEWHERE] = min(0.0, plan.memory_bytes - math.fsum(self.bytes.values()))

    def moves(self) -> Iterator[tuple[Edge, Move]]:
        """Yields the moves of the training step, each with its edge."""
        for edge, entry in self._edges():
            for move in entry.moves:
                yield edge, move

    def _edges(self) -> Iterator[tuple[Edge, EdgePlan]]:
        for edge, entry in self.plan.edges.items():
            if edge.consumer in self._operators and edge.tensor.op in self._operators:
                yield edge, entry

    def about(self, name: str) -> About:
        """Returns the account of an operator of the training step."""
        return self._operators[name][1]

    def configuration(self, name: str) -> Configuration:
        """Returns the configuration of an operator."""
        return self._operators[name][0].configuration

    def layer_groups(self) -> tuple[tuple[LayerSummary, ...], ...]:
        """The layers, equal ones together, in the order of the first of each."""
        groups: dict[tuple[object, ...], list[LayerSummary]] = {}
        for layer in self.layers:
            groups.setdefault(layer.alike(), []).append(layer)
        return tuple(map(tuple, groups.values()))

    def rows(self) -> tuple[LayerRow, ...]:
        """The layers as plain values, equal ones in one row."""
        return tuple(map(LayerRow.of, self.layer_groups()))

    def principal(self, layer: str) -> str | None:
        """The operator of a layer that computes the most, products and the like before all others."""
        mine = [(name, about) for name, (_, about) in self._operators.items() if about.layer == layer]
        chosen = [(name, about) for name, about in mine if about.role == "activation"]
        best = min(chosen, key=lambda pair: (pair[1].work is None, -pair[1].flops, pair[1].place), default=None)
        return None if best is None else best[0]

    def _time_parts(self) -> Iterator[tuple[str, str, float]]:
        for entry, about in self._operators.values():
            yield about.layer, _UPDATE if about.role == "update" else _COMPUTE, entry.time_s - about.inside_s
            if about.inside_s:
                yield about.layer, _INSIDE, about.inside_s
        for edge, move in self.moves():
            yield self.about(edge.consumer).layer, part_of(move), move.seconds

    def _memory_parts(self) -> Iterator[tuple[str, str, float]]:
        for entry, about in self._operators.values():
            yield about.layer, about.held, entry.memory_bytes - about.gradient_bytes
            if about.gradient_bytes:
                yield about.layer, _GRADIENTS, about.gradient_bytes
        for edge, steps in self._edges():
            yield self.about(edge.consumer).layer, self.about(edge.tensor.op).held, steps.memory_bytes

    def _layer(
        self,
        name: str,
        members: Sequence[tuple[OperatorPlan, About]],
        seconds: Mapping[str, float],
        held: Mapping[str, float],
    ) -> LayerSummary:
        mesh = self.plan.mesh
        shown = [pair for pair in members if pair[1].work is not None and pair[1].role == "activation"]
        if not shown:
            active = [pair for pair in members if pair[1].role == "activation"]
            shown = sorted(active, key=lambda pair: (-pair[1].flops, pair[1].place))[:1]
        splits = tuple(dict.fromkeys(split_text(entry.configuration, about.words, mesh) for entry, about in shown))
        variables = [entry.configuration for entry, about in members if about.role in ("variable", "slot")]
        pieces = max((_pieces(configuration, mesh) for configuration in variables), default=None)
        whole = f"{BATCH} over {mesh.size}"
        differs = mesh.size > 1 and (pieces not in (None, 1) or any(text != whole for text in splits))
        return LayerSummary(name, splits, pieces, differs, len(members), dict(seconds), dict(held))


def split_text(configuration: Configuration, words: Mapping[str, str], mesh: Mesh) -> str:
    """A configuration in words: ``batch over 2 × heads over 2``.

    Args:
        configuration: of an operator.
        words: what its iteration axes are called.
        mesh: the factor mesh.
    """
    sizes: dict[str, int] = {}
    for size, action in zip(mesh.shape, configuration.actions, strict=True):
        if action is None or action == DEFER:
            continue
        word = words.get(action, action) if place_of(action) is None else "placed"
        sizes[word] = sizes.get(word, 1) * size
    parts = [f"on 1 of {size}" if word == "placed" else f"{word} over {size}" for word, size in sizes.items()]
    return " × ".join(parts) or _WHOLE


def axes_text(axes: Sequence[int], mesh: Sequence[MeshAxis]) -> str:
    """Mesh axes by their names; of what is used in part only, which part."""
    parts = []
    for block in mesh:
        inside = [axis for axis in block.axes if axis in axes]
        if inside:
            place = "" if len(inside) == len(block.axes) else f"[{','.join(str(block.axes.index(a)) for a in inside)}]"
            parts.append(f"{block.name}{place}")
    return " × ".join(parts) or "-"


def part_of(move: Move) -> str:
    """The part of a step's time that a move is in, see :attr:`PlanSummary.seconds`."""
    return _AGAIN if move.kind == "compute" else _COPIES if move.kind in _LOCAL else move.kind


def communicates(part: str) -> bool:
    """Tells whether devices communicate in a part of a step's time; see :attr:`PlanSummary.seconds`."""
    return part not in _ALONE


def family_key(name: str) -> str:
    """Returns a name with each number replaced by 0: a key of names that differ only in numbers."""
    return re.sub(r"\d+", "0", name)


def family_name(names: Sequence[str]) -> str:
    """One name for several that differ in numbers: ``*`` stands for those."""
    parts = [re.split(r"(\d+)", name) for name in names]
    if len({len(one) for one in parts}) > 1:
        return names[0]
    return "".join(column[0] if len(set(column)) == 1 else "*" for column in zip(*parts, strict=True))


def _pieces(configuration: Configuration, mesh: Mesh) -> int:
    """Returns the number of pieces into which a configuration cuts a variable."""
    split = [action is not None and action != DEFER and place_of(action) is None for action in configuration.actions]
    return mesh.extent([axis for axis in mesh.axes if split[axis]])


def _first_place(members: Sequence[tuple[OperatorPlan, About]]) -> tuple[bool, int]:
    """Returns the place of a layer's first computation, as variables and inputs may stand anywhere."""
    places = [about.place for _, about in members if about.role == "activation"]
    return (not places, min(places or [about.place for _, about in members]))


def _summed(parts: Iterable[Mapping[str, list[float]]]) -> dict[str, float]:
    """Lists of figures by part, added up over all that have them; the largest first."""
    total: dict[str, list[float]] = defaultdict(list)
    for one in parts:
        for part, values in one.items():
            total[part] += values
    sums = {part: math.fsum(values) for part, values in total.items()}
    return dict(sorted(sums.items(), key=lambda item: -item[1]))


def _mesh_axes(plan: Plan, operators: Mapping[str, tuple[OperatorPlan, About]]) -> tuple[MeshAxis, ...]:
    """Neighbouring axes of the factor mesh that products and the like use alike, and what they are for."""
    mesh = plan.mesh
    active = [(entry, about) for entry, about in operators.values() if about.role == "activation"]
    heavy = [(entry, about) for entry, about in active if about.work is not None] or active
    apart = {
        axis
        for axis in mesh.axes[1:]
        if any(entry.configuration.actions[axis - 1] != entry.configuration.actions[axis] for entry, _ in heavy)
    }
    blocks: list[list[int]] = []
    for axis in mesh.axes:
        if axis in apart or not blocks:
            blocks.append([axis])
        else:
            blocks[-1].append(axis)
    roles = [_role(block[0], heavy) for block in blocks]
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    return tuple(
        MeshAxis(role if role and roles.count(role) == 1 else next(letters), tuple(block), mesh.extent(block))
        for role, block in zip(roles, blocks, strict=True)
    )


def _role(axis: int, heavy: Sequence[tuple[OperatorPlan, About]]) -> str | None:
    """Returns the role of a mesh axis: ``data`` if most work is split by batch, ``model`` if by other axes, or None."""
    flops = {True: 0.0, False: 0.0}
    for entry, about in heavy:
        action = entry.configuration.actions[axis]
        if action not in (None, DEFER) and place_of(action) is None:
            flops[about.words.get(str(action)) == BATCH] += about.flops or 1.0
    total = sum(flops.values())
    names = {True: "data", False: "model"}
    return next((names[is_batch] for is_batch, part in flops.items() if total and part >= _MOST * total), None)
