"""Local parts of every declared op on real ranks, checked against the unsplit op; started by
``test_op_contract_mpi.py`` with mpirun.

Each argument, such as ``2x2:3:0``, is a mesh, how many configurations to check of each op on it, and how many op types
to skip after each one whose parts do not talk to each other. The meshes get smaller, from that of the job's ranks on:
ranks that are surplus end. Rank 0 prints ``MESH: checked N configurations of M op types`` for each, or every failure.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import tensorflow as tf

from tensoropt.exec.engines.launch import install_abort_hook, keep_first_ranks, start_mpi
from tensoropt.exec.engines.select import make_engine
from tensoropt.graph.rule import OpRule
from tensoropt.layout import Mesh
from tensoropt.plan.configuration import Configuration, configurations
from tests.op_harness import SampleGraph, lowered_types, samples_of


def chosen(rule: OpRule, mesh: Mesh, count: int) -> list[Configuration]:
    """Configurations whose parts talk come first, then those that split by most axes in most ways."""

    def order(configuration: Configuration) -> tuple[bool, int, int]:
        actions = [action for action in configuration.actions if action is not None]
        return not set(actions) & rule.communicates_over, -len(set(actions)), -len(actions)

    return sorted(configurations(rule, mesh), key=order)[:count]


def check(mesh: Mesh, count: int, skipped: int) -> list[str]:
    """Checks all op types; collective. Returns what is wrong, on rank 0."""
    world = start_mpi()
    engine = make_engine("mpi", mesh.shape)
    failures: list[str] = []
    checked = types = quiet = 0
    for op_type in lowered_types():
        graph = SampleGraph(samples_of(op_type)[0])
        if not graph.rule.communicates_over:
            quiet += 1
            if (quiet - 1) % (skipped + 1):
                continue
        with graph.graph.as_default(), engine.program():
            parts = [graph.part(mesh, configuration, engine) for configuration in chosen(graph.rule, mesh, count)]
        whole, made = graph.run(parts)
        types += 1
        checked += len(made)
        gathered = world.gather(made)
        if gathered is not None:
            failures += graph.failures(whole, [part for rank in gathered for part in rank])
    if world.rank == 0 and not failures:
        print(f"{'x'.join(map(str, mesh.shape))}: checked {checked} configurations of {types} op types", flush=True)
    engine.close()
    return failures


def main(runs: Sequence[str]) -> int:
    """Checks one mesh after another."""
    install_abort_hook(start_mpi())
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.threading.set_intra_op_parallelism_threads(1)
    failures: list[str] = []
    for run in runs:
        shape, count, skipped = run.split(":")
        mesh = Mesh(tuple(map(int, shape.split("x"))))
        if not keep_first_ranks(mesh.size):
            return 0
        failures += check(mesh, int(count), int(skipped))
    if failures:
        print("\n".join(failures), flush=True)
    return 1 if start_mpi().bcast(bool(failures)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
