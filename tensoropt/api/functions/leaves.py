"""Leaves of a step's arguments: tensors and composites of them, which are fed, and all else, which a trace is made for.

A ragged or sparse tensor is fed by its components, whose sizes are another batch's tomorrow. What goes by the rows of a
batch is fed as it is. What goes by how many values a batch holds is fed at the front of an array of the next round
size, of which the step takes what counts: so a few programs serve all batches.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import Any
from weakref import ref

import numpy as np
import tensorflow as tf

__all__ = ["arrays_of", "assembled", "form_of", "is_composite", "leaf_of", "opened", "parts_of", "spec_of"]

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_LEAST_CAPACITY = 16


def leaf_of(value: Any) -> Any:
    """A leaf as the step sees it: arrays of other libraries as NumPy's, SciPy's sparse matrices as TensorFlow's."""
    if isinstance(value, (np.ndarray, np.generic, tf.Tensor, *_PLAIN)) or _is_variable(value):
        return value
    if hasattr(value, "tocoo") and hasattr(value, "shape"):
        rows = value.tocoo()
        indices = np.stack([np.asarray(each, np.int64) for each in (rows.row, rows.col)], axis=1)
        return tf.sparse.reorder(tf.SparseTensor(indices, rows.data, rows.shape))
    if hasattr(value, "__array__") and hasattr(value, "shape") and not is_composite(value):
        return np.asarray(value)
    return value


def is_composite(value: Any) -> bool:
    """Tells whether a value, or the spec of one, is composite: a ragged or sparse tensor, or an extension type."""
    if isinstance(value, tf.TypeSpec):
        return not isinstance(value, tf.TensorSpec)
    # TensorFlow calls variables composite, too.
    return isinstance(value, tf.__internal__.CompositeTensor) and not _is_variable(value)


def spec_of(value: Any) -> Any:
    """The ``tf.TypeSpec`` of a leaf that is fed, with all sizes that it has; None of any other."""
    if isinstance(value, tf.TypeSpec):
        return value
    if is_composite(value):
        return tf.type_spec_from_value(value)
    if isinstance(value, tf.Tensor | np.ndarray | np.generic):
        return tf.TensorSpec(np.shape(value), tf.as_dtype(value.dtype))
    return None


def opened(spec: Any, rows: Callable[[int | None], int | None] = lambda size: None) -> Any:
    """A spec with other first dimensions, by default open ones; of composites those of its parts, too."""
    if isinstance(spec, tf.TensorShape):
        return tf.TensorShape([rows(spec[0]), *spec[1:]]) if spec.rank else spec
    if isinstance(spec, tf.TensorSpec):
        return tf.TensorSpec(opened(spec.shape, rows), spec.dtype)
    if isinstance(spec, tf.TypeSpec):
        return type(spec)._deserialize(opened(spec._serialize(), rows))
    if isinstance(spec, tuple | list):
        return type(spec)(opened(each, rows) for each in spec)
    if isinstance(spec, dict):
        return type(spec)((key, opened(each, rows)) for key, each in spec.items())
    return spec


def parts_of(spec: Any) -> list[Any]:
    """``tf.TensorSpec`` of what is fed for a leaf of a spec."""
    if isinstance(spec, tf.TensorSpec):
        return [spec]
    if _is_sparse(spec):
        rows = [tf.TensorSpec([spec.shape[0]], tf.bool), tf.TensorSpec([], tf.int64)]
        return [*rows, tf.TensorSpec([None, spec.shape.rank], tf.int64), tf.TensorSpec([None], spec.dtype)]
    if _is_ragged(spec):
        size, kind = spec.shape[0], spec.row_splits_dtype
        outer = tf.TensorSpec([None if size is None else size + 1], kind)
        inner = [tf.TensorSpec([None], kind)] * (spec.ragged_rank - 1)
        return [outer, *inner, tf.TensorSpec([None, *spec.shape[spec.ragged_rank + 1 :]], spec.dtype)]
    return [part for each in tf.nest.flatten(spec._component_specs) for part in parts_of(each)]


def arrays_of(value: Any, spec: Any) -> list[np.ndarray]:
    """Returns the arrays to feed for a leaf of a spec: one for each of :func:`parts_of`."""
    if isinstance(spec, tf.TensorSpec):
        return [np.asarray(value.numpy() if hasattr(value, "numpy") else value)]
    if _is_sparse(spec):
        indices, values = value.indices.numpy(), value.values.numpy()
        count = np.asarray(len(values), np.int64)
        return [np.zeros(value.shape[0], np.bool_), count, _padded(indices), _padded(values)]
    if _is_ragged(spec):
        outer, *inner = (splits.numpy() for splits in value.nested_row_splits)
        return [outer, *map(_padded, inner), _padded(value.flat_values.numpy())]
    specs, components = (tf.nest.flatten(each) for each in (spec._component_specs, spec._to_components(value)))
    return [array for own, each in zip(specs, components, strict=True) for array in arrays_of(each, own)]


def assembled(spec: Any, tensors: Iterator[Any]) -> Any:
    """A leaf of a spec, in a trace, from the tensors for its parts."""
    if isinstance(spec, tf.TensorSpec):
        return next(tensors)
    if _is_sparse(spec):
        rows, count, indices, values = (next(tensors) for _ in range(4))
        # The number of rows is a size: known, wherever sizes are.
        dense = tf.concat([tf.shape(rows, out_type=tf.int64), tf.constant(spec.shape[1:].as_list(), tf.int64)], 0)
        return spec._from_components([indices[:count], values[:count], dense])
    if _is_ragged(spec):
        splits = [next(tensors)]
        for _ in range(spec.ragged_rank - 1):
            splits.append(next(tensors)[: splits[-1][-1] + 1])
        return tf.RaggedTensor.from_nested_row_splits(next(tensors)[: splits[-1][-1]], splits, validate=False)
    components = [assembled(each, tensors) for each in tf.nest.flatten(spec._component_specs)]
    return spec._from_components(tf.nest.pack_sequence_as(spec._component_specs, components))


def form_of(value: Any) -> Hashable:
    """The form of arguments: by it two calls are alike but for the values of tensors; looked up in each step.

    Nests, with the type and shape of each tensor, all of what is plain, and which object any other is. Forms of nests
    that differ for ``tf.nest`` differ; those that are alike for it mostly are equal.
    """
    kind = type(value)
    if kind is tuple or kind is list:
        return kind, *map(form_of, value)
    if kind is dict:
        return kind, *((key, form_of(each)) for key, each in value.items())
    if isinstance(value, np.ndarray | tf.Tensor) and hasattr(value, "shape"):
        return kind, value.dtype, tuple(value.shape)
    if isinstance(value, _PLAIN):
        return kind, repr(value)
    spec = spec_of(value)
    if spec is not None:
        return kind, spec
    if tf.nest.is_nested(value):
        names = getattr(value, "_fields", None) or (tuple(value) if isinstance(value, dict) else ())
        return kind, names, *map(form_of, tf.nest.flatten(value))
    return _Same(value)


class _Same:
    """Stands for one object, as long as that lives."""

    def __init__(self, value: Any) -> None:
        self._number = id(value)
        try:
            self._value: Callable[[], Any] = ref(value)
        except TypeError:  # there are no weak references to it
            self._value = lambda: value

    def __hash__(self) -> int:
        return self._number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self._value() is not None and self._value() is other._value()


def _is_variable(value: Any) -> bool:
    """Tells whether a value is a variable of TensorFlow's, or Keras's wrapper of one."""
    return isinstance(value, tf.Variable) or isinstance(getattr(value, "value", None), tf.Variable)


def _is_sparse(spec: Any) -> bool:
    return isinstance(spec, tf.SparseTensorSpec) and bool(spec.shape.rank) and spec.shape[1:].is_fully_defined()


def _is_ragged(spec: Any) -> bool:
    flat = getattr(spec, "flat_values_spec", None)
    return isinstance(spec, tf.RaggedTensorSpec) and spec.ragged_rank > 0 and flat is None


def _padded(values: np.ndarray) -> np.ndarray:
    """Values at the front of an array of the next size of 16, 24, 32, 48, 64, 96 and so on."""
    size = _LEAST_CAPACITY
    while size < len(values):
        size = size * 3 // 2 if size & (size - 1) == 0 else size * 4 // 3
    padded = np.zeros((size, *values.shape[1:]), values.dtype)
    padded[: len(values)] = values
    return padded
