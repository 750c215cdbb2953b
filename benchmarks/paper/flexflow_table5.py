"""FlexFlow's table 5: seconds of the whole search by Markov chains, with full and with delta simulation.

Both simulate every proposal to its end. Chains that users start do not: they draw beforehand up to what time they take
a proposal, and end its simulation there, which has columns of its own.
"""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np

from benchmarks.paper.published import FLEXFLOW_TABLE_5_SECONDS
from benchmarks.paper.setting import Options, Report, planner
from benchmarks.paper.whole_space import whole_space
from examples.models import PER_DEVICE_BATCH
from tensoropt.baselines.data_parallel import data_parallel
from tensoropt.cluster import Topology
from tensoropt.cluster.presets import p100
from tensoropt.cluster.scaling import scaled
from tensoropt.errors import ProblemError
from tensoropt.mcmc import Chain, Moves, Network, Simulator, Stop, moves_of, network_of
from tensoropt.mcmc.initial import random_strategy

__all__ = ["run"]

_SEARCHED = "strategies that run, on all devices: no placement of operators, no splits of height and width"
_SEARCHED_WHOLE = "all of SOAP: operators on parts of the mesh too, and images split by height and width"
_INITIAL = 10  # "10 random initial strategies" (section 8.2)
# The budget of a search, which few need: most end as nothing better was found for half of it. (The paper: 30 minutes.)
_PROPOSALS = 20_000
# A whole search by full simulation would take hours. After each of the first batches of a search by delta simulation,
# then after every so many, proposals are made by full simulation, too: some before the clock starts, then those timed.
_FULL_EVERY = 4
_FULL_FIRST, _FULL_PROPOSALS = 8, 32


def run(options: Options, plot: Path | None = None, whole: bool = False, initial: int = _INITIAL) -> Report:
    """Times searches; CPU seconds of one thread, since a machine may be shared. There is nothing to draw.

    What is searched are strategies that run, or the ``whole`` space, as the paper's: with operators on a part of the
    devices, and images cut by height and width. Its tables grow with the square of an operator's configurations.
    The simulator is FlexFlow's, whose links move data while devices compute (``overlap``).
    The graphs are of TensorFlow's operators; proposals change those that decide, with their followers, and sets of them
    that are near one another. What is made beforehand is told apart: tables of stages, and these sets.

    All simulations make the same proposals and take the same. Searches by delta simulation run whole: with every
    proposal simulated to its end (``delta_s``), and with simulations that end once they are beyond what is taken
    (``early_s``). One by full simulation, to the end, is the first of these with another time for each proposal. That
    is measured again and again as the search goes on, from the strategy that it is at: strategies differ in how many
    tasks they have, and the machine in how fast it is.

    ``speedup`` is full_s / delta_s, what simulating changes alone gains, as in the paper; ``early_speedup`` is
    delta_s / early_s; ``times_faster_than_paper`` compares delta_s with the paper's.
    """
    rows: Report = {}
    for model in options.models or tuple(FLEXFLOW_TABLE_5_SECONDS):
        for devices in options.devices or (4, 8, 16, 32, 64):
            topology = scaled(p100(), devices)
            sizes = {"batch_size": PER_DEVICE_BATCH.get(model, 64) * devices, **options.sizes.get(model, {})}
            chosen = Options(options.models, options.devices, {model: sizes}, options.epsilon, options.threads)
            rows[f"{model}, {devices} devices"] = _row(model, chosen, topology, whole, initial)
    return {"table": "FlexFlow 5", "searched": _SEARCHED_WHOLE if whole else _SEARCHED, "overlap": True, "rows": rows}


def _row(model: str, options: Options, topology: Topology, whole: bool, initial: int) -> Report:
    space = planner(model, options).space(topology)
    if whole:
        space = whole_space(space)
    began = time.process_time()
    network = network_of(space, overlap=True)
    network.add_all_rows()
    network.graph  # noqa: B018  # joined here, not while a search is timed
    tables_s = time.process_time() - began
    began = time.process_time()
    moves = moves_of(space, network)
    moves_s = time.process_time() - began
    _chain(network, moves, 0, True).run(Stop(iterations=1))  # loads what is compiled
    _chain(network, moves, 0, False).run(Stop(iterations=1))
    delta_s, early_s, full_s, proposals, best_s, first_s, seconds = 0.0, 0.0, 0.0, 0, [], [], []
    for seed in range(initial):
        early = _chain(network, moves, seed, True, early=True)
        began = time.process_time()
        ended = early.run(Stop(iterations=_PROPOSALS))
        early_s += time.process_time() - began
        chain = _chain(network, moves, seed, True)
        first_s.append(chain.simulator.makespan_s)
        clock = _FullClock(network, moves, chain)
        began = time.process_time()
        found = chain.run(Stop(iterations=_PROPOSALS), clock)
        seconds.append(time.process_time() - began - clock.spent_s)
        if (found.proposals, found.accepted, found.cost_ticks) != (ended.proposals, ended.accepted, ended.cost_ticks):
            raise ProblemError(
                f"flexflow_table5: chain {seed} of {model} made {found.proposals} proposals to {found.cost_ticks} "
                f"ticks, and {ended.proposals} to {ended.cost_ticks} where simulations end early: their times are not "
                "of the same search. This is a fault of the simulator; please report it."
            )
        delta_s += seconds[-1]
        proposals += found.proposals
        best_s.append(chain.best_s)
        full_s += clock.seconds(found.proposals)
    devices = topology.device_count
    paper = FLEXFLOW_TABLE_5_SECONDS.get(model, {}).get(devices)
    return {
        "operators": len(space.operators),
        "most_configurations": int(network.choices.max()),
        "deciding_operators": moves.singles,
        "tables_s": tables_s,
        "moves_s": moves_s,
        "full_s": full_s / initial,
        "delta_s": delta_s / initial,
        "longest_delta_s": max(seconds),
        "speedup": full_s / delta_s,
        "early_s": early_s / initial,
        "early_speedup": delta_s / early_s,
        "full_proposals_per_s": proposals / full_s,
        "delta_proposals_per_s": proposals / delta_s,
        "early_proposals_per_s": proposals / early_s,
        "proposals": proposals / initial,
        "first_strategy_s": float(np.mean(first_s)),
        "best_strategy_s": {"least": min(best_s), "mean": float(np.mean(best_s))},
        "data_parallel_s": Simulator(network, space.assignment(data_parallel(space))).makespan_s,
        "paper_full_s": None if paper is None else paper[0],
        "paper_delta_s": None if paper is None else paper[1],
        "paper_speedup": None if paper is None else paper[0] / paper[1],
        "times_faster_than_paper": None if paper is None else paper[1] / (delta_s / initial),
    }


class _FullClock:
    """Times proposals by full simulation while a chain goes on, more often at first, as strategies change most then.

    Attributes:
        spent_s: seconds that the chain waited.
    """

    def __init__(self, network: Network, moves: Moves, chain: Chain) -> None:
        self._network, self._moves, self._chain = network, moves, chain
        self._batches = 0
        self._known, self._known_s, self._each_s = 0, 0.0, 0.0
        self.spent_s = 0.0

    def __call__(self, proposals: int, accepted: int, best_s: float) -> None:
        """Follows each batch of proposals; see :class:`tensoropt.mcmc.Chain`."""
        self._batches += 1
        if self._batches > _FULL_EVERY and self._batches % _FULL_EVERY:
            return
        came = time.process_time()
        whole = _chain(self._network, self._moves, proposals, False, tuple(self._chain.simulator.assignment.tolist()))
        whole.run(Stop(iterations=_FULL_FIRST, patience=1))
        began = time.process_time()
        whole.run(Stop(iterations=_FULL_FIRST + _FULL_PROPOSALS, patience=1))
        self._each_s = (time.process_time() - began) / _FULL_PROPOSALS
        self._known_s = self.seconds(proposals)
        self._known = proposals
        self.spent_s += time.process_time() - came

    def seconds(self, proposals: int) -> float:
        """Of so many proposals in all: each time counts for those since the one before."""
        return self._known_s + self._each_s * (proposals - self._known)


def _chain(
    network: Network,
    moves: Moves,
    seed: int,
    delta: bool,
    start: tuple[int, ...] | None = None,
    *,
    early: bool = False,
) -> Chain:
    first = random_strategy(network, np.random.default_rng(seed), moves) if start is None else start
    return Chain(network, first, seed=seed, moves=moves, delta=delta, early=early)
