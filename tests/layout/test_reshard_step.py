"""Steps: what they do to a layout, what they send, and how they are written down."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tensoropt.errors import LayoutError
from tensoropt.layout import Layout, Mesh, Step, StepKind

pytestmark = pytest.mark.pure

MESH = Mesh((2, 2, 2))
STEPS = [
    (Step(StepKind.ALL_GATHER, (1,), 0), "{0,1}{}", "{0}{}"),
    (Step(StepKind.ALL_GATHER, (0, 1), 0), "{0,1}{}", "{}{}"),
    (Step(StepKind.SLICE, (1, 2), 1), "{0}{}", "{0}{1,2}"),
    (Step(StepKind.ALL_TO_ALL, (1,), 0, 1), "{0,1}{2}", "{0}{2,1}"),
    (Step(StepKind.ALL_REDUCE, (0,)), "{}{} partial{0,2}", "{}{} partial{2}"),
    (Step(StepKind.REDUCE_SCATTER, (0,), 1), "{}{1} partial{0,2}", "{}{1,0} partial{2}"),
    (Step(StepKind.TO_PARTIAL, (0,)), "{}{1} partial{2}", "{}{1} partial{0,2}"),
    (Step(StepKind.PERMUTE, target=Layout(((1,), ()))), "{0}{}", "{1}{}"),
]


@pytest.mark.parametrize(("step", "before", "after"), STEPS, ids=lambda value: str(value))
def test_apply_gives_the_layout_afterwards(step: Step, before: str, after: str) -> None:
    assert str(step.apply(Layout.parse(before))) == after


@pytest.mark.parametrize("step", [step for step, _, _ in STEPS], ids=str)
def test_json_round_trip(step: Step) -> None:
    assert Step.from_json(json.loads(json.dumps(step.to_json()))) == step


@pytest.mark.parametrize(
    ("step", "layout"),
    [
        (Step(StepKind.ALL_GATHER, (0,), 0), "{0,1}{}"),  # not the minor axis
        (Step(StepKind.ALL_GATHER, (0,), 1), "{0}{}"),
        (Step(StepKind.ALL_TO_ALL, (2,), 0, 1), "{0}{}"),
        (Step(StepKind.SLICE, (0,), 1), "{0}{}"),
        (Step(StepKind.SLICE, (0,), 1), "{}{} partial{0}"),
        (Step(StepKind.ALL_REDUCE, (0,)), "{}{} partial{1}"),
        (Step(StepKind.REDUCE_SCATTER, (0,), 0), "{0}{}"),
        (Step(StepKind.TO_PARTIAL, (0,)), "{0}{}"),
        (Step(StepKind.SLICE, (0,), 2), "{}{}"),
        (Step(StepKind.ALL_GATHER, (0,), 2), "{0}{}"),
    ],
    ids=str,
)
def test_a_step_starts_only_where_it_can(step: Step, layout: str) -> None:
    with pytest.raises(LayoutError, match="cannot start from layout"):
        step.apply(Layout.parse(layout))


@pytest.mark.parametrize(
    "arguments",
    [
        (StepKind.ALL_GATHER, (0,)),
        (StepKind.SLICE, (), 0),
        (StepKind.ALL_TO_ALL, (0,), 1),
        (StepKind.ALL_TO_ALL, (0,), 1, 1),
        (StepKind.ALL_REDUCE, (0,), 1),
        (StepKind.PERMUTE,),
        (StepKind.PERMUTE, (0,), None, None, Layout(((0,),))),
        (StepKind.REDUCE_SCATTER, (0,), 0, 1),
    ],
    ids=str,
)
def test_a_step_has_what_its_kind_needs(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(LayoutError, match=rf"Step {arguments[0].value}: needs .* got "):
        Step(*arguments)


def test_a_permutation_moves_every_piece_to_who_needs_it() -> None:
    step = Step(StepKind.PERMUTE, target=Layout(((1,), ())))
    source = Layout(((0,), ()))
    sources = step.permutation(source, MESH)
    assert sorted(sources) == list(range(8))
    for rank, giver in enumerate(sources):
        wanted = Layout(((1,), ())).offsets((8, 8), MESH, rank)
        assert source.offsets((8, 8), MESH, giver) == wanted
    # Whoever holds what it needs keeps it.
    assert [rank for rank, giver in enumerate(sources) if rank == giver] == [0, 1, 6, 7]


def test_only_a_permute_has_a_permutation() -> None:
    with pytest.raises(LayoutError, match="only a permute has a permutation"):
        Step(StepKind.ALL_REDUCE, (0,)).permutation(Layout(((),), (0,)), MESH)


def test_a_permute_to_other_pieces_is_refused() -> None:
    with pytest.raises(LayoutError, match=r"layout \{0\} does not hold the same pieces"):
        Step(StepKind.PERMUTE, target=Layout(((0, 1),))).permutation(Layout(((0,),)), MESH)


@pytest.mark.parametrize(
    ("step", "layout", "sent"),
    [
        (Step(StepKind.ALL_GATHER, (1,), 0), "{1}{}", 128),
        (Step(StepKind.ALL_GATHER, (0, 1), 0), "{0,1}{}", 192),
        (Step(StepKind.ALL_REDUCE, (0, 1)), "{}{} partial{0,1}", 384),
        (Step(StepKind.REDUCE_SCATTER, (0, 1), 0), "{}{} partial{0,1}", 192),
        (Step(StepKind.ALL_TO_ALL, (0,), 0, 1), "{0}{}", 64),
        (Step(StepKind.SLICE, (0,), 0), "{}{}", 0),
        (Step(StepKind.TO_PARTIAL, (0,)), "{}{}", 0),
    ],
    ids=str,
)
def test_bytes_sent_follow_the_engines_convention(step: Step, layout: str, sent: int) -> None:
    # 8x8 elements of 4 bytes: 256 bytes.
    assert step.bytes_sent(Layout.parse(layout), (8, 8), 4, MESH) == sent


def test_a_rank_that_keeps_its_piece_sends_nothing_in_a_permute() -> None:
    step = Step(StepKind.PERMUTE, target=Layout(((1,), ())))
    sent = [step.bytes_sent(Layout(((0,), ())), (8, 8), 4, MESH, rank) for rank in range(8)]
    assert sent == [0, 0, 128, 128, 128, 128, 0, 0]


@pytest.mark.parametrize(
    "data",
    [{}, {"kind": "shuffle", "axes": [0]}, {"kind": "slice", "axes": 3, "dim": 0}, {"kind": "permute", "target": 3}],
)
def test_json_that_is_no_step_is_refused(data: dict[str, Any]) -> None:
    with pytest.raises(LayoutError, match="not a reshard step"):
        Step.from_json(data)
