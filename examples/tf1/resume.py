"""Training that goes on from its last checkpoint: run it twice, the second time with more steps.

mpirun -n 4 python examples/tf1/resume.py, or without ranks: python examples/tf1/plain/resume.py
"""

import argparse
import os

import numpy as np
import tensoropt as tf

tf.disable_eager_execution()

BATCH = 32
FEATURES = 16
HIDDEN = 32


def make_batch(step):
    rng = np.random.RandomState(step)
    x = rng.randn(BATCH, FEATURES).astype(np.float32)
    return x, np.sin(x[:, :1]) + x[:, 1:2] * x[:, 2:3]


def model(x):
    w1 = tf.get_variable("w1", [FEATURES, HIDDEN])
    b1 = tf.get_variable("b1", [HIDDEN], initializer=tf.zeros_initializer())
    w2 = tf.get_variable("w2", [HIDDEN, 1])
    return tf.matmul(tf.nn.relu(tf.matmul(x, w1) + b1), w2)


def train(steps, folder, save_every=5, log_every=20):
    tf.init()
    tf.set_random_seed(1)
    x = tf.placeholder(tf.float32, [BATCH, FEATURES])
    y = tf.placeholder(tf.float32, [BATCH, 1])
    loss = tf.losses.mean_squared_error(y, model(x))
    averages = tf.train.ExponentialMovingAverage(0.9)
    global_step = tf.train.get_or_create_global_step()
    train_op = tf.train.AdamOptimizer(0.01).minimize(loss, global_step=global_step)
    with tf.control_dependencies([train_op]):
        train_op = averages.apply(tf.trainable_variables())
    saver = tf.train.Saver(max_to_keep=2)

    losses = []
    plan = tf.find_strategy(option="mini_time")
    tf.build_execution_graph(engine="tensorflow", plan=plan)
    with tf.Session() as sess:
        checkpoint = tf.train.latest_checkpoint(folder)
        if checkpoint:
            saver.restore(sess, checkpoint)
            print(f"going on from {checkpoint}")
        else:
            sess.run(tf.global_variables_initializer())
        for step in range(sess.run(global_step), steps):
            x_value, y_value = make_batch(step)
            _, loss_value = sess.run([train_op, loss], feed_dict={x: x_value, y: y_value})
            losses.append(loss_value)
            if step % log_every == 0:
                print(f"step {step}: loss {loss_value:.4f}")
            if (step + 1) % save_every == 0 or step + 1 == steps:
                saver.save(sess, os.path.join(folder, "model"), global_step=global_step)
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--folder", default="checkpoints")
    flags = parser.parse_args()
    train(flags.steps, flags.folder)
