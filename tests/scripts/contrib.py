"""What the mirror has of ``tf.contrib``, trained by some plans and by TensorFlow's own session on one process."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tensoropt
from tests.effort import some
from tests.scripts.cases import BATCH, Distributed, Model, case, classifier, close, core_case, main

FOLDER = Path(sys.argv[1]) / "contrib"
contrib = tensoropt.contrib
Feeds = Callable[[int], Mapping[str, Any]]


_OPTIONS: tuple[str | int, ...] = ("data_parallel", "mini_time", 1, 2)


def compare(
    make: Callable[[Any], Model],
    fetches: Sequence[str],
    feeds: Feeds,
    steps: int = 3,
    options: Sequence[str | int] = _OPTIONS,
) -> None:
    """Takes steps by several plans, and by TensorFlow alone in the same graph."""
    graph = tensoropt.Graph()
    with graph.as_default():
        tensoropt.set_random_seed(1)
        model = make(tensoropt)
        init = [tf.compat.v1.global_variables_initializer(), tf.compat.v1.local_variables_initializer()]
    wanted = []
    with tf.compat.v1.Session(graph=graph) as session:
        session.run(init)
        for number in range(steps):
            given = {model[key]: value for key, value in feeds(number).items()}
            # By themselves: TensorFlow leaves open what a read sees beside an update.
            wanted.append(session.run([model[name] for name in fetches], given))
            session.run(model["train"], given)
    for option in some(options, 2):
        job = Distributed(make, option)
        for number in range(steps):
            got = job.run(list(fetches), feeds(number))
            job.run("train", feeds(number))
            for name, mine, theirs in zip(fetches, got, wanted[number], strict=True):
                close(mine, theirs, f"plan {option}, step {number}: {name}")


def _numbers(number: int, *shape: int) -> Any:
    return np.random.default_rng(number).normal(size=shape).astype(np.float32)


def _network(m: Any) -> Model:
    slim = m.contrib.slim
    x = m.placeholder(m.float32, [BATCH, 8, 8, 3])
    y = m.placeholder(m.int32, [BATCH])
    training = m.placeholder_with_default(True, [])
    with (
        slim.arg_scope(
            [slim.conv2d, slim.fully_connected],
            weights_regularizer=slim.l2_regularizer(0.01),
            normalizer_fn=slim.batch_norm,
        ),
        slim.arg_scope([slim.batch_norm], is_training=training, decay=0.5, scale=True),
    ):
        h = slim.repeat(x, 2, slim.conv2d, 4, 3)
        h = slim.separable_conv2d(slim.max_pool2d(h, 2), 6, 3, 1)
        h = m.contrib.layers.layer_norm(slim.dropout(slim.flatten(h), 1.0, is_training=training))
        h = slim.fully_connected(h, 6)
        logits = m.contrib.layers.linear(h, 4)
    slim.losses.sparse_softmax_cross_entropy(logits, y)
    loss = slim.losses.get_total_loss()
    train = m.contrib.layers.optimize_loss(
        loss, m.train.get_or_create_global_step(), 0.05, "Momentum", clip_gradients=1.0
    )
    return {"x": x, "y": y, "training": training, "logits": logits, "loss": loss, "train": train}


@case
def a_network_of_slim_learns() -> None:
    def feeds(number: int) -> dict[str, Any]:
        labels = np.random.default_rng(number).integers(0, 4, BATCH)
        return {"x": _numbers(number, BATCH, 8, 8, 3), "y": labels, "training": number < 2}

    compare(_network, ["loss", "logits"], feeds)


def _recurrent(m: Any) -> Model:
    rnn = m.contrib.rnn
    x, lengths = m.placeholder(m.float32, [4, BATCH, 3]), m.placeholder(m.int32, [BATCH])
    forward = rnn.LSTMBlockFusedCell(4, use_peephole=True, cell_clip=1.0)
    backward = rnn.TimeReversedFusedRNN(rnn.LSTMBlockFusedCell(4, name="backward"))
    both = [net(x, dtype=m.float32, sequence_length=lengths)[0] for net in (forward, backward)]
    cells = m.nn.rnn_cell.MultiRNNCell([rnn.LayerNormBasicLSTMCell(4), rnn.NASCell(4, num_proj=2)])
    outputs, _ = m.nn.dynamic_rnn(cells, m.concat(both, 2), lengths, dtype=m.float32, time_major=True)
    loss = m.reduce_mean(m.square(outputs - 0.3))
    train = m.train.AdamOptimizer(0.05).minimize(loss)
    return {"x": x, "lengths": lengths, "outputs": outputs, "loss": loss, "train": train}


@case
def fused_normalized_and_searched_cells_learn() -> None:
    lengths = np.array([4, 3, 2, 1, 0, 4, 4, 2], np.int32)
    compare(_recurrent, ["loss", "outputs"], lambda n: {"x": _numbers(n, 4, BATCH, 3), "lengths": lengths}, 2)


def _tagger(m: Any) -> Model:
    crf = m.contrib.crf
    x, y = m.placeholder(m.float32, [BATCH, 4, 3]), m.placeholder(m.int32, [BATCH, 4])
    lengths = m.placeholder(m.int32, [BATCH])
    scores = m.layers.dense(x, 3)
    likelihood, table = crf.crf_log_likelihood(scores, y, lengths)
    loss = m.reduce_mean(-likelihood)
    tags, best = crf.crf_decode(scores, table, lengths)
    train = m.train.GradientDescentOptimizer(0.5).minimize(loss)
    return {
        "x": x, "y": y, "lengths": lengths, "loss": loss, "tags": tags, "best": best, "table": table, "train": train,
    }  # fmt: skip


@core_case
def a_random_field_learns_and_decodes() -> None:
    def feeds(number: int) -> dict[str, Any]:
        random = np.random.default_rng(number)
        lengths = random.integers(1, 5, BATCH).astype(np.int32)
        return {"x": _numbers(number, BATCH, 4, 3), "y": random.integers(0, 3, (BATCH, 4)), "lengths": lengths}

    compare(_tagger, ["loss", "tags", "best"], feeds)


def _translator(m: Any) -> Model:
    seq2seq = m.contrib.seq2seq
    source, target = m.placeholder(m.int32, [BATCH, 3]), m.placeholder(m.int32, [BATCH, 3])
    lengths = m.placeholder(m.int32, [BATCH])
    table = m.get_variable("table", [6, 4])
    encoded, state = m.nn.dynamic_rnn(
        m.nn.rnn_cell.GRUCell(4), m.nn.embedding_lookup(table, source), lengths, dtype=m.float32
    )
    attention = seq2seq.BahdanauAttention(4, encoded, lengths, normalize=True)
    cell = seq2seq.AttentionWrapper(m.nn.rnn_cell.GRUCell(4), attention, 4)
    first = cell.zero_state(BATCH, m.float32).clone(cell_state=state)
    words = m.layers.Dense(6, use_bias=False, name="words")
    given = seq2seq.TrainingHelper(m.nn.embedding_lookup(table, target), lengths)
    greedy = seq2seq.GreedyEmbeddingHelper(table, m.fill([BATCH], 1), 0)
    made: list[Any] = []
    for helper, options in ((given, {}), (greedy, {"maximum_iterations": 3})):
        with m.variable_scope("decode", reuse=bool(made)):
            decoder = seq2seq.BasicDecoder(cell, helper, first, words)
            made.append(seq2seq.dynamic_decode(decoder, impute_finished=True, **options)[0])
    weights = m.sequence_mask(lengths, 3, dtype=m.float32)
    loss = seq2seq.sequence_loss(made[0].rnn_output, target, weights)
    train = m.train.AdamOptimizer(0.05).minimize(loss)
    return {
        "source": source, "target": target, "lengths": lengths, "loss": loss, "ids": made[1].sample_id, "train": train,
    }  # fmt: skip


@case
def a_decoder_with_attention_learns() -> None:
    def feeds(number: int) -> dict[str, Any]:
        random = np.random.default_rng(number)
        texts = random.integers(2, 6, (2, BATCH, 3))
        return {"source": texts[0], "target": texts[1], "lengths": np.array([3, 2, 1, 3] * 2, np.int32)}

    compare(_translator, ["loss"], feeds, 2)


def _fed_by_queues(m: Any) -> Model:
    numbers = np.arange(24)
    rows, labels = m.train.slice_input_producer([_numbers(0, 24, 3), numbers % 2], shuffle=False)
    x, y = m.train.batch([m.tanh(rows), labels], BATCH)
    (place,) = m.train.slice_input_producer([numbers], shuffle=False)
    lengths, (words,) = m.contrib.training.bucket_by_sequence_length(
        m.cast(place % 5 + 1, m.int32), [m.range(place % 5 + 1)], BATCH, [3], dynamic_pad=True
    )
    vocabulary = m.contrib.lookup.index_table_from_tensor(np.arange(5)[::-1].copy(), dtype=m.int64)
    table = m.get_variable("table", [5, 2])
    scores = m.reduce_sum(m.nn.embedding_lookup(table, vocabulary.lookup(words)), [1, 2])
    logits = m.layers.dense(x, 2)
    loss = m.reduce_mean(m.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    loss += m.reduce_mean(m.square(scores - m.cast(lengths, m.float32)))
    train = m.train.GradientDescentOptimizer(0.1).minimize(loss)
    return {"loss": loss, "y": y, "train": train}


@case
def what_queues_give_is_learnt_from() -> None:
    # The length of a batch's words is open, so that only what waits for the first batch can plan it.
    compare(_fed_by_queues, ["loss", "y"], lambda number: {}, options=["data_parallel", "mini_time"])


def _supervised(folder: str, steps: int) -> tuple[list[float], int]:
    tensoropt.reset_default_graph()
    tensoropt.set_random_seed(1)
    made = classifier(tensoropt)
    x, y = (tensoropt.constant(v) for v in (_numbers(3, BATCH, 6), np.arange(BATCH) % 4))
    del made
    hidden = tensoropt.layers.dense(x, 4)
    loss = tensoropt.losses.sparse_softmax_cross_entropy(y, hidden)
    step = tensoropt.train.get_or_create_global_step()
    train = tensoropt.train.GradientDescentOptimizer(0.5).minimize(loss, global_step=step)
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy())
    supervisor = tensoropt.train.Supervisor(logdir=folder, save_model_secs=0, summary_op=None)
    losses = []
    with supervisor.managed_session() as session:
        while not supervisor.should_stop():
            losses.append(float(session.run([loss, train])[0]))
            if len(losses) == steps:
                supervisor.request_stop()
        supervisor.saver.save(session, supervisor.save_path, global_step=supervisor.global_step)
        return losses, int(session.run(step))


@case
def a_supervisor_goes_on_with_a_checkpoint() -> None:
    folder = str(FOLDER / "supervisor")
    first, at = _supervised(folder, 3)
    second, then = _supervised(folder, 2)
    assert (at, then) == (3, 5)
    assert second[0] < first[-1]
    assert Path(folder, "model.ckpt-5.index").exists()
    supervisor = tensoropt.train.Supervisor(summary_op=None)
    try:
        supervisor.wait_for_stop()
    except tensoropt.errors.SessionError as error:
        assert "no thread runs" in str(error)
    else:
        raise AssertionError("no error")


@case
def slim_trains_by_itself() -> None:
    tensoropt.reset_default_graph()
    tensoropt.set_random_seed(1)
    slim = tensoropt.contrib.slim
    logits = slim.fully_connected(tensoropt.constant(_numbers(3, BATCH, 6)), 4, activation_fn=None)
    slim.losses.sparse_softmax_cross_entropy(logits, tensoropt.constant(np.arange(BATCH) % 4))
    train = slim.learning.create_train_op(slim.losses.get_total_loss(), tensoropt.train.AdamOptimizer(0.1))
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy())
    folder = str(FOLDER / "slim")
    early = slim.learning.train(train, folder, number_of_steps=2, save_summaries_secs=0)
    late = slim.learning.train(train, folder, number_of_steps=12, save_summaries_secs=0)
    assert late < early
    assert Path(folder, "model.ckpt-12.index").exists() or Path(folder, "model.ckpt-13.index").exists()


if __name__ == "__main__":
    main()
