"""Configurations: which are legal, and the layouts that follow."""

from __future__ import annotations

import itertools

import pytest

from tensoropt.errors import LayoutError
from tensoropt.graph.registry import rule_of
from tensoropt.graph.rule import OpRule, contraction, elementwise
from tensoropt.graph.spec import TensorSpec
from tensoropt.layout import Coarsening, Layout, Mesh
from tensoropt.plan.configuration import (
    DEFER,
    Configuration,
    actions_from_json,
    at,
    check_configuration,
    configurations,
    from_patterns,
    is_legal,
    place_of,
    to_patterns,
)
from tests.plan.small_graphs import operator

pytestmark = pytest.mark.pure


def _matmul(m: int, k: int, n: int) -> OpRule:
    left, right, out = (TensorSpec(shape, "float32") for shape in ((m, k), (k, n), (m, n)))
    return contraction("m k, k n -> m n", (left, right), (out,))


def _fanout(*shape: int) -> OpRule:
    spec = TensorSpec(shape, "float32")
    return rule_of(operator("f", "Fanout", ("x",), shape), (spec,))


MESHES = [Mesh(()), *(Mesh(shape) for shape in [(2,), (3,), (2, 2), (2, 3), (3, 2), (2, 2, 2), (2, 2, 3)])]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize(
    "rule", [_matmul(12, 8, 6), _matmul(4, 5, 24), _fanout(12, 4)], ids=["matmul", "odd matmul", "fanout"]
)
def test_configurations_are_all_the_legal_ones(rule: OpRule, mesh: Mesh) -> None:
    actions: list[str | None] = [*rule.split, None, *([DEFER] if rule.defer_gradient else [])]
    expected = set()
    for choice in itertools.product(actions, repeat=len(mesh.axes)):
        sizes = {axis: mesh.extent([i for i, action in enumerate(choice) if action == axis]) for axis in rule.split}
        if all(rule.size(axis) % pieces == 0 for axis, pieces in sizes.items()):
            expected.add(Configuration(choice))
    found = configurations(rule, mesh)
    assert len(found) == len(set(found))
    assert set(found) == expected
    assert found[-1] == Configuration((None,) * len(mesh.axes))


def test_numbers_of_configurations_are_as_worked_out_by_hand() -> None:
    # 12x8x6 on (2, 2): each axis m, k, n or none, but not n twice, since 4 does not divide 6.
    assert [len(configurations(_matmul(12, 8, 6), mesh)) for mesh in MESHES[:5]] == [1, 4, 3, 15, 12]


def test_layouts_of_a_product_split_three_ways() -> None:
    rule = _matmul(8, 8, 8)
    configuration = Configuration(("m", "k", "n"))
    left, right = configuration.input_layouts(rule, 0), configuration.input_layouts(rule, 1)
    out = configuration.output_layouts(rule, 0)
    # m{0} k{1}, k{1} n{2} -> m{0} n{2}, partial over 1
    assert (left.value, right.value) == (Layout(((0,), (1,))), Layout(((1,), (2,))))
    assert (left.gradient, right.gradient) == (Layout(((0,), (1,)), (2,)), Layout(((1,), (2,)), (0,)))
    assert (out.value, out.gradient) == (Layout(((0,), (2,)), (1,)), Layout(((0,), (2,))))
    assert configuration.pieces(rule, Mesh((2, 2, 2))) == 8
    assert configuration.mesh_axes("k") == (1,)


def test_a_fan_out_may_pass_gradients_on_as_partial_sums() -> None:
    rule = _fanout(8, 8)
    configuration = Configuration(("d0", DEFER))
    layouts = configuration.output_layouts(rule, 0)
    assert (layouts.value, layouts.gradient) == (Layout(((0,), ())), Layout(((0,), ()), (1,)))
    arriving = configuration.input_layouts(rule, 0)
    assert (arriving.value, arriving.gradient) == (Layout(((0,), ())), Layout(((0,), ()), (1,)))
    assert configuration.pieces(rule, Mesh((2, 2))) == 2


def test_a_broadcast_input_is_whole_and_its_gradient_partial() -> None:
    row, whole = TensorSpec((1, 8), "float32"), TensorSpec((4, 8), "float32")
    rule = elementwise((whole, row), (whole,))
    layouts = Configuration(("d0", "d1")).input_layouts(rule, 1)
    assert (layouts.value, layouts.gradient) == (Layout(((), (1,))), Layout(((), (1,)), (0,)))


def test_text_and_json_name_every_axis() -> None:
    configuration = Configuration(("m", None, DEFER))
    assert str(configuration) == "m,*,~"
    assert str(Configuration(())) == "-"
    assert actions_from_json(configuration.to_json()) == configuration


def test_another_number_of_actions_is_refused() -> None:
    assert not is_legal(Configuration(("m",)), _matmul(4, 4, 4), Mesh((2, 2)))
    with pytest.raises(LayoutError, match=r"op: configuration m has 1 actions, Mesh\(2x2\) has 2 axes"):
        check_configuration("op", Configuration(("m",)), _matmul(4, 4, 4), Mesh((2, 2)))


@pytest.mark.parametrize("action", ["d7", DEFER])
def test_an_axis_that_may_not_be_split_is_refused(action: str) -> None:
    assert not is_legal(Configuration((action,)), _matmul(4, 4, 4), Mesh((2,)))
    with pytest.raises(LayoutError, match=rf"mesh axis 0 splits '{action}', which is not one .* \['m', 'k', 'n'\]"):
        check_configuration("op", Configuration((action,)), _matmul(4, 4, 4), Mesh((2,)))


def test_a_split_that_does_not_divide_is_refused_with_its_numbers() -> None:
    assert not is_legal(Configuration(("k", "k")), _matmul(4, 10, 4), Mesh((2, 2)))
    with pytest.raises(LayoutError, match=r"axis 'k' \(size 10\) .* \(0, 1\) of Mesh\(2x2\): 10 % 4 != 0"):
        check_configuration("op", Configuration(("k", "k")), _matmul(4, 10, 4), Mesh((2, 2)))


def test_legal_configurations_pass_the_check() -> None:
    rule = _matmul(12, 8, 6)
    for mesh in MESHES:
        for configuration in configurations(rule, mesh):
            check_configuration("op", configuration, rule, mesh)


def test_a_placed_configuration_runs_and_keeps_its_tensors_where_it_is() -> None:
    rule, mesh = _matmul(8, 8, 8), Mesh((2, 3))
    configuration = Configuration((at(1), None))
    assert is_legal(configuration, rule, mesh)
    check_configuration("op", configuration, rule, mesh)
    assert configuration.at == ((0, 1),)
    assert configuration.devices(mesh) == (3, 4, 5)
    assert Configuration(("m", None)).devices(mesh) == (0, 1, 2, 3, 4, 5)
    assert configuration.pieces(rule, mesh) == 1
    placed = Configuration(("k", at(2)))
    layouts = placed.input_layouts(rule, 0), placed.input_layouts(rule, 1), placed.output_layouts(rule, 0)
    assert [str(one.value) for one in layouts] == ["{}{0} at{1=2}", "{0}{} at{1=2}", "{}{} partial{0} at{1=2}"]
    assert [str(one.gradient) for one in layouts] == ["{}{0} at{1=2}", "{0}{} at{1=2}", "{}{} at{1=2}"]
    assert str(placed) == "k,@2" and actions_from_json(placed.to_json()) == placed


def test_only_coordinates_of_the_axis_are_places() -> None:
    rule, mesh = _matmul(8, 8, 8), Mesh((2, 3))
    assert is_legal(Configuration((at(1), at(2))), rule, mesh)
    for wrong in (Configuration((at(2), None)), Configuration((None, "@")), Configuration((None, "@x"))):
        assert not is_legal(wrong, rule, mesh)
    with pytest.raises(
        LayoutError, match=r"op: is placed at coordinate 2 of mesh axis 0, which goes from 0 to 1 on Mesh"
    ):
        check_configuration("op", Configuration((at(2), None)), rule, mesh)
    with pytest.raises(LayoutError, match=r"mesh axis 1 splits '@x', which is not one of the axes"):
        check_configuration("op", Configuration((None, "@x")), rule, mesh)
    assert [place_of(action) for action in (at(11), "m", "@", "@x", None)] == [11, None, None, None, None]


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_with_placements_configurations_are_all_the_legal_ones_and_numbers_give_them_back(mesh: Mesh) -> None:
    rule, coarsening = _matmul(12, 8, 6), Coarsening(placed_blocks=2)
    actions: list[str | None] = ["m", "k", "n", None]
    every = itertools.product(*([*actions, *map(at, range(extent))] for extent in mesh.shape))
    expected = {choice for choice in map(Configuration, every) if is_legal(choice, rule, mesh)}
    found = configurations(rule, mesh, coarsening)
    assert len(found) == len(set(found)) and set(found) == expected
    assert found[-1] == Configuration((None,) * len(mesh.axes))
    assert from_patterns(rule, to_patterns(rule, mesh, found)) == found


def test_configurations_that_are_not_legal_have_no_numbers() -> None:
    with pytest.raises(LayoutError, match=r"Configurations: axis 'n' \(size 6\) cannot be split"):
        to_patterns(_matmul(12, 8, 6), Mesh((2, 2)), [Configuration(("n", "n"))])
