"""TensorFlow's own branches and loops, as ops of one graph (version 1) or as functions (version 2)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import tensorflow as tf

__all__ = ["control_flow_v2"]


@contextmanager
def control_flow_v2(on: bool) -> Iterator[None]:
    """Inside, TensorFlow makes branches and loops of functions, or does not."""
    before = tf.compat.v1.control_flow_v2_enabled()
    _switch(on)
    try:
        yield
    finally:
        _switch(before)


def _switch(on: bool) -> None:
    (tf.compat.v1.enable_control_flow_v2 if on else tf.compat.v1.disable_control_flow_v2)()
