"""Sequences of several lengths, classified by tf.nn.dynamic_rnn with a cell of one's own.

mpirun -n 4 python examples/tf1/dynamic_rnn.py, or without ranks: python examples/tf1/plain/dynamic_rnn.py
"""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()

BATCH = 16
LENGTH = 10
FEATURES = 4
HIDDEN = 16


class MinimalGatedCell:
    """A recurrent cell with one gate, which both forgets and updates."""

    def __init__(self, size):
        self.state_size = size
        self.output_size = size

    def zero_state(self, batch_size, dtype):
        return tf.zeros([batch_size, self.state_size], dtype)

    def __call__(self, inputs, state, scope=None):
        with tf.variable_scope(scope or "minimal_gated_cell", reuse=tf.AUTO_REUSE):
            gate = tf.sigmoid(self._linear(tf.concat([inputs, state], 1), "gate", bias=1.0))
            candidate = tf.tanh(self._linear(tf.concat([inputs, gate * state], 1), "candidate", bias=0.0))
        state = (1.0 - gate) * state + gate * candidate
        return state, state

    def _linear(self, x, name, bias):
        w = tf.get_variable(name + "_w", [x.shape[1], self.state_size])
        b = tf.get_variable(name + "_b", [self.state_size], initializer=tf.constant_initializer(bias))
        return tf.matmul(x, w) + b


def make_batch(step):
    """Random walks; whether the first feature's sum, up to the sequence's length, is positive."""
    rng = np.random.RandomState(step)
    sequences = rng.randn(BATCH, LENGTH, FEATURES).astype(np.float32)
    lengths = rng.randint(3, LENGTH + 1, size=BATCH)
    valid = np.arange(LENGTH) < lengths[:, None]
    labels = (np.sum(sequences[:, :, 0] * valid, axis=1) > 0).astype(np.float32)
    return sequences, lengths.astype(np.int32), labels


def train(steps, log_every=10):
    tf.set_random_seed(1)
    sequences = tf.placeholder(tf.float32, [BATCH, LENGTH, FEATURES])
    lengths = tf.placeholder(tf.int32, [BATCH])
    labels = tf.placeholder(tf.float32, [BATCH])
    cell = MinimalGatedCell(HIDDEN)
    outputs, state = tf.nn.dynamic_rnn(cell, sequences, sequence_length=lengths, dtype=tf.float32)
    last = tf.gather_nd(outputs, tf.stack([tf.range(BATCH), lengths - 1], axis=1))
    w = tf.get_variable("w", [HIDDEN, 1])
    logits = tf.squeeze(tf.matmul(last + state, w), axis=1)
    loss = tf.reduce_mean(tf.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=logits))
    optimizer = tf.train.RMSPropOptimizer(0.005, decay=0.9)
    grads_and_vars = optimizer.compute_gradients(loss)
    train_op = optimizer.apply_gradients([(tf.clip_by_value(g, -1.0, 1.0), v) for g, v in grads_and_vars])

    losses = []
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(steps):
            x, n, y = make_batch(step)
            _, loss_value = sess.run([train_op, loss], feed_dict={sequences: x, lengths: n, labels: y})
            losses.append(loss_value)
            if step % log_every == 0:
                print(f"step {step}: loss {loss_value:.4f}")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    train(parser.parse_args().steps)
