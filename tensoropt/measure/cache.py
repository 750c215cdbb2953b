"""The cache of this machine's measurements, kept between runs."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from tensoropt.cluster import Topology
from tensoropt.cluster.topology import SCHEMA_VERSION
from tensoropt.cost import OpProfile
from tensoropt.cost.op_profile import PROFILE_SCHEMA
from tensoropt.errors import ClusterError
from tensoropt.storage import cache_directory, read_regular, remove_leftovers, write_whole
from tensoropt.storage.document import parse_json, read_object, shortened

__all__ = ["OPERATORS", "TOPOLOGIES", "Kept"]

_log = logging.getLogger("tensoropt")


class _Document(Protocol):
    def to_json(self) -> Any: ...


_T = TypeVar("_T", bound=_Document)


@dataclass(frozen=True, slots=True)
class Kept(Generic[_T]):
    """One kind of measurements in the cache folder, a file for each machine.

    Attributes:
        name: begins the files' names, and is the field with what was measured.
        called: what messages call it.
        read: makes it of what its ``to_json`` gave; raises ClusterError.
        schema: of that. Versions that write another one have files of their own.
    """

    name: str
    called: str
    read: Callable[[object], _T]
    schema: int

    def path(self, key: Mapping[str, Any]) -> Path:
        """The file of a machine described by ``key``, which must be JSON."""
        described = json.dumps({"schema": self.schema, "key": key}, sort_keys=True)
        digest = hashlib.sha256(described.encode()).hexdigest()[:16]
        return cache_directory() / f"{self.name}-{digest}.json"

    def load(self, key: Mapping[str, Any]) -> _T | None:
        """Returns the measurements stored under ``key``; None if there are none.

        Also None, with a warning, if the file is damaged or if other users can have written it.
        """
        path = None
        try:
            path = self.path(key)
            document = read_object(parse_json(read_regular(path, trusted=True)), "the file", ClusterError)
            if document.get("key") != key:
                raise ClusterError("it was written for another machine.")
            return self.read(document[self.name])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, ClusterError) as error:
            where = "" if path is None else f" {path}"
            said = shortened(f"{type(error).__name__}: {error}", 300)
            _log.warning("Ignoring the cached %s%s (%s); measuring again.", self.called, where, said)
            return None

    def store(self, key: Mapping[str, Any], measured: _T) -> None:
        """Writes whole or not at all; what cannot be written costs the next run its time, not this one its life."""
        path = None
        try:
            path = self.path(key)
            remove_leftovers(path.parent)
            write_whole(path, json.dumps({"key": key, self.name: measured.to_json()}, indent=1), mode=0o600)
        except OSError as error:
            _log.warning("Cannot cache the %s in %s (%s); the next run measures again.", self.called, path, error)


TOPOLOGIES = Kept("topology", "topology", Topology.from_json, SCHEMA_VERSION)
OPERATORS = Kept("ops", "profile of operators", OpProfile.from_json, PROFILE_SCHEMA)
