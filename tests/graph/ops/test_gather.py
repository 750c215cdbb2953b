from __future__ import annotations

import pytest

from tensoropt.graph.rule import OpRule
from tests.graph.ops.rule_support import made_rule

pytestmark = pytest.mark.pure


def _gather(
    params: tuple[int, ...],
    indices: tuple[int, ...],
    output: tuple[int, ...],
    axis: int,
    batch: int = 0,
    dtype: str = "float32",
) -> OpRule:
    return made_rule(
        "GatherV2", [params, indices], [output], static={2: axis}, attrs={"batch_dims": batch}, dtype=dtype
    )


def test_embedding_is_summed_over_its_vocabulary() -> None:
    rule = _gather((24, 6), (8, 3), (8, 3, 6), axis=0)
    assert rule.inputs == ((("v",), ("p1",)), (("i0",), ("i1",)))
    assert rule.outputs == ((("i0",), ("i1",), ("p1",)),)
    assert rule.split == ("v", "p1", "i0", "i1")
    assert rule.reduced == {"v"}
    assert rule.size("v") == 24


def test_gradient_of_rows_is_sparse_only_for_the_first_dimension() -> None:
    assert _gather((24, 6), (8,), (8, 6), axis=0).sparse_input == 0
    assert _gather((6, 24), (8,), (6, 8), axis=1).sparse_input is None
    assert _gather((24, 6), (8,), (8, 6), axis=-2).sparse_input is None
    assert _gather((24, 6), (8,), (8, 6), axis=0, dtype="int32").sparse_input is None


def test_shared_dimensions_are_split_together() -> None:
    rule = _gather((6, 12, 2), (6, 4), (6, 4, 2), axis=-2, batch=-1)
    assert rule.inputs == ((("b0",), ("v",), ("p2",)), (("b0",), ("i1",)))
    assert rule.outputs == ((("b0",), ("i1",), ("p2",)),)
    assert rule.split == ("b0", "v", "p2", "i1")


def test_truth_values_cannot_be_summed_over_the_vocabulary() -> None:
    assert _gather((24, 6), (8,), (8, 6), axis=0, dtype="bool").split == ("p1", "i0")


def test_lookup_in_a_variable_is_along_its_first_dimension() -> None:
    rule = made_rule("ResourceGather", [(24, 6), (8,)], [(8, 6)], attrs={"batch_dims": 0, "dtype": "float32"})
    assert rule.split == ("v", "p1", "i0")
    assert rule.sparse_input == 0


def test_dimensions_looked_up_by_points_stay_whole() -> None:
    rule = made_rule("GatherNd", [(4, 3, 12), (8, 6, 2)], [(8, 6, 12)])
    assert sorted(rule.split) == ["d2", "i0", "i1"]
    assert rule.sparse_input is None


def test_points_of_one_coordinate_give_rows() -> None:
    assert made_rule("ResourceGatherNd", [(4, 12), (8, 1)], [(8, 12)]).sparse_input == 0
