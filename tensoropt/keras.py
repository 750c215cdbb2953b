"""``tensoropt.keras``: Keras models, trained on all ranks by a plan. Keras itself is loaded by nothing here."""

from __future__ import annotations

from tensoropt.api.keras.parallelize import parallelize
from tensoropt.api.keras.planning import frontier, plan

__all__ = ["frontier", "parallelize", "plan"]
