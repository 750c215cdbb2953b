"""Makes copies of moved tensors again in the backward pass, where a plan keeps only one of the two.

TensorOpt section 4.2, "Tensor reuse". Control dependencies on the incoming gradient see to it that nothing is made
again before the backward pass has come to the operator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

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
from tensoropt.plan.plan import Plan
from tensoropt.plan.tensor_reuse import reads_again, reverse_steps

__all__ = ["Reuse", "with_inputs_again", "with_output_again"]


class Reuse:
    """Recomputes, in the backward pass of one program, tensors that were not kept.

    An operator that reads a copy that is not kept (``keep="before"``) is built a second time in the backward pass, on
    inputs that are made again, and its gradient is that of the second copy. TensorFlow runs only the part of the second
    copy that the gradient needs: nothing for most ops, the op itself where its gradient reads its output. The
    operator's own collectives, if any, run again too, in the same order on every rank.

    The gradient of an operator whose own output is not kept (``keep="after"``) is computed as its declaration says
    (``gradient_from_output``), from the output that is made again from the consumer's copy.
    """

    def __init__(
        self,
        graph: Graph,
        rules: Mapping[str, OpRule],
        plan: Plan,
        engine: CollectiveEngine,
        values: Mapping[TensorId, Any],
        steps: InTime | None = None,
    ) -> None:
        """Looks up what is to be made again.

        Args:
            graph: the logical graph.
            rules: of its operators.
            plan: checked against it.
            engine: does the collectives.
            values: the local tensors that are built, which the program adds to.
            steps: how a step is split in time, if it is.
        """
        self._graph = graph
        self._rules = rules
        self._plan = plan
        self._engine = engine
        self._steps = steps
        self._values = values
        self._keep = {edge: entry.keep for edge, entry in plan.edges.items() if entry.forward}
        self._from_after = {edge.tensor: edge for edge, keep in self._keep.items() if keep == "after"}
        self._active = any(keep != "both" for keep in self._keep.values())
        self._arrived: dict[Edge, Any] = {}
        self._made_again: dict[str, Any] = {}  # by fan-out: its readers share what is made again

    def start_backward(self) -> None:
        """Forgets what another backward pass has made again."""
        self._made_again.clear()

    def source(self, edge: Edge) -> Any:
        """The producer's local tensor, from which the edge's forward steps start.

        A copy that is not kept is not made before the consumer's other inputs are there: all of a model's variables
        would otherwise be gathered at the start of a step and wait for their turn side by side.
        """
        tensor = self._values[edge.tensor]
        if self._keep.get(edge) != "before":
            return tensor
        others = [self._values[other] for other in self._graph[edge.consumer].inputs if other != edge.tensor]
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
        again = [self._reads_again(edge) for edge in edges]
        after = self._from_after.get(TensorId(ctx.op.name))
        if not any(again) and after is None:
            return list(made)
        if after is not None:
            return with_output_again(ctx, inputs, made, lambda dy: self._output_again(after, made[0], dy))

        def inputs_again(incoming: Sequence[Any]) -> list[Any]:
            return [
                self._again(edge, incoming) if remade else late(tensor, incoming)
                for edge, tensor, remade in zip(edges, inputs, again, strict=True)
            ]

        return with_inputs_again(
            ctx, inputs, made, inputs_again, [edge in self._graph.differentiable for edge in edges]
        )

    def arrived(self, edge: Edge, tensor: Any) -> Any:
        """Takes note of what arrived, from which its producer may make its output again."""
        if self._keep.get(edge) == "after":
            self._arrived[edge] = tensor
        return tensor

    def _reads_again(self, edge: Edge) -> bool:
        return reads_again(self._graph, self._rules, edge, self._keep, self._steps)

    def _again(self, edge: Edge, after: Sequence[Any]) -> Any:
        """Returns the tensor that arrived on an edge, made again once the tensors ``after`` are there."""
        producer = self._graph[edge.tensor.op]
        if traits(producer).is_fanout and self._reads_again(Edge(producer.inputs[0], producer.name, 0)):
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


def with_inputs_again(
    ctx: OpLowering,
    inputs: Sequence[Any],
    made: Sequence[Any],
    inputs_again: Callable[[Sequence[Any]], Sequence[Any]],
    differentiable: Sequence[bool],
) -> list[Any]:
    """An operator's outputs, whose gradient is the one of a second copy of it.

    Args:
        ctx: of its lowering.
        inputs: of the first copy.
        made: its outputs; None for one that only TensorFlow's own gradient would read.
        inputs_again: gives the inputs of the second copy, which are to wait for what it is given.
        differentiable: whether an input wants a gradient.
    """
    present = [index for index, tensor in enumerate(made) if tensor is not None]

    def backward(*incoming: Any) -> list[Any]:
        given = [(index, dy) for index, dy in zip(present, incoming, strict=True) if dy is not None]
        # Each its own: what is made again once for two inputs would get the gradients of both from each.
        second = [tf.identity(tensor) for tensor in inputs_again([dy for _, dy in given])]
        copies = lower_operator(ctx, second)
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
