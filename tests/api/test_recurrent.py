"""Cells and recurrent networks against TensorFlow's own code, which skips steps by branches and loops."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.ops import rnn_cell_impl

import tensoropt
from tensoropt.api.mirror.model import Model, leave_graph
from tensoropt.errors import GraphError
from tests.control_flow import control_flow_v2
from tests.effort import THOROUGH, left_to_ci

pytestmark = pytest.mark.tf

v1 = tf.compat.v1
_STEPS = 5


def _stack(cells: Any) -> Any:
    peepholes = cells.LSTMCell(5, use_peepholes=True, num_proj=3, cell_clip=1.0, proj_clip=0.5)
    return cells.MultiRNNCell([cells.BasicLSTMCell(4), peepholes, cells.ResidualWrapper(cells.GRUCell(3))])


def _networks(nn: Any, cells: Any, sequence_length: Any) -> list[Any]:
    x = tf.constant(np.random.default_rng(0).normal(size=(4, _STEPS, 6)).astype(np.float32))
    steps = tf.unstack(x, axis=1)
    options: dict[str, Any] = {"sequence_length": sequence_length, "dtype": tf.float32}
    return [
        nn.dynamic_rnn(_stack(cells), x, **options),
        nn.bidirectional_dynamic_rnn(cells.GRUCell(3), cells.BasicRNNCell(3), x, **options),
        nn.static_rnn(_stack(cells), steps, scope="static", **options),
        nn.static_bidirectional_rnn(cells.GRUCell(3), cells.LSTMCell(3), steps, scope="both", **options),
        nn.dynamic_rnn(cells.LSTMCell(3), tf.transpose(x, [1, 0, 2]), time_major=True, scope="major", **options),
        nn.dynamic_rnn(cells.BasicRNNCell(3), x, initial_state=tf.ones([4, 3]), scope="given"),
    ]


def _built(nn: Any, cells: Any, sequence_length: Any) -> tuple[list[str], list[Any]]:
    """The names of variables, and all outputs and states with their gradients by random variables."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        v1.set_random_seed(3)
        found = tf.nest.flatten(_networks(nn, cells, sequence_length))
        variables = v1.global_variables()
        gradients = tf.gradients([tf.reduce_sum(tensor * tensor) for tensor in found], variables)
    random = np.random.default_rng(1)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for variable in variables:
            session.run(
                variable.initializer, {variable.initializer.inputs[1]: random.normal(size=variable.shape) * 0.3}
            )
        return [variable.name for variable in variables], session.run(found + gradients)


@pytest.mark.parametrize("sequence_length", [None, [5, 2, 0, 3]] if THOROUGH else [[5, 2, 0, 3]])
@left_to_ci("half a minute of cells, some of which cases train")
def test_names_and_numbers_are_those_of_tensorflows_own_code(model: Model, sequence_length: Any) -> None:
    names, values = _built(tensoropt.nn, tensoropt.nn.rnn_cell, sequence_length)
    with tf.Graph().as_default():
        v1.get_variable_scope().set_use_resource(True)
        wanted_names, wanted = _built(v1.nn, rnn_cell_impl, sequence_length)
    assert names == wanted_names
    for one, other in zip(values, wanted, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)


def test_dropout_of_a_cell(model: Model) -> None:
    cell = tensoropt.nn.rnn_cell.DropoutWrapper(tensoropt.nn.rnn_cell.BasicRNNCell(200), output_keep_prob=0.75)
    outputs, _ = tensoropt.nn.static_rnn(cell, [tensoropt.ones([50, 2])] * 2, dtype=tensoropt.float32)
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        one, other = session.run(outputs)
    assert (one == 0).mean() == pytest.approx(0.25, abs=0.02)
    assert ((one == 0) != (other == 0)).any()


@pytest.mark.parametrize("seed", [None, 5])
def test_random_ops_of_a_cell_count_once(model: Model, seed: int | None) -> None:
    def seeds_after(nn: Any, wrapper: Any, cells: Any) -> Any:
        """The seeds of an op after the network."""
        x = tf.zeros([4, _STEPS, 6])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            cell = wrapper(cells.GRUCell(3), input_keep_prob=0.5, state_keep_prob=0.9, output_keep_prob=0.5, seed=seed)
            nn.dynamic_rnn(cell, x, dtype=tf.float32)
        return v1.get_seed(None)

    with control_flow_v2(False), tf.Graph().as_default():
        v1.set_random_seed(3)
        expected = seeds_after(v1.nn, rnn_cell_impl.DropoutWrapper, rnn_cell_impl)
    tensoropt.set_random_seed(3)
    assert seeds_after(tensoropt.nn, tensoropt.nn.rnn_cell.DropoutWrapper, tensoropt.nn.rnn_cell) == expected


def test_a_cell_of_ones_own_made_first(model: Model) -> None:
    class Sum(tensoropt.nn.rnn_cell.RNNCell):
        @property
        def state_size(self) -> int:
            return 3

        @property
        def output_size(self) -> int:
            return 3

        def __call__(self, inputs: Any, state: Any, scope: Any = None) -> tuple[Any, Any]:
            with tensoropt.variable_scope(scope or "sum"):
                w = tensoropt.get_variable("w", [3], initializer=tensoropt.ones_initializer())
                return w * (state + inputs), state + inputs

    leave_graph()
    cell = Sum()
    outputs, state = tensoropt.nn.dynamic_rnn(cell, np.ones([2, 4, 3], np.float32), dtype=tensoropt.float32)
    assert outputs.graph is model.graph
    assert [variable.name for variable in v1.global_variables()] == ["rnn/sum/w:0"]
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        values = session.run([outputs, state])
    np.testing.assert_array_equal(values[0][0, :, 0], [1, 2, 3, 4])
    np.testing.assert_array_equal(values[1], np.full([2, 3], 4))


def test_what_is_missing_is_an_error(model: Model) -> None:
    cell = tensoropt.nn.rnn_cell.GRUCell(3)
    x = tensoropt.ones([2, 4, 3])
    with pytest.raises(GraphError, match=r"RNN 'rnn': needs a dtype where it has no initial_state"):
        tensoropt.nn.dynamic_rnn(cell, x)
    with pytest.raises(GraphError, match=r"static_rnn: inputs must be a list"):
        tensoropt.nn.static_rnn(cell, x, dtype=tensoropt.float32)
    with pytest.raises(GraphError, match=r"sequence_length must have one number for each .* Got shape \(2, 1\)"):
        tensoropt.nn.static_rnn(cell, [x[0]], dtype=tensoropt.float32, sequence_length=tensoropt.ones([2, 1]))
    with pytest.raises(ValueError, match="sequence_length must be a vector of length batch_size"):
        tensoropt.nn.dynamic_rnn(cell, x, tensoropt.ones([2, 1], tensoropt.int32), dtype=tensoropt.float32)
