"""Measured times of collectives, and how they are interpolated."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tensoropt.errors import ClusterError
from tensoropt.storage.document import Fields

__all__ = ["COLLECTIVE_KINDS", "CollectiveProfile", "ProfileEntry"]

# In the order in which they are measured.
COLLECTIVE_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "permute")


@dataclass(frozen=True, slots=True)
class ProfileEntry:
    """Measured times of one collective over one kind of group, all groups of the partition running at once.

    Attributes:
        kind: one of ``COLLECTIVE_KINDS``.
        group: members of a group per topology level, outermost first; ``(2, 1)`` are pairs of ranks that sit
            on two hosts, ``(1, 4)`` are four ranks of one host.
        sizes_bytes: bytes of the input buffer of each rank, ascending.
        seconds: the time of one collective at each size.

    Invariants:
        At least one size; sizes strictly ascending and positive; times positive and finite.
    """

    kind: str
    group: tuple[int, ...]
    sizes_bytes: tuple[int, ...]
    seconds: tuple[float, ...]

    def __post_init__(self) -> None:
        subject = f"Collective profile, {self.kind} over groups {self.group}"
        if self.kind not in COLLECTIVE_KINDS:
            raise ClusterError(f"{subject}: unknown kind {self.kind!r}. Use one of {', '.join(COLLECTIVE_KINDS)}.")
        if not self.group or any(members < 1 for members in self.group) or math.prod(self.group) < 2:
            raise ClusterError(f"{subject}: a group needs at least two members. Leave the entry out.")
        if not self.sizes_bytes or len(self.sizes_bytes) != len(self.seconds):
            raise ClusterError(
                f"{subject}: needs one time per size and at least one, got {len(self.sizes_bytes)} sizes and "
                f"{len(self.seconds)} times."
            )
        if any(low >= high for low, high in zip((0, *self.sizes_bytes), self.sizes_bytes, strict=False)):
            raise ClusterError(f"{subject}: sizes must be positive and ascending, got {self.sizes_bytes}.")
        if not all(math.isfinite(second) and second > 0 for second in self.seconds):
            raise ClusterError(f"{subject}: times must be positive and finite, got {self.seconds}. Measure it again.")

    def interpolate(self, bytes_in: NDArray[np.float64]) -> NDArray[np.float64]:
        """Seconds at ``bytes_in`` (any shape), by interpolating the bandwidth.

        Between two measured sizes the actual bandwidth is interpolated linearly (TensorOpt section 3.2,
        "Improving cost estimation accuracy"). Where it falls from one to the next, as a link lets the first bytes of a
        message pass at once, the time is, which is then the longer of the two. Below the smallest size the time is
        that of the smallest, as latency is all there is; above the largest the bandwidth is that of the largest.
        """
        sizes = np.asarray(self.sizes_bytes, dtype=np.float64)
        bandwidth_bytes_per_s = sizes / np.asarray(self.seconds)
        clipped = np.maximum(bytes_in, sizes[0])
        at_bandwidth = clipped / np.interp(clipped, sizes, bandwidth_bytes_per_s)
        return np.maximum(at_bandwidth, np.interp(clipped, sizes, self.seconds))

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all fields."""
        return {
            "kind": self.kind,
            "group": list(self.group),
            "sizes_bytes": list(self.sizes_bytes),
            "seconds": list(self.seconds),
        }

    @classmethod
    def from_json(cls, data: object) -> ProfileEntry:
        """The entry that ``to_json`` wrote.

        Raises:
            ClusterError: if a field is missing, unknown, of the wrong type, or breaks an invariant.
        """
        names = ("kind", "group", "sizes_bytes", "seconds")
        fields = Fields.of(data, "Topology JSON: collective profile entry", ClusterError, names)
        return cls(
            fields.text("kind"), fields.integers("group"), fields.integers("sizes_bytes"), fields.numbers("seconds")
        )


@dataclass(frozen=True, slots=True)
class CollectiveProfile:
    """A table of measured collectives, by kind and group.

    Invariants:
        Sorted by kind and group, each of which occurs once; every group has the same number of levels.
    """

    entries: tuple[ProfileEntry, ...] = ()

    def __post_init__(self) -> None:
        keys = [(entry.kind, entry.group) for entry in self.entries]
        for first, second in itertools.pairwise(keys):
            if first == second:
                raise ClusterError(f"Collective profile: {first[0]} over groups {first[1]} occurs twice. Keep one.")
            if first > second:
                raise ClusterError(
                    f"Collective profile: {second} comes after {first}. Sort entries by kind and group, or "
                    "build the "
                    "table with CollectiveProfile.of."
                )
        if len({len(entry.group) for entry in self.entries}) > 1:
            raise ClusterError("Collective profile: groups differ in their number of levels. Measure all at once.")

    @classmethod
    def of(cls, entries: Sequence[ProfileEntry]) -> CollectiveProfile:
        """A profile of ``entries`` in any order."""
        return cls(tuple(sorted(entries, key=lambda entry: (entry.kind, entry.group))))

    def find(self, kind: str, group: tuple[int, ...]) -> ProfileEntry | None:
        """Returns the measurements of ``kind`` over ``group``, or None if there are none."""
        for entry in self.entries:
            if entry.kind == kind and entry.group == group:
                return entry
        return None

    def to_json(self) -> list[dict[str, Any]]:
        """A JSON array of entries."""
        return [entry.to_json() for entry in self.entries]

    @classmethod
    def from_json(cls, data: object) -> CollectiveProfile:
        """The profile that ``to_json`` wrote.

        Raises:
            ClusterError: if it is not an array of valid entries.
        """
        if not isinstance(data, list):
            raise ClusterError(f"Topology JSON: field 'profile' must be an array, got {type(data).__name__}.")
        return cls.of([ProfileEntry.from_json(entry) for entry in data])


def group_fits(group: Sequence[int], sizes: Sequence[int]) -> bool:
    """Tells whether groups of that shape partition levels of ``sizes``."""
    return len(group) == len(sizes) and all(size % members == 0 for members, size in zip(group, sizes, strict=True))


def restricted(profile: CollectiveProfile | None, sizes: Sequence[int]) -> CollectiveProfile | None:
    """The entries whose groups still partition levels of ``sizes``; None if there are none.

    They were measured with more groups running at once than remain, so they are upper bounds where groups
    contend.
    """
    if profile is None:
        return None
    kept = tuple(entry for entry in profile.entries if group_fits(entry.group, tuple(sizes)))
    return CollectiveProfile(kept) if kept else None
