"""Gradients of gradients, case by case in one job: each must be what one process gives."""

from __future__ import annotations

from typing import Any

import numpy as np

import tensoropt
from tensoropt.errors import GraphError
from tests.scripts.cases import BATCH, Model, case, compare, core_case, main, normal

_PLANS: tuple[str | int, ...] = ("data_parallel", "mini_memory", 1, 2, 3)


def dense(m: Any, x: Any, units: int, name: str, seed: int) -> Any:
    with m.variable_scope(name, reuse=m.AUTO_REUSE):
        w = m.get_variable("w", [int(x.shape[1]), units], initializer=normal(m, seed))
        return m.matmul(x, w) + m.get_variable("b", [units], initializer=m.zeros_initializer())


def feeds(number: int) -> dict[str, Any]:
    random = np.random.default_rng(number)
    return {
        "x": random.normal(size=(BATCH, 6)).astype(np.float32),
        "z": random.normal(size=(BATCH, 4)).astype(np.float32),
        "mix": random.uniform(size=(BATCH, 1)).astype(np.float32),
    }


@core_case
def the_gradient_penalty_of_a_wasserstein_gan() -> None:
    def make(m: Any) -> Model:
        x, z, mix = (m.placeholder(m.float32, [BATCH, size]) for size in (6, 4, 1))
        fake = dense(m, m.nn.tanh(dense(m, z, 8, "generator/1", 1)), 6, "generator/2", 2)

        def critic(images: Any) -> Any:
            return dense(m, m.nn.softplus(dense(m, images, 8, "critic/1", 3)), 1, "critic/2", 4)

        between = mix * x + (1 - mix) * fake
        slope = m.gradients(critic(between), [between])[0]
        norm = m.sqrt(m.reduce_sum(m.square(slope), axis=1) + 1e-8)
        penalty = m.reduce_mean(m.square(norm - 1.0))
        critic_loss = m.reduce_mean(critic(fake)) - m.reduce_mean(critic(x)) + 10.0 * penalty
        generator_loss = -m.reduce_mean(critic(fake))
        owned = {name: [v for v in m.trainable_variables() if v.name.startswith(name)] for name in ("critic", "gen")}
        made = {"x": x, "z": z, "mix": mix, "penalty": penalty, "slope": slope}
        made["train_critic"] = m.train.MomentumOptimizer(0.05, 0.5).minimize(critic_loss, var_list=owned["critic"])
        made["train_generator"] = m.train.MomentumOptimizer(0.05, 0.5).minimize(generator_loss, var_list=owned["gen"])
        return {**made, "loss": critic_loss}

    compare(make, ["loss", "penalty", "slope"], "train_critic", feeds, options=_PLANS)
    compare(make, ["loss", "penalty", "slope"], "train_generator", feeds, options=_PLANS[:3])


@case
def gradients_in_a_vectorized_map() -> None:
    def make(m: Any) -> Model:
        x, z, mix = (m.placeholder(m.float32, [BATCH, size]) for size in (6, 4, 1))
        joined = m.concat([x, z], 1)
        w = m.get_variable("w", [10, 3], initializer=normal(m, 1))

        def slope(sample: Any) -> Any:
            return m.gradients(m.reduce_sum(m.tanh(m.matmul(m.expand_dims(sample, 0), w))), [sample])[0]

        score = m.reduce_mean(m.tanh(m.matmul(joined, w)) * mix)
        gradient = m.reshape(m.gradients(score, [w])[0], [-1])  # what makes it is read in the map
        rows = m.vectorized_map(lambda i: m.gradients(m.gather(gradient, i), [w])[0], m.range(4))
        loss = score + m.reduce_mean(m.vectorized_map(slope, joined) ** 2) + 0.1 * m.reduce_sum(rows**2)
        made = {"x": x, "z": z, "mix": mix, "loss": loss, "rows": rows}
        made["train"] = m.train.GradientDescentOptimizer(0.1).minimize(loss)
        return made

    compare(make, ["loss", "rows"], "train", feeds, options=_PLANS)


@case
def a_product_with_the_matrix_of_second_derivatives() -> None:
    def make(m: Any) -> Model:
        x, z, mix = (m.placeholder(m.float32, [BATCH, size]) for size in (6, 4, 1))
        joined = m.concat([x, z], 1)
        loss = m.reduce_mean(m.square(m.nn.tanh(dense(m, joined, 3, "one", 1)) - mix))
        (w,) = (v for v in m.trainable_variables() if v.op.name.endswith("/w"))
        direction = m.constant(np.linspace(-1, 1, 30, dtype=np.float32).reshape(10, 3))
        product = m.gradients(m.reduce_sum(m.gradients(loss, w)[0] * direction), w)[0]
        train = w.assign_sub(0.1 * product)
        return {"x": x, "z": z, "mix": mix, "product": product, "loss": loss, "train": train}

    compare(make, ["loss", "product"], "train", feeds, options=_PLANS)


@case
def softmax_in_between() -> None:
    def make(m: Any) -> Model:
        x, z, mix = (m.placeholder(m.float32, [BATCH, size]) for size in (6, 4, 1))
        attention = m.nn.softmax(dense(m, x, 4, "one", 1))
        score = m.reduce_sum(m.log_softmax(attention * z + mix) if hasattr(m, "log_softmax") else attention * z, 1)
        slope = m.gradients(m.reduce_sum(score), x)[0]
        loss = m.reduce_mean(m.square(slope)) + m.reduce_mean(score)
        train = m.train.GradientDescentOptimizer(0.1).minimize(loss)
        return {"x": x, "z": z, "mix": mix, "slope": slope, "loss": loss, "train": train}

    compare(make, ["loss", "slope"], "train", feeds, options=_PLANS)


@case
def gradients_of_one_s_own_in_between() -> None:
    def make(m: Any) -> Model:
        x, z, mix = (m.placeholder(m.float32, [BATCH, size]) for size in (6, 4, 1))

        @m.custom_gradient
        def square(tensor: Any) -> Any:
            return m.square(tensor), lambda dy: dy * 2.0 * tensor

        h = square(dense(m, x, 4, "one", 1)) + m.nn.silu(dense(m, z, 4, "two", 2))
        slopes = m.gradients(m.reduce_sum(h * mix), [x, z])
        loss = m.reduce_mean(m.square(slopes[0])) + m.reduce_mean(m.square(slopes[1]))
        train = m.train.GradientDescentOptimizer(0.1).minimize(loss)
        return {"x": x, "z": z, "mix": mix, "slope": slopes[1], "loss": loss, "train": train}

    compare(make, ["loss", "slope"], "train", feeds, options=_PLANS)


@case
def what_gradients_are_weighed_by() -> None:
    def make(m: Any) -> Model:
        x, z, mix = (m.placeholder(m.float32, [BATCH, size]) for size in (6, 4, 1))
        h = m.nn.tanh(dense(m, x, 4, "one", 1))
        score = m.reduce_sum((h + z) ** 3 * mix)
        slope = m.gradients(h, x, grad_ys=m.gradients(score, h)[0])[0]
        loss = m.reduce_mean(m.square(slope))
        train = m.train.GradientDescentOptimizer(0.1).minimize(loss)
        return {"x": x, "z": z, "mix": mix, "slope": slope, "loss": loss, "train": train}

    compare(make, ["loss", "slope"], "train", feeds, options=_PLANS)


@case
def rows_are_refused() -> None:
    tensoropt.reset_default_graph()
    table = tensoropt.get_variable("table", [8, 4])
    found = tensoropt.nn.embedding_lookup(table, tensoropt.placeholder(tensoropt.int32, [BATCH]))
    rows = tensoropt.gradients(tensoropt.reduce_sum(tensoropt.square(found)), table)[0]
    tensoropt.train.GradientDescentOptimizer(0.1).minimize(tensoropt.reduce_sum(tensoropt.square(rows.values)))
    try:
        tensoropt.find_strategy("data_parallel")
    except GraphError as error:
        assert "is differentiated again" in str(error) and "one_hot" in str(error)
    else:
        raise AssertionError("a gradient of rows was planned")


if __name__ == "__main__":
    main()
