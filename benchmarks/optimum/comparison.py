"""Whether Markov chains find the best of all strategies, as in FlexFlow's section 8.3.

    python -m benchmarks.optimum --json optimum.json

For LeNet and a 2-step RNNLM on 4 devices, branch and bound goes through every strategy, images cut by height and width
among them. So that it can, either an operator does one thing with all devices: it splits one of its axes by four, or it
replicates (a mesh of one block); or only operators that decide are chosen, and others follow. RNNLM needs both, and
takes a minute or two. Left out of FlexFlow's space are operators on a part of the devices (its O). What cannot be gone
through in so many steps has a lower bound of all strategies instead. The simulator is FlexFlow's, whose links move data
while devices compute; with collectives that keep devices busy, the search would be one of a sum.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from benchmarks.optimum.bounds import best_bounds
from benchmarks.optimum.branch_and_bound import find_optimum
from benchmarks.paper.setting import Options, planner, without_updates
from tensoropt.cluster.presets import p100
from tensoropt.cluster.scaling import scaled
from tensoropt.errors import ProblemError
from tensoropt.layout import Coarsening
from tensoropt.mcmc import Mcmc, Moves, moves_of, network_of, search_strategy
from tensoropt.space.space import SearchSpace
from tensoropt.space.work import TICKS_PER_S

__all__ = ["CASES", "Case", "compare_with_optimum", "main"]


class Case(NamedTuple):
    """What is gone through.

    Attributes:
        model: its name.
        sizes: arguments that replace its defaults.
        every: whether all its operators are chosen, not those alone that decide.
        one_block: whether an operator does one thing with all devices.
        paper_hours: that the paper's search took.
    """

    model: str
    sizes: dict[str, Any]
    every: bool
    one_block: bool
    paper_hours: float


_LENET, _RNNLM = {"batch_size": 256}, {"batch_size": 256, "steps": 2}
CASES = {
    "lenet": Case("lenet", _LENET, every=True, one_block=True, paper_hours=0.8),
    "lenet_mesh": Case("lenet", _LENET, every=False, one_block=False, paper_hours=0.8),
    "rnnlm": Case("rnnlm", _RNNLM, every=False, one_block=True, paper_hours=18.0),
}
_LEFT_OUT = "placement of operators"


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", nargs="+", choices=sorted(CASES), default=sorted(CASES))
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--partial", type=int, default=400_000_000, help="partial strategies at most")
    parser.add_argument("--json", type=Path, metavar="FILE")
    flags = parser.parse_args()
    rows = {name: compare_with_optimum(CASES[name], flags.chains, flags.partial) for name in flags.case}
    report = {"left_out_of_the_space": _LEFT_OUT, "overlap": True, "cases": rows}
    Console().print_json(data=report)
    if flags.json is not None:
        flags.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def compare_with_optimum(case: Case, chains: int = 4, partial: int = 400_000_000) -> dict[str, Any]:
    """What chains find of a model's strategies, and the best of all.

    Args:
        case: the model, and what of its strategies.
        chains: how many, each from a strategy drawn at random.
        partial: partial strategies that are gone through at most; beyond that there is a lower bound instead.
    """
    runs = planner(case.model, Options(sizes={case.model: case.sizes})).space(scaled(p100(), 4))
    coarsening = Coarsening(free_up_to_axes=0, blocks=1) if case.one_block else None
    space = SearchSpace(without_updates(runs.graph), runs.cost, coarsening=coarsening)
    network = network_of(space, overlap=True)
    network.add_all_rows()
    every = case.every
    moves = Moves.of_each(network.choices) if every else moves_of(space, network)
    search_strategy(space, Mcmc(iterations=1), network=network, every=every)  # loads what is compiled
    began = time.process_time()
    found = search_strategy(space, Mcmc(iterations=20_000, chains=chains), network=network, every=every)
    searched_s = time.process_time() - began
    report = {
        "mesh": list(space.mesh.shape) if not case.one_block else [space.mesh.size],
        "operators": len(space.operators),
        "chosen": moves.singles,
        "strategies": float(np.prod(moves.choices[: moves.singles].astype(np.float64))),
        "found_s": found.time_s,
        "search_cpu_s": searched_s,
        "paper_optimum_hours": case.paper_hours,
    }
    began = time.process_time()
    try:
        best = find_optimum(network, found.assignment, moves=moves, most_partial=partial)
    except ProblemError:
        least_s = float(best_bounds(network, moves, np.array(found.assignment)).least().max()) / TICKS_PER_S
        return {**report, "optimum_s": None, "least_s": least_s, "found_over_least": found.time_s / least_s}
    return {
        **report,
        "optimum_s": best.time_s,
        "least_s": best.least_s,
        "reached": found.time_s == best.time_s,
        "optimum_cpu_s": time.process_time() - began,
        "partial_strategies": best.partial,
        "simulated": best.simulated,
    }
