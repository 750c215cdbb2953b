"""Layers: TensorFlow 1.15's names and signatures, and their numbers against NumPy's."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.layers import layers as layers_of_tensorflow

import tensoropt
from tensoropt.api.mirror.layers import FUNCTIONS
from tensoropt.api.mirror.model import Model, current_model, leave_graph
from tensoropt.errors import GraphError

pytestmark = pytest.mark.tf

v1 = tf.compat.v1

# The arguments of tf.layers in TensorFlow 1.15, which the installed TensorFlow cannot be asked for.
_KERNEL = (
    "activation=None use_bias=True kernel_initializer=None bias_initializer=zeros kernel_regularizer=None "
    "bias_regularizer=None activity_regularizer=None kernel_constraint=None bias_constraint=None trainable=True "
    "name=None reuse=None"
)
_POOL = "inputs pool_size strides padding='valid' data_format='channels_last' name=None"
SIGNATURES = {
    "dense": f"inputs units {_KERNEL}",
    "conv2d": (
        "inputs filters kernel_size strides=(1,1) padding='valid' data_format='channels_last' dilation_rate=(1,1) "
        + _KERNEL
    ),
    "max_pooling2d": _POOL,
    "average_pooling2d": _POOL,
    "flatten": "inputs name=None data_format='channels_last'",
    "dropout": "inputs rate=0.5 noise_shape=None seed=None training=False name=None",
    "batch_normalization": (
        "inputs axis=-1 momentum=0.99 epsilon=0.001 center=True scale=True beta_initializer=zeros "
        "gamma_initializer=ones moving_mean_initializer=zeros moving_variance_initializer=ones "
        "beta_regularizer=None gamma_regularizer=None beta_constraint=None gamma_constraint=None training=False "
        "trainable=True name=None reuse=None renorm=False renorm_clipping=None renorm_momentum=0.99 fused=None "
        "virtual_batch_size=None adjustment=None"
    ),
}


def _run(model: Model, fetches: Any, feed: Any = None, updates: bool = False) -> Any:
    """Values of the fetches in a session with the variables at their initial values."""
    with v1.Session(graph=model.graph) as session:
        session.run(v1.global_variables_initializer())
        values = session.run(fetches, feed)
        if updates:
            session.run(v1.get_collection(v1.GraphKeys.UPDATE_OPS), feed)
            return values, session.run({v.op.name: v for v in v1.global_variables()})
        return values


def _names() -> list[str]:
    return [variable.op.name for variable in v1.global_variables()]


def _random(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).normal(size=shape).astype(np.float32)


def _windows(x: np.ndarray, size: tuple[int, int], stride: int, rate: int = 1) -> np.ndarray:
    """Every window of NHWC images: [batch, out height, out width, height, width, channels]."""
    height, width = (rate * (each - 1) + 1 for each in size)
    view = np.lib.stride_tricks.sliding_window_view(x, (height, width), axis=(1, 2))
    view = view[:, ::stride, ::stride, :, ::rate, ::rate]
    return np.moveaxis(view, 3, -1)


#: A layer of each kind: its inputs' shape, and its arguments.
_EACH: dict[str, tuple[tuple[int, ...], dict[str, Any]]] = {
    "average_pooling1d": ((2, 8, 3), {"pool_size": 2, "strides": 2}),
    "average_pooling2d": ((2, 8, 6, 3), {"pool_size": 2, "strides": 2}),
    "average_pooling3d": ((2, 4, 6, 4, 3), {"pool_size": 2, "strides": 2}),
    "conv1d": ((2, 8, 3), {"filters": 4, "kernel_size": 3, "padding": "causal"}),
    "conv2d": ((2, 7, 8, 3), {"filters": 4, "kernel_size": 3, "dilation_rate": 2, "activation": tf.nn.relu}),
    "conv2d_transpose": ((2, 4, 5, 3), {"filters": 4, "kernel_size": 3, "strides": 2, "padding": "same"}),
    "conv3d": ((2, 4, 5, 4, 3), {"filters": 4, "kernel_size": 2}),
    "conv3d_transpose": ((2, 3, 3, 3, 2), {"filters": 4, "kernel_size": 2, "strides": 2}),
    "dense": ((4, 3), {"units": 5, "kernel_regularizer": tf.nn.l2_loss, "activity_regularizer": tf.nn.l2_loss}),
    "dropout": ((4, 3), {"rate": 0.4, "training": True}),
    "flatten": ((2, 3, 4), {}),
    "max_pooling1d": ((2, 8, 3), {"pool_size": 2, "strides": 2}),
    "max_pooling2d": ((2, 8, 6, 3), {"pool_size": 2, "strides": 2}),
    "max_pooling3d": ((2, 4, 6, 4, 3), {"pool_size": 2, "strides": 2}),
    "separable_conv1d": ((2, 8, 3), {"filters": 4, "kernel_size": 3, "depth_multiplier": 2}),
    "separable_conv2d": ((2, 7, 8, 3), {"filters": 4, "kernel_size": 3, "strides": 2}),
}


def _built(layers: Any, name: str) -> tuple[list[tuple[str, Any]], list[str], Any]:
    """What two layers of a kind make: names of variables and ops' collections, and all values."""
    shape, arguments = _EACH[name]
    x = tf.constant(_random(*shape))
    outputs = [getattr(layers, name)(x, **arguments), getattr(layers, name)(x, **arguments)]
    variables = v1.global_variables()
    losses = [tensor.name for tensor in v1.losses.get_regularization_losses()]
    made = [(variable.name, variable.shape) for variable in variables]
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        return made, losses, session.run([*variables, *outputs])


@pytest.mark.parametrize("name", sorted(FUNCTIONS))
def test_names_initial_values_and_numbers_are_those_of_tensorflows_own_code(model: Model, name: str) -> None:
    tensoropt.set_random_seed(3)
    found = _built(tensoropt.layers, name)
    with tf.Graph().as_default(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        v1.set_random_seed(3)
        v1.get_variable_scope().set_use_resource(True)
        wanted = _built(layers_of_tensorflow, name)
    assert found[:2] == wanted[:2]
    for one, other in zip(found[2], wanted[2], strict=True):
        np.testing.assert_array_equal(one, other)
    assert inspect.signature(getattr(tensoropt.layers, name)) == inspect.signature(getattr(layers_of_tensorflow, name))


def test_dropout_of_nothing_counts_no_random_op(model: Model) -> None:
    def drawn(rate: float | None) -> Any:
        tensoropt.reset_default_graph()
        tensoropt.set_random_seed(1)
        x = tensoropt.ones([2, 3])
        y = x if rate is None else tensoropt.layers.dropout(x, rate, training=True)
        return _run(current_model(), [y, tensoropt.random_uniform([4])])

    without, of_nothing, of_half = map(drawn, (None, 0.0, 0.5))
    np.testing.assert_array_equal(of_nothing[0], without[0])
    np.testing.assert_array_equal(of_nothing[1], without[1])
    assert (of_half[1] != without[1]).any()


def test_layers_are_classes_too(model: Model) -> None:
    dense = tensoropt.layers.Dense(4, activation="relu", name="head")
    x = tensoropt.placeholder(tensoropt.float32, [2, 3])
    one, other = dense(x), dense.apply(x)
    assert one.shape == other.shape == (2, 4)
    assert [variable.name for variable in dense.trainable_variables] == ["head/kernel:0", "head/bias:0"]
    assert dense.kernel.shape == (3, 4)
    assert dense.bias.shape == (4,)
    assert isinstance(dense, tensoropt.layers.Layer)
    normalized = tensoropt.layers.BatchNormalization(momentum=0.9)
    normalized(one, training=True)
    assert len(normalized.updates) == 2
    assert _names()[-1] == "batch_normalization/moving_variance"


def test_a_layer_of_ones_own(model: Model) -> None:
    class Scaled(tensoropt.layers.Layer):
        def build(self, input_shape: Any) -> None:
            self.scale = self.add_variable("scale", input_shape[-1:], initializer=tensoropt.ones_initializer())
            self.built = True

        def call(self, inputs: Any) -> Any:
            return inputs * self.scale

    leave_graph()
    y = Scaled()(np.ones([2, 3], np.float32))
    assert y.graph is model.graph
    assert _names() == ["scaled/scale"]


def test_a_constraint_holds_after_each_update(model: Model) -> None:
    x = tensoropt.ones([2, 3])
    y = tensoropt.layers.dense(
        x, 4, use_bias=False, kernel_constraint=lambda kernel: tensoropt.clip_by_value(kernel, 0, 1)
    )
    step = tensoropt.train.GradientDescentOptimizer(9.0).minimize(tensoropt.reduce_mean(tensoropt.square(y - 0.5)))
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        session.run(step)
        kernel = session.run(v1.global_variables()[0])
    assert kernel.min() >= 0
    assert kernel.max() <= 1


@pytest.mark.parametrize("name", sorted(SIGNATURES))
def test_signature_is_that_of_tensorflow_1_15(name: str) -> None:
    zeros, ones = v1.zeros_initializer, v1.ones_initializer
    got = []
    for parameter in inspect.signature(getattr(tensoropt.layers, name)).parameters.values():
        default = parameter.default
        if default is inspect.Parameter.empty:
            got.append(parameter.name)
        else:
            text = {zeros: "zeros", ones: "ones"}.get(type(default), repr(default).replace(" ", ""))
            got.append(f"{parameter.name}={text}")
    assert got == SIGNATURES[name].split()


class TestScopes:
    def test_variables_are_named_and_numbered_as_in_tensorflow_1(self, model: Model) -> None:
        x = tensoropt.ones([2, 3])
        tensoropt.layers.dense(x, 4)
        y = tensoropt.layers.dense(x, 5)
        with tensoropt.variable_scope("tower"):
            tensoropt.layers.dense(x, 6, name="head", use_bias=False)
        tensoropt.layers.embedding(tensoropt.constant([1]), 7, 2)
        assert _names() == [
            "dense/kernel", "dense/bias", "dense_1/kernel", "dense_1/bias", "tower/head/kernel", "embedding/embeddings",
        ]  # fmt: skip
        assert y.op.name == "dense_1/BiasAdd"

    @pytest.mark.parametrize("reuse", [True, tf.compat.v1.AUTO_REUSE])
    @pytest.mark.parametrize("name", ["head", None])
    def test_reuse_of_a_layers_variables(self, model: Model, reuse: Any, name: str | None) -> None:
        x = tensoropt.ones([2, 3])
        a = tensoropt.layers.dense(x, 4, name=name)
        b = tensoropt.layers.dense(x, 4, name=name, reuse=reuse)
        assert len(_names()) == 2
        got = _run(model, [a, b])
        np.testing.assert_array_equal(got[0], got[1])

    def test_reuse_through_an_enclosing_scope(self, model: Model) -> None:
        x = tensoropt.ones([2, 3])
        for reuse in (None, True):
            with tensoropt.variable_scope("tower", reuse=reuse):
                tensoropt.layers.dense(x, 4)
                tensoropt.layers.dense(x, 4)
        assert _names() == [f"tower/{layer}/{each}" for layer in ("dense", "dense_1") for each in ("kernel", "bias")]

    def test_same_name_without_reuse_is_an_error(self, model: Model) -> None:
        tensoropt.layers.dense(tensoropt.ones([2, 3]), 4, name="head")
        with pytest.raises(ValueError, match="Variable head/kernel already exists"):
            tensoropt.layers.dense(tensoropt.ones([2, 3]), 4, name="head")

    def test_first_call_of_a_script_may_be_a_layer(self, model: Model) -> None:
        leave_graph()
        y = tensoropt.layers.dense(np.ones([2, 3], np.float32), 4)
        assert y.graph is model.graph

    def test_initializer_is_glorot_uniform_or_the_scopes(self, model: Model) -> None:
        x = tensoropt.ones([2, 300])
        tensoropt.layers.dense(x, 500, name="default")
        with tensoropt.variable_scope("scope", initializer=tensoropt.constant_initializer(3.0)):
            tensoropt.layers.dense(x, 5)
        default, scoped = _run(model, [v1.global_variables()[0], v1.global_variables()[2]])
        limit = np.sqrt(6 / 800)
        assert np.abs(default).max() <= limit
        assert default.std() == pytest.approx(limit / np.sqrt(3), rel=0.02)
        assert (scoped == 3.0).all()

    def test_regularizers_join_the_collection_once(self, model: Model) -> None:
        x = tensoropt.constant(_random(4, 3))
        for _ in range(2):
            y = tensoropt.layers.dense(
                x, 2, kernel_regularizer=tensoropt.nn.l2_loss, name="d", reuse=tensoropt.AUTO_REUSE
            )
        z = tensoropt.layers.dense(x, 2, activity_regularizer=tensoropt.nn.l2_loss)
        losses = tensoropt.get_collection(tensoropt.GraphKeys.REGULARIZATION_LOSSES)
        assert len(losses) == 2
        assert y.shape == (4, 2)
        kernel, out, got = _run(model, [v1.global_variables()[0], z, losses])
        np.testing.assert_allclose(got, [(kernel**2).sum() / 2, (out**2).sum() / 2 / 4], rtol=1e-5)


class TestDense:
    @pytest.mark.parametrize("shape", [(4, 3), (2, 4, 3), (2, 5, 4, 3)])
    @pytest.mark.parametrize("activation", [tf.nn.relu, "relu"])
    def test_numbers(self, model: Model, shape: tuple[int, ...], activation: Any) -> None:
        x = _random(*shape)
        y = tensoropt.layers.dense(x, 6, activation=activation, bias_initializer=tensoropt.constant_initializer(0.1))
        kernel, got = _run(model, [v1.global_variables()[0], y])
        np.testing.assert_allclose(got, np.maximum(x @ kernel + 0.1, 0), rtol=1e-5, atol=1e-6)

    def test_more_than_two_dimensions_are_one_einsum_and_any_batch(self, model: Model) -> None:
        y = tensoropt.layers.dense(tensoropt.placeholder(tensoropt.float32, [None, 5, 3]), 6, use_bias=False)
        assert y.op.type == "Einsum"
        assert y.op.get_attr("equation") == b"abk,kn->abn"
        assert y.shape.as_list() == [None, 5, 6]

    def test_errors(self, model: Model) -> None:
        with pytest.raises(ValueError, match=r"layer dense\w* is incompatible.*expected min_ndim=2, found ndim=1"):
            tensoropt.layers.dense(tensoropt.ones([3]), 2)


class TestConv2d:
    @pytest.mark.parametrize(("strides", "rate"), [(1, 1), (2, 1), (1, 2)])
    def test_valid_numbers(self, model: Model, strides: int, rate: int) -> None:
        x = _random(2, 7, 8, 3)
        y = tensoropt.layers.conv2d(
            x, 4, (2, 3), strides, dilation_rate=rate, activation=tensoropt.nn.relu,
            bias_initializer=tensoropt.ones_initializer(),
        )  # fmt: skip
        kernel, got = _run(model, [v1.global_variables()[0], y])
        expected = np.einsum("bijhwc,hwcf->bijf", _windows(x, (2, 3), strides, rate), kernel) + 1
        np.testing.assert_allclose(got, np.maximum(expected, 0), rtol=1e-4, atol=1e-5)
        assert _names() == ["conv2d/kernel", "conv2d/bias"]

    def test_same_numbers(self, model: Model) -> None:
        x = _random(2, 5, 5, 3)
        y = tensoropt.layers.conv2d(x, 4, 3, padding="same", use_bias=False)
        kernel, got = _run(model, [v1.global_variables()[0], y])
        padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
        expected = np.einsum("bijhwc,hwcf->bijf", _windows(padded, (3, 3), 1), kernel)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)

    def test_channels_first_is_built(self, model: Model) -> None:
        y = tensoropt.layers.conv2d(tensoropt.ones([2, 3, 7, 8]), 4, (2, 3), data_format="channels_first")
        assert y.shape.as_list() == [2, 4, 6, 6]
        assert (y.op.type, y.op.get_attr("data_format")) == ("BiasAdd", b"NCHW")
        assert v1.global_variables()[0].shape.as_list() == [2, 3, 3, 4]


class TestPooling:
    @pytest.mark.parametrize(("name", "reduce"), [("max_pooling2d", np.max), ("average_pooling2d", np.mean)])
    def test_numbers(self, model: Model, name: str, reduce: Any) -> None:
        x = _random(2, 7, 8, 3)
        y = getattr(tensoropt.layers, name)(x, (2, 3), 2)
        np.testing.assert_allclose(_run(model, y), reduce(_windows(x, (2, 3), 2), axis=(3, 4)), rtol=1e-5)
        assert y.op.name == f"{name}/{'MaxPool' if name.startswith('max') else 'AvgPool'}"

    def test_padding_and_format(self, model: Model) -> None:
        y = tensoropt.layers.max_pooling2d(np.ones([2, 7, 7, 3], np.float32), 2, 2, "same")
        assert y.shape.as_list() == [2, 4, 4, 3]
        y = tensoropt.layers.average_pooling2d(np.ones([2, 3, 7, 7], np.float32), 2, 2, "valid", "channels_first")
        assert y.shape.as_list() == [2, 3, 3, 3]


class TestFlatten:
    @pytest.mark.parametrize(
        ("shape", "flat"),
        [((None, 2, 3), [None, 6]), ((4, 2, 3), [4, 6]), ((4,), [4, 1]), ((4, None, 3), [4, None])],
    )
    def test_shapes(self, model: Model, shape: Any, flat: Any) -> None:
        assert tensoropt.layers.flatten(tensoropt.placeholder(tensoropt.float32, shape)).shape.as_list() == flat

    def test_both_formats_give_the_same(self, model: Model) -> None:
        x = _random(2, 3, 4, 5)
        last = tensoropt.layers.flatten(x)
        first = tensoropt.layers.flatten(x.transpose(0, 3, 1, 2), data_format="channels_first")
        got = _run(model, [last, first])
        np.testing.assert_array_equal(got[0], x.reshape(2, -1))
        np.testing.assert_array_equal(got[1], got[0])


class TestDropout:
    def test_share_and_scale(self, model: Model) -> None:
        got = _run(model, tensoropt.layers.dropout(np.ones([200, 100], np.float32), 0.25, seed=3, training=True))
        assert set(np.unique(got.round(5))) == {0.0, np.float32(1 / 0.75).round(5)}
        assert (got == 0).mean() == pytest.approx(0.25, abs=0.02)

    def test_not_training_is_the_identity(self, model: Model) -> None:
        y = tensoropt.layers.dropout(np.ones([2, 2], np.float32))
        assert y.op.name == "dropout/Identity"

    def test_training_flag_known_at_the_run(self, model: Model) -> None:
        training = tensoropt.placeholder(tensoropt.bool, [])
        x = _random(20, 10)
        y = tensoropt.layers.dropout(x, 0.5, training=training)
        np.testing.assert_array_equal(_run(model, y, {training: False}), x)
        got = _run(model, y, {training: True})
        np.testing.assert_allclose(got[got != 0], 2 * x[got != 0], rtol=1e-6)
        assert 50 < (got == 0).sum() < 150

    def test_noise_shape_drops_whole_rows(self, model: Model) -> None:
        got = _run(model, tensoropt.layers.dropout(np.ones([50, 4], np.float32), 0.5, (50, 1), training=True))
        assert (got == got[:, :1]).all()
        assert set(np.unique(got)) == {0.0, 2.0}

    @pytest.mark.parametrize("rate", [-0.1, 1.0])
    def test_rate_out_of_range(self, model: Model, rate: float) -> None:
        with pytest.raises(ValueError, match=r"`?rate`?"):
            tensoropt.layers.dropout(np.ones([2, 2], np.float32), rate, training=True)


class TestEmbedding:
    def test_rows(self, model: Model) -> None:
        ids = np.array([[1, 3], [0, 0]])
        y = tensoropt.layers.embedding(ids, 5, 4)
        table, got = _run(model, [v1.global_variables()[0], y])
        np.testing.assert_array_equal(got, table[ids])
        assert "ResourceGather" in {op.type for op in model.graph.get_operations()}

    def test_ids_must_be_integers(self, model: Model) -> None:
        with pytest.raises(GraphError, match=r"'embedding\w*': ids must be integers. Got float32"):
            tensoropt.layers.embedding(np.ones([2], np.float32), 5, 4)


class TestBatchNormalization:
    @staticmethod
    def expected(x: np.ndarray, axis: int, training: bool, unbiased: bool) -> tuple[Any, Any, Any]:
        """The result and the moving averages after one update, from 0.5 and 2 with momentum 0.75."""
        axes = tuple(each for each in range(x.ndim) if each != axis % x.ndim)
        shape = [-1 if each == axis % x.ndim else 1 for each in range(x.ndim)]
        count = x.size // x.shape[axis]
        mean, variance = x.mean(axes), x.var(axes)
        moving = np.full_like(mean, 0.5), np.full_like(mean, 2.0)
        used = (mean, variance) if training else moving
        y = (x - used[0].reshape(shape)) / np.sqrt(used[1].reshape(shape) + 0.01) * 3 + 0.1
        if training:
            variance = variance * count / (count - 1) if unbiased else variance
            moving = 0.75 * moving[0] + 0.25 * mean, 0.75 * moving[1] + 0.25 * variance
        return y, *moving

    @staticmethod
    def build(x: Any, **arguments: Any) -> Any:
        constant = tensoropt.constant_initializer
        return tensoropt.layers.batch_normalization(
            x, momentum=0.75, epsilon=0.01, beta_initializer=constant(0.1), gamma_initializer=constant(3.0),
            moving_mean_initializer=constant(0.5), moving_variance_initializer=constant(2.0), **arguments,
        )  # fmt: skip

    @pytest.mark.parametrize("known", [True, False])
    def test_what_depends_on_constants_is_known_but_no_default(self, model: Model, known: bool) -> None:
        flag = tensoropt.constant(True) if known else tensoropt.placeholder_with_default(True, [])
        self.build(_random(2, 4, 5, 3), training=tensoropt.logical_and(flag, True))
        types = {op.type for op in model.graph.get_operations()}
        assert ("FusedBatchNormV3" in types) == known and ("SelectV2" in types) != known

    @pytest.mark.parametrize("training", [True, False])
    @pytest.mark.parametrize("known", [True, False])
    @pytest.mark.parametrize(
        ("shape", "axis", "fused"),
        [((6, 3), -1, None), ((4, 5, 3), 1, None), ((2, 4, 5, 3), 3, None), ((2, 4, 5, 3), -1, False),
         ((2, 4, 5, 3), 2, None)],
    )  # fmt: skip
    def test_numbers_and_updates(
        self, model: Model, shape: Any, axis: int, fused: Any, training: bool, known: bool
    ) -> None:
        x = _random(*shape)
        flag = training if known else tensoropt.placeholder(tensoropt.bool, None if len(shape) == 2 else [])
        y = self.build(x, axis=axis, fused=fused, training=flag)
        assert y.shape == shape
        got, variables = _run(model, y, None if known else {flag: training}, updates=True)
        unbiased = len(shape) == 4 and fused is None and axis in (3, -1)
        expected, mean, variance = self.expected(x, axis, training, unbiased)
        np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(variables["batch_normalization/moving_mean"], mean, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(variables["batch_normalization/moving_variance"], variance, rtol=1e-4)
        types = {op.type for op in model.graph.get_operations()}
        assert ("FusedBatchNormV3" in types) == (unbiased and known)
        assert not types & {"If", "StatelessIf", "Switch"}

    def test_names_and_collections(self, model: Model) -> None:
        self.build(_random(2, 4, 4, 3), training=True)
        names = ["gamma", "beta", "moving_mean", "moving_variance"]
        assert _names() == [f"batch_normalization/{each}" for each in names]
        assert [v.op.name for v in v1.trainable_variables()] == [f"batch_normalization/{each}" for each in names[:2]]
        updates = tensoropt.get_collection(tensoropt.GraphKeys.UPDATE_OPS)
        assert [op.type for op in updates] == ["AssignSubVariableOp"] * 2
        self.build(_random(2, 4, 4, 3), training=False)
        assert len(tensoropt.get_collection(tensoropt.GraphKeys.UPDATE_OPS)) == 2

    def test_updates_run_before_the_step_that_depends_on_them(self, model: Model) -> None:
        loss = tensoropt.reduce_sum(self.build(_random(6, 3), training=True))
        updates = tensoropt.get_collection(tensoropt.GraphKeys.UPDATE_OPS)
        with tensoropt.control_dependencies(updates):
            step = tensoropt.GradientDescentOptimizer().minimize(loss)
        assert set(updates) < set(step.control_inputs)

    @pytest.mark.parametrize("fused", [None, False])
    def test_without_center_and_scale(self, model: Model, fused: Any) -> None:
        x = _random(2, 4, 5, 3)
        y = tensoropt.layers.batch_normalization(x, training=True, center=False, scale=False, fused=fused)
        expected = (x - x.mean((0, 1, 2))) / np.sqrt(x.var((0, 1, 2)) + 1e-3)
        np.testing.assert_allclose(_run(model, y), expected, rtol=1e-4, atol=1e-5)
        assert v1.trainable_variables() == []

    def test_channels_first_is_built_fused(self, model: Model) -> None:
        y = self.build(_random(2, 3, 4, 5), axis=1, training=True)
        assert (y.op.type, y.op.get_attr("data_format")) == ("FusedBatchNormV3", b"NCHW")

    @pytest.mark.parametrize("shape", [(64, 3), (8, 4, 4, 3)])
    def test_16_bit_inputs_keep_32_bit_statistics(self, model: Model, shape: Any) -> None:
        y = self.build(tensoropt.constant(_random(*shape), tensoropt.float16), training=True)
        assert y.dtype == tf.float16
        assert {variable.dtype for variable in v1.global_variables()} == {tf.float32}
        expected, _, _ = self.expected(_random(*shape), -1, True, False)
        np.testing.assert_allclose(_run(model, y), expected, atol=2e-2)

    @pytest.mark.parametrize(
        ("arguments", "match"),
        [
            ({"renorm": True}, "renorm, virtual_batch_size and adjustment are not supported"),
            ({"virtual_batch_size": 2}, "renorm, virtual_batch_size and adjustment are not supported"),
            ({"axis": (1, 2)}, r"axis must be one dimension of the 2 of its input. Got \(1, 2\)"),
            ({"axis": 2}, "axis must be one dimension of the 2 of its input. Got 2"),
            ({"fused": True}, "the fused op needs 4 dimensions, channels in dimension 1 or 3"),
        ],
    )
    def test_errors(self, model: Model, arguments: Any, match: str) -> None:
        with pytest.raises(GraphError, match=match):
            tensoropt.layers.batch_normalization(np.ones([4, 3], np.float32), **arguments)
