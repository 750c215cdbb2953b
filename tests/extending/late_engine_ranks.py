"""The contract of engines over ``late_engine.py``, then a model that trains with it; started with mpirun."""

from __future__ import annotations

import numpy as np

import tensoropt
from tests.exec.engines.contract_program import main
from tests.extending.late_engine import LateEngine  # registers itself


def train() -> None:
    """Two steps of a product on whose plan one process must agree."""
    tensoropt.init()
    x = tensoropt.placeholder(tensoropt.float32, [8, 4], name="x")
    w = tensoropt.get_variable("w", [4, 6])
    loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.matmul(x, w)))
    train_op = tensoropt.train.GradientDescentOptimizer(0.1).minimize(loss)
    plan = tensoropt.find_strategy(option="data_parallel")
    tensoropt.build_execution_graph(engine="tensorflow", plan=plan, collectives=LateEngine.name)
    images = np.random.default_rng(0).random((8, 4), np.float32)
    losses = [tensoropt.run([train_op, loss], feed_dict={x: images})[1] for _ in range(2)]
    print(f"trained: {losses[1] < losses[0]}", flush=True)


if __name__ == "__main__":
    train()
    main([f"2:{LateEngine.name}"])
