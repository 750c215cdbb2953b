"""Building a program: its operators in the local graph, one by one, with reshards, gradients and updates."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from tensoropt.errors import SessionError
from tensoropt.exec.program.fed_tensors import copies
from tensoropt.exec.program.feeding import share_layout
from tensoropt.exec.program.fetch import Fetch
from tensoropt.exec.program.generators import Draws, is_drawn_by_kernel
from tensoropt.exec.program.gradient import with_gradient
from tensoropt.exec.program.local_graph import LocalGraph
from tensoropt.exec.program.lowering import OpLowering, lower_operator
from tensoropt.exec.program.outside_variable import OutsideVariable
from tensoropt.exec.program.recording import Range
from tensoropt.exec.program.rematerialization import Reuse
from tensoropt.exec.program.resharding import reshard, reshard_edge, reshard_rows
from tensoropt.exec.program.sparse_gradients import merge_rows, own_rows, whole_rows
from tensoropt.exec.schedule.ordering import Backward, ancestors, readers
from tensoropt.graph.graph import Edge
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.random import numbers_skipped
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId, TensorSpec, is_differentiable
from tensoropt.graph.traits import Role
from tensoropt.layout import Layout, Step, canonical_path
from tensoropt.plan.places import Part

__all__ = ["Builder", "Differentiated"]


@dataclass(frozen=True, slots=True)
class Differentiated:
    """The result of one differentiation."""

    operators: Sequence[Operator]
    gradients: Mapping[str, Any]  # by operator
    backward: Backward | None  # None where it is one of several parts


class Builder:
    """Lowers operators one by one into the default graph."""

    def __init__(
        self,
        local: LocalGraph,
        modes: Mapping[str, bool],
        needed: Sequence[Operator],
        fed: Iterable[TensorId] = (),
        waits: Mapping[str, Sequence[str]] = MappingProxyType({}),
        values: MutableMapping[TensorId, Any] | None = None,
    ) -> None:
        """Begins a program.

        Args:
            local: what it is added to.
            modes: for each placeholder that is fed, whether it is a share of the batch.
            needed: all operators that will be added.
            fed: tensors, no placeholders, that are fed whole.
            waits: by operator, others that touch a variable of its before it does.
            values: the local tensors, to which those that are made here are added.
        """
        self._local = local
        self._waits = waits
        self._modes = modes
        self._needed = needed
        self._values: MutableMapping[TensorId, Any] = {} if values is None else values
        made_of = local.graph, local.rules, local.plan, local.engine
        self._reuse = Reuse(*made_of, self._values, local.in_time, local.places)
        self._draws = Draws(local.generators, local.kernels)
        self._operations: dict[str, Any] = {}
        self._added: set[str] = set()
        self._differentiated: dict[int, Differentiated] = {}
        self._updates: dict[str, list[Any]] = {}  # by variable
        self._live: set[Any] = set()  # the local operations that losses and gradients need
        self.feeds: dict[str, Any] = {}
        # How many ops the graph had before the first backward pass; all of them come before none.
        self.backward = sys.maxsize
        self._fed: set[TensorId] = set()
        self._ordered: dict[str, frozenset[str]] = {}
        self._cuts: dict[Edge, Any] = {}  # what arrived on edges from one part to another, by which parts differentiate
        # For which operator or edge local ops were made; what is inside ends before what is around it.
        self.ranges: list[Range] = []
        for tensor in fed:
            self._feed(tensor)

    @property
    def made(self) -> dict[str, str]:
        """The operator that gives a local tensor, by the tensor's name; the first one of those that pass it on."""
        values = reversed([*self._values.items()])
        return {tensor.name: key.op for key, tensor in values if tensor is not None}

    def build(self, operators: Sequence[Operator]) -> None:
        """Builds all operators of a program, in an order in which each comes after what it reads."""
        for op in operators:
            self.add(op)

    def add(self, op: Operator) -> None:
        """Builds one operator, unless it is there; those that it needs are."""
        if op.name in self._added:
            return
        self._added.add(op.name)
        if self._local.places is not None:
            self._note_order(op)
        if not self._local.holds(op.name):
            self._pass_by(op)
            return
        before = [*op.control_inputs, *(name for name in self._came(op) if name not in op.control_inputs)]
        with self._owned(op.name), tf.control_dependencies([self.operation(name) for name in before]):
            outputs = self._outputs(op)
        for index, tensor in enumerate(outputs):
            if TensorId(op.name, index) not in self._fed:
                self._values[TensorId(op.name, index)] = tensor

    def _note_order(self, op: Operator) -> None:
        """Notes which of this device's operators whose order matters are before an operator, or are the operator."""
        before = [self._ordered.get(name, frozenset()) for name in (*(t.op for t in op.inputs), *op.control_inputs)]
        ordered = frozenset[str]().union(*before)
        matters = ordered or op.control_inputs or op.handles or traits(op).has_effect
        if matters and self._local.holds(op.name):
            ordered = frozenset((op.name,))
        self._ordered[op.name] = ordered

    def _came(self, op: Operator) -> list[str]:
        """This device's operators that an operator comes after by way of what other devices compute."""
        others = [tensor.op for tensor in op.inputs if not self._local.holds(tensor.op)]
        return sorted({name for other in others for name in self._ordered.get(other, ())})

    def effects(self) -> list[Any]:
        """The operations on this device that have effects."""
        named = [op.name for op in self._needed if traits(op).has_effect and self._local.holds(op.name)]
        passed_by = [op.name for op in self._needed if not self._local.holds(op.name) and op.name in self._draws.drawn]
        skipped = [self._draws.drawn[name].op for name in passed_by]
        return [*(self.operation(name) for name in named if name in self._added), *skipped]

    def moved_states(self) -> list[Any]:
        """The operations that move on the states of random operators that count their draws."""
        return self._draws.go_on()

    def _pass_by(self, op: Operator) -> None:
        """Takes this device's part in what moves to an operator that other devices compute."""
        own = traits(op)
        if own.is_input:
            self._input(op)
        elif own.is_gradient:
            self._differentiated_by(op)
        elif not own.is_variable and not own.is_group:
            for position, tensor in enumerate(op.inputs):
                self._arrive(Edge(tensor, op.name, position))
            generator = self._local.generators.get(op.name)
            if generator is not None and op.name not in self._draws.drawn:
                # Its state is the same on all devices, whoever draws.
                self._draws.drawn[op.name] = generator.next_state(numbers_skipped(op.outputs[0].elements))

    @contextlib.contextmanager
    def _owned(self, subject: str) -> Iterator[None]:
        """Assigns the ops made inside to an operator or an edge, except where an inner block assigns them otherwise."""
        begun = self._local.tf_graph.version  # so many ops there are: listing them takes as long as making some
        yield
        self.ranges.append(Range(begun, self._local.tf_graph.version, subject))

    def operation(self, name: str) -> Any:
        """The local operation for an operator that is run for its effect."""
        if name not in self._operations:
            if not self._local.holds(name):
                self._operations[name] = tf.group(*map(self.operation, sorted(self._ordered.get(name, ()))))
            elif traits(self._local.graph[name]).is_group:
                inner = self._local.graph[name].control_inputs
                self._operations[name] = tf.group(*(self.operation(other) for other in inner))
            else:
                made = [value for key, value in self._values.items() if key.op == name and value is not None]
                self._operations[name] = tf.group(*made)
        return self._operations[name]

    def fetched(self, fetch: Fetch) -> Any:
        """Returns the tensor or operation that ``Session.run`` gets for a fetch."""
        if isinstance(fetch, str):
            return self.operation(fetch)
        return self._whole_tensor(fetch)

    def _whole_tensor(self, tensor: TensorId) -> Any:
        local = self._local
        layout, spec = local.layout_of(tensor), local.graph.spec(tensor)
        piece = self._values.get(tensor)
        if piece is None and local.holds(tensor.op):
            raise SessionError(f"Fetch '{tensor}': this output is only used by TensorFlow's own gradient.")
        return self._whole(piece, layout, spec)

    def _whole(self, piece: Any, layout: Layout, spec: TensorSpec) -> Any:
        local, path = self._local, canonical_path(layout, Layout.replicated(layout.rank))
        piece = None if piece is None else tf.identity(piece)
        return reshard(piece, layout, path, local.plan.mesh, local.engine, spec.dtype, spec.shape)

    def finish(self) -> None:
        """Makes backward passes wait for updates, where these need nothing that comes later."""
        for differentiated in self._differentiated.values():
            if differentiated.backward is None:
                continue
            collectives = () if self._local.one_thread else self._local.chains[-1].names
            updates = [self._updates.get(op.inputs[0].op, ()) for op in differentiated.operators]
            differentiated.backward.wait_for_updates(updates, collectives)

    def complete(self, targets: Sequence[Any], built: range, config: Any) -> None:
        """Adds what is made of a program that is complete.

        Args:
            targets: the operations that the program runs.
            built: the numbers of the program's ops; those made later order them.
            config: ``ConfigProto`` of the session.
        """

    def _gradient(self, op: Operator) -> list[Any]:
        """A gradient that this device has: of its piece of what the gradient belongs to."""
        gradient = self._differentiated_by(op).gradients[op.name]
        if len(op.outputs) == 1:
            return [tf.cast(tf.convert_to_tensor(gradient), op.outputs[0].dtype)]
        if not isinstance(gradient, tf.IndexedSlices):
            raise SessionError(f"{op}: TensorFlow gives it as rows, and on this device it came whole.")
        layout, shape = self._local.layout_of(op.inputs[0]), self._local.graph.spec(op.inputs[0]).shape
        offset = layout.offsets(shape, self._local.plan.mesh, self._local.engine.rank)[0]
        values, indices = whole_rows(gradient, offset, op.outputs[1].shape[0], split=bool(layout.dims[0]))
        return [tf.cast(values, op.outputs[0].dtype), tf.cast(indices, op.outputs[1].dtype)]

    def _differentiated_by(self, op: Operator) -> Differentiated:
        """The differentiation that a gradient belongs to, built with the first one of it."""
        call = op.attrs["call"]
        if call not in self._differentiated:
            self._differentiated[call] = self._differentiate(call)
        return self._differentiated[call]

    def _differentiate(self, call: int) -> Differentiated:
        """One differentiation, by all that this program needs the gradients of."""
        operators = self._gradients_of(call)
        if self._local.places is not None:
            return self._differentiate_parts(operators, operators[0].attrs["losses"])
        losses = [self._values[TensorId(name)] for name in operators[0].attrs["losses"]]
        return self._found(
            operators, *self._derived(operators[0], losses, [self._values[op.inputs[0]] for op in operators])
        )

    def _gradients_of(self, call: int) -> list[Operator]:
        """The gradients of one differentiation that this program needs."""
        return [op for op in self._needed if traits(op).is_gradient and op.attrs["call"] == call]

    def _derived(
        self, first: Operator, losses: Sequence[Any], sources: Sequence[Any], incoming: Sequence[Any] | None = None
    ) -> tuple[list[Any], Backward | None]:
        """The backward pass of a differentiation: gradients of ``losses`` by ``sources``, None where there is none.

        Args:
            first: one of the differentiation's gradients.
            losses: what is differentiated.
            sources: by what.
            incoming: gradients of ``losses``; ones by default.
        """
        built = len(self._local.tf_graph.get_operations())
        stopped = {str(tensor): value for tensor, value in self._values.items()}
        constants = [stopped[name] for name in first.attrs["stopped"] if stopped.get(name) is not None]
        self._reuse.start_backward()
        self.backward = min(self.backward, built)
        # Gradients of a weight that is read many times are added up one after the other, as they come
        # (`exec/program/summation_order.py`).
        found = tf.gradients(
            losses,
            sources,
            grad_ys=incoming,
            stop_gradients=constants or None,
            aggregation_method=tf.AggregationMethod.EXPERIMENTAL_TREE,
        )
        there = [gradient for gradient in found if gradient is not None]
        self._live |= ancestors([*losses, *there])
        if not there:
            return found, None
        backward = Backward(there, built)
        backward.wait_for_gradients()
        return found, backward

    def _differentiate_parts(
        self,
        operators: Sequence[Operator],
        losses: Sequence[str],
        others: Iterable[Edge] = (),
        returned: Mapping[Edge, Any] = MappingProxyType({}),
    ) -> Differentiated:
        """A differentiation of parts at different places, the last part first.

        Args:
            operators: the gradients.
            losses: operators that are differentiated.
            others: edges into what is built by others, whose gradients are there already.
            returned: the gradients of those whose tensors this device made.
        """
        places, first = self._local.where, operators[0]
        returned = dict(returned)
        sources = [op.inputs[0].op for op in operators]
        ends = [*losses, *(edge.tensor.op for edge in others)]
        ways = places.ways(ends, sources, first.attrs["stopped"])
        names = {*ends, *sources, *(edge.consumer for edge in ways), *(edge.tensor.op for edge in ways)}
        gradients: dict[str, Any] = {}
        for part in reversed(places.parts(sorted(names))):
            here = [op for op in operators if places.part[op.inputs[0].op] is part and self._local.holds(op.name)]
            own = [name for name in losses if places.part[name] is part]
            cut, found = self._part_backward(
                part, ways, first, own, returned, [self._values[op.inputs[0]] for op in here]
            )
            returned |= self._sent_back(cut)
            for op, gradient in zip(here, found, strict=True):
                if gradient is None:
                    raise SessionError(f"{op}: on this device the loss does not depend on '{op.inputs[0]}'.")
                gradients[op.name] = gradient
        return Differentiated(operators, gradients, None)

    def _part_backward(
        self,
        part: Part,
        ways: frozenset[Edge],
        first: Operator,
        losses: Sequence[str],
        returned: dict[Edge, Any],
        sources: Sequence[Any],
    ) -> tuple[dict[Edge, Any], list[Any]]:
        """The backward pass of one part.

        Args:
            part: whose devices compute it.
            ways: the edges over which gradients flow.
            first: a gradient of the differentiation.
            losses: those in this part.
            returned: gradients by edges that lead out of the part.
            sources: tensors of the part.

        Returns:
            Gradients by edges into the part, None on devices that do not compute it; and those of ``sources``.
        """
        local, places = self._local, self._local.where
        cut = sorted(edge for edge in ways if places.part[edge.consumer] is part and places.crosses(edge))
        if not local.holds(part.operators[0].name):
            return dict.fromkeys(cut), []
        ends = [self._values[TensorId(name)] for name in losses]
        incoming = [tf.ones_like(end) for end in ends]
        for edge in sorted(edge for edge in returned if places.part[edge.tensor.op] is part):
            ends.append(_end(self._values[edge.tensor], returned[edge]))
            incoming.append(tf.ones_like(ends[-1]))
        points = [self._cuts[edge] for edge in cut]
        found: list[Any] = [None] * (len(points) + len(sources))
        if ends and found:
            found, _ = self._derived(first, ends, [*points, *sources], incoming)
        return dict(zip(cut, found, strict=False)), found[len(points) :]

    def _sent_back(self, gradients: Mapping[Edge, Any]) -> dict[Edge, Any]:
        """Gradients by edges where the tensors were made, of those that this device made."""
        back = {edge: self._returned(edge, gradient) for edge, gradient in gradients.items()}
        return {edge: gradient for edge, gradient in back.items() if gradient is not None}

    def _returned(self, edge: Edge, gradient: Any) -> Any:
        """The gradient of an edge, where its tensor was made; None on a device that did not make it."""
        made, needed = self._local.wanted(edge).gradient, self._local.given(edge.tensor).gradient
        return self._gone_back(edge, gradient, made, self._local.plan.edge(edge).backward, needed)

    def _gone_back(self, edge: Edge, gradient: Any, made: Layout, steps: Sequence[Step], needed: Layout) -> Any:
        """The gradient of an edge after steps from one layout to another; None on a device that then has none."""
        local, spec = self._local, self._local.spec(edge)
        mesh, engine = local.plan.mesh, local.engine
        with self._owned(str(edge)):
            if not local.where.apart(edge):
                if gradient is None:
                    return None
                if isinstance(gradient, tf.IndexedSlices):
                    return reshard_rows(gradient, made, needed, spec.shape, mesh, engine, spec.dtype)
            elif edge in self._cuts:
                gradient = tf.zeros_like(self._cuts[edge]) if gradient is None else tf.convert_to_tensor(gradient)
            return reshard(gradient, made, steps, mesh, engine, spec.dtype, spec.shape)

    def _is_learnt(self, tensor: TensorId) -> bool:
        """Tells whether gradients flow to a tensor."""
        return any(edge.tensor == tensor for edge in self._local.graph.differentiable)

    def _found(self, operators: Sequence[Operator], found: Sequence[Any], backward: Backward | None) -> Differentiated:
        """The gradient of each operator, zeros where the loss does not depend on the tensor."""
        gradients = {}
        for op, gradient in zip(operators, found, strict=True):
            if gradient is None and len(op.outputs) == 1 and not self._is_learnt(op.inputs[0]):
                # A branch that is known not to be taken, or a loop without turns, stood between them.
                gradient = tf.zeros_like(self._values[op.inputs[0]])
            elif gradient is None:
                raise SessionError(f"{op}: on this device the loss does not depend on '{op.inputs[0]}'.")
            gradients[op.name] = gradient
        differentiated = [op for op, gradient in zip(operators, found, strict=True) if gradient is not None]
        return Differentiated(differentiated, gradients, backward)

    def _outputs(self, op: Operator) -> list[Any]:
        local, own = self._local, traits(op)
        if own.is_variable:
            return [local.variables[op.name].read_value()]
        if own.is_input:
            return [self._input(op)]
        if own.is_group:
            self.operation(op.name)
            return []
        if own.is_gradient:
            return self._gradient(op)
        edges = [Edge(tensor, op.name, position) for position, tensor in enumerate(op.inputs)]
        inputs = [self._reuse.arrived(edge, self._arrive(edge)) for edge in edges]
        if own.is_fanout or own.is_sink:
            return [tf.identity(inputs[0])]
        if own.role is Role.MERGED_ROWS:
            return merge_rows(*inputs)
        if op.body is not None:
            inputs = [
                x if self._is_variable(tensor) else _of_whole_gradient(x)
                for tensor, x in zip(op.inputs, inputs, strict=True)
            ]
        context = self._lowering(op)
        if op.handles:
            outputs = self._in_place(context, inputs)
        else:
            outputs = self._reuse.outputs(edges, inputs, lower_operator(context, inputs), context)
        if not op.outputs or op.body is not None:
            self._operations[op.name] = context.operation
        if is_drawn_by_kernel(op):
            for index, tensor in enumerate(outputs):
                tensor.set_shape(context.output_shape(index))
        return outputs

    def _lowering(self, op: Operator) -> OpLowering:
        """An operator on this device."""
        local = self._local
        configuration = local.plan.configuration(op.name)
        inputs = local.graph.input_specs(op)
        return OpLowering(op, local.rules[op.name], inputs, configuration, local.plan.mesh, local.engine, self._draws)

    def _is_variable(self, tensor: TensorId) -> bool:
        """Tells whether a tensor is the value of a variable."""
        op = self._local.graph[tensor.op]
        while traits(op).is_fanout or traits(op).reads_variable:
            op = self._local.graph[op.inputs[0].op]
        return traits(op).is_variable

    def _in_place(self, context: OpLowering, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of an operator that takes variables themselves: TensorFlow's own op, on this device's piece."""
        op, own = context.op, traits(context.op)
        handles = {place: self._local.variables[op.inputs[place].op].handle for place in op.handles}
        operands = [handles.get(place, tensor) for place, tensor in enumerate(inputs)]
        if own.rows is not None:
            values, indices = own.rows(op, context.input_specs)
            offset = context.offset("d0") if context.rule.sizes and context.pieces("d0") > 1 else 0
            rows = context.input_shape(0)[0]
            for place in (values, indices):
                operands[place].set_shape([extent or None for extent in context.input_shape(place)])
            operands[values], operands[indices] = own_rows(operands[values], operands[indices], offset, rows)
        # Who reads the variable without waiting for the operator gets the old value, and in the same memory, which
        # would be copied if it were still read.
        before = [inputs[place].op for place in op.handles]
        before += [self.operation(name) for name in self._waits.get(op.name, ())]
        if own.has_effect:
            before += [reader for place in op.handles for reader in readers(inputs[place], self._live)]
        first = self._local.variables[op.inputs[0].op]
        with tf.control_dependencies(list(dict.fromkeys(before))):
            if own.replaces and isinstance(first, OutsideVariable):
                made, context.operation = [], first.assign(operands[1], read_value=False)
            else:
                made = context.emit(operands)
        if own.updates:
            self._updates.setdefault(op.inputs[0].op, []).append(context.operation)
        if not own.reads_variable:
            return made
        made[0].set_shape(context.output_shape())
        return with_gradient(inputs, made, lambda gradient: [gradient])

    def _input(self, op: Operator) -> Any:
        local = self._local
        spec = op.outputs[0]
        layout = local.layout_of(TensorId(op.name))
        if op.name not in self._modes:
            edge = Edge(op.inputs[0], op.name, 0)
            whole = local.wanted(edge).value
            path = canonical_path(whole, layout)
            return reshard(self._arrive(edge), whole, path, local.plan.mesh, local.engine, spec.dtype, spec.shape)
        share = share_layout(spec, local.plan.mesh) if self._modes[op.name] else None
        fed = layout if share is None else share
        placeholder = tf.compat.v1.placeholder(spec.dtype, fed.local_shape(spec.shape, local.plan.mesh), op.name)
        self.feeds[op.name] = placeholder
        path, engine = canonical_path(fed, layout), local.engine
        return reshard(placeholder, fed, path, local.plan.mesh, engine, spec.dtype, spec.shape)

    def _feed(self, tensor: TensorId) -> None:
        """Gives a tensor, and the copies that readers of a constant have, what is fed."""
        local = self._local
        spec = local.graph.spec(tensor)
        placeholder = self.feeds[str(tensor)] = tf.compat.v1.placeholder(spec.dtype, spec.shape, tensor.op)
        whole = Layout.replicated(spec.rank)
        for each in copies(local.graph, tensor):
            layout = local.layout_of(each)
            path = canonical_path(whole, layout)
            piece = reshard(placeholder, whole, path, local.plan.mesh, local.engine, spec.dtype)
            if piece is not None:
                self._values[each] = piece
            self._fed.add(each)

    def _arrive(self, edge: Edge) -> Any:
        with self._owned(str(edge)):
            return self._move(edge)

    def _move(self, edge: Edge) -> Any:
        """What arrives on an edge."""
        return self._moved(edge, self._reuse.source(edge))

    def _moved(self, edge: Edge, tensor: Any) -> Any:
        """What arrives on an edge where its producer gave ``tensor``."""
        local = self._local
        given, wanted = local.given(edge.tensor), local.wanted(edge)
        steps, spec = local.plan.edge(edge), local.spec(edge)
        dtype, is_cut = spec.dtype, local.places is not None and local.places.crosses(edge)
        if edge not in local.graph.differentiable or is_cut or tensor is None:
            moved = reshard(tensor, given.value, steps.forward, local.plan.mesh, local.engine, dtype, spec.shape)
            if is_cut and moved is not None and edge in local.graph.differentiable:
                moved = self._cuts[edge] = tf.identity(moved)
            return moved
        return reshard_edge(
            tensor,
            given.value,
            steps.forward,
            wanted.gradient,
            steps.backward,
            given.gradient,
            local.plan.mesh,
            local.engine,
            dtype,
            twice=local.graph.is_differentiated_twice,
        )


def _end(tensor: Any, gradient: Any) -> Any:
    """A number to differentiate, whose gradient by a tensor is one that is there already, of whatever dtype."""
    return with_gradient([tensor], [tf.zeros([])], lambda _: [gradient])[0]


def _of_whole_gradient(x: Any) -> Any:
    """A tensor whose gradient, if it is rows, as those of lookups in a subgraph are, becomes whole.

    No operator expects rows but lookups, and variables.
    """
    if not is_differentiable(x.dtype):
        return x
    return with_gradient([x], [x], lambda dy: [None if dy is None else tf.convert_to_tensor(dy)])[0]
