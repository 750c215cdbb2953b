"""The configuration of an operator: the action of every mesh axis on it, and the resulting layouts of its tensors."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensoropt.errors import LayoutError
from tensoropt.graph.rule import Dims, OpRule
from tensoropt.layout import AT, Coarsening, Layout, Mesh, at_state

__all__ = [
    "DEFER",
    "Configuration",
    "TensorLayouts",
    "actions_of",
    "at",
    "configurations",
    "from_patterns",
    "is_legal",
    "legal_patterns",
    "place_of",
    "to_patterns",
]

# The action of a mesh axis along which everything is replicated and gradients pass through as partial sums.
DEFER = "~"

_AT = "@"


def at(coordinate: int) -> str:
    """The action of a mesh axis along which only devices with this coordinate run the op (FlexFlow section 4, "O").

    Example:
        >>> Configuration((at(1), "m")).devices(Mesh((2, 2)))
        (2, 3)
    """
    return f"{_AT}{coordinate}"


@functools.lru_cache(maxsize=4096)  # there are few, and searches ask for each operator
def place_of(action: str | None) -> int | None:
    """The coordinate of an action :func:`at`; None for any other."""
    digits = action[1:] if action is not None and action.startswith(_AT) else ""
    return int(digits) if re.fullmatch("0|[1-9][0-9]{0,9}", digits) else None


@dataclass(frozen=True, slots=True)
class TensorLayouts:
    """The layout of a tensor and of its gradient.

    For an input: what the op wants, and the state of the gradient that it gives. For an output: what the op gives,
    and the state of the gradient that it needs.
    """

    value: Layout
    gradient: Layout


@dataclass(frozen=True, slots=True)
class Configuration:
    """For each axis of the factor mesh the iteration axis that it splits, ``None`` to replicate, or :data:`DEFER`.

    Neighbouring axes that do the same are one axis of the operator's own, coarser device mesh (TensorOpt section
    2.1). With :func:`at` along some axes the op runs on a part of the mesh only, and so do its tensors live there
    (FlexFlow section 4).

    Attributes:
        actions: by mesh axis.
        again: whether the op's outputs are not kept for the backward pass, which makes them again from its inputs.
    """

    actions: tuple[str | None, ...]
    again: bool = False

    def mesh_axes(self, axis: str) -> tuple[int, ...]:
        """The mesh axes that split an iteration axis, ascending."""
        return tuple(index for index, action in enumerate(self.actions) if action == axis)

    @property
    def deferred(self) -> tuple[int, ...]:
        """The mesh axes along which gradients stay partial."""
        return self.mesh_axes(DEFER)

    def pieces(self, rule: OpRule, mesh: Mesh) -> int:
        """Returns the number of pieces into which the iteration space is cut: the op's share of work is one of them."""
        return mesh.extent(
            [i for i, a in enumerate(self.actions) if a is not None and a != DEFER and not a.startswith(_AT)]
        )

    @property
    def at(self) -> tuple[tuple[int, int], ...]:
        """The mesh axes along which the op runs at one place only, ascending, with the coordinate."""
        places = [(axis, place_of(action)) for axis, action in enumerate(self.actions)]
        return tuple((axis, place) for axis, place in places if place is not None)

    def devices(self, mesh: Mesh) -> tuple[int, ...]:
        """The devices that run the op, ascending: all of them, unless it is placed."""
        return mesh.devices_at(self.at)

    def cuts(self, dims: Dims, mesh: Mesh) -> int:
        """Returns the number of pieces into which a tensor of these dimensions is cut."""
        return mesh.extent(
            [i for i, action in enumerate(self.actions) if any(dim and dim[0] == action for dim in dims)]
        )

    def input_layouts(self, rule: OpRule, index: int) -> TensorLayouts:
        """The layouts of an input: it gets a partial gradient along axes that split the op but not the input."""
        return _input_layouts(self.actions, rule.inputs[index])

    def output_layouts(self, rule: OpRule, index: int) -> TensorLayouts:
        """The layouts of an output: a partial sum along axes that are reduced away."""
        return _output_layouts(self.actions, rule.outputs[index], rule.reduced)

    def __str__(self) -> str:
        splits = ",".join("*" if action is None else action for action in self.actions) or "-"
        return f"{splits} again" if self.again else splits

    def to_json(self) -> list[str | None]:
        """A JSON list with one entry per mesh axis."""
        return list(self.actions)


# A plan of ten thousand operators has a few hundred of these, each asked for dozens of times.
_LAYOUTS = 2**14


@functools.lru_cache(maxsize=_LAYOUTS)
def _input_layouts(actions: tuple[str | None, ...], dims: Dims) -> TensorLayouts:
    value = _sharded(actions, dims)
    partial = tuple(axis for axis, action in enumerate(actions) if action is not None and axis not in value.used_axes)
    return TensorLayouts(value, Layout(value.dims, partial, value.at))


@functools.lru_cache(maxsize=_LAYOUTS)
def _output_layouts(actions: tuple[str | None, ...], dims: Dims, reduced: frozenset[str]) -> TensorLayouts:
    value = _sharded(actions, dims)
    partial = tuple(axis for axis, action in enumerate(actions) if action in reduced and axis not in value.used_axes)
    deferred = Configuration(actions).deferred
    return TensorLayouts(Layout(value.dims, partial, value.at), Layout(value.dims, deferred, value.at))


def _sharded(actions: tuple[str | None, ...], dims: Dims) -> Layout:
    configuration = Configuration(actions)
    return Layout(tuple(configuration.mesh_axes(dim[0]) if dim else () for dim in dims), at=configuration.at)


def is_legal(configuration: Configuration, rule: OpRule, mesh: Mesh) -> bool:
    """Tells whether every action of a configuration is allowed and every split divides its axis."""
    if len(configuration.actions) != len(mesh.axes):
        return False
    for action in set(configuration.actions) - {None}:
        if action == DEFER:
            if not rule.defer_gradient:
                return False
        elif place_of(action) is None and (
            action not in rule.split or not rule.fits(str(action), mesh.extent(configuration.mesh_axes(str(action))))
        ):
            return False
    return all(place < mesh.shape[axis] for axis, place in configuration.at)


@functools.lru_cache(maxsize=4096)
def configurations(rule: OpRule, mesh: Mesh, coarsening: Coarsening | None = None) -> tuple[Configuration, ...]:
    """The legal configurations of an op, in a fixed order; the last ones replicate.

    Args:
        rule: of the op.
        mesh: the factor mesh.
        coarsening: the meshes that the op may have; by default any axis of the factor mesh may do anything, which
            gives (splittable axes + 1)^(mesh axes) configurations.
    """
    return from_patterns(rule, legal_patterns(rule, mesh, coarsening))


def from_patterns(rule: OpRule, patterns: NDArray[np.int8]) -> tuple[Configuration, ...]:
    """The configurations that :func:`legal_patterns` gives as numbers."""
    names: list[str | None] = [*actions_of(rule), None]
    return tuple(
        Configuration(tuple(names[state] if state >= 0 else at(AT - state) for state in row))
        for row in patterns.tolist()
    )


def to_patterns(rule: OpRule, mesh: Mesh, some: Sequence[Configuration]) -> NDArray[np.int8]:
    """Some configurations as numbers, as :func:`legal_patterns` gives them.

    Raises:
        LayoutError: if one is not legal.
    """
    number = {action: state for state, action in enumerate((*actions_of(rule), None))}
    rows = []
    for configuration in some:
        check_configuration("Configurations", configuration, rule, mesh)
        row = [number.get(action) for action in configuration.actions]
        for axis, place in configuration.at:
            row[axis] = at_state(place)
        rows.append(row)
    return np.array(rows, dtype=np.int8).reshape(len(rows), len(mesh.axes))


def actions_of(rule: OpRule) -> tuple[str, ...]:
    """Returns the actions, other than replication, that a mesh axis may have on an operator."""
    return (*rule.split, DEFER) if rule.defer_gradient else rule.split


def legal_patterns(rule: OpRule, mesh: Mesh, coarsening: Coarsening | None = None) -> NDArray[np.int8]:
    """:func:`configurations` as numbers.

    Returns:
        ``(K, axes)``: for each mesh axis the index of its action in :func:`actions_of`, or their number to replicate,
        or the negative state of a place (:func:`tensoropt.layout.at_state`); placed configurations come first.
    """
    coarsening = Coarsening(free_up_to_axes=len(mesh.axes)) if coarsening is None else coarsening
    patterns = coarsening.patterns(len(mesh.axes), len(actions_of(rule)), 1)
    if coarsening.placed_blocks:
        placed = coarsening.placed_patterns(mesh.shape, len(actions_of(rule)), 1)
        patterns = np.concatenate([placed, patterns])
    legal = np.ones(len(patterns), dtype=bool)
    for state, axis in enumerate(rule.split):
        pieces = np.where(patterns == state, np.array(mesh.shape, dtype=np.int64), 1).prod(axis=1, dtype=np.int64)
        if axis in rule.halo_axes:
            legal &= np.isin(pieces, [count for count in np.unique(pieces).tolist() if rule.fits(axis, count)])
        else:
            legal &= rule.size(axis) % pieces == 0
    return patterns[legal]


def check_configuration(subject: str, configuration: Configuration, rule: OpRule, mesh: Mesh) -> None:
    """Raises :class:`LayoutError` with the rule and the numbers unless the configuration is legal."""
    if len(configuration.actions) != len(mesh.axes):
        raise LayoutError(
            f"{subject}: configuration {configuration} has {len(configuration.actions)} actions, {mesh} has "
            f"{len(mesh.axes)} axes. Give one action per mesh axis."
        )
    for axis, action in enumerate(configuration.actions):
        if action is None or (action == DEFER and rule.defer_gradient):
            continue
        place = place_of(action)
        if place is not None:
            if place >= mesh.shape[axis]:
                raise LayoutError(
                    f"{subject}: is placed at coordinate {place} of mesh axis {axis}, which goes from 0 to "
                    f"{mesh.shape[axis] - 1} on {mesh}. Use one of those."
                )
            continue
        if action not in rule.split:
            raise LayoutError(
                f"{subject}: mesh axis {axis} splits '{action}', which is not one of the axes that may be split: "
                f"{list(rule.split)}."
            )
        pieces = mesh.extent(configuration.mesh_axes(action))
        for halo in rule.halos:
            if halo.axis == action and not halo.fits(pieces):
                raise LayoutError(
                    f"{subject}: axis '{action}' cannot be split over mesh axes {configuration.mesh_axes(action)} of "
                    f"{mesh}: {halo.why_not(pieces)}. Leave '{action}' unsplit or use fewer devices."
                )
        if rule.size(action) % pieces:
            raise LayoutError(
                f"{subject}: axis '{action}' (size {rule.size(action)}) cannot be split over mesh axes "
                f"{configuration.mesh_axes(action)} of {mesh}: {rule.size(action)} % {pieces} != 0. "
                f"Leave '{action}' unsplit or use mesh axes that divide {rule.size(action)}."
            )


def actions_from_json(data: Sequence[str | None], *, again: bool = False) -> Configuration:
    """The configuration of the actions that ``to_json`` wrote."""
    return Configuration(tuple(data), again)
