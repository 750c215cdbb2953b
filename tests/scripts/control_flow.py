"""Functions, branches, loops and gradients of one's own: what ``run`` gives is what TensorFlow gives."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tests.effort import covering, some
from tests.scripts.cases import BATCH, Model, Plain, case, compare, core_case, main, normal

_STEPS = 5
_WIDTH = 4
_OPTIONS = (1, 2)


class Cell:
    """An LSTM cell, as scripts write them."""

    def __init__(self, m: Any, size: int) -> None:
        self._m, self.output_size, self.state_size = m, size, (size, size)

    def zero_state(self, batch: int, dtype: Any) -> Any:
        """Zeros."""
        return (tf.zeros([batch, self.output_size], dtype),) * 2

    def get_initial_state(self, inputs: Any = None, batch_size: Any = None, dtype: Any = None) -> Any:
        """Zeros."""
        return self.zero_state(batch_size, dtype)

    def __call__(self, x: Any, state: Any, scope: Any = None) -> Any:
        """One step."""
        m = self._m
        c, h = state
        with m.variable_scope("cell", reuse=m.AUTO_REUSE):
            k = m.get_variable("k", [x.shape[-1] + self.output_size, 4 * self.output_size], initializer=normal(m, 3))
            b = m.get_variable("b", [4 * self.output_size], initializer=m.zeros_initializer())
        i, j, f, o = tf.split(tf.nn.bias_add(tf.matmul(tf.concat([x, h], 1), k), b), 4, 1)
        c = tf.sigmoid(f + 1.0) * c + tf.sigmoid(i) * tf.tanh(j)
        h = tf.sigmoid(o) * tf.tanh(c)
        return h, (c, h)


def batch(number: int) -> dict[str, Any]:
    """Sequences and their lengths; the sums of the first two batches are of either sign."""
    random = np.random.default_rng(number)
    x = random.normal(size=(BATCH, _STEPS, _WIDTH)).astype(np.float32)
    return {"x": x - x.mean() + (0.1 if number % 2 else -0.1), "n": random.integers(1, _STEPS + 1, BATCH)}


def sequences(m: Any) -> dict[str, Any]:
    """What models begin with."""
    x = m.placeholder(m.float32, [BATCH, _STEPS, _WIDTH], name="x")
    n = m.placeholder(m.int32, [BATCH], name="n")
    return {"x": x, "n": n, "w": m.get_variable("w", [_WIDTH, _WIDTH], initializer=normal(m, 1))}


def check(build: Any, *fed: str) -> None:
    """Trains a model whose loss is the mean square of a tensor that ``build`` makes."""

    def make(m: Any) -> Model:
        made = sequences(m)
        y = build(m, made)
        loss = m.reduce_mean(m.square(y))
        return {**made, "y": y, "loss": loss, "train": m.train.GradientDescentOptimizer(0.5).minimize(loss)}

    compare(make, ["loss", "y", "w"], "train", only("x", *fed), options=_OPTIONS)


def only(*names: str) -> Any:
    """Batches of some placeholders."""
    return lambda number: {name: batch(number)[name] for name in names}


@core_case
def a_recurrent_layer() -> None:
    def build(m: Any, made: dict[str, Any]) -> Any:
        outputs, (c, _) = m.nn.dynamic_rnn(Cell(m, _WIDTH), made["x"], dtype=m.float32)
        return tf.tensordot(outputs, made["w"], 1) + c[:, None, :]

    check(build)


@case
def a_recurrent_layer_of_sequences_of_several_lengths() -> None:
    def build(m: Any, made: dict[str, Any]) -> Any:
        cell = Cell(m, _WIDTH)
        outputs, (c, _) = m.nn.dynamic_rnn(cell, made["x"], dtype=m.float32, sequence_length=made["n"])
        return tf.tensordot(outputs, made["w"], 1) + c[:, None, :]

    check(build, "n")


@case
def loops_over_a_tensor() -> None:
    def build(m: Any, made: dict[str, Any]) -> Any:
        x, w = made["x"], made["w"]
        mapped = tf.map_fn(lambda row: tf.tanh(tf.matmul(row, w)), x)
        turned = tf.transpose(mapped, [1, 0, 2])
        scanned = tf.scan(lambda state, row: tf.tanh(tf.matmul(state, w) + row), turned)
        folded = m.foldl(lambda state, row: state * 0.5 + row, scanned)
        return folded + m.foldr(lambda state, row: state * 0.3 + row, scanned)

    check(build)


@case
def loops_of_so_many_turns_as_data_say() -> None:
    def build(m: Any, made: dict[str, Any]) -> Any:
        x, w = made["x"][:, 0], made["w"]

        def grows(i: Any, y: Any) -> Any:
            return tf.reduce_sum(tf.abs(y)) < 60.0

        def body(i: Any, y: Any) -> Any:
            return i + 1, y * 1.5 + 0.1 * tf.matmul(tf.tanh(y), w)

        return m.while_loop(grows, body, [0, x], maximum_iterations=7)[1]

    check(build)


@case
def lists_in_loops_of_so_many_turns_as_data_say() -> None:
    def build(m: Any, made: dict[str, Any]) -> Any:
        w, steps = made["w"], m.unstack(made["x"], axis=1)
        ends = tf.cast(made["n"][0], tf.int32)

        def array(shape: Sequence[int]) -> Any:
            return m.TensorArray(m.float32, _STEPS, element_shape=shape, clear_after_read=False)

        given, read = array([_WIDTH]).unstack(made["x"][0]), array([BATCH, _WIDTH]).unstack(tf.stack(steps))
        written = array([BATCH, _WIDTH])

        def body(i: Any, y: Any, others: Any, written: Any) -> Any:
            # In turns that are not taken the gradient of the root is infinite.
            left = tf.cast(tf.maximum(ends - i, 0), tf.float32)
            y = tf.matmul(tf.tanh(y), w) * tf.sqrt(left * tf.reduce_mean(tf.square(w))) + read.read(i)
            y += m.cond(tf.reduce_sum(y) > 0, lambda: others.read(i) + 0 * y, lambda: others.read(i) - written.read(0))
            return i + 1, y, others, written.write(i, y)

        zero = tf.zeros([BATCH, _WIDTH])
        carried = [0, zero, given, written.write(0, zero + 1.0)]
        _, y, others, written = m.while_loop(lambda i, *_: i < ends, body, carried, maximum_iterations=_STEPS)
        # What a branch passes on is what it was given.
        z = m.cond(tf.reduce_sum(y) > 0, lambda: y, lambda: y)
        return tf.reduce_sum(written.stack(), 0) * 0.1 + z + others.read(1)

    check(build, "n")


@core_case
def branches_that_compute() -> None:
    def build(m: Any, made: dict[str, Any]) -> Any:
        x, w = made["x"][:, 0], made["w"]
        total = tf.reduce_sum(made["x"])
        # Where its branch is not taken, the logarithm is NaN and its gradient infinite.
        y = m.cond(total > 0, lambda: tf.math.log(total) * tf.matmul(x, w), lambda: tf.matmul(tf.tanh(x), w))
        z = m.case([(total < -1e6, lambda: y * 3), (total > 0, lambda: y * 2)], default=lambda: tf.matmul(y, w))
        index = tf.cast(made["n"][0], tf.int32)
        picked = tf.switch_case(index, [lambda: z, lambda: z + 1.0, lambda: tf.matmul(z, w)])
        # Out of range where the branch is not taken.
        return picked + m.cond(index < 2, lambda: tf.gather(x, index + 6), lambda: x[0])

    check(build, "n")


@case
def branches_in_loops_in_branches() -> None:
    def build(m: Any, made: dict[str, Any]) -> Any:
        w = made["w"]

        def turn(i: Any, y: Any) -> Any:
            other = m.cond(tf.reduce_sum(y) > 0, lambda: tf.matmul(y, w), lambda: y - w[0])
            return i + 1, tf.tanh(other)

        def loop() -> Any:
            return m.while_loop(lambda i, y: i < 3, turn, [0, made["x"][:, 1]])[1]

        return m.cond(tf.reduce_sum(made["x"]) > 0, loop, lambda: tf.matmul(made["x"][:, 2], w))

    check(build)


@case
def branches_that_assign() -> None:
    def make(m: Any) -> Model:
        made = sequences(m)
        scale = m.get_variable("scale", [], initializer=m.ones_initializer(), trainable=False)
        good = m.get_variable("good", [], m.int32, initializer=m.zeros_initializer(), trainable=False)
        average = m.get_variable("average", [_WIDTH, _WIDTH], initializer=m.zeros_initializer(), trainable=False)
        loss = tf.reduce_mean(tf.square(tf.tensordot(made["x"], made["w"], 1)))
        finite = tf.reduce_sum(made["x"]) > 0

        def better() -> Any:
            with tf.control_dependencies([m.assign_add(good, 1)]):
                return m.cond(good >= 1, lambda: m.assign(scale, scale * 2.0), lambda: tf.identity(scale))

        def worse() -> Any:
            with tf.control_dependencies([m.assign(good, 0), m.assign_sub(average, 0.1 * made["w"])]):
                return m.assign(scale, scale / 4.0)

        update = m.cond(finite, better, worse)
        with tf.control_dependencies([update]):
            train = m.train.GradientDescentOptimizer(0.1).minimize(loss)
        return {**made, "scale": scale, "good": good, "average": average, "loss": loss, "train": train}

    names = ["loss", "w", "scale", "good", "average"]
    compare(make, names, "train", only("x"), options=_OPTIONS, steps=4)


@case
def branches_that_train() -> None:
    """Loss scaling: a step is left out where a gradient is not finite; and steps on gradients of several runs."""

    def make(m: Any) -> Model:
        made = sequences(m)
        w, scale = made["w"], m.get_variable("scale", [], initializer=m.ones_initializer(), trainable=False)
        loss = tf.reduce_mean(tf.square(tf.tensordot(made["x"], w, 1)))
        spoilt = m.cond(tf.reduce_sum(made["x"]) > 0, lambda: loss, lambda: loss * np.float32(np.inf))
        (scaled,) = m.gradients(spoilt * scale, [w])
        gradient = scaled / scale
        adam = m.train.AdamOptimizer(0.1)

        def step() -> Any:
            with tf.control_dependencies([adam.apply_gradients([(gradient, w)])]):
                return m.assign(scale, scale * 2.0)

        finite = tf.reduce_all(tf.math.is_finite(gradient))
        train = m.cond(finite, step, lambda: m.assign(scale, scale / 2.0))

        table = m.get_variable("table", [6, _WIDTH], initializer=normal(m, 2))
        total = m.get_variable("total", [6, _WIDTH], initializer=m.zeros_initializer(), trainable=False)
        count = m.get_variable("count", [], m.int32, initializer=m.zeros_initializer(), trainable=False)
        error = tf.reduce_mean(tf.square(m.nn.embedding_lookup(table, made["n"]) - made["x"][:, 1]))
        (rows,) = m.gradients(error, [table])
        with tf.control_dependencies([m.scatter_add(total, rows.indices, rows.values), m.assign_add(count, 1)]):
            due = tf.equal(count.read_value() % 3, 0)
        momentum = m.train.MomentumOptimizer(0.1, 0.9)

        def apply() -> Any:
            with tf.control_dependencies([momentum.apply_gradients([(total.read_value() / 3.0, table)])]):
                return tf.group(m.assign(total, tf.zeros_like(total)), m.scatter_sub(table, [0], [[1.0] * _WIDTH]))

        accumulated = m.cond(due, apply, tf.no_op)
        return {**made, "loss": loss, "scale": scale, "table": table, "total": total, "train": [train, accumulated]}

    compare(make, ["w", "scale", "table", "total", "loss"], "train", only("x", "n"), options=_OPTIONS, steps=7)


@core_case
def loops_that_assign() -> None:
    def make(m: Any) -> Model:
        made = sequences(m)
        count = m.get_variable("count", [], initializer=m.zeros_initializer(), trainable=False)

        def turn(i: Any, y: Any) -> Any:
            with tf.control_dependencies([m.assign(count, count * 2.0 + tf.cast(i, tf.float32))]):
                return i + 1, tf.tanh(tf.matmul(y, made["w"]))

        y = m.while_loop(lambda i, y: i < 3, turn, [0, made["x"][:, 0]])[1]
        loss = tf.reduce_mean(tf.square(y))
        return {**made, "count": count, "y": y, "train": m.train.GradientDescentOptimizer(0.1).minimize(loss)}

    compare(make, ["w", "y"], ["train", "count"], only("x"), options=_OPTIONS)


@case
def functions() -> None:
    def build(m: Any, made: dict[str, Any]) -> Any:
        w = made["w"]

        @tf.function
        def inner(y: Any) -> Any:
            return tf.tanh(tf.matmul(y, w))

        @tf.function
        def outer(y: Any) -> Any:
            return inner(y) + inner(2.0 * y), y

        first, _ = outer(made["x"][:, 0])
        return first + outer(made["x"][:, 1])[0]

    check(build)


@case
def gradients_of_ones_own() -> None:
    @tf.custom_gradient
    def reverse(y: Any) -> Any:
        return tf.identity(y), lambda dy: -0.5 * dy

    @tf.custom_gradient
    def centred(y: Any) -> Any:
        z = tf.tanh(y)

        def gradient(dy: Any) -> Any:
            return (dy - tf.reduce_mean(dy, 0, keepdims=True)) * (1.0 - z * z)

        return z, gradient

    @tf.custom_gradient
    def product(a: Any, b: Any) -> Any:
        def gradient(dy: Any) -> Any:
            return tf.clip_by_value(tf.matmul(dy, b, transpose_b=True), -0.1, 0.1), tf.matmul(a, dy, transpose_a=True)

        return tf.matmul(a, b), gradient

    def build(m: Any, made: dict[str, Any]) -> Any:
        x, w = made["x"][:, 0], made["w"]
        y = tf.nn.silu(tf.matmul(x, w)) + m.nn.swish(tf.matmul(x, 2.0 * w))
        y = reverse(y) + tf.square(tf.matmul(x, w))
        loop = m.while_loop(lambda i, z: i < 2, lambda i, z: (i + 1, tf.nn.silu(tf.matmul(z, w))), [0, y])[1]
        return product(centred(loop), w)

    check(build)


@functools.cache
def _registered() -> dict[str, str]:
    """Gradients in the place of TensorFlow's, by op type: of what ops read and of what they give."""
    rules: dict[str, Callable[..., Any]] = {
        "Relu": lambda op, dy: tf.where(dy > 0.0, dy * tf.cast(op.outputs[0] > 0.0, dy.dtype), tf.zeros_like(dy)),
        "Tanh": lambda op, dy: 0.5 * dy * (1.0 - tf.square(op.outputs[0])) + 0.1 * op.inputs[0],
        "Softmax": lambda op, dy: (dy - tf.reduce_sum(dy * op.outputs[0], -1, keepdims=True)) * op.outputs[0] * 2.0,
        "TopKV2": lambda op, dy, _: (tf.matmul(dy, tf.one_hot(op.outputs[1][0], _WIDTH)) + op.outputs[0][:, :1], None),
    }
    for kind, rule in rules.items():
        tf.RegisterGradient(f"TensoroptTest{kind}")(rule)
    return {kind: f"TensoroptTest{kind}" for kind in rules}


@case
def overridden_gradients_read_what_their_ops_give() -> None:
    def build(m: Any, made: dict[str, Any]) -> Any:
        x, w = made["x"][:, 0], made["w"]
        with tf.compat.v1.get_default_graph().gradient_override_map(_registered()):
            y = tf.nn.softmax(tf.tanh(tf.nn.relu(tf.matmul(x, w))))
            y += tf.math.top_k(tf.matmul(x, 2.0 * w), _WIDTH)[0]
            return m.while_loop(lambda i, z: i < 2, lambda i, z: (i + 1, tf.nn.relu(tf.matmul(z, w))), [0, y])[1]

    check(build)


@case
def tensors_whose_shapes_only_a_run_knows() -> None:
    def build(m: Any, made: dict[str, Any]) -> Any:
        x, w, n = made["x"][:, 0], made["w"], made["n"]
        y = tf.tanh(tf.matmul(x, w))
        chosen = m.boolean_mask(y, n > 2)
        values, index = tf.unique(n)
        mean = tf.reduce_sum(chosen) / tf.cast(tf.maximum(tf.shape(chosen)[0], 1), tf.float32)
        found = tf.gather(y, tf.where(n < 3)[:, 0])
        sums = m.segment_sum(y, tf.range(BATCH) // 2)
        total = tf.reduce_sum(tf.square(tf.matmul(found, w)), 0) + tf.reduce_sum(sums, 0)
        return y * mean + 0.01 * total + 0.01 * tf.cast(tf.reduce_max(values) + index[0], tf.float32)

    check(build, "n")


@case
def as_many_random_numbers_as_a_run_says() -> None:
    """Drawn in training and, as TensorFlow does, in what is fetched between; one of them by two fetches."""

    def make(m: Any) -> Model:
        made = sequences(m)
        kept = m.boolean_mask(made["x"][:, 0], made["n"] > 2)
        noise = m.random_uniform(tf.shape(kept))
        turns = m.random_uniform(tf.shape(kept)[:1], 0, 9, tf.int32)
        dropped = kept * tf.floor(0.5 + noise) + m.random_normal(tf.shape(kept), seed=5)
        y = tf.matmul(dropped, made["w"]) * tf.cast(turns, tf.float32)[:, None]
        loss = 0.01 * tf.reduce_sum(tf.square(y)) + tf.reduce_mean(m.truncated_normal(made["n"][:1]) * made["w"][0, 0])
        train = m.train.GradientDescentOptimizer(0.01).minimize(loss)
        return {**made, "loss": loss, "y": tf.reduce_sum(y), "noise": tf.reduce_sum(noise), "train": train}

    compare(make, ["loss", "y", "noise", "w"], "train", only("x", "n"), options=_OPTIONS)


@case
def writes_to_as_many_rows_as_a_run_says() -> None:
    """Duplicates among them, one write after the other, and one in a branch."""

    def make(m: Any) -> Model:
        made = sequences(m)
        table = m.Variable(np.linspace(0.0, 1.0, 5 * _WIDTH, dtype=np.float32).reshape(5, _WIDTH), name="table")
        n, y = made["n"], tf.tanh(tf.matmul(made["x"][:, 0], made["w"]))

        def rows(chosen: Any) -> tuple[Any, Any]:
            return m.boolean_mask(n, chosen) - 1, m.boolean_mask(y, chosen)

        loss = tf.reduce_mean(tf.square(y))
        step = m.train.GradientDescentOptimizer(0.01).minimize(loss)
        with m.control_dependencies([step, m.scatter_sub(table, *rows(n > 2))]):
            larger = m.scatter_max(table, *rows(n > 1))
        with m.control_dependencies([larger]):
            given = rows(n < 4)
            branch = m.cond(loss > 0.5, lambda: m.scatter_add(table, *given), table.read_value)
        with m.control_dependencies([branch]):
            train = m.group(m.scatter_update(table, *rows(n < 3)))
        return {**made, "loss": loss, "table": table, "train": train}

    compare(make, ["loss", "table", "w"], "train", only("x", "n"), options=_OPTIONS)


def _looked_up(m: Any, form: str, tables: Sequence[Any], n: Any) -> Any:
    """What is looked up in a table in one of several ways, of all of which the gradient is rows."""
    (one, other), even = tables, tf.equal(tf.reduce_sum(n) % 2, 0)

    def rows(table: Any, scale: float = 1.0) -> Any:
        return scale * m.nn.embedding_lookup(table, n)

    if form == "one branch":
        return m.cond(even, lambda: rows(one), lambda: tf.ones([BATCH, _WIDTH]))
    if form == "both branches":
        return m.cond(even, lambda: rows(one), lambda: rows(one, 2.0)) + rows(other)
    if form == "a branch and beside it":
        return rows(one) + m.cond(even, lambda: rows(one), lambda: rows(other))
    if form == "a case":
        return m.switch_case(n[0] % 3, [lambda: rows(one), lambda: rows(other), lambda: rows(one) + rows(other)])
    if form == "a branch in a branch":
        inner = functools.partial(m.cond, n[0] > 2, lambda: rows(one), lambda: rows(one, 3.0))
        return m.cond(even, inner, lambda: rows(other))
    if form == "a value read in a branch":
        return m.cond(even, lambda: tf.gather(one.read_value(), n), lambda: tf.ones([BATCH, _WIDTH]))
    if form == "a mask":
        return rows(one) + tf.reduce_mean(m.nn.embedding_lookup(one, m.boolean_mask(n, n > 2)), 0)
    if form == "partitions":
        return m.nn.embedding_lookup([one, other], n)
    places = tf.where((n > 2) | tf.equal(tf.range(BATCH), BATCH - 1))  # the last row has some
    ids = tf.SparseTensor(tf.concat([places, tf.zeros_like(places)], 1), tf.gather_nd(n, places), [BATCH, 1])
    lookup = m.nn.safe_embedding_lookup_sparse if form == "safe sparse ids" else m.nn.embedding_lookup_sparse
    return lookup(one, ids, None, combiner="sum")


_FORMS = (
    *("one branch", "both branches", "a branch and beside it", "a case", "a branch in a branch"),
    *("a value read in a branch", "a mask", "partitions", "sparse ids", "safe sparse ids"),
)
# Most treat rows that are not touched in another way than rows of gradients that are 0.
_STEPPERS: Mapping[str, Callable[[Any], Any]] = {
    "descent": lambda train: train.GradientDescentOptimizer(0.5),
    "Momentum": lambda train: train.MomentumOptimizer(0.5, 0.9),
    "RMSProp": lambda train: train.RMSPropOptimizer(0.05, momentum=0.9, centered=True, epsilon=0.01),
    "Adam": lambda train: train.AdamOptimizer(0.05, epsilon=0.01),
    "Adadelta": lambda train: train.AdadeltaOptimizer(5.0, epsilon=0.01),
    "Ftrl": lambda train: train.FtrlOptimizer(0.5, l2_regularization_strength=0.01),
    "ProximalAdagrad": lambda train: train.ProximalAdagradOptimizer(0.5, l2_regularization_strength=0.01),
}


def _clipped(m: Any, kind: str, pairs: Sequence[tuple[Any, Any]]) -> Sequence[tuple[Any, Any]]:
    pairs = [pair for pair in pairs if pair[0] is not None]
    gradients, variables = [gradient for gradient, _ in pairs], [variable for _, variable in pairs]
    if kind == "global norm":
        gradients, _ = m.clip_by_global_norm(gradients, 0.1)
    elif kind == "norms":
        gradients = [m.clip_by_norm(gradient, 0.05) for gradient in gradients]
    return list(zip(gradients, variables, strict=True))


@case
def as_many_rows_of_gradients_as_a_run_says() -> None:
    """Under every optimizer that has a way of its own with rows, clipped and as they are."""
    every = covering(_FORMS, tuple(_STEPPERS), ("none", "global norm", "norms"))
    for form, step, clip in some(every, 5):

        def make(m: Any, form: str = form, step: str = step, clip: str = clip) -> Model:
            made = sequences(m)
            tables = [m.get_variable(name, [6, _WIDTH], initializer=normal(m, 5)) for name in ("one", "other")]
            y = tf.tanh(tf.matmul(_looked_up(m, form, tables, made["n"]), made["w"]))
            loss = tf.reduce_mean(tf.square(y - made["x"][:, 0]))
            optimizer = _STEPPERS[step](m.train)
            train = optimizer.apply_gradients(_clipped(m, clip, optimizer.compute_gradients(loss)))
            slots = {f"slot {place}": each for place, each in enumerate(optimizer.variables())}
            return {**made, "loss": loss, "one": tables[0], "other": tables[1], "train": train, **slots}

        names = ["loss", "one", "other", "w", *(name for name in Plain(make).model if name.startswith("slot"))]
        compare(make, names, "train", only("x", "n"), options=some([1, 2, 3]))


@case
def optimizers_step_for_as_many_rows_as_a_run_says() -> None:
    """Averages over towers by distinct rows, as language models have them; clipped, masked and in a branch."""

    def of_kind(kind: str, how: Mapping[str, Any]) -> Callable[[Any], Model]:
        def make(m: Any) -> Model:
            ids = m.placeholder(m.int32, [4, 3], name="ids")
            table = m.get_variable("table", [6, 8], initializer=normal(m, 1))
            w = m.get_variable("w", [8], initializer=normal(m, 2))
            optimizer = getattr(m.train, f"{kind}Optimizer")(0.05, **how)
            losses = [
                m.reduce_mean(m.square(m.reduce_sum(m.nn.embedding_lookup(table, part) * w, [1, 2]) - number))
                for number, part in enumerate((ids[:2], ids[2:]))
            ]
            towers = [dict((v.op.name, g) for g, v in optimizer.compute_gradients(loss)) for loss in losses]
            rows = [tower["table"] for tower in towers]
            distinct, places = m.unique(m.concat([each.indices for each in rows], 0))
            values = m.unsorted_segment_sum(m.concat([each.values for each in rows], 0) / 2.0, places, m.size(distinct))
            mean = tf.IndexedSlices(values, distinct, rows[0].dense_shape)
            pairs = [(mean, table), (m.add_n([tower["w"] for tower in towers]) / 2.0, w)]
            clipped, norm = m.clip_by_global_norm([gradient for gradient, _ in pairs], 0.5)
            kept = m.boolean_mask(mean.indices, mean.indices > 2), m.boolean_mask(mean.values, mean.indices > 2)
            masked = [(tf.IndexedSlices(kept[1], kept[0], mean.dense_shape), table)]
            found = {"ids": ids, "table": table, "w": w, "loss": m.add_n(losses), "norm": norm}
            found["train"] = optimizer.apply_gradients(pairs)
            found["clipped"] = optimizer.apply_gradients(list(zip(clipped, [table, w], strict=True)))
            found["masked"] = optimizer.apply_gradients(masked)

            slot = m.get_variable("slot", [6, 8], initializer=m.zeros_initializer(), trainable=False)

            def step() -> Any:
                taken = {"var": table.handle, "accum": slot.handle, "grad": values, "indices": distinct}
                with m.control_dependencies([tf.raw_ops.ResourceSparseApplyMomentum(**taken, lr=0.05, momentum=0.5)]):
                    return m.constant(1.0)

            found["branch"] = m.cond(found["loss"] > 9.0, step, lambda: m.constant(0.0))
            return found

        return make

    def feeds(number: int) -> dict[str, Any]:
        return {"ids": np.random.default_rng(number).integers(0, 6, (4, 3))}

    kinds: list[tuple[str, dict[str, Any]]] = [
        ("Adagrad", {}),
        ("Momentum", {"momentum": 0.9}),
        ("RMSProp", {}),
        ("Ftrl", {}),
        ("Adam", {}),
    ]
    for number, (kind, how) in enumerate(kinds):
        step = ("train", "clipped", "masked", "branch")[number % 4]
        compare(of_kind(kind, how), ["loss", "norm", "table", "w"], step, feeds, options=_OPTIONS)


@case
def parts_at_places_that_only_a_run_knows() -> None:
    def build(m: Any, made: dict[str, Any]) -> Any:
        n, y = made["n"], tf.tanh(tf.matmul(made["x"][:, 0], made["w"]))
        row, rows = y[n[0]], tf.slice(y, [n[1], 0], [2, _WIDTH])
        sums = tf.reduce_sum(y, tf.minimum(n[2], 0))
        sums.set_shape([_WIDTH])
        return y * row + tf.reduce_mean(rows, 0) + tf.roll(y, n[3], 0) + 0.1 * sums

    check(build, "n")


@core_case
def what_inputs_with_defaults_decide() -> None:
    def make(m: Any) -> Model:
        made = sequences(m)
        given = {"yes": True, "turns": 2, "axis": 1, "begin": 0}
        given = {name: m.placeholder_with_default(value, [], name=name) for name, value in given.items()}
        y = tf.tanh(tf.matmul(made["x"][:, 0], made["w"]))
        y = m.cond(m.logical_and(given["yes"], given["turns"] < 4), lambda: y * 2.0, lambda: y * 3.0)
        y = m.while_loop(lambda i, _: i < given["turns"], lambda i, y: (i + 1, y * 0.5), [0, y])[1]
        y = tf.cumsum(y, given["axis"]) + tf.reduce_mean(tf.slice(y, [given["begin"], 0], [2, _WIDTH]), 0)
        loss = m.reduce_mean(m.square(y))
        return {**made, **given, "y": y, "loss": loss, "train": m.train.GradientDescentOptimizer(0.5).minimize(loss)}

    def feeds(number: int) -> dict[str, Any]:
        others = [{}, {"yes": False, "axis": 0}, {"turns": 5, "begin": 3}][number]
        return {**only("x")(number), **others}

    compare(make, ["loss", "y", "w"], "train", feeds, options=_OPTIONS)


@core_case
def random_numbers_where_branches_and_turns_draw_them() -> None:
    def build(m: Any, made: dict[str, Any]) -> Any:
        x, w, n = made["x"][:, 0], made["w"], tf.cast(made["n"], tf.int32)
        is_taken = tf.reduce_sum(made["x"]) > 0

        def noisy(y: Any, seed: int) -> Any:
            return y + m.random_normal([BATCH, _WIDTH], stddev=0.3, seed=seed)

        def turn(i: Any, y: Any) -> Any:
            scale = m.cond(tf.equal(i % 2, 0), lambda: m.random_uniform([], seed=5), lambda: tf.constant(1.0))
            given = (0, y * scale)
            return i + 1, m.while_loop(lambda j, _: j < n[i], lambda j, y: (j + 1, noisy(y, 7)), given, **few)[1]

        few = {"maximum_iterations": 3, "parallel_iterations": 1}
        y = m.cond(is_taken, lambda: noisy(x, 1), lambda: x - m.truncated_normal([BATCH, _WIDTH], seed=2))
        _, y = m.while_loop(lambda i, _: i < 3, turn, (0, y), parallel_iterations=1)
        whole = m.cond(is_taken, lambda: m.random_uniform([4], 0, 9, tf.int32, seed=3), lambda: tf.ones([4], tf.int32))
        return tf.matmul(y, w) + tf.cast(whole, tf.float32) + m.random_uniform([_WIDTH], seed=4)

    check(build, "n")


@case
def random_numbers_of_other_shapes_in_each_turn_and_in_conditions() -> None:
    def build(m: Any, made: dict[str, Any]) -> Any:
        n = tf.cast(made["n"], tf.int32)

        def grows(i: Any, y: Any) -> Any:
            return i + 1, y + tf.reduce_sum(m.random_normal([i + 1, _WIDTH], seed=1), 0)

        def falls(i: Any, y: Any) -> Any:
            low = m.cond(n[i] > 2, lambda: m.random_uniform([], 0, n[i] - 2, tf.int32, seed=3), lambda: n[0])
            return i + 1, y + tf.cast(low, tf.float32)

        _, y = m.while_loop(lambda i, _: i < 3, grows, (0, made["x"][:, 0]), parallel_iterations=1)
        options = {"maximum_iterations": 4, "parallel_iterations": 1}
        _, y = m.while_loop(lambda i, _: m.random_uniform([], seed=2) < 0.7, falls, (0, y), **options)
        return tf.matmul(y, made["w"])

    check(build, "n")


@case
def what_may_fail_where_a_branch_is_not_taken() -> None:
    def build(m: Any, made: dict[str, Any]) -> Any:
        x, w, n = made["x"], made["w"], tf.cast(made["n"], tf.int32)
        k, none = n[0], tf.cast(n[0] > 3, tf.float32)
        rows = m.TensorArray(m.float32, 3, element_shape=[BATCH, _WIDTH], clear_after_read=False)
        rows = rows.unstack(tf.transpose(x, [1, 0, 2])[:3])

        def checked() -> Any:
            with m.control_dependencies([m.Assert(k < 3, [k])]):
                return tf.identity(rows.read(k))

        y = m.cond(k < 3, checked, lambda: x[:, 0])
        y += m.cond(k < 3, lambda: rows.gather([k, 0])[0], lambda: x[:, 1])
        y += m.cond(k > 3, lambda: tf.linalg.inv(tf.eye(_WIDTH) * none)[0], lambda: w[1])
        y += m.cond(k < 4, lambda: x[:, k + 1], lambda: x[:, 2])
        _, y = m.while_loop(lambda i, _: i < k, lambda i, y: (i + 1, y + 0.1 * x[:, i]), (0, y), maximum_iterations=9)
        return tf.matmul(y, w) + m.while_loop(lambda i, _: i < 0, lambda i, z: (i + 1, z + w[2]), (0, w[3]))[1]

    check(build, "n")


@case
def writes_in_cells_of_sequences_of_several_lengths() -> None:
    def make(m: Any) -> Model:
        made = sequences(m)
        count = m.get_variable("count", [], initializer=m.zeros_initializer(), trainable=False)

        class Counting(Cell):
            def __call__(self, x: Any, state: Any, scope: Any = None) -> Any:
                h, state = super().__call__(x, state, scope)
                with m.control_dependencies([m.assign_add(count, 1.0)]):
                    return tf.identity(h), state

        lengths = tf.minimum(made["n"], made["n"][0])  # in most batches no sequence goes to the end
        y, _ = m.nn.dynamic_rnn(Counting(m, _WIDTH), made["x"], dtype=m.float32, sequence_length=lengths)
        loss = m.reduce_mean(m.square(tf.tensordot(y, made["w"], 1)))
        train = m.train.GradientDescentOptimizer(0.5).minimize(loss)
        return {**made, "count": count, "loss": loss, "train": train}

    compare(make, ["loss", "w"], "train", only("x", "n"), options=_OPTIONS)


@case
def random_numbers_and_lists_of_a_loop_that_stays_one() -> None:
    def build(m: Any, made: dict[str, Any]) -> Any:
        w, ends = made["w"], tf.cast(made["n"][0], tf.int32)

        def turn(i: Any, rows: Any, y: Any) -> Any:
            y = tf.tanh(tf.matmul(y, w)) * m.random_uniform([BATCH, _WIDTH], 1.0, 1.0 + 1e-6, seed=1)
            return i + 1, rows.write(i, y), y

        rows = m.TensorArray(m.float32, ends, element_shape=[BATCH, _WIDTH])
        given = (0, rows, made["x"][:, 0])
        _, rows, y = m.while_loop(lambda i, *_: i < ends, turn, given, parallel_iterations=1)
        return y + tf.reduce_mean(rows.stack(), 0)

    check(build, "n")


@case
def dropout_in_recurrent_layers() -> None:
    class Dropped(Cell):
        def __call__(self, x: Any, state: Any, scope: Any = None) -> Any:
            h, (c, _) = super().__call__(tf.compat.v1.nn.dropout(x, rate=0.2, seed=1), state, scope)
            return tf.compat.v1.nn.dropout(h, rate=0.5, seed=2), (tf.compat.v1.nn.dropout(c, rate=0.1, seed=3), h)

    def build(m: Any, made: dict[str, Any]) -> Any:
        given = {"dtype": m.float32, "parallel_iterations": 1}
        with m.variable_scope("one"):
            outputs, _ = m.nn.dynamic_rnn(Dropped(m, _WIDTH), made["x"], **given)
        lengths = tf.minimum(made["n"], made["n"][0])  # in most batches no sequence goes to the end
        with m.variable_scope("other"):
            others, state = m.nn.dynamic_rnn(Dropped(m, _WIDTH), made["x"], sequence_length=lengths, **given)
        return tf.tensordot(outputs, made["w"], 1) + others + state[0][:, None, :]

    check(build, "n")


@core_case
def gradients_by_what_functions_lists_and_constants_give() -> None:
    def make(m: Any) -> Model:
        made = sequences(m)
        x, w = made["x"], made["w"]
        weights = tf.constant(np.linspace(-1.0, 1.0, _WIDTH), tf.float32)
        hidden = tf.tanh(tf.matmul(x[:, 0], w)) + weights
        kept, doubled = tf.function(lambda a: (a, 2.0 * a * weights))(hidden)
        mapped = tf.map_fn(lambda row: row, hidden)
        rows = tf.TensorArray(tf.float32, 2).write(0, hidden).write(1, mapped)
        read, (half, _) = rows.read(0), tf.split(hidden * w[0], 2, 1)
        first = tf.reduce_mean(kept * doubled + mapped * read)
        loss = first + tf.reduce_mean(tf.sin(hidden)) + tf.reduce_mean(half) + tf.reduce_mean(tf.square(weights))
        by = {"kept": kept, "doubled": doubled, "mapped": mapped, "read": read, "weights": weights, "hidden": hidden}
        made |= {name: m.gradients(loss, [tensor])[0] for name, tensor in by.items()}
        made |= {f"no {name}": m.gradients(loss, [w], stop_gradients=[by[name]])[0] for name in ("mapped", "read")}
        made |= {"no half": m.gradients(loss, [w], stop_gradients=[half])[0], "loss": loss}
        made["twice"] = m.gradients([loss, loss], [w])[0]  # each counts
        reading = w.value()
        both = loss + tf.reduce_sum(reading * reading)
        made["no reading"] = m.gradients(both, [w], stop_gradients=[reading])[0]
        return {**made, "train": m.train.GradientDescentOptimizer(0.5).minimize(loss)}

    by = "kept doubled mapped read weights hidden twice".split()
    by += ["no mapped", "no read", "no half", "no reading"]
    compare(make, ["loss", "w", *by], "train", only("x"), options=_OPTIONS, steps=1)


@case
def gradients_of_one_s_own_by_constants_and_amid_dilated_convolutions() -> None:
    @tf.custom_gradient
    def tripled(a: Any) -> Any:
        return a * 1.0, lambda dy: 3.0 * dy

    @tf.RegisterGradient("Fivefold")
    def fivefold(op: Any, dy: Any) -> Any:
        return tf.reshape(5.0 * dy, op.inputs[0].shape), None

    def make(m: Any) -> Model:
        made = sequences(m)
        constant = tf.constant(np.linspace(0.5, 1.0, _WIDTH), tf.float32)
        with tf.compat.v1.get_default_graph().gradient_override_map({"Reshape": "Fivefold"}):
            images = tf.reshape(tf.tile(made["x"][:, :_WIDTH], [1, 1, 1]), [BATCH, _WIDTH, _WIDTH, 1])
        filters = tf.reshape(made["w"], [2, 2, 1, _WIDTH])

        def middle(between: Any) -> Any:
            moved = tf.space_to_batch(images * made["w"][0, 0], [2, 2], [[0, 0], [0, 0]])
            return tf.batch_to_space(
                between(m.nn.conv2d(between(moved), filters, [1] * 4, "VALID")), [2, 2], [[0, 0]] * 2
            )

        outputs = [middle(each) for each in (tf.identity, tf.stop_gradient, tripled)]
        branch = m.cond(
            tf.reduce_sum(made["x"]) > 1e5, lambda: tf.sqrt(constant - constant), lambda: tripled(constant) * 2.0
        )
        loss = sum(tf.reduce_mean(tf.square(each)) for each in outputs) + tf.reduce_mean(branch * made["w"])
        made |= {"by w": m.gradients(loss, [made["w"]])[0], "by c": m.gradients(loss, [constant])[0], "loss": loss}
        return {**made, "train": m.train.GradientDescentOptimizer(0.1).minimize(loss)}

    compare(make, ["loss", "by w", "by c"], "train", only("x"), options=_OPTIONS, steps=1)


@case
def devices_of_the_script_that_are_not_there() -> None:
    def build(m: Any, made: dict[str, Any]) -> Any:
        x, w, n = made["x"][:, 0], made["w"], tf.cast(made["n"], tf.int32)
        with contextlib.nullcontext() if m is tf.compat.v1 else m.device("/job:worker/gpu:3"):
            begins = m.cond(tf.constant(True), lambda: tf.ones([_WIDTH]), lambda: tf.zeros([_WIDTH]))
            x += m.get_variable("begins", initializer=begins)
            rows = tf.boolean_mask(x, n > 2)  # a shape that only a run knows
            last = m.while_loop(lambda y: tf.reduce_sum(y * y) < 9.0, lambda y: 1.5 * y + 0.1, [x])
            with m.control_dependencies([m.debugging.assert_greater(n, -1)]):
                return tf.matmul(last, w) + tf.reduce_sum(rows, 0) / 9.0

    check(build, "n")


@case
def loops_that_stay_loops() -> None:
    def build(m: Any, made: dict[str, Any]) -> Any:
        x, w = made["x"][:, 0], made["w"]

        def body(i: Any, y: Any, rows: Any) -> Any:
            y = m.cond(tf.reduce_sum(y) > 0, lambda: y * 1.5, lambda: 0.3 * tf.matmul(tf.tanh(y), w) + 1.0)
            return i + 1, y, rows.write(i, y)

        rows = tf.TensorArray(tf.float32, 0, dynamic_size=True, element_shape=[BATCH, _WIDTH])
        state = [0, x, rows]
        _, y, rows = m.while_loop(lambda i, y, rows: tf.reduce_sum(tf.abs(y)) < 60.0, body, state)
        many = m.while_loop(lambda i, z: i < 300, lambda i, z: (i + 1, tf.sin(z + w[0])), [0, x])[1]
        return y + tf.reduce_mean(rows.stack(), 0) + many

    check(build)


@case
def loops_that_stay_loops_in_turns_of_others() -> None:
    """One function serves all turns, of which each has its own values, and its own gradient."""

    def build(m: Any, made: dict[str, Any]) -> Any:
        x, w = made["x"], made["w"]

        def grown(y: Any) -> Any:
            halved = m.cond(tf.reduce_sum(y) > 0, lambda: y, lambda: -0.5 * y)
            return m.while_loop(lambda z: tf.reduce_sum(z * z) < 40.0, lambda z: 1.5 * z + 0.1 * (z @ w), [halved])

        def turn(i: Any, y: Any, many: Any) -> Any:
            return i + 1, tf.tanh(grown(y + x[:, i])) @ w, many + tf.reduce_sum(grown(x[:, i]))

        _, y, many = m.while_loop(lambda i, *_: i < 3, turn, [0, x[:, 0], 0.0])
        return y + 0.01 * many

    check(build)


if __name__ == "__main__":
    main()
