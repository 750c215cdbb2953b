"""A cost model under which reshards take paths that no real cluster would."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tensoropt.cluster import Topology
from tensoropt.cost import AnalyticCost
from tensoropt.layout import StepKind

__all__ = ["OddCost"]


class OddCost(AnalyticCost):
    """Makes each collective over each group of axes dearer or cheaper by its own factor, up to 100."""

    def __init__(self, topology: Topology, seed: int) -> None:
        super().__init__(topology)
        self._seed = seed

    def step_seconds(
        self, kind: StepKind, axes: tuple[int, ...], bytes_in: NDArray[np.float64], idle: tuple[int, ...] = ()
    ) -> NDArray[np.float64]:
        """The analytic time, times a factor."""
        factor = 10 ** np.random.default_rng([self._seed, list(StepKind).index(kind), *axes]).uniform(-2, 2)
        return super().step_seconds(kind, axes, bytes_in, idle) * factor
