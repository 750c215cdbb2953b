"""Halos: how far windows reach beyond a piece, worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tensoropt.errors import LayoutError
from tensoropt.graph.halo import Halo
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import rule_of
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorSpec
from tensoropt.layout import Mesh
from tensoropt.plan.configuration import Configuration, check_configuration, configurations, is_legal

pytestmark = pytest.mark.pure


def _rule(op_type: str, image: tuple[int, ...], made: tuple[int, ...], *more: tuple[int, ...], **attrs: Any) -> OpRule:
    op = Operator("op", op_type, (), (TensorSpec(made, "float32"),), {"data_format": "NHWC", **attrs})
    return rule_of(op, [TensorSpec(shape, "float32") for shape in (image, *more)])


def _conv(image: int, made: int, kernel: int, stride: int = 1, dilation: int = 1, padding: str = "SAME") -> Halo:
    rule = _rule(
        "Conv2D",
        (4, image, 1, 3),
        (4, made, 1, 8),
        (kernel, 1, 3, 8),
        strides=[1, stride, 1, 1],
        dilations=[1, dilation, 1, 1],
        padding=padding,
    )
    (axis,) = rule.halo_axes
    return next(halo for halo in rule.halos if halo.axis == axis)


@pytest.mark.parametrize(
    ("halo", "pieces", "rims"),
    [
        # 3 rows, one before and one after: the ends of the image have none.
        (_conv(8, 8, 3), 2, ((0, 1), (1, 0))),
        (_conv(8, 8, 3), 4, ((0, 1), (1, 1), (1, 1), (1, 0))),
        # 5 rows need two each way.
        (_conv(8, 8, 5), 2, ((0, 2), (2, 0))),
        # Two rows: TensorFlow pads the odd one at the end.
        (_conv(8, 8, 2), 2, ((0, 1), (0, 0))),
        # Stride 2, padded by (4 - 1) * 2 + 3 - 8 = 1, at the end: output 1 reads rows 2, 3, 4, output 2 rows 4, 5, 6.
        (_conv(8, 4, 3, stride=2), 2, ((0, 1), (0, 0))),
        # Stride 2 of windows of 2: no overlap.
        (_conv(8, 4, 2, stride=2), 2, ((0, 0), (0, 0))),
        # Windows of 3 with holes span 5.
        (_conv(8, 8, 3, dilation=2), 2, ((0, 2), (2, 0))),
        # Not padded: 6 of 8 rows. Outputs 0-2 read rows 0-4 of 0-3, outputs 3-5 rows 3-7 of 4-7.
        (_conv(8, 6, 3, padding="VALID"), 2, ((0, 1), (1, 0))),
        # 10 rows, 4 outputs of windows of 4 two apart: 0-1 read rows 0-5 of 0-4, 2-3 rows 4-9 of 5-9.
        (_conv(10, 4, 4, stride=2, padding="VALID"), 2, ((0, 1), (1, 0))),
        # A window of one row reads nothing beyond.
        (_conv(8, 8, 1), 8, ((0, 0),) * 8),
    ],
)
def test_rims_are_as_worked_out_by_hand(halo: Halo, pieces: int, rims: tuple[tuple[int, int], ...]) -> None:
    assert halo.rims(pieces) == rims
    assert halo.widths(pieces) == (max(before for before, _ in rims), max(after for _, after in rims))


def test_explicit_paddings_count_before_the_image() -> None:
    rule = _rule(
        "Conv2D",
        (2, 8, 8, 1),
        (2, 8, 8, 1),
        (3, 3, 1, 1),
        strides=[1, 1, 1, 1],
        padding="EXPLICIT",
        explicit_paddings=[0, 0, 2, 0, 0, 2, 0, 0],
    )
    height, width = rule.halos
    assert (height.padding, width.padding) == (2, 0)
    assert (height.rims(2), width.rims(2)) == (((0, 0), (2, 0)), ((0, 2), (0, 0)))


def test_a_rim_reaches_no_further_than_the_neighbour() -> None:
    halo = _conv(8, 8, 7)  # three rows each way
    assert halo.fits(2)
    assert not halo.fits(4)
    assert halo.why_not(4) == "a rim of 3 elements reaches beyond the neighbour's piece of 2"
    assert _conv(8, 6, 3, padding="VALID").why_not(4) == "the output has 6 elements, 6 % 4 != 0"
    assert _conv(9, 9, 3).why_not(2) == "the input has 9 elements, 9 % 2 != 0"


def test_samples_first_or_last_names_the_same_dimensions() -> None:
    attrs = {"strides": [1, 1, 1, 1], "padding": "SAME", "data_format": "NCHW"}
    rule = _rule("DepthwiseConv2dNative", (2, 3, 8, 6), (2, 3, 8, 6), (3, 5, 3, 1), **attrs)
    assert [(halo.axis, halo.dim, halo.window) for halo in rule.halos] == [("height", 2, 3), ("width", 3, 5)]


def test_pools_have_halos_unless_their_window_reaches_over_channels() -> None:
    attrs = {"ksize": [1, 3, 3, 1], "strides": [1, 2, 2, 1], "padding": "SAME"}
    rule = _rule("MaxPool", (2, 8, 8, 4), (2, 4, 4, 4), **attrs)
    assert [(halo.axis, halo.window, halo.stride) for halo in rule.halos] == [("height", 3, 2), ("width", 3, 2)]
    over = _rule("AvgPool", (2, 8, 8, 4), (2, 8, 8, 2), ksize=[1, 1, 1, 2], strides=[1, 1, 1, 2], padding="VALID")
    assert over.halos == ()


def test_a_halo_is_split_unless_the_rule_is_without() -> None:
    whole = _rule("Conv2D", (4, 8, 8, 3), (4, 8, 8, 6), (3, 3, 3, 6), strides=[1, 1, 1, 1], padding="SAME")
    rule = whole.without_halos()
    assert rule.split == ("n", "c", "f") and not rule.communicates_over
    assert whole.split == ("n", "c", "f", "height", "width")
    assert whole.communicates_over == whole.halo_axes == {"height", "width"}
    mesh = Mesh((2, 2))
    assert all(not {"height", "width"} & set(c.actions) for c in configurations(rule, mesh))
    split = Configuration(("height", "width"))
    assert split in configurations(whole, mesh) and is_legal(split, whole, mesh) and not is_legal(split, rule, mesh)
    layouts = split.input_layouts(whole, 0), split.input_layouts(whole, 1), split.output_layouts(whole, 0)
    assert [str(one.value) for one in layouts] == ["{}{0}{1}{}", "{}{}{}{}", "{}{0}{1}{}"]
    assert [str(one.gradient) for one in layouts] == ["{}{0}{1}{}", "{}{}{}{} partial{0,1}", "{}{0}{1}{}"]


def test_a_rim_whose_size_a_run_decides_is_not_sent() -> None:
    attrs = {"strides": [1, 1, 1, 1], "padding": "SAME"}
    rule = _rule("Conv2D", (0, 8, 8, 3), (0, 8, 8, 6), (3, 3, 3, 6), **attrs)
    assert rule.halos and not rule.halo_axes and rule.split == ("n", "c", "f")


def test_a_split_whose_rim_is_too_wide_is_refused_with_its_numbers() -> None:
    rule = _rule("Conv2D", (4, 8, 8, 3), (4, 8, 8, 6), (7, 7, 3, 6), strides=[1, 1, 1, 1], padding="SAME")
    mesh, split = Mesh((2, 2)), Configuration(("height", "height"))
    assert not is_legal(split, rule, mesh) and split not in configurations(rule, mesh)
    with pytest.raises(
        LayoutError, match=r"axis 'height' .* \(0, 1\) of Mesh\(2x2\): a rim of 3 elements reaches beyond"
    ):
        check_configuration("op", split, rule, mesh)
