"""Runs reshard steps on a device's piece of a tensor, with the collectives of an engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import tensorflow as tf

from tensoropt.errors import LayoutError
from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.program.gradient import with_gradient
from tensoropt.exec.program.summands import held_dtype
from tensoropt.graph.ops.gather import other_row
from tensoropt.graph.ops.updates import NO_ROW
from tensoropt.layout import Layout, Mesh, Step, StepKind, common_prefix

__all__ = ["reshard", "reshard_edge", "reshard_rows"]


def reshard(
    tensor: Any,
    layout: Layout,
    steps: Sequence[Step],
    mesh: Mesh,
    engine: CollectiveEngine,
    dtype: Any = None,
    shape: Sequence[int] | None = None,
) -> Any:
    """The device's piece after ``steps``, which start from ``layout``. Has no gradient of its own.

    Args:
        tensor: the piece before; None on a device that has none.
        layout: of it.
        steps: of the reshard.
        mesh: the factor mesh.
        engine: does the collectives.
        dtype: of the whole tensor, by default the piece's. Parts of sums of 16-bit floats are float32.
        shape: of the whole tensor, which who has no piece of it needs to get one.

    Returns:
        None on a device that has no piece of the tensor afterwards.
    """
    dtype = tensor.dtype if dtype is None else dtype
    held = not layout.at or layout.holds(mesh, engine.rank)
    tensor = tf.cast(tensor, held_dtype(dtype, layout)) if held else None
    for step in steps:
        reached = step.apply(layout)
        if step.kind.leaves or step.kind.arrives:
            tensor = _apply_placed(step, tensor, layout, reached, mesh, engine, held_dtype(dtype, layout), shape)
        elif tensor is not None:
            tensor = _apply(step, tensor, layout, mesh, engine)
        tensor = None if tensor is None else tf.cast(tensor, held_dtype(dtype, reached))
        layout = reached
    return tensor


def reshard_edge(
    tensor: Any,
    value: Layout,
    forward: Sequence[Step],
    gradient: Layout,
    backward: Sequence[Step],
    target_gradient: Layout,
    mesh: Mesh,
    engine: CollectiveEngine,
    dtype: Any = None,
    *,
    twice: bool = False,
) -> Any:
    """One edge of the graph: ``forward`` steps for the value, ``backward`` steps for its gradient.

    Args:
        tensor: the producer's piece.
        value: its layout.
        forward: steps to the layout that the consumer wants.
        gradient: the layout of the gradient that the consumer gives.
        backward: steps to the layout that the producer needs.
        target_gradient: that layout; rows of a sparse gradient go there by a path of their own.
        mesh: the factor mesh.
        engine: does the collectives.
        dtype: of the whole tensor and its gradient; see :func:`reshard`.
        twice: whether the gradient may be differentiated.
    """
    dtype = tensor.dtype if dtype is None else tf.as_dtype(dtype)
    # Rows of a gradient that stays partial still have to get the dtype of other parts of the sum.
    if not forward and not backward and gradient == target_gradient and held_dtype(dtype, gradient) == dtype:
        return tensor
    moved = reshard(tensor, value, forward, mesh, engine, dtype)
    reached = gradient
    for step in backward:
        reached = step.apply(reached)

    def gradient_back(incoming: Any) -> list[Any]:
        if isinstance(incoming, tf.IndexedSlices):
            shape = _global_shape(tensor, value, mesh)
            return [reshard_rows(incoming, gradient, target_gradient, shape, mesh, engine, dtype)]
        if reached != target_gradient:
            raise LayoutError(
                f"Reshard of a gradient: its steps lead from {gradient} to {reached}, but {target_gradient} is needed. "
                "The rule of the consumer says that TensorFlow gives this gradient as rows, and it came whole."
            )
        returned = reshard(incoming, gradient, backward, mesh, engine, dtype)
        if not twice:
            return [returned]
        # What a gradient's gradient goes back through: the way of the tensor, as it is for whatever is linear in it.
        return with_gradient([incoming], [returned], lambda again: [forth(again)])

    def forth(tensor: Any) -> Any:
        return with_gradient([tensor], [reshard(tensor, value, forward, mesh, engine, dtype)], gradient_back)[0]

    return with_gradient([tensor], [moved], gradient_back)[0]


def reshard_rows(
    rows: tf.IndexedSlices,
    source: Layout,
    target: Layout,
    shape: Sequence[int],
    mesh: Mesh,
    engine: CollectiveEngine,
    dtype: Any = None,
) -> tf.IndexedSlices:
    """Moves a gradient that is given as rows, which stays so: optimizers treat untouched rows differently.

    Rows of other devices' pieces are among them: see :mod:`tensoropt.exec.program.sparse_gradients`.

    Args:
        rows: this device's rows, by their indices within its piece.
        source: the layout of the gradient that they are rows of.
        target: the layout that is needed.
        shape: of the whole gradient.
        mesh: the factor mesh.
        engine: does the collectives.
        dtype: of the whole gradient. Rows are moved in it, as moving them sums nothing; where they stay parts of a sum,
            they get the dtype of such parts, in which gradients that are no rows may join them.
    """
    dtype = rows.values.dtype if dtype is None else dtype
    if source == target:
        return tf.IndexedSlices(tf.cast(rows.values, held_dtype(dtype, target)), rows.indices, rows.dense_shape)
    values, indices = tf.cast(rows.values, dtype), tf.cast(rows.indices, tf.int64)
    # Beyond the axes that both split rows by alike, a piece of the target has rows of any piece of the source.
    alike = len(common_prefix(source.dims[0], target.dims[0]))
    split = source.dims[0][alike:]
    if source.dims[0] != target.dims[0]:
        whole = tf.where(indices >= 0, indices + source.offsets(shape, mesh, engine.rank)[0], other_row(indices))
        if split:
            # Each row is to come once: from the member that has it, or if none does from the first one.
            extent = shape[0] // mesh.extent(source.dims[0][:alike])
            start = mesh.group_index(engine.rank, source.dims[0][:alike]) * extent
            others = (whole < start) | (whole >= start + extent)
            first = tf.constant(mesh.group_index(engine.rank, split) == 0)
            whole = tf.where((indices >= 0) | (others & first), whole, tf.constant(NO_ROW, tf.int64))
        indices = whole
    gathered = tuple(sorted({*source.partial} - {*target.partial} | {*split}))
    if gathered:
        members = engine.all_gather(values, gathered)
        values = tf.reshape(members, [-1, *members.shape.as_list()[2:]])
        indices = tf.reshape(engine.all_gather(indices, gathered), [-1])
    # All dimensions are made whole before any is cut: a mesh axis may move from one to another.
    moved = [dim for dim in range(1, source.rank) if source.dims[dim] != target.dims[dim]]
    for dim in moved:
        if source.dims[dim]:
            values = _merge(engine.all_gather(values, source.dims[dim]), dim)
    for dim in moved:
        if target.dims[dim]:
            count = values.shape.as_list()[dim] // mesh.extent(target.dims[dim])
            start = mesh.group_index(engine.rank, target.dims[dim]) * count
            values = tf.gather(values, tf.range(start, start + count), axis=dim)
    if source.dims[0] != target.dims[0]:
        local = indices - target.offsets(shape, mesh, engine.rank)[0]
        own = (indices >= 0) & (local >= 0) & (local < target.local_shape(shape, mesh)[0])
        indices = tf.where(own, local, other_row(indices))
    dropped = tuple(sorted(set(target.partial) - set(source.partial)))
    if dropped:  # the same ops on every rank, as in _apply
        first = tf.constant(mesh.group_index(engine.rank, dropped) == 0)
        indices = tf.where(first, indices, tf.constant(NO_ROW, tf.int64))
    local_shape = target.local_shape(shape, mesh)
    values = tf.cast(values, held_dtype(dtype, target))
    return tf.IndexedSlices(values, indices, tf.constant(local_shape, tf.int64))


def _apply(step: Step, tensor: Any, layout: Layout, mesh: Mesh, engine: CollectiveEngine) -> Any:
    kind, axes = step.kind, step.axes
    if kind is StepKind.ALL_REDUCE:
        # A sum of truth values is whether any is true.
        return engine.all_reduce(tensor, axes, op="max" if tensor.dtype == tf.bool else "sum")
    if kind is StepKind.PERMUTE:
        sources = step.permutation(layout, mesh)
        if not layout.at:
            return engine.permute(tensor, sources)
        # Devices at other places take no part.
        moves = {rank: source for rank, source in enumerate(sources) if rank != source}
        return engine.move(tensor, moves, tensor.shape.as_list()) if engine.rank in moves else tensor
    if kind is StepKind.TO_PARTIAL:
        # Every rank builds the same ops: TensorFlow's order of gradients, and so of their collectives, follows them.
        return tf.where(tf.constant(mesh.group_index(engine.rank, axes) == 0), tensor, tf.zeros_like(tensor))
    dim = cast(int, step.dim)  # a step of any other kind has one
    count = mesh.extent(axes)
    if kind is StepKind.ALL_GATHER:
        return _merge(engine.all_gather(tensor, axes), dim)
    if kind is StepKind.SLICE:
        size = [-1 if extent is None else extent for extent in tensor.shape.as_list()]
        size[dim] //= count
        begin = [0] * len(size)
        begin[dim] = mesh.group_index(engine.rank, axes) * size[dim]
        return tf.slice(tensor, begin, size)
    if kind is StepKind.REDUCE_SCATTER:
        stacked = _stack(tensor, dim, count)
        if tensor.dtype == tf.bool:
            return tf.cast(engine.reduce_scatter(tf.cast(stacked, tf.uint8), axes), tf.bool)
        return engine.reduce_scatter(stacked, axes)
    return _merge(engine.all_to_all(_stack(tensor, cast(int, step.to_dim), count), axes), dim)


def _apply_placed(
    step: Step,
    tensor: Any,
    layout: Layout,
    reached: Layout,
    mesh: Mesh,
    engine: CollectiveEngine,
    dtype: Any,
    shape: Sequence[int] | None,
) -> Any:
    """The piece after a step from or to one device of each group; None on a device that has none then."""
    kind, axes, rank = step.kind, step.axes, engine.rank
    if not layout.holds(mesh, rank) and not reached.holds(mesh, rank):
        return None
    if kind is StepKind.DROP:
        return tensor if reached.holds(mesh, rank) else None
    local = _known(layout.local_shape(_known(shape), mesh))
    if kind is StepKind.FILL:
        return tf.zeros(local, dtype) if tensor is None else tensor
    if kind is StepKind.BROADCAST:
        given = tf.zeros(local, dtype) if tensor is None else tf.ensure_shape(tensor, local)
        return engine.broadcast(given, axes, _member(step.at, axes, mesh))
    if kind is StepKind.REDUCE:
        total = engine.all_reduce(tensor, axes, op="max" if tensor.dtype == tf.bool else "sum")
        return total if reached.holds(mesh, rank) else None
    groups = [mesh.group_members(first, axes) for first in _firsts(step, layout, mesh)]
    if kind is StepKind.SEND:
        sender, receiver = _member(step.at, axes, mesh), _member(step.to_at, axes, mesh)
        return _moved(engine, tensor, {group[receiver]: group[sender] for group in groups}, local, dtype)
    count, dim = mesh.extent(axes), cast(int, step.dim)
    if kind is StepKind.SCATTER:
        root = _member(step.at, axes, mesh)
        piece = [extent // count if place == dim else extent for place, extent in enumerate(local)]
        stacked = None if tensor is None else _stack(tf.ensure_shape(tensor, local), dim, count)
        result = None if stacked is None else stacked[root]
        for member in range(count):
            if member == root:
                continue
            part = None if stacked is None else stacked[member]
            came = _moved(engine, part, {group[member]: group[root] for group in groups}, piece, dtype)
            result = came if result is None else result
        return result
    root = _member(step.to_at, axes, mesh)
    parts: list[Any] = []
    for member in range(count):
        own = tensor if mesh.group_index(rank, axes) == member else None
        moves = {group[root]: group[member] for group in groups}
        parts.append(own if member == root else _moved(engine, own, moves, local, dtype))
    return _merge(tf.stack(parts), dim) if reached.holds(mesh, rank) else None


def _moved(engine: CollectiveEngine, tensor: Any, moves: dict[int, int], shape: Sequence[int], dtype: Any) -> Any:
    """What comes to this device; None if nothing does."""
    given = tf.zeros([0], dtype) if tensor is None else tf.ensure_shape(tensor, shape)
    return engine.move(given, moves, shape)


def _firsts(step: Step, layout: Layout, mesh: Mesh) -> list[int]:
    """The first device of each group along a step's axes that takes part in it."""
    others = [(axis, place) for axis, place in layout.at if axis not in step.axes]
    return list(mesh.devices_at([*others, *((axis, 0) for axis in step.axes)]))


def _member(places: tuple[int, ...] | None, axes: tuple[int, ...], mesh: Mesh) -> int:
    """The number in its group of the device at given places along the group's axes."""
    result = 0
    for axis, place in zip(axes, cast(tuple[int, ...], places), strict=True):
        result = result * mesh.shape[axis] + place
    return result


def _known(shape: Sequence[int] | None) -> tuple[int, ...]:
    if shape is None:
        raise LayoutError("Reshard: a device without a piece needs the tensor's shape to get one. Give shape=….")
    return tuple(shape)


def _stack(tensor: Any, dim: int, count: int) -> Any:
    """Cuts ``dim`` into ``count`` pieces and stacks them in front."""
    shape = tensor.shape.as_list()
    cut = tf.reshape(tensor, [*shape[:dim], count, shape[dim] // count, *shape[dim + 1 :]])
    if dim == 0:
        return cut
    order = [dim, *range(dim), *range(dim + 1, len(shape) + 1)]
    return tf.transpose(cut, order)


def _merge(stacked: Any, dim: int) -> Any:
    """Joins pieces that are stacked in front along ``dim``; the inverse of :func:`_stack`."""
    shape = stacked.shape.as_list()
    if dim:
        order = [*range(1, dim + 1), 0, *range(dim + 1, len(shape))]
        stacked = tf.transpose(stacked, order)
    piece = shape[1:]
    return tf.reshape(
        stacked, [-1 if extent is None else extent * shape[0] if i == dim else extent for i, extent in enumerate(piece)]
    )


def _global_shape(tensor: Any, layout: Layout, mesh: Mesh) -> tuple[int, ...]:
    return tuple(
        extent * count for extent, count in zip(tensor.shape.as_list(), layout.shard_counts(mesh), strict=True)
    )
