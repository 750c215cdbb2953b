"""Mesh-TensorFlow (Shazeer et al. 2018): one mesh for all operators, and one mesh dimension per named dimension."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Iterator, Sequence

import numpy as np

from tensoropt.baselines.baseline import does_not_apply
from tensoropt.baselines.layouts import WHOLE, Layouts
from tensoropt.baselines.logical_dimensions import LogicalDimensions, logical_dimensions
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId
from tensoropt.layout import Mesh
from tensoropt.problem.frontier import Frontier, frontier_of
from tensoropt.problem.problem import IntArray
from tensoropt.search.registry import register_baseline
from tensoropt.space.space import SearchSpace

__all__ = ["MAX_LAYOUTS", "MAX_MESH_RANK", "axes_of_names", "coarsenings", "mesh_tensorflow"]

MAX_MESH_RANK = 2
"""Dimensions of the meshes that are tried. Mesh-TensorFlow's own programs have two."""

MAX_LAYOUTS = 200_000
"""Meshes of a rank of which one has more are left out: they would take minutes."""

_Blocks = tuple[tuple[int, ...], ...]  # per mesh dimension, the axes of the factor mesh that it is the product of


@register_baseline("mesh_tensorflow")
def mesh_tensorflow(space: SearchSpace, *, max_mesh_rank: int = MAX_MESH_RANK) -> Frontier:
    """The frontier of all that Mesh-TensorFlow can express (TensorOpt section 4.2, "Flexible tensor splitting").

    All meshes of up to ``max_mesh_rank`` dimensions are tried, and on each all layouts: which named dimension is split
    by which mesh dimension, the same in every operator that has it. An operator of which two axes have one name splits
    one of them, as if a program had renamed the other (attention's memory length, a recurrent cell's input). Both ways
    to name what meets in an operator and has one size are tried. Both copies of a moved tensor are kept.

    Where a mesh has more than `MAX_LAYOUTS` layouts by one way to name, meshes of its rank and above are left out by
    that way; the result says so, and is not exact.

    Args:
        space: the graph's search space.
        max_mesh_rank: at least 1.

    Raises:
        PlanError: nothing can be split, or there are more than `MAX_LAYOUTS` layouts on a mesh of one dimension.
        InfeasibleError: no layout is possible.
    """
    began = time.perf_counter()
    rows: list[IntArray] = []
    too_many: list[str] = []
    for renamed in (False, True):
        dimensions = logical_dimensions(space.graph, space.operators, space.rules, renamed=renamed)
        found, reason = _assignments(space, dimensions, max_mesh_rank)
        rows += found
        too_many += [] if reason is None else [reason]
    if not rows and too_many:
        raise does_not_apply("mesh_tensorflow", too_many[0], "Use fewer devices, or a smaller model.")
    if not rows:
        raise does_not_apply(
            "mesh_tensorflow",
            f"no named dimension is divisible by a mesh of {space.mesh.size} devices",
            "Use sizes that are, or another number of devices.",
        )
    seconds = time.perf_counter() - began
    return frontier_of(
        space.problem,
        np.concatenate(rows),
        exact=not too_many,
        eliminations=(),
        seconds=seconds,
        searched=_left_out(too_many),
    )


def _left_out(too_many: Sequence[str]) -> str | None:
    """Describes the part that was not searched, given the reasons of one or both ways to name dimensions."""
    if not too_many:
        return None
    what = "meshes were left out" if len(too_many) > 1 else "dimensions of one size have one name on some meshes"
    return f"{what}: {too_many[0]}"


def _assignments(
    space: SearchSpace, dimensions: LogicalDimensions, max_mesh_rank: int
) -> tuple[list[IntArray], str | None]:
    """The assignments of the best layouts of each mesh, and why those of some rank and above are none."""
    axis_of = axes_of_names(space, dimensions)
    names = tuple(sorted(dimensions.sizes, key=lambda name: (-dimensions.sizes[name], name)))
    rows: list[IntArray] = []
    for rank in range(min(1, len(space.mesh.axes)), min(max_mesh_rank, len(space.mesh.axes)) + 1):
        of_rank = []
        for blocks in coarsenings(space.mesh, rank):
            found = list(itertools.islice(_splits(space.mesh, blocks, names, dimensions), MAX_LAYOUTS + 1))
            if len(found) > MAX_LAYOUTS:
                extents = " x ".join(str(space.mesh.extent(axes)) for axes in blocks)
                return rows, f"{len(names)} names have more than {MAX_LAYOUTS:,} layouts on {extents} devices"
            if found:
                of_rank.append((blocks, np.array(found, dtype=np.int64).reshape(len(found), len(names))))
        rows += [Layouts(space, names, axis_of, blocks, splits).best() for blocks, splits in of_rank]
    return rows, None


def _splits(
    mesh: Mesh, blocks: _Blocks, names: Sequence[str], dimensions: LogicalDimensions
) -> Iterator[tuple[int, ...]]:
    """Every layout that uses the whole mesh: for each name its mesh dimension, or `WHOLE`."""
    place_of = {name: place for place, name in enumerate(names)}
    apart: list[list[int]] = [[] for _ in names]  # the earlier names that it meets in some tensor
    for pair in dimensions.together:
        low, high = sorted(place_of[name] for name in pair)
        apart[high].append(low)
    fits = [
        [block for block, axes in enumerate(blocks) if dimensions.sizes[name] % mesh.extent(axes) == 0]
        for name in names
    ]

    def extend(chosen: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
        place = len(chosen)
        if place == len(names):
            if len({*chosen} - {WHOLE}) == len(blocks):
                yield chosen
            return
        for block in fits[place]:
            if all(chosen[other] != block for other in apart[place]):
                yield from extend((*chosen, block))
        yield from extend((*chosen, WHOLE))

    return extend(())


def coarsenings(mesh: Mesh, rank: int) -> Iterator[_Blocks]:
    """The meshes of ``rank`` dimensions, each the product of neighbouring axes of the factor mesh."""
    if rank == 0:
        yield ()
        return
    for cuts in itertools.combinations(range(1, len(mesh.axes)), rank - 1):
        edges = (0, *cuts, len(mesh.axes))
        yield tuple(mesh.axes[start:stop] for start, stop in itertools.pairwise(edges))


def axes_of_names(space: SearchSpace, dimensions: LogicalDimensions) -> dict[str, dict[str, str]]:
    """Per operator, the iteration axis that it splits for each name that it has."""
    result: dict[str, dict[str, str]] = {}
    for op in reversed(space.operators):
        rule = space.rules[op.name]
        made = [axis for dims in rule.outputs for dim in dims for axis in dim[:1]]
        by_name: dict[str, list[str]] = {}
        for axis in sorted(rule.split, key=lambda axis: (made.index(axis) if axis in made else math.inf, axis)):
            if (op.name, axis) in dimensions.of_axis:
                by_name.setdefault(dimensions.of_axis[op.name, axis], []).append(axis)
        chosen = {name: axes[0] for name, axes in by_name.items()}
        if not op.inputs or traits(op).is_fanout:
            for edge in space.graph.consumers(TensorId(op.name)):
                for name, axis in result.get(edge.consumer, {}).items():
                    wanted = [
                        ours[0]
                        for ours, theirs in zip(
                            rule.outputs[0], space.rules[edge.consumer].inputs[edge.position], strict=True
                        )
                        if ours and theirs and theirs[0] == axis
                    ]
                    if len(by_name.get(name, ())) > 1 and wanted and wanted[0] in by_name[name]:
                        chosen[name] = wanted[0]
        result[op.name] = chosen
    return result
