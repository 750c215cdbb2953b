"""A Wasserstein GAN with a gradient penalty: two networks, two optimizers, gradients of gradients.

mpirun -n 4 python examples/tf1/gan.py, or without ranks: python examples/tf1/plain/gan.py
"""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()

BATCH = 32
NOISE = 8
HIDDEN = 32
CRITIC_STEPS = 2
PENALTY = 1.0


def make_batch(step):
    """Points near a circle."""
    rng = np.random.RandomState(step)
    angles = rng.uniform(0, 2 * np.pi, size=BATCH)
    circle = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return (circle + rng.normal(scale=0.05, size=circle.shape)).astype(np.float32)


def dense(x, size, name, activation=None):
    with tf.variable_scope(name):
        w = tf.get_variable("w", [x.shape[1], size], initializer=tf.glorot_uniform_initializer())
        b = tf.get_variable("b", [size], initializer=tf.zeros_initializer())
        x = tf.matmul(x, w) + b
        return x if activation is None else activation(x)


def generator(noise):
    with tf.variable_scope("generator"):
        hidden = dense(noise, HIDDEN, "hidden1", tf.nn.relu)
        hidden = dense(hidden, HIDDEN, "hidden2", tf.nn.relu)
        return dense(hidden, 2, "output")


def critic(x):
    with tf.variable_scope("critic", reuse=tf.AUTO_REUSE):
        hidden = dense(x, HIDDEN, "hidden1", tf.nn.leaky_relu)
        hidden = dense(hidden, HIDDEN, "hidden2", tf.tanh)
        return dense(hidden, 1, "output")


def train(steps, log_every=20):
    tf.set_random_seed(1)
    real = tf.placeholder(tf.float32, [BATCH, 2])
    fake = generator(tf.random_normal([BATCH, NOISE]))
    critic_loss = tf.reduce_mean(critic(fake)) - tf.reduce_mean(critic(real))
    generator_loss = -tf.reduce_mean(critic(fake))

    # The critic's slope between real and generated points is to be 1.
    mix = tf.random_uniform([BATCH, 1])
    between = mix * real + (1.0 - mix) * fake
    slopes = tf.gradients(critic(between), [between])[0]
    norms = tf.sqrt(tf.reduce_sum(tf.square(slopes), axis=1) + 1e-12)
    critic_loss += PENALTY * tf.reduce_mean(tf.square(norms - 1.0))

    g_vars = [v for v in tf.trainable_variables() if v.name.startswith("generator/")]
    d_vars = [v for v in tf.trainable_variables() if v.name.startswith("critic/")]
    with tf.control_dependencies([critic_loss]):  # what is fetched beside it is the loss before the step
        d_train = tf.train.AdamOptimizer(0.002, beta1=0.5, beta2=0.9).minimize(critic_loss, var_list=d_vars)
    g_train = tf.train.AdamOptimizer(0.002, beta1=0.5, beta2=0.9).minimize(generator_loss, var_list=g_vars)

    losses = []
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(steps):
            for i in range(CRITIC_STEPS):
                feed_dict = {real: make_batch(step * CRITIC_STEPS + i)}
                _, d_value = sess.run([d_train, critic_loss], feed_dict=feed_dict)
            _, g_value = sess.run([g_train, generator_loss])
            losses += [d_value, g_value]
            if step % log_every == 0:
                print(f"step {step}: critic {d_value:.4f}, generator {g_value:.4f}")
        radius = np.linalg.norm(sess.run(fake), axis=1)
        print(f"generated points are {radius.mean():.3f} from the centre")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    train(parser.parse_args().steps)
