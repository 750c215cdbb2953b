"""The layout of a tensor: which mesh axes split which dimension, partial sums, and the devices that hold it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tensoropt.errors import LayoutError
from tensoropt.layout.mesh import Mesh

__all__ = ["Layout", "common_prefix"]


@dataclass(frozen=True, slots=True)
class Layout:
    """The state of a tensor along every mesh axis: shard of a dimension, partial sum, at one place, or replicated.

    Attributes:
        dims: for each tensor dimension the mesh axes that split it, the major one first; ``()`` is unsplit.
        partial: the mesh axes along which the devices hold summands of the tensor, ascending.
        at: mesh axes along which only devices with one coordinate hold the tensor, ascending, with the coordinate.
            The other devices hold nothing of it.

    Invariants:
        No mesh axis appears twice. Axes that do not appear replicate the tensor.

    Example:
        >>> str(Layout(((0,), (1, 2))))
        '{0}{1,2}'
        >>> str(Layout(((), ()), partial=(1,)))
        '{}{} partial{1}'
        >>> layout = Layout(((1,), ()), at=((0, 1),))
        >>> str(layout), layout.devices(Mesh((2, 2)))
        ('{1}{} at{0=1}', (2, 3))
    """

    dims: tuple[tuple[int, ...], ...]
    partial: tuple[int, ...] = ()
    at: tuple[tuple[int, int], ...] = ()

    def __post_init__(self) -> None:
        used = [axis for dim in self.dims for axis in dim] + list(self.partial) + [axis for axis, _ in self.at]
        if len(set(used)) != len(used):
            raise LayoutError(f"Layout {self}: a mesh axis may be used once only. Split one dimension by it, or none.")
        if tuple(sorted(self.partial)) != self.partial:
            raise LayoutError(f"Layout {self}: partial axes are given ascending, got {self.partial}.")
        if self.at and (tuple(sorted(self.at)) != self.at or min(place for _, place in self.at) < 0):
            raise LayoutError(
                f"Layout {self}: axes of one place are given ascending, with coordinates from 0. Got {self.at}."
            )

    @classmethod
    def replicated(cls, rank: int) -> Layout:
        """The layout of a tensor with ``rank`` dimensions that every device holds whole."""
        return cls(((),) * rank)

    @classmethod
    def parse(cls, text: str) -> Layout:
        """The layout whose ``str`` is ``text``."""
        number = "(?:0|[1-9][0-9]*)"
        axes = f"{number}(?:,{number})*"
        places = f"{number}={number}(?:,{number}={number})*"
        match = re.fullmatch(rf"((?:\{{(?:{axes})?\}})*)(?: partial\{{({axes})\}})?(?: at\{{({places})\}})?", text)
        if match is None:
            raise LayoutError(f"Layout {text!r}: expected one '{{axes}}' per dimension, such as '{{0}}{{1,2}}'.")
        groups = re.findall(r"\{([0-9,]*)\}", match.group(1))
        partial, at = match.group(2) or "", match.group(3) or ""
        pairs = [part.split("=") for part in at.split(",") if part]
        return cls(
            tuple(tuple(int(axis) for axis in group.split(",") if axis) for group in groups),
            tuple(int(axis) for axis in partial.split(",") if axis),
            tuple((int(axis), int(place)) for axis, place in pairs),
        )

    @property
    def rank(self) -> int:
        """Number of tensor dimensions."""
        return len(self.dims)

    @property
    def used_axes(self) -> tuple[int, ...]:
        """Mesh axes that do not replicate, ascending."""
        used = {axis for dim in self.dims for axis in dim} | set(self.partial)
        return tuple(sorted(used | {axis for axis, _ in self.at} if self.at else used))

    @property
    def is_replicated(self) -> bool:
        """True if every device holds the whole tensor."""
        return not self.partial and not self.at and not any(self.dims)

    def holds(self, mesh: Mesh, rank: int) -> bool:
        """Tells whether a device holds a piece of the tensor."""
        coordinates = mesh.coordinates(rank)
        return all(coordinates[axis] == place for axis, place in self.at)

    def devices(self, mesh: Mesh) -> tuple[int, ...]:
        """The devices that have a piece of the tensor, ascending."""
        return mesh.devices_at(self.at)

    def shard_counts(self, mesh: Mesh) -> tuple[int, ...]:
        """Returns the number of pieces into which each dimension is cut."""
        return tuple(mesh.extent(axes) for axes in self.dims)

    def check(self, shape: Sequence[int], mesh: Mesh, subject: str = "tensor") -> None:
        """Raises :class:`LayoutError` unless ``shape`` can have this layout on ``mesh``."""
        if len(shape) != self.rank:
            raise LayoutError(f"{subject}: layout {self} is for {self.rank} dimensions, the shape is {tuple(shape)}.")
        beyond = [axis for axis in self.used_axes if axis >= len(mesh.shape)]
        if beyond:
            raise LayoutError(f"{subject}: layout {self} names mesh axes {beyond} that {mesh} has not.")
        outside = [axis for axis, place in self.at if place >= mesh.shape[axis]]
        if outside:
            raise LayoutError(
                f"{subject}: layout {self} is at a coordinate that mesh axes {outside} of {mesh} have not. "
                "Coordinates go from 0 to the extent less 1."
            )
        for position, (extent, count) in enumerate(zip(shape, self.shard_counts(mesh), strict=True)):
            if extent % count:
                raise LayoutError(
                    f"{subject}: dimension {position} (size {extent}) cannot be split over mesh axes "
                    f"{self.dims[position]} of {mesh}: {extent} % {count} != 0. Got shape {tuple(shape)}. "
                    f"Leave it unsplit or use mesh axes that divide {extent}."
                )

    def local_shape(self, shape: Sequence[int], mesh: Mesh) -> tuple[int, ...]:
        """The shape of every device's piece of a tensor of ``shape``."""
        return tuple(extent // count for extent, count in zip(shape, self.shard_counts(mesh), strict=True))

    def offsets(self, shape: Sequence[int], mesh: Mesh, rank: int) -> tuple[int, ...]:
        """Returns where the piece of ``rank`` starts, per dimension."""
        return tuple(
            mesh.group_index(rank, axes) * extent
            for axes, extent in zip(self.dims, self.local_shape(shape, mesh), strict=True)
        )

    def slices(self, shape: Sequence[int], mesh: Mesh, rank: int) -> tuple[slice, ...]:
        """The piece of ``rank`` as an index into the whole tensor."""
        local = self.local_shape(shape, mesh)
        return tuple(
            slice(start, start + extent) for start, extent in zip(self.offsets(shape, mesh, rank), local, strict=True)
        )

    def with_dim(self, dim: int, axes: Iterable[int]) -> Layout:
        """This layout with dimension ``dim`` split by ``axes`` instead."""
        return Layout((*self.dims[:dim], tuple(axes), *self.dims[dim + 1 :]), self.partial, self.at)

    def without_partial(self, axes: Iterable[int]) -> Layout:
        """This layout with the sums along ``axes`` done."""
        done = set(axes)
        return Layout(self.dims, tuple(axis for axis in self.partial if axis not in done), self.at)

    def placed(self, at: Iterable[tuple[int, int]]) -> Layout:
        """This layout at other places: axes and coordinates, in any order."""
        return Layout(self.dims, self.partial, tuple(sorted(at)))

    def __str__(self) -> str:
        text = "".join("{" + ",".join(map(str, axes)) + "}" for axes in self.dims)
        if self.partial:
            text = f"{text} partial{{{','.join(map(str, self.partial))}}}"
        if self.at:
            text = f"{text} at{{{','.join(f'{axis}={place}' for axis, place in self.at)}}}"
        return text


def common_prefix(one: Sequence[int], other: Sequence[int]) -> tuple[int, ...]:
    """The mesh axes by which two dimensions are split alike: the leading ones that are equal."""
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return tuple(one[:count])
