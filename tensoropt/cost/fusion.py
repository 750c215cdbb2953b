"""Kernels that a compiler makes of several operators: tensors inside of one never pass through a device's memory.

Two kinds of kernels are known beside those of one operator
(:attr:`tensoropt.cluster.Device.fusion`):

- *pointwise*: what computes point by point, turns axes, sums over them and normalizes along them, together, as XLA and
  hand-written kernels have it: a scaled, masked softmax, a normalization, an activation behind its bias. Products are
  kernels of their own;
- *attention*: in addition the product before a softmax and the one after it, whose scores stay inside (FlashAttention,
  Dao et al. 2022).

A producer joins the kernel of its readers where all of them are in one. So no path leaves a kernel and comes back to
it, and kernels can run one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import has_rule, traits
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorId
from tensoropt.graph.traits import Work
from tensoropt.plan.plan import rules_of

__all__ = ["ALONE", "KernelPart", "kernel_parts"]


@dataclass(frozen=True, slots=True)
class KernelPart:
    """An operator's part in its kernel.

    Attributes:
        given: positions of the inputs that are not read from memory for it: the kernel makes them, or has read them.
        kept: outputs that are not written to memory.
        starts: whether the kernel's start counts with it.
        readers: of a fan-out, how many kernels read it.
    """

    given: frozenset[int] = frozenset()
    kept: frozenset[int] = frozenset()
    starts: bool = True
    readers: int | None = None


ALONE = KernelPart()
"""The part of an operator that is a kernel of its own."""


def kernel_parts(graph: Graph, fusion: str) -> Mapping[str, KernelPart]:
    """Returns the parts of operators that share kernels, by name; those that are not there are :data:`ALONE`.

    Args:
        graph: the logical graph.
        fusion: the kernels that there are, as :attr:`tensoropt.cluster.Device.fusion`.
    """
    if fusion == "none":
        return {}
    rules = rules_of(graph)
    kernel_of = _pointwise_kernels(graph, rules)
    if fusion == "attention":
        _add_products(graph, rules, kernel_of)
    return _parts(graph, kernel_of)


def _pointwise_kernels(graph: Graph, rules: Mapping[str, OpRule]) -> dict[str, str]:
    """Returns the kernels of the operators that may share one, each named by its last operator."""
    kernel_of: dict[str, str] = {}
    for op in reversed(graph.operators):
        if _may_share(graph, op, rules[op.name]):
            kernel_of[op.name] = _kernel_of_readers(graph, op, kernel_of) or op.name
    return kernel_of


def _may_share(graph: Graph, op: Operator, rule: OpRule) -> bool:
    own = traits(op)
    if own.is_fanout:
        return True
    if own.role is not None or own.work is not None or own.has_effect or own.on_variable or not has_rule(op.type):
        return False
    inputs = graph.input_specs(op)
    if own.moves and {spec.elements for spec in inputs if spec.rank} != {spec.elements for spec in op.outputs}:
        return False  # parts and joins of tensors; what turns or reshapes one is how others read it
    # It computes no more points than its largest tensor has, and may be cut anywhere: no scan, no sort, no window.
    points = max((spec.elements for spec in (*inputs, *op.outputs)), default=1)
    named = {axis for dims in (*rule.inputs, *rule.outputs) for dim in dims for axis in dim}
    whole = all(
        math.prod(rule.size(axis) for axis in dim) == extent
        for dims, spec in zip((*rule.inputs, *rule.outputs), (*inputs, *op.outputs), strict=True)
        for dim, extent in zip(dims, spec.shape, strict=True)
    )
    return whole and not rule.halos and math.prod(rule.size(axis) for axis in named) <= points


def _readers(graph: Graph, tensor: TensorId) -> list[Edge]:
    """The edges to those that read a tensor's numbers, and not its sizes alone."""
    return [edge for edge in graph.consumers(tensor) if not traits(graph[edge.consumer]).gives_shape]


def _readers_of(graph: Graph, op: Operator) -> Iterator[Edge]:
    for place in range(len(op.outputs)):
        yield from _readers(graph, TensorId(op.name, place))


def _kernel_of_readers(graph: Graph, op: Operator, kernel_of: Mapping[str, str]) -> str | None:
    """The kernel that all readers of an operator are in; None if there is no such."""
    kernels = {kernel_of.get(edge.consumer) for edge in _readers_of(graph, op)}
    return kernels.pop() if len(kernels) == 1 else None


def _add_products(graph: Graph, rules: Mapping[str, OpRule], kernel_of: dict[str, str]) -> None:
    """Adds to each softmax's kernel the products before and after it, where nothing else reads what is between."""
    members: dict[str, list[str]] = {}
    for name, kernel in kernel_of.items():
        members.setdefault(kernel, []).append(name)
    for kernel, inside in reversed(members.items()):  # the first softmax comes first
        if not any(rules[name].internal or rules[name].reduced for name in inside):
            continue
        after = {edge.consumer for edge in _readers_of(graph, graph[kernel])}
        before = {
            tensor.op
            for name in inside
            for tensor in graph[name].inputs
            if _is_of_activations(graph[tensor.op], rules[tensor.op])
            and _kernel_of_readers(graph, graph[tensor.op], kernel_of) == kernel
        }
        is_taken = not kernel_of.keys().isdisjoint(before | after)  # by a softmax before
        if before and not is_taken and len(after) == 1:
            (last,) = after
            if _is_of_activations(graph[last], rules[last]):
                kernel_of |= dict.fromkeys((*inside, *before, last), last)


def _is_of_activations(op: Operator, rule: OpRule) -> bool:
    """Tells whether an operator is a product of two tensors that have an axis in common which it keeps."""
    if traits(op).work not in (Work.BATCHED_PRODUCT, Work.TENSOR_PRODUCT):
        return False
    axes = [{axis for dim in dims for axis in dim} for dims in (*rule.inputs, *rule.outputs)]
    return len(rule.inputs) == 2 and bool(set.intersection(*axes))


def _parts(graph: Graph, kernel_of: Mapping[str, str]) -> dict[str, KernelPart]:
    parts: dict[str, KernelPart] = {}
    read: set[tuple[str, TensorId]] = set()
    for op in graph.operators:
        kernel = kernel_of.get(op.name)
        if kernel is None:
            continue
        given = {place for place, tensor in enumerate(op.inputs) if kernel_of.get(tensor.op) == kernel}
        for place, tensor in enumerate(op.inputs):
            if (kernel, tensor) in read:
                given.add(place)
            read.add((kernel, tensor))
        kept = {
            place
            for place in range(len(op.outputs))
            if (edges := _readers(graph, TensorId(op.name, place)))
            and all(kernel_of.get(edge.consumer) == kernel for edge in edges)
        }
        readers = {kernel_of.get(edge.consumer, edge.consumer) for edge in _readers_of(graph, op)}
        count = len(readers) if traits(op).is_fanout else None
        part = KernelPart(frozenset(given), frozenset(kept), kernel == op.name, count)
        if part != ALONE:
            parts[op.name] = part
    return parts
