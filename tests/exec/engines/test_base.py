"""What the base class checks, records and chains, on ranks that are threads."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import tensorflow as tf

from tensoropt.errors import CollectiveError, EngineError
from tests.control_flow import control_flow_v2
from tests.thread_world import ThreadEngine, ThreadWorld, run_threads, session_config

pytestmark = pytest.mark.tf


@pytest.fixture
def engine() -> ThreadEngine:
    """An engine of rank 0 on a [2,2] mesh, to build graphs with; nobody is there to run them with."""
    return ThreadEngine((2, 2), ThreadWorld(4), 0)


WRONG: list[tuple[str, Callable[[ThreadEngine], object], str]] = [
    ("axis twice", lambda e: e.all_reduce(tf.zeros([2]), (0, 0)), "distinct axes of the mesh (2, 2)"),
    ("axis unknown", lambda e: e.all_gather(tf.zeros([2]), (2,)), "distinct axes of the mesh (2, 2)"),
    ("op", lambda e: e.all_reduce(tf.zeros([2]), (0,), op="mean"), "op must be one of max, min, sum. Got 'mean'"),
    ("sum of bool", lambda e: e.all_reduce(tf.constant(True), (0,)), "dtype bool is not supported with op='sum'"),
    (
        "max of complex",
        lambda e: e.all_reduce(tf.zeros([], tf.complex64), (0,), op="max"),
        "dtype complex64 is not supported with op='max'",
    ),
    ("string", lambda e: e.broadcast(tf.constant("a"), (0,)), "dtype string is not supported"),
    ("bool slices", lambda e: e.reduce_scatter(tf.constant([True] * 2), (0,)), "dtype bool is not supported"),
    ("slices", lambda e: e.reduce_scatter(tf.zeros([3, 2]), (0,)), "equal the group's size 2"),
    ("more slices", lambda e: e.all_to_all(tf.zeros([2, 2]), (0, 1)), "equal the group's size 4"),
    ("scalar slices", lambda e: e.all_to_all(tf.zeros([]), (0,)), "the leading dimension must be static"),
    (
        "open slices",
        lambda e: e.all_to_all(tf.compat.v1.placeholder(tf.float32, [None, 2]), (0,)),
        "the leading dimension must be static",
    ),
    ("root", lambda e: e.broadcast(tf.zeros([2]), (0,), root=2), "0 to 1. Got root=2"),
    ("negative root", lambda e: e.broadcast(tf.zeros([2]), (0,), root=-1), "0 to 1. Got root=-1"),
    (
        "sources",
        lambda e: e.permute(tf.zeros([2]), (0, 1, 2, 2)),
        "a permutation of the ranks 0 to 3. Got (0, 1, 2, 2)",
    ),
    ("few sources", lambda e: e.permute(tf.zeros([2]), (1, 0)), "a permutation of the ranks 0 to 3. Got (1, 0)"),
]


@pytest.mark.parametrize(("emit", "message"), [row[1:] for row in WRONG], ids=[row[0] for row in WRONG])
def test_wrong_argument_is_named(engine: ThreadEngine, emit: Callable[[ThreadEngine], object], message: str) -> None:
    with tf.Graph().as_default() as graph, engine.program():
        with pytest.raises(CollectiveError, match=re.escape(message)):
            emit(engine)
        assert engine.emitted(graph) == ()


def test_mesh_of_another_size_than_the_world_is_an_error() -> None:
    with pytest.raises(EngineError, match=r"the mesh \(2, 3\) holds 6 ranks, but the job was started with 4"):
        ThreadEngine((2, 3), ThreadWorld(4), 0)


def test_eager_tensor_is_an_error(engine: ThreadEngine) -> None:
    eager = tf.constant(1.0)
    with tf.Graph().as_default(), engine.program():
        with pytest.raises(CollectiveError, match=r"must be a symbolic one of the default graph"):
            engine.all_reduce(eager, (0,))


def test_tensor_of_another_graph_is_an_error(engine: ThreadEngine) -> None:
    with tf.Graph().as_default():
        x = tf.constant(1.0)
    with tf.Graph().as_default(), engine.program():
        with pytest.raises(CollectiveError, match=r"must be a symbolic one of the default graph"):
            engine.all_reduce(x, (0,))


def test_collective_outside_of_a_program_is_an_error(engine: ThreadEngine) -> None:
    with tf.Graph().as_default():
        with pytest.raises(CollectiveError, match=r"must belong to a program"):
            engine.all_reduce(tf.zeros([2]), (0,))
        with engine.program():
            engine.all_reduce(tf.zeros([2]), (0,))
        with pytest.raises(CollectiveError, match=r"must belong to a program"):
            engine.all_reduce(tf.zeros([2]), (0,))


def test_program_inside_a_program_is_an_error(engine: ThreadEngine) -> None:
    with engine.program(), pytest.raises(CollectiveError, match=r"Program 0 is still open"), engine.program():
        pass


def test_program_closes_after_an_error(engine: ThreadEngine) -> None:
    with pytest.raises(ValueError, match="inside"), engine.program():
        raise ValueError("inside")
    with engine.program() as program:
        assert program.number == 1


def test_program_in_two_graphs_is_an_error(engine: ThreadEngine) -> None:
    with engine.program():
        with tf.Graph().as_default():
            engine.all_reduce(tf.zeros([2]), (0,))
        with tf.Graph().as_default(), pytest.raises(CollectiveError, match=r"Got one in another graph"):
            engine.all_reduce(tf.zeros([2]), (0,))


def test_collective_in_control_flow_is_an_error(engine: ThreadEngine) -> None:
    with tf.Graph().as_default(), engine.program():
        flag = tf.compat.v1.placeholder(tf.bool, [])
        for as_functions in (False, True):
            refused = pytest.raises(CollectiveError, match=r"Got one in a branch, loop or function")
            with control_flow_v2(as_functions), refused:
                tf.cond(flag, lambda: engine.all_reduce(tf.zeros([]), (0,)), lambda: tf.zeros([]))


def test_group_of_one_emits_no_collective(engine: ThreadEngine) -> None:
    with tf.Graph().as_default() as graph, engine.program():
        x = tf.zeros([1, 3])
        assert engine.all_reduce(x, ()) is x
        assert engine.all_to_all(x, ()) is x
        assert engine.broadcast(x, ()) is x
        assert engine.permute(x, (0, 1, 2, 3)) is x
        assert engine.all_gather(x, ()).shape == (1, 1, 3)
        assert engine.reduce_scatter(x, ()).shape == (3,)
        assert engine.emitted(graph) == ()
        assert not [op for op in graph.get_operations() if "PyFunc" in op.type]


def test_emitted_lines_tell_kind_axes_dtype_and_shape(engine: ThreadEngine) -> None:
    with tf.Graph().as_default() as graph:
        with engine.program():
            engine.all_reduce(tf.zeros([4, 2]), (1, 0), op="max")
            engine.reduce_scatter(tf.zeros([2, 3], tf.int32), (1,))
        with engine.program():
            engine.permute(tf.zeros([], tf.bfloat16), (1, 0, 2, 3))
            engine.broadcast(tf.compat.v1.placeholder(tf.bool, [None]), (0,), root=1)
    assert engine.emitted(graph) == (
        "0: all_reduce[max] axes=(1, 0) float32 (4, 2)",
        "0: reduce_scatter axes=(1,) int32 (2, 3)",
        "1: permute[1, 0, 2, 3] world bfloat16 ()",
        "1: broadcast[1] axes=(0,) bool (None,)",
    )
    assert engine.emitted(tf.Graph()) == ()


def test_collectives_of_a_program_are_chained_and_programs_are_not(engine: ThreadEngine) -> None:
    with tf.Graph().as_default():
        with engine.program() as first:
            a = engine.all_reduce(tf.zeros([2]), (0,))
            b = engine.all_gather(tf.zeros([2]), (1,))
            assert first.last is b.op
            assert b.op is not None
        with engine.program():
            c = engine.all_reduce(tf.zeros([2]), (0,))
        with engine.program(after=b.op):
            d = engine.all_reduce(tf.zeros([2]), (0,))
    assert (a.op.control_inputs, b.op.control_inputs) == ([], [a.op])
    assert (c.op.control_inputs, d.op.control_inputs) == ([], [b.op])


def test_stacked_shapes_are_static(engine: ThreadEngine) -> None:
    with tf.Graph().as_default(), engine.program():
        assert engine.all_gather(tf.zeros([5]), (0, 1)).shape == (4, 5)
        assert engine.reduce_scatter(tf.zeros([4, 5]), (1, 0)).shape == (5,)
        assert engine.all_to_all(tf.zeros([2, 5]), (0,)).shape == (2, 5)


def test_ops_are_on_the_cpu(engine: ThreadEngine) -> None:
    with tf.Graph().as_default(), engine.program(), tf.device("/gpu:0"):
        assert "CPU:0" in engine.all_reduce(tf.zeros([2]), (0,)).device


def test_threads_of_a_world_train_like_one_process() -> None:
    def train(engine: ThreadEngine) -> list[np.ndarray]:
        with tf.Graph().as_default():
            w = tf.compat.v1.get_variable("w", initializer=np.ones((3, 2), np.float32), use_resource=True)
            x = tf.constant(np.random.default_rng(engine.rank).random((4, 3), np.float32))
            with engine.program():
                (gradient,) = tf.gradients(tf.reduce_sum(tf.tanh(tf.matmul(x, w)) ** 2), [w])
                step = w.assign_sub(0.1 * engine.all_reduce(gradient, (0, 1)))
            with tf.compat.v1.Session(config=session_config()) as session:
                session.run(w.initializer)
                return [session.run(step) for _ in range(3)]

    whole = np.concatenate([np.random.default_rng(rank).random((4, 3), np.float32) for rank in range(4)])
    w = np.ones((3, 2))
    expected = []
    for _ in range(3):
        y = np.tanh(whole @ w)
        w = w - 0.1 * whole.T @ (2 * y * (1 - y**2))
        expected.append(w)
    for steps in run_threads(4, (2, 2), train):
        np.testing.assert_allclose(np.stack(steps), np.stack(expected), rtol=1e-5)
