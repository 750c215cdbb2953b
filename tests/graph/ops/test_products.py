"""What products cost and which of their axes stay whole."""

from __future__ import annotations

from typing import Any

import pytest

from tensoropt.errors import OpError
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import rule_of
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorSpec

pytestmark = pytest.mark.pure

PLAIN = {"strides": [1, 1, 1, 1], "padding": "VALID"}


def rule(op_type: str, shapes: list[tuple[int, ...]], output: tuple[int, ...], **attrs: Any) -> OpRule:
    op = Operator("op", op_type, (), (TensorSpec(output, "float32"),), attrs)
    return rule_of(op, [TensorSpec(shape, "float32") for shape in shapes])


def test_einsum_without_an_output_is_refused() -> None:
    with pytest.raises(OpError, match="equation 'ab,bc' is not of the form 'ab,bc->ac' for 2 inputs"):
        rule("Einsum", [(2, 3), (3, 4)], (2, 4), equation="ab,bc")


def test_einsum_does_not_split_a_diagonal() -> None:
    made = rule("Einsum", [(4, 4, 6)], (4, 6), equation="iik->ik")
    assert made.split == ("k",)


def test_einsum_broadcasts_dimensions_under_an_ellipsis() -> None:
    made = rule("Einsum", [(4, 1, 3, 2), (6, 2, 3)], (4, 6, 3, 3), equation="...ij,...jk->...ik")
    assert made.inputs == ((("...0",), (), ("i",), ("j",)), (("...1",), ("j",), ("k",)))
    assert made.reduced == {"j"}
    assert made.flops == 2 * 4 * 6 * 3 * 2 * 3


def test_matrix_product_costs_two_operations_a_point() -> None:
    made = rule("MatMul", [(8, 6), (6, 4)], (8, 4), transpose_a=False, transpose_b=False)
    assert (made.flops, made.backward_flops) == (2 * 8 * 6 * 4, 4 * 8 * 6 * 4)


@pytest.mark.parametrize(
    ("op_type", "shapes", "output", "flops"),
    [
        ("Conv2D", [(4, 9, 9, 6), (3, 3, 6, 8)], (4, 7, 7, 8), 2 * 4 * 7 * 7 * 3 * 3 * 6 * 8),
        # Three groups.
        ("Conv2D", [(4, 9, 9, 6), (3, 3, 2, 12)], (4, 7, 7, 12), 2 * 4 * 7 * 7 * 3 * 3 * 2 * 12),
        ("DepthwiseConv2dNative", [(4, 9, 9, 6), (3, 3, 6, 2)], (4, 7, 7, 12), 2 * 4 * 7 * 7 * 3 * 3 * 6 * 2),
        ("Conv2DBackpropInput", [(3, 3, 8, 6), (4, 7, 7, 6)], (4, 9, 9, 8), 2 * 4 * 7 * 7 * 3 * 3 * 6 * 8),
    ],
)
def test_convolution_costs_its_filter_at_every_point(
    op_type: str, shapes: list[tuple[int, ...]], output: tuple[int, ...], flops: int
) -> None:
    made = rule(op_type, shapes, output, data_format="NHWC", **PLAIN)
    assert (made.flops, made.backward_flops) == (flops, 2 * flops)


def test_grouped_convolution_splits_whole_groups_only() -> None:
    made = rule("Conv2D", [(4, 6, 9, 9), (3, 3, 2, 12)], (4, 12, 7, 7), data_format="NCHW", **PLAIN)
    assert made.split == ("n", "g", "height", "width")
    assert made.size("g") == 3
