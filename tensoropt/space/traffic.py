"""The moves of an edge in a strategy, step by step, with their seconds and the bytes that devices send."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from tensoropt.graph.graph import Edge
from tensoropt.layout import Layout, Mesh, Step, StepKind
from tensoropt.plan.account import Move
from tensoropt.plan.plan import EdgePlan, Plan
from tensoropt.plan.tensor_reuse import reverse_steps
from tensoropt.space.sparse_gradient_seconds import rows_seconds

if TYPE_CHECKING:
    from tensoropt.space.space import SearchSpace

__all__ = ["moves_of", "sent_bytes"]


def sent_bytes(plan: Plan) -> float:
    """Returns the bytes that all devices together send between operators in a training step (FlexFlow figure 7b).

    Tensors and gradients count as collectives send them (:meth:`Step.bytes_sent`), and so do copies that the backward
    pass makes again. The gradient of a table counts as the rows that it is. Bytes that an operator exchanges internally
    (statistics of a softmax or of a batch) do not count.
    """
    return sum(move.sent_bytes for entry in plan.edges.values() for move in entry.moves)


def moves_of(space: SearchSpace, edge: Edge, entry: EdgePlan, given: int, wanted: int) -> tuple[Move, ...]:
    """Returns the moves that make up an edge's time.

    Args:
        space: the graph's search space.
        edge: an edge between operators of the training step.
        entry: its steps.
        given: the producer's configuration, as an index of its choices.
        wanted: the consumer's configuration, as an index of its choices.
    """
    rules, ends = space.rules, (edge.tensor.op, edge.consumer)
    here, there = (space.choices(name)[index] for name, index in zip(ends, (given, wanted), strict=True))
    source = here.output_layouts(rules[edge.tensor.op], edge.tensor.index)
    target = there.input_layouts(rules[edge.consumer], edge.position)
    found: list[Move] = []
    if entry.forward:
        table = space.reshard_table(edge)
        seconds = table.step_seconds(source.value, target.value)
        found += _steps(space, edge, source.value, entry.forward, seconds, "forward")
        if space.moved_again(edge, given, wanted, entry.keep):
            found += _steps(space, edge, source.value, entry.forward, seconds, "again")
        elif entry.keep == "after":
            back = reverse_steps(source.value, entry.forward)
            seconds = table.step_seconds(source.value, target.value, back=True)[::-1]
            found += _steps(space, edge, target.value, back, seconds, "again")
    seconds_again = space.seconds_again(edge, given, wanted, entry.keep)
    if seconds_again:  # the consumer's gradient reads the consumer's output
        found.append(Move("compute", "again", (), seconds_again, 0.0, 0.0))
    if entry.backward:
        table = space.reshard_table(edge, widened=entry.back_each)
        seconds = table.step_seconds(target.gradient, source.gradient)
        found += _steps(space, edge, target.gradient, entry.backward, seconds, "backward", widened=entry.back_each)
    elements = space.row_elements(edge)
    if elements is not None:
        found += _rows(space, edge, elements, (given, wanted), (target.gradient, source.gradient))
    forward, backward = space.moves_per_step(edge, entry)
    if forward > 1 or backward > 1:
        counts = [backward if move.when == "backward" else forward for move in found]
        found = [
            replace(move, seconds=count * move.seconds, sent_bytes=count * move.sent_bytes)
            for move, count in zip(found, counts, strict=True)
        ]
    adding = space.adding_seconds(edge, entry, given, wanted)
    if adding:
        found.append(Move("add", "backward", (), adding, 0.0, 0.0))
    return tuple(found)


def _steps(
    space: SearchSpace,
    edge: Edge,
    layout: Layout,
    steps: Sequence[Step],
    seconds: Iterable[float],
    when: str,
    *,
    widened: bool = False,
) -> Iterator[Move]:
    """The moves of steps that begin at a layout; parts of sums have elements of their own size, and all if widened."""
    spec, mesh = space.spec(edge), space.mesh
    spec = spec.widened if widened else spec
    for step, taken in zip(steps, seconds, strict=True):
        itemsize = max(1, spec.sum_itemsize if layout.partial else spec.itemsize)
        size_bytes = step.bytes_in(layout, spec.shape, itemsize, mesh)
        reached = step.apply(layout)
        sent = step.all_bytes_sent(layout, spec.shape, itemsize, mesh)
        axes = _changed(mesh, layout, reached) if step.kind is StepKind.PERMUTE else step.axes
        yield Move(step.kind.value, when, axes, taken, float(size_bytes), float(sent))
        layout = reached


def _changed(mesh: Mesh, one: Layout, other: Layout) -> tuple[int, ...]:
    """The mesh axes by which two layouts split dimensions differently."""
    here, there = (
        {axis: (dim, place) for dim, axes in enumerate(layout.dims) for place, axis in enumerate(axes)}
        for layout in (one, other)
    )
    return tuple(axis for axis in mesh.axes if here.get(axis) != there.get(axis))


def _rows(
    space: SearchSpace, edge: Edge, elements: int, indices: tuple[int, int], layouts: tuple[Layout, Layout]
) -> Iterator[Move]:
    """A gradient that is given as rows: they are gathered over the axes to sum over."""
    spec, (made, need) = space.graph.spec(edge.tensor), layouts
    states = [
        space.choices_of(edge.consumer).inputs[edge.position].of(indices[1]).gradient,
        space.choices_of(edge.tensor.op).outputs[edge.tensor.index].of(indices[0]).gradient,
    ]
    seconds = float(rows_seconds(space.cost, spec, elements, states[0], states[1])[0, 0])
    if not seconds:
        return
    held = elements * spec.itemsize / space.mesh.extent(made.used_axes)
    axes = tuple(axis for axis in space.mesh.axes if states[0][0, axis] != states[1][0, axis])
    yield Move(StepKind.ALL_GATHER.value, "backward", axes, seconds, held, _rows_sent(space.mesh, made, need, held))


def _rows_sent(mesh: Mesh, made: Layout, need: Layout, held: float) -> float:
    """Returns the bytes that all devices send to move rows, of which each device holds ``held`` bytes.

    As :func:`tensoropt.space.sparse_gradient_seconds.rows_seconds`, of which this is the amount.
    """
    summed = tuple(axis for axis in made.partial if axis not in need.partial)
    groups = []
    for dim, (have, want) in enumerate(zip(made.dims, need.dims, strict=True)):
        if dim == 0:
            same = 0
            while same < min(len(have), len(want)) and have[same] == want[same]:
                same += 1
            groups.append((*summed, *(have[same:] if have != want else ())))
        elif have != want:
            groups.append(have)
    total = 0.0
    for group in groups:
        members = mesh.extent(group)
        total += mesh.size * (members - 1) * held
        held *= members
    return total
