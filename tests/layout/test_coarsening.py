"""Which patterns of states a factor mesh may have."""

from __future__ import annotations

import itertools

import pytest

from tensoropt.errors import LayoutError
from tensoropt.layout import Coarsening

pytestmark = pytest.mark.pure


def _blocks(pattern: tuple[int, ...]) -> list[tuple[int, int]]:
    """Each block's state and where it begins."""
    return [(state, axis) for axis, state in enumerate(pattern) if axis == 0 or pattern[axis - 1] != state]


@pytest.mark.parametrize(("axes", "once", "repeated"), [(0, 2, 1), (1, 3, 1), (2, 4, 2), (3, 5, 1)])
def test_a_small_mesh_has_every_pattern(axes: int, once: int, repeated: int) -> None:
    found = [tuple(row) for row in Coarsening().patterns(axes, once, repeated).tolist()]
    assert found == list(itertools.product(range(once + repeated), repeat=axes))


@pytest.mark.parametrize("borders", [(), (1,), (3,), (2, 4)])
@pytest.mark.parametrize("axes", [4, 5, 6])
def test_a_large_mesh_has_few_blocks_that_meet_at_the_border_of_a_level(axes: int, borders: tuple[int, ...]) -> None:
    coarsening = Coarsening(blocks=3, borders=tuple(border for border in borders if border < axes))
    expected = []
    for pattern in itertools.product(range(4), repeat=axes):
        blocks = _blocks(pattern)
        states = [state for state, _ in blocks]
        begins = {begin for _, begin in blocks}
        apart = any(states.count(state) > 1 for state in (0, 1))
        needed = min(2, len(coarsening.borders)) if axes > 4 else 0
        if len(blocks) == 3 and len(begins & {*coarsening.borders}) < needed:
            continue
        if len(blocks) <= 3 and not apart:
            expected.append(pattern)
    assert [tuple(row) for row in coarsening.patterns(axes, 2, 2).tolist()] == expected


def test_numbers_of_patterns_are_as_worked_out_by_hand() -> None:
    # Five states that stand once and one that may repeat, on 2 hosts x 8 and on 8 x 8 devices. With b blocks there are
    # 6, 5 * 4 + 2 * 5 = 30, and 5 * 4 * 3 + 3 * 5 * 4 + 5 = 125 sequences of states, in 1, 3 and 3 (1, 5 and 4) cuts.
    assert len(Coarsening(blocks=3, borders=(1,)).patterns(4, 5, 1)) == 6 + 3 * 30 + 3 * 125
    assert len(Coarsening(blocks=3, borders=(3,)).patterns(6, 5, 1)) == 6 + 5 * 30 + 4 * 125
    # By default two blocks.
    assert len(Coarsening(borders=(1,)).patterns(4, 5, 1)) == 6 + 3 * 30
    assert len(Coarsening(borders=(3,)).patterns(6, 5, 1)) == 6 + 5 * 30


def test_limits_that_leave_nothing_are_refused() -> None:
    with pytest.raises(LayoutError, match=r"Coarsening\(.*blocks=0.*\): .* blocks at least 1"):
        Coarsening(blocks=0)


def test_more_axes_than_can_be_planned_for_are_refused() -> None:
    with pytest.raises(LayoutError, match=r"Mesh of 13 axes: at most 12"):
        Coarsening().patterns(13, 1, 1)
