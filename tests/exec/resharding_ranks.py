"""Reshards of many pairs of layouts on real ranks; started by ``test_resharding_ranks.py`` with mpirun.

Each argument, such as ``2x3:6:98``, is a mesh, the extent of the tensor's three dimensions, and how many pairs. The
meshes get smaller, from that of the job's ranks on: ranks that are surplus end. Of each pair (source, target) the value
goes forward and a gradient comes back, in one graph; then each distinct step of their paths, and of those of seven
times as many others, is run once by itself. Ends with status 0 and one line of figures for each mesh, or raises.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.cluster.presets import cpu
from tensoropt.cluster.topology import Level, Topology
from tensoropt.cost import AnalyticCost
from tensoropt.exec.engines.launch import install_abort_hook, keep_first_ranks, start_mpi
from tensoropt.exec.engines.mpi_engine import MpiEngine
from tensoropt.exec.program.resharding import reshard, reshard_edge
from tensoropt.layout import Layout, Mesh, ReshardTable, Step, reshard_table
from tests.exec.layout_states import mistake, pieces, whole_tensor

_ITEMSIZE = 4
_BATCH = 250  # pairs of one program
_STEPS_OF = 8  # times as many pairs: their steps are tried


def planned(layout: Layout, steps: Sequence[Step], shape: Sequence[int], mesh: Mesh, rank: int) -> int:
    """The bytes that a rank sends by the plan."""
    total = 0
    for step in steps:
        total += step.bytes_sent(layout, shape, _ITEMSIZE, mesh, rank)
        layout = step.apply(layout)
    return total


def run(engine: Any, build: Any) -> tuple[list[np.ndarray], int]:
    """Runs the tensors that ``build()`` makes: their values on this rank, and the bytes that it sent."""
    with tf.Graph().as_default() as graph:
        with engine.program():
            tensors = build()
        engine.reset_counts()
        config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
        config.graph_options.rewrite_options.disable_meta_optimizer = True  # it would take longer than the run
        with tf.compat.v1.Session(graph=graph, config=config) as session:
            values = session.run(tensors)
    return values, sum(engine.counted_bytes().values())


Wanted = tuple[str, np.ndarray, Layout]  # what it is, the whole tensor, and how it lies


def check(wanted: Sequence[Wanted], values: Sequence[np.ndarray], mesh: Mesh, comm: Any) -> None:
    """Compares what all ranks have; each rank looks at some of the tensors."""
    turns = [values[rank :: comm.size] for rank in range(comm.size)]
    for (what, whole, layout), *found in zip(wanted[comm.rank :: comm.size], *comm.alltoall(turns), strict=True):
        problem = mistake(found, whole, layout, mesh)
        if problem is not None:
            raise AssertionError(f"{what}: {problem}")


def check_edges(
    table: ReshardTable, pairs: list[tuple[Layout, Layout]], shape: Sequence[int], mesh: Mesh, engine: Any, comm: Any
) -> None:
    """Edges whose value goes from the source to the target, and whose gradient comes back."""
    value, gradient = (whole_tensor(shape, seed).astype(np.float32) for seed in (1, 2))
    own_value, own_gradient = own_pieces(value, 3, mesh, engine), own_pieces(gradient, 4, mesh, engine)

    def build() -> list[Any]:
        made = []
        for source, target in pairs:
            piece = tf.identity(own_value(source))
            forward, backward = table.path(source, target), table.path(target, source)
            moved = reshard_edge(piece, source, forward, target, backward, source, mesh, engine)
            incoming = tf.constant(own_gradient(target))
            # An edge whose ends agree is the tensor itself.
            made += [moved, tf.gradients(moved, piece, incoming)[0]]
        return made

    values, sent = run(engine, build)
    expected = 0
    wanted: list[Wanted] = []
    for source, target in pairs:
        forward, backward = table.path(source, target), table.path(target, source)
        wanted.append((f"{source} -> {target} by {list(map(str, forward))}", value, target))
        wanted.append((f"gradient {target} -> {source} by {list(map(str, backward))}", gradient, source))
        expected += planned(source, forward, shape, mesh, engine.rank)
        expected += planned(target, backward, shape, mesh, engine.rank)
    check(wanted, values, mesh, comm)
    if sent != expected:
        raise AssertionError(f"rank {engine.rank}: sent {sent} bytes, {expected} were planned")


def check_steps(steps: list[tuple[Layout, Step]], shape: Sequence[int], mesh: Mesh, engine: Any, comm: Any) -> None:
    """Single steps, each from a layout that it can start from."""
    value = whole_tensor(shape, 5).astype(np.float32)
    own = own_pieces(value, 6, mesh, engine)

    def build() -> list[Any]:
        return [reshard(tf.constant(own(layout)), layout, [step], mesh, engine) for layout, step in steps]

    values, sent = run(engine, build)
    check([(f"{step} from {layout}", value, step.apply(layout)) for layout, step in steps], values, mesh, comm)
    expected = sum(planned(layout, [step], shape, mesh, engine.rank) for layout, step in steps)
    if sent != expected:
        raise AssertionError(f"rank {engine.rank}: sent {sent} bytes, {expected} were planned")


def own_pieces(whole: np.ndarray, seed: int, mesh: Mesh, engine: Any) -> Callable[[Layout], np.ndarray]:
    """What gives this rank's piece of a tensor in a layout."""
    return functools.cache(lambda layout: pieces(whole, layout, mesh, seed)[engine.rank])


def check_mesh(mesh: Mesh, shape: Sequence[int], count: int) -> None:
    """Checks so many pairs of layouts, and steps of more; collective."""
    comm = start_mpi()
    engine = MpiEngine(mesh.shape)
    levels = tuple(Level(f"level{i}", extent, 1e-5, 1e9 * (i + 1)) for i, extent in enumerate(mesh.shape))
    table = reshard_table(mesh, shape, _ITEMSIZE, AnalyticCost(Topology("test", levels, cpu(2).device)).step_seconds)
    pairs = [(source, target) for source in table.layouts for target in table.layouts]
    chosen = np.random.default_rng(7).choice(len(pairs), _STEPS_OF * count, replace=False)
    pairs = [pairs[int(index)] for index in chosen]
    steps: dict[tuple[Layout, Step], None] = {}
    for source, target in pairs:
        layout = source
        for step in table.path(source, target):
            steps[layout, step] = None
            layout = step.apply(layout)
    pairs = pairs[:count]
    for start in range(0, len(pairs), _BATCH):
        check_edges(table, pairs[start : start + _BATCH], shape, mesh, engine, comm)
    single = list(steps)
    for start in range(0, len(single), 4 * _BATCH):
        check_steps(single[start : start + 4 * _BATCH], shape, mesh, engine, comm)
    if comm.rank == 0:
        sizes = "x".join(map(str, mesh.shape))
        print(f"{sizes}: {len(table.layouts)} layouts, {len(pairs)} pairs, {len(single)} steps", flush=True)
    engine.close()


def main(runs: Sequence[str]) -> None:
    """Checks one mesh after another."""
    install_abort_hook(start_mpi())
    for run in runs:
        sizes, extent, count = run.split(":")
        mesh = Mesh(tuple(map(int, sizes.split("x"))))
        if not keep_first_ranks(mesh.size):
            return
        check_mesh(mesh, (int(extent),) * 3, int(count))


if __name__ == "__main__":
    main(sys.argv[1:])
