"""What TensorFlow refuses to compute is an error of the user's operator, the same on all ranks and under every plan."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt as to
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.mirror.model import current_model, leave_graph
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.errors import OpError
from tensoropt.exec.program.device_state import DeviceState
from tensoropt.exec.program.executor import Executor
from tensoropt.exec.program.op_errors import failed_operator, operator_error
from tensoropt.graph.operator import Operator
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.plan.configuration import Configuration
from tensoropt.space.space import SearchSpace
from tests.thread_world import run_threads, session_config

pytestmark = pytest.mark.tf

VOCABULARY, CLASSES, BATCH = 12, 24, 8


def _outcomes(mesh: tuple[int, ...], axes: Mapping[str, str], feeds: list[tuple[Any, Any]]) -> list[list[str]]:
    """What training steps on indices and labels end with on each rank: the loss, or an error."""
    to.reset_default_graph()
    numbers, classes = to.placeholder(to.int32, [BATCH], name="ids"), to.placeholder(to.int64, [BATCH], name="labels")
    table = to.get_variable("table", [VOCABULARY, CLASSES], initializer=to.ones_initializer())
    logits = to.gather(table, numbers, name="lookup")
    losses = to.nn.sparse_softmax_cross_entropy_with_logits(labels=classes, logits=logits, name="entropy")
    loss = to.reduce_mean(losses, name="loss")
    step = to.train.GradientDescentOptimizer(0.5).minimize(loss, name="step")
    leave_graph()
    imported = import_model(current_model())
    ranks = math.prod(mesh)
    space = SearchSpace(imported.graph, AnalyticCost(cpu(ranks)))
    chosen = {op.name: Configuration((axes.get(op.type),) * len(mesh)) for op in space.operators}
    plan = space.plan(space.assignment(chosen), "split")

    def run(engine: Any) -> list[str]:
        executor = Executor(DeviceState(imported.graph, plan, engine, config=session_config()))
        executor.state.set_variables(lambda name: np.ones((VOCABULARY, CLASSES), np.float32))
        said = []
        for ids, labels in feeds:
            try:
                fed = {"ids": ids.astype(np.int32), "labels": labels}
                said.append(f"{executor.run([TensorId(loss.op.name), step.name], fed)[0]:.4f}")
            except OpError as error:
                said.append(str(error))
        executor.state.close()
        return said

    return run_threads(ranks, mesh, run)


SPLIT = {
    "Variable": "d0",
    "ResourceGather": "v",
    "SparseSoftmaxCrossEntropyWithLogits": "c",
    "Gradient": "d0",
    "ResourceScatterAdd": "d0",
}
GOOD = np.arange(BATCH)


MESHES = [(), (2,), (2, 2)]


@pytest.mark.parametrize("mesh", MESHES)
def test_an_index_of_no_row_is_an_error_however_the_rows_are_split(mesh: tuple[int, ...]) -> None:
    bad = [-1, VOCABULARY, 99]
    rows = VOCABULARY // math.prod(mesh)
    feeds = [(np.array([*GOOD[1:], number]), GOOD) for number in bad]
    for rank, (*errors, loss) in enumerate(_outcomes(mesh, SPLIT, [*feeds, (GOOD, GOOD)])):
        for number, said in zip(bad, errors, strict=True):
            assert said.startswith("ResourceGather 'lookup' (") and "test_op_errors.py:" in said.partition(")")[0]
            assert f"failed on rank {rank}: indices[7] = {number} is not in [0, {rows}). It reads" in said
            part = f", of which this rank has float32[{rows}, {CLASSES}], int32[{BATCH}]" * (len(mesh) > 0)
            assert f"It reads float32[{VOCABULARY}, {CLASSES}], int32[{BATCH}]{part}. Give it" in said
        assert loss == f"{np.log(CLASSES):.4f}", "what failed must change no variable"


@pytest.mark.parametrize("mesh", MESHES)
def test_a_label_of_no_class_is_an_error_however_classes_are_split(mesh: tuple[int, ...]) -> None:
    bad = [-1, CLASSES]
    feeds = [(GOOD, np.array([label, *GOOD[1:]])) for label in bad]
    for rank, (*errors, loss) in enumerate(_outcomes(mesh, SPLIT, [*feeds, (GOOD, GOOD)])):
        for label, said in zip(bad, errors, strict=True):
            assert said.startswith("SparseSoftmaxCrossEntropyWithLogits 'entropy/entropy' (")
            assert f"failed on rank {rank}: " in said and f" {label} " in said and len(said) < 600
        assert loss == f"{np.log(CLASSES):.4f}", "what failed must change no variable"


def test_a_failure_of_no_operator_is_left_alone() -> None:
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        tf.no_op("lonely")
    for message in ("no node at all", "what\n\t [[{{node lonely}}]]", "what\n\t [[{{node unknown}}]]"):
        assert failed_operator(message, graph, {}) is None


def test_a_failure_backward_is_of_the_operator_whose_gradient_it_is() -> None:
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder(tf.float32, [2])
        y = tf.tanh(x)
        (dx,) = tf.gradients(y, x)
    message = f"2 root error(s) found.\n  (0) INVALID_ARGUMENT: too bad\n\t [[{{{{node {dx.op.name}}}}}]]"
    assert failed_operator(message, graph, {y.name: "act"}) == ("act", "too bad")


def test_a_failure_in_a_micro_batch_says_so_and_nothing_of_the_function_that_it_is() -> None:
    import tensorflow as tf

    with tf.Graph().as_default() as graph:
        y = tf.tanh(tf.compat.v1.placeholder(tf.float32, [2]), name="act")
    call = "{{function_node micro_batch_0}} "
    message = f"{call}{call}too bad\n\t [[{{{{node act}}}}]]"
    assert failed_operator(message, graph, {y.name: "act"}) == ("act", "too bad")
    spec = TensorSpec((8, 4), "float32")
    op, wrong = Operator("act", "Tanh", (), (spec,)), tf.errors.InvalidArgumentError(None, None, "too bad")
    text = str(operator_error(wrong, op, [spec], [spec], "too bad", 1, 2e6, 4))
    assert "too bad. It reads float32[8, 4]; it runs in 4 micro-batches, and the numbers count within a part" in text


def test_an_operator_that_finds_no_memory_says_what_to_plan() -> None:
    spec = TensorSpec((8, 4), "float32")
    op = Operator("wide", "MatMul", (), (spec,))
    none_left = tf.errors.ResourceExhaustedError(None, None, "OOM when allocating tensor")
    error = operator_error(none_left, op, [spec], [spec], "OOM when allocating tensor", 1, 2e6)
    assert isinstance(error, tf.errors.ResourceExhaustedError)
    assert "the plan takes, about 2,000,000 bytes for each step. Plan for less: give memory_bytes, " in str(error)
    wrong = tf.errors.InvalidArgumentError(None, None, "no such row")
    assert "Give it values that are legal" in str(operator_error(wrong, op, [spec], [spec], "no such row", 1, 2e6))
