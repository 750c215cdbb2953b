"""Random small models, built with the mirrored calls: the same one for the same seed, in every process."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

import tensoropt as to
from tensoropt.api.mirror.model import leave_graph, reset_default_graph
from tests.exec.random_training import Turn, random_turns

__all__ = ["RandomModel", "build_model"]

_SIZES = (2, 3, 4, 4, 6, 8, 8, 12)


@dataclass(frozen=True, slots=True)
class RandomModel:
    """A model in the private graph, and what to train it with.

    Attributes:
        seed: that it was made from.
        dtype: of its variables.
        turns: what is run.
        states: names of all variables.
        feeds: whole arrays by placeholder, for each turn.
    """

    seed: int
    dtype: str
    turns: tuple[Turn, ...]
    states: tuple[str, ...]
    feeds: tuple[Mapping[str, np.ndarray], ...]


class _Maker:
    """Grows one model op by op. Values stay of the order of 1, so that rounding is all that may differ."""

    def __init__(self, seed: int) -> None:
        self.random = np.random.default_rng(seed)
        # Three of ten are of windows over images; the others are what they were before there were any.
        self.has_windows = np.random.default_rng((seed, 8)).random() < 0.3
        self.dtype = "float32" if self.random.random() < 0.15 else "float64"
        self.batch = int(self.random.choice([4, 8, 8, 12]))
        self.pool: list[Any] = []
        self.inputs: dict[str, tuple[tuple[int, ...], int | None]] = {}
        self.weights: list[Any] = []

    # ------------------------------------------------------------------------------------------------- ingredients

    def pick(self, options: Any) -> Any:
        return options[int(self.random.integers(len(options)))]

    def chance(self, probability: float) -> bool:
        return bool(self.random.random() < probability)

    def size(self) -> int:
        return int(self.pick(_SIZES))

    def variable(self, shape: tuple[int, ...], scale: float | None = None, shift: float = 0.0) -> Any:
        """A new variable, or one of this shape that is there already (tied weights)."""
        alike = [w for w in self.weights if tuple(w.shape.as_list()) == shape]
        if alike and self.chance(0.35):
            return self.pick(alike)
        deviation = 1 / math.sqrt(max(1, shape[0] if shape else 1)) if scale is None else scale
        made = to.get_variable(
            f"w{len(self.weights)}",
            shape,
            to.as_dtype(self.dtype),
            initializer=to.random_normal_initializer(shift, deviation, seed=len(self.weights) + 1),
        )
        self.weights.append(made)
        return made

    def input(self, shape: tuple[int, ...], bound: int | None = None) -> Any:
        """A placeholder: floats, or integers below ``bound``."""
        name = f"in{len(self.inputs)}"
        self.inputs[name] = (shape, bound)
        return to.placeholder(to.as_dtype(self.dtype if bound is None else "int32"), shape, name=name)

    def tensor(self, fits: Callable[[tuple[int, ...]], bool] = lambda shape: True) -> Any:
        """A tensor of the pool, recent ones more often, whose shape fits; a new input if none does."""
        fitting = [x for x in self.pool if fits(tuple(x.shape.as_list()))]
        if not fitting:
            return None
        return fitting[-1] if self.chance(0.6) else self.pick(fitting)

    # ------------------------------------------------------------------------------------------------------ layers

    def dense(self) -> Any:
        x = self.tensor(lambda s: len(s) >= 2)
        width = self.size()
        kernel = self.variable((int(x.shape[-1]), width))
        if x.shape.rank == 2:
            tall = [w for w in self.weights if w.shape.rank == 2 and w.shape[1] == x.shape[1]]
            y = to.matmul(x, self.pick(tall), transpose_b=True) if tall and self.chance(0.4) else to.matmul(x, kernel)
        else:
            y = self.pick([to.tensordot(x, kernel, [[x.shape.rank - 1], [0]]), to.matmul(x, kernel)])
        if self.chance(0.6):
            bias = self.variable((int(y.shape[-1]),), 0.3)
            y = self.pick([lambda: y + bias, lambda: to.nn.bias_add(y, bias)])()
        return y

    def layer(self) -> Any:
        x = self.tensor(lambda s: len(s) == 2)
        return x if x is None else to.layers.dense(x, self.size(), activation=self.pick([None, to.nn.relu, to.tanh]))

    def unary(self) -> Any:
        x = self.tensor()
        return self.pick(
            [
                lambda: to.nn.relu(x),
                lambda: to.tanh(x),
                lambda: to.sigmoid(x),
                lambda: to.nn.softplus(x),
                lambda: to.square(x) * 0.3,
                lambda: to.exp(-to.square(x)),
                lambda: to.sqrt(to.square(x) + 1.0),
                lambda: to.nn.elu(x),
                lambda: to.sin(x),
                lambda: to.abs(x),
                lambda: -x,
                lambda: 1.0 / (1.0 + to.square(x)),
                lambda: to.math.rsqrt(1.0 + to.square(x)),
                lambda: to.clip_by_value(x, -1.0, 1.0),
                lambda: to.nn.leaky_relu(x),
                lambda: to.identity(x),
                lambda: to.log(1.5 + to.sin(x)),
            ]
        )()

    def binary(self) -> Any:
        x = self.tensor()
        shape = tuple(x.shape.as_list())
        other = self.tensor(lambda s: s == shape)
        if self.chance(0.5):  # broadcasting
            cut = shape[int(self.random.integers(len(shape) + 1)) :]
            narrow = tuple(1 if self.chance(0.3) else extent for extent in cut)
            other = self.variable(narrow, 0.5)
        return self.pick(
            [
                lambda: x + other,
                lambda: x - other,
                lambda: x * other,
                lambda: other + x,
                lambda: to.maximum(x, other),
                lambda: to.minimum(other, x),
                lambda: to.math.squared_difference(x, other),
                lambda: x / (1.5 + to.square(other)),
                lambda: to.where(to.greater(x, 0.1 + 0 * x), x, x * 0.5 + other),
            ]
        )()

    def residual(self) -> Any:
        x = self.tensor(lambda s: len(s) >= 2)
        width = int(x.shape[-1])
        hidden = self.pick([to.nn.relu, to.tanh])(to.tensordot(x, self.variable((width, self.size())), [[-1], [0]]))
        return x + to.tensordot(hidden, self.variable((int(hidden.shape[-1]), width)), [[-1], [0]])

    def reduction(self) -> Any:
        x = self.tensor(lambda s: len(s) >= 2)
        rank = x.shape.rank
        axes = sorted({int(self.random.integers(rank)) for _ in range(self.pick([1, 1, 2]))})
        if len(axes) == rank:
            axes = axes[1:]
        reduce = self.pick([to.reduce_mean, to.reduce_sum, to.reduce_max, to.reduce_min, to.reduce_logsumexp])
        scale = 1.0 if reduce is not to.reduce_sum else 0.3
        if self.chance(0.5):
            return x - scale * reduce(x, axis=axes, keepdims=True)
        return scale * reduce(x, axis=axes[0] if len(axes) == 1 else axes)

    def reshape(self) -> Any:
        x = self.tensor()
        shape = x.shape.as_list()
        if len(shape) > 1 and self.chance(0.5):
            at = int(self.random.integers(len(shape) - 1))
            return to.reshape(x, [*shape[:at], shape[at] * shape[at + 1], *shape[at + 2 :]])
        at = int(self.random.integers(len(shape)))
        divisors = [d for d in (2, 3, 4) if shape[at] % d == 0 and shape[at] > d]
        if not divisors or len(shape) > 3:
            return to.expand_dims(x, at) if len(shape) < 4 else to.reshape(x, [-1, shape[-1]])
        divisor = self.pick(divisors)
        return to.reshape(x, [*shape[:at], divisor, shape[at] // divisor, *shape[at + 1 :]])

    def transpose(self) -> Any:
        x = self.tensor(lambda s: len(s) >= 2)
        return to.transpose(x, [int(p) for p in self.random.permutation(x.shape.rank)])

    def concat(self) -> Any:
        x = self.tensor()
        axis = int(self.random.integers(x.shape.rank))
        shape = tuple(x.shape.as_list())
        if shape[axis] > 24:
            return None
        other = self.tensor(lambda s: s == shape)
        return self.pick(
            [
                lambda: to.concat([x, other * 0.5], axis),
                lambda: to.concat([x, to.tanh(x), other], axis),
                lambda: to.stack([x, other], axis) if len(shape) < 4 else None,
                lambda: to.concat([x, self.variable(shape, 0.5)], axis),
            ]
        )()

    def split(self) -> Any:
        x = self.tensor(lambda s: any(extent % 2 == 0 for extent in s))
        if x is None:
            return None
        shape = x.shape.as_list()
        axis = self.pick([i for i, extent in enumerate(shape) if extent % 2 == 0])
        if self.chance(0.2) and len(shape) > 1 and shape[axis] <= 4:
            parts = to.unstack(x, axis=axis)
        elif self.chance(0.3) and shape[axis] > 2:
            parts = to.split(x, [1, shape[axis] - 1], axis)[1:] * 2
        else:
            parts = to.split(x, 2, axis)
        y = to.sigmoid(parts[0]) * parts[-1]
        return y if self.chance(0.7) else to.concat([y, parts[0]], axis if y.shape.rank == x.shape.rank else 0)

    def cut(self) -> Any:
        x = self.tensor(lambda s: max(s) >= 4)
        if x is None:
            return None
        shape = x.shape.as_list()
        axis = int(np.argmax(shape))

        def at(index: Any) -> Any:
            return x[tuple(index if dim == axis else slice(None) for dim in range(len(shape)))]

        half = shape[axis] // 2
        return self.pick(
            [
                lambda: at(slice(half, None)),
                lambda: at(slice(None, None, 2)),
                lambda: at(slice(None, None, -1)),
                lambda: at(1) if len(shape) > 1 else x,
                lambda: to.pad(x, [[1, 1] if i == axis else [0, 0] for i in range(len(shape))]),
                lambda: to.tile(x, [2 if i == 0 else 1 for i in range(len(shape))]) if x.shape[0] < 16 else x,
                lambda: to.reverse(x, [axis]),
                lambda: to.cumsum(x * 0.3, axis),
                lambda: to.gather(x, [half, 0, half], axis=axis),
                lambda: to.slice(x, [0] * len(shape), [half if i == axis else -1 for i in range(len(shape))]),
                lambda: to.roll(x, 1, axis),
                lambda: to.broadcast_to(to.expand_dims(x, 0), [2, *shape]) if len(shape) < 3 else x,
            ]
        )()

    def softmax(self) -> Any:
        x = self.tensor(lambda s: len(s) >= 2)
        if self.chance(0.3):
            return to.nn.softmax(x, axis=int(self.random.integers(x.shape.rank)))
        return self.pick([to.nn.softmax, to.nn.log_softmax])(x)

    def attention(self) -> Any:
        x = self.tensor(lambda s: len(s) == 3)
        if x is None:
            return None
        width = int(x.shape[-1])
        q, k, v = (to.tensordot(x, self.variable((width, width)), [[2], [0]]) for _ in range(3))
        if width % 2 == 0 and self.chance(0.6):
            length = int(x.shape[1])

            def heads(t: Any) -> Any:
                return to.transpose(to.reshape(t, [-1, length, 2, width // 2]), [0, 2, 1, 3])

            weights = to.nn.softmax(to.matmul(heads(q), heads(k), transpose_b=True) / math.sqrt(width))
            return to.reshape(to.transpose(to.matmul(weights, heads(v)), [0, 2, 1, 3]), [-1, length, width])
        weights = to.nn.softmax(to.einsum("bqd,bkd->bqk", q, k) / math.sqrt(width))
        return to.einsum("bqk,bkd->bqd", weights, v)

    def layer_norm(self) -> Any:
        x = self.tensor(lambda s: len(s) >= 2 and s[-1] > 1)
        if x is None:
            return None
        mean, variance = to.nn.moments(x, [x.shape.rank - 1], keepdims=True)
        width = (int(x.shape[-1]),)
        normal = (x - mean) * to.math.rsqrt(variance + 0.1)
        return normal * self.variable(width, 0.2, 1.0) + self.variable(width, 0.2)

    def embedding(self) -> Any:
        rows, width = self.pick([4, 8, 12, 10]), self.size()
        shape = (self.batch, self.pick([2, 4, 3])) if self.chance(0.6) else (self.batch,)
        ids = self.input(shape, rows)
        tables = [w for w in self.weights if w.shape.rank == 2 and w.shape[0] >= rows]
        table = self.pick(tables) if tables and self.chance(0.4) else self.variable((rows, width))
        if self.chance(0.15):
            return to.tensordot(to.one_hot(ids, int(table.shape[0]), dtype=table.dtype), table, [[-1], [0]])
        return self.pick([to.gather, to.nn.embedding_lookup])(table, ids)

    def convolution(self) -> Any:
        images = self.tensor(lambda s: len(s) == 4 and s[1] >= 3 and s[2] >= 3)
        if images is None:
            images = self.input((self.batch, self.pick([4, 6, 8]), self.pick([4, 6, 8]), self.pick([1, 2, 4])))
        channels = int(images.shape[3])
        kernel = self.variable((self.pick([1, 2, 3]), self.pick([1, 3]), channels, self.pick([2, 4, 6])), 0.3)
        stride = self.pick([1, 1, 2])
        y = to.nn.conv2d(images, kernel, strides=[1, stride, stride, 1], padding=self.pick(["SAME", "VALID"]))
        if self.chance(0.5):
            y = to.nn.bias_add(y, self.variable((int(y.shape[3]),), 0.3))
        if self.chance(0.5) and min(y.shape[1], y.shape[2]) >= 2:
            pool = self.pick([to.nn.max_pool2d, to.nn.avg_pool2d])
            y = pool(y, ksize=2, strides=self.pick([1, 2]), padding=self.pick(["SAME", "VALID"]))
        return y

    def image(self) -> Any:
        """A window over an image, each of which reads its neighbours' rims in a way of its own."""
        x = self.tensor(lambda s: len(s) == 4 and s[1] >= 4 and s[2] >= 4 and s[1] % 2 == s[2] % 2 == 0)
        if x is None:
            x = self.input((self.pick([1, 2, 4]), self.pick([8, 12]), self.pick([4, 8]), self.pick([1, 2])))
        batch, height, width, channels = x.shape.as_list()

        def kernel(*window: int) -> Any:
            return self.variable((*window, channels, self.pick([1, 2, 3])), 0.3)

        made = self.pick(
            [
                lambda: to.nn.conv2d(x, kernel(3, 3), 1, "SAME"),
                lambda: to.nn.conv2d(x, kernel(2, 5), [1, 2, 1, 1], "SAME"),
                lambda: to.nn.conv2d(to.pad(x, [[0, 0], [1, 1], [2, 0], [0, 0]]), kernel(3, 3), 1, "VALID"),
                lambda: to.nn.convolution(x, kernel(2, 3), padding="SAME", dilations=[2, 1]),
                lambda: to.nn.depthwise_conv2d(x, self.variable((3, 2, channels, 1), 0.3), [1, 1, 1, 1], "SAME"),
                lambda: to.nn.max_pool2d(x, ksize=3, strides=2, padding="SAME"),
                lambda: to.nn.avg_pool2d(x, ksize=3, strides=self.pick([1, 2]), padding="SAME"),
                lambda: to.nn.conv2d_transpose(
                    x, self.variable((3, 3, 2, channels), 0.3), [batch, 2 * height, 2 * width, 2], [1, 2, 2, 1]
                ),
                lambda: to.image.resize(x, [2 * height, width], method="nearest"),
                lambda: to.cast(to.image.resize(x, [2 * height, 2 * width]), x.dtype),
            ]
        )()
        return self.pick([lambda: made, lambda: to.nn.relu(made)])()

    def special(self) -> Any:
        x = self.tensor(lambda s: len(s) >= 2)
        choice = self.random.random()
        if choice < 0.3:
            return to.stop_gradient(x) * to.sigmoid(x)
        if choice < 0.5:
            return to.nn.dropout(x, rate=0.4, seed=int(self.random.integers(1, 99)))
        if choice < 0.65:
            return to.add_n([x, to.tanh(x), x * 0.5])
        if choice < 0.8 and x.shape.rank == 2:
            return to.einsum("bi,ij->bj", x, self.variable((int(x.shape[1]), self.size())))
        mask = to.cast(to.greater(x, 0.0), x.dtype)
        return to.cast(to.cast(x, to.float64), x.dtype) * mask + to.cast(to.argmax(x, -1), x.dtype)[..., None] * 0.1

    def normalization(self) -> Any:
        """Batch normalization in training, with its moving averages."""
        x = self.tensor(lambda s: len(s) in (2, 4) and math.prod(s[:-1]) >= 4)
        return None if x is None else to.layers.batch_normalization(x, training=True, momentum=0.8, epsilon=0.1)

    def rare(self) -> Any:
        x = self.tensor(lambda s: len(s) >= 2)
        shape = x.shape.as_list()
        last = shape[-1]
        makers: list[Callable[[], Any]] = [
            lambda: to.nn.l2_normalize(x, axis=-1, epsilon=0.1),
            lambda: to.nn.top_k(x, k=max(1, last // 2)).values,
            lambda: to.reduce_prod(to.tanh(x) + 1.0, axis=-1),
            lambda: to.math.cumprod(to.tanh(x) + 1.0, axis=len(shape) - 1),
            lambda: to.math.unsorted_segment_sum(x, [i % 2 for i in range(shape[0])], 3) * 0.3,
            lambda: to.gather_nd(x, [[0], [shape[0] - 1], [0]]),
            lambda: to.linalg.band_part(x, 1, -1),
            lambda: x * to.cast(to.reduce_any(to.greater(x, 0.5), axis=-1, keepdims=True), x.dtype),
            lambda: x * to.one_hot(to.argmin(x, axis=-1), last, dtype=x.dtype) + 0.1 * x,
            lambda: to.layers.dropout(x, rate=0.3, training=True),
            lambda: to.sqrt(to.math.reduce_variance(x, axis=0, keepdims=True) + 0.1) + x,
            lambda: to.nn.swish(x),
            lambda: to.nn.gelu(x),
            lambda: to.repeat(x, 2, axis=0) if shape[0] < 9 else x,
            lambda: to.matmul(x, x, transpose_b=True) / last,
            lambda: to.tensor_scatter_nd_add(x, [[0], [1]], x[:2] * 0.5) if shape[0] > 1 else x,
            lambda: to.scatter_nd([[0], [2]], x[:2], [4, *shape[1:]]) if shape[0] > 1 else x,
        ]
        if len(shape) == 3 and shape[1] >= 3:
            makers += [lambda: to.nn.conv1d(x, self.variable((3, last, 4), 0.3), stride=1, padding="SAME")] * 3
        if len(shape) == 4 and min(shape[1:3]) >= 2:
            kernel = (2, 2, last, 2)
            even = shape[1] % 2 == 0 and shape[2] % 2 == 0
            makers += [
                lambda: to.nn.depthwise_conv2d(x, self.variable(kernel, 0.3), [1, 1, 1, 1], "SAME"),
                lambda: to.nn.conv2d_transpose(
                    x, self.variable((2, 2, 3, last), 0.3), [shape[0], 2 * shape[1], 2 * shape[2], 3], [1, 2, 2, 1]
                ),
                lambda: to.layers.conv2d(x, 4, 2, activation=to.nn.relu),
                lambda: to.nn.space_to_depth(x, 2) if even else x,
                lambda: to.reduce_mean(x, axis=[1, 2]),
            ] * 2
        return self.pick(makers)()

    # -------------------------------------------------------------------------------------------------------- losses

    def loss(self) -> Any:
        """A scalar of everything that nothing reads yet, or else the last tensors."""
        last = [x for x in self.pool if not x.consumers()] or self.pool[-1:]
        total = None
        for x in last[-4:]:
            if x.shape.rank == 0 or x.shape.num_elements() == 0:
                continue
            term = self.term(x)
            total = term if total is None else total + term
        if total is None:
            total = to.reduce_mean(to.square(self.pool[-1]))
        if self.chance(0.3):
            total = total + 0.01 * to.add_n([to.nn.l2_loss(w) for w in self.weights])
        return total

    def term(self, x: Any) -> Any:
        flat = x if x.shape.rank == 2 else to.reshape(x, [int(x.shape[0]), -1])
        rows, classes = int(flat.shape[0]), int(flat.shape[1])
        choice = self.random.random()
        if choice < 0.3 and classes > 1:
            labels = self.input((rows,), classes)
            each = to.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=flat)
            return to.reduce_mean(each)
        if choice < 0.4 and classes > 1:
            labels = to.nn.softmax(self.input((rows, classes)))
            return to.reduce_mean(to.nn.softmax_cross_entropy_with_logits_v2(labels=labels, logits=flat))
        if choice < 0.5:
            labels = to.sigmoid(self.input((rows, classes)))
            return to.reduce_mean(to.nn.sigmoid_cross_entropy_with_logits(labels=labels, logits=flat))
        if choice < 0.7 and self.dtype == "float32":  # TensorFlow casts whatever comes to float32
            return to.losses.mean_squared_error(self.input((rows, classes)), flat)
        return self.pick([to.reduce_mean, to.reduce_mean, to.reduce_sum])(to.square(x)) * 0.1

    def build(self) -> tuple[Turn, Turn, Turn]:
        start = self.pick(["matrix", "matrix", "sequence", "ids", "images"])
        if self.has_windows:
            self.pool += [self.convolution(), self.image(), self.image()]
        elif start == "matrix":
            self.pool.append(self.input((self.batch, self.size())))
        elif start == "sequence":
            self.pool.append(self.input((self.batch, self.pick([2, 4, 6]), self.size())))
        elif start == "ids":
            self.pool.append(self.embedding())
        else:
            self.pool.append(self.convolution())
        layers = [
            (self.dense, 4), (self.unary, 4), (self.binary, 3), (self.residual, 1), (self.reduction, 2),
            (self.reshape, 2), (self.transpose, 2), (self.concat, 2), (self.split, 2), (self.cut, 2),
            (self.softmax, 1), (self.attention, 2), (self.layer_norm, 2), (self.embedding, 1),
            (self.convolution, 1), (self.special, 1), (self.layer, 1), (self.normalization, 1), (self.rare, 3),
        ]  # fmt: skip
        layers += [(self.image, 2)] if self.has_windows else []
        weights = np.array([weight for _, weight in layers], dtype=float)
        self.pool.append(self.dense())
        for _ in range(int(self.random.integers(3, 8))):
            made = layers[int(self.random.choice(len(layers), p=weights / weights.sum()))][0]()
            if made is not None and made.shape.rank and 1 < made.shape.num_elements() <= 4096 and made.shape.rank <= 4:
                self.pool.append(made)
        return random_turns(self)

    def feeds(self) -> dict[str, np.ndarray]:
        return {
            name: self.random.normal(size=shape).astype(self.dtype)
            if bound is None
            else self.random.integers(0, bound, shape).astype(np.int32)
            for name, (shape, bound) in self.inputs.items()
        }


def build_model(seed: int) -> RandomModel:
    """Builds the model of a seed in a fresh private graph; ``current_model()`` is it afterwards."""
    reset_default_graph()
    to.set_random_seed(seed + 1)
    maker = _Maker(seed)
    turns = maker.build()
    feeds = tuple(maker.feeds() for _ in turns)
    states = tuple(variable.op.name for variable in to.global_variables())
    leave_graph()
    return RandomModel(seed, maker.dtype, turns, states, feeds)
