"""Building a program: its operators in the local graph, one by one, with reshards, gradients and updates."""

from __future__ import annotations

import sys
from collections.abc import Container, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tensoropt.errors import FeedError, SessionError
from tensoropt.exec.program.feeding import share_layout
from tensoropt.exec.program.fetch import Fetch, GradientOf
from tensoropt.exec.program.gradient import with_gradient
from tensoropt.exec.program.local import LocalGraph
from tensoropt.exec.program.lowering import OpLowering, lower_operator
from tensoropt.exec.program.resharding import reshard, reshard_edge
from tensoropt.exec.program.reuse import Reuse
from tensoropt.exec.program.training import Training
from tensoropt.exec.schedule.ordering import Backward, after_readers
from tensoropt.graph.graph import Edge
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId
from tensoropt.layout import Layout, canonical_path

__all__ = ["Builder", "share_slots"]


class Builder:
    """Lowers operators one by one into the default graph."""

    def __init__(self, local: LocalGraph, modes: Mapping[str, bool], updating: Container[str] | None) -> None:
        """Begins a program.

        Args:
            local: what it is added to.
            modes: for each placeholder that is fed, whether it is a share of the batch.
            updating: the training steps that are certain to run; None for all that are built.
        """
        self._local = local
        self._modes = modes
        self._updating = updating
        self._values: dict[TensorId, Any] = {}
        self._reuse = Reuse(local.graph, local.rules, local.plan, local.engine, self._values)
        self._operations: dict[str, Any] = {}
        self._added: set[str] = set()
        self._gradients: dict[tuple[str, str], Any] = {}
        self.feeds: dict[str, Any] = {}
        # How many ops the graph had before the first backward pass; all of them come before none.
        self.backward = sys.maxsize

    @property
    def made(self) -> dict[str, str]:
        """The operator that gives a local tensor, by the tensor's name; the first one of those that pass it on."""
        values = reversed(self._values.items())
        return {tensor.name: key.op for key, tensor in values if tensor is not None}

    def add(self, op: Operator) -> None:
        """Builds one operator, unless it is there; those that it needs are."""
        if op.name in self._added:
            return
        self._added.add(op.name)
        with tf.control_dependencies([self.operation(name) for name in op.control_inputs]):
            outputs = self._outputs(op)
        for index, tensor in enumerate(outputs):
            self._values[TensorId(op.name, index)] = tensor

    def operation(self, name: str) -> Any:
        """The local operation for an operator that is run for its effect."""
        if name not in self._operations:
            if name in self._local.trainings:
                self._operations[name] = self._train(self._local.trainings[name])
            elif traits(self._local.graph[name]).is_group:
                inner = self._local.graph[name].control_inputs
                self._operations[name] = tf.group(*(self.operation(other) for other in inner))
            else:
                made = [value for key, value in self._values.items() if key.op == name and value is not None]
                self._operations[name] = tf.group(*made)
        return self._operations[name]

    def fetched(self, fetch: Fetch) -> Any:
        """What is given to ``Session.run`` for a fetch."""
        if isinstance(fetch, str):
            return self.operation(fetch)
        if isinstance(fetch, GradientOf):
            gradient = tf.convert_to_tensor(self._gradients[fetch.training, fetch.variable])
            variable = TensorId(fetch.variable)
            return self._whole(gradient, self._local.layout_of(variable), self._local.graph.spec(variable).dtype)
        return self._whole_tensor(fetch)

    def _whole(self, piece: Any, layout: Layout, dtype: str) -> Any:
        local = self._local
        path = canonical_path(layout, Layout.replicated(layout.rank))
        return reshard(tf.identity(piece), layout, path, local.plan.mesh, local.engine, dtype)

    def _whole_tensor(self, tensor: TensorId) -> Any:
        if self._values[tensor] is None:
            raise SessionError(f"Fetch '{tensor}': this output is only used by TensorFlow's own gradient.")
        return self._whole(self._values[tensor], self._local.layout_of(tensor), self._local.graph.spec(tensor).dtype)

    def _train(self, training: Training) -> Any:
        """Gradients and update of a training step."""
        local = self._local
        # What waits for another training step is not there yet.
        needs = (training.loss, *(tensor.op for tensor in training.parameters.values()), *training.after)
        for op in local.graph.needed_for(name for name in needs if name in local.graph):
            self.add(op)
        others = [self.operation(name) for name in training.after]
        loss = self._values[TensorId(training.loss)]
        variables = [local.variables[name] for name in training.variables]
        reads = [self._values[TensorId(name)] for name in training.variables]
        self._reuse.start_backward()
        built = len(local.tf_graph.get_operations())
        self.backward = min(self.backward, built)
        # Gradients of a weight that is read many times are added up one after the other, as they come (`exec/sums.py`).
        gradients = tf.gradients(loss, reads, aggregation_method=tf.AggregationMethod.EXPERIMENTAL_TREE)
        pairs = []
        for name, gradient in zip(training.variables, gradients, strict=True):
            if gradient is None:
                raise SessionError(f"Variable '{name}': loss '{training.loss}' has no gradient with respect to it.")
            self._gradients[training.op, name] = gradient
        backward = Backward(gradients, built)
        backward.wait_for_gradients()
        late = after_readers(gradients, reads, loss)
        for gradient, variable in zip(late, variables, strict=True):
            pairs.append((_own_rows(gradient) if local.engine.size > 1 else gradient, variable))
        parameters = {argument: self._values[tensor] for argument, tensor in training.parameters.items()}
        optimizer = training.make_optimizer(parameters)  # its hyperparameters may be of this step alone
        share_slots(local.optimizers.setdefault(training.optimizer, optimizer), optimizer)
        step = None if training.global_step is None else local.variables[training.global_step]
        # A variable that its own gradient does not depend on may otherwise be updated before the loss reads it, or
        # before what the step waits for.
        # A random operator that programs share has reads of its own.
        early = (key for key in self._values if self._reads_variable(local.graph[key.op]) or key.op in local.shared)
        read = [self._values[key] for key in early]
        with tf.control_dependencies([loss, *read, *others]):
            update = optimizer.apply_gradients(pairs, global_step=step)
        needed = [*(tensor.op for tensor in parameters.values()), *others]
        if self._updating is None or training.op in self._updating:
            backward.wait_for_updates(late, () if local.one_thread else local.chains[-1].names, needed)
        return tf.group(update, *others)

    def _outputs(self, op: Operator) -> list[Any]:
        local, own = self._local, traits(op)
        if own.is_variable:
            return [local.variables[op.name].read_value()]
        if own.is_input:
            return [self._input(op)]
        if own.is_group:
            self.operation(op.name)
            return []
        edges = [Edge(tensor, op.name, position) for position, tensor in enumerate(op.inputs)]
        inputs = [self._reuse.arrived(edge, self._arrive(edge)) for edge in edges]
        if own.is_fanout or own.is_sink:
            return [tf.identity(inputs[0])]
        shared = local.is_shared(op)
        if shared and op.name in local.shared:
            return local.shared_outputs(op)
        context = OpLowering(
            op,
            local.rules[op.name],
            local.graph.input_specs(op),
            local.plan.configuration(op.name),
            local.plan.mesh,
            local.engine,
        )
        if op.handles:
            outputs = self._in_place(context, inputs)
        else:
            outputs = self._reuse.outputs(edges, inputs, lower_operator(context, inputs), context)
        if not op.outputs:
            self._operations[op.name] = context.operation
        if shared:
            local.shared[op.name] = outputs
        return outputs

    def _in_place(self, context: OpLowering, inputs: Sequence[Any]) -> list[Any]:
        """The outputs of an operator that takes variables themselves: TensorFlow's own op, on this device's piece."""
        op = context.op
        handles = {place: self._local.variables[op.inputs[place].op].handle for place in op.handles}
        # Who reads the variable without waiting for the operator gets the old value.
        with tf.control_dependencies([inputs[place] for place in op.handles]):
            made = context.emit([handles.get(place, tensor) for place, tensor in enumerate(inputs)])
        if not traits(op).reads_variable:
            return made
        made[0].set_shape(context.output_shape())
        return with_gradient(inputs, made, lambda gradient: [gradient])

    @staticmethod
    def _reads_variable(op: Operator) -> bool:
        return traits(op).is_variable or bool(op.handles)

    def _input(self, op: Operator) -> Any:
        local = self._local
        spec = op.outputs[0]
        layout = local.layout_of(TensorId(op.name))
        if op.name not in self._modes:
            raise FeedError(f"{op}: placeholders with a default must be fed when they run on several devices.")
        share = share_layout(spec, local.plan.mesh) if self._modes[op.name] else None
        fed = layout if share is None else share
        placeholder = tf.compat.v1.placeholder(spec.dtype, fed.local_shape(spec.shape, local.plan.mesh), op.name)
        self.feeds[op.name] = placeholder
        return reshard(placeholder, fed, canonical_path(fed, layout), local.plan.mesh, local.engine)

    def _arrive(self, edge: Edge) -> Any:
        local = self._local
        producer = local.graph[edge.tensor.op]
        if traits(producer).is_constant and local.is_shared(local.graph[edge.consumer]):
            # Programs can share what draws numbers only if it needs no collective of one of them.
            return tf.constant(producer.attrs["value"], dtype=producer.outputs[0].dtype)
        given, wanted = local.given(edge.tensor), local.wanted(edge)
        steps = local.plan.edge(edge)
        tensor, dtype = self._reuse.source(edge), local.graph.spec(edge.tensor).dtype
        if edge not in local.graph.differentiable:
            return reshard(tensor, given.value, steps.forward, local.plan.mesh, local.engine, dtype)
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
        )


def share_slots(first: Any, second: Any) -> None:
    """Lets an optimizer that is made for another program or step use the slots of the first one."""
    second._slots = first._slots
    second._non_slot_dict = first._non_slot_dict


def _own_rows(gradient: Any) -> Any:
    """Rows without those that belong to other devices, which carry the index -1."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    own = tf.reshape(tf.where(gradient.indices >= 0), [-1])
    return tf.IndexedSlices(tf.gather(gradient.values, own), tf.gather(gradient.indices, own), gradient.dense_shape)
