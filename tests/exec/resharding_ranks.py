"""Reshards of many pairs of layouts on real ranks; started by ``test_resharding_ranks.py`` with mpirun.

Arguments: the mesh (``2x3``), the extent of the tensor's three dimensions, and how many pairs (0 for all). Of each
pair (source, target) the value goes forward and a gradient comes back, in one graph; then each distinct step of their
paths, and of eight times as many others', is run once by itself. Ends with status 0 and one line of figures, or raises.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.cluster.presets import cpu
from tensoropt.cluster.topology import Level, Topology
from tensoropt.cost import AnalyticCost
from tensoropt.exec.engines.launch import install_abort_hook, start_mpi
from tensoropt.exec.engines.mpi_engine import MpiEngine
from tensoropt.exec.resharding import reshard, reshard_edge
from tensoropt.layout import Layout, Mesh, ReshardTable, Step, reshard_table
from tests.exec.layout_states import mistake, pieces, whole_tensor

_ITEMSIZE = 4
_BATCH = 250  # pairs of one program
_STEPS_OF = 8  # times as many pairs, where not all are tried: their steps are


def planned(layout: Layout, steps: Sequence[Step], shape: Sequence[int], mesh: Mesh, rank: int) -> int:
    """The bytes that a rank sends by the plan."""
    total = 0
    for step in steps:
        total += step.bytes_sent(layout, shape, _ITEMSIZE, mesh, rank)
        layout = step.apply(layout)
    return total


def run(engine: Any, comm: Any, build: Any) -> tuple[list[list[np.ndarray]], int]:
    """Runs the tensors that ``build()`` makes: their values of all ranks, and the bytes that this rank sent."""
    with tf.Graph().as_default() as graph:
        with engine.program():
            tensors = build()
        engine.reset_counts()
        config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
        config.graph_options.rewrite_options.disable_meta_optimizer = True  # it would take longer than the run
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            values = session.run(tensors)
    sent = sum(engine.counted_bytes().values())
    by_rank = comm.allgather(values)
    return [[values[number] for values in by_rank] for number in range(len(tensors))], sent


def check(what: str, found: list[np.ndarray], whole: np.ndarray, layout: Layout, mesh: Mesh) -> None:
    problem = mistake(found, whole, layout, mesh)
    if problem is not None:
        raise AssertionError(f"{what}: {problem}")


def check_edges(
    table: ReshardTable, pairs: list[tuple[Layout, Layout]], shape: Sequence[int], mesh: Mesh, engine: Any, comm: Any
) -> None:
    """Edges whose value goes from the source to the target, and whose gradient comes back."""
    value, gradient = (whole_tensor(shape, seed).astype(np.float32) for seed in (1, 2))

    def build() -> list[Any]:
        made = []
        for source, target in pairs:
            piece = tf.identity(pieces(value, source, mesh, 3)[engine.rank])
            forward, backward = table.path(source, target), table.path(target, source)
            moved = reshard_edge(piece, source, forward, target, backward, source, mesh, engine)
            incoming = tf.constant(pieces(gradient, target, mesh, 4)[engine.rank])
            # An edge whose ends agree is the tensor itself.
            made += [moved, tf.gradients(moved, piece, incoming)[0]]
        return made

    values, sent = run(engine, comm, build)
    expected = 0
    for number, (source, target) in enumerate(pairs):
        forward, backward = table.path(source, target), table.path(target, source)
        check(f"{source} -> {target} by {list(map(str, forward))}", values[2 * number], value, target, mesh)
        back = f"gradient {target} -> {source} by {list(map(str, backward))}"
        check(back, values[2 * number + 1], gradient, source, mesh)
        expected += planned(source, forward, shape, mesh, engine.rank) + planned(
            target, backward, shape, mesh, engine.rank
        )
    if sent != expected:
        raise AssertionError(f"rank {engine.rank}: sent {sent} bytes, {expected} were planned")


def check_steps(steps: list[tuple[Layout, Step]], shape: Sequence[int], mesh: Mesh, engine: Any, comm: Any) -> None:
    """Single steps, each from a layout that it can start from."""
    value = whole_tensor(shape, 5).astype(np.float32)

    def build() -> list[Any]:
        return [
            reshard(tf.constant(pieces(value, layout, mesh, 6)[engine.rank]), layout, [step], mesh, engine)
            for layout, step in steps
        ]

    values, sent = run(engine, comm, build)
    for (layout, step), found in zip(steps, values, strict=True):
        check(f"{step} from {layout}", found, value, step.apply(layout), mesh)
    expected = sum(planned(layout, [step], shape, mesh, engine.rank) for layout, step in steps)
    if sent != expected:
        raise AssertionError(f"rank {engine.rank}: sent {sent} bytes, {expected} were planned")


def main() -> None:
    mesh = Mesh(tuple(map(int, sys.argv[1].split("x"))))
    shape = (int(sys.argv[2]),) * 3
    count = int(sys.argv[3])
    comm = start_mpi()
    install_abort_hook(comm)
    engine = MpiEngine(mesh.shape)
    levels = tuple(Level(f"level{i}", extent, 1e-5, 1e9 * (i + 1)) for i, extent in enumerate(mesh.shape))
    table = reshard_table(mesh, shape, _ITEMSIZE, AnalyticCost(Topology("test", levels, cpu(2).device)).step_seconds)
    pairs = [(source, target) for source in table.layouts for target in table.layouts]
    if count:
        chosen = np.random.default_rng(7).choice(len(pairs), _STEPS_OF * count, replace=False)
        pairs = [pairs[int(index)] for index in chosen]
    steps: dict[tuple[Layout, Step], None] = {}
    for source, target in pairs:
        layout = source
        for step in table.path(source, target):
            steps[layout, step] = None
            layout = step.apply(layout)
    pairs = pairs[: count or None]
    for start in range(0, len(pairs), _BATCH):
        check_edges(table, pairs[start : start + _BATCH], shape, mesh, engine, comm)
    single = list(steps)
    for start in range(0, len(single), 4 * _BATCH):
        check_steps(single[start : start + 4 * _BATCH], shape, mesh, engine, comm)
    if comm.rank == 0:
        print(f"{len(table.layouts)} layouts, {len(pairs)} pairs, {len(single)} steps")


if __name__ == "__main__":
    main()
