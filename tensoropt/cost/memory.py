"""Bytes per device: variables with what their optimizer keeps, and activations kept for the backward pass."""

from __future__ import annotations

import math

from tensoropt.graph.spec import TensorSpec
from tensoropt.layout import Layout, Mesh

__all__ = ["activation_bytes", "copy_bytes", "variable_bytes"]


def variable_bytes(spec: TensorSpec, layout: Layout, mesh: Mesh, *, slots: int, trained: bool) -> float:
    """A variable's piece, its gradient's if it is trained, and one more for each optimizer slot."""
    return _piece_bytes(spec, layout, mesh) * (1 + (1 + slots if trained else 0))


def activation_bytes(spec: TensorSpec, layout: Layout, mesh: Mesh, *, kept: bool) -> float:
    """An operator's output, if it or its consumer keeps it for the backward pass."""
    return _piece_bytes(spec, layout, mesh) if kept else 0.0


def copy_bytes(spec: TensorSpec, source: Layout, target: Layout, mesh: Mesh, *, kept: bool) -> float:
    """The copy that a reshard makes, if the consumer keeps it for the backward pass."""
    return _piece_bytes(spec, target, mesh) if kept and source != target else 0.0


def _piece_bytes(spec: TensorSpec, layout: Layout, mesh: Mesh) -> float:
    return float(math.prod(layout.local_shape(spec.shape, mesh)) * spec.itemsize)
