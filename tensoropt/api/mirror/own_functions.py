"""Functions of TensorFlow that are made of other ops here: of its ops devices could not follow or split some."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import current_model
from tensoropt.errors import GraphError

__all__ = [
    "embedding_lookup_sparse",
    "nce_loss",
    "piecewise_constant",
    "piecewise_constant_decay",
    "sampled_softmax_loss",
    "silu",
    "softmax_cross_entropy",
    "swish",
]


def silu(features: Any, beta: Any = 1.0) -> Any:
    """``features * sigmoid(beta * features)``, with TensorFlow's signature and values.

    TensorFlow's own keeps less for the backward pass by a custom gradient; here the product keeps both factors.

    Args:
        features: a floating-point tensor.
        beta: scalar.
    """
    with current_model().enter():
        features = tf.convert_to_tensor(features, name="features")
        scale = tf.cast(tf.convert_to_tensor(beta, name="beta"), features.dtype)
        return features * tf.sigmoid(scale * features)


swish = silu


_COMBINERS = ("mean", "sqrtn", "sum")


def embedding_lookup_sparse(
    params: Any,
    sp_ids: Any,
    sp_weights: Any,
    partition_strategy: str = "mod",
    name: str | None = None,
    combiner: str | None = None,
    max_norm: float | None = None,
    allow_fast_lookup: bool = False,
) -> Any:
    """``tf.nn.embedding_lookup_sparse``: for each row of ids, their rows of a table, combined.

    Args:
        params: the table, ``(vocabulary, ...)``.
        sp_ids: a ``SparseTensor`` of ids with two dimensions; where there are as many in each run, devices share them.
        sp_weights: a ``SparseTensor`` with a weight for each id, or None.
        partition_strategy: where ``params`` is a list.
        name: of the ops' scope.
        combiner: ``mean`` (default), ``sqrtn`` or ``sum``.
        max_norm: what rows of the table are shortened to.
        allow_fast_lookup: as in TensorFlow where the number of ids varies, else without effect.

    Returns:
        ``(rows of sp_ids, ...)``; zeros for a row without ids.

    Raises:
        GraphError: for ids that are no ``SparseTensor``, or an unknown combiner.
    """
    with current_model().enter(), tf.name_scope(name or "embedding_lookup_sparse") as scope:
        combiner = combiner or "mean"
        if combiner not in _COMBINERS:
            raise GraphError(f"'{scope}': combiner must be one of {', '.join(_COMBINERS)}. Got {combiner!r}.")
        for each in (sp_ids, sp_weights):
            if each is not None and not isinstance(each, tf.SparseTensor):
                raise GraphError(f"'{scope}': ids and weights must be SparseTensors. Got {type(each).__name__}.")
        if not sp_ids.values.shape.is_fully_defined():
            return tf.compat.v1.nn.embedding_lookup_sparse(
                params, sp_ids, sp_weights, partition_strategy, scope, combiner, max_norm, allow_fast_lookup
            )
        segments, count = sp_ids.indices[:, 0], sp_ids.dense_shape[0]
        rows = tf.compat.v1.nn.embedding_lookup(
            params, sp_ids.values, partition_strategy=partition_strategy, max_norm=max_norm
        )
        given = rows.dtype
        if given in (tf.float16, tf.bfloat16):
            rows = tf.cast(rows, tf.float32)

        def added(values: Any) -> Any:
            return tf.math.unsorted_segment_sum(values, segments, count)

        weights = tf.ones_like(segments, rows.dtype) if sp_weights is None else tf.cast(sp_weights.values, rows.dtype)
        column = tf.reshape(weights, [-1] + [1] * (rows.shape.rank - 1))
        total = added(rows if sp_weights is None else rows * column)
        if combiner == "sum":
            return tf.cast(total, given)
        scale = added(column) if combiner == "mean" else tf.sqrt(added(tf.square(column)))
        return tf.cast(tf.math.divide_no_nan(total, scale), given)


def softmax_cross_entropy(labels: Any, logits: Any, name: str | None = None) -> Any:
    """Mean softmax cross-entropy over all examples (TensorOpt, Listing 1).

    No gradient flows into the labels. 16-bit logits are raised to float32 for the computation.

    Args:
        labels: Either the logits' shape, one-hot or any probabilities; or integer class ids of one dimension
            less.
        logits: Unscaled scores, floating point, at least 2 dimensions, classes last.
        name: Name scope of the ops made; default ``softmax_cross_entropy``.

    Returns:
        A scalar of the logits' dtype.

    Raises:
        GraphError: If the shapes or dtypes do not fit.
    """
    with current_model().enter(), tf.name_scope(name or "softmax_cross_entropy") as scope:
        logits = tf.convert_to_tensor(logits, name="logits")
        labels = tf.convert_to_tensor(labels, name="labels")
        _check(labels, logits, scope)
        dtype = logits.dtype
        precise = tf.cast(logits, tf.float32) if dtype in (tf.float16, tf.bfloat16) else logits
        classes = logits.shape.as_list()[-1]
        flat = precise if precise.shape.rank == 2 else tf.reshape(precise, [-1, classes])
        if labels.shape.rank == logits.shape.rank:
            targets = tf.cast(tf.stop_gradient(labels), flat.dtype)
            targets = targets if targets.shape.rank == 2 else tf.reshape(targets, [-1, classes])
            losses, _ = tf.raw_ops.SoftmaxCrossEntropyWithLogits(features=flat, labels=targets)
        else:
            ids = labels if labels.dtype in (tf.int32, tf.int64) else tf.cast(labels, tf.int64)
            ids = ids if ids.shape.rank == 1 else tf.reshape(ids, [-1])
            losses, _ = tf.raw_ops.SparseSoftmaxCrossEntropyWithLogits(features=flat, labels=ids)
        return tf.cast(tf.reduce_mean(losses), dtype)


def _check(labels: Any, logits: Any, scope: str) -> None:
    subject = f"softmax_cross_entropy {scope.rstrip('/')!r}"
    got = f"Got labels {labels.dtype.name}{labels.shape}, logits {logits.dtype.name}{logits.shape}."
    rank = logits.shape.rank
    if not logits.dtype.is_floating:
        raise GraphError(f"{subject}: logits must be floating point. {got} Cast them.")
    if rank is None or rank < 2 or logits.shape.as_list()[-1] is None:
        raise GraphError(
            f"{subject}: logits need 2 or more dimensions and a known number of classes. {got} "
            "Give the placeholder or variable behind them a shape."
        )
    if labels.shape.rank == rank:
        if not labels.shape.is_compatible_with(logits.shape):
            raise GraphError(f"{subject}: labels of the logits' rank must have the logits' shape. {got}")
    elif labels.shape.rank == rank - 1 and labels.dtype.is_integer:
        if not labels.shape.is_compatible_with(logits.shape[:-1]):
            raise GraphError(f"{subject}: class ids must have the logits' shape without its last dimension. {got}")
    else:
        raise GraphError(
            f"{subject}: labels must be probabilities of the logits' shape, or integer class ids of one "
            "dimension "
            f"less. {got}"
        )


def nce_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = False,
    partition_strategy: str = "mod",
    name: str = "nce_loss",
) -> Any:
    """``tf.nn.nce_loss``: noise-contrastive estimation, with TensorFlow's signature, draws and values.

    Args:
        weights: ``(num_classes, dim)``.
        biases: ``(num_classes,)``.
        labels: ``(batch, num_true)`` classes.
        inputs: ``(batch, dim)``.
        num_sampled: how many classes are drawn for a batch.
        num_classes: how many there are.
        num_true: how many each example has.
        sampled_values: what a candidate sampler gave; by default of ``log_uniform_candidate_sampler``.
        remove_accidental_hits: whether a class that was drawn and is an example's own counts for nothing there.
        partition_strategy: where ``weights`` are a list.
        name: of the ops' scope.

    Returns:
        ``(batch,)``.
    """
    with current_model().enter():
        logits, targets = _sampled_logits(
            weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
            remove_accidental_hits, partition_strategy, name, None,
        )  # fmt: skip
        losses = tf.nn.sigmoid_cross_entropy_with_logits(labels=targets, logits=logits, name="sampled_losses")
        return tf.reduce_sum(losses, 1)


def sampled_softmax_loss(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int = 1,
    sampled_values: Any = None,
    remove_accidental_hits: bool = True,
    partition_strategy: str = "mod",
    name: str = "sampled_softmax_loss",
    seed: int | None = None,
) -> Any:
    """``tf.nn.sampled_softmax_loss``: softmax cross-entropy among sampled classes.

    Args and result are those of :func:`nce_loss`; ``seed`` is the sampler's.
    """
    with current_model().enter():
        logits, targets = _sampled_logits(
            weights, biases, labels, inputs, num_sampled, num_classes, num_true, sampled_values,
            remove_accidental_hits, partition_strategy, name, seed,
        )  # fmt: skip
        targets = tf.stop_gradient(targets, name="labels_stop_gradient")
        return tf.nn.softmax_cross_entropy_with_logits(labels=targets, logits=logits)


def _sampled_logits(
    weights: Any,
    biases: Any,
    labels: Any,
    inputs: Any,
    num_sampled: int,
    num_classes: int,
    num_true: int,
    sampled_values: Any,
    remove_accidental_hits: bool,
    partition_strategy: str,
    name: str,
    seed: int | None,
) -> tuple[Any, Any]:
    """Scores of the true and of the sampled classes less the logarithms of how often they are drawn; the targets.

    Both are ``(batch, num_true + num_sampled)``.
    """
    with tf.name_scope(name):
        inputs = tf.convert_to_tensor(inputs)
        labels = tf.cast(tf.convert_to_tensor(labels), tf.int64)
        flat = tf.reshape(labels, [-1])
        may_repeat = sampled_values is not None
        if sampled_values is None:
            sampled_values = tf.random.log_uniform_candidate_sampler(
                labels, num_true, num_sampled, True, num_classes, seed=seed
            )
        drawn, true_count, drawn_count = (tf.stop_gradient(each) for each in sampled_values)
        drawn = tf.cast(drawn, tf.int64)
        # One lookup, so that rows of the gradient are those of TensorFlow.
        ids = tf.concat([flat, drawn], 0)
        sizes = [tf.size(flat), num_sampled]
        lookup = tf.compat.v1.nn.embedding_lookup
        rows = tf.cast(lookup(weights, ids, partition_strategy=partition_strategy), inputs.dtype)
        shifts = tf.cast(lookup(biases, ids, partition_strategy=partition_strategy), inputs.dtype)
        true_rows, drawn_rows = tf.split(rows, sizes)
        true_shifts, drawn_shifts = tf.split(shifts, sizes)
        width = inputs.shape.as_list()[-1]
        products = inputs[:, tf.newaxis, :] * tf.reshape(true_rows, [-1, num_true, width])
        true_logits = tf.reduce_sum(products, 2) + tf.reshape(true_shifts, [-1, num_true])
        logits = tf.matmul(inputs, drawn_rows, transpose_b=True) + drawn_shifts
        if remove_accidental_hits:
            is_hit = tf.reduce_any(tf.equal(labels[:, :, tf.newaxis], drawn), 1)
            if may_repeat:
                is_hit &= _is_last(drawn)
            logits += tf.where(is_hit, tf.constant(inputs.dtype.min, inputs.dtype), tf.zeros([], inputs.dtype))
        true_logits -= tf.math.log(true_count)
        logits -= tf.math.log(drawn_count)
        targets = [tf.ones_like(true_logits) / num_true, tf.zeros_like(logits)]
        return tf.concat([true_logits, logits], 1), tf.concat(targets, 1)


def _is_last(classes: Any) -> Any:
    """Whether no later one of some classes is the same: TensorFlow removes accidental hits of the last alone."""
    count = int(classes.shape[0])
    numbers, (_, place) = tf.range(count), tf.unique(classes)
    return tf.equal(tf.gather(tf.math.unsorted_segment_max(numbers, place, count), place), numbers)


def piecewise_constant(x: Any, boundaries: Sequence[Any], values: Sequence[Any], name: str | None = None) -> Any:
    """``values[0]`` up to and with ``boundaries[0]``, then ``values[1]`` up to and with ``boundaries[1]``, and so on.

    TensorFlow's signature and values; all of ``values`` are there, and one is gathered.

    Args:
        x: scalar, such as the global step.
        boundaries: ascending, of ``x``'s dtype; int32 will do for an int64 ``x``.
        values: one more than boundaries, all of one dtype.
        name: name scope of the ops made; default ``PiecewiseConstant``.

    Returns:
        A scalar of the values' dtype.

    Raises:
        GraphError: If lengths or dtypes do not fit.
    """
    with current_model().enter(), tf.name_scope(name or "PiecewiseConstant") as scope:
        subject = f"piecewise_constant {scope.rstrip('/')!r}"
        if len(values) != len(boundaries) + 1:
            raise GraphError(
                f"{subject}: needs one more value than boundaries, got {len(values)} values and {len(boundaries)} "
                "boundaries. Give a value for what lies before the first one, too."
            )
        at = tf.convert_to_tensor(x, name="x")
        steps = [tf.convert_to_tensor(boundary) for boundary in boundaries]
        rates = [tf.convert_to_tensor(value) for value in values]
        for step in steps:
            if step.dtype != at.dtype and (step.dtype, at.dtype) != (tf.int32, tf.int64):
                raise GraphError(
                    f"{subject}: boundaries must have the dtype of x, {at.dtype.name}, got {step.dtype.name}. Cast one."
                )
        dtype = rates[0].dtype
        for rate in rates:
            if rate.dtype != dtype:
                raise GraphError(
                    f"{subject}: values must have one dtype, got {dtype.name} and {rate.dtype.name}. Cast one."
                )
        passed = [tf.cast(at > tf.cast(step, at.dtype), tf.int32) for step in steps]
        return tf.gather(tf.stack(rates), tf.add_n(passed) if passed else 0)


piecewise_constant_decay = piecewise_constant
