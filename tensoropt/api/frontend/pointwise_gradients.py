"""The pass that finds gradients of a script's own that run on parts of tensors as on whole ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from tensoropt.api.frontend.reader import import_operators
from tensoropt.api.frontend.source import Source
from tensoropt.errors import GraphError
from tensoropt.graph.gradient_graphs import GRAPH, POINTWISE, RESULTS
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import has_rule, rule_of, traits
from tensoropt.graph.spec import TensorSpec

__all__ = ["mark_pointwise"]


def mark_pointwise(source: Source) -> Source:
    """Marks operators whose own gradient is pointwise."""
    return replace(source, operators=tuple(_marked(source.operators, {})))


def _marked(operators: Iterable[Operator], known: dict[Any, bool]) -> Iterator[Operator]:
    """Operators, with the mark.

    Args:
        operators: each after those that it reads.
        known: what has been found, as gates are alike by the hundred; gets more.
    """
    specs: dict[tuple[str, int], TensorSpec] = {}
    for op in operators:
        specs |= {(op.name, place): spec for place, spec in enumerate(op.outputs)}
        if GRAPH not in op.attrs:
            yield op
            continue
        shapes = tuple(specs[tensor.op, tensor.index].shape for tensor in op.inputs)
        key = op.attrs[GRAPH], tuple((op.node or {})[RESULTS].list.s), shapes
        if key not in known:
            known[key] = _is_pointwise(op.node or {}, shapes, known)
        yield replace(op, attrs=MappingProxyType({**op.attrs, POINTWISE: known[key]}))


def _is_pointwise(node: Mapping[str, Any], inputs: Sequence[tuple[int, ...]], known: dict[Any, bool]) -> bool:
    """Tells whether gradients are pointwise: each point depends on scalars and the same points of equal shapes."""
    shapes = set(inputs) - {()}
    if len(shapes) != 1:
        return False
    (shape,) = shapes
    body = tf.Graph()
    with body.as_default():
        tf.graph_util.import_graph_def(tf.compat.v1.GraphDef.FromString(node[GRAPH].s), name="")
    results = [body.get_tensor_by_name(name.decode()) for name in node[RESULTS].list.s]
    try:
        operators = {op.name: op for op in _marked(import_operators(body, [x.op for x in results]), known)}
    except GraphError:
        return False
    for op in operators.values():
        if traits(op).is_input or (all(spec.rank == 0 for spec in op.outputs) and not op.inputs):
            continue
        if not _acts_on_points(op, [operators[x.op].outputs[x.index] for x in op.inputs], shape):
            return False
    return all(tuple(x.shape) == shape for x in results)


def _acts_on_points(op: Operator, specs: Sequence[TensorSpec], shape: tuple[int, ...]) -> bool:
    """Tells whether an operator reads and makes only scalars and points of one shape, each from the same points."""
    tensors = (*specs, *op.outputs)
    if not has_rule(op.type) or op.static or any(spec.shape not in (shape, ()) for spec in tensors):
        return False
    if all(spec.rank == 0 for spec in tensors):
        return True
    rule = rule_of(op, specs)
    dims = [dims for dims, spec in zip((*rule.inputs, *rule.outputs), tensors, strict=True) if spec.rank]
    whole = tuple((f"d{place}",) for place in range(len(shape)))
    if rule.reduced or rule.internal or any(each != whole for each in dims) or not op.inputs:
        return False
    if any(extent > 1 and f"d{place}" not in rule.split for place, extent in enumerate(shape)):
        return False
    return all(spec.shape == shape for spec in op.outputs)
