"""Models of one op each, as scripts of TensorFlow 1 write it; several of them are trained at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from tensorflow.python.framework import function

import tensoropt as to
from tensoropt.api.mirror.model import leave_graph, reset_default_graph
from tests.exec.random_models import RandomModel
from tests.exec.random_training import Turn

__all__ = ["GROUPS", "OPS", "REFUSED", "build_group", "build_models"]

_AT_A_TIME = 12


class Maker:
    """Makes what the op of one model reads."""

    def __init__(self, random: np.random.Generator, feeds: dict[str, np.ndarray]) -> None:
        self._random = random
        self._feeds = feeds

    def w(self, *shape: int, low: float = -1.0, high: float = 1.0) -> Any:
        """A variable that is trained."""
        return to.get_variable(
            f"w{len(to.get_collection(to.GraphKeys.GLOBAL_VARIABLES, to.get_variable_scope().name + '/'))}",
            shape,
            initializer=to.random_uniform_initializer(low, high, seed=len(to.global_variables()) + 1),
        )

    def x(self, *shape: int, low: float = -1.0, high: float = 1.0) -> Any:
        """Floats that are fed."""
        return self._fed(self._random.uniform(low, high, shape).astype(np.float32))

    def ids(self, *shape: int, below: int, above: int = 0) -> Any:
        """Integers that are fed."""
        return self._fed(self._random.integers(above, below, shape).astype(np.int32))

    def constant(self, value: Any) -> Any:
        """Numbers that are fed."""
        return self._fed(np.asarray(value))

    def _fed(self, value: np.ndarray) -> Any:
        made = to.placeholder(to.as_dtype(value.dtype), value.shape)
        self._feeds[made.op.name] = value
        return made


def _sparse(m: Maker, rows: int, each: int, below: int) -> Any:
    places = [[row, place] for row in range(rows) for place in range(each)]
    return to.SparseTensor(to.constant(places, to.int64), m.ids(rows * each, below=below), [rows, each])


def _labels(batch: int, length: int) -> Any:
    """Labels of sequences, each of which is ``length`` long."""
    places = [[row, place] for row in range(batch) for place in range(length)]
    values = [(row + place) % 4 for row, place in places]
    return to.SparseTensor(to.constant(places, to.int64), to.constant(values, to.int32), [batch, length])


def _cell(m: Maker, cell: Any, **options: Any) -> Any:
    outputs, state = to.nn.dynamic_rnn(cell, m.x(8, 2, 4), m.ids(8, below=3), dtype=to.float32, **options)
    return to.concat([to.reduce_mean(outputs, 1), *to.nest.flatten(state)], 1)


def _candidates(m: Maker, loss: Any, **options: Any) -> Any:
    return loss(m.w(40, 6), m.w(40), m.ids(8, 1, below=40), m.w(8, 6), num_sampled=5, num_classes=40, **options)


def _defun(m: Maker, **options: Any) -> Any:
    """A function of TensorFlow 1 that calls another one."""

    @function.Defun(to.float32, to.float32)
    def product(x: Any, w: Any) -> Any:
        return to.nn.relu(to.matmul(x, w))

    @function.Defun(to.float32, to.float32, **options)
    def called(x: Any, w: Any) -> Any:
        return product(x, w) * 2.0

    made = called(m.x(8, 4), to.convert_to_tensor(m.w(4, 6)))
    made.set_shape([8, 6])  # which such a call does not say
    return made


cells = to.nn.rnn_cell
OPS: dict[str, Callable[[Maker], Any]] = {
    # ------------------------------------------------------------------------------------------------------- tf.nn
    "nn.relu": lambda m: to.nn.relu(m.w(8, 4)),
    "nn.relu6": lambda m: to.nn.relu6(m.w(8, 4, high=9)),
    "nn.elu": lambda m: to.nn.elu(m.w(8, 4)),
    "nn.selu": lambda m: to.nn.selu(m.w(8, 4)),
    "nn.crelu": lambda m: to.nn.crelu(m.w(8, 4)),
    "nn.leaky_relu": lambda m: to.nn.leaky_relu(m.w(8, 4)),
    "nn.softplus": lambda m: to.nn.softplus(m.w(8, 4)),
    "nn.softsign": lambda m: to.nn.softsign(m.w(8, 4)),
    "nn.swish": lambda m: to.nn.swish(m.w(8, 4)),
    "nn.softmax": lambda m: to.nn.softmax(m.w(8, 4)),
    "nn.log_softmax": lambda m: to.nn.log_softmax(m.w(8, 4)),
    "nn.l2_normalize": lambda m: to.nn.l2_normalize(m.w(8, 4), 1),
    "nn.l2_loss": lambda m: to.nn.l2_loss(m.w(8, 4)),
    "nn.moments": lambda m: to.stack(to.nn.moments(m.w(8, 4), [0])),
    "nn.weighted_moments": lambda m: to.stack(to.nn.weighted_moments(m.w(8, 4), [0], m.x(8, 4, low=0.5))),
    "nn.batch_normalization": lambda m: to.nn.batch_normalization(
        m.w(8, 4), m.w(4), m.w(4, low=0.5), m.w(4), m.w(4), 1e-3
    ),
    "nn.fused_batch_norm": lambda m: to.nn.fused_batch_norm(m.w(8, 4, 4, 4), m.w(4), m.w(4))[0],
    "nn.lrn": lambda m: to.nn.local_response_normalization(m.w(8, 4, 4, 4), 2),
    "nn.xw_plus_b": lambda m: to.nn.xw_plus_b(m.x(8, 4), m.w(4, 6), m.w(6)),
    "nn.relu_layer": lambda m: to.nn.relu_layer(m.x(8, 4), m.w(4, 6), m.w(6)),
    "nn.bias_add": lambda m: to.nn.bias_add(m.w(8, 4), m.w(4)),
    "nn.conv1d": lambda m: to.nn.conv1d(m.x(8, 6, 4), m.w(3, 4, 4), 1, "SAME"),
    "nn.conv1d_transpose": lambda m: to.nn.conv1d_transpose(m.x(8, 6, 4), m.w(3, 4, 4), [8, 12, 4], 2),
    "nn.conv2d": lambda m: to.nn.conv2d(m.x(8, 6, 6, 4), m.w(3, 3, 4, 4), [1, 2, 2, 1], "SAME"),
    "nn.conv2d_transpose": lambda m: to.nn.conv2d_transpose(
        m.x(8, 4, 4, 4), m.w(3, 3, 4, 4), [8, 8, 8, 4], [1, 2, 2, 1]
    ),
    "nn.conv3d": lambda m: to.nn.conv3d(m.x(8, 4, 4, 4, 2), m.w(2, 2, 2, 2, 4), [1, 1, 1, 1, 1], "SAME"),
    "nn.conv3d_transpose": lambda m: to.nn.conv3d_transpose(
        m.x(8, 2, 2, 2, 2), m.w(2, 2, 2, 4, 2), [8, 4, 4, 4, 4], [1, 2, 2, 2, 1]
    ),
    "nn.convolution": lambda m: to.nn.convolution(m.x(8, 6, 6, 4), m.w(3, 3, 4, 4), "VALID"),
    "nn.depthwise_conv2d": lambda m: to.nn.depthwise_conv2d(m.x(8, 6, 6, 4), m.w(3, 3, 4, 2), [1, 1, 1, 1], "SAME"),
    "nn.separable_conv2d": lambda m: to.nn.separable_conv2d(
        m.x(8, 6, 6, 4), m.w(3, 3, 4, 2), m.w(1, 1, 8, 4), [1, 1, 1, 1], "SAME"
    ),
    "nn.atrous_conv2d": lambda m: to.nn.atrous_conv2d(m.x(8, 8, 8, 4), m.w(3, 3, 4, 4), 2, "SAME"),
    "nn.atrous_conv2d_transpose": lambda m: to.nn.atrous_conv2d_transpose(
        m.x(8, 8, 8, 4), m.w(3, 3, 4, 4), [8, 8, 8, 4], 2, "SAME"
    ),
    "nn.dilation2d": lambda m: to.nn.dilation2d(m.w(4, 6, 6, 4), m.w(3, 3, 4), [1] * 4, [1] * 4, "SAME"),
    "nn.erosion2d": lambda m: to.nn.erosion2d(m.w(4, 6, 6, 4), m.w(3, 3, 4), [1] * 4, [1] * 4, "SAME"),
    "nn.max_pool": lambda m: to.nn.max_pool(m.w(8, 6, 6, 4), [1, 2, 2, 1], [1, 2, 2, 1], "VALID"),
    "nn.avg_pool": lambda m: to.nn.avg_pool(m.w(8, 6, 6, 4), [1, 2, 2, 1], [1, 2, 2, 1], "VALID"),
    "nn.max_pool1d": lambda m: to.nn.max_pool1d(m.w(8, 6, 4), 2, 2, "VALID"),
    "nn.avg_pool1d": lambda m: to.nn.avg_pool1d(m.w(8, 6, 4), 2, 2, "VALID"),
    "nn.max_pool3d": lambda m: to.nn.max_pool3d(m.w(4, 4, 4, 4, 4), 2, 2, "VALID"),
    "nn.avg_pool3d": lambda m: to.nn.avg_pool3d(m.w(4, 4, 4, 4, 4), 2, 2, "VALID"),
    "nn.pool": lambda m: to.nn.pool(m.w(8, 6, 6, 4), [2, 2], "MAX", "SAME"),
    "nn.max_pool_with_argmax": lambda m: to.nn.max_pool_with_argmax(
        m.w(8, 6, 6, 4), [1, 2, 2, 1], [1, 2, 2, 1], "VALID"
    )[0],
    "nn.embedding_lookup": lambda m: to.nn.embedding_lookup(m.w(16, 4), m.ids(8, below=16)),
    "nn.embedding_lookup of partitions": lambda m: to.nn.embedding_lookup(
        [m.w(8, 4), m.w(8, 4)], m.ids(8, below=16), "mod"
    ),
    "nn.embedding_lookup_sparse": lambda m: to.nn.embedding_lookup_sparse(
        m.w(16, 4), _sparse(m, 8, 2, 16), None, combiner="mean"
    ),
    "nn.softmax_cross_entropy_with_logits": lambda m: to.nn.softmax_cross_entropy_with_logits(
        labels=to.one_hot(m.ids(8, below=4), 4), logits=m.w(8, 4)
    ),
    "nn.softmax_cross_entropy_with_logits_v2": lambda m: to.nn.softmax_cross_entropy_with_logits_v2(
        labels=to.nn.softmax(m.w(8, 4)), logits=m.w(8, 4)
    ),
    "nn.sparse_softmax_cross_entropy_with_logits": lambda m: to.nn.sparse_softmax_cross_entropy_with_logits(
        labels=m.ids(8, below=4), logits=m.w(8, 4)
    ),
    "nn.sigmoid_cross_entropy_with_logits": lambda m: to.nn.sigmoid_cross_entropy_with_logits(
        labels=m.x(8, 4, low=0), logits=m.w(8, 4)
    ),
    "nn.weighted_cross_entropy_with_logits": lambda m: to.nn.weighted_cross_entropy_with_logits(
        labels=m.x(8, 4, low=0), logits=m.w(8, 4), pos_weight=2.0
    ),
    "nn.log_poisson_loss": lambda m: to.nn.log_poisson_loss(m.x(8, 4, low=0), m.w(8, 4)),
    "nn.nce_loss": lambda m: _candidates(m, to.nn.nce_loss),
    "nn.sampled_softmax_loss": lambda m: _candidates(m, to.nn.sampled_softmax_loss, seed=3),
    "nn.ctc_loss": lambda m: to.nn.ctc_loss(_labels(4, 2), m.w(6, 4, 5), to.fill([4], 6)),
    "nn.ctc_loss_v2": lambda m: to.nn.ctc_loss_v2(
        m.ids(4, 2, below=5, above=1), m.w(6, 4, 5), to.fill([4], 2), to.fill([4], 6), blank_index=0
    ),
    "function.Defun": _defun,
    "function.Defun with a gradient": lambda m: _defun(
        m, python_grad_func=lambda op, gradient: [to.zeros_like(x) for x in op.inputs]
    ),
    "nn.dropout": lambda m: to.nn.dropout(m.w(8, 4), 0.7),
    "nn.top_k": lambda m: to.nn.top_k(m.w(8, 6), 2)[0],
    "nn.in_top_k": lambda m: to.nn.in_top_k(m.w(8, 6), m.ids(8, below=6), 2),
    "nn.depth_to_space": lambda m: to.nn.depth_to_space(m.w(4, 4, 4, 8), 2),
    "nn.space_to_depth": lambda m: to.nn.space_to_depth(m.w(4, 4, 4, 8), 2),
    "nn.zero_fraction": lambda m: to.nn.zero_fraction(to.nn.relu(m.w(8, 4))) * m.w(4),
    "nn.dynamic_rnn of BasicRNNCell": lambda m: _cell(m, cells.BasicRNNCell(4)),
    "nn.dynamic_rnn of BasicLSTMCell": lambda m: _cell(m, cells.BasicLSTMCell(4)),
    "nn.dynamic_rnn of LSTMCell": lambda m: _cell(m, cells.LSTMCell(4, use_peepholes=True, num_proj=2)),
    "nn.dynamic_rnn of MultiRNNCell": lambda m: _cell(
        m, cells.MultiRNNCell([cells.GRUCell(4), cells.DropoutWrapper(cells.BasicRNNCell(4), 0.8, seed=1)])
    ),
    "nn.bidirectional_dynamic_rnn": lambda m: to.concat(
        to.nn.bidirectional_dynamic_rnn(cells.GRUCell(2), cells.GRUCell(2), m.x(8, 3, 4), dtype=to.float32)[0], 2
    ),
    # ----------------------------------------------------------------------------------------------------- tf.math
    "add_n": lambda m: to.add_n([m.w(8, 4), m.w(8, 4)]),
    "abs": lambda m: to.abs(m.w(8, 4)),
    "argmax": lambda m: to.argmax(m.w(8, 4), 1),
    "atan2": lambda m: to.atan2(m.w(8, 4), m.w(8, 4, low=0.5)),
    "boolean mask by where": lambda m: to.where(to.greater(m.w(8, 4), 0.0), m.w(8, 4), m.w(8, 4)),
    "clip_by_norm": lambda m: to.clip_by_norm(m.w(8, 4), 0.5),
    "clip_by_value": lambda m: to.clip_by_value(m.w(8, 4), -0.5, 0.5),
    "confusion_matrix": lambda m: to.math.confusion_matrix(m.ids(8, below=4), m.ids(8, below=4), 4),
    "cumsum": lambda m: to.cumsum(m.w(8, 4), 1, reverse=True),
    "cumprod": lambda m: to.cumprod(m.w(8, 4), 1),
    "cumulative_logsumexp": lambda m: to.math.cumulative_logsumexp(m.w(8, 4), 1),
    "digamma": lambda m: to.digamma(m.w(8, 4, low=0.5, high=2)),
    "einsum": lambda m: to.einsum("bij,bjk->bik", m.w(4, 2, 6), m.w(4, 6, 4)),
    "erf": lambda m: to.erf(m.w(8, 4)),
    "floormod": lambda m: to.floormod(m.w(8, 4), 0.3),
    "gather": lambda m: to.gather(m.w(8, 6), m.ids(4, below=6), axis=1),
    "gather_nd": lambda m: to.gather_nd(m.w(8, 6), m.ids(4, 2, below=6)),
    "lgamma": lambda m: to.lgamma(m.w(8, 4, low=0.5, high=2)),
    "linalg.band_part": lambda m: to.linalg.band_part(m.w(4, 4, 4), 1, 0),
    "linalg.det": lambda m: to.linalg.det(m.w(4, 3, 3) + 2.0 * to.eye(3)),
    "linalg.diag": lambda m: to.linalg.diag(m.w(8, 4)),
    "linalg.inv": lambda m: to.linalg.inv(m.w(4, 3, 3) + 3.0 * to.eye(3)),
    "linalg.norm": lambda m: to.linalg.norm(m.w(8, 4), axis=1),
    "linalg.solve": lambda m: to.linalg.solve(m.w(4, 3, 3) + 3.0 * to.eye(3), m.w(4, 3, 2)),
    "linalg.trace": lambda m: to.linalg.trace(m.w(4, 4, 4)),
    "matmul": lambda m: to.matmul(m.x(8, 4), m.w(6, 4), transpose_b=True),
    "maximum": lambda m: to.maximum(m.w(8, 4), m.w(4)),
    "one_hot": lambda m: to.one_hot(m.ids(8, below=4), 4) * m.w(8, 4),
    "pad": lambda m: to.pad(m.w(8, 4), [[1, 1], [0, 2]], "SYMMETRIC"),
    "pow": lambda m: to.pow(m.w(8, 4, low=0.5), m.w(8, 4)),
    "reduce_logsumexp": lambda m: to.reduce_logsumexp(m.w(8, 4), 1),
    "reduce_max": lambda m: to.reduce_max(m.w(8, 4), 0),
    "reduce_prod": lambda m: to.reduce_prod(m.w(8, 4), 1),
    "reduce_std": lambda m: to.math.reduce_std(m.w(8, 4), 0),
    "reverse": lambda m: to.reverse(m.w(8, 4), [1]),
    "reverse_sequence": lambda m: to.reverse_sequence(m.w(4, 6, 2), m.ids(4, below=6), 1),
    "roll": lambda m: to.roll(m.w(8, 4), 1, 0),
    "scatter_nd": lambda m: to.scatter_nd(m.ids(8, 1, below=6), m.w(8, 4), [6, 4]),
    "sequence_mask": lambda m: to.sequence_mask(m.ids(8, below=4), 4, to.float32) * m.w(8, 4),
    "sort": lambda m: to.sort(m.w(8, 6)),
    "split": lambda m: to.split(m.w(8, 4), 2, 1)[0],
    "squared_difference": lambda m: to.squared_difference(m.w(8, 4), m.w(4)),
    "stack": lambda m: to.stack(to.unstack(m.w(8, 4), axis=1)),
    "tensor_scatter_nd_update": lambda m: to.tensor_scatter_nd_update(m.w(8, 4), [[1], [5]], m.w(2, 4)),
    "tensordot": lambda m: to.tensordot(m.w(4, 2, 6), m.w(6, 4), [[2], [0]]),
    "tile": lambda m: to.tile(m.w(4, 4), [2, 3]),
    "transpose": lambda m: to.transpose(m.w(4, 2, 6), [2, 0, 1]),
    "unsorted_segment_mean": lambda m: to.math.unsorted_segment_mean(m.w(8, 4), m.ids(8, below=4), 4),
    # --------------------------------------------------------------------------------------------------- tf.losses
    "losses.absolute_difference": lambda m: to.losses.absolute_difference(m.x(8, 4), m.w(8, 4)),
    "losses.cosine_distance": lambda m: to.losses.cosine_distance(m.x(8, 4), m.w(8, 4), axis=1),
    "losses.hinge_loss": lambda m: to.losses.hinge_loss(m.ids(8, 4, below=2), m.w(8, 4)),
    "losses.huber_loss": lambda m: to.losses.huber_loss(m.x(8, 4), m.w(8, 4), delta=0.5),
    "losses.log_loss": lambda m: to.losses.log_loss(m.x(8, 4, low=0), to.sigmoid(m.w(8, 4))),
    "losses.mean_pairwise_squared_error": lambda m: to.losses.mean_pairwise_squared_error(m.x(8, 4), m.w(8, 4)),
    "losses.mean_squared_error": lambda m: to.losses.mean_squared_error(m.x(8, 4), m.w(8, 4), m.x(8, 1, low=0)),
    "losses.sigmoid_cross_entropy": lambda m: to.losses.sigmoid_cross_entropy(
        m.x(8, 4, low=0), m.w(8, 4), label_smoothing=0.1
    ),
    "losses.softmax_cross_entropy": lambda m: to.losses.softmax_cross_entropy(
        to.one_hot(m.ids(8, below=4), 4), m.w(8, 4), label_smoothing=0.1
    ),
    "losses.sparse_softmax_cross_entropy": lambda m: to.losses.sparse_softmax_cross_entropy(
        m.ids(8, below=4), m.w(8, 4)
    ),
    # ---------------------------------------------------------------------------------------------------- tf.image
    "image.adjust_brightness": lambda m: to.image.adjust_brightness(m.w(4, 6, 6, 3), 0.1),
    "image.adjust_contrast": lambda m: to.image.adjust_contrast(m.x(4, 6, 6, 3), 0.5) * m.w(4, 6, 6, 3),
    "image.adjust_hue": lambda m: to.image.adjust_hue(m.x(4, 6, 6, 3, low=0), 0.1) * m.w(4, 6, 6, 3),
    "image.adjust_saturation": lambda m: to.image.adjust_saturation(m.x(4, 6, 6, 3, low=0), 0.5) * m.w(4, 6, 6, 3),
    "image.central_crop": lambda m: to.image.central_crop(m.w(4, 8, 8, 4), 0.5),
    "image.crop_and_resize": lambda m: to.image.crop_and_resize(
        m.w(4, 6, 6, 2), m.constant(np.full((4, 4), [0.1, 0.1, 0.8, 0.9], np.float32)), m.ids(4, below=4), [3, 3]
    ),
    "image.extract_patches": lambda m: to.image.extract_patches(
        m.w(4, 6, 6, 2), [1, 2, 2, 1], [1, 2, 2, 1], [1, 1, 1, 1], "VALID"
    ),
    "image.flip_left_right": lambda m: to.image.flip_left_right(m.w(4, 6, 6, 2)),
    "image.image_gradients": lambda m: to.stack(to.image.image_gradients(m.w(4, 6, 6, 2))),
    "image.pad_to_bounding_box": lambda m: to.image.pad_to_bounding_box(m.w(4, 6, 6, 2), 1, 1, 8, 8),
    "image.per_image_standardization": lambda m: to.image.per_image_standardization(m.w(4, 6, 6, 2)),
    "image.resize_bilinear": lambda m: to.image.resize_bilinear(m.w(4, 6, 6, 2), [8, 8]),
    "image.resize_nearest_neighbor": lambda m: to.image.resize_nearest_neighbor(m.w(4, 6, 6, 2), [12, 12]),
    "image.rgb_to_grayscale": lambda m: to.image.rgb_to_grayscale(m.w(4, 6, 6, 3)),
    "image.sobel_edges": lambda m: to.image.sobel_edges(m.w(4, 6, 6, 2)),
    "image.ssim": lambda m: to.image.ssim(m.w(4, 12, 12, 2, low=0), m.x(4, 12, 12, 2, low=0), 1.0),
    "image.total_variation": lambda m: to.image.total_variation(m.w(4, 6, 6, 2)),
    # --------------------------------------------------------------------------------------------------- tf.layers
    "layers.average_pooling1d": lambda m: to.layers.average_pooling1d(m.w(8, 6, 4), 2, 2),
    "layers.average_pooling3d": lambda m: to.layers.average_pooling3d(m.w(4, 4, 4, 4, 2), 2, 2),
    "layers.batch_normalization": lambda m: to.layers.batch_normalization(m.w(8, 4, 4, 4), training=True),
    "layers.batch_normalization by a flag": lambda m: to.layers.batch_normalization(
        m.w(8, 4), training=m.constant(True), momentum=0.8
    ),
    "layers.conv1d": lambda m: to.layers.conv1d(m.x(8, 6, 4), 4, 3, padding="causal"),
    "layers.conv2d": lambda m: to.layers.conv2d(
        m.x(8, 6, 6, 4), 4, 3, kernel_regularizer=to.nn.l2_loss, activation=to.nn.relu
    ),
    "layers.conv2d_transpose": lambda m: to.layers.conv2d_transpose(m.x(8, 4, 4, 4), 4, 3, 2, padding="same"),
    "layers.conv3d": lambda m: to.layers.conv3d(m.x(8, 4, 4, 4, 2), 4, 2),
    "layers.conv3d_transpose": lambda m: to.layers.conv3d_transpose(m.x(4, 2, 2, 2, 2), 4, 2, 2),
    "layers.dense": lambda m: to.layers.dense(
        m.x(8, 2, 4), 6, kernel_constraint=lambda kernel: to.clip_by_norm(kernel, 0.5, axes=[0])
    ),
    "layers.dropout by a flag": lambda m: to.layers.dropout(m.w(8, 4), 0.3, training=m.constant(True)),
    "layers.embedding": lambda m: to.layers.embedding(m.ids(8, 3, below=12), 12, 4),
    "layers.flatten": lambda m: to.layers.flatten(m.w(8, 2, 4)),
    "layers.max_pooling2d": lambda m: to.layers.max_pooling2d(m.w(8, 6, 6, 4), 2, 2),
    "layers.separable_conv1d": lambda m: to.layers.separable_conv1d(m.x(8, 6, 4), 4, 3),
    "layers.separable_conv2d": lambda m: to.layers.separable_conv2d(m.x(8, 6, 6, 4), 4, 3, depth_multiplier=2),
}
#: What is refused, by what the error says.
REFUSED = {
    "function.Defun with a gradient": r"function.Defun\) with a gradient of its own.*Use tensoropt.custom_gradient",
}
_TRAINED = [name for name in OPS if name not in REFUSED]
GROUPS = [_TRAINED[first : first + _AT_A_TIME] for first in range(0, len(_TRAINED), _AT_A_TIME)]


def build_models(names: Sequence[str], seed: int = 0) -> RandomModel:
    """Builds the models of those names side by side in a fresh private graph, trained in one step."""
    reset_default_graph()
    to.set_random_seed(seed + 1)
    random = np.random.default_rng(seed)
    feeds: dict[str, np.ndarray] = {}
    losses = []
    for name in names:
        with to.variable_scope(name.replace(".", "_").replace(" ", "_")):
            made = OPS[name](Maker(random, feeds))
            if not made.dtype.is_floating:
                made = to.cast(made, to.float32) * to.get_variable("scale", [], initializer=to.ones_initializer())
            weights = to.constant(random.uniform(0.5, 1.0, made.shape.as_list()).astype(np.float32))
            losses.append(to.reduce_mean(made * weights, name="loss"))
    total = to.add_n([*losses, *to.losses.get_regularization_losses()])
    with to.control_dependencies(to.get_collection(to.GraphKeys.UPDATE_OPS)):
        train = to.train.GradientDescentOptimizer(0.1).minimize(total)
    states = tuple(variable.op.name for variable in to.global_variables())
    leave_graph()
    turn = Turn(train.name, tuple(loss.name for loss in losses))
    return RandomModel(seed, "float32", (turn,), states, (feeds,))


def build_group(number: int) -> RandomModel:
    """Builds the models of a group."""
    return build_models(GROUPS[number], number)
