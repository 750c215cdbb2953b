"""Lookups in which each sample looks up in its own rows are split by samples."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.gather import SAMPLES
from tensoropt.graph.sample import Sample, floats, integers
from tensoropt.layout import Mesh
from tensoropt.measure.probe_batch import measure_batch
from tensoropt.measure.probes import OperatorProbe
from tensoropt.plan.configuration import Configuration
from tests.op_harness import SampleGraph, check_graph

pytestmark = pytest.mark.tf


class _BySample(SampleGraph):
    """A lookup with the mark, by indices that do as the mark says."""

    def __init__(self, sample: Sample, samples: int) -> None:
        self._samples = samples
        super().__init__(sample)

    def _imported(self, op: Operator) -> Operator:
        return replace(op, attrs=MappingProxyType({**op.attrs, SAMPLES: self._samples}))

    def _operand(self, operand: Any, position: int) -> Any:
        tensor = super()._operand(operand, position)
        if position == 1:
            by_coordinates = self.sample.type == "GatherNd"
            places = self._feeds[tensor][..., :1] if by_coordinates else self._feeds[tensor]
            numbers = np.arange(self._samples).repeat(places.size // self._samples).reshape(places.shape)
            rows = self.sample.operands[0].shape[0]
            places[...] = numbers if by_coordinates else numbers * (rows // self._samples) + places
        return tensor


_ROWS = Sample("GatherV2", (floats(24, 3), integers(12, high=2), 0))
_COORDINATES = Sample("GatherNd", (floats(4, 3, 5), integers(4, 2, high=3)))


@pytest.mark.parametrize(
    ("sample", "samples"),
    [
        (Sample("GatherV2", (floats(24, 3), integers(12, high=2), 0)), 12),
        (Sample("GatherV2", (floats(24, 3), integers(24, high=4, dtype="int64"), 0)), 6),
        (Sample("GatherV2", (floats(24, 2, 4), integers(8, 3, high=3), 0)), 8),
        (Sample("GatherV2", (integers(12, high=99), integers(12, high=2), 0)), 6),
        (Sample("GatherNd", (floats(12, 5, 4), integers(12, 2, high=5))), 12),
        (Sample("GatherNd", (floats(8, 3, 2, 4), integers(8, 6, 3, high=2))), 8),
        (Sample("GatherNd", (floats(6, 5), integers(12, 2, high=5, dtype="int64"))), 6),
    ],
)
def test_samples_and_what_is_not_looked_up_in_are_split(sample: Sample, samples: int) -> None:
    built = _BySample(sample, samples)
    assert "b" in built.rule.split and not built.rule.reduced
    report = check_graph(built)
    assert report.splits and not report.failures, "\n".join(report.failures[:8])


@pytest.mark.parametrize("sample", [_ROWS, _COORDINATES], ids=["rows", "coordinates"])
def test_what_is_made_up_to_measure_is_of_a_devices_own_samples(sample: Sample) -> None:
    built = _BySample(sample, 4)
    specs, split = tuple(built.input_specs), Configuration(("b",))
    for rank in (0, 1):
        probe = OperatorProbe(built.op, built.rule, specs, split, Mesh((2,)), rank, built.wanted, (0,))
        assert not measure_batch([probe], turn=nullcontext, spread=lambda mine: mine, runs=1).failures
