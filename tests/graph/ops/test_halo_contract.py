"""Every declared halo: with its rims, a piece of the image is all that the piece of the output depends on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from tensoropt.graph.halo import Halo
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Sample, floats, integers
from tests.op_harness import SampleGraph, lowered_types, samples_of

pytestmark = pytest.mark.tf

_FAR = 1e4


# Beside the samples of the registry, whose images are small.
MORE = [
    Sample("Conv2D", (floats(1, 12, 8, 2), floats(5, 3, 2, 1)), {"strides": [1, 1, 1, 1], "padding": "SAME"}),
    Sample("Conv2D", (floats(1, 12, 10, 2), floats(3, 4, 2, 1)), {"strides": [1, 1, 2, 1], "padding": "VALID"}),
    Sample("Conv2D", (floats(1, 12, 12, 2), floats(3, 3, 2, 1)), {"strides": [1, 2, 3, 1], "padding": "SAME"}),
    Sample(
        "Conv2D",
        (integers(1, 8, 12, 2, low=1), integers(3, 2, 2, 1, low=1)),
        {"strides": [1, 1, 1, 1], "padding": "SAME", "dilations": [1, 2, 3, 1]},
    ),
    Sample("AvgPool", (floats(1, 12, 8, 2),), {"ksize": [1, 3, 3, 1], "strides": [1, 1, 2, 1], "padding": "SAME"}),
    Sample("MaxPool", (floats(1, 8, 9, 2),), {"ksize": [1, 2, 3, 1], "strides": [1, 2, 3, 1], "padding": "VALID"}),
]


def _samples() -> list[Sample]:
    return [*(sample for op_type in lowered_types() for sample in samples_of(op_type) if _windowed(sample)), *MORE]


def _windowed(sample: Sample) -> bool:
    """Whether it is of an op whose window moves over an image; all other rules have no halos."""
    return sample.type.startswith(("Conv2D", "Conv3D", "Depthwise", "MaxPool", "AvgPool", "Pad", "Resize"))


def _whole(built: SampleGraph, image: np.ndarray, place: int) -> np.ndarray:
    """The unsplit op on another image, which is the operand at a place."""
    output = built._whole[0][0]
    feeds = dict(built._feeds)
    feeds[list(feeds)[place]] = image
    with tf.compat.v1.Session(graph=built.graph) as session:
        value: np.ndarray = session.run(output, feeds)
    return value


def _piece(dim: int, start: int, end: int) -> tuple[Any, ...]:
    return (*[slice(None)] * dim, slice(start, end))


def _pieces_of(halo: Halo) -> list[int]:
    return [count for count in range(2, halo.size_out + 1) if halo.fits(count)]


@pytest.mark.parametrize("sample", _samples(), ids=lambda sample: sample.type)
def test_a_piece_with_its_rims_is_all_that_is_read(sample: Sample) -> None:
    built = SampleGraph(sample)
    rule: OpRule = built.rule
    for halo in rule.halos:
        if not halo.is_splittable:
            assert halo.axis not in rule.split
            continue
        assert rule.inputs[halo.input][halo.dim] == (halo.axis,) == rule.outputs[0][halo.dim]
        assert built.input_specs[halo.input].shape[halo.dim] == halo.size_in
        assert built.op.outputs[0].shape[halo.dim] == halo.size_out
        image = built.inputs[halo.input]
        expected = _whole(built, image, halo.input)
        for pieces in _pieces_of(halo):
            read, made = halo.size_in // pieces, halo.size_out // pieces
            for number, (before, after) in enumerate(halo.rims(pieces)):
                start, end = number * read - before, (number + 1) * read + after
                kept = _piece(halo.dim, start, end)
                part = _piece(halo.dim, number * made, (number + 1) * made)
                spoilt = np.full(image.shape, _FAR, image.dtype)
                spoilt[kept] = image[kept]
                found = _whole(built, spoilt, halo.input)
                assert np.array_equal(found[part], expected[part]), f"{halo}, piece {number} of {pieces}: more is read"
                for edge in [start] * bool(before) + [end - 1] * bool(after):
                    spoilt = image.copy()
                    spoilt[_piece(halo.dim, edge, edge + 1)] = _FAR
                    found = _whole(built, spoilt, halo.input)
                    assert not np.array_equal(found[part], expected[part]), f"{halo}: row {edge} is not read"


def test_the_samples_have_halos_of_many_kinds() -> None:
    halos = [halo for sample in _samples() for halo in SampleGraph(sample).rule.halos]
    fitting = [(halo, pieces) for halo in halos for pieces in _pieces_of(halo)]
    assert len({halo.axis for halo, _ in fitting}) >= 2
    assert {halo.stride for halo, _ in fitting} >= {1, 2, 3}
    widths = {halo.widths(pieces) for halo, pieces in fitting}
    assert any(before for before, _ in widths) and any(after for _, after in widths)
