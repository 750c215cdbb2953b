"""``tensoropt.keras``: Keras models, trained on all ranks by a plan. Keras itself is loaded by nothing here."""

from __future__ import annotations

from tensoropt.api.keras.parallelize import parallelize

__all__ = ["parallelize"]
