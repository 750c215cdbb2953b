"""A classifier of two hidden layers, trained by a feed_dict loop.

mpirun -n 4 python examples/tf1/mlp.py, or without ranks: python examples/tf1/plain/mlp.py
"""

import argparse

import numpy as np
import tensoropt as tf

tf.disable_v2_behavior()

BATCH = 32
FEATURES = 64
CLASSES = 8
HIDDEN = [64, 32]


def make_data(samples, seed=0):
    """Points around one centre for each class."""
    rng = np.random.RandomState(seed)
    centers = rng.randn(CLASSES, FEATURES)
    labels = rng.randint(CLASSES, size=samples)
    return (centers[labels] + rng.randn(samples, FEATURES)).astype(np.float32), labels.astype(np.int32)


def fully_connected(x, size, name, seed):
    with tf.variable_scope(name):
        init = tf.truncated_normal_initializer(stddev=x.shape[1].value ** -0.5, seed=seed)
        w = tf.get_variable("w", [x.shape[1], size], initializer=init)
        b = tf.get_variable("b", [size], initializer=tf.zeros_initializer())
        return tf.matmul(x, w) + b


def model(x):
    for i, size in enumerate(HIDDEN):
        x = tf.nn.relu(fully_connected(x, size, f"hidden{i}", seed=i))
    return fully_connected(x, CLASSES, "logits", seed=len(HIDDEN))


def train(steps, log_every=10):
    tf.init()
    tf.set_random_seed(1)
    x = tf.placeholder(tf.float32, [BATCH, FEATURES])
    y = tf.placeholder(tf.int32, [BATCH])
    logits = model(x)
    loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits))
    accuracy = tf.reduce_mean(tf.cast(tf.equal(tf.argmax(logits, 1, output_type=tf.int32), y), tf.float32))
    train_op = tf.train.AdamOptimizer(0.003).minimize(loss)

    images, labels = make_data(2048)
    losses = []
    plan = tf.find_strategy(option="mini_time")
    tf.build_execution_graph(engine="tensorflow", plan=plan)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(steps):
            first = step * BATCH % len(images)
            feed_dict = {x: images[first : first + BATCH], y: labels[first : first + BATCH]}
            _, loss_value, accuracy_value = sess.run([train_op, loss, accuracy], feed_dict=feed_dict)
            losses.append(loss_value)
            if step % log_every == 0:
                print(f"step {step}: loss {loss_value:.4f}, accuracy {accuracy_value:.3f}")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    train(parser.parse_args().steps)
