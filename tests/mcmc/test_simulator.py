"""Full and delta simulation: the same timeline, and a legal one."""

from __future__ import annotations

import numpy as np
import pytest

from tensoropt.errors import ProblemError
from tensoropt.mcmc.simulator import Simulator
from tensoropt.search.stages import TICKS_PER_S
from tests.mcmc.random_networks import plain_simulation, random_network

pytestmark = pytest.mark.pure


def _random(network: object, rng: np.random.Generator) -> list[int]:
    return [int(rng.integers(count)) for count in network.choices]  # type: ignore[attr-defined]


@pytest.mark.parametrize("seed", range(60))
def test_a_timeline_is_that_of_the_plain_algorithm_for_every_device(seed: int) -> None:
    network = random_network(seed)
    assignment = _random(network, np.random.default_rng(seed))
    found = Simulator(network, assignment).timeline()
    wanted = plain_simulation(network, assignment)
    assert [
        (task.identity, tuple(task.resource), task.ready_s, task.start_s, task.end_s) for task in found.tasks
    ] == [(name, where, *(time / TICKS_PER_S for time in times)) for name, where, *times in wanted]


def test_delta_simulation_gives_the_timeline_of_full_simulation_for_1000_sequences_of_changes() -> None:
    changes = 0
    for seed in range(1000):
        rng = np.random.default_rng(seed)
        network = random_network(seed // 5, operators=int(np.random.default_rng(seed // 5).integers(3, 16)))
        simulator = Simulator(network, _random(network, rng))
        for _ in range(8):
            operator = int(rng.integers(network.operators))
            choice = int(rng.integers(network.choices[operator]))
            before = simulator.makespan
            found = simulator.try_change(operator, choice)
            if rng.random() < 0.6:
                simulator.accept()
                whole = Simulator(network, simulator.assignment)
                assert found == whole.makespan
                assert simulator.timeline() == whole.timeline()
                changes += 1
            else:
                simulator.reject()
                assert simulator.makespan == before
    assert changes > 3000
