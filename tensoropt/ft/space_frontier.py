"""The frontier of a model's strategies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cached_property

from tensoropt.ft.track import MAX_JOINT_CONFIGURATIONS, track_frontier
from tensoropt.problem.contraction import Contraction
from tensoropt.problem.frontier import Candidates, Frontier, frontier_among, frontier_of
from tensoropt.problem.problem import Problem
from tensoropt.problem.resolution import Resolution
from tensoropt.problem.single_cost import single_cost
from tensoropt.space.followers import contracted
from tensoropt.space.repeated_cells import with_repeated_cells
from tensoropt.space.space import SearchSpace

__all__ = ["SpaceTracker"]

_SMALL = 400
"""Operators up to which all of them are searched, costs as they are, if that takes no more than `_SHORT`."""

_SHORT = 50_000_000
"""Candidates of that search: a second or so."""

_SMALLEST = 200
"""Operators up to which the least memory is searched over all of them, in a second or two."""

_GUESSES = ("heuristic", "narrow")
"""Eliminations after which strategies may be missing."""

_CLOSE, _APART = 0.008, 0.0015
"""How far from the frontier the strategies are that `SpaceTracker.close` finds, and from these those that it keeps:
together less than a hundredth, in time and in memory."""

_CLOSE_LONGEST = 200_000_000
"""Candidates of each of its searches: a few seconds."""

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

    @cached_property
    def contraction(self) -> Contraction:
        """The problem over the operators that decide."""
        return self.space.kept(contracted)

    @cached_property
    def _chosen(self) -> int:
        """How many operators there are to choose for: what is after gradients lies as the variables that it is for."""
        late = self.space.graph.after_gradients()
        return sum(op.name not in late for op in self.space.operators)

    @cached_property
    def resolution(self) -> Resolution:
        """The steps in which its costs are told apart."""
        return Resolution.of(self.contraction.problem)

    @cached_property
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

    def close(self, *, epsilon: float = 0.0, progress: Callable[[int, int], None] | None = None) -> Frontier:
        """Strategies of `contraction` of which one is as good as any other, within a hundredth, by both costs.

        For every strategy there is one of no more memory that takes at most a hundredth longer, and one as fast that is
        at most a hundredth larger: those of two searches that thin, one by time and one by memory, without what is too
        near to others. Costs are as they are. (In steps, as in `rounded`, what each table's costs are off by adds up
        over hundreds of tables, and where a frontier is steep nothing is left of it.) If a search took too long, a step
        of its ``eliminations`` is a guess, and what it had found by then is there.

        Args:
            epsilon: the same for `_CLOSE`, if it is larger.
            progress: see `track_frontier`.
        """
        problem = self.contraction.problem
        mirrored = problem.with_tables(lambda time_s, memory_bytes, _: (memory_bytes, time_s))
        by_time, by_memory = (
            track_frontier(
                one, epsilon=max(epsilon, _CLOSE), threads=self.threads, progress=progress, longest=_CLOSE_LONGEST
            )
            for one in (problem, mirrored)
        )
        return frontier_among(
            problem.names,
            [
                Candidates(by_time.time_s, by_time.memory_bytes, by_time.rows),
                Candidates(by_memory.memory_bytes, by_memory.time_s, by_memory.rows),
            ],
            apart=_APART,
            exact=False,
            eliminations=(*by_time.eliminations, *by_memory.eliminations),
            seconds=by_time.seconds + by_memory.seconds,
        )

    @cached_property
    def smallest(self) -> Frontier:
        """The strategy of least memory alone, which is found sooner.

        Of a small graph it is exact; of a large one it is over the operators that decide, and not exact.

        Raises:
            InfeasibleError: no strategy has a finite cost.
        """
        if self._chosen <= _SMALLEST:
            least = track_frontier(single_cost(with_repeated_cells(self.space), "memory"), threads=self.threads)
            return frontier_of(
                self.space.problem,
                least.assignments,
                least.alternatives,
                exact=least.exact,
                eliminations=least.eliminations,
                seconds=least.seconds,
            )
        found = track_frontier(single_cost(self.contraction.problem, "memory"), threads=self.threads)
        return self.contraction.expand(found, exact=False)

    def frontier(self, *, epsilon: float = 0.0, progress: Callable[[int, int], None] | None = None) -> Frontier:
        """The frontier of ``space.problem``.

        That of a small space is exact, over all its operators. That of a larger one is over the operators that decide,
        and not called exact: no strategy beats its points by a hundredth (`close`). Where that takes long, costs are
        told apart in the steps of `Resolution.of`, too: beside what was found there are the strategies on the exact
        frontier of costs so rounded. The fastest and the smallest one are those of the costs as they are. Each point
        has its costs as they are. Of very deep models it is over strategies in which layers in a row decide as one
        (`tensoropt.problem.repeated_layers`).

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
                return dataclasses.replace(whole, searched=f"all {self.space.problem.nodes} operators")
            beside.append(whole)
        fastest = track_frontier(single_cost(self.contraction.problem, "time"), threads=self.threads)
        found = [] if self.contraction.restricts else [self.close(epsilon=epsilon, progress=progress)]
        if found and not _guessed(found[0]):
            within = max(epsilon, _CLOSE) + _APART
            searched = f"{self.contraction.searched}, all their strategies within {within:.2g} of time and of memory"
        else:
            steps = self.resolution
            found.append(self.between(epsilon=epsilon, progress=progress))
            searched = (
                f"{self.contraction.searched}, costs in steps of {steps.time_s:.3g} s and "
                f"{steps.memory_bytes / 2**20:.3g} MiB"
                + ("" if found[-1].exact and fastest.exact else ", not all their strategies")
            )
        expanded = self.contraction.expand(*found, fastest, beside=[self.smallest, *beside], exact=False)
        return dataclasses.replace(expanded, searched=searched)


def _guessed(frontier: Frontier) -> bool:
    """Tells whether a frontier may lack strategies because the search took shortcuts to end in reasonable time."""
    return any(step.kind in _GUESSES for step in frontier.eliminations)
