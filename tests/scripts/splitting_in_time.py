"""Trains a model by whole batches and by micro-batches, with and without recomputation, and compares the losses.

Arguments: ``graph``, ``keras``, or ``moved`` for a second gradient at weights that the first one has moved;
``pipelines`` after the model for stages on different ranks. Or ``zero``: a perceptron by the stages of ZeRO, beside
TensorFlow alone and beside the bytes that the paper has ranks send.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("KERAS_BACKEND", "tensorflow")

import keras
import numpy as np
import tensorflow as tf

import tensoropt as to
from tensoropt.api.session.job import current_job
from tensoropt.cluster.presets import cpu
from tensoropt.finders.pipeline import fastest_that_fits, pipelines
from tensoropt.plan.plan import Plan
from tensoropt.search.finding import NO_LIMIT

_STEPS = 5
_TIMES, _ROWS, _WIDTH = 4, 48, 32


def losses_of_a_graph(option: str = "mini_memory", **split: Any) -> list[float]:
    """Embeddings as rows, tied weights, dropout, sample weights, a regularizer, clipping, an average and a summary.

    Also a masked word of each sequence, found among the words of all, and its last one.
    """
    to.reset_default_graph()
    to.set_random_seed(3)
    words, mask = to.placeholder(to.int32, [24, 5], name="words"), to.placeholder(to.float32, [24, 5], name="mask")
    table = to.get_variable("table", [40, 16], initializer=to.random_normal_initializer(stddev=0.3))
    middle = to.get_variable("middle", [16, 16], initializer=to.random_normal_initializer(stddev=0.3))
    found = to.nn.embedding_lookup(table, words)
    hidden = to.nn.dropout(to.tanh(to.tensordot(found, middle, 1)), rate=0.2)
    logits = to.tensordot(hidden, table, [[2], [1]])
    each = to.nn.sparse_softmax_cross_entropy_with_logits(labels=words, logits=logits)
    weights = mask + 0.5 * to.reverse(mask, [0])  # which is made of the whole batch, and cut afterwards
    loss = to.reduce_sum(each * weights) / to.reduce_sum(weights) + 1e-2 * to.nn.l2_loss(middle)
    masked = to.gather(to.reshape(hidden, [-1, 16]), words[:, 0] % 5 + to.range(24) * 5)
    last = to.gather_nd(hidden, to.stack([to.range(24), words[:, 1] % 5], 1))
    loss += to.reduce_mean(to.square(masked - 0.5 * last))
    optimizer = to.train.AdamOptimizer(1e-2)
    gradients, variables = zip(*optimizer.compute_gradients(loss), strict=True)
    clipped, norm = to.clip_by_global_norm(gradients, 0.5)
    average = to.get_variable("average", [], trainable=False, initializer=to.zeros_initializer())
    kept = to.assign(average, 0.9 * average + 0.1 * loss)
    train = to.group(optimizer.apply_gradients(zip(clipped, variables, strict=True)), kept)
    summary = to.summary.scalar("loss", loss)
    to.build_execution_graph(plan=to.find_strategy(option, feed="global", costs="analytic", **split))
    random, result = np.random.default_rng(0), []
    for _ in range(_STEPS):
        batch = {words: random.integers(0, 40, (24, 5)), mask: random.random((24, 5)).round().astype(np.float32)}
        result += [float(value) for value in to.run([loss, norm, train], batch)[:2]]
    text = to.run(summary, batch)
    return [*result, float(to.run(average)), float(tf.compat.v1.Summary.FromString(text).value[0].simple_value)]


def losses_of_wide_activations(option: str | Plan = "mini_time", **split: Any) -> list[float]:
    """Eight layers, whose outputs are larger than their weights."""
    to.reset_default_graph()
    to.set_random_seed(3)
    x = hidden = to.placeholder(to.float32, [256, 16], name="x")
    for layer in range(8):
        weights = to.get_variable(f"w{layer}", [16, 16], initializer=to.random_normal_initializer(stddev=0.3))
        hidden = to.nn.dropout(to.nn.gelu(2.0 * to.tanh(to.matmul(hidden, weights))), rate=0.1)
    loss = to.reduce_mean(to.square(hidden - x))
    train = to.train.AdamOptimizer(1e-2).minimize(loss)
    to.build_execution_graph(plan=to.find_strategy(option, feed="global", costs="analytic", **split))
    random = np.random.default_rng(0)
    batches = [random.normal(size=(256, 16)).astype(np.float32) for _ in range(_STEPS)]
    return [float(to.run([loss, train], {x: batch})[0]) for batch in batches]


def losses_of_a_fed_tensor(option: str = "mini_time", **split: Any) -> list[float]:
    """A step's loss, and what a run gives that is fed what a layer in the middle would give.

    Weights of samples come with checks that they fit, and are counted by a tensor of the shape of what is computed. One
    input has a default for each sample, which the second step does not need.
    """
    to.reset_default_graph()
    to.set_random_seed(3)
    x = to.placeholder(to.float32, [_ROWS, 16], name="x")
    start = to.placeholder_with_default(np.full([_ROWS, 16], 0.1, np.float32), [None, 16], name="start")
    hidden, layers = x + start, []
    for layer in range(4):
        weights = to.get_variable(f"w{layer}", [16, 16], initializer=to.random_normal_initializer(stddev=0.3))
        hidden = to.tanh(to.matmul(hidden, weights))
        layers.append(hidden)
    weights = to.placeholder(to.float32, [None, 1], name="weights")
    loss = to.reduce_mean(to.square(hidden)) + to.losses.mean_squared_error(x, hidden, weights=weights)
    train = to.train.GradientDescentOptimizer(0.5).minimize(loss)
    plan = to.find_strategy(option, feed="global", costs="analytic", batch_size=_ROWS, **split)
    to.build_execution_graph(plan=plan)
    batch = np.random.default_rng(0).normal(size=(_ROWS, 16)).astype(np.float32)
    fed = {x: batch, weights: np.arange(_ROWS, dtype=np.float32)[:, None] % 3}  # those of nothing are not counted
    first, _ = to.run([loss, train], fed)
    second, _ = to.run([loss, train], {**fed, start: batch[::-1]})
    return [
        float(first),
        float(second),
        *(float(np.sum(value)) for value in to.run([loss, layers[2]], {**fed, layers[1]: batch})),
    ]


class DroppingCell(keras.layers.Layer):
    """A recurrent layer's cell that draws in each turn of the loop."""

    def __init__(self, state_size: int) -> None:
        super().__init__()
        self.state_size = state_size
        self.dense = keras.layers.Dense(state_size, "tanh")
        self.dropout = keras.layers.Dropout(0.2, seed=7)

    def build(self, shape: Any) -> None:
        self.dense.build((None, shape[-1] + self.state_size))
        self.built = True

    def call(self, inputs: Any, states: Any, training: bool = False) -> tuple[Any, list[Any]]:
        found = self.dense(keras.ops.concatenate([inputs, states[0]], -1))
        return self.dropout(found, training=training), [found]


def losses_of_keras(**split: Any) -> list[float]:
    """Attention, normalization, dropout, in a loop too, a regularizer, metrics and a smaller last batch."""
    keras.utils.set_random_seed(1)
    words = keras.Input((6,))
    x = keras.layers.Dense(32, kernel_regularizer="l2")(keras.layers.Reshape((6, 1))(words))
    x = keras.layers.LayerNormalization()(x + keras.layers.MultiHeadAttention(2, 8)(x, x))
    last = keras.layers.RNN(DroppingCell(8))(x)
    x = keras.layers.Dropout(0.2, seed=5)(keras.layers.Concatenate()([keras.layers.Flatten()(x), last]))
    model = keras.Model(words, keras.layers.Dense(4)(x))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(1e-2, clipnorm=1.0), loss=loss, metrics=["accuracy"])
    to.keras.parallelize(model, costs="analytic", **split)
    random = np.random.default_rng(0)
    inputs, labels = random.normal(size=(40, 6)).astype(np.float32), random.integers(0, 4, 40)
    history = model.fit(inputs, labels, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    return [*history["loss"], *history["accuracy"], *model.evaluate(inputs, labels, batch_size=16, verbose=0)]


def losses_of_images(option: str = "mini_memory", **split: Any) -> list[float]:
    """Convolutions with biases that each micro-batch gathers again, one of padded images."""
    keras.utils.set_random_seed(1)
    images = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(8, 3, padding="same", activation="relu")(images)
    x = keras.layers.Conv2D(16, 3, activation="relu")(keras.layers.ZeroPadding2D()(keras.layers.MaxPooling2D()(x)))
    x = keras.layers.Conv2DTranspose(4, 3, strides=2, padding="same")(x)
    model = keras.Model(images, keras.layers.Conv2D(3, 1)(keras.layers.SeparableConv2D(4, 3, padding="same")(x)))
    model.compile(optimizer=keras.optimizers.SGD(0.1), loss="mse")
    to.keras.parallelize(model, option, costs="analytic", **split)
    inputs = np.random.default_rng(0).normal(size=(32, 8, 8, 3)).astype(np.float32)
    history = model.fit(inputs, inputs, batch_size=16, epochs=2, shuffle=False, verbose=0).history
    return [*history["loss"], model.evaluate(inputs, inputs, batch_size=16, verbose=0)]


class AwareOfSharpness(keras.Model):
    """A perceptron whose step takes its gradient at weights that the gradient before has moved (SAM, Foret 2020)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers_of_it = keras.Sequential([keras.Input((6,)), keras.layers.Dense(12, "tanh"), keras.layers.Dense(5)])

    def call(self, inputs: Any) -> Any:
        return self.layers_of_it(inputs)

    def train_step(self, data: Any) -> dict[str, Any]:
        inputs, labels = data
        weights = self.layers_of_it.trainable_variables
        first, uphill = self._gradient(inputs, labels, weights)
        for weight, gradient in zip(weights, uphill, strict=True):
            weight.assign_add(0.05 * gradient)
        second, gradients = self._gradient(inputs, labels, weights)
        for weight, gradient in zip(weights, uphill, strict=True):
            weight.assign_sub(0.05 * gradient)
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        return {"loss": first, "moved": second}

    def _gradient(self, inputs: Any, labels: Any, weights: Any) -> tuple[Any, Any]:
        with tf.GradientTape() as tape:
            each = tf.nn.sparse_softmax_cross_entropy_with_logits(labels, self.layers_of_it(inputs))
            loss = tf.reduce_mean(each)
        return loss, tape.gradient(loss, weights)


def losses_of_moved_weights(option: str = "mini_memory", **split: Any) -> list[float]:
    """Losses before and after weights are moved for the second gradient, which runs once after all micro-batches."""
    keras.utils.set_random_seed(1)
    model = AwareOfSharpness()
    model.compile(optimizer=keras.optimizers.SGD(0.2))
    to.keras.parallelize(model, option, costs="analytic", **split)
    random = np.random.default_rng(0)
    inputs, labels = random.normal(size=(32, 6)).astype(np.float32), random.integers(0, 5, 32)
    history = model.fit(inputs, labels, batch_size=16, epochs=3, shuffle=False, verbose=0).history
    return [*history["loss"], *history["moved"]]


def a_perceptron(m: Any) -> tuple[Any, Any, Any]:
    """Two layers, the first with a bias: a placeholder, the loss, and a step of Adam."""
    m.set_random_seed(3)
    x = m.placeholder(m.float32, [_ROWS, _WIDTH], name="x")
    start = m.random_normal_initializer(stddev=0.3, seed=1)
    w1, w2 = (m.get_variable(name, [_WIDTH, _WIDTH], initializer=start) for name in ("w1", "w2"))
    bias = m.get_variable("bias", [_WIDTH], initializer=m.zeros_initializer())
    loss = m.reduce_mean(m.square(m.matmul(m.tanh(m.matmul(x, w1) + bias), w2) - x))
    return x, loss, m.train.AdamOptimizer(1e-2).minimize(loss)


def batches() -> list[np.ndarray]:
    """What the perceptron is fed."""
    random = np.random.default_rng(0)
    return [random.normal(size=(_ROWS, _WIDTH)).astype(np.float32) for _ in range(_STEPS)]


def losses_of_one_process() -> list[float]:
    """The perceptron's, by TensorFlow alone."""
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        x, loss, train = a_perceptron(tf.compat.v1)
        session.run(tf.compat.v1.global_variables_initializer())
        return [float(session.run([loss, train], {x: batch})[0]) for batch in batches()]


def losses_and_bytes(stage: str, **split: Any) -> tuple[list[float], dict[str, float]]:
    """The perceptron's by a stage of ZeRO, and what this rank has sent in a step, by kind."""
    to.reset_default_graph()
    x, loss, train = a_perceptron(to)
    plan = to.find_strategy(search=stage, feed="global", topology=cpu(to.world_size()), **split)
    to.build_execution_graph(plan=plan)
    engine = current_job().require_executor("test").state.engine
    losses = []
    for batch in batches():
        engine.reset_counts()
        losses.append(float(to.run([loss, train], {x: batch})[0]))
    return losses, {kind: float(engine.counted_bytes()[kind]) for kind in ("all_gather", "reduce_scatter")}


def zero() -> None:
    """Says of each stage of ZeRO whether losses and bytes are as they should be."""
    ranks, alone = to.world_size(), losses_of_one_process()
    products, bias = 2 * 4 * _WIDTH**2, 4 * _WIDTH
    every, share = products + bias, (ranks - 1) / ranks
    again = 2 * products + bias  # what the backward pass reads is gathered for it once more
    papers = {
        ("zero1", 1): (every, every),
        ("zero2", 1): (every, every),
        ("zero3", 1): (again, every),
        ("zero1", _TIMES): (every, every),
        ("zero2", _TIMES): (every, _TIMES * every),
        ("zero3", _TIMES): (_TIMES * again, _TIMES * every),
    }
    for (stage, times), (gathered, reduced) in papers.items():
        losses, sent = losses_and_bytes(stage, micro_batches=times)
        wanted = {"all_gather": share * gathered, "reduce_scatter": share * reduced}
        same = np.allclose(alone, losses, rtol=2e-5, atol=0.0) and sent == wanted
        if to.world_rank() == 0:
            what = f"{stage} of {times} on {ranks}: {sent} bytes"
            print(f"{what}, equal" if same else f"{what} and {losses}, not {wanted} and {alone}", flush=True)


def main() -> None:
    """Says of each way whether the losses are those of whole batches."""
    tf.config.experimental.enable_tensor_float_32_execution(False)  # where products on cards round more
    to.init()
    if sys.argv[1] == "zero":
        zero()
        return
    models = {
        "graph": losses_of_a_graph,
        "keras": losses_of_keras,
        "images": losses_of_images,
        "moved": losses_of_moved_weights,
        "fed": losses_of_a_fed_tensor,
    }
    losses: Callable[..., list[float]] = models[sys.argv[1]]
    if sys.argv[2:] == ["pipelines"]:
        asked = {"option": "mini_time", "search": "pipeline"}
        compare(losses, {**asked, "micro_batches": 2}, {**asked, "micro_batches": 4})
        if sys.argv[1] == "graph":
            losses_of_wide_activations(micro_batches=4, **asked)
            every = all_pipelines()
            least = min(plan.memory_bytes for plan in every)
            less = {"micro_batches": 4, "recompute": True, "memory_bytes": 0.8 * least}
            compare(losses_of_wide_activations, {**asked, **less})
            if to.world_rank() == 0:
                print(f"{len(current_job().require_executor('a test').plan.again)} operators made again", flush=True)
            compare(losses_of_wide_activations, *({"option": plan} for plan in every))
    else:
        compare(losses, {"micro_batches": 2}, {"micro_batches": 4, "recompute": True})


def all_pipelines() -> list[Plan]:
    """The fastest pipeline of each number of stages and rounds, in four micro-batches, for the model that ran last."""
    planner, topology = current_job().planner("global").with_steps(4), current_job().topology
    assert topology is not None
    plans = []
    for _, space in pipelines(planner.space(topology)):
        fastest, _ = fastest_that_fits(space, NO_LIMIT)
        plans.append(space.plan(fastest.assignment, "pipeline", alternatives=fastest.alternatives))
    return plans


def compare(losses: Callable[..., list[float]], *splits: dict[str, Any]) -> None:
    """Says of each way to split whether the losses are those of whole batches."""
    whole = losses()
    for split in splits:
        found = losses(**split)
        if to.world_rank() == 0:
            same = np.allclose(whole, found, rtol=2e-5, atol=0.0)
            print(f"{split}: {'equal' if same else f'different: {whole} {found}'}", flush=True)


if __name__ == "__main__":
    main()
