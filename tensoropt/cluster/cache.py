"""Where measurements of this machine are kept between runs."""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensoropt.cluster.topology import Topology
from tensoropt.errors import ClusterError
from tensoropt.storage import cache_directory, distrust, remove_leftovers, write_whole
from tensoropt.storage.document import parse_json, read_object, shortened

__all__ = ["load_document", "load_topology", "store_document", "store_topology", "topology_path", "warn_of_damage"]

_LOG = logging.getLogger(__name__)


def topology_path(key: Mapping[str, Any]) -> Path:
    """The cache file of the topology of a machine described by ``key``, which must be JSON."""
    return _path("topology", key)


def load_topology(key: Mapping[str, Any]) -> Topology | None:
    """What was stored under ``key``; None, with a warning, if the file is damaged, and None if there is none."""
    document = load_document("topology", key)
    if document is None:
        return None
    try:
        return Topology.from_json(document)
    except ClusterError as error:
        warn_of_damage("topology", error, topology_path(key))
        return None


def store_topology(key: Mapping[str, Any], topology: Topology) -> None:
    """See :func:`store_document`."""
    store_document("topology", key, topology.to_json())


def load_document(kind: str, key: Mapping[str, Any]) -> Any | None:
    """The JSON that was stored as a ``kind`` of thing under ``key``; None if there is none.

    None, with a warning, if the file is damaged or others can have written it.
    """
    path = None
    try:
        path = _path(kind, key)
        distrusted = distrust(path)
        if distrusted is not None:
            raise ClusterError(distrusted)
        document = read_object(parse_json(path.read_bytes()), "the file", ClusterError)
        if document.get("key") != key:
            raise ClusterError("it was written for another machine")
        return document[kind]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, ClusterError) as error:
        warn_of_damage(kind, error, path)
        return None


def store_document(kind: str, key: Mapping[str, Any], data: Any) -> None:
    """Writes whole or not at all; what cannot be written costs the next run its time, not this one its life."""
    path = None
    try:
        path = _path(kind, key)
        remove_leftovers(path.parent)
        write_whole(path, json.dumps({"key": key, kind: data}, indent=1), mode=0o600)
    except OSError as error:
        _LOG.warning("Cannot cache the %s in %s (%s); the next run measures again.", kind, path, error)


def warn_of_damage(kind: str, error: Exception, path: Path | None = None) -> None:
    """Says that a cached document is not used, and why."""
    where = "" if path is None else f" {path}"
    said = shortened(f"{type(error).__name__}: {error}", 300)
    _LOG.warning("Ignoring the cached %s%s (%s); measuring again.", kind, where, said)


def _path(kind: str, key: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_directory() / f"{kind}-{digest}.json"
