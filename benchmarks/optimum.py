"""Whether Markov chains find the best of all strategies, as in FlexFlow's section 8.3.

    python -m benchmarks.optimum --json optimum.json

For LeNet and a 2-step RNNLM on 4 devices, branch and bound goes through every strategy. So that it can, an operator
does one thing with all devices: it splits one of its axes by four, or it replicates (a mesh of one block). Left out of
FlexFlow's space are operators on a part of the devices (its O) and images cut by height and width (its A). Of RNNLM,
only operators that decide are chosen, which takes a minute or two. What cannot be gone through in so many steps has a
lower bound of all strategies instead.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from benchmarks.paper.setting import Options, planner
from tensoropt.cluster.presets import p100
from tensoropt.cluster.scaling import scaled
from tensoropt.errors import ProblemError
from tensoropt.layout import Coarsening
from tensoropt.mcmc import Moves, moves_of, network_of, search_strategy
from tensoropt.mcmc.exhaustive import find_optimum
from tensoropt.mcmc.mixture import best_bounds
from tensoropt.search.space import SearchSpace
from tensoropt.search.stages import TICKS_PER_S

__all__ = ["compare_with_optimum", "main"]

_SIZES: dict[str, dict[str, Any]] = {
    "lenet": {"batch_size": 256},
    "rnnlm": {"batch_size": 256, "steps": 2},
}
# Models whose operators are all chosen.
_EVERY = ("lenet",)
_LEFT_OUT = ("placement of operators", "splits of height and width", "meshes of several blocks")
_PAPER_HOURS = {"lenet": 0.8, "rnnlm": 18.0}


def main() -> None:
    """Runs the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", choices=sorted(_SIZES), default=sorted(_SIZES))
    parser.add_argument("--chains", type=int, default=4)
    parser.add_argument("--partial", type=int, default=400_000_000, help="partial strategies at most")
    parser.add_argument("--json", type=Path, metavar="FILE")
    flags = parser.parse_args()
    rows = {model: compare_with_optimum(model, flags.chains, flags.partial) for model in flags.model}
    report = {"left_out_of_the_space": _LEFT_OUT, "models": rows}
    Console().print_json(data=report)
    if flags.json is not None:
        flags.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


def compare_with_optimum(model: str, chains: int = 4, partial: int = 400_000_000) -> dict[str, Any]:
    """What chains find of a model's strategies, and the best of all.

    Args:
        model: ``"lenet"`` or ``"rnnlm"``.
        chains: how many, each from a strategy drawn at random.
        partial: partial strategies that are gone through at most; beyond that there is a lower bound instead.
    """
    whole = planner(model, Options(sizes={model: _SIZES[model]})).space(scaled(p100(), 4))
    space = SearchSpace(whole.graph, whole.cost, coarsening=Coarsening(free_up_to_axes=0, blocks=1))
    network = network_of(space)
    network.add_all_rows()
    every = model in _EVERY
    moves = Moves.of_each(network) if every else moves_of(space, network)
    search_strategy(space, iterations=1, network=network, every=every)  # loads what is compiled
    began = time.process_time()
    found = search_strategy(space, iterations=20_000, chains=chains, network=network, every=every)
    searched_s = time.process_time() - began
    report = {
        "operators": len(space.operators),
        "chosen": moves.singles,
        "strategies": float(np.prod(moves.choices[: moves.singles].astype(np.float64))),
        "found_s": found.time_s,
        "search_cpu_s": searched_s,
        "paper_optimum_hours": _PAPER_HOURS[model],
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


if __name__ == "__main__":
    main()
