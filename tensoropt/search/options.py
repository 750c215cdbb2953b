"""Choosing one strategy from a frontier (TensorOpt, section 4.1)."""

from __future__ import annotations

from collections.abc import Callable

from tensoropt.errors import ProblemError
from tensoropt.search.result import Frontier, FrontierPoint

__all__ = ["OPTIONS", "choose", "mini_memory", "mini_time", "turning_point"]


def mini_time(frontier: Frontier, memory_bytes: float | None = None) -> FrontierPoint:
    """The fastest strategy within ``memory_bytes``.

    Raises:
        InfeasibleError: nothing fits.
    """
    return frontier.best(memory_bytes)


def mini_memory(frontier: Frontier, memory_bytes: float | None = None) -> FrontierPoint:
    """The strategy of least memory.

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
            f"option {option!r}: must be one of {', '.join(map(repr, sorted(OPTIONS)))}, got {option!r}. "
            "Choose one of these."
        )
    return OPTIONS[option](frontier, memory_bytes)
