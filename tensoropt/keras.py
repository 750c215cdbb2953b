"""Keras models on all ranks: ``import tensoropt.keras``."""

from __future__ import annotations

import importlib
from typing import Any

from tensoropt.api.keras.parallel_plan import report, verify
from tensoropt.api.keras.parallelize import parallelize
from tensoropt.api.keras.planning import compare, frontier, plan
from tensoropt.api.keras.scope import scope
from tensoropt.api.mirror.lookup import UnsupportedError
from tensoropt.errors import did_you_mean

__all__ = ["compare", "frontier", "parallelize", "plan", "report", "scope", "verify"]


def __getattr__(name: str) -> Any:
    # What scripts of TensorFlow 1 take of tf.keras.
    if not name.startswith("_") and hasattr(importlib.import_module("keras"), name):
        raise UnsupportedError(
            f"tensoropt.keras.{name}: Keras 3 has it for models of its own, and builds no graph of TensorFlow 1. In a "
            "graph use tensoropt.layers (dense, conv2d, batch_normalization, …), tensoropt.nn.rnn_cell and "
            "tensoropt.train; or make a Keras model by keras, and pass it to tensoropt.keras.parallelize."
        )
    raise AttributeError(f"module 'tensoropt.keras' has no attribute {name!r}.{did_you_mean(name, __all__)}")
