"""Cells of ``tf.contrib.rnn`` beside NumPy, and beside TensorFlow's own ops of one name."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt
from tensoropt.api.mirror.model import Model
from tensoropt.contrib import rnn
from tensoropt.errors import GraphError

pytestmark = pytest.mark.tf

v1 = tf.compat.v1
_STEPS, _BATCH, _DEPTH, _UNITS = 5, 3, 4, 6
_LENGTHS = [5, 2, 0]


@pytest.fixture
def steps() -> Any:
    return np.random.default_rng(0).normal(size=(_STEPS, _BATCH, _DEPTH)).astype(np.float32)


def _values() -> dict[str, Any]:
    """Random values of all variables, by name."""
    random = np.random.default_rng(1)
    return {v.op.name: random.normal(size=v.shape.as_list()).astype(np.float32) for v in v1.global_variables()}


def _run(fetches: Any) -> Any:
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for variable, value in zip(v1.global_variables(), _values().values(), strict=True):
            variable.load(value, session)
        return session.run(fetches)


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize("use_peephole", [False, True])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_block_lstms_are_tensorflows_ops(model: Model, steps: Any, use_peephole: bool, clip: float | None) -> None:
    outputs, state = rnn.LSTMBlockFusedCell(_UNITS, 0.7, clip, use_peephole)(steps, dtype=tf.float32)
    listed, last = rnn.LSTMBlockFusedCell(_UNITS, 0.7, clip, use_peephole, reuse=True)(
        list(steps), initial_state=(np.ones([_BATCH, _UNITS], np.float32),) * 2, sequence_length=_LENGTHS
    )
    cell = rnn.LSTMBlockCell(_UNITS, 0.7, clip, use_peephole, reuse=True, name="lstm_fused_cell")
    unrolled, _ = rnn.static_rnn(cell, list(steps), dtype=tf.float32, scope=v1.get_variable_scope())
    names = ["kernel", "bias", *(["w_i_diag", "w_f_diag", "w_o_diag"] if use_peephole else [])]
    weights = v1.global_variables()
    assert [each.op.name for each in weights] == [f"lstm_fused_cell/{name}" for name in names]
    zeros = tf.zeros([_BATCH, _UNITS])
    peepholes = weights[2:] or [tf.zeros([_UNITS])] * 3
    theirs = tf.raw_ops.BlockLSTM(
        seq_len_max=_STEPS, x=steps, cs_prev=zeros, h_prev=zeros, w=weights[0], wci=peepholes[0], wcf=peepholes[1],
        wco=peepholes[2], b=weights[1], forget_bias=0.7, cell_clip=-1 if clip is None else clip,
        use_peephole=use_peephole,
    )  # fmt: skip
    slopes = [tf.gradients(tf.reduce_sum(tf.square(each)), weights[:2]) for each in (outputs, theirs.h)]
    got = _run([outputs, tf.stack(unrolled), theirs.h, state, theirs.cs[-1], tf.stack(listed), last, slopes])
    np.testing.assert_allclose(got[0], got[2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[1], got[2], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(got[3].c, got[4], rtol=1e-5, atol=1e-6)
    for one, other in zip(*got[7], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(got[5][2:, 1], 0)
    np.testing.assert_array_equal(got[6].h[2], np.ones(_UNITS))  # nothing happened to a sequence of no steps
    np.testing.assert_array_equal(got[6].h[0], got[5][-1, 0])
    np.testing.assert_array_equal(got[6].h[1], got[5][1, 1])


def test_a_fused_cell_needs_a_dtype_and_a_depth(model: Model, steps: Any) -> None:
    with pytest.raises(GraphError, match=r"'lstm_fused_cell': needs a dtype where it has no initial_state"):
        rnn.LSTMBlockFusedCell(_UNITS)(steps)
    with pytest.raises(GraphError, match=r"last dimension of its inputs must be known. Got \(3, None\)"):
        cell = rnn.NASCell(_UNITS)
        cell(tensoropt.placeholder(tf.float32, [3, None]), cell.zero_state(3, tf.float32))


@pytest.mark.parametrize("is_list", [False, True])
def test_networks_go_backwards(model: Model, steps: Any, is_list: bool) -> None:
    forward = rnn.FusedRNNCellAdaptor(rnn.BasicRNNCell(_UNITS), use_dynamic_rnn=not is_list)
    given = list(steps) if is_list else steps
    lengths = None if is_list else _LENGTHS
    outputs, _ = rnn.TimeReversedFusedRNN(forward)(given, dtype=tf.float32, sequence_length=lengths)
    assert [v.op.name for v in v1.global_variables()] == ["rnn/basic_rnn_cell/kernel", "rnn/basic_rnn_cell/bias"]
    kernel, bias = _values().values()
    wanted = np.zeros([_STEPS, _BATCH, _UNITS])
    for row, length in enumerate(lengths or [_STEPS] * _BATCH):
        h = np.zeros(_UNITS)
        for step in reversed(range(length)):
            h = wanted[step, row] = np.tanh(np.concatenate([steps[step, row], h]) @ kernel + bias)
    np.testing.assert_allclose(_run(tf.stack(outputs)), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalizes", [True, False])
def test_normalized_lstm(model: Model, steps: Any, normalizes: bool) -> None:
    cell = rnn.LayerNormBasicLSTMCell(_UNITS, 0.5, layer_norm=normalizes, norm_gain=0.3)
    outputs, _ = tensoropt.nn.dynamic_rnn(cell, steps, dtype=tf.float32, time_major=True)
    scope = "rnn/layer_norm_basic_lstm_cell"
    gates = ["input", "transform", "forget", "output", "state"]
    norms = [f"{scope}/{gate}/{name}" for gate in gates for name in ("gamma", "beta")]
    values = _values()
    assert set(values) == {f"{scope}/kernel", *(norms if normalizes else [f"{scope}/bias"])}

    def norm(gate: str, x: Any) -> Any:
        if not normalizes:
            return x
        unit = (x - x.mean(1, keepdims=True)) / x.std(1, keepdims=True)
        return unit * values[f"{scope}/{gate}/gamma"] + values[f"{scope}/{gate}/beta"]

    c = h = np.zeros([_BATCH, _UNITS])
    for x, got in zip(steps, _run(outputs), strict=True):
        product = np.concatenate([x, h], 1) @ values[f"{scope}/kernel"] + values.get(f"{scope}/bias", 0)
        i, new, f, o = (norm(*each) for each in zip(gates, np.split(product, 4, 1), strict=False))
        c = norm("state", c * _sigmoid(f + 0.5) + _sigmoid(i) * np.tanh(new))
        h = np.tanh(c) * _sigmoid(o)
        np.testing.assert_allclose(got, h, rtol=1e-3, atol=1e-4)


def test_dropout_of_the_normalized_lstm_is_of_new_values(model: Model, steps: Any) -> None:
    cell = rnn.LayerNormBasicLSTMCell(_UNITS, dropout_keep_prob=tensoropt.constant(1e-9), layer_norm=False)
    _, (c, h) = cell(steps[0], cell.zero_state(_BATCH, tf.float32))
    assert h.shape == (_BATCH, _UNITS)
    np.testing.assert_array_equal(_run(c), np.zeros([_BATCH, _UNITS]))


@pytest.mark.parametrize("projection", [None, 2])
def test_nas_cell(model: Model, steps: Any, projection: int | None) -> None:
    cell = rnn.NASCell(_UNITS, projection, use_bias=True)
    x, c = steps[0], steps[1][:, :1].repeat(_UNITS, 1)
    m = steps[2][:, :1].repeat(projection or _UNITS, 1)
    output, state = cell(x, (c, m))
    values = {name.removeprefix("nas_cell/"): value for name, value in _values().items()}
    a, b = np.split(x @ values["kernel"], 8, 1), np.split(m @ values["recurrent_kernel"] + values["bias"], 8, 1)
    s, t = _sigmoid, np.tanh
    left = t(t(s(a[0] + b[0]) * np.maximum(a[1] + b[1], 0)) + c)
    new_c = left * t(s(a[2] + b[2]) + np.maximum(a[3] * b[3], 0))
    right = t(t(t(a[4] + b[4]) * s(a[5] + b[5])) + s(t(a[6] + b[6]) + s(a[7] + b[7])))
    new_m = t(new_c * right)
    if projection:
        new_m = new_m @ values["projection_weights"]
    got, got_state = _run([output, state])
    np.testing.assert_allclose(got, new_m, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(got_state.c, new_c, rtol=1e-4, atol=1e-5)
    assert cell.output_size == (projection or _UNITS)


def test_block_gru_is_tensorflows_op(model: Model, steps: Any) -> None:
    h = np.ones([_BATCH, _UNITS], np.float32)
    mine, _ = rnn.GRUBlockCell(_UNITS)(steps[0], h)
    w = v1.global_variables()
    assert [each.op.name for each in w] == [
        f"gru_cell/{n}/{k}" for n in ("gates", "candidate") for k in ("kernel", "bias")
    ]
    theirs = tf.raw_ops.GRUBlockCell(x=steps[0], h_prev=h, w_ru=w[0], b_ru=w[1], w_c=w[2], b_c=w[3]).h
    one, other = _run([mine, theirs])
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    with pytest.raises(GraphError, match="needs num_units"):
        rnn.GRUBlockCellV2()


def test_wrappers_project_embed_and_attend(model: Model, steps: Any) -> None:
    cell = rnn.OutputProjectionWrapper(rnn.InputProjectionWrapper(rnn.BasicRNNCell(_UNITS), 2), 3)
    projected, _ = rnn.static_rnn(cell, list(steps), dtype=tf.float32)
    with v1.variable_scope("ids"):
        embedded, _ = rnn.static_rnn(
            rnn.EmbeddingWrapper(rnn.BasicRNNCell(_UNITS), 10, 4), [tensoropt.constant([1, 2])] * 2, dtype=tf.float32
        )
    with v1.variable_scope("attends"):
        attending = rnn.AttentionCellWrapper(rnn.BasicLSTMCell(_UNITS), 2)
        attended, _ = rnn.static_rnn(attending, list(steps), dtype=tf.float32)
    assert [projected[0].shape, embedded[0].shape, attended[0].shape] == [(3, 3), (2, _UNITS), (3, _UNITS)]
    values = _values()
    assert list(values)[:2] == [
        f"rnn/output_projection_wrapper/input_projection_wrapper/{n}" for n in ("kernel", "bias")
    ]
    top, inner = "rnn/output_projection_wrapper", "rnn/output_projection_wrapper/input_projection_wrapper"
    rnn_kernel = values[f"{inner}/basic_rnn_cell/kernel"]
    x = steps[0] @ values[f"{inner}/kernel"] + values[f"{inner}/bias"]
    h = np.tanh(
        np.concatenate([x, np.zeros([_BATCH, _UNITS])], 1) @ rnn_kernel + values[f"{inner}/basic_rnn_cell/bias"]
    )
    np.testing.assert_allclose(
        _run(projected[0]), h @ values[f"{top}/kernel"] + values[f"{top}/bias"], rtol=1e-4, atol=1e-5
    )
    assert "ids/rnn/embedding_wrapper/embedding" in values
    assert "attends/rnn/attention_cell_wrapper/attention/attn_w" in values
    with pytest.raises(GraphError, match=r"attn_length of at least 1\. Got True and 0"):
        rnn.AttentionCellWrapper(rnn.BasicLSTMCell(_UNITS), 0)


def test_stacks_of_both_directions(model: Model, steps: Any) -> None:
    cells = [[rnn.GRUCell(_UNITS) for _ in range(2)] for _ in range(4)]
    dynamic, forward, backward = rnn.stack_bidirectional_dynamic_rnn(
        *cells[:2], steps, dtype=tf.float32, time_major=True
    )
    with v1.variable_scope(v1.get_variable_scope(), reuse=True):
        static, *_ = rnn.stack_bidirectional_rnn(*cells[2:], list(steps), dtype=tf.float32)
    assert dynamic.shape == (_STEPS, _BATCH, 2 * _UNITS)
    assert (len(forward), len(backward)) == (2, 2)
    assert (
        v1.global_variables()[0].op.name == "stack_bidirectional_rnn/cell_0/bidirectional_rnn/fw/gru_cell/gates/kernel"
    )
    one, other = _run([dynamic, tf.stack(static)])
    np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    with pytest.raises(GraphError, match=r"as many cells forwards as backwards, and at least one\. Got 2 and 1"):
        rnn.stack_bidirectional_rnn(cells[0], cells[1][:1], list(steps), dtype=tf.float32)
