"""An LSTM language model: truncated backpropagation, clipped gradients, a learning rate that decays.

mpirun -n 4 python examples/tf1/lstm.py, or without ranks: python examples/tf1/plain/lstm.py
"""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()

BATCH = 16
STEPS = 8  # of backpropagation through time
HIDDEN = 32
LAYERS = 2
VOCABULARY = 24


def make_text(length, seed=0):
    """Words of a Markov chain, each of which is followed by one of three."""
    rng = np.random.RandomState(seed)
    followers = rng.randint(VOCABULARY, size=[VOCABULARY, 3])
    words = [0]
    for choice in rng.randint(3, size=length - 1):
        words.append(followers[words[-1], choice])
    return np.array(words, np.int32)


def lstm_cell(x, c, h, name):
    with tf.variable_scope(name, reuse=tf.AUTO_REUSE):
        kernel = tf.get_variable("kernel", [x.shape[1] + HIDDEN, 4 * HIDDEN])
        bias = tf.get_variable("bias", [4 * HIDDEN], initializer=tf.zeros_initializer())
    i, j, f, o = tf.split(tf.nn.bias_add(tf.matmul(tf.concat([x, h], 1), kernel), bias), 4, axis=1)
    c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
    return c, tf.sigmoid(o) * tf.tanh(c)


def train(steps, log_every=10):
    tf.set_random_seed(1)
    inputs = tf.placeholder(tf.int32, [BATCH, STEPS])
    targets = tf.placeholder(tf.int32, [BATCH, STEPS])
    initial_state = tf.placeholder(tf.float32, [LAYERS, 2, BATCH, HIDDEN])
    embedding = tf.get_variable("embedding", [VOCABULARY, HIDDEN], initializer=tf.random_uniform_initializer(-0.1, 0.1))
    embedded = tf.nn.embedding_lookup(embedding, inputs)

    state = [tf.unstack(layer) for layer in tf.unstack(initial_state)]
    outputs = []
    for t in range(STEPS):
        x = embedded[:, t, :]
        for layer in range(LAYERS):
            c, h = state[layer]
            c, x = lstm_cell(x, c, h, f"layer{layer}")
            state[layer] = [c, x]
        outputs.append(x)
    final_state = tf.stack([tf.stack(layer) for layer in state])

    softmax_w = tf.get_variable("softmax_w", [HIDDEN, VOCABULARY])
    softmax_b = tf.get_variable("softmax_b", [VOCABULARY], initializer=tf.zeros_initializer())
    logits = tf.matmul(tf.reshape(tf.stack(outputs, axis=1), [-1, HIDDEN]), softmax_w) + softmax_b
    losses_of_words = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=tf.reshape(targets, [-1]), logits=logits)
    cost = tf.reduce_sum(losses_of_words) / BATCH

    global_step = tf.train.get_or_create_global_step()
    learning_rate = tf.train.exponential_decay(1.0, global_step, decay_steps=10, decay_rate=0.98, staircase=True)
    tvars = tf.trainable_variables()
    grads, norm = tf.clip_by_global_norm(tf.gradients(cost, tvars), 1.0)
    optimizer = tf.train.GradientDescentOptimizer(learning_rate)
    train_op = optimizer.apply_gradients(zip(grads, tvars), global_step=global_step)

    text = make_text(BATCH * 400 + 1).astype(np.int32)
    x, y = text[:-1].reshape(BATCH, -1), text[1:].reshape(BATCH, -1)
    losses = []
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        state_value = np.zeros([LAYERS, 2, BATCH, HIDDEN], np.float32)
        for step in range(steps):
            part = slice(step * STEPS % x.shape[1], step * STEPS % x.shape[1] + STEPS)
            feed_dict = {inputs: x[:, part], targets: y[:, part], initial_state: state_value}
            fetches = [train_op, cost, final_state, norm, learning_rate]
            _, cost_value, state_value, norm_value, rate = sess.run(fetches, feed_dict)
            losses.append(cost_value / STEPS)
            if step % log_every == 0:
                print(f"step {step}: perplexity {np.exp(losses[-1]):.3f}, norm {norm_value:.3f}, rate {rate:.3f}")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    train(parser.parse_args().steps)
