"""Compiled loops, loaded before they are timed."""

from __future__ import annotations

import numpy as np

from tensoropt.mcmc.additive_cost import AdditiveProblem
from tensoropt.mcmc.chain import AdditiveChain, Chain, Stop
from tensoropt.mcmc.memory_limit import no_memory
from tensoropt.mcmc.proposals import PROGRESS, take
from tensoropt.problem.problem import Problem
from tensoropt.simulate.network import Network
from tensoropt.space.work import Ints, Route, Signature, Tables, Way, Work

__all__ = ["load_kernels"]


def load_kernels() -> None:
    """Compiles what chains and simulators run, or loads it: in a new installation that takes many seconds."""
    beside = [[0.0, 1.0], [1.0, 0.0]]
    additive = AdditiveProblem.of(Problem(["a", "b"], [[1.0, 2.0]] * 2, [[1.0, 1.0]] * 2, [(0, 1)], [beside]))
    memory = additive.memory(4.0)
    AdditiveChain(additive.cost, (1, 1), memory=memory).run(Stop(iterations=16))
    here, layouts = Signature(0), np.arange(2)
    works: list[list[Route]] = [[(Work(1.0, here),), (Work(2.0, here),)]] * 2
    tables = Tables(works, [None] * 2, [(0, 1)], [Way(0, layouts, layouts)], [None], [False], [2])
    chain = Chain(Network(tables, _NoRoutes(), (), ()), (1, 1), memory=memory)
    chain.run(Stop(iterations=16))
    for assignment in ((0, 1), (1, 0)):
        chain.simulator.try_strategy(assignment)
        chain.simulator.accept()
    chain.simulator.try_change(0, 0)
    chain.simulator.reject()
    chosen = chain.simulator.assignment
    take(no_memory(), np.zeros(1, PROGRESS), 0, 0, chosen, chosen)


class _NoRoutes:
    """Ways that are all empty."""

    def row(self, table: int, start: int) -> tuple[Ints, Ints, Ints, list[Signature]]:
        """See :class:`tensoropt.space.work.Routes`."""
        nothing = np.zeros(0, np.int64)
        return np.zeros(2, np.int64), nothing, nothing, []
