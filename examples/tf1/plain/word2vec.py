"""Skip-gram word vectors, trained by noise-contrastive estimation.

mpirun -n 4 python examples/tf1/word2vec.py, or without ranks: python examples/tf1/plain/word2vec.py
"""

import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()

flags = tf.flags
flags.DEFINE_integer("vocabulary", 128, "Words, the most frequent first.")
flags.DEFINE_integer("dimension", 32, "Length of a vector.")
flags.DEFINE_integer("batch_size", 64, "Pairs of a centre and a word beside it.")
flags.DEFINE_integer("num_sampled", 16, "Words of noise for each batch.")
flags.DEFINE_integer("num_steps", 500, "Training steps.")
flags.DEFINE_float("learning_rate", 0.5, "Of gradient descent.")
FLAGS = flags.FLAGS

TOPICS = 8


def make_pairs(step):
    """Centres and words of the same topic; frequent words have small ids."""
    rng = np.random.RandomState(step)
    ranks = np.arange(FLAGS.vocabulary)
    centers = rng.choice(ranks, size=FLAGS.batch_size, p=(1 / (ranks + 1)) / np.sum(1 / (ranks + 1)))
    others = rng.randint(FLAGS.vocabulary // TOPICS, size=FLAGS.batch_size) * TOPICS
    return centers.astype(np.int32), (others + centers % TOPICS).astype(np.int64)[:, None]


def train(steps, log_every=50):
    tf.set_random_seed(1)
    centers = tf.placeholder(tf.int32, [FLAGS.batch_size], name="centers")
    contexts = tf.placeholder(tf.int64, [FLAGS.batch_size, 1], name="contexts")
    shape = [FLAGS.vocabulary, FLAGS.dimension]
    embeddings = tf.get_variable("embeddings", shape, initializer=tf.random_uniform_initializer(-1, 1, seed=1))
    nce_init = tf.truncated_normal_initializer(stddev=FLAGS.dimension**-0.5, seed=2)
    nce_weights = tf.get_variable("nce_weights", shape, initializer=nce_init)
    nce_biases = tf.get_variable("nce_biases", [FLAGS.vocabulary], initializer=tf.zeros_initializer())
    embed = tf.nn.embedding_lookup(embeddings, centers)
    noise = tf.nn.log_uniform_candidate_sampler(
        true_classes=contexts,
        num_true=1,
        num_sampled=FLAGS.num_sampled,
        unique=True,
        range_max=FLAGS.vocabulary,
        seed=3,
    )
    loss = tf.reduce_mean(
        tf.nn.nce_loss(
            weights=nce_weights,
            biases=nce_biases,
            labels=contexts,
            inputs=embed,
            num_sampled=FLAGS.num_sampled,
            num_classes=FLAGS.vocabulary,
            sampled_values=noise,
        )
    )
    train_op = tf.train.GradientDescentOptimizer(FLAGS.learning_rate).minimize(loss)
    normalized = tf.nn.l2_normalize(embeddings, axis=1)
    similarity = tf.matmul(normalized, normalized, transpose_b=True)

    losses = []
    with tf.Session() as sess:
        tf.global_variables_initializer().run()
        for step in range(steps):
            batch_centers, batch_contexts = make_pairs(step)
            feed_dict = {centers: batch_centers, contexts: batch_contexts}
            _, loss_value = sess.run([train_op, loss], feed_dict=feed_dict)
            losses.append(loss_value)
            if step % log_every == 0:
                print(f"step {step}: loss {loss_value:.3f}")
        nearest = np.argsort(-similarity.eval()[: 2 * TOPICS], axis=1)[:, 1:4]
        share = np.mean(nearest % TOPICS == np.arange(2 * TOPICS)[:, None] % TOPICS)
        print(f"of the nearest words {share:.0%} have the same topic")
    return losses


def main(_):
    train(FLAGS.num_steps)


if __name__ == "__main__":
    tf.app.run()
