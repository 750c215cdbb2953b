"""Optimizers: what they record, what they refuse, and the numbers of what the record builds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt
from tensoropt.api.mirror.model import Model, OptimizerSpec, TrainStep, reset_default_graph
from tensoropt.api.mirror.train import GradientHandle
from tensoropt.errors import GraphError

pytestmark = pytest.mark.tf

v1 = tf.compat.v1

# Each optimizer with arguments other than TensorFlow's defaults.
OPTIMIZERS: dict[str, tuple[dict[str, Any], int]] = {
    "GradientDescentOptimizer": ({"learning_rate": 0.3}, 0),
    "MomentumOptimizer": ({"learning_rate": 0.3, "momentum": 0.8, "use_nesterov": True}, 1),
    "AdamOptimizer": ({"learning_rate": 0.3, "beta1": 0.7, "beta2": 0.8, "epsilon": 1e-3}, 2),
    "AdagradOptimizer": ({"learning_rate": 0.3, "initial_accumulator_value": 0.5}, 1),
    "RMSPropOptimizer": ({"learning_rate": 0.3, "decay": 0.7, "momentum": 0.5, "epsilon": 1e-3}, 2),
}


def _loss() -> tuple[Any, Any, Any]:
    """A quadratic loss of two variables, and the variables."""
    a = tensoropt.get_variable("a", [2])
    b = tensoropt.get_variable("b", [2])
    return tensoropt.reduce_sum(tensoropt.square(a) * b), a, b


def _steps_in_numpy(kind: str, h: dict[str, Any], x: np.ndarray, steps: int) -> np.ndarray:
    """``x`` after steps on the loss sum(x²)/2, by the formulas of the optimizers' papers in TensorFlow 1's form."""
    rate = h["learning_rate"]
    m = np.zeros_like(x)
    v = np.full_like(x, h.get("initial_accumulator_value", 1.0 if kind == "rmsprop" else 0.0))
    mean = np.zeros_like(x)
    for t in range(1, steps + 1):
        g = x
        if kind == "gradient_descent":
            x = x - rate * g
        elif kind == "momentum":
            m = h["momentum"] * m + g
            x = x - rate * (g + h["momentum"] * m if h["use_nesterov"] else m)
        elif kind == "adam":
            m = h["beta1"] * m + (1 - h["beta1"]) * g
            v = h["beta2"] * v + (1 - h["beta2"]) * g * g
            x = x - rate * np.sqrt(1 - h["beta2"] ** t) / (1 - h["beta1"] ** t) * m / (np.sqrt(v) + h["epsilon"])
        elif kind == "adagrad":
            v = v + g * g
            x = x - rate * g / np.sqrt(v)
        else:
            v = h["decay"] * v + (1 - h["decay"]) * g * g
            mean = h["decay"] * mean + (1 - h["decay"]) * g
            spread = v - mean**2 if h["centered"] else v
            m = h["momentum"] * m + rate * g / np.sqrt(spread + h["epsilon"])
            x = x - m
    return x


class TestRecord:
    def test_minimize_records_the_step_and_returns_an_op_without_effect(self, model: Model) -> None:
        loss, _, _ = _loss()
        op = tensoropt.train.AdamOptimizer(0.5).minimize(loss)
        assert (op.name, op.type, list(op.inputs)) == ("Adam", "NoOp", [])
        assert model.train_steps == (
            TrainStep(
                op="Adam",
                loss=loss.name,
                variables=("a", "b"),
                gradients=("gradients/a", "gradients/b"),
                optimizer=OptimizerSpec(
                    "adam",
                    (("learning_rate", 0.5), ("beta1", 0.9), ("beta2", 0.999), ("epsilon", 1e-8)),
                    "Adam",
                ),
            ),
        )
        assert model.train_step("Adam") is model.train_steps[0]
        assert model.train_step("other") is None
        assert tensoropt.get_collection(tensoropt.GraphKeys.TRAIN_OP) == [op]

    def test_listing_1_needs_no_learning_rate(self, model: Model) -> None:
        tensoropt.GradientDescentOptimizer().minimize(_loss()[0])
        assert model.train_steps[0].optimizer.hyperparameters == (("learning_rate", 0.01),)

    def test_steps_of_one_optimizer_share_its_index(self, model: Model) -> None:
        loss, a, b = _loss()
        shared, other = tensoropt.train.AdamOptimizer(), tensoropt.train.AdamOptimizer()
        ops = [shared.minimize(loss, var_list=[a]), other.minimize(loss), shared.minimize(loss, var_list=[b])]
        assert [op.name for op in ops] == ["Adam", "Adam_1", "Adam_2"]
        assert [step.optimizer_index for step in model.train_steps] == [0, 1, 0]
        assert [step.variables for step in model.train_steps] == [("a",), ("a", "b"), ("b",)]

    def test_optimizer_serves_a_new_model_after_a_reset(self, model: Model) -> None:
        optimizer = tensoropt.train.AdamOptimizer()
        optimizer.minimize(_loss()[0])
        reset_default_graph()
        assert optimizer.minimize(_loss()[0]).name == "Adam"

    def test_control_dependencies_stick_to_the_op(self, model: Model) -> None:
        loss, a, _ = _loss()
        update = a.assign_add([1.0, 1.0], read_value=False)
        with tensoropt.control_dependencies([update]):
            op = tensoropt.GradientDescentOptimizer().minimize(loss)
        assert op.control_inputs == [update]

    def test_name_and_scope_are_tensorflows(self, model: Model) -> None:
        with tensoropt.name_scope("training"):
            op = tensoropt.GradientDescentOptimizer(name="SGD").minimize(_loss()[0], name="step")
        assert op.name == "training/step"
        assert model.train_steps[0].optimizer.name == "SGD"

    def test_global_step_is_recorded_by_name(self, model: Model) -> None:
        step = tensoropt.train.get_or_create_global_step()
        tensoropt.GradientDescentOptimizer().minimize(_loss()[0], global_step=step)
        assert model.train_steps[0].global_step == "global_step"
        assert model.train_steps[0].variables == ("a", "b")

    def test_decayed_learning_rate_is_recorded_by_tensor_name(self, model: Model) -> None:
        step = tensoropt.train.get_or_create_global_step()
        rate = tensoropt.train.exponential_decay(0.1, step, 100, 0.5)
        tensoropt.train.MomentumOptimizer(rate, lambda: 0.5).minimize(_loss()[0], global_step=step)
        spec = model.train_steps[0].optimizer
        assert spec.tensors == {"learning_rate": rate.name}
        assert dict(spec.hyperparameters)["momentum"] == 0.5

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

    def test_variable_as_learning_rate_is_read_in_the_graph(self, model: Model) -> None:
        rate = tensoropt.get_variable("rate", [], trainable=False)
        tensoropt.GradientDescentOptimizer(rate).minimize(_loss()[0])
        tensor = model.graph.get_tensor_by_name(model.train_steps[0].optimizer.tensors["learning_rate"])
        assert tensor.op.type == "ReadVariableOp"

    def test_variables_that_the_loss_does_not_depend_on_are_left_out(self, model: Model) -> None:
        a, b, c, d = (tensoropt.get_variable(name, [2]) for name in "abcd")
        ids = tensoropt.cast(b, tensoropt.int32)
        loss = tensoropt.reduce_sum(a * tensoropt.stop_gradient(c) + tensoropt.cast(ids, tensoropt.float32))
        pairs = tensoropt.GradientDescentOptimizer().compute_gradients(loss)
        assert [(gradient is not None, variable.op.name) for gradient, variable in pairs] == [
            (True, "a"), (False, "b"), (False, "c"), (False, "d"),
        ]  # fmt: skip
        expected = v1.gradients(loss, [a, b, c, d])
        assert [gradient is not None for gradient, _ in pairs] == [gradient is not None for gradient in expected]

    def test_variable_inside_a_loop_is_reached(self, model: Model) -> None:
        a = tensoropt.get_variable("a", [])
        total = tensoropt.while_loop(lambda i, s: i < 3, lambda i, s: (i + 1, s * a), (0, 1.0))[1]
        tensoropt.GradientDescentOptimizer().minimize(total)
        assert model.train_steps[0].variables == ("a",)

    def test_gradients_applied_in_parts(self, model: Model) -> None:
        loss, a, b = _loss()
        optimizer = tensoropt.train.AdamOptimizer()
        pairs = optimizer.compute_gradients(loss)
        assert all(isinstance(gradient, GradientHandle) for gradient, _ in pairs)
        assert "gradients/a" in repr(pairs[0][0])
        optimizer.apply_gradients(pairs[1:])
        assert model.train_steps[0].variables == ("b",)
        assert [variable for _, variable in pairs] == [a, b]


class TestNumbers:
    @pytest.mark.parametrize("centered", [False, True])
    @pytest.mark.parametrize("name", sorted(OPTIMIZERS))
    def test_built_optimizer_follows_its_formula(self, model: Model, name: str, centered: bool) -> None:
        arguments, slots = OPTIMIZERS[name]
        if name == "RMSPropOptimizer":
            arguments, slots = {**arguments, "centered": centered}, slots + centered
        optimizer = getattr(tensoropt.train, name)(**arguments)
        x = tensoropt.get_variable("x", [2])
        optimizer.minimize(tensoropt.reduce_sum(x))
        spec = model.train_steps[0].optimizer
        assert optimizer.slot_count == spec.slot_count == slots

        start = np.array([1.0, -3.0], np.float32)
        with tf.Graph().as_default() as local:
            y = v1.get_variable("y", initializer=start)
            built = spec.build(tf)
            step = built.minimize(tf.reduce_sum(y * y) / 2)
            assert sorted(built.get_slot_names()) == sorted(spec.slot_names)
            with v1.Session(graph=local) as session:
                session.run(v1.global_variables_initializer())
                for _ in range(3):
                    session.run(step)
                got = session.run(y)
        np.testing.assert_allclose(got, _steps_in_numpy(spec.kind, dict(spec.hyperparameters), start, 3), rtol=2e-5)

    def test_local_tensor_replaces_a_computed_hyperparameter(self, model: Model) -> None:
        rate = tensoropt.placeholder_with_default(0.5, [])
        tensoropt.GradientDescentOptimizer(rate).minimize(_loss()[0])
        spec = model.train_steps[0].optimizer
        with tf.Graph().as_default() as local:
            y = v1.get_variable("y", initializer=2.0)
            step = spec.build(tf, {"learning_rate": tf.constant(0.25)}).minimize(y)
            with v1.Session(graph=local) as session:
                session.run(v1.global_variables_initializer())
                session.run(step)
                assert session.run(y) == 1.75


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({"grad_loss": 1.0}, "grad_loss is not supported"),
            ({"gate_gradients": 3}, "gate_gradients must be GATE_NONE, GATE_OP or GATE_GRAPH"),
            ({"global_step": 3}, r"global_step: 3 is not a variable of the private graph"),
            ({"var_list": [3]}, "3 is not a variable of the private graph"),
            ({"var_list": []}, "there is no variable to train"),
        ],
    )
    def test_minimize_refuses_arguments(self, model: Model, arguments: Any, match: str) -> None:
        with pytest.raises(GraphError, match=match):
            tensoropt.GradientDescentOptimizer().minimize(_loss()[0], **arguments)
        assert model.train_steps == ()

    def test_global_step_must_be_an_integer_scalar(self, model: Model) -> None:
        loss, a, _ = _loss()
        with pytest.raises(GraphError, match=r"global_step must be an integer scalar. Got float32"):
            tensoropt.GradientDescentOptimizer().minimize(loss, global_step=a)

    @pytest.mark.parametrize(
        ("make", "match"),
        [
            (lambda a: lambda: a, "a function as loss needs eager mode"),
            (lambda a: 3.0, "the loss must be a tensor of the private graph. Got 3.0"),
            (lambda a: tensoropt.constant(3), "must be floating point. Got int32"),
            (lambda a: a + 1.0, r"must be a scalar. Got shape \(2,\). Use tensoropt.reduce_mean"),
            (lambda a: tensoropt.constant(1.0), r"depends on none of the 1 variables to train \(a\)"),
        ],
    )
    def test_loss_that_cannot_be_trained(self, model: Model, make: Any, match: str) -> None:
        a = tensoropt.get_variable("a", [2])
        with pytest.raises(GraphError, match=match):
            tensoropt.GradientDescentOptimizer().minimize(make(a))

    def test_loss_of_an_old_model(self, model: Model) -> None:
        loss, _, _ = _loss()
        reset_default_graph()
        with pytest.raises(GraphError, match=r"must be a tensor of the private graph.*reset_default_graph"):
            tensoropt.GradientDescentOptimizer().minimize(loss)

    def test_variable_given_twice(self, model: Model) -> None:
        loss, a, _ = _loss()
        with pytest.raises(GraphError, match="'a' is twice in var_list"):
            tensoropt.GradientDescentOptimizer().minimize(loss, var_list=[a, a])

    def test_variable_with_a_constraint(self, model: Model) -> None:
        a = tensoropt.get_variable("a", [2], constraint=tensoropt.nn.relu)
        with pytest.raises(GraphError, match="'a' has a constraint, which no step would apply"):
            tensoropt.GradientDescentOptimizer().minimize(tensoropt.reduce_sum(a))

    @pytest.mark.parametrize(
        "use",
        [
            lambda g: g * 2,
            lambda g: 2 * g,
            lambda g: -g,
            lambda g: g[0],
            lambda g: np.asarray(g),
            lambda g: tensoropt.square(g),
            lambda g: tensoropt.clip_by_norm(g, 1.0),
            lambda g: tensoropt.constant(1.0) + g,
        ],
    )
    def test_gradient_used_in_an_op(self, model: Model, use: Any) -> None:
        loss, _, _ = _loss()
        gradient = tensoropt.GradientDescentOptimizer().compute_gradients(loss)[0][0]
        with pytest.raises(GraphError, match="'gradients/a': it cannot be used in an operation"):
            use(gradient)

    def test_gradients_that_were_changed_or_swapped(self, model: Model) -> None:
        loss, a, b = _loss()
        optimizer = tensoropt.GradientDescentOptimizer()
        (of_a, _), _ = optimizer.compute_gradients(loss)
        (of_a2, _), (of_b2, _) = optimizer.compute_gradients(loss * 2)
        for pairs, match in (
            ([(tensoropt.ones([2]), a)], "takes the handles that compute_gradients returned, unchanged"),
            ([(of_a, b)], "is applied to the variable it belongs to. Got 'gradients/a' with 'b'"),
            ([(of_a, a), (of_b2, b)], "the gradients of one step must be of one loss. Got "),
            ([(of_a, a), (of_a2, b)], "is applied to the variable it belongs to"),
            ([(None, a)], "there is no gradient to apply"),
            ([(of_a, 3)], "3 is not a variable of the private graph"),
        ):
            with pytest.raises(GraphError, match=match):
                optimizer.apply_gradients(pairs)
        with pytest.raises(GraphError, match="skip_gradients_aggregation is not supported"):
            optimizer.apply_gradients([(of_a, a)], skip_gradients_aggregation=True)

    @pytest.mark.parametrize(
        ("rate", "match"),
        [
            ("fast", "learning_rate must be a number, a scalar tensor or a function that returns one. Got 'fast'"),
            (lambda: tensoropt.ones([2]), r"learning_rate must be a scalar. Got '.*' of shape \(2,\)"),
            (lambda: tf.Graph().get_tensor_by_name, "learning_rate must be a number"),
        ],
    )
    def test_learning_rate_that_is_no_number(self, model: Model, rate: Any, match: str) -> None:
        with pytest.raises(GraphError, match=match):
            tensoropt.GradientDescentOptimizer(rate).minimize(_loss()[0])

    def test_learning_rate_of_an_old_model(self, model: Model) -> None:
        rate = tensoropt.constant(0.1)
        reset_default_graph()
        with pytest.raises(GraphError, match="learning_rate is the tensor 'Const:0' of another graph"):
            tensoropt.GradientDescentOptimizer(rate).minimize(_loss()[0])

    def test_constructor_arguments(self) -> None:
        with pytest.raises(GraphError, match="an optimizer needs a name"):
            tensoropt.GradientDescentOptimizer(name="")
        with pytest.raises(GraphError, match=r"initial_accumulator_value must be above 0. Got 0"):
            tensoropt.train.AdagradOptimizer(0.1, 0)

    def test_spec_checks_its_parts(self) -> None:
        with pytest.raises(GraphError, match=r"kind 'ftrl' is unknown. Use one of adagrad, adam"):
            OptimizerSpec("ftrl", (), "F")
        with pytest.raises(GraphError, match="a hyperparameter is given twice"):
            OptimizerSpec("adam", (("beta1", 0.1), ("beta1", 0.2)), "A")
        spec = OptimizerSpec("gradient_descent", (("learning_rate", "rate:0"),), "S")
        with pytest.raises(GraphError, match=r"learning_rate is computed by the graph \(tensor rate:0\)"):
            spec.build(tf)
        with pytest.raises(GraphError, match=r"it has no hyperparameter momentum. Give only learning_rate"):
            spec.build(tf, {"momentum": 1.0})

    def test_step_checks_its_parts(self, model: Model) -> None:
        spec = OptimizerSpec("gradient_descent", (("learning_rate", 0.1),), "S")
        with pytest.raises(GraphError, match="trains at least one variable and each once"):
            TrainStep("S", "l:0", (), (), spec)
        with pytest.raises(GraphError, match=r"one gradient for each of the 1 variables. Got 2"):
            TrainStep("S", "l:0", ("a",), ("g", "h"), spec)
        step = TrainStep("S", "l:0", ("a",), ("g",), spec)
        model.add_train_step(step)
        with pytest.raises(GraphError, match="'S': an operation can be recorded once"):
            model.add_train_step(step)
