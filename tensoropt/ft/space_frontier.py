"""The frontier of a model's strategies."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence

import numpy as np

from tensoropt.ft.track import MAX_JOINT_CONFIGURATIONS, track_frontier
from tensoropt.problem.contraction import Contraction
from tensoropt.problem.frontier import Frontier, by_both_costs, joined
from tensoropt.problem.problem import Problem
from tensoropt.problem.resolution import Resolution
from tensoropt.problem.single_cost import single_cost
from tensoropt.search.columns import APART, SpaceColumns
from tensoropt.space.followers import contracted
from tensoropt.space.repeated_cells import with_repeated_cells
from tensoropt.space.space import SearchSpace

__all__ = ["SpaceTracker"]

_SMALL = 400
"""Operators up to which all of them are searched, costs as they are, if that takes no more than `_SHORT`."""

_SHORT = 50_000_000
"""Candidates of that search: a second or so."""

_GUESSES = ("heuristic", "narrow")
"""Eliminations after which strategies may be missing."""

_COLUMNS = 8
"""Columns of a frontier. Twice as many cost twice as much, and bring gaps down by a tenth."""

_FEW, _CLOSE = 200, 0.008
"""Operators that decide up to which their frontier is tracked, too, and how close: of few, columns do few things."""

_LONGER = 200_000_000
"""Candidates of each of these searches: a few seconds."""

_DEEP_EPSILON = 0.001

_DEEP_JOINT_CONFIGURATIONS = 1 << 22
"""The largest elimination that is worth its while where the result is not exact anyway."""


class SpaceTracker:
    """Frontier tracking of a space, over the operators that decide (`tensoropt.space.followers`).

    Attributes:
        space: configurations and their costs.
        threads: see `track_frontier`.
    """

    def __init__(self, space: SearchSpace, *, threads: int | None = None) -> None:
        """Takes a space; nothing is worked out before it is asked for."""
        self.space = space
        self.threads = threads

    @functools.cached_property
    def contraction(self) -> Contraction:
        """The problem over the operators that decide."""
        return self.space.kept(contracted)

    @functools.cached_property
    def _chosen(self) -> int:
        """How many operators there are to choose for: what is after gradients lies as the variables that it is for."""
        late = self.space.graph.after_gradients()
        return sum(op.name not in late for op in self.space.operators)

    @functools.cached_property
    def resolution(self) -> Resolution:
        """The steps in which its costs are told apart."""
        return Resolution.of(self.contraction.problem)

    @functools.cached_property
    def rounded(self) -> Problem:
        """The contracted problem with costs rounded to steps."""
        return self.resolution.rounded(self.contraction.problem)

    def between(
        self, *, method: str = "ldp", epsilon: float = 0.0, progress: Callable[[int, int], None] | None = None
    ) -> Frontier:
        """The frontier of `rounded`; that of a very deep model within 0.1 % of its times, which is found much sooner.

        Raises:
            ProblemError: an option is out of range.
            InfeasibleError: no strategy has a finite cost.
        """
        largest = MAX_JOINT_CONFIGURATIONS
        if self.contraction.restricts:
            epsilon = max(epsilon, _DEEP_EPSILON) if epsilon >= 0.0 else epsilon
            largest = _DEEP_JOINT_CONFIGURATIONS
        return track_frontier(
            self.rounded,
            method=method,
            epsilon=epsilon,
            threads=self.threads,
            progress=progress,
            max_joint_configurations=largest,
        )

    @functools.cached_property
    def smallest(self) -> Frontier:
        """The strategy of least memory alone, which is found sooner; over all operators if it is called exact.

        Raises:
            InfeasibleError: no strategy has a finite cost.
        """
        return self.space.kept(SpaceColumns).smallest

    def frontier(self, *, epsilon: float = 0.0, progress: Callable[[int, int], None] | None = None) -> Frontier:
        """The frontier of ``space.problem``.

        That of a small space is exact, over all its operators. That of a larger one has columns and their mixtures
        (`tensoropt.search.columns`), each point with a bound of the time of all that take no more memory. Of very deep
        models it is over strategies in which layers in a row decide as one (`tensoropt.problem.repeated_layers`), with
        costs told apart in the steps of `Resolution.of`; the fastest and the smallest one are those of the costs as
        they are. Each point has its costs as they are.

        Args:
            epsilon: see `track_frontier`.
            progress: see `track_frontier`.

        Raises:
            ProblemError: an option is out of range.
            InfeasibleError: no strategy has a finite cost.
        """
        beside = []
        if self._chosen <= _SMALL:
            whole = track_frontier(
                with_repeated_cells(self.space),
                epsilon=epsilon,
                threads=self.threads,
                progress=progress,
                longest=_SHORT,
            )
            if not _guessed(whole):
                searched = f"all {self.space.problem.nodes} operators"
                return dataclasses.replace(whole, searched=searched, bound_s=whole.time_s.copy())
            beside.append(whole)
        if not self.contraction.restricts:
            hull = self.space.kept(SpaceColumns).hull(_COLUMNS)
            if self.contraction.problem.nodes <= _FEW:
                beside.append(self._thin(max(epsilon, _CLOSE), progress))
            return self._with(hull, beside)
        fastest = track_frontier(single_cost(self.contraction.problem, "time"), threads=self.threads)
        found = self.between(epsilon=epsilon, progress=progress)
        steps = self.resolution
        searched = (
            f"{self.contraction.searched}, costs in steps of {steps.time_s:.3g} s and "
            f"{steps.memory_bytes / 2**20:.3g} MiB"
            + ("" if found.exact and fastest.exact else ", not all their strategies")
        )
        expanded = self.contraction.expand(found, fastest, beside=[self.smallest, *beside], exact=False)
        return dataclasses.replace(expanded, searched=searched)

    def _thin(self, epsilon: float, progress: Callable[[int, int], None] | None) -> Frontier:
        """Strategies of `contraction`, of searches that thin."""
        search = functools.partial(
            track_frontier, epsilon=epsilon, threads=self.threads, progress=progress, longest=_LONGER
        )
        return self.contraction.expand(by_both_costs(self.contraction.problem, search), exact=False)

    def _with(self, hull: Frontier, beside: Sequence[Frontier]) -> Frontier:
        """A hull with strategies that were found before, if there are any."""
        if not beside:
            return hull
        found = joined([hull, *beside], apart=APART)
        # The bound of a point is that of the hull's last point of no less memory.
        bound_s = None
        if hull.bound_s is not None:
            place = np.minimum(np.searchsorted(hull.memory_bytes, found.memory_bytes), len(hull) - 1)
            bound_s = np.minimum(hull.bound_s[place], found.time_s)
        return dataclasses.replace(found, searched=hull.searched, bound_s=bound_s)


def _guessed(frontier: Frontier) -> bool:
    """Tells whether a frontier may lack strategies because the search took shortcuts to end in reasonable time."""
    return any(step.kind in _GUESSES for step in frontier.eliminations)
