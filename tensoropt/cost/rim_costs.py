"""What it takes to bring in the rims of cut images."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from tensoropt.cost.cost_model import OpCall
from tensoropt.layout import Mesh, StepKind

__all__ = ["rim_copies", "rim_seconds", "rims"]

StepSeconds = Callable[[StepKind, tuple[int, ...], NDArray[np.float64], tuple[int, ...]], NDArray[np.float64]]


def rims(call: OpCall, mesh: Mesh) -> Iterator[tuple[tuple[int, ...], float]]:
    """The rims that a device gets, one after the other: the mesh axes that they come along, and their bytes.

    Every device sends a rim to the one before and one to the one after, for each dimension that is cut; rims of the
    second dimension have the corners, and so those of the first in them.
    """
    rule, configuration = call.rule, call.configuration
    if rule.halo_axes.isdisjoint(filter(None, configuration.actions)):
        return
    read = rule.halos[0].input
    piece_bytes = call.inputs[read].size_bytes / configuration.cuts(rule.inputs[read], mesh)
    for halo in rule.halos:
        axes = configuration.mesh_axes(halo.axis)
        pieces = mesh.extent(axes)
        if pieces > 1:
            widths, elements = halo.widths(pieces), halo.size_in // pieces
            yield from ((axes, piece_bytes * width / elements) for width in widths if width)
            piece_bytes *= (elements + sum(widths)) / elements


def rim_seconds(call: OpCall, mesh: Mesh, step_seconds: StepSeconds) -> float:
    """Seconds in which neighbours exchange the rims of the pieces of an image.

    Rims over several levels of the cluster are priced as if all of them crossed the outermost one. Where the image has
    a gradient, the gradients of rims go back.
    """
    idle = tuple(axis for axis, _ in call.configuration.at)
    total = 0.0
    for axes, size_bytes in rims(call, mesh):
        total += float(step_seconds(StepKind.PERMUTE, axes, np.array([size_bytes]), idle)[0])
    return total * (2 if call.gradients and call.gradients == len(call.rule.inputs) else 1)


def rim_copies(call: OpCall, mesh: Mesh) -> list[float]:
    """Bytes of the copies of a cut image that its neighbours' rims and its padding are joined to, one by dimension.

    What the window moves over is the last one. The backward pass makes them again.
    """
    rule, configuration = call.rule, call.configuration
    copies: list[float] = []
    if rule.halo_axes.isdisjoint(filter(None, configuration.actions)):
        return copies
    read = rule.halos[0].input
    size_bytes = call.inputs[read].size_bytes / configuration.cuts(rule.inputs[read], mesh)
    for halo in rule.halos:
        pieces = mesh.extent(configuration.mesh_axes(halo.axis))
        copied = halo.copied(pieces)
        if copied:
            size_bytes *= copied / (halo.size_in // pieces)
            copies.append(size_bytes)
    return copies
