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

__all__ = ["cache_directory", "load_topology", "store_topology", "topology_path"]

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
    """The cache file for a machine described by ``key``, which must be JSON."""
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:16]
    return cache_directory() / f"topology-{digest}.json"


def load_topology(key: Mapping[str, Any]) -> Topology | None:
    """What was stored under ``key``; None, with a warning, if the file is damaged, and None if there is
    none."""
    path = topology_path(key)
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["key"] != key:
            raise ClusterError("it was written for another machine")
        return Topology.from_json(document["topology"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, ClusterError) as error:
        _LOG.warning("Ignoring the cached topology %s (%s: %s); measuring again.", path, type(error).__name__, error)
        return None


def store_topology(key: Mapping[str, Any], topology: Topology) -> None:
    """Write atomically; a directory that cannot be written costs the next run its time, not this one its
    life."""
    path = topology_path(key)
    temporary = ""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(
            "w", encoding="utf-8", dir=path.parent, prefix=path.name, suffix=".tmp", delete=False
        ) as file:
            temporary = file.name
            json.dump({"key": key, "topology": topology.to_json()}, file, indent=1)
        os.replace(temporary, path)
    except OSError as error:
        _LOG.warning("Cannot cache the topology in %s (%s); the next run measures again.", path, error)
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
