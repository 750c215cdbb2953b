"""Mesh-TensorFlow's hybrid for Transformers (Shazeer et al. 2018): batch by one mesh dimension, model by the other."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np

from tensoropt.baselines.baseline import does_not_apply
from tensoropt.baselines.layouts import WHOLE, Layouts
from tensoropt.baselines.logical_dimensions import LogicalDimensions, logical_dimensions
from tensoropt.baselines.mesh_tensorflow import axes_of_names, coarsenings
from tensoropt.graph.registry import traits
from tensoropt.problem.frontier import Frontier, frontier_of
from tensoropt.search.registry import register_baseline
from tensoropt.space.propagation import activations, parameter_side, weight_of
from tensoropt.space.space import SearchSpace

__all__ = ["mesh_tensorflow_hybrid"]

_NAME = "mesh_tensorflow_hybrid"


@register_baseline("mesh_tensorflow_hybrid")
def mesh_tensorflow_hybrid(space: SearchSpace) -> Frontier:
    """The expert strategy for Transformers with which PaSE compares (section IV).

    On a mesh of two dimensions, the batch of all operators is split by one, and the model's dimensions by the other:
    vocabulary, hidden units of feed-forward layers, heads. The width that all layers share stays whole. All meshes that
    the devices make are tried, either dimension first, so the result may have several points.

    Raises:
        PlanError: the graph has no attention, or nothing can be split that way.
    """
    began = time.perf_counter()
    still = parameter_side(space)
    if not any(activations(op, still) for op in space.operators):
        raise does_not_apply(
            _NAME,
            "it is for Transformers, and no operator of the graph multiplies two tensors that are computed from "
            "samples, as attention does",
            "Use 'one_weird_trick' for convolutions, 'gnmt' for recurrent networks, or 'mesh_tensorflow', which "
            "tries all layouts.",
        )
    dimensions = logical_dimensions(space.graph, space.operators, space.rules)
    axis_of = axes_of_names(space, dimensions)
    names = tuple(sorted(dimensions.sizes, key=lambda name: (-dimensions.sizes[name], name)))
    batch, model = _batch_names(space, dimensions), _model_names(space, dimensions, still)
    rows = []
    for blocks in coarsenings(space.mesh, 2):
        extents = [space.mesh.extent(block) for block in blocks]
        splits = []
        for first, second in ((0, 1), (1, 0)):
            by = {name: first for name in batch} | {name: second for name in model}
            fit = {name: block for name, block in by.items() if dimensions.sizes[name] % extents[block] == 0}
            if any(name in fit for name in batch) and any(name in fit for name in model):
                splits.append([fit.get(name, WHOLE) for name in names])
        if splits:
            rows.append(Layouts(space, names, axis_of, blocks, np.array(splits, np.int64)).best())
    if not rows:
        raise does_not_apply(
            _NAME,
            f"no mesh of two dimensions of {space.mesh.size} devices divides both the batch and a dimension of the "
            f"model (named dimensions: {', '.join(str(dimensions.sizes[name]) for name in names) or 'none'})",
            "Use sizes that are divisible, or another number of devices, four or more.",
        )
    seconds = time.perf_counter() - began
    return frontier_of(space.problem, np.concatenate(rows), exact=False, eliminations=(), seconds=seconds)


def _batch_names(space: SearchSpace, dimensions: LogicalDimensions) -> tuple[str, ...]:
    inputs = [op.name for op in space.operators if traits(op).is_input and op.outputs[0].shape]
    return tuple(sorted({dimensions.of_axis[name, "d0"] for name in inputs if (name, "d0") in dimensions.of_axis}))


def _model_names(space: SearchSpace, dimensions: LogicalDimensions, still: frozenset[str]) -> tuple[str, ...]:
    """Returns a dimension of every matrix, but not the commonest one, and no two that meet in one tensor."""
    matrices: dict[str, list[str]] = {}
    for op in space.operators:
        weight = weight_of(op, still)
        if weight is not None:
            # In the order in which the product names them: heads before their depth.
            named = (dimensions.of_axis.get((op.name, dim[0])) for dim in space.rules[op.name].inputs[weight] if dim)
            matrices.setdefault(op.inputs[weight].op, [name for name in named if name is not None])
    counts = Counter(name for own in matrices.values() for name in sorted({*own}))
    if not counts:
        return ()
    width = max(counts, key=lambda name: (counts[name], dimensions.sizes[name]))
    chosen: list[str] = []
    for own in matrices.values():
        for name in own:
            apart = all((min(name, other), max(name, other)) not in dimensions.together for other in chosen)
            if name != width and name not in chosen and apart:
                chosen.append(name)
    return tuple(chosen)
