"""A job whose plan needs fewer ranks than it has; the arguments are the collectives, and how it ends."""

from __future__ import annotations

import atexit
import json
import sys

import numpy as np

import tensoropt
from tensoropt.errors import TensorOptError


def build(plan: tensoropt.Plan, collectives: str) -> None:
    """Builds; a rank that ends here says what it gets when it calls again."""
    try:
        tensoropt.build_execution_graph(plan=plan, collectives=collectives)
    except SystemExit as left:
        for call in (tensoropt.find_strategy, tensoropt.init, lambda: tensoropt.run("w")):
            try:
                call()
            except TensorOptError as error:
                print(f"REFUSED {tensoropt.world_rank()} {type(error).__name__} {error}", flush=True)
        print(f"LEFT {tensoropt.world_rank()} {left.code}", flush=True)
        raise


def main() -> None:
    """Builds on all ranks, then on those that are needed, and trains."""
    collectives, ending = sys.argv[1:]
    tensoropt.init()
    size, rank = tensoropt.world_size(), tensoropt.world_rank()
    tensoropt.random.set_seed(1)
    x = tensoropt.placeholder(tensoropt.float32, [8, 4], name="x")
    w = tensoropt.get_variable("w", [4, 64])
    loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.matmul(x, w) - 1.0))
    train = tensoropt.MomentumOptimizer(0.1, 0.9).minimize(loss)
    feeds = {x: np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)}

    alone = tensoropt.find_frontier(tensoropt.cluster.presets.cpu(2)).memory_bytes[0]
    if ending == "built before":
        tensoropt.build_execution_graph(plan=tensoropt.find_strategy(), collectives=collectives)
        tensoropt.run(train, feeds)
    plan = tensoropt.find_strategy("mini_parallelism", memory_bytes=None if ending == "alone" else alone)
    atexit.register(lambda: print(f"ATEXIT {rank}", flush=True))
    if ending != "built before":
        try:
            tensoropt.verify(plan)
        except TensorOptError as error:
            print(f"VERIFY {rank} {error}", flush=True)
    build(plan, collectives)

    assert (tensoropt.world_size(), tensoropt.world_rank()) == (plan.mesh.size, rank)
    share = {x: np.split(feeds[x], tensoropt.world_size())[rank]}
    losses = [float(tensoropt.run([loss, train], share)[0]) for _ in range(4)]
    reference = tensoropt.reference_losses(loss, train, [feeds] * 4)
    np.testing.assert_allclose(losses, reference, rtol=1e-5)
    tensoropt.verify(plan)
    again = tensoropt.find_strategy("mini_time")
    assert again.mesh == plan.mesh
    tensoropt.build_execution_graph(plan=again, collectives=collectives)
    tensoropt.run(train, feeds)
    print("TRAINED", json.dumps([rank, size, tensoropt.world_size(), losses]), flush=True)
    if ending == "failure" and rank == 1:
        raise RuntimeError("out of cheese")
    if ending == "failure":
        tensoropt.run(train, feeds)


main()
