"""Trains a small model until the given rank is frozen, killed or late at the given stage.

Arguments: stage, what happens (``frozen``, ``killed``, or for how many seconds it is late), rank; with ``pipeline``
the ranks have different layers and so different programs.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tensoropt
from tensoropt.api.session import job as job_module
from tensoropt.api.session import strategy_search as strategies_module
from tensoropt.exec.engines import watch as watch_module
from tensoropt.exec.engines.transport import MpiTransport
from tensoropt.measure import operators as operators_module

# Which of them a step has is for the search to choose: where links are measured as slow for one, others do its work.
_COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "permute", "move")
_SIGNALS = {"frozen": signal.SIGSTOP, "killed": signal.SIGKILL}


def happen(how: str) -> None:
    """Lets it happen to this rank."""
    print(f"happened at {time.time()}", flush=True)
    time.sleep(0.2)  # mpirun forwards the line
    if how in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[how])
    else:
        time.sleep(float(how))


def main(stage: str, how: str, rank: int, search: str = "ft") -> None:
    """Every stage of a job, in order."""

    def here(name: str) -> None:
        if name == stage and (tensoropt.world_rank() if name != "start" else _launched_as()) == rank:
            happen(how)

    def before(module: Any, name: str, of_stage: str) -> None:
        function: Callable[..., Any] = getattr(module, name)

        def wrapped(*arguments: Any, **named: Any) -> Any:
            here(of_stage)
            return function(*arguments, **named)

        setattr(module, name, wrapped)

    before(job_module, "collect", "init")
    before(operators_module, "run_probes", "profiling")
    before(strategies_module, "find_plan", "search")
    before(job_module, "resolve_seeds", "build")
    if stage == "start":
        watch_module.LEAST_START_S = 5.0
    here("start")
    tensoropt.init()
    job_module.current_job().remeasure = True  # whatever is known from other jobs
    x = tensoropt.placeholder(tensoropt.float32, [8, 4], name="x")
    hidden = x
    for layer in range(4):
        w = tensoropt.get_variable(f"w{layer}", [4, 4])
        hidden = tensoropt.tanh(tensoropt.matmul(hidden, w))
    loss = tensoropt.reduce_mean(tensoropt.square(hidden))
    step = tensoropt.GradientDescentOptimizer(0.1).minimize(loss)
    costs = "measured" if stage == "profiling" else "analytic"
    if search == "pipeline":
        plan = tensoropt.find_strategy("mini_time", search=search, micro_batches=2, costs=costs)
    else:
        plan = tensoropt.find_strategy("data_parallel", costs=costs)
    tensoropt.build_execution_graph(plan=plan)
    for number in range(5):
        if number == 2:
            here("between steps")
            for collective in _COLLECTIVES:
                before(MpiTransport, collective, "step")
        tensoropt.run(step, {x: np.ones([8, 4], np.float32)})
    print("over", flush=True)


def _launched_as() -> int:
    return int(os.environ["OMPI_COMM_WORLD_RANK"])


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:])
