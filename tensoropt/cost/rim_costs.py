"""What it takes to bring in the rims of cut images."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tensoropt.cost.cost_model import OpCall
from tensoropt.layout import Mesh, StepKind

__all__ = ["rim_copies", "rim_seconds"]

StepSeconds = Callable[[StepKind, tuple[int, ...], NDArray[np.float64], tuple[int, ...]], NDArray[np.float64]]


def rim_seconds(call: OpCall, mesh: Mesh, step_seconds: StepSeconds) -> float:
    """Seconds in which neighbours exchange the rims of the pieces of an image, one dimension after the other.

    Every device sends a rim to the one before and one to the one after; rims of the second dimension have the
    corners, and so those of the first in them. Rims over several levels of the cluster are priced as if all of them
    crossed the outermost one. Where the image has a gradient, the gradients of rims go back.
    """
    rule, configuration = call.rule, call.configuration
    if rule.halo_axes.isdisjoint(filter(None, configuration.actions)):
        return 0.0
    total, read = 0.0, rule.halos[0].input
    idle = tuple(axis for axis, _ in configuration.at)
    piece_bytes = call.inputs[read].size_bytes / configuration.cuts(rule.inputs[read], mesh)
    for halo in rule.halos:
        axes = configuration.mesh_axes(halo.axis)
        pieces = mesh.extent(axes)
        if pieces == 1:
            continue
        widths, elements = halo.widths(pieces), halo.size_in // pieces
        for width in widths:
            if width:
                rim = np.array([piece_bytes * width / elements])
                total += float(step_seconds(StepKind.PERMUTE, axes, rim, idle)[0])
        piece_bytes *= (elements + sum(widths)) / elements
    return total * (2 if call.gradients and call.gradients == len(rule.inputs) else 1)


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
