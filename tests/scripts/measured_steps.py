"""Trains a perceptron by a plan of some steps, measures them, corrects what is known of operators, and says so.

The argument is a dictionary, of the arguments of ``find_strategy``.
"""

from __future__ import annotations

import ast
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import tensoropt as to
from tensoropt.api.session.job import current_job
from tensoropt.measure.candidates import candidates_of


def main(steps: dict[str, Any]) -> None:
    """Measures, and prints what came of it on rank 0."""
    to.init()
    x = to.placeholder(to.float32, [32, 16], name="x")
    hidden = x
    for layer in range(6):
        hidden = to.tanh(to.matmul(hidden, to.get_variable(f"w{layer}", [16, 16])))
    train = to.train.AdamOptimizer(0.01).minimize(to.reduce_mean(to.square(hidden - x)))
    plan = to.find_strategy(feed="global", costs="measured", **steps)
    estimated = _estimated(plan)
    to.build_execution_graph(plan=plan)
    batch = {x: np.random.default_rng(0).normal(size=(32, 16))}
    for _ in range(3):
        to.run(train, batch)
    with to.measuring(steps=2) as found:
        for _ in range(4):
            to.run(train, batch)
    recalibrated_s = found.recalibrate()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        found.save_trace(path)
        if to.world_rank() == 0:
            events = len(json.loads(path.read_text(encoding="utf-8"))["traceEvents"])
            told = {
                "estimated": estimated,
                "recalibrated_s": recalibrated_s,
                "operators": len(found.result.rows),
                "events": events,
            }
            print("RESULT", json.dumps(told))


def _estimated(plan: to.Plan) -> int:
    """How many sizes in which the plan's steps compute operators were not measured."""
    job, topology = current_job(), current_job().topology
    assert topology is not None
    planner = job.planner("global")
    assert planner.profile is not None
    space = planner.of_plan(plan).space_of(topology, plan)
    return len(candidates_of(topology, space, to.world_rank()).keys() - planner.profile.times.keys())


if __name__ == "__main__":
    main(ast.literal_eval(sys.argv[1]))
