"""One job of :mod:`benchmarks.soak`; every rank prints one line of JSON with its last loss."""

from __future__ import annotations

import argparse
import faulthandler
import json

import numpy as np

from benchmarks.models import SHORT

__all__ = ["OPTIONS"]

OPTIONS = ("data_parallel", "mini_time", "zero3")
_SEED = 7


def main() -> None:
    """Starts, trains and ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=sorted(SHORT), required=True)
    parser.add_argument("--option", choices=OPTIONS, required=True)
    parser.add_argument("--engine", required=True)
    parser.add_argument("--costs", required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--dump-after", type=float, required=True, metavar="SECONDS")
    flags = parser.parse_args()
    faulthandler.enable()
    faulthandler.dump_traceback_later(flags.dump_after)

    import tensoropt

    model = SHORT[flags.model]
    tensoropt.init()
    tensoropt.set_random_seed(_SEED)
    built = model.build(tensoropt, model.batch_size)
    train_op = model.train(tensoropt, "sgd", built.loss)
    if flags.option == "zero3":
        plan = tensoropt.find_strategy(search="zero3", costs=flags.costs)
    else:
        plan = tensoropt.find_strategy(flags.option, costs=flags.costs)
    tensoropt.build_execution_graph(plan=plan, collectives=flags.engine)
    rng = np.random.default_rng(_SEED)
    rank, count = tensoropt.world_rank(), model.batch_size // tensoropt.world_size()
    for _ in range(flags.steps):
        batch = model.batch(rng, model.batch_size)
        mine = {built.feeds[name]: array[rank * count :][:count] for name, array in batch.items()}
        loss, _ = tensoropt.run([built.loss, train_op], mine)
    print(json.dumps({"rank": rank, "loss": float(loss)}), flush=True)


if __name__ == "__main__":
    main()
