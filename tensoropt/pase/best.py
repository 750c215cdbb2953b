"""`BestStrategy`: what the time-only search gives back."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BestStrategy"]


@dataclass(frozen=True, slots=True)
class BestStrategy:
    """The strategy of least time, and how it was found (PaSE, figure 4).

    Attributes:
        cost: seconds per iteration, as ``Problem.costs(assignment, alternatives)`` gives them.
        assignment: the configuration index of each node.
        alternatives: the alternative of each node, then of each edge; zeros where there is one only.
        order: the nodes in the order in which the recurrence decided them. Of nodes that take one configuration (a
            group) it has the first.
        dependent_set_sizes: for each of them how many others its table is over. The paper's *M* is the largest.
        seconds: how long the search took.
    """

    cost: float
    assignment: tuple[int, ...]
    alternatives: tuple[int, ...]
    order: tuple[int, ...]
    dependent_set_sizes: tuple[int, ...]
    seconds: float

    def __str__(self) -> str:
        return (
            f"BestStrategy({self.cost:.6g} s, {len(self.order)} vertices, dependent sets up to "
            f"{max(self.dependent_set_sizes)}, found in {self.seconds:.3g} s)"
        )
