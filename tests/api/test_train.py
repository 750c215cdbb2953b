"""Gradients and optimizers: what they make in the model, what they refuse, and the numbers of one rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.mirror.model import Model, current_model, forget_model, reset_default_graph
from tensoropt.api.session.reference import InitialValues
from tensoropt.api.session.seeds import resolve_seeds, with_seeds
from tensoropt.cluster.presets import cpu
from tensoropt.errors import GraphError
from tensoropt.exec.program.device_state import DeviceState
from tensoropt.exec.program.executor import Executor
from tensoropt.graph.graph import Graph
from tensoropt.graph.spec import TensorId
from tests.scripts.cases import Plain, close
from tests.scripts.trainings import TRAININGS
from tests.thread_world import run_threads, session_config

pytestmark = pytest.mark.tf

v1 = tf.compat.v1


def _loss() -> tuple[Any, Any, Any]:
    """A quadratic loss of two variables, and the variables."""
    a = tensoropt.get_variable("a", [2])
    b = tensoropt.get_variable("b", [2])
    return tensoropt.reduce_sum(tensoropt.square(a) * b), a, b


def _rows() -> Any:
    """A loss of some rows of a table."""
    table = tensoropt.get_variable("table", [6, 4])
    return tensoropt.reduce_sum(tensoropt.square(tensoropt.gather(table, [1, 3, 1])))


def _graph(model: Model) -> Graph:
    return import_model(model).graph


def _training(graph: Graph, op_type: str) -> list[str]:
    return [op.name for op in graph.of_type(op_type) if op.name in graph.training]


class TestSteps:
    def test_minimize_makes_what_tensorflow_makes(self, model: Model) -> None:
        def names(m: Any) -> tuple[str, list[str], list[str]]:
            w = m.get_variable("w", [4, 2])
            step = m.train.get_or_create_global_step()
            loss = m.reduce_sum(m.square(w))
            made = m.train.AdamOptimizer(0.5).minimize(loss, global_step=step, name="step")
            variables = [f"{v.op.name} {v.shape}" for v in m.global_variables()]
            graph = v1.get_default_graph()
            updates = [op.name for op in graph.get_operations() if op.type.startswith("ResourceApply")]
            return made.name, variables, updates

        found = names(tensoropt)
        with tf.Graph().as_default():
            v1.get_variable_scope().set_use_resource(True)
            assert found == names(v1)
        assert [op.name for op in tensoropt.get_collection(tensoropt.GraphKeys.TRAIN_OP)] == ["step"]

    def test_a_step_imports_as_gradients_updates_and_slots(self, model: Model) -> None:
        loss, _, _ = _loss()
        step = tensoropt.train.MomentumOptimizer(0.5, 0.9).minimize(loss)
        imported = import_model(model)
        graph = imported.graph
        assert imported.steps == (step.name,)
        assert _training(graph, "Gradient") == ["gradients/1/b", "gradients/0/a"]  # in the order of their making
        updates = [graph[name] for name in _training(graph, "ResourceApplyMomentum")]
        assert [[str(op.inputs[place].op) for place in op.handles] for op in updates] == [
            ["a", "a/Momentum"], ["b", "b/Momentum"],
        ]  # fmt: skip
        assert [op.inputs[3].op for op in updates] == ["gradients/0/a", "gradients/1/b"]
        assert {op.name for op in graph.variables()} == {"a", "b", "a/Momentum", "b/Momentum"}

    def test_rows_stay_rows_and_those_of_one_index_are_added_up_where_tensorflow_does(self, model: Model) -> None:
        tensoropt.train.AdagradOptimizer(0.5).minimize(_rows(), name="merged")
        graph = _graph(model)
        (gradient,) = (graph[name] for name in _training(graph, "Gradient"))
        assert [spec.shape for spec in gradient.outputs] == [(3, 4), (3,)]
        assert len(_training(graph, "MergeRows")) == 1
        reset_default_graph()
        tensoropt.GradientDescentOptimizer(0.5).minimize(_rows())
        graph = _graph(current_model())
        assert _training(graph, "MergeRows") == []  # adding twice is adding the sum
        assert len(_training(graph, "ResourceScatterAdd")) == 1

    def test_listing_1_needs_no_learning_rate(self, model: Model) -> None:
        tensoropt.GradientDescentOptimizer().minimize(_loss()[0])
        graph = _graph(model)
        update = graph[_training(graph, "ResourceApplyGradientDescent")[0]]
        assert graph[update.inputs[1].op].attrs["value"] == np.float32(0.01)

    def test_every_optimizer_is_tensorflows_and_ours_and_may_be_extended(self) -> None:
        mine = tensoropt.train.AdamOptimizer
        assert issubclass(mine, tensoropt.train.Optimizer) and issubclass(mine, v1.train.AdamOptimizer)

        class Slower(mine):  # type: ignore[misc, valid-type]
            def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: Any = None) -> Any:
                return super().apply_gradients([(g / 2.0, v) for g, v in grads_and_vars], global_step, name)

        assert isinstance(Slower(0.1), v1.train.Optimizer)
        with pytest.raises(AttributeError, match="NoOptimizer"):
            _ = tensoropt.train.NoOptimizer

    def test_steps_of_one_optimizer_share_its_slots(self, model: Model) -> None:
        loss, a, b = _loss()
        shared, other = tensoropt.train.AdamOptimizer(), tensoropt.train.AdamOptimizer()
        ops = [shared.minimize(loss, var_list=[a]), other.minimize(loss), shared.minimize(loss, var_list=[a, b])]
        assert [op.name for op in ops] == ["Adam", "Adam_1", "Adam_2"]
        assert import_model(model).steps == ("Adam", "Adam_1", "Adam_2")
        assert shared.get_slot(a, "m") is not other.get_slot(a, "m")
        own, others = ({v.op.name for v in optimizer.variables()} for optimizer in (shared, other))
        assert len(own) == len(others) == 6 and not own & others  # two of each variable, and two powers
        assert {v.op.name for v in tensoropt.global_variables()} == {"a", "b"} | own | others

    def test_control_dependencies_stick_to_the_step(self, model: Model) -> None:
        loss = _loss()[0]
        count = tensoropt.get_variable("count", [], trainable=False)
        update = count.assign_add(1.0, read_value=False)
        with tensoropt.control_dependencies([update]):
            tensoropt.GradientDescentOptimizer().minimize(loss)
        assert update.name in _graph(model).training

    def test_parts_of_what_was_computed_may_be_applied(self, model: Model) -> None:
        loss, a, b = _loss()
        optimizer = tensoropt.train.AdamOptimizer()
        pairs = optimizer.compute_gradients(loss)
        assert [variable for _, variable in pairs] == [a, b]
        optimizer.apply_gradients(pairs[1:])
        graph = _graph(model)
        assert _training(graph, "Gradient") == ["gradients/1/b"]

    def test_there_are_gradients_where_tensorflow_has_some(self, model: Model) -> None:
        a, b, c, d = (tensoropt.get_variable(name, [2]) for name in "abcd")
        ids = tensoropt.cast(b, tensoropt.int32)
        loss = tensoropt.reduce_sum(a * tensoropt.stop_gradient(c) + tensoropt.cast(ids, tensoropt.float32))
        pairs = tensoropt.GradientDescentOptimizer().compute_gradients(loss)
        assert [(gradient is not None, variable.op.name) for gradient, variable in pairs] == [
            (True, "a"), (False, "b"), (False, "c"), (False, "d"),
        ]  # fmt: skip
        zeros = tensoropt.gradients(loss, [d], unconnected_gradients=tf.UnconnectedGradients.ZERO)
        assert zeros[0].shape == d.shape

    def test_an_optimizer_serves_a_new_model_after_a_reset(self, model: Model) -> None:
        optimizer = tensoropt.train.GradientDescentOptimizer(0.1)
        optimizer.minimize(_loss()[0])
        reset_default_graph()
        assert optimizer.minimize(_loss()[0]).name == "GradientDescent"


class TestSchedules:
    def test_piecewise_constant_learning_rate_is_tensorflows(self, model: Model) -> None:
        boundaries, values = [2, 5], [0.5, 0.25, 1.0]
        step = tensoropt.placeholder(tensoropt.int64, [])
        rate = tensoropt.train.piecewise_constant(step, boundaries, values)
        always = tensoropt.train.piecewise_constant_decay(step, [], [0.5])
        with v1.Session(graph=model.graph) as session:
            found = [session.run([rate, always], {step: at}) for at in range(8)]
        with tf.Graph().as_default(), v1.Session() as session:
            rates = [v1.train.piecewise_constant(np.int64(at), boundaries, values) for at in range(8)]
            assert found == [[wanted, 0.5] for wanted in session.run(rates)]

    @pytest.mark.parametrize(
        ("boundaries", "values", "text"),
        [
            ([2, 5], [0.5, 0.25], "one more value than boundaries, got 2 values and 2 boundaries"),
            ([2.0], [0.5, 0.25], "must have the dtype of x, int64, got float32"),
            ([2], [0.5, 1], "values must have one dtype, got float32 and int32"),
        ],
    )
    def test_piecewise_constant_says_what_does_not_fit(
        self, model: Model, boundaries: list[Any], values: list[Any], text: str
    ) -> None:
        with pytest.raises(GraphError, match=f"piecewise_constant 'PiecewiseConstant': .*{text}"):
            tensoropt.train.piecewise_constant(tensoropt.train.get_or_create_global_step(), boundaries, values)

    @pytest.mark.parametrize(
        "make",
        [
            lambda: 0.25,
            lambda: lambda: 0.25,
            lambda: tensoropt.constant(0.25),
            lambda: tensoropt.get_variable("rate", [], trainable=False),
        ],
    )
    def test_a_learning_rate_is_a_number_a_function_a_tensor_or_a_variable(self, model: Model, make: Any) -> None:
        tensoropt.GradientDescentOptimizer(make()).minimize(_loss()[0])
        graph = _graph(model)
        update = graph[_training(graph, "ResourceApplyGradientDescent")[0]]
        rate = graph[update.inputs[1].op.removesuffix("/fanout0")]
        assert rate.type == "Variable" or rate.attrs["value"] == 0.25


@pytest.mark.parametrize("name", TRAININGS)
def test_one_rank_trains_as_tensorflow_does(model: Model, name: str) -> None:
    training = TRAININGS[name]
    tensoropt.random.set_seed(1)
    made = training.make(tensoropt)
    imported = import_model(model)
    plan = tensoropt.find_strategy("data_parallel", topology=cpu(1))
    seeds = resolve_seeds(imported.tf_graph, 1)
    made = {what: getattr(value, "handle", value) for what, value in made.items()}
    names = [str(made[what].name) for what in training.fetches]
    fetches = [imported.noted.get(each) or TensorId(each.split(":")[0], int(each[-1])) for each in names]

    def train(engine: Any) -> list[Any]:
        executor = Executor(DeviceState(with_seeds(imported.graph, seeds), plan, engine, config=session_config()))
        initial = InitialValues(imported.tf_graph, seeds)
        executor.state.set_variables(initial)
        initial.close()
        found = []
        for number, turn in enumerate(training.turns):
            feeds = {made[key].op.name: np.asarray(value) for key, value in training.feeds(number).items()}
            executor.run([made[turn].name], feeds)
            found.append(executor.run(fetches, feeds))
        executor.state.close()
        return found

    (found,) = run_threads(1, (1,), train)
    plain = Plain(training.make)
    for number, turn in enumerate(training.turns):
        plain.run(turn, training.feeds(number))
        wanted = plain.run(list(training.fetches), training.feeds(number))
        for what, mine, theirs in zip(training.fetches, found[number], wanted, strict=True):
            close(mine, theirs, f"after {number + 1} turns: {what}")


class TestErrors:
    @pytest.mark.parametrize(
        ("make", "match"),
        [
            (lambda a: lambda: a, "a function as loss needs eager mode"),
            (lambda a: tensoropt.constant(1.0), "No gradients provided for any variable"),
        ],
    )
    def test_loss_that_cannot_be_trained(self, model: Model, make: Any, match: str) -> None:
        a = tensoropt.get_variable("a", [2])
        with pytest.raises((GraphError, ValueError), match=match):
            tensoropt.GradientDescentOptimizer().minimize(make(a))

    def test_there_must_be_a_variable_to_train(self, model: Model) -> None:
        with pytest.raises(GraphError, match=r"there is no variable to train. Make one with tensoropt.get_variable"):
            tensoropt.GradientDescentOptimizer().minimize(tensoropt.constant(1.0))

    def test_loss_of_an_old_model(self, model: Model) -> None:
        loss, _, _ = _loss()
        reset_default_graph()
        a = tensoropt.get_variable("a", [2])
        with pytest.raises(GraphError, match=r"the loss '.*' is a tensor of another graph.*reset_default_graph"):
            tensoropt.GradientDescentOptimizer().minimize(loss, var_list=[a])

    def test_variable_of_an_old_model(self, model: Model) -> None:
        _, a, _ = _loss()
        reset_default_graph()
        with pytest.raises(GraphError, match=r"not a tensor or variable of the model.*reset_default_graph"):
            tensoropt.gradients(_loss()[0], a)

    def test_one_reading_of_a_variable(self, model: Model) -> None:
        reading = tensoropt.convert_to_tensor(tensoropt.get_variable("a", [2]))
        loss = tensoropt.reduce_sum(tensoropt.square(reading))
        with pytest.raises(GraphError, match=r"is one reading of .*Give the variable itself"):
            tensoropt.gradients(loss, reading)
            _graph(model)


@pytest.mark.parametrize("make", ["create_global_step", "get_or_create_global_step"])
def test_a_global_step_that_is_the_first_of_all_is_of_the_graph(make: str) -> None:
    forget_model()  # TensorFlow is eager, as where a script begins
    step = getattr(tensoropt.train, make)()
    x = tensoropt.placeholder(tensoropt.float32, [8, 4])
    loss = tensoropt.reduce_mean(tensoropt.matmul(x, tensoropt.get_variable("w", [4, 4])))
    rate = tensoropt.train.exponential_decay(0.1, step, 10, 0.9)
    tensoropt.train.GradientDescentOptimizer(rate).minimize(loss, global_step=step)
    assert step.op.graph is x.graph
