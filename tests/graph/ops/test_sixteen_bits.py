"""Parts of sums of 16-bit floats add up to what the op gives on float32: no part is rounded to 16 bits."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensoropt.graph.sample import Operand, Sample
from tensoropt.graph.spec import sum_dtype
from tensoropt.layout import Layout, Mesh
from tensoropt.plan.configuration import configurations
from tests.op_harness import Part, SampleGraph, lowered_types, samples_of

pytestmark = pytest.mark.tf

MESH = Mesh((2,))
# Of the largest value in the tensor: a part that is rounded to bfloat16 is off by up to 4e-3, to float16 by 5e-4.
TOLERANCE = 2e-6
SAMPLES = 2
# The check is about these at least.
SUMMING = ("MatMul", "BatchMatMulV2", "Einsum", "Conv2D", "BiasAdd", "Mul", "Sum", "Mean", "L2Loss", "GatherV2")


@pytest.mark.parametrize("op_type", lowered_types())
def test_parts_of_16_bit_sums_are_float32(op_type: str) -> None:
    dtype = ("bfloat16", "float16")[len(op_type) % 2]
    problems = []
    summed = False
    for sample in samples_of(op_type)[:SAMPLES]:
        narrow = _retyped(sample, dtype)
        if narrow is not None and any(True for _ in _summed(narrow)):
            summed = True
            problems += list(_problems(narrow, sample))
    assert not problems, "\n".join(problems[:8])
    assert summed or op_type not in SUMMING


def _retyped(sample: Sample, dtype: str) -> SampleGraph | None:
    """The sample on 16-bit floats; None where it has no floats, or TensorFlow has no such op or kernel."""

    def operand(one: Any) -> Any:
        if isinstance(one, list):
            return [operand(each) for each in one]
        return replace(one, dtype=dtype) if isinstance(one, Operand) and one.dtype == "float32" else one

    operands = tuple(map(operand, sample.operands))
    if operands == sample.operands:
        return None
    attrs = {key: dtype if value == "float32" else value for key, value in sample.attrs.items()}
    try:
        built = SampleGraph(Sample(sample.type, operands, attrs))
        built.run([])
    except (TypeError, ValueError, tf.errors.OpError):
        return None
    return None if built._variables else built  # the float32 op could not be given their values


def _summed(built: SampleGraph) -> Iterator[tuple[Any, str, int, Layout]]:
    """The configurations, outputs and places of gradients of which devices make parts of 16-bit sums."""
    for configuration in configurations(built.rule, MESH):
        for index, spec in enumerate(built.op.outputs):
            layout = configuration.output_layouts(built.rule, index).value
            if layout.partial and sum_dtype(spec.dtype) != spec.dtype:
                yield configuration, "outputs", index, layout
        for place, index in enumerate(built.wanted if built._whole[1] is not None else ()):
            layout = configuration.input_layouts(built.rule, index).gradient
            dtype = built.input_specs[index].dtype
            # Rows of a gradient are not summed.
            if layout.partial and sum_dtype(dtype) != dtype and index != built.rule.sparse_input:
                yield configuration, "gradients", place, layout


def _problems(built: SampleGraph, sample: Sample) -> Iterator[str]:
    parts: dict[tuple[Any, int], Part] = {}
    quiet, talking = built.quiet([MESH]), built.talking([MESH])
    for part in built.run(talking, quiet)[1]:
        parts[part.configuration, part.rank] = part
    truth = _on_float32(built, sample)
    for configuration, kind, index, layout in _summed(built):
        what = f"{sample}, configuration {configuration}: {kind} {index}"
        expected = getattr(truth, kind)[index]
        found = [getattr(parts[configuration, rank], kind)[index] for rank in range(MESH.size)]
        if expected is None or found[0] is None:
            continue
        if any(part.dtype != np.float32 for part in found):
            yield f"{what}: parts are {found[0].dtype}"
            continue
        total = np.sum([part.astype(np.float64) for part in found], axis=0)
        whole = expected[layout.slices(expected.shape, MESH, 0)]
        error = float(np.max(np.abs(total - whole), initial=0.0))
        if error > TOLERANCE * max(1.0, float(np.max(np.abs(whole), initial=0.0))):
            yield f"{what}: off by {error:.3g}"


def _on_float32(built: SampleGraph, sample: Sample) -> Part:
    """The values of the whole op on the same numbers in float32."""
    wide = SampleGraph(sample)
    for mine, theirs in zip(wide._feeds, built._feeds.values(), strict=True):
        wide._feeds[mine] = theirs.astype(wide._feeds[mine].dtype)
    outputs, tensors = wide._whole[0], [wide.graph.get_tensor_by_name(str(tensor)) for tensor in wide.op.inputs]
    with wide.graph.as_default():
        wide.incoming = [None if x is None else x.astype(np.float32) for x in built.incoming]
        wide._whole = (outputs, wide._whole_gradients(outputs, tensors))
    return wide.run([])[0]
