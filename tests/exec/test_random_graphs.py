"""Random models under random legal plans give the numbers of one process."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

import tensoropt as to
from tensoropt.api.mirror.model import leave_graph
from tensoropt.exec.program.replicas import copies_apart
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorId
from tensoropt.plan.configuration import at
from tensoropt.plan.plan import row_edges, rules_of
from tests.effort import EVERY_CASE, GRAPHS, THOROUGH, left_to_ci
from tests.exec.random_models import RandomModel
from tests.exec.random_runs import (
    Case,
    differences,
    first_difference,
    make_case,
    reference_outcome,
    small_session,
    train,
)
from tests.exec.random_training import Turn
from tests.mpi_support import run_mpi
from tests.thread_world import run_threads

_SCRIPT = Path(__file__).with_name("random_graphs_ranks.py")
# The other ones are tried as threads.
_UNDER_MPIRUN = 20 if EVERY_CASE else GRAPHS // 3
_FEW = 10  # at a time, for workers that share the tests
# By mesh the first seed, and how many follow; with those under mpirun, CI tries two hundred.
_SEEDS: Mapping[tuple[int, ...], tuple[int, int]] = {
    (2, 2): (_UNDER_MPIRUN, 120),
    (2, 3): (200, 12),
    (2, 2, 2): (220, 8),
    (3,): (240, 20),
    (2,): (260, 20),
}
_THREADS = [
    (begin, min(_FEW, first + count - begin), mesh)
    for mesh, (first, count) in _SEEDS.items()
    for begin in range(first, first + count, _FEW)
]


@pytest.mark.mpi
def test_random_graphs_train_like_one_process_under_mpirun() -> None:
    result = run_mpi(_SCRIPT, 4, 0, _UNDER_MPIRUN, timeout=900)
    assert re.search(rf"{_UNDER_MPIRUN} graphs on 4 ranks, 0 differ", result.stdout), result.stdout


@pytest.mark.tf
@left_to_ci("half a minute each, of what others train under mpirun")
@pytest.mark.parametrize(
    ("first", "count", "mesh"),
    _THREADS,
    ids=lambda value: "x".join(map(str, value)) if isinstance(value, tuple) else None,
)
def test_random_graphs_train_like_one_process_on_threads(
    first: int, count: int, mesh: tuple[int, ...], tmp_path: Path
) -> None:
    failures = [problem for seed in range(first, first + count) for problem in _problems(seed, mesh, tmp_path)]
    assert not failures, "\n".join(failures)


def _problems(seed: int, mesh: tuple[int, ...], folder: Path) -> list[str]:
    ranks = math.prod(mesh)
    case = make_case(seed, ranks, folder)
    assert case.plan.mesh.shape == mesh
    return problems_of(case, mesh)


def problems_of(case: Case, mesh: tuple[int, ...]) -> list[str]:
    ranks = math.prod(mesh)
    found = run_threads(ranks, mesh, lambda engine: train(case, engine, agree=None, config=small_session()))
    expected = reference_outcome(case, found[0])
    wrong = [(rank, what) for rank, one in enumerate(found) for what in differences(case, one, expected)]
    wrong += [(0, what) for what in copies_apart([one.stored for one in found])]
    if not wrong:
        return []
    where = run_threads(ranks, mesh, lambda engine: first_difference(case, engine, small_session()))[0]
    return [f"seed {case.model.seed}: {wrong[:4]}\n{where}"]


@pytest.mark.tf
def test_two_lookups_in_one_table_train_like_one_process_under_random_plans(tmp_path: Path) -> None:
    failures = []
    for seed in range(6 if THOROUGH else 3):  # each has another optimizer
        case = make_case(seed, 4, tmp_path, build=_two_lookups)
        assert any(edge.consumer == "table/fanout0" for edge in row_edges(case.imported.graph, _rules(case)))
        failures += problems_of(case, (2, 2))
    assert not failures, "\n".join(failures)


@pytest.mark.tf
def test_every_forward_value_can_be_fetched_and_is_that_of_one_process(tmp_path: Path) -> None:
    for seed in (601, 605, 612) if THOROUGH else (605,):  # 605 has a sigmoid that TensorFlow fuses away
        case = make_case(seed, 4, tmp_path)
        found = _first_differences(case)
        assert set(found) == {"no forward value differs"}, f"seed {seed}: {found[0]}"


def _first_differences(case: Case) -> list[str]:
    return run_threads(4, (2, 2), lambda engine: first_difference(case, engine, small_session()))


def _rules(case: Case) -> dict[str, OpRule]:
    return rules_of(case.imported.graph)


def _two_lookups(seed: int) -> RandomModel:
    """Two lookups, with numbers that appear twice, in a table whose rows are not all looked up."""
    to.reset_default_graph()
    random = np.random.default_rng(seed)
    ids = [to.placeholder(to.int32, [8], name=name) for name in ("ids", "more")]
    initial = to.random_normal_initializer(seed=1)
    table = to.get_variable("table", [16, 8], to.float64, initializer=initial)
    one, other = (to.gather(table, each) for each in ids)
    loss = to.reduce_mean(to.square(one * other + to.tanh(one)), name="loss")
    optimizers = [to.train.AdamOptimizer(0.05), to.train.AdagradOptimizer(0.05), to.train.MomentumOptimizer(0.05, 0.9)]
    train = optimizers[seed % 3].minimize(loss)
    leave_graph()
    feeds = tuple({name: random.integers(0, 12, 8).astype(np.int32) for name in ("ids", "more")} for _ in range(3))
    return RandomModel(seed, "float64", (Turn(train.name, (loss.name,)),) * 3, ("table",), feeds)


@pytest.mark.tf
def test_rows_of_a_gradient_are_in_one_order_on_all_devices_where_the_table_is_split_by_rows(tmp_path: Path) -> None:
    case = make_case(62, 4, tmp_path)  # its plan divides the rows once more, by what each device takes for their order
    gradient = next(op for op in case.imported.graph.operators if op.type == "Gradient" and len(op.outputs) == 2)
    readers = [edge.consumer for edge in case.imported.graph.consumers(TensorId(gradient.name, 1))]
    assert case.plan.configuration(gradient.inputs[0].op).actions == (at(0), "d0")
    assert any(case.plan.configuration(name).actions == ("n0", "s") for name in readers)
    assert not problems_of(case, (2, 2))
