"""The stand-in for ranks: the contract's collectives, and how it ends when a rank fails."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from tensoropt.errors import CollectiveError
from tests.exec.engines.contract_program import (
    check_every_kind_axes_and_dtype,
    check_in_place_keeps_other_readers,
    check_order_of_independent_collectives,
    check_shape_known_at_run_time_only,
)
from tests.thread_world import ThreadEngine, run_threads, session_config

pytestmark = pytest.mark.tf


@pytest.mark.parametrize("mesh_shape", [(2,), (3,), (2, 2), (2, 3), (2, 2, 2)])
def test_collectives_equal_numpys(mesh_shape: tuple[int, ...]) -> None:
    def check(engine: ThreadEngine) -> int:
        return check_every_kind_axes_and_dtype(engine, engine.comm) + check_in_place_keeps_other_readers(engine)

    assert set(run_threads(int(np.prod(mesh_shape)), mesh_shape, check)).pop() > 50


def test_open_shapes_and_order() -> None:
    def check(engine: ThreadEngine) -> int:
        return check_shape_known_at_run_time_only(engine) + check_order_of_independent_collectives(engine)

    assert run_threads(4, (2, 2), check) == [6] * 4


def test_results_come_in_order_of_ranks() -> None:
    assert run_threads(3, (3,), lambda engine: engine.rank * 10) == [0, 10, 20]


def test_control_messages() -> None:
    def talk(engine: ThreadEngine) -> tuple[list, object]:
        engine.comm.barrier()
        return engine.comm.allgather(engine.rank), engine.comm.bcast(f"from {engine.rank}", root=1)

    assert run_threads(2, (2,), talk) == [([0, 1], "from 1")] * 2


def test_first_error_of_a_rank_ends_all() -> None:
    def fail(engine: ThreadEngine) -> None:
        if engine.rank == 1:
            raise ValueError("rank 1 is broken")
        engine.comm.barrier()

    with pytest.raises(ValueError, match="rank 1 is broken"):
        run_threads(3, (3,), fail)


def test_error_reaches_a_rank_inside_a_session() -> None:
    def fail(engine: ThreadEngine) -> None:
        with tf.Graph().as_default(), engine.program():
            y = engine.all_reduce(tf.zeros([2]), (0,))
            if engine.rank == 1:
                raise ValueError("rank 1 is broken")
            with tf.compat.v1.Session(config=session_config()) as session:
                session.run(y)

    with pytest.raises(ValueError, match="rank 1 is broken"):
        run_threads(2, (2,), fail)


def test_members_with_different_collectives_are_told() -> None:
    def meet(engine: ThreadEngine) -> None:
        with tf.Graph().as_default(), engine.program():
            y = engine.all_reduce(tf.zeros([2 + engine.rank]), (0,))
            with tf.compat.v1.Session(config=session_config()) as session:
                session.run(y)

    with pytest.raises(CollectiveError, match=r"rank 0: all_reduce\[sum\] float32 \(2,\); rank 1: .*\(3,\)"):
        run_threads(2, (2,), meet)


def test_stalled_collective_names_who_waits_where() -> None:
    def stall(engine: ThreadEngine) -> None:
        if engine.rank == 0:
            engine.comm.barrier()

    with pytest.raises(CollectiveError, match=r"rank 0: waits in control barrier .*; rank 1: in no collective"):
        run_threads(2, (2,), stall, stall_s=0.3)


def test_mesh_of_another_size_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"the mesh \(2, 2\) holds 4 ranks, not 3"):
        run_threads(3, (2, 2), lambda engine: None)
