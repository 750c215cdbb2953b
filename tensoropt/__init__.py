"""tensoropt: a TensorFlow script, changed in a few lines, trains on many devices with the best strategy that
fits.

The names of this package are TensorFlow's own (``tensoropt.matmul``, ``tensoropt.nn.conv2d``,
``tensoropt.train.AdamOptimizer``, ...), found on first use; a mirrored call builds the same operation, under
the same name, in a private graph that allocates nothing. Added to them are the steps of a job: ``init``,
``find_strategy``, ``build_execution_graph`` and ``run``.

Importing this package loads neither TensorFlow nor MPI, starts nothing and leaves the environment alone.
"""

from __future__ import annotations

from typing import Any

from tensoropt.api.mirror import lookup as _mirror

__version__ = "0.1.0"

_mirror.register_namespaces(globals())


def __getattr__(name: str) -> Any:
    return _mirror.lookup("", name)


def __dir__() -> list[str]:
    return _mirror.names("")
