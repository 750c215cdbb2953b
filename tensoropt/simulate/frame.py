"""Devices that some strategies tell apart, and the links between them; everything else is alike for all devices."""

from __future__ import annotations

from collections.abc import Sequence
from operator import contains
from typing import NamedTuple

import numpy as np

from tensoropt.simulate.simulation_state import SIGNATURE, DeviceClasses
from tensoropt.space.work import Ints, Signature

__all__ = ["Frame"]

Mesh = tuple[int, ...]
Levels = tuple[tuple[int, bool], ...]


class Frame(NamedTuple):
    """Classes of devices that do the same at the same time.

    Devices whose coordinates differ only along axes where no operator is placed do so whatever the strategy: exchanging
    them changes nothing. So one task stands for all of them, and times are the same to the last bit. Classes are
    numbered row-major over the *kept* axes.

    Attributes:
        kept: the axes that are told apart.
        shape: of the classes.
        devices: the classes, for compiled loops.
    """

    kept: tuple[int, ...]
    shape: tuple[int, ...]
    devices: DeviceClasses

    @classmethod
    def of(cls, mesh: Mesh, levels: Levels, kept: tuple[int, ...]) -> Frame:
        """The classes of a mesh and levels of links, as a `Network` has them; no signatures."""
        shape = tuple(mesh[axis] for axis in kept)
        coordinates = np.array(list(np.ndindex(*shape)), np.int64).reshape(int(np.prod(shape)), len(kept))
        classes, sets = len(coordinates), 1 << len(kept)
        radix = np.array([int(np.prod(shape[position + 1 :])) for position in range(len(kept))], np.int64)
        zeroed = np.zeros((sets, classes), np.int64)
        offsets: list[Ints] = []
        for axes in range(sets):
            inside = (axes >> np.arange(len(kept))) & 1
            zeroed[axes] = (coordinates * (1 - inside) * radix).sum(axis=1)
            offsets.append(np.unique((coordinates * inside * radix).sum(axis=1)))
        shared = [0] + [_unit_axes(mesh, levels, level) for level in range(len(levels))]
        devices = DeviceClasses(
            np.zeros(0, SIGNATURE),
            np.stack([zeroed[_among(axes, kept)] for axes in shared]),
            np.zeros((0, classes), np.uint8),
            zeroed,
            np.concatenate([[0], np.cumsum([len(some) for some in offsets])]).astype(np.int64),
            np.concatenate(offsets),
        )
        return cls(kept, shape, devices)

    def extended(self, mesh: Mesh, levels: Levels, signatures: Sequence[Signature]) -> Frame:
        """Returns the frame extended by new signatures, behind the known ones."""
        known = self.devices
        if len(known.signatures) == len(signatures):
            return self
        coordinates = list(np.ndindex(*self.shape))
        records, present = [], []
        for sign in signatures[len(known.signatures) :]:
            unit = _unit_axes(mesh, levels, sign.lane - 1) if sign.lane > 0 else 0
            at = dict(sign.at)
            records.append((_among(sign.axes | unit, self.kept), sign.lane))
            allowed = []
            for axis in self.kept:
                if axis in at:
                    # Of devices that share a link one stands for all.
                    allowed.append(at[axis][:1] if unit >> axis & 1 else at[axis])
                else:
                    allowed.append((0,) if unit >> axis & 1 else tuple(range(mesh[axis])))
            present.append([all(map(contains, allowed, place)) for place in coordinates])
        devices = known._replace(
            signatures=np.concatenate([known.signatures, np.array(records, SIGNATURE)]),
            present=np.concatenate([known.present, np.array(present, np.uint8)]),
        )
        return self._replace(devices=devices)


def _unit_axes(mesh: Mesh, levels: Levels, level: int) -> int:
    """The axes of devices that share a link of a level, as bits.

    At the innermost level the devices of one unit of the level above share a bus; elsewhere those of a unit.
    """
    axes, shared = levels[level]
    if not shared:
        return 0
    before = sum(count for count, _ in levels[:level])
    first = before if level == len(levels) - 1 else before + axes
    return sum(1 << axis for axis in range(first, len(mesh)))


def _among(axes: int, kept: tuple[int, ...]) -> int:
    return sum(1 << position for position, axis in enumerate(kept) if axes >> axis & 1)
