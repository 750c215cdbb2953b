"""Coarsenings: the coarser meshes that an operator may make of the factor mesh."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensoropt.errors import LayoutError
from tensoropt.layout.axis_state import at_state

__all__ = ["Coarsening"]

_MOST_AXES = 12  # every set of them is gone through


@dataclass(frozen=True, slots=True)
class Coarsening:
    """An operator's own mesh, and what is done along each of its axes (TensorOpt section 2.1).

    A *pattern* gives each axis of the factor mesh a state. Neighbouring axes of equal state are one *block*, an axis
    of the operator's own mesh. On a small factor mesh every pattern is allowed. On a larger one a pattern has few
    blocks, and a state stands in one block only, as in the paper, where a tensor map names one mesh axis per
    tensor dimension; replication and partial sums may stand in several. On a still larger one, patterns of three blocks
    and more have a block begin with each level of the cluster (of as many levels as they have blocks for), so that
    hosts and the devices in them are used for different things; patterns of one and two blocks may have any sizes.

    Operators that are *placed* run on a part of the mesh (FlexFlow section 4). On a small mesh any axes may place them.
    On a larger one they have one placed block, at one end of the mesh: the first axes (some hosts, a half or a quarter
    of the devices, one device) or the last ones (the same devices of each host); few blocks lie beside it.

    Attributes:
        free_up_to_axes: up to this many mesh axes every pattern is allowed.
        blocks: the most blocks on a larger mesh.
        any_sizes_up_to_axes: up to this many mesh axes blocks may have any sizes.
        borders: where the axes of another level of the cluster begin, ascending.
        placed_blocks: the most blocks of a placed operator's mesh on a larger mesh, the placed one included; 0: no
            operator is placed.

    Example:
        >>> Coarsening().patterns(2, 1, 1).tolist()
        [[0, 0], [0, 1], [1, 0], [1, 1]]
    """

    free_up_to_axes: int = 3
    blocks: int = 2
    any_sizes_up_to_axes: int = 4
    borders: tuple[int, ...] = ()
    placed_blocks: int = 0

    def __post_init__(self) -> None:
        if self.free_up_to_axes < 0 or self.blocks < 1:
            raise LayoutError(
                f"{self}: free_up_to_axes must be at least 0 and blocks at least 1. With one block an operator does "
                "one thing with all devices."
            )
        if self.placed_blocks < 0:
            raise LayoutError(f"{self}: placed_blocks must be at least 0, which places nothing.")

    def patterns(self, axes: int, once: int, repeated: int) -> NDArray[np.int8]:
        """Every allowed pattern, in lexicographic order.

        Args:
            axes: how many axes the factor mesh has.
            once: states ``0 ... once - 1`` stand in one block on a larger mesh.
            repeated: states ``once ... once + repeated - 1`` may stand in several.

        Returns:
            ``(patterns, axes)``, not to be written to.
        """
        if axes > _MOST_AXES:
            raise LayoutError(f"Mesh of {axes} axes: at most {_MOST_AXES} can be planned for. Use fewer devices.")
        return _patterns(self, axes, once, repeated)

    def placed_patterns(self, mesh_shape: tuple[int, ...], once: int, repeated: int) -> NDArray[np.int8]:
        """Every allowed pattern in which at least one axis is at a place.

        Args:
            mesh_shape: of the factor mesh.
            once: as for :meth:`patterns`.
            repeated: as for :meth:`patterns`.

        Returns:
            ``(patterns, axes)``, not to be written to. An axis at coordinate ``i`` has the state
            :func:`tensoropt.layout.axis_state.at_state` of it, which is negative.
        """
        return _placed_patterns(self, mesh_shape, once, repeated)

    def between(self) -> Coarsening:
        """Where tensors may pass between two operators: through one block more, in any sizes.

        With that, hardly a path through more blocks is any cheaper.
        """
        placed_blocks = self.placed_blocks + 1 if self.placed_blocks else 0
        return dataclasses.replace(self, blocks=self.blocks + 1, borders=(), placed_blocks=placed_blocks)

    def to_json(self) -> dict[str, object]:
        """Returns the JSON object that a plan's notes record of this coarsening."""
        result = {**dataclasses.asdict(self), "borders": list(self.borders)}
        if not self.placed_blocks:
            del result["placed_blocks"]
        return result

    def block_sizes(self, axes: int, blocks: int) -> list[tuple[int, ...]]:
        """The ways to cut a larger factor mesh into ``blocks`` blocks: their numbers of axes."""
        every = list(itertools.combinations(range(1, axes), blocks - 1))
        if axes > self.any_sizes_up_to_axes and blocks > 2:
            wanted = min(blocks - 1, len(self.borders))
            every = [cuts for cuts in every if len({*cuts} & {*self.borders}) >= wanted]
        return [tuple(b - a for a, b in itertools.pairwise((0, *cuts, axes))) for cuts in every]


@functools.lru_cache(maxsize=256)
def _patterns(coarsening: Coarsening, axes: int, once: int, repeated: int) -> NDArray[np.int8]:
    states = range(once + repeated)
    rows: Sequence[Sequence[int]]
    if axes <= coarsening.free_up_to_axes:
        rows = list(itertools.product(states, repeat=axes))
    else:
        rows = sorted(
            row
            for blocks in range(1, min(coarsening.blocks, axes) + 1)
            for sizes in coarsening.block_sizes(axes, blocks)
            for row in _in_blocks(sizes, once, repeated)
        )
    return _array(rows, axes)


@functools.lru_cache(maxsize=256)
def _placed_patterns(coarsening: Coarsening, mesh_shape: tuple[int, ...], once: int, repeated: int) -> NDArray[np.int8]:
    axes = len(mesh_shape)
    if axes > _MOST_AXES:
        raise LayoutError(f"Mesh of {axes} axes: at most {_MOST_AXES} can be planned for. Use fewer devices.")
    places = [[at_state(place) for place in range(extent)] for extent in mesh_shape]
    rows: list[list[int]] = []
    if not coarsening.placed_blocks:
        pass
    elif axes <= coarsening.free_up_to_axes:
        states = range(once + repeated)
        every = itertools.product(*([*states, *at] for at in places))
        rows = [list(row) for row in every if any(state < 0 for state in row)]
    else:
        for placed in range(axes, 0, -1):
            beside = [
                row
                for blocks in range(min(coarsening.placed_blocks - 1, axes - placed) + 1)
                if (blocks > 0) == (placed < axes)
                for sizes in _cuts(axes - placed, blocks)
                for row in _in_blocks(sizes, once, repeated)
            ]
            first, last = itertools.product(*places[:placed]), itertools.product(*places[axes - placed :])
            rows += [[*at, *row] for at in first for row in beside]
            if placed < axes:
                rows += [[*row, *at] for at in last for row in beside]
    return _array(rows, axes)


def _in_blocks(sizes: Sequence[int], once: int, repeated: int) -> list[list[int]]:
    """The patterns with blocks of these sizes."""
    return [
        [state for state, size in zip(choice, sizes, strict=True) for _ in range(size)]
        for choice in itertools.product(range(once + repeated), repeat=len(sizes))
        if all(one != other for one, other in itertools.pairwise(choice))
        and all(choice.count(state) == 1 for state in choice if state < once)
    ]


def _cuts(axes: int, blocks: int) -> list[tuple[int, ...]]:
    """The ways to cut axes into blocks: their numbers of axes."""
    if not blocks:
        return [()]
    cuts = itertools.combinations(range(1, axes), blocks - 1)
    return [tuple(b - a for a, b in itertools.pairwise((0, *cut, axes))) for cut in cuts]


def _array(rows: Sequence[Sequence[int]], axes: int) -> NDArray[np.int8]:
    result = np.array(rows, dtype=np.int8).reshape(len(rows), axes)
    result.flags.writeable = False
    return result
