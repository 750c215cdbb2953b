"""Deep Q-learning of a game of catch: a replay memory, a target network, each gradient clipped by its norm.

mpirun -n 4 python examples/tf1/dqn.py, or without ranks: python examples/tf1/plain/dqn.py
"""

import argparse

import numpy as np
import tensoropt as tf

tf.disable_v2_behavior()

GAMES = 32  # that are played at once, and transitions of a batch
WIDTH = 5
ACTIONS = 3  # left, stay, right
DISCOUNT = 0.9
TARGET_EVERY = 5


class Catch:
    """Balls fall while a paddle moves; as they land, catching one gives 1 and missing it -1."""

    def __init__(self, rng):
        self.rng = rng
        self.ball, self.height, self.paddle = rng.randint(WIDTH, size=[3, GAMES])

    def observe(self):
        return np.eye(WIDTH, dtype=np.float32)[[self.ball, self.height, self.paddle]].swapaxes(0, 1).reshape(GAMES, -1)

    def step(self, actions):
        self.paddle = np.clip(self.paddle + actions - 1, 0, WIDTH - 1)
        landed = self.height == 0
        rewards = np.where(landed, np.where(self.ball == self.paddle, 1.0, -1.0), 0.0).astype(np.float32)
        self.ball = np.where(landed, self.rng.randint(WIDTH, size=GAMES), self.ball)
        self.height = np.where(landed, WIDTH - 1, self.height - 1)
        return self.observe(), rewards, landed.astype(np.float32)


def q_network(states, name):
    with tf.variable_scope(name):
        for i, size in enumerate([48, ACTIONS]):
            init = tf.truncated_normal_initializer(stddev=states.shape[1].value ** -0.5, seed=i)
            w = tf.get_variable(f"w{i}", [states.shape[1], size], initializer=init)
            b = tf.get_variable(f"b{i}", [size], initializer=tf.zeros_initializer())
            states = tf.matmul(tf.nn.relu(states) if i else states, w) + b
        return states


def train(steps, log_every=50):
    tf.init()
    tf.set_random_seed(1)
    states = tf.placeholder(tf.float32, [GAMES, 3 * WIDTH])
    next_states = tf.placeholder(tf.float32, [GAMES, 3 * WIDTH])
    actions = tf.placeholder(tf.int32, [GAMES])
    rewards = tf.placeholder(tf.float32, [GAMES])
    ends = tf.placeholder(tf.float32, [GAMES])
    q_values = q_network(states, "online")
    future = tf.reduce_max(q_network(next_states, "target"), axis=1)
    goals = tf.stop_gradient(rewards + DISCOUNT * (1.0 - ends) * future)
    chosen = tf.reduce_sum(q_values * tf.one_hot(actions, ACTIONS), axis=1)
    loss = tf.losses.huber_loss(goals, chosen)

    online_vars = tf.get_collection(tf.GraphKeys.TRAINABLE_VARIABLES, scope="online")
    target_vars = tf.get_collection(tf.GraphKeys.GLOBAL_VARIABLES, scope="target")
    optimizer = tf.train.AdamOptimizer(0.003)
    grads = optimizer.compute_gradients(loss, var_list=online_vars)
    train_op = optimizer.apply_gradients([(tf.clip_by_norm(g, 0.05), v) for g, v in grads if g is not None])
    update_target = tf.group(*[t.assign(v) for t, v in zip(target_vars, online_vars)])

    rng = np.random.RandomState(0)
    game = Catch(rng)
    memory, losses, results = [], [], []
    plan = tf.find_strategy(option="mini_time")
    tf.build_execution_graph(engine="tensorflow", plan=plan)
    with tf.Session() as sess:
        sess.run(tf.global_variables_initializer())
        sess.run(update_target)
        before = game.observe()
        for step in range(steps):
            greedy = np.argmax(sess.run(q_values, feed_dict={states: before}), axis=1)
            explore = rng.rand(GAMES) < max(0.05, 1.0 - step / 100)
            moves = np.where(explore, rng.randint(ACTIONS, size=GAMES), greedy)
            after, gained, landed = game.step(moves)
            for transition in zip(before, moves, gained, after, landed):
                memory.append(transition)
            before = after
            batch = [memory[i] for i in rng.randint(len(memory), size=GAMES)]
            values = [np.array(column) for column in zip(*batch)]
            feed_dict = dict(zip([states, actions, rewards, next_states, ends], values))
            losses.append(sess.run([train_op, loss], feed_dict=feed_dict)[1])
            results.extend(gained[landed > 0])
            if step % TARGET_EVERY == 0:
                sess.run(update_target)
            if step % log_every == 0:
                print(f"step {step}: loss {losses[-1]:.4f}, reward {np.mean(results[-200:]):.2f}")
    return losses


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=400)
    train(parser.parse_args().steps)
