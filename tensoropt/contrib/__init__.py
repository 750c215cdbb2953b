"""The names of TensorFlow's removed ``tf.contrib``: tf_slim where that has it, our own code elsewhere.

The names are those of ``tf.contrib`` (``tensoropt.contrib.rnn``, ``tensoropt.contrib.layers``), found on first use;
nothing else of the package imports what is here.
"""

from __future__ import annotations

from typing import Any

from tensoropt.api.mirror import lookup as _mirror


def __getattr__(name: str) -> Any:
    return _mirror.lookup("contrib", name)


def __dir__() -> list[str]:
    return _mirror.names("contrib")
