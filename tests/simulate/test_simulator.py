"""Full and delta simulation: the same timeline, and a legal one."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from tensoropt.cluster.presets import p100
from tensoropt.cluster.scaling import scaled
from tensoropt.cost import AnalyticCost
from tensoropt.errors import ProblemError
from tensoropt.graph.graph import Graph
from tensoropt.simulate import Network, Simulator, Timeline, network_of, simulate
from tensoropt.space.space import SearchSpace
from tensoropt.space.work import TICKS_PER_S, Signature, Tables, Work, ticks
from tests.plan.small_graphs import embedding, mlp
from tests.simulate.random_networks import Given, Name, plain_simulation, plain_tasks, random_network

pytestmark = pytest.mark.pure


def _random(network: Network, rng: np.random.Generator) -> list[int]:
    return [int(rng.integers(count)) for count in network.choices]


def _same(one: Simulator, other: Simulator) -> bool:
    return one.makespan == other.makespan and np.array_equal(one.line, other.line)


@pytest.mark.parametrize("seed", range(40))
def test_a_timeline_is_that_of_the_plain_algorithm_for_every_device(seed: int) -> None:
    network = random_network(seed)
    assignment = _random(network, np.random.default_rng(seed))
    found = Simulator(network, assignment).timeline()
    wanted = plain_simulation(network, assignment)
    assert [(task.identity, tuple(task.resource), task.ready_s, task.start_s, task.end_s) for task in found.tasks] == [
        (name, where, *(time / TICKS_PER_S for time in times)) for name, where, *times in wanted
    ]


def test_delta_simulation_gives_the_timeline_of_full_simulation_after_each_of_many_changes() -> None:
    taken, reused, shifted = 0, 0, 0
    for seed in range(30):
        rng = np.random.default_rng(seed)
        network = random_network(seed, operators=int(rng.integers(3, 60)))
        simulator, whole = (Simulator(network, _random(network, rng)) for _ in range(2))
        for _ in range(25):
            operator = int(rng.integers(network.operators))
            before = simulator.makespan
            found = simulator.try_change(operator, int(rng.integers(network.choices[operator])))
            segments = simulator.state.segments[1 : int(simulator.state.progress["segments"][0])]
            reused += len(segments)
            shifted += int(np.count_nonzero(segments["shift"]))
            if rng.random() < 0.6:
                simulator.accept()
                assert found == simulator.makespan
                taken += 1
            else:
                simulator.reject()
                assert simulator.makespan == before
            whole.reset(simulator.assignment)
            assert _same(simulator, whole)
    # Parts of timelines are reused, as they are and later than they were.
    assert (taken > 300, reused > 30, shifted > 10) == (True, True, True)


@pytest.mark.parametrize("operators", [4, 12, 25])
def test_strategies_that_differ_in_many_operators_give_the_timeline_of_full_simulation(operators: int) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        network = random_network(seed, operators=operators)
        simulator = Simulator(network, _random(network, rng))
        for _ in range(6):
            before, now, other = simulator.makespan, simulator.assignment.copy(), _random(network, rng)
            share = rng.random()
            wanted = [new if rng.random() < share else old for new, old in zip(other, now.tolist(), strict=True)]
            whole = Simulator(network, wanted)
            assert simulator.try_strategy(wanted) == whole.makespan
            if rng.random() < 0.7:
                simulator.accept()
                assert _same(simulator, whole)
                continue
            simulator.reject()
            assert simulator.try_strategy(wanted, whole.makespan - 1) == -1
            simulator.reject()
            assert (simulator.makespan, simulator.assignment.tolist()) == (before, now.tolist())


@pytest.mark.parametrize("seed", range(20))
def test_telling_more_devices_apart_changes_nothing(seed: int) -> None:
    network = random_network(seed, operators=6)
    assignment = _random(network, np.random.default_rng(seed))
    every = tuple(range(len(network.mesh)))
    assert Simulator(network, assignment, keep=every).timeline() == Simulator(network, assignment).timeline()


@pytest.mark.parametrize("first", range(0, 500, 50))
def test_tasks_wait_for_what_they_need_and_resources_take_them_one_by_one_as_they_become_ready(first: int) -> None:
    for seed in range(first, first + 50):
        rng = np.random.default_rng(seed)
        network = random_network(seed, operators=int(rng.integers(2, 14)))
        assignment = _random(network, rng)
        simulator = Simulator(network, _random(network, rng))
        simulator.try_strategy(assignment)  # by changes
        simulator.accept()
        timeline = simulator.timeline()
        devices = list(np.ndindex(*network.mesh))
        found = {
            (slot, stage, devices[device]): task for task in timeline.tasks for slot, stage, device in [task.identity]
        }
        wanted = plain_tasks(network, assignment)
        assert found.keys() == {name for name, task in wanted.items() if task.resource is not None}
        end_s: dict[Name, float] = {}
        for name in sorted(wanted):  # tasks never wait for those of a later slot
            ready_s = max((end_s[other] for other in wanted[name].needs), default=0.0)
            end_s[name] = ready_s
            if name in found:
                assert found[name].ready_s == ready_s <= found[name].start_s
                assert found[name].end_s == found[name].start_s + wanted[name].duration / TICKS_PER_S
                end_s[name] = found[name].end_s
        for resource in timeline.resources():
            tasks = timeline.on(resource)
            for one, next_one in itertools.pairwise(tasks):
                # It begins when it is ready and the one before it, ready no later, has ended: never idle for nothing.
                assert next_one.start_s == max(one.end_s, next_one.ready_s)
                assert (one.ready_s, one.identity) < (next_one.ready_s, next_one.identity)
            assert tasks[0].start_s == tasks[0].ready_s
        assert timeline.makespan_s == max((task.end_s for task in timeline.tasks), default=0.0)


@pytest.mark.parametrize("seed", range(20))
def test_a_change_beyond_the_limit_says_so_and_can_be_taken_back(seed: int) -> None:
    rng = np.random.default_rng(seed)
    network = random_network(seed)
    simulator = Simulator(network, _random(network, rng))
    for _ in range(20):
        operator = int(rng.integers(network.operators))
        choice = int(rng.integers(network.choices[operator]))
        found = simulator.try_change(operator, choice)
        simulator.reject()
        assert simulator.try_change(operator, choice, found) == found
        simulator.reject()
        assert simulator.try_change(operator, choice, found - 1) == -1
        simulator.reject()
    assert _same(simulator, Simulator(network, simulator.assignment))


def _space(placements: bool = False, devices: int = 4) -> SearchSpace:
    return SearchSpace(mlp(), AnalyticCost(scaled(p100(), devices)), placements=placements)


@pytest.mark.parametrize(
    ("placements", "devices", "overlap"), [(False, 4, True), (False, 8, False), (True, 4, True), (True, 4, False)]
)
def test_delta_simulation_of_a_model_gives_the_timeline_of_full_simulation(
    placements: bool, devices: int, overlap: bool
) -> None:
    network = network_of(_space(placements, devices), overlap=overlap)
    rng = np.random.default_rng(1)
    simulator = Simulator(network, _random(network, rng))
    for _ in range(60):
        operator = int(rng.integers(network.operators))
        simulator.try_change(operator, int(rng.integers(network.choices[operator])))
        simulator.accept()
        assert _same(simulator, Simulator(network, simulator.assignment))


@pytest.mark.parametrize("make", [mlp, embedding])
def test_the_stages_of_a_strategy_add_up_to_its_time(make: object) -> None:
    space = SearchSpace(make(), AnalyticCost(scaled(p100(), 8)))  # type: ignore[operator]
    network = network_of(space, overlap=True)
    rng = np.random.default_rng(2)
    shorter = 0
    for _ in range(10):
        assignment = _random(network, rng)
        simulator = Simulator(network, assignment)
        total = sum(ticks for path in simulator.state.path.tolist() for ticks, _ in network.path(path)) / TICKS_PER_S
        wanted = float(space.problem.costs(np.array(assignment))[0][0])
        assert total == pytest.approx(wanted, rel=1e-6)
        assert simulator.makespan_s <= total
        shorter += simulator.makespan_s < total
    assert shorter


@pytest.mark.parametrize("make", [mlp, embedding])
def test_collectives_keep_devices_busy_unless_they_are_to_overlap(make: Callable[[], Graph]) -> None:
    """All devices of a strategy that runs do the same, one task after another: a step takes the sum."""
    space = SearchSpace(make(), AnalyticCost(scaled(p100(), 8)))
    network = network_of(space)
    rng = np.random.default_rng(2)
    for _ in range(10):
        assignment = _random(network, rng)
        timeline = simulate(space, assignment, network=network)
        assert {task.resource.kind for task in timeline.tasks} == {0}
        assert timeline.makespan_s == pytest.approx(float(space.problem.costs(np.array(assignment))[0][0]), rel=1e-6)


@pytest.mark.parametrize("make", [mlp, embedding])
def test_what_every_step_takes_comes_first_whatever_the_strategy(make: Callable[[], Graph]) -> None:
    plain, cost = AnalyticCost(scaled(p100(), 4)), AnalyticCost(scaled(p100(), 4))
    cost.iteration_seconds = 0.5
    spaces = [SearchSpace(make(), one) for one in (plain, cost)]
    networks = [network_of(space) for space in spaces]
    assert spaces[1].problem.constant_time_s == 0.5
    for seed in range(5):
        assignment = _random(networks[0], np.random.default_rng(seed))
        without, found = (Simulator(network, assignment).timeline().makespan_s for network in networks)
        assert found == pytest.approx(without + 0.5, rel=1e-9)
        times = [float(space.problem.costs(assignment)[0][0]) for space in spaces]
        assert times[1] == pytest.approx(times[0] + 0.5, rel=1e-12)
        plans = [space.plan(assignment, "hand") for space in spaces]
        assert plans[1].operators == plans[0].operators and plans[1].time_s == times[1]


def test_placed_operators_have_tasks_only_where_they_are() -> None:
    space = _space(placements=True)
    everywhere, placed = [], []
    for op in space.operators:
        configurations = space.choices(op.name)
        everywhere.append(next(i for i, c in enumerate(configurations) if set(c.actions) == {None}))
        found = [i for i, c in enumerate(configurations) if c.devices(space.mesh) == (3,)]
        placed.append(found[0] if found else everywhere[-1])
    timeline = simulate(space, placed)
    computing = {device: timeline.on_device(device) for device in range(4)}
    names = {op.name for op in space.operators if op.type == "MatMul"}
    for device, tasks in computing.items():
        multiplied = {timeline.operators[task.subject] for task in tasks if task.phase in (1, 2)} & names
        assert multiplied == (names if device == 3 else set())
    assert {device: len(simulate(space, everywhere).on_device(device)) > 0 for device in range(4)} == dict.fromkeys(
        range(4), True
    )


def test_a_trace_has_every_task_with_its_device() -> None:
    space = _space()
    timeline = simulate(space, [0] * len(space.operators), overlap=True)
    events = json.loads(timeline.to_chrome_trace())["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == len(timeline.tasks)
    assert {event["pid"] for event in spans} == {task.resource.number for task in timeline.tasks}
    assert sum(event["dur"] for event in spans) == pytest.approx(
        1e6 * sum(timeline.busy_s(resource) for resource in timeline.resources())
    )
    assert any(event.get("args") == {"name": "compute"} for event in events)


def _tables(works: Sequence[Work], edges: Sequence[tuple[int, int]] = ()) -> Tables:
    return Tables([[(work,)] for work in works], [None] * len(works), list(edges), [], [], [False] * len(edges), [])


def test_devices_that_the_topology_has_not_are_refused() -> None:
    with pytest.raises(ProblemError, match=r"device 4 was asked for, the topology has devices 0\.\.3"):
        simulate(_space(), [0] * len(_space().operators)).on_device(4)
    with pytest.raises(ProblemError, match=r"has no such device or link"):
        Network(_tables([Work(1.0, Signature(0, 0, ((0, (2,)),)))]), Given([]), (2,), ((1, False),))
    with pytest.raises(ProblemError, match=r"levels .* have 0 axes in all, the mesh \(2,\) has 1"):
        Network(_tables([]), Given([]), (2,), ())


def test_malformed_networks_and_strategies_are_refused() -> None:
    work = Work(1.0, Signature(0))
    with pytest.raises(ProblemError, match="edge 0 goes from operator 1 to 0"):
        Network(_tables([work, work], [(1, 0)]), Given([]), (), ())
    with pytest.raises(ProblemError, match="must take between 0 and 100000 s"):
        ticks(float("inf"))
    with pytest.raises(ProblemError, match="a task of no resource takes no time"):
        Network(_tables([Work(1.0, Signature(-1))]), Given([]), (), ())
    with pytest.raises(ProblemError, match="configuration 0 of operator 0 has no stages"):
        Network(Tables([[()]], [None], [], [], [], [], []), Given([]), (), ())
    with pytest.raises(ProblemError, match="one of them has no backward pass"):
        Network(Tables([[(work,)]] * 2, [None] * 2, [(0, 1)], [], [], [True], []), Given([]), (), ())
    network = random_network(0)
    with pytest.raises(ProblemError, match="needs one configuration for each of 8 operators"):
        Simulator(network, [99] * 8)
    simulator = Simulator(network, [0] * 8)
    with pytest.raises(ProblemError, match="needs one configuration for each of 8 operators"):
        simulator.try_strategy([0] * 7)
    with pytest.raises(ProblemError, match="operator 8 of 8 has no configuration 0"):
        simulator.try_change(8, 0)
    detached = random_network(1).detached()
    assert isinstance(Simulator(detached, [0] * 8).timeline(), Timeline)
