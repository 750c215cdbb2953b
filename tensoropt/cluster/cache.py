"""Where measurements of this machine are kept between runs."""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tensoropt.cluster.topology import Topology
from tensoropt.errors import ClusterError

__all__ = ["cache_directory", "load_document", "load_topology", "store_document", "store_topology", "topology_path"]

_LOG = logging.getLogger(__name__)


def cache_directory() -> Path:
    """``$TENSOROPT_CACHE_DIR``, or ``tensoropt`` in ``$XDG_CACHE_HOME``, or ``~/.cache/tensoropt``."""
    own = os.environ.get("TENSOROPT_CACHE_DIR")
    if own:
        return Path(own)
    # The XDG specification says to ignore a relative path.
    shared = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(shared) if os.path.isabs(shared) else Path("~/.cache").expanduser()) / "tensoropt"


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
        _warn("topology", key, error)
        return None


def store_topology(key: Mapping[str, Any], topology: Topology) -> None:
    """See :func:`store_document`."""
    store_document("topology", key, topology.to_json())


def load_document(kind: str, key: Mapping[str, Any]) -> Any | None:
    """The JSON that was stored as a ``kind`` of thing under ``key``; None, with a warning, if the file is damaged, and
    None if there is none."""
    try:
        document = json.loads(_path(kind, key).read_text(encoding="utf-8"))
        if document["key"] != key:
            raise ClusterError("it was written for another machine")
        return document[kind]
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, ClusterError) as error:
        _warn(kind, key, error)
        return None


def store_document(kind: str, key: Mapping[str, Any], data: Any) -> None:
    """Writes atomically; a directory that cannot be written costs the next run its time, not this one its life."""
    path = _path(kind, key)
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=path.name, suffix=".tmp", delete=False
        ) as file:
            temporary = file.name
            json.dump({"key": key, kind: data}, file, indent=1)
        os.replace(temporary, path)
    except OSError as error:
        _LOG.warning("Cannot cache the %s in %s (%s); the next run measures again.", kind, path, error)
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)


def _path(kind: str, key: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_directory() / f"{kind}-{digest}.json"


def _warn(kind: str, key: Mapping[str, Any], error: Exception) -> None:
    _LOG.warning(
        "Ignoring the cached %s %s (%s: %s); measuring again.", kind, _path(kind, key), type(error).__name__, error
    )
