"""Measured times of operators: their keys, their curves, and how they are kept."""

from __future__ import annotations

import dataclasses
import json
from types import MappingProxyType

import numpy as np
import pytest

from tensoropt.cost import Curve, OpProfile, OpTime, collective_key, profile_key
from tensoropt.errors import ClusterError
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import rule_of
from tensoropt.graph.spec import TensorSpec
from tensoropt.layout import Mesh
from tensoropt.plan.configuration import Configuration
from tests.plan.small_graphs import operator

pytestmark = pytest.mark.pure

MESH = Mesh((2, 2))
PRODUCT = operator("y", "MatMul", ("x", "w"), (8, 16), {"transpose_a": False, "transpose_b": False})
INPUTS = (TensorSpec((8, 4), "float32"), TensorSpec((4, 16), "float32"))
TIMES = {
    "MatMul:1": OpTime("MatMul", 1e-3, 3e-3, 2e-3),
    "MatMul:2": OpTime("MatMul", 1e-3, 1e-3, 2e-3),
    "Softmax:1": OpTime("Softmax", 5e-3, 4e-3, 1e-3, (8, 16), (32,), (64, 0, 128), "Softmax:whole"),
}
SUM = collective_key("all_reduce", (0,))
PROFILE = OpProfile(TIMES, {"sum": Curve((4, 8), (1e-6, 3e-6))}, 1e-4, frozenset({"Odd:1"}), {SUM: 1.5})


def _key(
    op: Operator = PRODUCT,
    inputs: tuple[TensorSpec, ...] = INPUTS,
    actions: tuple[str | None, ...] = (None, None),
    wanted: tuple[int, ...] = (0, 1),
) -> str:
    return profile_key(op, rule_of(op, inputs), inputs, Configuration(actions), MESH, wanted, (0,))


def test_the_same_pieces_on_other_mesh_axes_have_one_key() -> None:
    assert _key(actions=("m", None)) == _key(actions=(None, "m"))
    assert _key(actions=("m", "n")) == _key(actions=("n", "m"))
    assert len({_key(actions=actions) for actions in ((None, None), ("m", None), ("n", None), ("k", None))}) == 4


def test_a_whole_operator_of_the_same_local_shapes_has_the_same_key() -> None:
    smaller = dataclasses.replace(PRODUCT, name="other", outputs=(TensorSpec((4, 16), "float32"),))
    inputs = (TensorSpec((4, 4), "float32"), INPUTS[1])
    assert _key(smaller, inputs) == _key(actions=("m", None))


def test_attributes_dtypes_and_gradients_are_told_apart_and_seeds_are_not() -> None:
    other = dataclasses.replace(PRODUCT, attrs=MappingProxyType({"transpose_a": False, "transpose_b": True}))
    wide = dataclasses.replace(PRODUCT, outputs=(TensorSpec((8, 16), "float64"),))
    doubles = tuple(TensorSpec(spec.shape, "float64") for spec in INPUTS)
    transposed = (INPUTS[0], TensorSpec((16, 4), "float32"))
    assert len({_key(), _key(other, transposed), _key(wide, doubles), _key(wanted=(1,)), _key(wanted=())}) == 5
    random = [
        operator("r", "RandomUniform", (), (8,), {"seed": seed, "seed2": 3, "dtype": "float32"}, static={0: (8,)})
        for seed in (1, 2)
    ]
    assert _key(random[0], ()) == _key(random[1], ())


def test_static_operands_are_told_apart() -> None:
    arrays = [np.array([2, 16]), np.array([16, 2])]
    reshapes = [operator("r", "Reshape", ("x",), tuple(a.tolist()), static={1: a}) for a in arrays]
    assert len({_key(op, (TensorSpec((32,), "float32"),)) for op in reshapes}) == 2


def test_a_key_names_the_op_type() -> None:
    assert _key().startswith("MatMul:")


def test_curves_are_linear_between_sizes_and_as_fast_beyond_the_largest() -> None:
    curve = Curve((100, 200), (1.0, 3.0))
    assert curve.at(np.array([0.0, 100, 150, 200, 400])).tolist() == [1.0, 1.0, 2.0, 3.0, 6.0]


def test_ratios_are_medians_of_an_operator_of_a_type_and_of_all() -> None:
    assert PROFILE.ratios() == {"MatMul": 1.5, "Softmax": 9.0, "Softmax:whole": 9.0, "": 2.0}
    assert OpProfile().ratios() == {}


def test_times_are_scaled_by_operator_curve_and_collective() -> None:
    other = collective_key("all_gather", (0, 1))
    found = PROFILE.scaled({"Softmax:whole": 2.0, "sum": 3.0, SUM: 2.0, other: 0.5})
    assert (found.times["Softmax:1"].forward_s, found.times["Softmax:1"].backward_s) == (1e-2, 8e-3)
    assert found.times["Softmax:1"].scratch_bytes == (64, 0, 128) and found.times["MatMul:1"] == TIMES["MatMul:1"]
    assert found.curves["sum"].seconds == pytest.approx((3e-6, 9e-6)) and found.iteration_s == 1e-4
    assert found.collectives == {SUM: 3.0, other: 0.5}


@pytest.mark.parametrize("factor", [0.0, -1.0, float("nan"), float("inf")])
def test_impossible_factors_are_refused(factor: float) -> None:
    with pytest.raises(ClusterError, match="Profile of collectives: factors must be finite and above 0"):
        OpProfile(collectives={SUM: factor})


def test_a_profile_survives_json() -> None:
    assert OpProfile.from_json(json.loads(json.dumps(PROFILE.to_json()))) == PROFILE


def test_more_measurements_are_added_and_newer_ones_win() -> None:
    newer = OpProfile(
        {"MatMul:1": OpTime("MatMul", 9.0, 9.0, 1.0)}, {"mask": Curve((1,), (1.0,))}, 0.0, frozenset({"Odd:2"})
    )
    both = PROFILE.with_more(newer)
    assert both.times["MatMul:1"].forward_s == 9.0 and both.times["MatMul:2"] == TIMES["MatMul:2"]
    assert sorted(both.curves) == ["mask", "sum"] and both.iteration_s == 1e-4
    assert both.refused == {"Odd:1", "Odd:2"}


@pytest.mark.parametrize("seconds", [-1.0, float("nan"), float("inf")])
def test_impossible_times_are_refused(seconds: float) -> None:
    with pytest.raises(ClusterError, match="Profile of MatMul: times and bytes must be finite and not negative"):
        OpTime("MatMul", seconds, 0.0, 0.0)


@pytest.mark.parametrize(
    ("sizes", "seconds"), [((), ()), ((1, 2), (1.0,)), ((2, 1), (1.0, 1.0)), ((0,), (1.0,)), ((1,), (0.0,))]
)
def test_malformed_curves_are_refused(sizes: tuple[int, ...], seconds: tuple[float, ...]) -> None:
    with pytest.raises(ClusterError, match="Profile curve: needs ascending sizes above 0"):
        Curve(sizes, seconds)


@pytest.mark.parametrize("data", [None, [], {}, {"schema": 99}])
def test_another_schema_is_refused(data: object) -> None:
    with pytest.raises(ClusterError, match="Profile JSON: schema must be 7, got"):
        OpProfile.from_json(data)


@pytest.mark.parametrize(
    "change",
    [
        {"times": None},
        {"times": {"a": [1]}},
        {"curves": {"sum": 3}},
        {"iteration_s": "soon"},
        {"times": 3},
        {"refused": 1},
        {"collectives": {SUM: "twice"}},
    ],
)
def test_malformed_fields_are_refused(change: dict[str, object]) -> None:
    with pytest.raises(ClusterError, match="Profile JSON: a field is missing or malformed"):
        OpProfile.from_json({**PROFILE.to_json(), **change})
