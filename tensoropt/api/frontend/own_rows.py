"""The pass that finds lookups in which each sample looks up in its own rows only.

Scripts that flatten a batch of sequences add to the places within a sequence where the sequence begins: BERT does to
find masked words, others to take the last word of each sequence. Or they put a sample's number before its place
(``gather_nd``). Without the mark, each device would need the rows of all samples, and no batch could run in parts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tensoropt.api.frontend.source import Source
from tensoropt.api.frontend.static_values import keep_static, value_with
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.gather import SAMPLES
from tensoropt.graph.registry import has_rule, rule_of, traits
from tensoropt.graph.spec import TensorId, TensorSpec

__all__ = ["mark_own_rows"]

# More indices than any step looks up that is worth the look at all of them.
_MOST_INDICES = 10**7
# What stands for the places that a run decides: a sample's indices must differ from another's alike, whatever they are.
_TRIED = (0, 1, 100_000)


def mark_own_rows(source: Source) -> Source:
    """Marks lookups with their number of samples, where each looks up in rows of its own.

    The places within a sample are computed, so what they are is taken on trust: a device whose sample asks for a row
    that another device has ends in TensorFlow's error.
    """
    by_name = {op.name: op for op in source.operators}
    return replace(source, operators=tuple(_marked(op, by_name, source.graph) for op in source.operators))


def _marked(op: Operator, by_name: Mapping[str, Operator], graph: Any) -> Operator:
    counts = traits(op).counts_samples
    if counts is None or _is_of_variable(op.inputs[0], by_name):
        return op
    rows, indices = (_spec(tensor, by_name) for tensor in op.inputs)
    by_coordinates = counts(op, (rows, indices))
    if by_coordinates is None or not 0 < indices.elements < _MOST_INDICES:
        return op
    decided = _decided(op.inputs[1], by_name)
    if not decided or op.inputs[1] in decided or any(map(_is_unknown, (by_name[tensor.op] for tensor in decided))):
        return op
    tensor = graph.get_tensor_by_name(str(op.inputs[1]))
    given = {str(each): _spec(each, by_name) for each in decided}
    found = [value_with(tensor, {name: _filled(spec, tried) for name, spec in given.items()}) for tried in _TRIED]
    if any(value is None for value in found):
        return op
    values = [np.ravel(value[..., 0] if by_coordinates else value) for value in found]
    samples = _samples(values[0], values, rows.shape[0], by_coordinates)
    if samples is None or indices.shape[0] % samples:
        return op
    keep_static(tensor, given)
    return replace(op, attrs=MappingProxyType({**op.attrs, SAMPLES: samples}))


def _samples(first: NDArray[Any], values: Sequence[NDArray[Any]], rows: int, by_coordinates: bool) -> int | None:
    """The number of samples that indices count, in their order; None if they do not.

    Args:
        first: the indices, or the first coordinates, for one value of all that a run decides.
        values: of them for several such values, which add alike to all.
        rows: how many there are in all, or of coordinates how many samples.
        by_coordinates: whether these are coordinates, which count samples and no rows.
    """
    of_each = int(np.argmax(first != first[0]))
    step = int(first[of_each] - first[0])
    if step <= 0 or first.size % of_each or any(np.ptp(value - first) for value in values):
        return None
    samples = first.size // of_each
    if samples * step != rows or (by_coordinates and (step != 1 or any(value[0] for value in values))):
        return None
    return samples if np.array_equal(first - first[0], np.arange(samples).repeat(of_each) * step) else None


def _filled(spec: TensorSpec, value: int) -> NDArray[Any]:
    return np.full(spec.shape, value).astype(tf.as_dtype(spec.dtype).as_numpy_dtype)


def _decided(tensor: TensorId, by_name: Mapping[str, Operator]) -> set[TensorId]:
    """What a run decides of an index tensor, behind operators of single elements; nothing if it is constant."""
    decided, pending, seen = set(), [tensor], {tensor}
    while pending:
        at = pending.pop()
        op = by_name[at.op]
        if not _is_of_elements(op, by_name):
            decided.add(at)
            continue
        pending += [x for x in op.inputs if x not in seen]
        seen.update(op.inputs)
    return decided


def _is_unknown(op: Operator) -> bool:
    """Tells whether nothing can stand for what an operator gives: for a variable, or for very many numbers."""
    return traits(op).is_variable or any(spec.elements > _MOST_INDICES for spec in op.outputs)


def _is_of_elements(op: Operator, by_name: Mapping[str, Operator]) -> bool:
    """Tells whether an operator is a constant, or makes each integer of one integer of each input, at most."""
    if not has_rule(op.type) or op.handles or op.body is not None or traits(op).is_input or traits(op).has_effect:
        return False
    inputs = [_spec(tensor, by_name) for tensor in op.inputs]
    if any(spec.is_differentiable for spec in (*inputs, *op.outputs)) or traits(op).indices:
        return False
    rule = rule_of(op, inputs)
    return not rule.reduced and not rule.internal


def _is_of_variable(tensor: TensorId, by_name: Mapping[str, Operator]) -> bool:
    """Tells whether rows are a variable's, whose gradient is rows, too."""
    op = by_name[tensor.op]
    while (traits(op).alias or traits(op).converts) and op.inputs:
        op = by_name[op.inputs[0].op]
    return traits(op).is_variable or bool(op.handles)


def _spec(tensor: TensorId, by_name: Mapping[str, Operator]) -> TensorSpec:
    return by_name[tensor.op].outputs[tensor.index]
