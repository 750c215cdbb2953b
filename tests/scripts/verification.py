"""What ``verify`` finds, case by case in one job."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import tensorflow as tf

import tensoropt
from tensoropt.errors import VerificationError
from tensoropt.exec.program import building
from tensoropt.exec.program.gradient import with_gradient
from tensoropt.exec.program.lowering import OpLowering
from tensoropt.graph.registry import traits
from tensoropt.plan.plan import Plan
from tests.scripts.cases import BATCH, batch, case, classifier, close, core_case, normal, random_plan, sgd_classifier


def model() -> dict[str, Any]:
    """The classifier, in an empty graph."""
    tensoropt.reset_default_graph()
    tensoropt.random.set_seed(1)
    return sgd_classifier(tensoropt)


def fails(plan: Plan, message: str, **options: Any) -> None:
    """Checks that verification fails, with a message."""
    try:
        found = tensoropt.verify(plan, **options)
    except VerificationError as error:
        assert re.search(message, str(error)), f"{error} is not about {message}"
    else:
        raise AssertionError(f"verify found nothing: {found}")


@contextmanager
def lowered(name: str, change: Callable[[Sequence[Any], list[Any]], list[Any]]) -> Iterator[None]:
    """Plants an error: the outputs of one operator are changed."""
    right = building.lower_operator

    def wrong(context: OpLowering, inputs: Sequence[Any]) -> list[Any]:
        outputs = right(context, inputs)
        return change(inputs, outputs) if context.op.name == name else outputs

    building.lower_operator = wrong
    try:
        yield
    finally:
        building.lower_operator = right


@core_case
def any_plan_is_right() -> None:
    averaged = tensoropt.train.ExponentialMovingAverage(0.5)  # begins as what it is of
    averaged.apply([model()["w1"]])
    for option in ("mini_time", "data_parallel", "mini_memory"):
        found = tensoropt.verify(tensoropt.find_strategy(option), steps=2)
        assert found.steps == 2 and found.loss_difference < 1e-5 and found.variable_difference < 1e-5, found
    for seed in range(4):
        tensoropt.verify(random_plan(seed), steps=2)


@case
def normalization_dropout_and_momentum_are_right() -> None:
    tensoropt.reset_default_graph()
    x = tensoropt.placeholder(tensoropt.float32, [BATCH, 6, 6, 2], name="x")
    hidden = tensoropt.layers.conv2d(x, 4, 3, padding="same")
    hidden = tensoropt.layers.batch_normalization(hidden, training=True, momentum=0.5)
    hidden = tensoropt.nn.relu(tensoropt.layers.flatten(hidden))
    hidden = tensoropt.layers.dropout(hidden, 0.3, training=True)
    loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.layers.dense(hidden, 3)))
    step = tensoropt.train.get_or_create_global_step()
    with tensoropt.control_dependencies(tensoropt.get_collection(tensoropt.GraphKeys.UPDATE_OPS)):
        train = tensoropt.train.MomentumOptimizer(0.05, 0.9).minimize(loss, global_step=step)
    plans = [tensoropt.find_strategy(option) for option in ("mini_time", "data_parallel")]
    for plan in [*plans, random_plan(1), random_plan(2)]:
        tensoropt.verify(plan, steps=2)
    tensoropt.build_execution_graph(plan=plans[0])
    moving = next(v for v in tensoropt.global_variables() if "moving_mean" in v.name)
    before = tensoropt.run(moving)
    feeds = {x: np.random.default_rng(0).normal(size=(BATCH, 6, 6, 2)) + 1.0}
    tensoropt.run(train, feeds)
    assert np.max(np.abs(tensoropt.run(moving) - before)) > 0.01
    assert tensoropt.run(step) == 1


@case
def the_variables_of_the_job_are_left_alone() -> None:
    made = model()
    plan = tensoropt.find_strategy()
    tensoropt.build_execution_graph(plan=plan)
    tensoropt.run(made["train"], {made[name]: value for name, value in batch(0).items()})
    before = tensoropt.run([made["w1"], made["w2"]])
    tensoropt.verify(plan)
    for mine, theirs in zip(tensoropt.run([made["w1"], made["w2"]]), before, strict=True):
        close(mine, theirs, "variable")


@case
def batches_and_the_training_step_can_be_given() -> None:
    made = model()
    tensoropt.train.AdamOptimizer(0.1).minimize(made["loss"], name="other")
    asked: list[int] = []

    def feeds(number: int) -> dict[Any, Any]:
        asked.append(number)
        return {made[name]: value for name, value in batch(number).items()}

    plan = tensoropt.find_strategy()
    found = tensoropt.verify(plan, steps=2, feeds=feeds, train_op="other")
    assert asked == [0, 1] and found.steps == 2, (asked, found)
    assert str(found).startswith("2 steps by ") and "operators are split, equal one process's on every rank" in str(
        found
    )


@case
def a_wrong_value_is_found_at_the_operator_that_made_it() -> None:
    model()
    for option in ("data_parallel", "mini_time"):
        with lowered("logits", lambda inputs, outputs: [outputs[0] * 1.01]):
            fails(
                tensoropt.find_strategy(option),
                r"^MatMul 'logits' \(cases\.py:\d+\): its value differs from one process's by 0\.0\d+ .*"
                r"under configuration .*It is the first that does",
            )


def larger_gradient(inputs: Sequence[Any], outputs: list[Any]) -> list[Any]:
    """The gradient of an operator's inputs is a hundredth too large."""
    return with_gradient(outputs, [tf.identity(outputs[0])], lambda gradient: [tf.convert_to_tensor(gradient) * 1.01])


@case
def a_wrong_gradient_is_found() -> None:
    model()
    plan = tensoropt.find_strategy("data_parallel")
    with lowered("logits", larger_gradient):
        fails(plan, r"^Variable 'w2' .*: its gradient differs from one process's by .*It is the first", tolerance=1e-5)


@case
def a_wrong_gradient_of_tiny_numbers_is_found() -> None:
    tensoropt.reset_default_graph()
    made = classifier(tensoropt)
    tensoropt.train.AdamOptimizer(0.01).minimize(made["loss"] * 1e-7)
    plan = tensoropt.find_strategy("data_parallel")
    assert tensoropt.verify(plan, steps=2).gradient_difference < 1e-5
    with lowered("logits", larger_gradient):
        fails(plan, r"^Variable 'w2' .*: its gradient differs from one process's by 0\.0\d+ on rank \d ")


@contextmanager
def updated(change: Callable[[OpLowering, Any, Any], tuple[Any, Any]]) -> Iterator[None]:
    """Plants an error: the learning rate or the gradient of updates by gradient descent is changed."""
    right = OpLowering.emit

    def wrong(context: OpLowering, inputs: Sequence[Any], **changed: Any) -> Any:
        if traits(context.op).updates:
            variable, rate, gradient = inputs
            inputs = [variable, *change(context, rate, gradient)]
        return right(context, inputs, **changed)

    OpLowering.emit = wrong  # type: ignore[method-assign,assignment]
    try:
        yield
    finally:
        OpLowering.emit = right  # type: ignore[method-assign]


@case
def a_wrong_update_is_found() -> None:
    model()
    plan = tensoropt.find_strategy("data_parallel")
    with updated(lambda context, rate, gradient: (rate * 1.2, gradient)):
        fails(plan, r"^Variable '\w+' .*: its value after the update differs from one process's by ", steps=1)


@case
def one_wrong_element_of_one_variable_on_one_rank_is_found() -> None:
    made = model()
    last = tensoropt.world_size() - 1

    def one_element_off(context: OpLowering, rate: Any, gradient: Any) -> tuple[Any, Any]:
        """On the last rank, one element of a gradient is off by a hundredth of the largest."""
        if tensoropt.world_rank() == last and context.op.inputs[0].op == made["w2"].op.name:
            flat = tf.reshape(gradient, [-1])
            smallest = tf.one_hot(tf.argmin(tf.abs(flat)), tf.size(flat), dtype=flat.dtype)
            gradient = tf.reshape(flat + 0.01 * tf.reduce_max(tf.abs(flat)) * smallest, tf.shape(gradient))
        return rate, gradient

    plan = tensoropt.find_strategy("data_parallel")
    with updated(one_element_off):
        fails(
            plan,
            rf"^Variable '{made['w2'].op.name}' .*: its value after the update differs from one process's by "
            rf"0\.0\d+ on rank {last} ",
            steps=1,
        )


@case
def a_value_that_is_not_finite_on_one_side_is_found() -> None:
    model()
    with lowered("logits", lambda inputs, outputs: [outputs[0] / 0.0]):
        fails(tensoropt.find_strategy("data_parallel"), r"^MatMul 'logits' .*differs from one process's by inf ")


@case
def numbers_that_vary_from_run_to_run_are_called_so() -> None:
    calls: list[int] = []

    def change(inputs: Sequence[Any], outputs: list[Any]) -> list[Any]:
        calls.append(0)
        return [outputs[0] * (1.5 if len(calls) == 1 else 1.0)]

    model()
    with lowered("logits", change):
        fails(tensoropt.find_strategy("data_parallel"), r"could not be seen again, so the numbers vary from run to run")


@case
def the_reference_is_tensorflow_itself() -> None:
    from tests.scripts.cases import Plain

    made = model()
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy())
    feeds = [{made[name]: value for name, value in batch(number).items()} for number in range(3)]
    plain = Plain(sgd_classifier)
    theirs = [plain.run(["loss", "train"], batch(number))[0] for number in range(3)]
    close(tensoropt.reference_losses(made["loss"], made["train"], feeds), theirs, "losses")
    assert normal(tensoropt, 1) is not None
