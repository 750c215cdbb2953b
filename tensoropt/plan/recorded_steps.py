"""Steps of a run as a rank records them: plain values, which ranks send one another."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Kernel", "RankSteps"]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel's work in a traced step.

    Attributes:
        name: of the local op.
        subject: the operator, or the edge as ``tensor -> consumer[position]``, that it works for.
        backward: whether it is of a gradient.
        collective: whether it talks to other devices.
        start_s: from the first kernel of the step on.
        seconds: that it took; of a collective with what it waited for others.
    """

    name: str
    subject: str
    backward: bool
    collective: bool
    start_s: float
    seconds: float


@dataclass(frozen=True, slots=True)
class RankSteps:
    """The steps of a rank.

    Attributes:
        timed_s: seconds of steps that were only timed.
        traced: the kernels of each traced step, in order.
    """

    timed_s: tuple[float, ...]
    traced: tuple[tuple[Kernel, ...], ...]
