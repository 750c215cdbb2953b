"""Compiled loops, loaded before they are timed."""

from __future__ import annotations

import numpy as np

from tensoropt.mcmc.additive import AdditiveProblem
from tensoropt.mcmc.chain import Chain, Stop
from tensoropt.mcmc.chain_kernels import take
from tensoropt.mcmc.memory import no_memory
from tensoropt.search.problem import Problem

__all__ = ["load_kernels"]


def load_kernels() -> None:
    """Compiles what chains and simulators run, or loads it: in a new installation that takes many seconds."""
    beside = [[0.0, 1.0], [1.0, 0.0]]
    tiny = AdditiveProblem.of(Problem(["a", "b"], [[1.0, 2.0]] * 2, [[1.0, 1.0]] * 2, [(0, 1)], [beside]))
    chain = Chain(tiny.network, (1, 1), moves=tiny.moves(), memory=tiny.memory(4.0))
    chain.run(Stop(iterations=16))
    for assignment in ((0, 1), (1, 0)):
        chain.simulator.try_strategy(assignment)
        chain.simulator.accept()
    chain.simulator.try_change(0, 0)
    chain.simulator.reject()
    take(no_memory(), np.zeros(11, np.int64), 0, 0, chain.simulator.assignment, chain.simulator.assignment)
