"""Plans by measured costs, again from the cache, and measures anew; rank 0 prints JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

import tensoropt
from tensoropt.api.session.job import current_job
from tensoropt.errors import PlanError
from tensoropt.plan.plan import Plan


def _documents(kind: str) -> list[Path]:
    return sorted(Path(os.environ["TENSOROPT_CACHE_DIR"]).glob(f"{kind}-*.json"))


def _plan(costs: str | None = None) -> Plan:
    return tensoropt.find_strategy("mini_time", costs=costs)


def _written_anew(action: Any) -> bool:
    """Whether an action writes the file of operators."""
    before = [path.stat().st_mtime_ns for path in _documents("ops")]
    action()
    current_job().world.comm.Barrier()
    return before != [path.stat().st_mtime_ns for path in _documents("ops")]


def _refreshed() -> None:
    tensoropt.init(refresh=True)
    _plan()


def main() -> None:
    """Runs the scenario."""
    tensoropt.init()
    x = tensoropt.placeholder(tensoropt.float32, [16, 32])
    labels = tensoropt.placeholder(tensoropt.int32, [16])
    hidden = tensoropt.layers.dense(x, 64, activation=tensoropt.nn.relu)
    logits = tensoropt.layers.dense(hidden, 8)
    losses = tensoropt.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits)
    loss = tensoropt.reduce_mean(losses)
    train_op = tensoropt.train.AdamOptimizer(0.01).minimize(loss)
    job = current_job()
    result: dict[str, Any] = {}

    plan = _plan()
    result["measured_s"] = job.world.comm.allgather(plan.time_s)
    (path,) = _documents("ops")
    result["profile"] = json.loads(path.read_text(encoding="utf-8"))["ops"]
    (path,) = _documents("topology")
    result["topology"] = json.loads(path.read_text(encoding="utf-8"))
    job.world.comm.Barrier()

    result["again_s"] = 0.0
    plans: list[Plan] = []
    result["measures_again"] = _written_anew(lambda: plans.append(_plan("measured")))
    result["again_s"] = plans[0].time_s
    result["analytic_s"] = _plan("analytic").time_s
    os.environ["TENSOROPT_PROFILE_ROUNDS"] = "2"
    result["measures_when_refreshed"] = _written_anew(_refreshed)
    del os.environ["TENSOROPT_PROFILE_ROUNDS"]

    # What the budget has no time for is left to the model.
    result["measures_with_a_known_profile"] = _written_anew(_plan)

    # A failure on one rank ends planning on all.
    refusals = []
    for name, value in (("SECONDS", "soon"), ("ROUNDS", "0")):
        os.environ[f"TENSOROPT_PROFILE_{name}"] = value
        try:
            _plan()
        except PlanError as error:
            refusals.append(str(error))
        del os.environ[f"TENSOROPT_PROFILE_{name}"]
    result["refusals"] = refusals

    tensoropt.build_execution_graph(plan=_plan())  # by devices as they were measured last
    rng = np.random.default_rng(1)
    feeds = {x: rng.standard_normal((16, 32)).astype(np.float32), labels: rng.integers(0, 8, 16).astype(np.int32)}
    result["losses"] = [float(tensoropt.run([loss, train_op], feeds)[0]) for _ in range(20)]

    # What operators take in steps is what they are predicted to take.
    with tensoropt.measuring(steps=3) as found:
        for _ in range(7):
            tensoropt.run([loss, train_op], feeds)
    again: list[float] = []
    result["recalibrating_writes"] = _written_anew(lambda: again.append(found.recalibrate()))
    result["recalibrated_s"] = job.world.comm.allgather(again[0])
    if job.world.rank == 0:
        print(json.dumps(result))


if __name__ == "__main__":
    main()
