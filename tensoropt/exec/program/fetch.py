"""What a program gives."""

from __future__ import annotations

from dataclasses import dataclass

from tensoropt.graph.spec import TensorId

__all__ = ["Fetch", "GradientOf"]


@dataclass(frozen=True, slots=True)
class GradientOf:
    """The whole gradient that a training step uses for a variable."""

    training: str
    variable: str


# What a user fetches: the whole value of a tensor, an operation run for its effect, or a gradient.
Fetch = TensorId | str | GradientOf
