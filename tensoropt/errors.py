"""The errors that tensoropt raises on purpose.

Every message has four parts: the subject (the op type and the user's own name for it), the broken rule with
its numbers, what was given, and what to do about it.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any

__all__ = [
    "CheckpointError",
    "ClusterError",
    "CollectiveError",
    "CostError",
    "EngineError",
    "FeedError",
    "GraphError",
    "InfeasibleError",
    "LayoutError",
    "MicroBatchError",
    "OpError",
    "PlanError",
    "PlotError",
    "ProblemError",
    "SessionError",
    "TensorOptError",
    "VerificationError",
    "close_names",
    "did_you_mean",
]

_MOST, _LIKE = 3, 0.7


def close_names(given: Any, known: Iterable[str]) -> list[str]:
    """Up to three of the known names that are most like a given one, whatever the case of their letters.

    Example:
        >>> close_names("MINI_TIM", ["mini_memory", "mini_time", "profiling"])
        ['mini_time']
    """
    by_lower = {name.lower(): name for name in known}
    if isinstance(given, str) and given.lower() in by_lower:
        return [by_lower[given.lower()]]
    close = difflib.get_close_matches(given.lower(), by_lower, _MOST, _LIKE) if isinstance(given, str) else []
    return [by_lower[name] for name in close]


def did_you_mean(given: Any, known: Iterable[str]) -> str:
    """A sentence for messages, with a blank before it, that has the known names most like a given one; or nothing.

    Example:
        >>> did_you_mean("H100s", ["v100", "h100"])
        " Did you mean 'h100'?"
    """
    close = close_names(given, known)
    return f" Did you mean {' or '.join(map(repr, close))}?" if close else ""


class TensorOptError(Exception):
    """Base class of every error that tensoropt raises on purpose.

    Attributes:
        failed_rank: the rank where it happened, on other ranks that have only heard of it.
    """

    failed_rank: int | None = None


class CheckpointError(TensorOptError, ValueError):
    """A checkpoint cannot be written or read, or is not what the variables need."""


class LayoutError(TensorOptError):
    """A mesh, a layout or a reshard breaks a rule, such as a mesh axis that does not divide a dimension."""


class GraphError(TensorOptError):
    """The logical graph cannot be imported or is malformed."""


class OpError(GraphError):
    """An operator's attributes or operands break its rule, or an op is declared twice or incompletely."""


class ClusterError(TensorOptError):
    """A topology description is malformed, or the hardware could not be collected."""


class CostError(TensorOptError):
    """A cost cannot be computed from what is known."""


class PlanError(TensorOptError):
    """A plan is malformed, or was made for another graph or device count."""


class MicroBatchError(PlanError):
    """A step cannot be split into micro-batches; the message names the operator that needs the whole batch."""


class PlotError(TensorOptError):
    """A picture cannot be drawn or written."""


class ProblemError(TensorOptError):
    """A search problem's arrays break the format or disagree with each other."""


class InfeasibleError(TensorOptError):
    """No strategy meets the limits; the message says what would."""


class EngineError(TensorOptError):
    """A collectives engine or an execution engine is unknown or cannot be used here."""


class CollectiveError(EngineError):
    """A collective failed, or ranks disagree on which one comes next."""


class FeedError(TensorOptError):
    """A feed is missing, or has the wrong shape or dtype."""


class SessionError(TensorOptError):
    """The API was used in an order that has no meaning, such as ``run`` before ``build_execution_graph``."""


class VerificationError(TensorOptError):
    """The distributed run and the single-process run differ."""
