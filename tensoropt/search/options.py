"""Choosing one strategy from a frontier, and the memory that it may take (TensorOpt, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tensoropt.errors import ProblemError, did_you_mean
from tensoropt.problem.frontier import Frontier, FrontierPoint

__all__ = ["OPTIONS", "RESERVE", "MemoryLimit", "choose", "mini_memory", "mini_time", "turning_point"]

# TensorOpt section 5.2: temporaries are not in the prediction, so "for GPUs with 16GB memory, a parallelization
# strategy with 14.5GB (≈ 16/1.1) peak memory consumption would be safe".
RESERVE = 0.1


@dataclass(frozen=True, slots=True)
class MemoryLimit:
    """The most memory that a plan may be predicted to take on each device.

    Attributes:
        limit_bytes: the limit.
        source: where it comes from, for messages.
    """

    limit_bytes: float
    source: str

    @classmethod
    def of(cls, device_bytes: float, asked_bytes: float | None = None) -> MemoryLimit:
        """Makes the limit that was asked for; by default the device's memory less the reserve of section 5.2.

        Args:
            device_bytes: the device's memory.
            asked_bytes: the user's limit.
        """
        if asked_bytes is not None:
            return cls(float(asked_bytes), "memory_bytes")
        return cls(
            device_bytes / (1 + RESERVE),
            f"the device's {device_bytes:,.0f} less a reserve of {RESERVE:.0%} of the plan for temporaries",
        )

    def __str__(self) -> str:
        return f"{self.limit_bytes:,.0f} bytes per device ({self.source})"


def mini_time(frontier: Frontier, memory_bytes: float | None = None) -> FrontierPoint:
    """The fastest strategy within ``memory_bytes``.

    Raises:
        InfeasibleError: nothing fits.
    """
    return frontier.best(memory_bytes)


def mini_memory(frontier: Frontier, memory_bytes: float | None = None) -> FrontierPoint:
    """The strategy of least memory; the fastest of them, as all of a frontier's.

    Raises:
        InfeasibleError: even that does not fit in ``memory_bytes``.
    """
    frontier.best(memory_bytes)
    return frontier.point(0)


def turning_point(frontier: Frontier, memory_bytes: float | None = None) -> FrontierPoint:
    """The knee of the frontier (section 5.1), or the fastest that fits where the knee takes too much.

    Raises:
        InfeasibleError: nothing fits in ``memory_bytes``.
    """
    fits, knee = frontier.best(memory_bytes), frontier.turning_point()
    return knee if knee.memory_bytes <= fits.memory_bytes else fits


OPTIONS: dict[str, Callable[[Frontier, float | None], FrontierPoint]] = {
    "mini_memory": mini_memory,
    "mini_time": mini_time,
    "turning_point": turning_point,
}
"""The options that need one frontier only, by name."""


def choose(frontier: Frontier, option: str, memory_bytes: float | None = None) -> FrontierPoint:
    """The point that ``option`` asks for.

    Raises:
        ProblemError: an unknown option; the message lists the known.
        InfeasibleError: nothing fits in ``memory_bytes``.
    """
    if option not in OPTIONS:
        raise ProblemError(
            f"option {option!r}: must be one of {', '.join(map(repr, sorted(OPTIONS)))}, got {option!r}."
            f"{did_you_mean(option, OPTIONS)} Choose one of these."
        )
    return OPTIONS[option](frontier, memory_bytes)
