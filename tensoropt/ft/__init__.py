"""Frontier tracking: the whole trade-off between time and memory (TensorOpt, section 3)."""

from __future__ import annotations

from tensoropt.ft.track import MAX_JOINT_CONFIGURATIONS as MAX_JOINT_CONFIGURATIONS
from tensoropt.ft.track import METHODS as METHODS
from tensoropt.ft.track import track_frontier as track_frontier

__all__ = ["MAX_JOINT_CONFIGURATIONS", "METHODS", "track_frontier"]
