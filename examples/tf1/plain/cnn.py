"""A convolutional network with batch normalization, trained by momentum.

mpirun -n 4 python examples/tf1/cnn.py, or without ranks: python examples/tf1/plain/cnn.py
"""

import argparse

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()

BATCH = 16
SIZE = 16
CLASSES = 4


def make_batch(step):
    """Noisy stripes, whose direction and width are the class."""
    rng = np.random.RandomState(step)
    labels = rng.randint(CLASSES, size=BATCH)
    waves = np.sin(np.arange(SIZE) * np.where(labels % 2, 0.8, 1.6)[:, None])[:, None, :]
    waves = np.broadcast_to(waves, [BATCH, SIZE, SIZE]).copy()
    waves[labels > 1] = waves[labels > 1].transpose(0, 2, 1)
    images = waves + rng.normal(scale=0.5, size=waves.shape)
    return images[..., None].astype(np.float32), labels.astype(np.int32)


def batch_norm(x, is_training, decay=0.9, epsilon=1e-5):
    with tf.variable_scope("batch_norm"):
        depth = [x.shape[-1]]
        gamma = tf.get_variable("gamma", depth, initializer=tf.ones_initializer())
        beta = tf.get_variable("beta", depth, initializer=tf.zeros_initializer())
        moving_mean = tf.get_variable("moving_mean", depth, initializer=tf.zeros_initializer(), trainable=False)
        moving_var = tf.get_variable("moving_variance", depth, initializer=tf.ones_initializer(), trainable=False)
        batch_mean, batch_var = tf.nn.moments(x, [0, 1, 2])
        for moving, value in [(moving_mean, batch_mean), (moving_var, batch_var)]:
            tf.add_to_collection(tf.GraphKeys.UPDATE_OPS, tf.assign_sub(moving, (moving - value) * (1 - decay)))
        mean, var = tf.cond(is_training, lambda: (batch_mean, batch_var), lambda: (moving_mean, moving_var))
        return tf.nn.batch_normalization(x, mean, var, beta, gamma, epsilon)


def conv_block(x, filters, is_training, name):
    with tf.variable_scope(name):
        kernel = tf.get_variable("kernel", [3, 3, x.shape[-1], filters])
        x = tf.nn.conv2d(x, kernel, strides=[1, 1, 1, 1], padding="SAME")
        x = tf.nn.relu(batch_norm(x, is_training))
        return tf.nn.max_pool(x, ksize=[1, 2, 2, 1], strides=[1, 2, 2, 1], padding="SAME")


def train(steps, log_every=10):
    tf.set_random_seed(1)
    x = tf.placeholder(tf.float32, [BATCH, SIZE, SIZE, 1])
    y = tf.placeholder(tf.int32, [BATCH])
    is_training = tf.placeholder(tf.bool, [])
    net = conv_block(x, 8, is_training, "conv1")
    net = conv_block(net, 16, is_training, "conv2")
    w = tf.get_variable("w", [16, CLASSES])
    logits = tf.matmul(tf.reduce_mean(net, axis=[1, 2]), w)
    loss = tf.losses.sparse_softmax_cross_entropy(labels=y, logits=logits)
    loss += 1e-4 * tf.add_n([tf.nn.l2_loss(v) for v in tf.trainable_variables()])
    update_ops = tf.get_collection(tf.GraphKeys.UPDATE_OPS)
    with tf.control_dependencies(update_ops):
        train_op = tf.train.MomentumOptimizer(0.05, momentum=0.9, use_nesterov=True).minimize(loss)

    losses = []
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(steps):
            images, labels = make_batch(step)
            _, loss_value = sess.run([train_op, loss], feed_dict={x: images, y: labels, is_training: True})
            losses.append(loss_value)
            if step % log_every == 0:
                print(f"step {step}: loss {loss_value:.4f}")
        images, labels = make_batch(steps)
        losses.append(sess.run(loss, feed_dict={x: images, y: labels, is_training: False}))
        print(f"loss with moving averages {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=200)
    train(parser.parse_args().steps)
