"""`Mcmc`: how Markov chains search, for ``find_strategy(search=…)`` and ``compare(methods=[…])``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np

from tensoropt.errors import PlanError, did_you_mean
from tensoropt.mcmc.chain import Stop
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import Plan
from tensoropt.problem.frontier import FrontierPoint
from tensoropt.search.registry import finders

__all__ = ["RANDOM", "Initial", "Mcmc"]

RANDOM = "random"

Initial = str | Plan | FrontierPoint | Mapping[str, Configuration] | Sequence[int]
"""A strategy to begin at."""

_ITERATIONS = 20_000
_COSTS = ("simulated", "additive")


@dataclass(frozen=True, slots=True)
class Mcmc:
    """FlexFlow's search by Markov chains (section 6), with its options.

    ``find_strategy(search="mcmc")`` is ``search=tensoropt.Mcmc()``, and so in ``compare(methods=[…])``. A chain ends
    after its proposals or its seconds, after the last half of its proposals brought nothing better, or by Ctrl-C, which
    ends all of them; the best so far counts. Without ``seconds`` a search repeats itself exactly.

    Attributes:
        seconds: of all chains together, without what they prepare; None for no such limit.
        iterations: proposals of each chain; by default 20,000 where there is no limit of seconds.
        patience: the share of a chain after which it ends if it found nothing better by a thousandth; 1 for never.
        seed: of all randomness.
        initial: strategies to begin at: ``"random"``, the name of a baseline (``"data_parallel"``, ``"megatron"``, …),
            ``"ft"`` or ``"pase"`` for the fastest that these find and that fits, a plan, a point of a frontier,
            configurations by operator, or configuration indices. By default data parallelism and a random one; in a
            comparison the best of what the others found.
        chains: how many; initial strategies take turns. By default one for each.
        processes: how many chains run at once, on as many processes.
        beta: of the acceptance rule (Eq. 1), per second: the larger, the greedier; by default 2,000 for the time of the
            best so far.
        cost: by what chains go: ``"simulated"`` time, as in FlexFlow, for which strategies keep all copies of tensors
            that they move; or ``"additive"``, all added (TensorOpt Eq. 1), as the other searches.
        overlap: whether links move data while devices compute, as in FlexFlow's simulator. By default collectives keep
            devices busy, as they do when a plan runs: where all devices do the same, simulated time is then the sum.
        progress: whether to show a bar with the best so far and the acceptance rate.
    """

    seconds: float | None = None
    iterations: int | None = None
    patience: float = 0.5
    seed: int = 0
    initial: tuple[Initial, ...] | None = None
    chains: int | None = None
    processes: int = 1
    beta: float | None = None
    cost: str = "simulated"
    overlap: bool = False
    progress: bool = False

    def __post_init__(self) -> None:
        for name, least in (("iterations", 1), ("chains", 1), ("processes", 1), ("seed", 0)):
            value: Any = getattr(self, name)
            optional = value is None and name in ("iterations", "chains")
            if not optional and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least):
                raise PlanError(f"Mcmc: {name} must be a whole number of at least {least}, got {value!r}.")
        for name in ("seconds", "beta"):
            value = getattr(self, name)
            if value is not None and not (_is_number(value) and math.isfinite(value) and value > 0):
                raise PlanError(
                    f"Mcmc: {name} must be a number above 0 and finite, got {value!r}. Leave it out for none."
                )
        if not (_is_number(self.patience) and 0.0 < self.patience <= 1.0):
            raise PlanError(
                f"Mcmc: patience must be a share of a chain, above 0 and up to 1, got {self.patience!r}. The paper's "
                "is 0.5."
            )
        if self.cost not in _COSTS:
            raise PlanError(
                f"Mcmc: cost must be one of {', '.join(map(repr, _COSTS))}, got {self.cost!r}."
                f"{did_you_mean(self.cost, _COSTS)} The paper's is 'simulated'."
            )
        given: Any = self.overlap
        if not isinstance(given, bool | np.bool_):
            raise PlanError(f"Mcmc: overlap must be True or False, got {given!r}. Leave it out for what runs.")
        if self.overlap and self.cost != "simulated":
            raise PlanError(
                f"Mcmc: overlap is of simulated time, got overlap=True with cost={self.cost!r}. Leave one of them out."
            )
        if self.initial is not None:
            self._check_initial()

    def _check_initial(self) -> None:
        given: Any = self.initial
        if isinstance(given, str) or not isinstance(given, Sequence) or not given:
            raise PlanError(
                f"Mcmc: initial must be a tuple of strategies, at least one, got {given!r}. Give for example "
                "initial=('data_parallel', 'random')."
            )
        others = {finder.name: finder for finder in finders() if not finder.begins_at_others}
        for one in given:
            if isinstance(one, str) and one != RANDOM and one not in others:
                raise PlanError(
                    f"Mcmc: an initial strategy is a Plan, a point, configurations or one of "
                    f"{', '.join(map(repr, (RANDOM, *others)))}, got {one!r}.{did_you_mean(one, [RANDOM, *others])}"
                )
            if not isinstance(one, str | Plan | FrontierPoint | Mapping | Sequence):
                raise PlanError(
                    f"Mcmc: an initial strategy must be a name, a Plan, a point, or configurations, got {one!r}."
                )
            if isinstance(one, str) and one != RANDOM and others[one].places:
                raise PlanError(
                    f"Mcmc: {one!r} places layers on a part of the devices, which chains do not, got it as an "
                    "initial strategy. Leave it out."
                )

    @property
    def name(self) -> str:
        """Of the search, as in ``find_strategy(search=…)``."""
        return "mcmc"

    def stop(self, chains: int) -> Stop:
        """Returns the stop condition of each of so many chains, which has its share of the seconds."""
        iterations = _ITERATIONS if self.seconds is None and self.iterations is None else self.iterations
        seconds = None if self.seconds is None else self.seconds / math.ceil(chains / self.processes)
        return Stop(iterations, seconds, self.patience)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)
