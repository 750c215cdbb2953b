"""Builds programs whose step is split in time: what the batch goes through once for each micro-batch, the rest once.

All micro-batches are in one graph, one behind the other: the forward pass of one, its backward pass, and then, behind
what these have added to the sums of gradients, the next. Only so does TensorFlow give back what one holds before the
next begins; and collectives are in one order on all ranks, that of building. Of many micro-batches those between the
first and the last are calls of one function (:mod:`tensoropt.exec.program.repeating`), but for pipelines.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections import ChainMap
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.program.building import Builder, Differentiated
from tensoropt.exec.program.fed_tensors import copies
from tensoropt.exec.program.feeding import share_layout
from tensoropt.exec.program.fetch import Fetch
from tensoropt.exec.program.gradient import with_gradient
from tensoropt.exec.program.gradient_sums import GradientSum, cast
from tensoropt.exec.program.local_graph import LocalGraph
from tensoropt.exec.program.lowering import OpLowering, lower_operator
from tensoropt.exec.program.repeating import Repeated
from tensoropt.exec.program.resharding import reshard, reshard_edge, reshard_rows
from tensoropt.exec.program.summands import held_dtype, in_sum_dtype
from tensoropt.exec.schedule.ordering import Backward
from tensoropt.graph.graph import Edge
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId
from tensoropt.layout import Layout, Mesh, canonical_path
from tensoropt.plan.configuration import Configuration, TensorLayouts
from tensoropt.plan.in_time import InTime
from tensoropt.plan.places import Part, schedule

__all__ = ["MicroBatches"]

# Of fewer than so many there is one at most between the first and the last.
_LEAST_REPEATED = 4


class MicroBatches(Builder):
    """Builds the operators that run once, and has each micro-batch built.

    Gradients are summed over the micro-batches where a tensor that is made once goes into them: in the layout that its
    reader gives, or, where they go back in each micro-batch (``back_each``), in the one that its producer needs. They
    go on from there, over devices and through what made the tensor, once.
    """

    def __init__(self, *given: Any, **named: Any) -> None:
        """Begins a program; see :class:`Builder`."""
        self.fed_whole: dict[TensorId, Any] = {}  # tensors of micro-batches that are fed, by their placeholders
        self._parts: list[_MicroBatch] = []
        self._held: dict[Edge, Any] = {}
        self._placeholders: dict[str, Any] = {}
        self._repeated: Repeated | None = None
        self._sums: dict[int, dict[Edge, GradientSum]] = {}  # by differentiation
        self._ways: dict[int, frozenset[Edge]] = {}  # likewise
        super().__init__(*given, **named)

    @property
    def steps(self) -> InTime:
        """How the step is split."""
        assert self._local.in_time is not None  # noqa: S101
        return self._local.in_time

    def build(self, operators: Sequence[Operator]) -> None:
        """Builds all operators: those before micro-batches, each micro-batch, those after."""
        steps = self.steps
        each = [op for op in operators if steps.is_each(op.name)]
        once = [op for op in operators if not steps.is_each(op.name)]
        for op in once:
            if op.name not in steps.after:
                self.add(op)
        for op in each:
            for position, tensor in enumerate(op.inputs):
                edge = Edge(tensor, op.name, position)
                if steps.is_border(edge) and op.name not in self._modes:  # what is fed does not need its default
                    self._held[edge] = self._hold(edge)
        calls = dict.fromkeys(op.attrs["call"] for op in self._needed if traits(op).is_gradient)
        if self._local.places is None:
            self._build_each(each, list(calls))
        else:
            self._build_parts(each, list(calls))
        for op in once:
            if op.name in steps.after:
                self.add(op)

    def _build_each(self, each: Sequence[Operator], calls: Sequence[int]) -> None:
        """Builds one micro-batch behind the other: all of them, or the first and the last, which the others repeat."""
        times = self.steps.times
        behind = self._build_one(0, each, calls, [])
        if times < _LEAST_REPEATED or not each or self._parts[0].knows_time:
            for at in range(1, times):
                behind = self._build_one(at, each, calls, behind)
            return
        last = self._local.chains[-1].last
        self._repeated = Repeated(
            self._local.tf_graph, range(1, times - 1), [*behind, *([] if last is None else [last])]
        )
        self._build_one(times - 1, each, calls, [self._repeated.done], self._repeated.last)
        self._repeated.end()
        for sums in self._sums.values():
            for total in sums.values():
                rows = total.last_rows
                if rows is not None:
                    values, indices = map(self._repeated.values, (rows.values, rows.indices))
                    total.insert_rows(map(tf.IndexedSlices, values, indices))

    def _build_one(
        self, at: int, each: Sequence[Operator], calls: Sequence[int], behind: Sequence[Any], number: Any = None
    ) -> list[Any]:
        """Builds a micro-batch behind what it waits for; returns the op for which the next one waits."""
        with tf.control_dependencies(behind):
            part = _MicroBatch(self, at, number)
            part.build(each)
            added = [self._add_gradients(call, *part.gradients(self._gradients_of(call)[0])) for call in calls]
        self._parts.append(part)
        self.backward = min(self.backward, part.backward)
        self._live |= part.live
        # One op to wait for: as many control inputs as weights at each op would be read again and again.
        sums = itertools.chain.from_iterable(added)
        return [tf.group(*sums, *(tensor.op for tensor in part.last(each)), name="micro_batch_is_done")]

    def complete(self, targets: Sequence[Any], built: range, config: Any) -> None:
        """Makes the micro-batches that are repeated, once all of the program is built and ordered."""
        if self._repeated is not None:
            self._repeated.call(targets, built, config)

    def _build_parts(self, each: Sequence[Operator], calls: Sequence[int]) -> None:
        """Builds the parts of all micro-batches in the one order that all devices know, each behind the one before.

        A device that does not compute a part builds its own side of the messages to that part.
        """
        local = self._local
        names = [op.name for op in each]
        needed = set(names)
        self._parts = [_MicroBatch(self, at) for at in range(self.steps.times)]
        behind: list[Any] = []
        order = schedule(local.where, local.plan, names, self.steps.times, learns=bool(calls))
        for task in order.tasks:
            micro_batch, operators = self._parts[task.time], [op for op in task.part.operators if op.name in needed]
            done: list[Any] = []
            with tf.control_dependencies(behind):
                if task.source is not None and task.backward:
                    for call in calls:
                        micro_batch.send_back(call, task.source, task.part)
                elif task.source is not None:
                    micro_batch.fetch(task.source, operators)
                elif task.backward:
                    for call in calls:
                        found = micro_batch.part_gradients(task.part, self._gradients_of(call)[0])
                        done += self._add_gradients(call, found, None)
                else:
                    micro_batch.build(operators)
                    here = [op for op in operators if local.holds(op.name)]
                    done = [tensor.op for tensor in micro_batch.last(here)]
            last = local.chains[-1].last
            behind = [tf.group(*behind, *done, *([] if last is None else [last]))]
        for micro_batch in self._parts:
            self.backward = min(self.backward, micro_batch.backward)
            self._live |= micro_batch.live

    def add(self, op: Operator) -> None:
        """Builds one operator that runs once; what it reads of micro-batches is joined."""
        for tensor in op.inputs:
            if not traits(op).gives_shape:
                self._join(tensor)
        super().add(op)

    def _outputs(self, op: Operator) -> list[Any]:
        """The outputs of an operator that runs once; shapes are known before what has them."""
        is_early = traits(op).gives_shape and any(self.steps.is_each(tensor.op) for tensor in op.inputs)
        return lower_operator(self._lowering(op), []) if is_early else super()._outputs(op)

    def operation(self, name: str) -> Any:
        """The local operation for an operator: of one that runs for each micro-batch all of them."""
        if self.steps.is_each(name) and name not in self._operations:
            self._operations[name] = tf.group(*(part.operation(name) for part in self._parts))
        return super().operation(name)

    def fetched(self, fetch: Fetch) -> Any:
        """Returns the tensor or operation that ``Session.run`` gets for a fetch."""
        if isinstance(fetch, TensorId):
            self._join(fetch)
        return super().fetched(fetch)

    @property
    def made(self) -> dict[str, str]:
        """The operator that gives a local tensor, by the tensor's name."""
        parts = [part.made for part in self._parts]
        return {name: op for made in (*parts, super().made) for name, op in made.items()}

    def held(self, edge: Edge) -> Any:
        """What all micro-batches take from an edge that leads into them: moved once, where it is not cut in time.

        None if each moves it for itself.
        """
        return self._held[edge]

    def whole_layouts(self, edge: Edge, dim: int) -> TensorLayouts:
        """The layouts of a tensor that is cut in time: those that its producer gives, with that dimension in one."""
        given, at = self._local.given(edge.tensor), self._local.wanted(edge).value.at
        if given.value.at != at:
            there = Layout.replicated(given.value.rank).placed(at)
            return TensorLayouts(there, there)
        return TensorLayouts(given.value.with_dim(dim, ()), given.gradient.with_dim(dim, ()))

    def placeholder(self, op: Operator) -> Any:
        """The fed batch of an input: the pieces that this device computes on, one after the other, or the whole."""
        local = self._local
        spec, layout = op.outputs[0], local.layout_of(TensorId(op.name))
        if op.name not in self._placeholders:
            share = share_layout(spec, local.plan.mesh) if self._modes[op.name] else None
            shape = (share or layout).local_shape(spec.shape, local.plan.mesh)
            fed = self.feeds[op.name] = tf.compat.v1.placeholder(spec.dtype, shape, op.name)
            if share is not None:
                # Each micro-batch has rows of every rank's share, in the order in which one process has them.
                whole = Layout.replicated(spec.rank)
                fed = reshard(fed, share, canonical_path(share, whole), local.plan.mesh, local.engine)
            self._placeholders[op.name] = fed
        return self._placeholders[op.name]

    def _feed(self, tensor: TensorId) -> None:
        if not self.steps.is_each(tensor.op):
            super()._feed(tensor)
            return
        spec = self._local.graph.spec(tensor)
        self.fed_whole[tensor] = self.feeds[str(tensor)] = tf.compat.v1.placeholder(spec.dtype, spec.shape, tensor.op)

    def _hold(self, edge: Edge) -> Any:
        dim, local = self.steps.split_dim(edge), self._local
        if dim is None:
            return None if local.plan.edge(edge).keep == "before" else self._arrive(edge)
        given, whole = local.given(edge.tensor), self.whole_layouts(edge, dim)
        if local.places is None:
            return _moved(local, edge, self._values[edge.tensor], given, whole)
        path, spec = canonical_path(given.value, whole.value), local.graph.spec(edge.tensor)
        piece = self._values.get(edge.tensor)
        return reshard(piece, given.value, path, local.plan.mesh, local.engine, spec.dtype, self.steps.spec(edge).shape)

    def _add_gradients(self, call: int, found: Mapping[Edge, Any], backward: Backward | None) -> list[Any]:
        """Adds the gradients of one micro-batch to those of the ones before, each as soon as it is there.

        Returns:
            The ops that do.
        """
        sums = self._sums.setdefault(call, {})
        added = [sums.setdefault(edge, GradientSum()).add(gradient) for edge, gradient in found.items()]
        if backward is not None:
            backward.wait_for_sums(added)
        return added

    def _differentiate(self, call: int) -> Differentiated:
        """The rest of a differentiation: from the sums over micro-batches, and from losses that see no batch, on."""
        local, operators = self._local, self._gradients_of(call)
        if local.places is not None:
            return self._differentiate_borders(call, operators)
        losses, incoming = [], []
        for edge, summed in self._sums[call].items():
            dtype, dim = local.graph.spec(edge.tensor).dtype, self.steps.split_dim(edge)
            is_back, held = local.plan.edge(edge).back_each, self._held[edge]
            layout = local.wanted(edge).gradient if dim is None else self.whole_layouts(edge, dim).gradient
            total = cast(summed.total(), held_dtype(dtype, local.given(edge.tensor).gradient if is_back else layout))
            losses.append(self._values[edge.tensor] if is_back or held is None else held)
            incoming.append(self._moved_back(edge, total) if held is None and not is_back else total)
        for name in operators[0].attrs["losses"]:
            if not self.steps.is_each(name):
                losses.append(self._values[TensorId(name)])
                incoming.append(tf.ones_like(losses[-1]))
        sources = [self._values[op.inputs[0]] for op in operators]
        return self._found(operators, *self._derived(operators[0], losses, sources, incoming))

    def _differentiate_borders(self, call: int, operators: Sequence[Operator]) -> Differentiated:
        """The rest of a differentiation of parts: sums go back to where the tensors were made, and on from there."""
        local = self._local
        sums = {edge: summed.total() for edge, summed in self._sums.get(call, {}).items()}
        borders = [edge for edge in sorted(self._held) if edge in local.graph.differentiable]
        returned = {}
        for edge in borders:
            needed, dim = local.given(edge.tensor).gradient, self.steps.split_dim(edge)
            if local.plan.edge(edge).back_each:
                gradient = None if edge not in sums else cast(sums[edge], held_dtype(local.spec(edge).dtype, needed))
            else:
                made = local.wanted(edge).gradient if dim is None else self.whole_layouts(edge, dim).gradient
                path = local.plan.edge(edge).backward if dim is None else canonical_path(made, needed)
                total = sums.get(edge)
                if total is None and local.holds(edge.consumer):
                    shape = made.local_shape(local.graph.spec(edge.tensor).shape, local.plan.mesh)
                    total = tf.zeros(shape, local.graph.spec(edge.tensor).dtype)
                gradient = self._gone_back(edge, total, made, path, needed)
            if gradient is not None:
                returned[edge] = gradient
        losses = [name for name in operators[0].attrs["losses"] if not self.steps.is_each(name)]
        return self._differentiate_parts(operators, losses, borders, returned)

    def ways(self, first: Operator) -> frozenset[Edge]:
        """The edges inside of micro-batches over which the gradients of a differentiation flow.

        Args:
            first: one of the differentiation's gradients.
        """
        call, graph, places = first.attrs["call"], self._local.graph, self._local.where
        if call not in self._ways:
            losses = [name for name in first.attrs["losses"] if self.steps.is_each(name)]
            entered = [edge.consumer for edge in graph.differentiable if self.steps.is_border(edge)]
            self._ways[call] = places.ways(losses, entered, first.attrs["stopped"])
        return self._ways[call]

    def _moved_back(self, edge: Edge, total: Any) -> Any:
        """The gradient of a tensor that each micro-batch has moved for itself, at its producer."""
        local, spec = self._local, self._local.graph.spec(edge.tensor)
        made, wanted = local.wanted(edge).gradient, local.given(edge.tensor).gradient
        if isinstance(total, tf.IndexedSlices):
            return reshard_rows(total, made, wanted, spec.shape, local.plan.mesh, local.engine, spec.dtype)
        backward = local.plan.edge(edge).backward
        return reshard(total, made, backward, local.plan.mesh, local.engine, spec.dtype)

    def _join(self, tensor: TensorId) -> None:
        """Makes the whole batch's tensor of those of micro-batches, in the layout in which devices have it."""
        if tensor in self._values or not self.steps.is_each(tensor.op) or not self._local.holds(tensor.op):
            return
        local, layout = self._local, self._local.layout_of(tensor)
        pieces, time = [part.value(tensor) for part in self._parts], self.steps.layouts[tensor]
        if self._repeated is not None:
            pieces[1:1] = self._repeated.values(pieces[-1])
        dtype = local.graph.spec(tensor).dtype
        dims = [dim for dim, axes in enumerate(time.dims) if axes]
        if pieces[0] is None or not (dims or time.partial):
            self._values[tensor] = pieces[0]
        elif time.partial:
            add = tf.logical_or if pieces[0].dtype == tf.bool else operator.add
            total = functools.reduce(add, map(in_sum_dtype, pieces))
            self._values[tensor] = tf.cast(total, held_dtype(dtype, layout))
        else:
            whole = layout.with_dim(dims[0], ())
            mesh, engine = local.plan.mesh, local.engine
            to_whole, back = canonical_path(layout, whole), canonical_path(whole, layout)
            joined = tf.concat([reshard(piece, layout, to_whole, mesh, engine, dtype) for piece in pieces], dims[0])
            self._values[tensor] = reshard(joined, whole, back, mesh, engine, dtype)


class _MicroBatch(Builder):
    """Builds the operators of one micro-batch."""

    def __init__(self, once: MicroBatches, at: int, number: Any = None) -> None:
        """Begins a micro-batch.

        Args:
            once: builds what runs once.
            at: which micro-batch it is, from 0.
            number: the same as a tensor, if its ops are to be those of others.
        """
        super().__init__(once._local, once._modes, once._needed, (), once._waits, ChainMap({}, once._values))
        self._once = once
        self._at = at
        self._number = number
        self._lowered: list[OpLowering] = []
        self._points: dict[Edge, Any] = {}
        self._came_back: dict[int, dict[Edge, Any]] = {}  # gradients where tensors were made, by differentiation
        self._to_send: dict[int, dict[Edge, Any]] = {}  # those that are to go there
        self._fetched: dict[Edge, Any] = {}  # what came before the operators that read it are built
        self._draws, self.ranges = once._draws, once.ranges
        mesh, engine = self._local.plan.mesh, self._local.engine
        for tensor, fed in once.fed_whole.items():
            own = self._part_of(fed, once.steps.layouts[tensor])
            whole = Layout.replicated(self._local.graph.spec(tensor).rank)
            for each in copies(self._local.graph, tensor):
                path = canonical_path(whole, self._local.layout_of(each))
                piece = reshard(own, whole, path, mesh, engine)
                if piece is not None:
                    self._values[each] = piece
                self._fed.add(each)

    @property
    def knows_time(self) -> bool:
        """Tells whether its ops depend on which micro-batch it is by more than the pieces that they are given."""
        return any(0 in context.placed_along for context in self._lowered)

    @property
    def live(self) -> set[Any]:
        """The local operations that losses and gradients need."""
        return self._live

    def value(self, tensor: TensorId) -> Any:
        """This micro-batch's piece of a tensor."""
        return self._values[tensor]

    def last(self, operators: Sequence[Operator]) -> list[Any]:
        """The tensors of some operators that no other of these reads."""
        read = {tensor for op in operators for tensor in op.inputs}
        made = (TensorId(op.name, index) for op in operators for index in range(len(op.outputs)))
        return [self._values[each] for each in made if each not in read and self._values[each] is not None]

    def gradients(self, first: Operator) -> tuple[dict[Edge, Any], Backward | None]:
        """The gradients of one differentiation by what goes into the micro-batch, by edge, and its backward pass.

        Args:
            first: one of the differentiation's gradients.
        """
        names = [name for name in first.attrs["losses"] if self._once.steps.is_each(name)]
        if not names or not self._points:
            return {}, None
        losses = [self._values[TensorId(name)] for name in names]
        found, backward = self._derived(first, losses, list(self._points.values()))
        there = {edge: gradient for edge, gradient in zip(self._points, found, strict=True) if gradient is not None}
        return there, backward

    def part_gradients(self, part: Part, first: Operator) -> dict[Edge, Any]:
        """The gradients of one differentiation by what goes into a part of the micro-batch, by edge.

        Args:
            part: those after it have theirs.
            first: one of the differentiation's gradients.
        """
        places, steps = self._local.where, self._once.steps
        losses = [name for name in first.attrs["losses"] if steps.is_each(name)]
        ways = self._once.ways(first)
        points = {edge: point for edge, point in self._points.items() if places.part[edge.consumer] is part}
        own = [name for name in losses if places.part[name] is part]
        call = first.attrs["call"]
        returned = self._came_back.setdefault(call, {})
        cut, found = self._part_backward(part, ways, first, own, returned, list(points.values()))
        self._to_send.setdefault(call, {}).update(cut)
        return {edge: gradient for edge, gradient in zip(points, found, strict=bool(found)) if gradient is not None}

    def send_back(self, call: int, source: Part, target: Part) -> None:
        """Brings the gradients of one differentiation from a part to the one that made the tensors."""
        places, waiting = self._local.where, self._to_send.get(call, {})
        edges = [edge for edge in sorted(waiting) if places.part[edge.consumer] is source]
        edges = [edge for edge in edges if places.part[edge.tensor.op] is target]
        self._came_back.setdefault(call, {}).update(self._sent_back({edge: waiting.pop(edge) for edge in edges}))

    def fetch(self, source: Part, operators: Sequence[Operator]) -> None:
        """Brings what some operators of a part read of another part's."""
        places = self._local.where
        for op in operators:
            for position, tensor in enumerate(op.inputs):
                edge = Edge(tensor, op.name, position)
                if places.part[tensor.op] is source and places.crosses(edge):
                    self._fetched[edge] = super()._arrive(edge)

    def _arrive(self, edge: Edge) -> Any:
        return self._fetched.pop(edge) if edge in self._fetched else super()._arrive(edge)

    def operation(self, name: str) -> Any:
        """The local operation for an operator."""
        return super().operation(name) if self._once.steps.is_each(name) else self._once.operation(name)

    def _lowering(self, op: Operator) -> OpLowering:
        """An operator on this device at this time, along a mesh whose first axis is time."""
        local, steps = self._local, self._once.steps
        actions = (steps.actions[op.name], *local.plan.configuration(op.name).actions)
        mesh = Mesh((steps.times, *local.plan.mesh.shape))
        here = _Here(local.engine, self._at)
        inputs = local.graph.input_specs(op)
        context = OpLowering(op, local.rules[op.name], inputs, Configuration(actions), mesh, here, self._draws)
        self._lowered.append(context)
        return context

    def _input(self, op: Operator) -> Any:
        local, layout = self._local, self._local.layout_of(TensorId(op.name))
        whole = Layout.replicated(op.outputs[0].rank)
        if op.name not in self._modes:
            fed = self._arrive(Edge(op.inputs[0], op.name, 0))
            if fed is None:
                return None
        else:
            fed = self._once.placeholder(op)
            if not self._modes[op.name]:
                return self._cut(fed, 0)
        path = canonical_path(whole, layout)
        return reshard(self._cut(fed, 0), whole, path, local.plan.mesh, local.engine, op.outputs[0].dtype)

    def _move(self, edge: Edge) -> Any:
        steps, local = self._once.steps, self._local
        if not steps.is_border(edge):
            return super()._move(edge)
        held = self._once.held(edge)
        if not local.holds(edge.consumer):
            return None
        if held is None:
            made, spec = local.given(edge.tensor).value, local.graph.spec(edge.tensor)
            source, forward = self._reuse.source(edge), local.plan.edge(edge).forward
            held = reshard(source, made, forward, local.plan.mesh, local.engine, spec.dtype)
        if steps.is_part(edge) and self._at > 0:
            return tf.zeros_like(held)
        if local.plan.edge(edge).back_each:
            # Its gradient is that of a tensor in the producer's layout, to which it goes as the backward pass makes it.
            self._points[edge] = tf.identity(self._values[edge.tensor])
            (held,) = with_gradient([self._points[edge]], [held], lambda gradient: [self._part_of_sum(edge, gradient)])
        elif edge in local.graph.differentiable:
            held = self._points[edge] = tf.identity(held)
        dim = steps.split_dim(edge)
        if dim is None:
            return held
        # The plan's steps are those of the whole tensor, whose layouts a piece may be too small for.
        return _moved(local, edge, self._cut(held, dim), self._once.whole_layouts(edge, dim), local.wanted(edge))

    def _part_of_sum(self, edge: Edge, gradient: Any) -> Any:
        """A micro-batch's gradient in its producer's layout: one of those that are summed, and in their dtype."""
        local, spec = self._local, self._local.graph.spec(edge.tensor).widened
        made, backward = local.wanted(edge).gradient, local.plan.edge(edge).backward
        return reshard(tf.convert_to_tensor(gradient), made, backward, local.plan.mesh, local.engine, spec.dtype)

    def _part_of(self, tensor: Any, time: Layout) -> Any:
        """The part of this micro-batch, of a tensor that is there for all: of a sum over time the first one has all."""
        dims = [dim for dim, axes in enumerate(time.dims) if axes]
        if dims:
            return self._cut(tensor, dims[0])
        if not time.partial:
            return tensor
        if self._number is None:
            return tf.zeros_like(tensor) if self._at else tensor
        return tf.where(tf.equal(self._number, 0), tensor, tf.zeros_like(tensor))

    def _cut(self, tensor: Any, dim: int) -> Any:
        """The piece of this micro-batch, of a tensor that has the pieces of all along a dimension."""
        shape = tensor.shape.as_list()
        size = [-1 if extent is None else extent for extent in shape]
        size[dim] = shape[dim] // self._once.steps.times
        step = [0] * len(size)
        step[dim] = size[dim]
        return tf.slice(tensor, np.multiply(step, self._at) if self._number is None else self._number * step, size)


class _Here:
    """A device at one time, as one of a mesh whose first axis is time."""

    def __init__(self, engine: CollectiveEngine, at: int) -> None:
        self._engine = engine
        self.rank = at * engine.size + engine.rank

    def all_reduce(self, x: Any, axes: Sequence[int], *, op: str = "sum") -> Any:
        """Reduces over devices; nothing is reduced over time inside an operator."""
        return self._engine.all_reduce(x, tuple(axis - 1 for axis in axes), op=op)

    def shift(self, x: Any, axes: Sequence[int], by: int) -> Any:
        """Moves along axes of devices."""
        return self._engine.shift(x, tuple(axis - 1 for axis in axes), by)


def _moved(local: LocalGraph, edge: Edge, tensor: Any, source: TensorLayouts, target: TensorLayouts) -> Any:
    """An edge's tensor in other layouts, by paths that need no costs; its gradient comes back to those before."""
    return reshard_edge(
        tensor,
        source.value,
        canonical_path(source.value, target.value),
        target.gradient,
        canonical_path(target.gradient, source.gradient),
        source.gradient,
        local.plan.mesh,
        local.engine,
        local.graph.spec(edge.tensor).dtype,
    )
