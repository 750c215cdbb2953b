"""Declarations say of each op what TensorFlow's registered gradient of it reads."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from tests.op_harness import SampleGraph, lowered_types, samples_of

pytestmark = pytest.mark.tf

# What reads a tensor for its shape alone.
_SHAPES = frozenset("BroadcastGradientArgs OnesLike Rank Shape ShapeN Size ZerosLike".split())
# Lowered to other ops than themselves, with gradients of their own.
_OTHERWISE = frozenset("Const FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3".split())


def _read_by_gradient(sample: SampleGraph) -> tuple[set[int], set[int]] | None:
    """The positions of the inputs and outputs whose values TensorFlow's gradient reads; None if it has no gradient."""
    graph = sample.graph
    with graph.as_default():
        outputs = graph.get_operation_by_name("sample").outputs
        inputs = [graph.get_tensor_by_name(str(tensor)) for tensor in sample.op.inputs]
        pairs = [(y, tf.constant(g)) for y, g in zip(outputs, sample.incoming, strict=True) if g is not None]
        wanted = [x for x in inputs if x.dtype.is_floating or x.dtype.is_complex or x.dtype == tf.resource]
        first = len(graph.get_operations())
        try:
            found = tf.gradients([y for y, _ in pairs], wanted, [g for _, g in pairs]) if pairs and wanted else []
        except LookupError:
            return None
        backward = set(graph.get_operations()[first:])
    if not any(gradient is not None for gradient in found):
        return None
    parts: list[Any] = []
    for gradient in found:
        is_rows = isinstance(gradient, tf.IndexedSlices)
        parts += [gradient.values, gradient.indices] if is_rows else [] if gradient is None else [gradient]
    read: set[Any] = set()
    pending = [part.op for part in parts]
    seen = set(pending)
    while pending:
        op = pending.pop()
        if op not in backward or op.type in _SHAPES:
            continue
        read |= {tensor.ref() for tensor in op.inputs}
        before = {tensor.op for tensor in op.inputs} - seen
        pending += before
        seen |= before
    places = [{place for place, x in enumerate(tensors) if x.ref() in read} for tensors in (inputs, outputs)]
    return places[0], places[1]


@pytest.mark.parametrize("op_type", [op_type for op_type in lowered_types() if op_type not in _OTHERWISE])
def test_what_is_saved_is_what_the_gradient_reads(op_type: str) -> None:
    sample = SampleGraph(samples_of(op_type)[0])
    read = _read_by_gradient(sample)
    if read is not None:
        assert (set(sample.rule.saved_inputs), set(sample.rule.saved_outputs)) == read
