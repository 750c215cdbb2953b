"""One step of a reshard: what it does to a layout, and how many bytes go in."""

from __future__ import annotations

import enum
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoropt.errors import LayoutError
from tensoropt.layout.layout import Layout
from tensoropt.layout.mesh import Mesh
from tensoropt.storage.document import Fields

__all__ = ["UNDONE_BY", "Step", "StepKind"]


class StepKind(str, enum.Enum):
    """The kinds of reshard steps: collectives, and local changes of a layout, along mesh axes."""

    ALL_GATHER = "all_gather"  # shard(dim) -> replicate
    SLICE = "slice"  # replicate -> shard(dim), local
    ALL_TO_ALL = "all_to_all"  # shard(dim) -> shard(to_dim)
    ALL_REDUCE = "all_reduce"  # partial -> replicate
    REDUCE_SCATTER = "reduce_scatter"  # partial -> shard(dim)
    PERMUTE = "permute"  # same pieces, other devices
    TO_PARTIAL = "to_partial"  # replicate -> partial, local: all but the first device of a group drop theirs
    # Of tensors that only some devices have.
    BROADCAST = "broadcast"  # at(i) -> replicate
    SEND = "send"  # at(i) -> at(j)
    SCATTER = "scatter"  # at(i) -> shard(dim)
    GATHER = "gather"  # shard(dim) -> at(i)
    REDUCE = "reduce"  # partial -> at(i)
    DROP = "drop"  # replicate -> at(i), local: the others forget theirs
    FILL = "fill"  # at(i) -> partial, local: the others take zeros

    @property
    def is_local(self) -> bool:
        """True if the step is local: no device sends anything to another."""
        return self in _LOCAL

    @property
    def leaves(self) -> bool:
        """True if, before the step, only one device of the group holds the tensor."""
        return self in (StepKind.BROADCAST, StepKind.SEND, StepKind.SCATTER, StepKind.FILL)

    @property
    def arrives(self) -> bool:
        """True if, after the step, only one device of the group holds the tensor."""
        return self in (StepKind.SEND, StepKind.GATHER, StepKind.REDUCE, StepKind.DROP)


UNDONE_BY = {
    StepKind.ALL_GATHER: StepKind.SLICE,
    StepKind.SLICE: StepKind.ALL_GATHER,
    StepKind.ALL_TO_ALL: StepKind.ALL_TO_ALL,
    StepKind.BROADCAST: StepKind.DROP,
    StepKind.DROP: StepKind.BROADCAST,
    StepKind.SEND: StepKind.SEND,
    StepKind.SCATTER: StepKind.GATHER,
    StepKind.GATHER: StepKind.SCATTER,
}
"""The steps that lead back, with the same axes. A sum cannot be undone; another permutation undoes one."""

_LOCAL = (StepKind.SLICE, StepKind.TO_PARTIAL, StepKind.DROP, StepKind.FILL)
_WITH_DIM = (
    StepKind.ALL_GATHER,
    StepKind.SLICE,
    StepKind.ALL_TO_ALL,
    StepKind.REDUCE_SCATTER,
    StepKind.SCATTER,
    StepKind.GATHER,
)


@dataclass(frozen=True, slots=True)
class Step:
    """One collective or one local operation that changes a tensor's layout.

    Attributes:
        kind: what is done.
        axes: the mesh axes of the group, in the order that numbers its members. Empty for a permute.
        dim: the dimension that is gathered, sliced, scattered, or whose split an all_to_all takes away.
        to_dim: the dimension that an all_to_all splits instead.
        target: the layout that a permute leads to.
        at: where along ``axes`` the tensor is before: one coordinate per axis.
        to_at: where along ``axes`` it is afterwards.

    Invariants:
        Each kind has what it needs and nothing else.
    """

    kind: StepKind
    axes: tuple[int, ...] = ()
    dim: int | None = None
    to_dim: int | None = None
    target: Layout | None = None
    at: tuple[int, ...] | None = None
    to_at: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        moves = self.kind is StepKind.PERMUTE
        needs = {
            "axes": not moves,
            "dim": self.kind in _WITH_DIM,
            "to_dim": self.kind is StepKind.ALL_TO_ALL,
            "target": moves,
            "at": self.kind.leaves,
            "to_at": self.kind.arrives,
        }
        has = {
            "axes": bool(self.axes),
            "dim": self.dim is not None,
            "to_dim": self.to_dim is not None,
            "target": self.target is not None,
            "at": self.at is not None,
            "to_at": self.to_at is not None,
        }
        if has != needs or (self.dim is not None and self.dim == self.to_dim):
            wanted = ", ".join(name for name, needed in needs.items() if needed)
            got = ", ".join(f"{name}={getattr(self, name)}" for name, given in has.items() if given) or "nothing"
            raise LayoutError(f"Step {self.kind.value}: needs {wanted} (and another to_dim than dim), got {got}.")
        if any(places is not None and len(places) != len(self.axes) for places in (self.at, self.to_at)):
            raise LayoutError(
                f"Step {self}: needs one coordinate for each of the axes {self.axes}, got at={self.at}, "
                f"to_at={self.to_at}."
            )

    def apply(self, layout: Layout) -> Layout:
        """The layout after this step.

        Raises:
            LayoutError: if ``layout`` is not one that this step starts from.
        """
        kind, axes = self.kind, self.axes
        if any(dim is not None and not 0 <= dim < layout.rank for dim in (self.dim, self.to_dim)):
            raise LayoutError(f"Step {self}: cannot start from layout {layout}, which has {layout.rank} dimensions.")
        if kind is StepKind.PERMUTE and self.target is not None:
            return self.target
        if kind.leaves or kind.arrives:
            return self._apply_placed(layout)
        if kind in (StepKind.ALL_REDUCE, StepKind.REDUCE_SCATTER) and set(axes) <= set(layout.partial):
            done = layout.without_partial(axes)
            if kind is StepKind.ALL_REDUCE:
                return done
            if self.dim is not None:
                return done.with_dim(self.dim, done.dims[self.dim] + axes)
        if kind in (StepKind.SLICE, StepKind.TO_PARTIAL) and not set(axes) & set(layout.used_axes):
            if kind is StepKind.TO_PARTIAL:
                return Layout(layout.dims, tuple(sorted(layout.partial + axes)), layout.at)
            if self.dim is not None:
                return layout.with_dim(self.dim, layout.dims[self.dim] + axes)
        if (
            kind in (StepKind.ALL_GATHER, StepKind.ALL_TO_ALL)
            and self.dim is not None
            and layout.dims[self.dim][-len(axes) :] == axes
        ):
            gathered = layout.with_dim(self.dim, layout.dims[self.dim][: -len(axes)])
            if kind is StepKind.ALL_GATHER:
                return gathered
            if self.to_dim is not None:
                return gathered.with_dim(self.to_dim, gathered.dims[self.to_dim] + axes)
        raise LayoutError(f"Step {self}: cannot start from layout {layout}.")

    def _apply_placed(self, layout: Layout) -> Layout:
        """The layout after a step from or to one place: what is at a place becomes replicated, or the reverse."""
        kind, axes = self.kind, self.axes
        reached: Layout | None = None
        if self.at is not None:
            here = set(zip(axes, self.at, strict=True))
            if here <= set(layout.at):
                reached = layout.placed(set(layout.at) - here)
        elif kind is StepKind.GATHER and self.dim is not None:
            if layout.dims[self.dim][-len(axes) :] == axes:
                reached = layout.with_dim(self.dim, layout.dims[self.dim][: -len(axes)])
        elif kind is StepKind.REDUCE:
            reached = layout.without_partial(axes) if set(axes) <= set(layout.partial) else None
        elif not set(axes) & set(layout.used_axes):
            reached = layout
        if reached is None:
            raise LayoutError(f"Step {self}: cannot start from layout {layout}.")
        if self.to_at is not None:
            return reached.placed([*reached.at, *zip(axes, self.to_at, strict=True)])
        if kind is StepKind.SCATTER and self.dim is not None:
            return reached.with_dim(self.dim, reached.dims[self.dim] + axes)
        if kind is StepKind.FILL:
            return Layout(reached.dims, tuple(sorted(reached.partial + axes)), reached.at)
        return reached

    def permutation(self, layout: Layout, mesh: Mesh) -> tuple[int, ...]:
        """For a permute from ``layout``: the rank whose piece each rank needs.

        Every rank that already holds what it needs keeps it; the others are matched in the order of ranks. A rank that
        has nothing of the tensor is its own source.
        """
        if self.target is None:
            raise LayoutError(f"Step {self}: only a permute has a permutation.")
        if layout.at != self.target.at:
            raise LayoutError(f"Step {self}: layout {layout} is on other devices. Send the tensor there first.")
        holds = np.zeros(mesh.size, bool)
        holds[list(layout.devices(mesh))] = True
        has, needs = _pieces(layout, mesh), _pieces(self.target, mesh)
        moving = np.flatnonzero(holds & (has != needs).any(axis=0))  # who gives a piece, and gets another
        givers, takers = moving[np.lexsort(has[:, moving])], moving[np.lexsort(needs[:, moving])]
        if not np.array_equal(has[:, givers], needs[:, takers]):
            raise LayoutError(f"Step {self}: layout {layout} does not hold the same pieces.")
        sources = np.arange(mesh.size)
        sources[takers] = givers
        return tuple(sources.tolist())

    def idle_axes(self, layout: Layout) -> tuple[int, ...]:
        """The mesh axes along which only one device takes part when this step starts from ``layout``, ascending.

        Along the axes of a send that is the one that sends.
        """
        own = () if self.kind is StepKind.SEND else self.axes
        return tuple(axis for axis, _ in layout.at if axis not in own)

    def bytes_in(self, layout: Layout, shape: Sequence[int], itemsize: int, mesh: Mesh) -> int:
        """Bytes of the input buffer of each device that has one when this step starts from ``layout``."""
        elements = 1
        for extent in layout.local_shape(shape, mesh):
            elements *= extent
        return elements * itemsize

    def bytes_sent(self, layout: Layout, shape: Sequence[int], itemsize: int, mesh: Mesh, rank: int = 0) -> int:
        """Payload bytes that ``rank`` sends, under the counting convention of the collectives engines.

        From or to one place: the root of a scatter sends the others their parts, each other device of a gather its own;
        a broadcast or a reduction is passed on in parts by all.
        """
        if self.kind is StepKind.PERMUTE:
            moves = self.permutation(layout, mesh)[rank] != rank
            return self.bytes_in(layout, shape, itemsize, mesh) if moves else 0
        return self._bytes_of_sender(layout, shape, itemsize, mesh) if self._sends(layout, mesh, rank) else 0

    def all_bytes_sent(self, layout: Layout, shape: Sequence[int], itemsize: int, mesh: Mesh) -> int:
        """Payload bytes that all devices together send; see :meth:`bytes_sent`."""
        if self.kind is StepKind.PERMUTE:
            moved = sum(source != rank for rank, source in enumerate(self.permutation(layout, mesh)))
            return moved * self.bytes_in(layout, shape, itemsize, mesh)
        members = mesh.extent(self.axes)
        groups = mesh.size // members // mesh.extent([axis for axis, _ in layout.at if axis not in self.axes])
        senders = {StepKind.SEND: 1, StepKind.SCATTER: 1, StepKind.GATHER: members - 1}.get(self.kind, members)
        return groups * senders * self._bytes_of_sender(layout, shape, itemsize, mesh)

    def _bytes_of_sender(self, layout: Layout, shape: Sequence[int], itemsize: int, mesh: Mesh) -> int:
        """Payload bytes of a device that sends anything."""
        size, members = self.bytes_in(layout, shape, itemsize, mesh), mesh.extent(self.axes)
        if self.kind.is_local:
            return 0
        if self.kind in (StepKind.SEND, StepKind.GATHER):
            return size
        if self.kind is StepKind.ALL_GATHER:
            return (members - 1) * size
        if self.kind is StepKind.ALL_REDUCE:
            return 2 * (members - 1) * size // members
        return (members - 1) * size // members

    def _sends(self, layout: Layout, mesh: Mesh, rank: int) -> bool:
        """Tells whether a device sends: it has some of the tensor, and what others of its group need."""
        coordinates = mesh.coordinates(rank)
        along = tuple(coordinates[axis] for axis in self.axes)
        if any(coordinates[axis] != place for axis, place in layout.at if axis not in self.axes):
            return False
        if self.kind in (StepKind.SEND, StepKind.SCATTER):
            return along == self.at
        return self.kind is not StepKind.GATHER or along != self.to_at

    def to_json(self) -> dict[str, Any]:
        """A JSON object with only the fields that are set."""
        result: dict[str, Any] = {"kind": self.kind.value}
        if self.axes:
            result["axes"] = list(self.axes)
        if self.dim is not None:
            result["dim"] = self.dim
        if self.to_dim is not None:
            result["to_dim"] = self.to_dim
        if self.target is not None:
            result["target"] = str(self.target)
        if self.at is not None:
            result["at"] = list(self.at)
        if self.to_at is not None:
            result["to_at"] = list(self.to_at)
        return result

    @classmethod
    def from_json(cls, data: object) -> Step:
        """The step that ``to_json`` wrote.

        Raises:
            LayoutError: it is none.
        """
        optional = dict.fromkeys(("axes", "dim", "to_dim", "target", "at", "to_at"))
        fields = Fields.of(data, "Step: not a reshard step", LayoutError, ("kind",), optional)
        kinds = {kind.value: kind for kind in StepKind}
        kind = fields.text("kind")
        if kind not in kinds:
            raise LayoutError(f"Step: not a reshard step: kind must be one of {', '.join(kinds)}, got {kind!r}.")
        target = fields.optional("target", fields.text)
        return cls(
            kinds[kind],
            fields.optional("axes", _indices(fields)) or (),
            fields.optional("dim", _index(fields)),
            fields.optional("to_dim", _index(fields)),
            None if target is None else Layout.parse(target),
            fields.optional("at", _indices(fields)),
            fields.optional("to_at", _indices(fields)),
        )

    def check(self, mesh: Mesh) -> None:
        """Checks that the step can be one of a mesh, whatever layout it starts from.

        Raises:
            LayoutError: it names an axis that the mesh has not, or twice, or a place outside of one.
        """
        named = {*self.axes, *(self.target.used_axes if self.target is not None else ())}
        if len(set(self.axes)) != len(self.axes) or not named <= set(mesh.axes):
            raise LayoutError(f"Step {self}: must name axes of {mesh}, 0..{len(mesh.axes) - 1}, each once.")
        for places in (self.at, self.to_at):
            if places is not None and any(
                place >= mesh.shape[axis] for axis, place in zip(self.axes, places, strict=True)
            ):
                raise LayoutError(f"Step {self}: must name places of {mesh}, got {places} along axes {self.axes}.")

    def __str__(self) -> str:
        axes = "{" + ",".join(map(str, self.axes)) + "}"
        if self.kind is StepKind.PERMUTE:
            return f"permute -> {self.target}"
        if self.kind is StepKind.ALL_TO_ALL:
            return f"all_to_all{axes} dim {self.dim} -> {self.to_dim}"
        places = [",".join(map(str, places)) for places in (self.at, self.to_at) if places is not None]
        text = f"{self.kind.value}{axes}" + ("" if self.dim is None else f" dim {self.dim}")
        if not places:
            return text
        return f"{text} {'to' if self.at is None else 'from' if self.to_at is None else 'at'} {' -> '.join(places)}"


def _pieces(layout: Layout, mesh: Mesh) -> NDArray[np.int64]:
    """Returns which piece of the tensor each rank holds: its index per dimension, and its place in the partial sum.

    Returns:
        ``(dimensions + 1, devices)``.
    """
    return np.stack([mesh.group_indices(axes) for axes in (*layout.dims, layout.partial)])


def _index(fields: Fields) -> Callable[[str], int]:
    return lambda name: fields.integer(name, least=0)


def _indices(fields: Fields) -> Callable[[str], tuple[int, ...]]:
    return lambda name: fields.integers(name, least=0)
