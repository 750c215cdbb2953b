"""Trains a small Transformer twice: by a plan, and by the same plan with all that may be made again made again."""

from __future__ import annotations

import dataclasses

import numpy as np

import tensoropt
from benchmarks.models import transformer
from tensoropt.plan.plan import Plan
from tensoropt.plan.recomputation import why_not_again


def losses(option: str, *, again: bool) -> list[float]:
    """The losses of some steps."""
    tensoropt.reset_default_graph()
    tensoropt.set_random_seed(3)
    model = transformer(layers=1, width=16, heads=2, length=8, vocabulary=32, batch_size=8)
    built = model.build(tensoropt, model.batch_size)
    train = model.train(tensoropt, "adam", built.loss)
    plan = tensoropt.find_strategy(option, costs="analytic")
    if again:
        assert plan.graph is not None
        graph = plan.graph
        operators = {
            name: dataclasses.replace(entry, configuration=dataclasses.replace(entry.configuration, again=True))
            if why_not_again(graph, graph[name]) is None
            else entry
            for name, entry in plan.operators.items()
        }
        edges = {edge: dataclasses.replace(entry, keep="both") for edge, entry in plan.edges.items()}
        plan = dataclasses.replace(plan, operators=operators, edges=edges)
        plan = Plan.from_json(plan.to_json())
        assert len(plan.again) > 10
    tensoropt.build_execution_graph(plan=plan)
    random, found = np.random.default_rng(0), []
    for _ in range(3):
        batch = model.batch(random, model.batch_size)
        share = {built.feeds[name]: _mine(rows) for name, rows in batch.items()}
        found.append(float(tensoropt.run([built.loss, train], share)[0]))
    return found


def _mine(rows: np.ndarray) -> np.ndarray:
    return np.split(rows, tensoropt.world_size())[tensoropt.world_rank()]


def main() -> None:
    """Compares the losses: to the last bit by data parallelism, and up to a rounding where operators are split."""
    tensoropt.init()
    for option, tolerance in (("data_parallel", 0.0), ("mini_memory", 1e-6)):
        plain, again = losses(option, again=False), losses(option, again=True)
        if tensoropt.world_rank() == 0:
            same = np.allclose(plain, again, rtol=tolerance, atol=0.0)
            print(f"{option}: {'equal' if same else f'different: {plain} {again}'}", flush=True)


if __name__ == "__main__":
    main()
