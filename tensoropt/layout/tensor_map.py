"""The paper's way to show a configuration: a device mesh and one tensor map per tensor."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from tensoropt.layout.layout import Layout
from tensoropt.layout.mesh import Mesh

__all__ = ["coarsen", "tensor_map"]


def coarsen(mesh: Mesh, actions: Sequence[Hashable]) -> tuple[tuple[int, ...], tuple[tuple[int, ...], ...]]:
    """Joins neighbouring factor-mesh axes that do the same into one axis (TensorOpt section 2.1).

    Args:
        mesh: the factor mesh.
        actions: what each of its axes does.

    Returns:
        The coarse mesh's shape, and for each of its axes the factor axes that it is made of.

    Example:
        >>> coarsen(Mesh((2, 2, 2)), ["m", "m", "n"])
        ((4, 2), ((0, 1), (2,)))
    """
    groups: list[list[int]] = []
    for axis in mesh.axes:
        if groups and actions[axis] == actions[axis - 1]:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    axes = tuple(tuple(group) for group in groups)
    return tuple(mesh.extent(group) for group in axes), axes


def tensor_map(layout: Layout, groups: Sequence[Sequence[int]]) -> tuple[int | tuple[int, ...], ...]:
    """The tensor map of ``layout`` on the coarse mesh whose axes are ``groups`` of factor axes.

    Returns:
        Per tensor dimension the coarse axis that splits it, -1 for none, a tuple where it is split by several.
    """
    coarse = {axis: index for index, group in enumerate(groups) for axis in group}
    result: list[int | tuple[int, ...]] = []
    for axes in layout.dims:
        named = tuple(dict.fromkeys(coarse[axis] for axis in axes))
        result.append(-1 if not named else named[0] if len(named) == 1 else named)
    return tuple(result)
