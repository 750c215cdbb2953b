"""How long a collective takes on a cluster: measured where it was, latency and bandwidth elsewhere.

Without measurements, a collective over a group that spans several levels is made of one stage per level, as
hierarchical algorithms do it: reductions from the inside out, so that little is left to cross the outer
links, and gathers from the outside in. In each stage several algorithms are known; each is a line in the
bytes, ``fixed_s + bytes * s_per_byte``, and the library is taken to choose the best. All groups of a device
partitioning run at once, so every device of the cluster is busy, and a shared link is divided by the devices
behind it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from tensoropt.cluster.collective_profile import COLLECTIVE_KINDS
from tensoropt.cluster.topology import Level, Topology
from tensoropt.errors import ClusterError

__all__ = ["CollectiveModel"]


@dataclass(frozen=True, slots=True)
class CollectiveModel:
    """Times and bytes of collectives over groups of factor-mesh axes of a topology.

    ``bytes_in`` is everywhere the size of each rank's input buffer: the local shard of an all_gather, the
    whole stacked input of a reduce_scatter or an all_to_all.
    """

    topology: Topology

    @overload
    def seconds(self, kind: str, axes: Sequence[int], bytes_in: float, idle: Sequence[int] = ()) -> float: ...

    @overload
    def seconds(
        self, kind: str, axes: Sequence[int], bytes_in: NDArray[np.generic], idle: Sequence[int] = ()
    ) -> NDArray[np.float64]: ...

    def seconds(
        self, kind: str, axes: Sequence[int], bytes_in: float | NDArray[np.generic], idle: Sequence[int] = ()
    ) -> float | NDArray[np.float64]:
        """Time of one collective while every group of the partition runs the same one.

        Args:
            kind: one of ``COLLECTIVE_KINDS``.
            axes: the factor-mesh axes that make up a group, in any order; a group of one device takes no
                time.
            bytes_in: bytes of the input buffer per rank; an array gives an array of times of its shape.
            idle: axes along which one device only sends, so that the others leave it their share of shared links. What
                was measured was measured with all of them.

        Raises:
            ClusterError: for an unknown kind, an axis that does not exist or occurs twice, or negative bytes.
        """
        _check_kind(kind)
        group = self.topology.group_by_level(axes)
        size = np.asarray(bytes_in, dtype=np.float64)
        if not np.all(size >= 0):
            raise ClusterError(f"Collective {kind} over mesh axes {tuple(axes)}: bytes_in is negative or not a number.")
        if math.prod(group) == 1:
            times = np.zeros(size.shape)
        else:
            entry = None if self.topology.profile is None else self.topology.profile.find(kind, group)
            waiting = self.topology.group_by_level(idle) if idle else (1,) * len(group)
            times = (
                _predict(self.topology.levels, kind, group, size, waiting) if entry is None else entry.interpolate(size)
            )
        return float(times) if times.ndim == 0 else times

    def is_measured(self, kind: str, axes: Sequence[int]) -> bool:
        """Tells whether ``seconds`` comes from a measurement rather than from latencies and bandwidths.

        Raises:
            ClusterError: for an unknown kind, or an axis that does not exist or occurs twice.
        """
        _check_kind(kind)
        profile = self.topology.profile
        return profile is not None and profile.find(kind, self.topology.group_by_level(axes)) is not None

    @overload
    def bytes_moved(self, kind: str, axes: Sequence[int], bytes_in: int) -> int: ...

    @overload
    def bytes_moved(self, kind: str, axes: Sequence[int], bytes_in: NDArray[np.int64]) -> NDArray[np.int64]: ...

    def bytes_moved(self, kind: str, axes: Sequence[int], bytes_in: int | NDArray[np.int64]) -> int | NDArray[np.int64]:
        """Payload bytes that each rank sends, by the counting convention of the collectives engines.

        With ``n`` members: all_gather ``(n-1) * in``, all_reduce ``2 * (n-1) / n * in``, reduce_scatter,
        all_to_all and broadcast ``(n-1) / n * in``, permute ``in``; rounded down.

        Raises:
            ClusterError: for an unknown kind, or an axis that does not exist or occurs twice.
        """
        _check_kind(kind)
        members = math.prod(self.topology.group_by_level(axes))
        if members == 1:
            return bytes_in * 0
        if kind == "permute":
            return bytes_in
        if kind == "all_gather":
            return (members - 1) * bytes_in
        if kind == "all_reduce":
            return 2 * (members - 1) * bytes_in // members
        if kind in ("reduce_scatter", "all_to_all", "broadcast"):
            return (members - 1) * bytes_in // members
        raise _unpriced(kind)


class _Line(NamedTuple):
    """One algorithm's time, affine in the input bytes of the whole collective."""

    fixed_s: float
    s_per_byte: float


def _check_kind(kind: str) -> None:
    if kind not in COLLECTIVE_KINDS:
        raise ClusterError(
            f"Collective {kind!r}: unknown, so its cost is unknown too. Use one of {', '.join(COLLECTIVE_KINDS)}."
        )


def _predict(
    levels: tuple[Level, ...], kind: str, group: tuple[int, ...], bytes_in: NDArray[np.float64], idle: tuple[int, ...]
) -> NDArray[np.float64]:
    """The sum over stages of the best line of each."""
    times = np.zeros(bytes_in.shape)
    for lines in _stages(levels, kind, group, idle):
        times = times + np.min([line.fixed_s + line.s_per_byte * bytes_in for line in lines], axis=0)
    return times


@functools.lru_cache(maxsize=4096)
def _stages(
    levels: tuple[Level, ...], kind: str, group: tuple[int, ...], idle: tuple[int, ...]
) -> tuple[tuple[_Line, ...], ...]:
    """Per level that the group spans, the lines of the algorithms for it."""
    spanned = [index for index, members in enumerate(group) if members > 1]
    if kind == "permute":
        # Some rank's piece crosses the outermost level of the group, and the slowest piece decides.
        outermost = spanned[0]
        return ((_Line(levels[outermost].latency_s, _s_per_byte(levels, outermost, idle)),),)
    stages = []
    for index in spanned:
        outside = math.prod(group[:index])
        inside = math.prod(group[index + 1 :])
        s_per_byte = _s_per_byte(levels, index, idle)
        stages.append(_stage(kind, group[index], outside, inside, levels[index].latency_s, s_per_byte))
    return tuple(stages)


def _stage(
    kind: str, members: int, outside: int, inside: int, latency_s: float, s_per_byte: float
) -> tuple[_Line, ...]:
    """The algorithms for ``members`` units of one level.

    Args:
        kind: of the collective.
        members: units of this level in the group.
        outside: units of the levels further out that the group spans.
        inside: devices of the group in each of the ``members`` units.
        latency_s: of one message.
        s_per_byte: when every device sends at once.
    """
    others = members - 1
    fraction = others / members
    rounds = math.ceil(math.log2(members))
    power_of_two = members & others == 0
    if kind == "all_reduce":
        # The levels further in have left each device with 1/inside of the bytes to reduce.
        per_byte_s = s_per_byte / inside
        lines = [
            _Line(2 * others * latency_s, 2 * fraction * per_byte_s),  # ring
            _Line(2 * rounds * latency_s, 2 * rounds * per_byte_s),  # reduce and broadcast over a tree
        ]
        if power_of_two:
            lines += [
                _Line(2 * rounds * latency_s, 2 * fraction * per_byte_s),  # recursive halving, then doubling
                _Line(rounds * latency_s, rounds * per_byte_s),  # recursive doubling of whole buffers
            ]
        return tuple(lines)
    if kind in ("reduce_scatter", "all_gather"):
        # Reduced by the levels further in, or holding a shard of each unit of the levels further out. Among a
        # power of two, halving or doubling sends a ring's bytes in fewer rounds.
        sent = fraction / inside if kind == "reduce_scatter" else others * outside
        return (_Line((rounds if power_of_two else others) * latency_s, sent * s_per_byte),)
    if kind == "all_to_all":
        # Pieces for the devices of the other units: one message each, or gathered in rounds (Bruck).
        pairwise = _Line(others * inside * latency_s, fraction / outside * s_per_byte)
        bruck = _Line(rounds * latency_s, rounds / 2 / outside * s_per_byte)
        return (pairwise, bruck)
    if kind == "broadcast":
        # The devices of a unit bring in 1/inside each, then share inside, which the inner stages price.
        tree = _Line(rounds * latency_s, rounds * s_per_byte / inside)
        scatter_then_gather = _Line((rounds + others) * latency_s, 2 * fraction * s_per_byte / inside)
        return (tree, scatter_then_gather)
    raise _unpriced(kind)


def _unpriced(kind: str) -> ClusterError:
    return ClusterError(f"Collective {kind!r}: is in COLLECTIVE_KINDS and has no price. Add it to CollectiveModel.")


def _s_per_byte(levels: tuple[Level, ...], index: int, idle: tuple[int, ...]) -> float:
    """Seconds per byte that a device sends at a level while all the others send too, but for one in ``idle`` each."""
    level = levels[index]
    if not level.shared:
        return 1 / level.bandwidth_bytes_per_s
    is_bus = index == len(levels) - 1
    first = index if is_bus else index + 1
    senders = math.prod(inner.size // waiting for inner, waiting in zip(levels[first:], idle[first:], strict=True))
    return senders / level.bandwidth_bytes_per_s
