"""Keras models on all ranks: ``import tensoropt.keras``."""

from __future__ import annotations

from tensoropt.api.keras.parallelize import parallelize
from tensoropt.api.keras.planning import frontier, plan
from tensoropt.api.keras.scope import scope

__all__ = ["frontier", "parallelize", "plan", "scope"]
