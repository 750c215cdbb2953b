"""Declarations say of each op what TensorFlow's registered gradient of it reads, and how it makes it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensoropt.graph.registry import declaration, registered_types, traits
from tensoropt.graph.sample import Sample
from tests.op_harness import SampleGraph, lowered_types, samples_of

pytestmark = pytest.mark.tf

# What reads a tensor for its shape alone, beside what gives a shape.
_FOR_SHAPES = frozenset("BroadcastGradientArgs OnesLike ZerosLike".split())
# Lowered to other ops than themselves, with gradients of their own.
_OTHERWISE = frozenset("Const FusedBatchNorm FusedBatchNormV2 FusedBatchNormV3".split())

# Outputs that are gradients themselves: scripts hardly differentiate these, so what that reads is not counted as held.
_SLOPES = {"SoftmaxCrossEntropyWithLogits": 1, "SparseSoftmaxCrossEntropyWithLogits": 1}
_TYPES = [op_type for op_type in lowered_types() if op_type not in _OTHERWISE]


@dataclass(frozen=True)
class Gradient:
    """TensorFlow's gradients of a sample with respect to some of its inputs.

    Attributes:
        values: one for each input that wants one; None where TensorFlow has none.
        inputs: the positions of the inputs whose values it reads.
        outputs: and of the outputs.
        types: of the ops that make it.
    """

    values: tuple[Any, ...]
    inputs: frozenset[int]
    outputs: frozenset[int]
    types: frozenset[str]


def _gradient(sample: SampleGraph, wanted: Sequence[int] | None = None) -> Gradient | None:
    """Of the inputs at some positions, by default all that can have one; None if TensorFlow has no gradient."""
    graph = sample.graph
    with graph.as_default():
        outputs = graph.get_operation_by_name("sample").outputs
        inputs = [graph.get_tensor_by_name(str(tensor)) for tensor in sample.op.inputs]
        left_out = _SLOPES.get(sample.op.type)
        incoming = enumerate(zip(outputs, sample.incoming, strict=True))
        pairs = [(y, tf.constant(g)) for place, (y, g) in incoming if g is not None and place != left_out]
        positions = _differentiable(sample) if wanted is None else wanted
        first = len(graph.get_operations())
        try:
            xs = [inputs[position] for position in positions]
            found = tf.gradients([y for y, _ in pairs], xs, [g for _, g in pairs]) if pairs and xs else []
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
        if op not in backward or op.type in _FOR_SHAPES or traits(op).gives_shape:
            continue
        read |= {tensor.ref() for tensor in op.inputs}
        before = {tensor.op for tensor in op.inputs} - seen
        pending += before
        seen |= before

    def places(tensors: Sequence[Any]) -> frozenset[int]:
        return frozenset(place for place, x in enumerate(tensors) if x.ref() in read)

    return Gradient(tuple(found), places(inputs), places(outputs), frozenset(op.type for op in seen & backward))


def _differentiable(sample: SampleGraph) -> list[int]:
    inputs = [sample.graph.get_tensor_by_name(str(tensor)) for tensor in sample.op.inputs]
    is_wanted = (x.dtype.is_floating or x.dtype.is_complex or x.dtype == tf.resource for x in inputs)
    return [position for position, wants in enumerate(is_wanted) if wants]


def _built(op_type: str) -> Iterator[SampleGraph]:
    return map(SampleGraph, samples_of(op_type))


@pytest.mark.parametrize("op_type", _TYPES)
def test_what_is_saved_is_what_the_gradient_reads(op_type: str) -> None:
    for sample in _built(op_type):
        found = _gradient(sample)
        if found is not None:
            saved = frozenset(sample.rule.saved_inputs), frozenset(sample.rule.saved_outputs)
            assert saved == (found.inputs, found.outputs), sample.sample


@pytest.mark.parametrize("op_type", _TYPES)
def test_ops_are_multilinear_whose_gradients_read_the_other_inputs_only(op_type: str) -> None:
    for sample in _built(op_type):
        saved = set(sample.rule.saved_inputs)
        wanted = [position for position in _differentiable(sample) if position in saved]
        if len(wanted) < 2:
            continue
        alone = [_gradient(sample, [position]) for position in wanted]
        others = [None if found is None else found.inputs for found in alone]
        is_multilinear = all(read == saved - {position} for position, read in zip(wanted, others, strict=True))
        assert traits(sample.op).multilinear == (is_multilinear and not sample.rule.saved_outputs), sample.sample


_WITH_KERNELS = [t for t in registered_types() if declaration(t).traits.gradient_kernels]


def test_every_product_and_convolution_declares_its_gradients_kernels() -> None:
    known = {op_type: declaration(op_type).traits for op_type in registered_types()}
    assert {t for t, own in known.items() if own.is_product or own.is_convolution} <= set(_WITH_KERNELS)


@pytest.mark.parametrize("op_type", _WITH_KERNELS)
def test_the_kernels_of_gradients_are_tensorflows(op_type: str) -> None:
    tried = 0
    for sample in _built(op_type):
        for position, kernel in zip(
            _differentiable(sample), declaration(op_type).traits.gradient_kernels, strict=False
        ):
            found = _gradient(sample, [position])
            if found is not None and len(sample.inputs) > 1:
                assert kernel is None or kernel in found.types, (sample.sample, position)
                tried += 1
    assert tried


@pytest.mark.parametrize("op_type", [t for t in _TYPES if declaration(t).traits.passes_gradient])
def test_gradients_that_are_passed_on_are_the_outputs_but_for_their_sign(op_type: str) -> None:
    for sample in _built(op_type):
        found = _gradient(sample)
        if found is None:
            assert not _differentiable(sample)  # a sample of integers
            continue
        positions, incoming = _differentiable(sample), np.asarray(sample.incoming[0])
        alike = [
            value
            for position, value in zip(positions, found.values, strict=True)
            if sample.inputs[position].size == incoming.size
        ]
        with tf.compat.v1.Session(graph=sample.graph) as session:
            for value in session.run(alike, sample._feeds):
                np.testing.assert_array_equal(np.abs(value).reshape(-1), np.abs(incoming).reshape(-1))


@pytest.mark.parametrize("op_type", _TYPES)
def test_gradients_are_blocked_where_it_is_declared(op_type: str) -> None:
    if declaration(op_type).traits.blocks_gradient:
        assert all(_blocks(sample) for sample in samples_of(op_type))


def _blocks(sample: Sample) -> bool:
    try:
        return _gradient(SampleGraph(sample)) is None
    except LookupError as error:  # PreventGradient's, which says so
        return "explicitly disabled" in str(error)


@pytest.mark.parametrize("op_type", [t for t in _TYPES if declaration(t).traits.alias])
def test_an_alias_has_the_elements_of_its_input_in_order(op_type: str) -> None:
    for sample in _built(op_type):
        with tf.compat.v1.Session(graph=sample.graph) as session:
            made = session.run(list(sample._whole[0]), sample._feeds)
        for value, given in zip(made, sample.inputs, strict=True):
            np.testing.assert_array_equal(value.reshape(-1), given.reshape(-1))
