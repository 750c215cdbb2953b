"""Identifies equal dimensions over all tensors of a graph, and names them for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.rule import Dims, OpRule
from tensoropt.graph.spec import TensorId

if TYPE_CHECKING:
    from tensoropt.space.space import SearchSpace

__all__ = ["Axis", "Dimensions", "words_of"]

Axis = tuple[str, str]
"""An operator and one of its iteration axes."""


class Dimensions:
    """Iteration axes that are the same dimension.

    A dimension of a tensor is the same in the operator that makes it and in all that read it; an iteration axis is the
    same in all tensors of its operator. Of a dimension that is a product of axes, the major one counts: only it may be
    split.
    """

    def __init__(self, graph: Graph, operators: Sequence[Operator], rules: Mapping[str, OpRule]) -> None:
        """Follows dimensions through the graph.

        Args:
            graph: the logical graph.
            operators: those to look at, in topological order.
            rules: by operator.
        """
        self._parent: dict[Axis, Axis] = {}
        for op in operators:
            for position, tensor in enumerate(op.inputs):
                made = rules[tensor.op].outputs[tensor.index]
                for ours, theirs in zip(rules[op.name].inputs[position], made, strict=True):
                    if ours and theirs:
                        self._parent[self.of((op.name, ours[0]))] = self.of((tensor.op, theirs[0]))

    def of(self, axis: Axis) -> Axis:
        """The one that stands for all that are the same."""
        parent = self._parent
        while (above := parent.get(axis, axis)) != axis:
            parent[axis] = parent.get(above, above)
            axis = parent[axis]
        return axis


def words_of(space: SearchSpace) -> dict[str, dict[str, str]]:
    """Names the splittable iteration axes of operators for people.

    The first dimension of inputs is the ``batch``, wherever it goes. A product with weights sums over its ``rows``; its
    ``columns`` are the axes that only its weights and its output have. In a convolution, and in operators that follow
    it, these are ``input channels`` and ``channels``. A product of two activations has ``heads``, which both factors
    have, and ``positions``. An axis of any other operator has the name it has in the products around; failing that, it
    is called ``columns`` if it is the last dimension, and else by its number.

    Returns:
        By operator and axis, the name.
    """
    return _Words(space).result()


class _Words:
    def __init__(self, space: SearchSpace) -> None:
        self._graph, self._operators, self._rules = space.graph, space.operators, space.rules
        self._dimensions = Dimensions(space.graph, space.operators, space.rules)
        self._still: set[str] = set()
        for op in space.operators:
            if not traits(op).is_input and all(tensor.op in self._still for tensor in op.inputs):
                self._still.add(op.name)
        # What a dimension is called everywhere, and what it is called by the operators that have no word of their own.
        self._everywhere: dict[Axis, str] = {}
        self._elsewhere: dict[Axis, str] = {}

    def result(self) -> dict[str, dict[str, str]]:
        """The words."""
        batch = self._graph.batch_size()
        for op in self._operators:
            if traits(op).is_input and op.outputs[0].shape[:1] == (batch,):
                self._everywhere[self._dimensions.of((op.name, "d0"))] = "batch"
        heavy = [op for op in self._operators if traits(op).work is not None]
        products = [op for op in heavy if self._weights(op) is None and len(op.inputs) > 1]
        for op in products:
            for axis, word in self._of_product(op).items():
                if word != "depth":
                    self._everywhere.setdefault(self._dimensions.of((op.name, axis)), word)
        own = {op.name: self._of_product(op) for op in heavy}
        for op in heavy:
            for dim in self._rules[op.name].outputs[0]:
                if dim and dim[0] in own[op.name]:
                    self._elsewhere.setdefault(self._dimensions.of((op.name, dim[0])), own[op.name][dim[0]])
        return {op.name: self._called(op, own.get(op.name, {})) for op in self._operators}

    def _called(self, op: Operator, own: Mapping[str, str]) -> dict[str, str]:
        rule = self._rules[op.name]
        beside = self._beside(op)
        result = {}
        for axis in rule.split:
            one = self._dimensions.of((op.name, axis))
            known = own.get(axis) or beside.get(axis) or self._elsewhere.get(one)
            result[axis] = self._everywhere.get(one) or known or self._by_place(rule, axis)
        return result

    def _weights(self, op: Operator) -> int | None:
        """The input of a heavy operator that depends on no sample; None of one of two activations."""
        found = [position for position, tensor in enumerate(op.inputs) if tensor.op in self._still]
        return found[0] if found else None

    def _of_product(self, op: Operator) -> dict[str, str]:
        rule, weights = self._rules[op.name], self._weights(op)
        convolves, result = traits(op).is_convolution, {}
        for axis in rule.split:
            made = any(_has(dims, axis) for dims in rule.outputs)
            if axis in rule.halo_axes:
                result[axis] = axis
            elif weights is None:
                every = made and all(_has(dims, axis) for dims in rule.inputs)
                result[axis] = "heads" if every else "positions" if made else "depth"
            elif not _has(rule.inputs[weights], axis):
                result[axis] = "positions"
            elif any(_has(dims, axis) for place, dims in enumerate(rule.inputs) if place != weights):
                result[axis] = "groups" if made else "input channels" if convolves else "rows"
            else:
                result[axis] = ("channels" if convolves else "columns") if made else "rows"
        return result

    def _beside(self, op: Operator) -> dict[str, str]:
        """Returns the words for an operator that depends on no sample: those of the product that reads it."""
        if op.name not in self._still or not op.outputs:
            return {}
        result: dict[str, str] = {}
        for edge in self._graph.consumers(TensorId(op.name)):
            reader = self._graph[edge.consumer]
            if edge.consumer not in self._graph.training or edge.consumer not in self._rules:
                continue
            words = self._of_product(reader) if traits(reader).work else {}
            words = words or (self._beside(reader) if traits(reader).is_fanout else {})
            dims = zip(self._rules[op.name].outputs[0], self._rules[edge.consumer].inputs[edge.position], strict=True)
            for ours, theirs in dims:
                if ours and theirs and theirs[0] in words:
                    result.setdefault(ours[0], words[theirs[0]])
        return result

    @staticmethod
    def _by_place(rule: OpRule, axis: str) -> str:
        for dims in (*rule.outputs, *rule.inputs):
            for place, dim in enumerate(dims):
                if dim and dim[0] == axis:
                    return "columns" if place == len(dims) - 1 else "rows" if len(dims) == 2 else f"dimension {place}"
        return axis


def _has(dims: Dims, axis: str) -> bool:
    return any(axis in dim for dim in dims)
