"""The tensors that the backward pass reads, and the edges or operators that count their memory."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import NamedTuple

from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorId
from tensoropt.plan.in_time import InTime
from tensoropt.plan.tensor_reuse import keep_choices

__all__ = ["Copies", "Keeping"]


class Copies(NamedTuple):
    """How often an edge counts the copies of its tensor, 0 or 1.

    Attributes:
        unmoved: of the one tensor where there is no move.
        before: of the copy before the move, if all are kept that are read.
        after: of the one after it.
        alone: of the copy before the move if it is the only one.
    """

    unmoved: int
    before: int
    after: int
    alone: int


class Keeping:
    """The tensors that the backward pass reads, and where their copies are counted.

    A tensor that one operator reads is counted on the edge to it. One that several read (a fan-out's) is counted where
    it comes from, on the edge into the fan-out, as if any of them kept it as it is; edges to readers add their own
    copies. That counts too much where all of the readers that keep it move it.
    """

    def __init__(self, graph: Graph, rules: Mapping[str, OpRule]) -> None:
        """Takes the graph and the rules of its operators."""
        self._graph = graph
        self._rules = rules
        self._reads = functools.cache(self._reads_uncached)

    def choices(self, edge: Edge, *, more: bool = False, steps: InTime | None = None) -> tuple[str, ...]:
        """The copies that an edge may keep; ``more`` tells whether a reader that is made again reads it."""
        again = [reader.name for reader in self._behind(edge)] if more else ()
        return keep_choices(self._graph, self._rules, edge, again, steps)

    def copies(self, edge: Edge, *, more: bool = False) -> Copies:
        """Returns the numbers of copies that are counted on the edge, see :meth:`choices`."""
        reads = int(more or self.reads(edge))
        if not self.alone(edge):
            return Copies(0, 0, reads, 0)
        makes = int(self.makes(edge))
        return Copies(max(makes, reads), makes, reads, 1)

    def alone(self, edge: Edge) -> bool:
        """Tells whether an edge's tensor is counted on that edge, as nothing else holds the tensor."""
        producer = traits(self._graph[edge.tensor.op])
        # The outputs of sources are held in any case.
        if producer.is_source or producer.is_fanout or edge.consumer not in self._graph.training:
            return False
        return len(self._readers(edge.tensor)) == 1

    def makes(self, edge: Edge) -> bool:
        """Tells whether the producer of an edge reads its own output in its backward pass."""
        return self._reads_output(edge.tensor)

    def reads(self, edge: Edge) -> bool:
        """Tells whether the backward pass reads an edge's tensor: in the consumer, or behind a fan-out."""
        return self._reads(edge)

    def with_producer(self, tensor: TensorId) -> bool:
        """Tells whether a tensor is counted with the operator that makes it."""
        readers = self._readers(tensor)
        if traits(self._graph[tensor.op]).is_fanout or len(readers) == 1:
            return False
        return self._reads_output(tensor) or any(map(self.reads, readers))

    def _behind(self, edge: Edge) -> list[Operator]:
        """The consumer of an edge, or those behind it if it is a fan-out."""
        op = self._graph[edge.consumer]
        if not traits(op).is_fanout:
            return [op]
        return [reader for further in self._graph.consumers(TensorId(op.name)) for reader in self._behind(further)]

    def _readers(self, tensor: TensorId) -> list[Edge]:
        return [edge for edge in self._graph.consumers(tensor) if edge.consumer in self._graph.training]

    def _reads_output(self, tensor: TensorId) -> bool:
        return tensor.index in self._rules[tensor.op].saved_outputs and self._graph.has_gradient(tensor.op)

    def _reads_uncached(self, edge: Edge) -> bool:
        op = self._graph[edge.consumer]
        if traits(op).is_fanout:
            return any(map(self.reads, self._graph.consumers(TensorId(op.name))))
        return edge.position in self._rules[op.name].saved_inputs and self._graph.has_gradient(op.name)
