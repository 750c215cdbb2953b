"""A small BERT on masked words: Adam with decoupled weight decay, warm-up, a decaying rate, clipped gradients.

mpirun -n 4 python examples/tf1/bert.py, or without ranks: python examples/tf1/plain/bert.py
"""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_eager_execution()

flags = tf.flags
flags.DEFINE_integer("train_batch_size", 16, "Sequences of a batch.")
flags.DEFINE_integer("max_seq_length", 12, "Words of a sequence.")
flags.DEFINE_integer("num_train_steps", 300, "Training steps.")
flags.DEFINE_integer("num_warmup_steps", 8, "Steps in which the rate rises.")
flags.DEFINE_float("learning_rate", 1e-2, "The highest rate.")
flags.DEFINE_float("dropout", 0.1, "The share of activations that is dropped.")
FLAGS = flags.FLAGS

VOCABULARY, MASK, HIDDEN, HEADS, LAYERS = 32, 0, 32, 4, 2


class AdamWeightDecayOptimizer(tf.train.Optimizer):
    """Adam without correction of its first steps, whose weights decay apart from the gradients' moments."""

    def __init__(self, learning_rate, weight_decay=0.01, beta1=0.9, beta2=0.999, epsilon=1e-6, name="AdamWeightDecay"):
        super().__init__(False, name)
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.beta1, self.beta2, self.epsilon = beta1, beta2, epsilon

    def apply_gradients(self, grads_and_vars, global_step=None, name=None):
        updates = []
        for grad, var in grads_and_vars:
            if grad is None:
                continue
            zeros, key = tf.zeros_initializer(), var.op.name
            m = tf.get_variable(key + "/adam_m", var.shape, tf.float32, zeros, trainable=False)
            v = tf.get_variable(key + "/adam_v", var.shape, tf.float32, zeros, trainable=False)
            next_m = self.beta1 * m + (1.0 - self.beta1) * grad
            next_v = self.beta2 * v + (1.0 - self.beta2) * tf.square(grad)
            change = next_m / (tf.sqrt(next_v) + self.epsilon)
            if "layer_norm" not in key and "bias" not in key:
                change += self.weight_decay * var
            updates += [var.assign_sub(self.learning_rate * change), m.assign(next_m), v.assign(next_v)]
        with tf.control_dependencies(updates):
            return tf.group(*updates, *([] if global_step is None else [global_step.assign_add(1)]), name=name)


def make_batch(step):
    """Words count up from a random one, some are masked; also a mask of the words that are no padding."""
    rng, shape = np.random.RandomState(step), [FLAGS.train_batch_size, FLAGS.max_seq_length]
    words = 1 + (rng.randint(VOCABULARY - 1, size=[shape[0], 1]) + np.arange(shape[1])) % (VOCABULARY - 1)
    valid = np.arange(shape[1]) < rng.randint(shape[1] // 2, shape[1] + 1, size=[shape[0], 1])
    masked = (rng.rand(*shape) < 0.25) & valid
    return np.where(masked | ~valid, MASK, words), words, valid, masked


def weight(name, shape):
    return tf.get_variable(name, shape, initializer=tf.truncated_normal_initializer(stddev=0.1))


def dense(x, size, name):
    bias = tf.get_variable(name + "_bias", [size], initializer=tf.zeros_initializer())
    return tf.nn.bias_add(tf.matmul(x, weight(name + "_kernel", [x.shape[-1], size])), bias)


def dropout_and_norm(x, residual, name):
    x = tf.nn.dropout(x, rate=FLAGS.dropout) + residual
    gamma = tf.get_variable(name + "_layer_norm_gamma", [HIDDEN], initializer=tf.ones_initializer())
    beta = tf.get_variable(name + "_layer_norm_beta", [HIDDEN], initializer=tf.zeros_initializer())
    mean, variance = tf.nn.moments(x, [-1], keep_dims=True)
    return tf.nn.batch_normalization(x, mean, variance, beta, gamma, 1e-12)


def encoder(ids, valid, batch, length):
    """Hidden states of all words, one below the other, and the table of words."""
    table = weight("word_embeddings", [VOCABULARY, HIDDEN])
    x = tf.nn.embedding_lookup(table, ids) + weight("position_embeddings", [length, HIDDEN])
    x = dropout_and_norm(tf.reshape(x, [-1, HIDDEN]), 0.0, "embeddings")
    adder = (1.0 - tf.cast(valid, tf.float32))[:, None, None, :] * -10000.0
    for layer in range(LAYERS):
        with tf.variable_scope(f"layer_{layer}"):
            parts = [tf.reshape(dense(x, HIDDEN, p), [batch, length, HEADS, -1]) for p in ("query", "key", "value")]
            query, key, value = [tf.transpose(part, [0, 2, 1, 3]) for part in parts]
            scores = tf.matmul(query, key, transpose_b=True) / np.sqrt(HIDDEN // HEADS).astype(np.float32) + adder
            context = tf.matmul(tf.nn.dropout(tf.nn.softmax(scores), rate=FLAGS.dropout), value)
            context = tf.reshape(tf.transpose(context, [0, 2, 1, 3]), [batch * length, HIDDEN])
            x = dropout_and_norm(dense(context, HIDDEN, "attention"), x, "attention")
            up = dense(x, 4 * HIDDEN, "up")
            up *= 0.5 * (1.0 + tf.erf(up / np.sqrt(2.0).astype(np.float32)))  # gelu
            x = dropout_and_norm(dense(up, HIDDEN, "down"), x, "output")
    return x, table


def train(steps, log_every=50):
    batch, length = FLAGS.train_batch_size, FLAGS.max_seq_length
    tf.set_random_seed(1)
    ids, labels, valid, masked = (tf.placeholder(t, [batch, length]) for t in (tf.int32, tf.int32, tf.bool, tf.float32))
    x, table = encoder(ids, valid, batch, length)
    logits = tf.matmul(x, table, transpose_b=True) + tf.get_variable("output_bias", [VOCABULARY])
    log_probs = tf.nn.log_softmax(logits)
    per_word = -tf.reduce_sum(log_probs * tf.one_hot(tf.reshape(labels, [-1]), VOCABULARY), axis=-1)
    weights = tf.reshape(masked, [-1])
    loss = tf.reduce_sum(weights * per_word) / (tf.reduce_sum(weights) + 1e-5)

    global_step = tf.train.get_or_create_global_step()
    rate = tf.train.polynomial_decay(FLAGS.learning_rate, global_step, FLAGS.num_train_steps, end_learning_rate=0.0)
    done = tf.cast(global_step, tf.float32) / FLAGS.num_warmup_steps
    rate = tf.where(global_step < FLAGS.num_warmup_steps, FLAGS.learning_rate * done, rate)
    tvars = tf.trainable_variables()
    grads, _ = tf.clip_by_global_norm(tf.gradients(loss, tvars), clip_norm=1.0)
    train_op = AdamWeightDecayOptimizer(rate).apply_gradients(zip(grads, tvars), global_step)

    losses = []
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        for step in range(steps):
            feed_dict = dict(zip([ids, labels, valid, masked], make_batch(step)))
            _, loss_value, rate_value = sess.run([train_op, loss, rate], feed_dict=feed_dict)
            losses.append(loss_value)
            if step % log_every == 0:
                print(f"step {step}: loss {loss_value:.4f}, rate {rate_value:.5f}")
    return losses


def main(_):
    train(FLAGS.num_train_steps)


if __name__ == "__main__":
    tf.app.run()
