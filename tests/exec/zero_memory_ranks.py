"""What the stages of ZeRO take of a rank's memory with micro-batches, beside what plans predict.

Prints a line for each stage, on one thread and on two. Started by ``test_recomputed_memory.py``.
"""

from __future__ import annotations

import numpy as np

import tensoropt as to
from benchmarks.accuracy_memory import memory_parts
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.mirror.model import current_model
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.exec.engines.launch import start_mpi
from tensoropt.exec.engines.mpi_engine import MpiEngine
from tensoropt.search.registry import get_finder
from tensoropt.space.space import SearchSpace
from tests.exec.random_runs import real_session
from tests.exec.test_recomputed_memory import step_bytes, traces_of_all_runs, train_alike
from tests.thread_world import session_config

_WIDTH, _ROWS = 256, 32


def main() -> None:
    comm, traces = start_mpi(), traces_of_all_runs()
    x = hidden = to.placeholder(to.float32, [_ROWS, _WIDTH], name="x")
    for layer in range(4):
        weight = to.get_variable(f"w{layer}", [_WIDTH, _WIDTH], initializer=to.ones_initializer())
        hidden = to.tanh(to.matmul(hidden, weight))
    loss = to.identity(to.reduce_mean(to.square(hidden)), name="the_loss")
    to.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    graph = import_model(current_model()).graph
    space = SearchSpace(graph, AnalyticCost(cpu(comm.size)), reuse=True, micro_batches=4)
    engine = MpiEngine(space.mesh.shape)
    feeds = {x.op.name: np.random.default_rng(0).normal(size=(_ROWS, _WIDTH)).astype(np.float32)}
    for name in ("zero1", "zero2", "zero3"):
        point = get_finder(name).find(space).frontier.point(0)
        plan = space.plan(point.assignment, name, alternatives=point.alternatives)
        for threads, config in ((1, real_session()), (2, session_config())):
            traces.clear()
            _, tf_graph = train_alike(graph, plan, feeds, engine, config)
            measured = max(memory_parts(trace, tf_graph)["step"] for trace in traces[-2:])
            if comm.rank == 0:
                print(f"{name} on {threads}: {measured:.0f} {step_bytes(plan):.0f}", flush=True)


if __name__ == "__main__":
    main()
