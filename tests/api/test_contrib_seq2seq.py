"""Decoders, attention and beam search of ``tf.contrib.seq2seq`` beside NumPy."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt
from tensoropt.api.mirror.model import Model
from tensoropt.contrib import rnn, seq2seq
from tensoropt.errors import GraphError

pytestmark = pytest.mark.tf

v1 = tf.compat.v1
_BATCH, _STEPS, _UNITS, _WORDS = 3, 4, 5, 6


def _random(*shape: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def _values() -> dict[str, Any]:
    """Random values of all variables, by name."""
    return {v.op.name: _random(*v.shape.as_list(), seed=n) for n, v in enumerate(v1.global_variables())}


def _run(fetches: Any, feeds: Any = None) -> Any:
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        for variable, value in zip(v1.global_variables(), _values().values(), strict=True):
            variable.load(value, session)
        return session.run(fetches, feeds)


def _softmax(x: Any) -> Any:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _cell(x: Any, h: Any, values: dict[str, Any], scope: str) -> Any:
    return np.tanh(np.concatenate([x, h], 1) @ values[f"{scope}/kernel"] + values[f"{scope}/bias"])


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("imputes", [False, True])
def test_a_trained_decoder_is_a_network_over_what_is_given(model: Model, is_open: bool, imputes: bool) -> None:
    x, lengths = _random(_BATCH, _STEPS, 2), np.array([4, 2, 0], np.int32)
    given = tensoropt.placeholder_with_default(x, [_BATCH, None, 2] if is_open else x.shape)
    decoder = seq2seq.BasicDecoder(
        rnn.BasicRNNCell(_UNITS),
        seq2seq.TrainingHelper(given, lengths),
        tensoropt.zeros([_BATCH, _UNITS]),
        tensoropt.layers.Dense(_WORDS, name="out"),
    )
    outputs, state, counted = seq2seq.dynamic_decode(decoder, impute_finished=imputes)
    got, last, ids, counts = _run([outputs.rnn_output, state, outputs.sample_id, counted])
    values = _values()
    assert list(values) == [
        "decoder/basic_rnn_cell/kernel", "decoder/basic_rnn_cell/bias", "decoder/out/kernel", "decoder/out/bias",
    ]  # fmt: skip
    np.testing.assert_array_equal(counts, lengths)
    h = np.zeros([_BATCH, _UNITS])
    for step in range(_STEPS):
        new = _cell(x[:, step], h, values, "decoder/basic_rnn_cell")
        wanted = new @ values["decoder/out/kernel"] + values["decoder/out/bias"]
        over = (step >= lengths)[:, None]
        h = np.where(over, h, new) if imputes else new
        np.testing.assert_allclose(got[:, step], np.where(over & imputes, 0, wanted), rtol=1e-4, atol=1e-5)
        np.testing.assert_array_equal(ids[:, step][~over[:, 0]], wanted.argmax(1)[~over[:, 0]])
    np.testing.assert_allclose(last, h, rtol=1e-4, atol=1e-5)


def test_what_lies_past_the_longest_sequence_leaves_the_state(model: Model) -> None:
    x = _random(2, _STEPS, 2)
    states = []
    for length, scope in ((2, "short"), (None, "cut")):
        cell = rnn.BasicRNNCell(_UNITS)
        given = x if length else x[:, :2]
        helper = seq2seq.TrainingHelper(given, [2, 1])
        decoder = seq2seq.BasicDecoder(cell, helper, tensoropt.zeros([2, _UNITS]))
        outputs, state, _ = seq2seq.dynamic_decode(
            decoder, scope="same" if scope == "short" else v1.VariableScope(True, "same")
        )
        states.append((outputs.rnn_output[:, :2], state))
    one, other = _run(states)
    np.testing.assert_allclose(one[0], other[0], rtol=1e-6)
    np.testing.assert_allclose(one[1], other[1], rtol=1e-6)


def test_a_decoder_of_more_than_256_steps_ends_with_the_longest_sequence(model: Model) -> None:
    helper = seq2seq.TrainingHelper(_random(2, 257, 3), [2, 1])
    decoder = seq2seq.BasicDecoder(rnn.BasicRNNCell(_UNITS), helper, tensoropt.zeros([2, _UNITS]))
    outputs, _, lengths = _run(seq2seq.dynamic_decode(decoder))
    assert outputs.rnn_output.shape == (2, 2, _UNITS) and lengths.tolist() == [2, 1]


@pytest.mark.parametrize("normalize", [False, True])
@pytest.mark.parametrize("kind", ["luong", "bahdanau"])
def test_attention(model: Model, kind: str, normalize: bool) -> None:
    memory, lengths, x = _random(_BATCH, 4, 7), [4, 1, 3], _random(_BATCH, 2, seed=9)
    mechanism = (
        seq2seq.LuongAttention(_UNITS, memory, lengths, scale=normalize)
        if kind == "luong"
        else seq2seq.BahdanauAttention(_UNITS, memory, lengths, normalize=normalize)
    )
    cell = seq2seq.AttentionWrapper(rnn.BasicRNNCell(_UNITS), mechanism, 3, alignment_history=True)
    first = cell.zero_state(_BATCH, tf.float32).clone(cell_state=tensoropt.constant(_random(_BATCH, _UNITS, seed=8)))
    output, state = cell(x, first)
    assert (cell.output_size, output.shape) == (3, (_BATCH, 3))
    assert len(tf.nest.flatten(cell.state_size)) == len(tf.nest.flatten(first))
    got, alignments, history, time = _run([output, state.alignments, state.alignment_history.stack(), state.time])
    values = _values()
    scope = "attention_wrapper"
    h = _cell(
        np.concatenate([x, np.zeros([_BATCH, 3])], 1),
        _random(_BATCH, _UNITS, seed=8),
        values,
        f"{scope}/basic_rnn_cell",
    )
    mask = np.arange(4) < np.array(lengths)[:, None]
    memory = memory * mask[:, :, None]
    keys = memory @ values["memory_layer/kernel"]
    part = f"{scope}/{kind}_attention"
    if kind == "luong":
        score = np.einsum("bd,bpd->bp", h, keys) * (values[f"{part}/attention_g"] if normalize else 1)
    else:
        v, bias = values[f"{part}/attention_v"], 0
        if normalize:
            v, bias = values[f"{part}/attention_g"] * v / np.sqrt((v**2).sum()), values[f"{part}/attention_b"]
        score = (v * np.tanh(keys + (h @ values[f"{part}/query_layer/kernel"])[:, None] + bias)).sum(2)
    wanted = _softmax(np.where(mask, score, -np.inf))
    np.testing.assert_allclose(alignments, wanted, rtol=1e-4, atol=1e-5)
    context = np.einsum("bp,bpd->bd", wanted, memory)
    np.testing.assert_allclose(
        got, np.concatenate([h, context], 1) @ values[f"{scope}/attention_layer/kernel"], rtol=1e-4, atol=1e-5
    )
    np.testing.assert_allclose(history, wanted[None], rtol=1e-4, atol=1e-5)
    assert time == 1


def test_several_mechanisms_and_what_does_not_fit(model: Model) -> None:
    memory = _random(_BATCH, 4, 7)
    mechanisms = [
        seq2seq.LuongAttention(_UNITS, memory),
        seq2seq.BahdanauAttention(2, memory, probability_fn=seq2seq.hardmax),
    ]
    cell = seq2seq.AttentionWrapper(rnn.BasicRNNCell(_UNITS), mechanisms, [3, None], output_attention=False)
    state = cell.zero_state(_BATCH, tf.float32)
    output, following = cell(_random(_BATCH, 2), state)
    assert (output.shape, following.attention.shape) == ((_BATCH, _UNITS), (_BATCH, 3 + 7))
    assert _run(following.alignments[1]).sum(1).tolist() == [1, 1, 1]
    with pytest.raises(GraphError, match=r"must be the depth of queries, 5\. Got 4"), v1.variable_scope("other"):
        other = seq2seq.AttentionWrapper(rnn.BasicRNNCell(_UNITS), seq2seq.LuongAttention(4, memory))
        other(_random(_BATCH, 2), other.zero_state(_BATCH, tf.float32))
    with pytest.raises(GraphError, match=r"needs a layer for each of 2 mechanisms\. Got 1"):
        seq2seq.AttentionWrapper(rnn.BasicRNNCell(_UNITS), mechanisms, [3])
    with pytest.raises(GraphError, match=r"must be what zero_state gives, or a clone\. Got .*clone\(cell_state=…\)"):
        cell(_random(_BATCH, 2), tensoropt.zeros([_BATCH, _UNITS]))
    with pytest.raises(GraphError, match=r"memory must be \(batch, places, depth\)\. Got shape \(3, 4\)"):
        seq2seq.LuongAttention(_UNITS, memory[:, :, 0])


class _Table(rnn.RNNCell):
    """A cell whose logits are those of the last word alone, so that all sequences can be scored."""

    state_size = 1
    output_size = _WORDS

    def __init__(self, table: Any) -> None:
        super().__init__()
        self._table = tensoropt.constant(table)

    def call(self, inputs: Any, state: Any) -> tuple[Any, Any]:
        """The row of the word."""
        return tf.matmul(inputs, self._table), state + 1


def _follow(table: Any, start: int, end: int, steps: int) -> list[int]:
    words = [start]
    while len(words) <= steps and (len(words) == 1 or words[-1] != end):
        words.append(int(table[words[-1]].argmax()))
    return words[1:]


@pytest.mark.parametrize("limit", [3, 8])
def test_a_greedy_decoder_goes_on_until_all_have_ended(model: Model, limit: int) -> None:
    table = _random(_WORDS, _WORDS, seed=4)
    eye, starts = np.eye(_WORDS, dtype=np.float32), [1, 2, 3]
    helper = seq2seq.GreedyEmbeddingHelper(eye, starts, 0)
    decoder = seq2seq.BasicDecoder(_Table(table), helper, tensoropt.zeros([3, 1]))
    outputs, state, lengths = seq2seq.dynamic_decode(decoder, maximum_iterations=limit, output_time_major=True)
    ids, last, counts = _run([outputs.sample_id, state, lengths])
    wanted = [_follow(table, start, 0, limit) for start in starts]
    assert counts.tolist() == [len(words) for words in wanted]
    assert len(ids) == max(counts) and (last == max(counts)).all()
    for row, words in enumerate(wanted):
        assert ids[: len(words), row].tolist() == words


@pytest.mark.parametrize("penalty", [0.0, 1.0])
def test_a_wide_beam_finds_the_best_of_all_sequences(model: Model, penalty: float) -> None:
    words, steps, end = 3, 3, 0
    table = _random(words, words, seed=5)
    log = table - np.log(np.exp(table).sum(1, keepdims=True))
    cell = _Table(table)
    cell.output_size = words
    state = seq2seq.tile_batch(tensoropt.zeros([2, 1]), 9)
    decoder = seq2seq.BeamSearchDecoder(
        cell, np.eye(words, dtype=np.float32), [1, 2], end, state, 9, length_penalty_weight=penalty
    )
    outputs, last, _ = seq2seq.dynamic_decode(decoder, maximum_iterations=steps)
    ids, scores, lengths = _run([outputs.predicted_ids, outputs.beam_search_decoder_output.scores, last.lengths])
    for row, start in enumerate((1, 2)):
        found = {}
        for each in itertools.product(range(words), repeat=steps):
            kept = list(itertools.takewhile(lambda word: word != end, each))
            kept += [end] * (len(kept) < steps)
            total = sum(log[a, b] for a, b in itertools.pairwise([start, *kept]))
            counted = len(kept) - (kept[-1] == end and len(kept) == steps)  # an end counts from the next step on
            found[tuple(kept)] = total / ((5 + counted) / 6) ** penalty
        best = sorted(found, key=lambda each: -found[each])[:9]
        beams = [tuple(ids[row, :, beam]) for beam in range(9)]
        assert beams == [each + (end,) * (ids.shape[1] - len(each)) for each in best]
        np.testing.assert_allclose(scores[row, -1], [found[each] for each in best], rtol=1e-4)
        assert lengths[row].tolist() == [len(each) for each in best]


def test_helpers_draw_and_mix(model: Model) -> None:
    x, lengths = _random(2, 3, _UNITS), [3, 3]
    outputs = tensoropt.constant([[0.0, 50.0], [50.0, 0.0]])
    table = tensoropt.constant(_random(2, _UNITS, seed=3))
    always, never = (seq2seq.ScheduledEmbeddingTrainingHelper(x, lengths, table, share) for share in (1.0, 0.0))
    fed = seq2seq.ScheduledOutputTrainingHelper(
        x, lengths, 1.0, next_inputs_fn=lambda y: tf.matmul(y, table), auxiliary_inputs=x
    )
    drawn = seq2seq.SampleEmbeddingHelper(table, [0, 0], 1, softmax_temperature=0.5)
    step = tensoropt.constant(0)
    got = []
    for helper in (always, never, fed, drawn):
        ids = helper.sample(step, outputs, None)
        got.append((ids, *helper.next_inputs(step, outputs, None, ids)[:2]))
    one, none, last, own = _run(got)
    rows = _random(2, _UNITS, seed=3)
    assert one[0].tolist() == [1, 0] and none[0].tolist() == [-1, -1] and own[0].tolist() == [1, 0]
    np.testing.assert_allclose(one[2], rows[[1, 0]])
    np.testing.assert_allclose(none[2], x[:, 1])
    np.testing.assert_allclose(last[2], np.concatenate([50 * rows[[1, 0]], x[:, 1]], 1), rtol=1e-5)
    assert own[1].tolist() == [True, False]
    with pytest.raises(GraphError, match=r"one number for each of the batch. Got shape \(\)"):
        seq2seq.TrainingHelper(x, 3)
    with pytest.raises(GraphError, match=r"needs start_tokens \(batch,\) and a scalar end_token. Got \(\) and \(\)"):
        seq2seq.GreedyEmbeddingHelper(table, 0, 1)


def test_helpers_of_functions(model: Model) -> None:
    def end(ids: Any) -> Any:
        return ids[:, 0] > 2.5

    first = tensoropt.zeros([2, 1])
    inference = seq2seq.InferenceHelper(lambda y: y, [1], tf.float32, first, end)
    custom = seq2seq.CustomHelper(
        lambda: (tensoropt.zeros([2], tf.bool), first),
        lambda time, outputs, state: outputs,
        lambda time, outputs, state, sample_ids: (end(sample_ids), sample_ids, state),
        [1],
        tf.float32,
    )

    class Adds(rnn.RNNCell):
        state_size = output_size = 1

        def call(self, inputs: Any, state: Any) -> Any:
            return inputs + 1, state

    made = [seq2seq.dynamic_decode(seq2seq.BasicDecoder(Adds(), each, first))[0] for each in (inference, custom)]
    for each in _run(made):
        assert each.sample_id[0, :, 0].tolist() == [1, 2, 3]


def test_beams_and_limits_that_do_not_fit(model: Model) -> None:
    cell, table = rnn.BasicRNNCell(2), tensoropt.zeros([3, 2])
    with pytest.raises(GraphError, match="coverage_penalty_weight is not supported"):
        seq2seq.BeamSearchDecoder(cell, table, [0], 1, tensoropt.zeros([2, 2]), 2, coverage_penalty_weight=1.0)
    with pytest.raises(GraphError, match=r"needs start_tokens \(batch,\)"):
        seq2seq.BeamSearchDecoder(cell, table, 0, 1, tensoropt.zeros([2, 2]), 2)
    with pytest.raises(GraphError, match="Leave out alignment_history"):
        seq2seq.BeamSearchDecoder(cell, table, [0], 1, tf.TensorArray(tf.float32, 1), 2)
    helper = seq2seq.GreedyEmbeddingHelper(table, [0], 1)
    with pytest.raises(GraphError, match=r"maximum_iterations must be a scalar. Got shape \(1,\)"):
        seq2seq.dynamic_decode(seq2seq.BasicDecoder(cell, helper, tensoropt.zeros([1, 2])), maximum_iterations=[3])
