"""A cluster as planning sees it: levels of links from outermost to innermost, and equal devices at the
ends."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import itertools
import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tensoropt.cluster.collective_profile import CollectiveProfile, group_fits, restricted
from tensoropt.cluster.device import Device
from tensoropt.errors import ClusterError
from tensoropt.storage import read_regular, write_whole
from tensoropt.storage.document import Fields, cause_of, parse_json, read_object, refused, shortened

__all__ = ["MAX_MESH_AXES", "SCHEMA_VERSION", "Level", "Topology", "prime_factors"]

SCHEMA_VERSION = 1

# Configurations and layouts grow fast with the axes of the factor mesh.
MAX_MESH_AXES = 6


@dataclass(frozen=True, slots=True)
class Level:
    """One level of the hierarchy: ``size`` units joined by links of one kind.

    Attributes:
        name: what a unit is, such as ``"host"`` or ``"device"``.
        size: units in one unit of the level above.
        latency_s: time of one message of no size between two units.
        bandwidth_bytes_per_s: of one link, in one direction, as programs reach it.
        shared: False if every device has a link of its own at this level. True if devices contend for one:
            the uplink of their unit (all devices of a host behind its network card), or, at the innermost
            level, where a unit is a single device, one bus for all units together (a PCIe root, a host's
            memory bus).
    """

    name: str
    size: int
    latency_s: float
    bandwidth_bytes_per_s: float
    shared: bool = False

    def __post_init__(self) -> None:
        subject = f"Topology level {self.name!r}"
        if not self.name:
            raise ClusterError("Topology level: the name is empty. Name the unit, such as 'host' or 'device'.")
        if self.size < 1:
            raise ClusterError(f"{subject}: size must be at least 1, got {self.size}.")
        if not (math.isfinite(self.latency_s) and self.latency_s >= 0):
            raise ClusterError(f"{subject}: latency_s must be finite and not negative, got {self.latency_s}.")
        if not (math.isfinite(self.bandwidth_bytes_per_s) and self.bandwidth_bytes_per_s > 0):
            raise ClusterError(
                f"{subject}: bandwidth_bytes_per_s must be finite and positive, got {self.bandwidth_bytes_per_s}."
            )


@dataclass(frozen=True, slots=True)
class Topology:
    """A cluster of equal devices in a regular hierarchy.

    Attributes:
        name: for people.
        levels: outermost first; ranks are numbered row-major over their sizes.
        device: what each device can do.
        profile: measured collectives, or None where only the figures of the levels are known.

    Invariants:
        At least one level, names unique; every group of the profile partitions the levels.
    """

    name: str
    levels: tuple[Level, ...]
    device: Device
    profile: CollectiveProfile | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "levels", tuple(self.levels))
        if not self.levels:
            raise ClusterError(f"Topology {self.name!r}: no levels. Give at least one, such as Level('device', 1, …).")
        names = [level.name for level in self.levels]
        for name in names:
            if names.count(name) > 1:
                raise ClusterError(
                    f"Topology {self.name!r}: {names.count(name)} levels are named {name!r}. Rename one."
                )
        for entry in self.profile.entries if self.profile is not None else ():
            if not group_fits(entry.group, self.level_sizes):
                raise ClusterError(
                    f"Topology {self.name!r}: profile of {entry.kind} is for groups {entry.group}, which do "
                    "not "
                    f"partition levels of sizes {self.level_sizes}. Measure this cluster again."
                )

    @property
    def level_sizes(self) -> tuple[int, ...]:
        """The size of every level, outermost first."""
        return tuple(level.size for level in self.levels)

    @property
    def device_count(self) -> int:
        """Number of devices."""
        return math.prod(self.level_sizes)

    def factor_mesh(self) -> tuple[int, ...]:
        """The prime factors of the device count, outermost level first, ascending within a level.

        Where these are more than :data:`MAX_MESH_AXES`, neighbours of one level are multiplied until they are not.

        Example:
            >>> from tensoropt.cluster import presets
            >>> presets.v100(hosts=3).factor_mesh()
            (3, 2, 2, 2)
            >>> presets.v100(hosts=128).factor_mesh()
            (4, 4, 8, 2, 2, 2)
        """
        return tuple(extent for extents in _axis_extents(self.level_sizes) for extent in extents)

    def axis_level(self, axis: int) -> int:
        """The index of the level that the factor mesh's ``axis`` belongs to.

        Raises:
            ClusterError: if there is no such axis.
        """
        levels = [index for index, extents in enumerate(_axis_extents(self.level_sizes)) for _ in extents]
        if not 0 <= axis < len(levels):
            raise ClusterError(
                f"Topology {self.name!r}: mesh axis {axis} does not exist; the factor mesh "
                f"{self.factor_mesh()} has "
                f"axes 0..{len(levels) - 1}."
            )
        return levels[axis]

    def level_borders(self) -> tuple[int, ...]:
        """Returns the places in the factor mesh where the axes of another level begin, ascending; without 0."""
        ends = itertools.accumulate(len(extents) for extents in _axis_extents(self.level_sizes))
        return tuple(sorted({end for end in ends if 0 < end < len(self.factor_mesh())}))

    def group_by_level(self, axes: Sequence[int]) -> tuple[int, ...]:
        """Members per level, outermost first, of a group of factor-mesh ``axes``, in any order.

        Raises:
            ClusterError: if an axis does not exist or occurs twice.
        """
        mesh = self.factor_mesh()
        members = [1] * len(self.levels)
        for position, axis in enumerate(axes):
            level = self.axis_level(axis)
            if axis in axes[:position]:
                raise ClusterError(f"Topology {self.name!r}: mesh axis {axis} occurs twice in the group {tuple(axes)}.")
            members[level] *= mesh[axis]
        return tuple(members)

    def devices_below(self, level: int) -> int:
        """Devices in one unit of the level with index ``level``."""
        return math.prod(self.level_sizes[level + 1 :])

    def with_device_count(self, count: int) -> Topology:
        """The first ``count`` devices, which fill inner levels before they start on the next unit of an outer
        one.

        Measured collectives over groups that still fit are kept.

        Raises:
            ClusterError: if there are fewer devices, or ``count`` leaves a unit partly filled beside full
                ones.
        """
        if not 1 <= count <= self.device_count:
            raise ClusterError(
                f"Topology {self.name!r}: {count} devices asked for, of {self.device_count}. Ask for 1 to "
                f"{self.device_count}, or describe a larger cluster."
            )
        sizes = self._filled_sizes(count)
        if sizes is None:
            fitting = [fewer for fewer in range(count - 1, 0, -1) if self._filled_sizes(fewer) is not None][:1]
            fitting += [more for more in range(count + 1, self.device_count + 1) if self._filled_sizes(more)][:1]
            raise ClusterError(
                f"Topology {self.name!r}: {count} devices do not fill levels of sizes {self.level_sizes} "
                "evenly, inner "
                f"levels first. Use {' or '.join(map(str, fitting))}."
            )
        levels = tuple(dataclasses.replace(level, size=size) for level, size in zip(self.levels, sizes, strict=True))
        return dataclasses.replace(self, levels=levels, profile=restricted(self.profile, sizes))

    def _filled_sizes(self, count: int) -> tuple[int, ...] | None:
        """Level sizes of the first ``count`` devices, or None if they are no regular hierarchy."""
        sizes: list[int] = []
        for level in reversed(self.levels):
            if count <= level.size:
                sizes.append(count)
                count = 1
            elif count % level.size == 0:
                sizes.append(level.size)
                count //= level.size
            else:
                return None
        return tuple(reversed(sizes))

    def fingerprint(self) -> str:
        """A short hash of everything that times depend on: all but names, and memory, of which some comes and goes."""
        data = self.to_json()
        del data["name"]
        del data["device"]["name"]
        del data["device"]["memory_bytes"]
        return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:16]

    def to_json(self) -> dict[str, Any]:
        """A JSON object with all fields and ``schema_version``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "name": self.name,
            "levels": [dataclasses.asdict(level) for level in self.levels],
            "device": self.device.to_json(),
            "profile": None if self.profile is None else self.profile.to_json(),
        }

    @classmethod
    def from_json(cls, data: object) -> Topology:
        """The topology that ``to_json`` wrote, or that a person did; ``profile`` may be left out.

        Raises:
            ClusterError: naming the field that is missing, unknown, of the wrong type or out of range.
        """
        version = read_object(data, "Topology JSON: the document", ClusterError).get("schema_version")
        if isinstance(version, bool) or version != SCHEMA_VERSION:
            raise ClusterError(
                f"Topology JSON: schema_version must be {SCHEMA_VERSION}, got {shortened(repr(version), 40)}. Was it "
                "written by another version of tensoropt, or is it not a topology?"
            )
        names = ("schema_version", "name", "levels", "device")
        fields = Fields.of(data, "Topology JSON: the document", ClusterError, names, {"profile": None})
        levels = fields.array("levels")
        profile = fields.values["profile"]
        try:
            return cls(
                fields.label("name"),
                tuple(_level_from_json(level, f"Topology JSON: levels[{index}]") for index, level in enumerate(levels)),
                Device.from_json(fields.values["device"]),
                None if profile is None else CollectiveProfile.from_json(profile),
            )
        except ClusterError as error:  # it may quote names and figures of any length
            raise ClusterError(shortened(error)) from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes JSON to ``path``, whole or not at all.

        Raises:
            ClusterError: if there can be no such file.
        """
        try:
            write_whole(path, json.dumps(self.to_json(), indent=1) + "\n")
        except OSError as error:
            raise refused(
                ClusterError,
                f"Topology file '{os.fspath(path)}'",
                f"cannot be written: {cause_of(error)}.",
                "Give a file in a directory that exists and has room.",
            ) from error

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Topology:
        """Read JSON from ``path``.

        Raises:
            ClusterError: if the file cannot be read, is no JSON, or is no topology; in at most 500 characters.
        """
        subject = f"Topology file '{os.fspath(path)}'"
        try:
            return cls.from_json(parse_json(read_regular(path)))
        except OSError as error:
            raise refused(ClusterError, subject, f"cannot be read: {cause_of(error)}.", "Check the path.") from error
        except ValueError as error:
            raise refused(ClusterError, subject, f"not JSON: {error}", "Write it with Topology.save.") from None
        except ClusterError as error:
            raise refused(ClusterError, subject, error.args[0]) from None

    def __str__(self) -> str:
        units = " × ".join(f"{level.size} {level.name}{'s' if level.size != 1 else ''}" for level in self.levels)
        return f"{self.name}: {units} of {self.device.name}"


@functools.lru_cache(maxsize=1024)
def prime_factors(number: int) -> tuple[int, ...]:
    """The prime factors of a positive integer, ascending; none for 1."""
    factors = []
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            factors.append(divisor)
            number //= divisor
        divisor += 1
    return (*factors, number) if number > 1 else tuple(factors)


@functools.lru_cache(maxsize=1024)
def _axis_extents(level_sizes: tuple[int, ...]) -> tuple[tuple[int, ...], ...]:
    """Per level the extents of its axes of the factor mesh.

    While there are too many, the level with most of them (of equals the outermost) multiplies the two neighbours with
    the least product (of equals the first).
    """
    levels = [list(prime_factors(size)) for size in level_sizes]
    while sum(map(len, levels)) > MAX_MESH_AXES and any(len(extents) > 1 for extents in levels):
        extents = max(levels, key=len)
        place = min(range(len(extents) - 1), key=lambda index: extents[index] * extents[index + 1])
        extents[place : place + 2] = [extents[place] * extents[place + 1]]
    return tuple(tuple(extents) for extents in levels)


def _level_from_json(data: object, where: str) -> Level:
    names = ("name", "size", "latency_s", "bandwidth_bytes_per_s")
    fields = Fields.of(data, where, ClusterError, names, {"shared": False})
    return Level(
        fields.label("name"),
        fields.integer("size"),
        fields.number("latency_s"),
        fields.number("bandwidth_bytes_per_s"),
        fields.boolean("shared"),
    )
