"""A causal Transformer that learns to reverse sequences: tied weights, label smoothing, the "noam" schedule.

mpirun -n 4 python examples/tf1/transformer.py, or without ranks: python examples/tf1/plain/transformer.py
"""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()

BATCH = 16
WORDS = 6  # of a sequence, which is followed by itself reversed
VOCABULARY = 16
MODEL_DIM = 32
HEADS = 4
LAYERS = 2
WARMUP_STEPS = 100


def make_batch(step):
    words = np.random.RandomState(step).randint(VOCABULARY, size=[BATCH, WORDS])
    text = np.concatenate([words, words[:, ::-1]], axis=1).astype(np.int32)
    return text[:, :-1], text[:, 1:]


def sinusoids(length):
    angles = np.arange(length)[:, None] / 10000 ** (np.arange(0, MODEL_DIM, 2) / MODEL_DIM)
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=1).astype(np.float32)


def layer_norm(x):
    with tf.variable_scope(None, "layer_norm"):
        scale = tf.get_variable("scale", [MODEL_DIM], initializer=tf.ones_initializer())
        bias = tf.get_variable("bias", [MODEL_DIM], initializer=tf.zeros_initializer())
    mean, variance = tf.nn.moments(x, axes=[-1], keep_dims=True)
    return (x - mean) * tf.rsqrt(variance + 1e-6) * scale + bias


def dense(x, size, name):
    return tf.einsum("btd,de->bte", x, tf.get_variable(name, [x.shape[-1], size]))


def attention(x):
    length = x.shape[1]
    heads = [tf.reshape(dense(x, MODEL_DIM, name), [BATCH, length, HEADS, -1]) for name in ("query", "key", "value")]
    query, key, value = [tf.transpose(head, [0, 2, 1, 3]) for head in heads]
    scores = tf.matmul(query, key, transpose_b=True) * (MODEL_DIM // HEADS) ** -0.5
    visible = tf.linalg.band_part(tf.ones([length, length]), -1, 0)
    weights = tf.nn.softmax(scores - 1e9 * (1.0 - visible))
    mixed = tf.transpose(tf.matmul(weights, value), [0, 2, 1, 3])
    return dense(tf.reshape(mixed, [BATCH, length, MODEL_DIM]), MODEL_DIM, "output")


def feed_forward(x):
    return dense(tf.nn.relu(dense(x, 4 * MODEL_DIM, "inner")), MODEL_DIM, "outer")


def train(steps, log_every=50):
    tf.set_random_seed(1)
    inputs = tf.placeholder(tf.int32, [BATCH, 2 * WORDS - 1])
    targets = tf.placeholder(tf.int32, [BATCH, 2 * WORDS - 1])
    embedding = tf.get_variable(
        "embedding", [VOCABULARY, MODEL_DIM], initializer=tf.random_normal_initializer(stddev=MODEL_DIM**-0.5)
    )
    x = tf.gather(embedding, inputs) * MODEL_DIM**0.5 + sinusoids(2 * WORDS - 1)
    for layer in range(LAYERS):
        for sublayer in (attention, feed_forward):
            with tf.variable_scope(f"layer{layer}/{sublayer.__name__}"):
                x += tf.nn.dropout(sublayer(layer_norm(x)), rate=0.1)
    logits = tf.tensordot(layer_norm(x), embedding, axes=[[2], [1]])
    second_half = tf.range(2 * WORDS - 1) >= WORDS - 1  # the first one is random
    weights = tf.cast(second_half, tf.float32) * tf.ones([BATCH, 1])
    labels = tf.one_hot(targets, VOCABULARY)
    loss = tf.losses.softmax_cross_entropy(labels, logits, weights=weights, label_smoothing=0.1)

    global_step = tf.train.get_or_create_global_step()
    step_number = tf.cast(global_step + 1, tf.float32)
    learning_rate = MODEL_DIM**-0.5 * tf.minimum(step_number**-0.5, step_number * WARMUP_STEPS**-1.5)
    optimizer = tf.train.AdamOptimizer(learning_rate, beta1=0.9, beta2=0.98, epsilon=1e-9)
    train_op = optimizer.minimize(loss, global_step=global_step)

    losses = []
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(steps):
            x_value, y_value = make_batch(step)
            fetches = [train_op, loss, learning_rate]
            _, loss_value, rate = sess.run(fetches, feed_dict={inputs: x_value, targets: y_value})
            losses.append(loss_value)
            if step % log_every == 0:
                print(f"step {step}: loss {loss_value:.4f}, rate {rate:.5f}")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=500)
    train(parser.parse_args().steps)
