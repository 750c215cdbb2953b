"""Makes again in the backward pass what a plan does not keep: copies of moved tensors, and outputs of operators.

The former is TensorOpt section 4.2, "Tensor reuse", the latter recomputation. Control dependencies on the incoming
gradient see to it that nothing is made again before the backward pass has come to the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from tensoropt.errors import OpError
from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.program.gradient import late, with_gradient
from tensoropt.exec.program.lowering import OpLowering, lower_operator
from tensoropt.exec.program.resharding import reshard
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.registry import traits
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorId
from tensoropt.layout import Layout
from tensoropt.plan.in_time import InTime
from tensoropt.plan.places import Places
from tensoropt.plan.plan import Plan
from tensoropt.plan.tensor_reuse import reads_again, reverse_steps

__all__ = ["Reuse", "with_output_again", "with_second_copy"]


class _Built(NamedTuple):
    """An operator's first copy: its lowering, its inputs, and what arrived on them."""

    ctx: OpLowering
    edges: Sequence[Edge]
    inputs: Sequence[Any]


class Reuse:
    """Recomputes, in the backward pass of one program, tensors that were not kept.

    An operator that reads a copy that is not kept (``keep="before"``) is built a second time in the backward pass, on
    inputs that are made again, and its gradient is that of the second copy. TensorFlow runs only the part of the second
    copy that the gradient needs: nothing for most ops, the op itself where its gradient reads its output. The
    operator's own collectives, if any, run again too, in the same order on every rank.

    The gradient of an operator whose own output is not kept (``keep="after"``) is computed as its declaration says
    (``gradient_from_output``), from the output that is made again from the consumer's copy.

    An operator that is made again (``Configuration.again``) is built a second time, too, behind the gradient that first
    needs it: all that read its outputs in the backward pass read those of the second copy, and its own gradient is that
    of the second copy.
    """

    def __init__(
        self,
        graph: Graph,
        rules: Mapping[str, OpRule],
        plan: Plan,
        engine: CollectiveEngine,
        values: Mapping[TensorId, Any],
        steps: InTime | None = None,
        places: Places | None = None,
    ) -> None:
        """Looks up what is to be made again.

        Args:
            graph: the logical graph.
            rules: of its operators.
            plan: checked against it.
            engine: does the collectives.
            values: the local tensors that are built, which the program adds to.
            steps: how a step is split in time, if it is.
            places: where operators are computed, if not everywhere.
        """
        self._places = places
        self._graph = graph
        self._rules = rules
        self._plan = plan
        self._engine = engine
        self._steps = steps
        self._values = values
        self._keep = {edge: entry.keep for edge, entry in plan.edges.items() if entry.forward}
        self._from_after = {edge.tensor: edge for edge, keep in self._keep.items() if keep == "after"}
        self._remade = plan.again
        self._active = bool(self._remade) or any(keep != "both" for keep in self._keep.values())
        self._arrived: dict[Edge, Any] = {}
        self._built: dict[str, _Built] = {}  # the operators that are made again
        self._made_again: dict[str, Any] = {}  # by fan-out: its readers share what is made again
        self._second: dict[str, tuple[Sequence[Any], Sequence[Any]]] = {}  # inputs and outputs of second copies

    def start_backward(self) -> None:
        """Forgets what another backward pass has made again."""
        self._made_again.clear()
        self._second.clear()

    def source(self, edge: Edge) -> Any:
        """The producer's local tensor, from which the edge's forward steps start.

        A copy that is not kept is not made before the consumer's other inputs are there: all of a model's variables
        would otherwise be gathered at the start of a step and wait for their turn side by side.
        """
        tensor = self._values.get(edge.tensor)
        if tensor is None or self._keep.get(edge) != "before":
            return tensor
        others = [self._values[t] for t in self._graph[edge.consumer].inputs if t != edge.tensor and t in self._values]
        if not others:
            return tensor
        with tf.control_dependencies(others):
            return tf.identity(tensor)

    def outputs(self, edges: Sequence[Edge], inputs: Sequence[Any], made: Sequence[Any], ctx: OpLowering) -> list[Any]:
        """The outputs of an operator, with a gradient that makes again what it needs and is not kept.

        Args:
            edges: its inputs.
            inputs: what arrived on them.
            made: what its lowering made of it; None for an output that only TensorFlow's own gradient would read.
            ctx: of its lowering.
        """
        if not self._active:
            return list(made)
        op, rule, differentiable = ctx.op, ctx.rule, [edge in self._graph.differentiable for edge in edges]
        is_again = op.name in self._remade
        self._built[op.name] = _Built(ctx, edges, inputs)
        after = self._from_after.get(TensorId(op.name))
        if after is not None:
            return with_output_again(ctx, inputs, made, lambda dy: self._output_again(after, made[0], dy))
        reads_own = is_again and bool(rule.saved_inputs or rule.saved_outputs)
        reads_again = any(self._reads_again(edge) for edge in edges if edge.position in rule.saved_inputs)
        if not any(differentiable) or not (reads_own or reads_again):
            return list(made)
        return with_second_copy(inputs, made, lambda after: self._second_copy(op.name, after), differentiable)

    def _second_copy(self, name: str, after: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Inputs and outputs of an operator's second copy, built once the tensors ``after`` are there if it is not."""
        if name not in self._second:
            built = self._built[name]
            # Each its own: what is made again once for two inputs would get the gradients of both from each.
            inputs = [
                tf.identity(self._again(edge, after)) if self._reads_again(edge) else late(tensor, after)
                for edge, tensor in zip(built.edges, built.inputs, strict=True)
            ]
            self._second[name] = inputs, lower_operator(built.ctx, inputs)
        return self._second[name]

    def arrived(self, edge: Edge, tensor: Any) -> Any:
        """Takes note of what arrived, from which its producer may make its output again."""
        if self._keep.get(edge) == "after":
            self._arrived[edge] = tensor
        return tensor

    def _reads_again(self, edge: Edge) -> bool:
        apart = None if self._places is None else self._places.apart
        return reads_again(self._graph, self._rules, edge, self._keep, self._remade, self._steps, apart)

    def _again(self, edge: Edge, after: Sequence[Any]) -> Any:
        """Returns the tensor that arrived on an edge, made again once the tensors ``after`` are there."""
        producer = self._graph[edge.tensor.op]
        if producer.name in self._remade:
            source = self._second_copy(producer.name, after)[1][edge.tensor.index]
        elif traits(producer).is_fanout and self._reads_again(Edge(producer.inputs[0], producer.name, 0)):
            if producer.name not in self._made_again:
                self._made_again[producer.name] = self._again(Edge(producer.inputs[0], producer.name, 0), after)
            source = self._made_again[producer.name]
        else:
            source = late(self._values[edge.tensor], after)
        given, dtype = self._given(edge), self._graph.spec(edge.tensor).dtype
        return reshard(source, given, self._plan.edge(edge).forward, self._plan.mesh, self._engine, dtype)

    def _output_again(self, edge: Edge, output: Any, dy: Any) -> Any:
        """A producer's output, made again from the copy of its consumer."""
        if edge not in self._arrived:  # the consumer is no part of this program
            return output
        given, entry = self._given(edge), self._plan.edge(edge)
        layout = given
        for step in entry.forward:
            layout = step.apply(layout)
        back = reverse_steps(given, entry.forward)
        return reshard(late(self._arrived[edge], [dy]), layout, back, self._plan.mesh, self._engine)

    def _given(self, edge: Edge) -> Layout:
        rule = self._rules[edge.tensor.op]
        return self._plan.configuration(edge.tensor.op).output_layouts(rule, edge.tensor.index).value


def with_second_copy(
    inputs: Sequence[Any],
    made: Sequence[Any],
    second_copy: Callable[[Sequence[Any]], tuple[Sequence[Any], Sequence[Any]]],
    differentiable: Sequence[bool],
) -> list[Any]:
    """An operator's outputs, whose gradient is the one of a second copy of it.

    Args:
        inputs: of the first copy.
        made: its outputs; None for one that only TensorFlow's own gradient would read.
        second_copy: gives the inputs of the second copy, each a tensor of its own, and its outputs. The inputs are to
            wait for what it is given.
        differentiable: whether an input wants a gradient.
    """
    present = [index for index, tensor in enumerate(made) if tensor is not None]

    def backward(*incoming: Any) -> list[Any]:
        given = [(index, dy) for index, dy in zip(present, incoming, strict=True) if dy is not None]
        second, copies = second_copy([dy for _, dy in given])
        found = tf.gradients(
            [copies[index] for index, _ in given],
            [tensor for tensor, wants in zip(second, differentiable, strict=True) if wants],
            grad_ys=[tf.cast(dy, copies[index].dtype) for index, dy in given],
            stop_gradients=second,
        )
        gradients = iter(found)
        return [next(gradients) if wants else None for wants in differentiable]

    outputs = iter(with_gradient(inputs, [made[index] for index in present], backward))
    return [None if tensor is None else next(outputs) for tensor in made]


def with_output_again(
    ctx: OpLowering, inputs: Sequence[Any], made: Sequence[Any], output_again: Callable[[Any], Any]
) -> list[Any]:
    """An operator's one output, whose gradient is computed from it as its declaration says.

    Args:
        ctx: of its lowering.
        inputs: its one input.
        made: its output.
        output_again: gives the output again, which is to wait for the gradient that it is given.
    """

    gradient = traits(ctx.op).gradient_from_output
    if gradient is None:
        raise OpError(f"{ctx.op}: no gradient from its output is declared. Keep its output.")

    def backward(incoming: Any) -> list[Any]:
        dy = tf.convert_to_tensor(incoming)
        return [gradient(ctx, output_again(dy), dy)]

    return with_gradient(inputs, made, backward)
