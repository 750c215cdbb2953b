"""Whether copies on several ranks keep the same bits over thousands of steps, by plans from along the frontier.

    mpirun -n 4 python -m benchmarks.replicas --steps 2000

Trains a small Transformer in float64 with Adam, under which a last bit of a gradient that should be 0 becomes a step of
full length. Copies are compared now and then, and last before they would be made equal.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

import tensoropt
from tensoropt.api.session.job import current_job
from tensoropt.cluster.presets import cpu
from tensoropt.exec.program.replicas import LEVEL_STEPS, copies_apart

_BATCH, _LENGTH, _WIDTH, _HEADS, _VOCABULARY = 8, 8, 16, 4, 32


def _norm(x: Any, name: str) -> Any:
    shape = [x.shape[-1]]
    scale = tensoropt.get_variable(f"{name}/scale", shape, x.dtype, tensoropt.initializers.constant(1.0))
    offset = tensoropt.get_variable(f"{name}/offset", shape, x.dtype, tensoropt.initializers.constant(0.0))
    mean, variance = tensoropt.nn.moments(x, axes=[-1], keep_dims=True)
    return (x - mean) * tensoropt.math.rsqrt(variance + 1e-6) * scale + offset


def _attention(x: Any, name: str) -> Any:
    parts = []
    for part in ("query", "key", "value"):
        projected = tensoropt.layers.dense(x, _WIDTH, name=f"{name}/{part}")
        split = tensoropt.reshape(projected, [_BATCH, _LENGTH, _HEADS, _WIDTH // _HEADS])
        parts.append(tensoropt.transpose(split, [0, 2, 1, 3]))
    weights = tensoropt.nn.softmax(tensoropt.matmul(parts[0], parts[1], transpose_b=True) * 0.5)
    mixed = tensoropt.transpose(tensoropt.matmul(weights, parts[2]), [0, 2, 1, 3])
    return tensoropt.layers.dense(tensoropt.reshape(mixed, [_BATCH, _LENGTH, _WIDTH]), _WIDTH, name=f"{name}/output")


def _model() -> tuple[Any, dict[str, Any]]:
    """The training step and the placeholders, in an empty graph."""
    tensoropt.reset_default_graph()
    tensoropt.random.set_seed(0)
    words = tensoropt.placeholder(tensoropt.int32, [_BATCH, _LENGTH], name="words")
    labels = tensoropt.placeholder(tensoropt.int32, [_BATCH, _LENGTH], name="labels")
    small = tensoropt.initializers.random_normal(stddev=0.3)
    table = tensoropt.get_variable("table", [_VOCABULARY, _WIDTH], tensoropt.float64, small)
    x = tensoropt.gather(table, words) + tensoropt.get_variable("places", [_LENGTH, _WIDTH], tensoropt.float64, small)
    for layer in range(2):
        x = x + _attention(_norm(x, f"norm{layer}"), f"attention{layer}")
        hidden = tensoropt.layers.dense(
            _norm(x, f"wide{layer}/norm"), 4 * _WIDTH, name=f"wide{layer}", activation=tensoropt.nn.gelu
        )
        x = x + tensoropt.layers.dense(hidden, _WIDTH, name=f"narrow{layer}")
    logits = tensoropt.layers.dense(_norm(x, "norm"), _VOCABULARY, name="logits")
    train = tensoropt.train.AdamOptimizer(0.003).minimize(tensoropt.softmax_cross_entropy(labels, logits))
    return train, {"words": words, "labels": labels}


def main() -> None:
    """Runs the benchmark; ends with an error if any copies differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=2 * LEVEL_STEPS)
    parser.add_argument("--points", type=float, nargs="+", default=[0.3, 0.5, 0.7], help="of the frontier, 0 to 1")
    parser.add_argument("--collectives", default="auto", choices=("auto", "mpi", "mpi4py", "horovod"))
    parser.add_argument("--json", type=Path, default=None, metavar="FILE")
    flags = parser.parse_args()
    ranks = tensoropt.init(cpu(_ranks())).device_count
    comm = current_job().world.comm
    results = []
    for place in flags.points:
        train, feeds = _model()
        frontier = tensoropt.find_frontier()
        index = min(len(frontier) - 1, int(place * len(frontier)))
        tensoropt.build_execution_graph(
            plan=tensoropt.find_strategy(frontier.point(index)), collectives=flags.collectives
        )
        random = np.random.default_rng(0)
        apart: list[str] = []
        for step in range(1, flags.steps + 1):
            batch = {feed: random.integers(0, _VOCABULARY, (_BATCH, _LENGTH)) for feed in feeds.values()}
            tensoropt.run(train, batch)
            if step % LEVEL_STEPS in (LEVEL_STEPS // 10, LEVEL_STEPS - 1) or step == flags.steps:
                stored = comm.allgather(current_job().require_executor("compare").state.stored())
                found = copies_apart(stored)
                apart += [f"step {step}: {what}" for what in found]
                if comm.rank == 0:
                    where = f"point {index} of {len(frontier)}, step {step} of {flags.steps}"
                    print(f"{where}: {len(found)} copies apart {found[:3]}", flush=True)
        results.append({"point": index, "of": len(frontier), "apart": apart})
    if comm.rank == 0 and flags.json is not None:
        flags.json.write_text(json.dumps({"ranks": ranks, "points": results}, indent=1) + "\n", encoding="utf-8")
    if any(result["apart"] for result in results):
        raise SystemExit("copies differ")


def _ranks() -> int:
    from tensoropt.exec.engines.launch import start_mpi

    return int(start_mpi().size)


if __name__ == "__main__":
    main()
