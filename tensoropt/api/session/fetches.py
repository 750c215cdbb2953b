"""Nests of fetches and feeds as TensorFlow takes them, and results in the same nests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework.indexed_slices import IndexedSlicesValue

from tensoropt.api.mirror.model import Model
from tensoropt.api.session.naming import tensor_name
from tensoropt.errors import FeedError
from tensoropt.graph.registry import traits

__all__ = ["flat_feeds", "nested_fetches", "note_parts"]

_Build = Callable[[Sequence[Any]], Any]


def nested_fetches(fetches: Any) -> tuple[list[Any], _Build]:
    """Returns the flat list of fetches, and the function that puts their values back into the nest.

    Lists, tuples, named tuples, dicts (with any keys) and classes of ``attrs`` may be nested. Sparse and ragged tensors
    and rows give TensorFlow's values of them. Any other object (None, too) counts as a fetch.
    """
    found: list[Any] = []
    return found, _add(fetches, found)


def flat_feeds(feed_dict: Mapping[Any, Any] | None) -> list[tuple[Any, Any]]:
    """Feeds tensor by tensor: of tuples of them (such as states of cells), sparse and ragged ones and rows their parts.

    Raises:
        FeedError: what is fed has not the parts that are wanted.
    """
    found: list[tuple[Any, Any]] = []
    pending = list((feed_dict or {}).items())
    while pending:
        key, value = pending.pop(0)
        if isinstance(key, tf.SparseTensor):
            parts = [key.indices, key.values, key.dense_shape]
        elif isinstance(key, tf.IndexedSlices):
            parts = [part for part in (key.values, key.indices, key.dense_shape) if part is not None]
        elif isinstance(key, tf.RaggedTensor):
            parts, value = _parts(key), _parts(value) if hasattr(value, "nested_row_splits") else value
        elif isinstance(key, tuple):
            parts = list(key)
        else:
            found.append((key, value))
            continue
        if not isinstance(value, tuple | list | np.ndarray) or len(value) != len(parts):
            given = f"{len(value)}" if isinstance(value, tuple | list | np.ndarray) else type(value).__name__
            raise FeedError(f"Feed {key!r}: wants {len(parts)} parts, got {given}.")
        for part, given in zip(parts, value, strict=True):
            known = None if isinstance(part, tuple) or not hasattr(part, "op") else _constant_of(part)
            if known is None:
                pending.append((part, given))
            elif not np.array_equal(known, given):
                raise FeedError(
                    f"Feed '{part.name}': is {known.tolist()} in the model, got {np.asarray(given).tolist()}."
                )
    return found


def note_parts(model: Model, feed_dict: Mapping[Any, Any] | None) -> None:
    """Notes placeholders of sparse and ragged tensors and of rows that are fed, none of which has a sample a row.

    Raises:
        FeedError: as :func:`flat_feeds`.
    """
    kinds = tf.SparseTensor, tf.IndexedSlices, tf.RaggedTensor
    composite = {key: value for key, value in (feed_dict or {}).items() if isinstance(key, kinds)}
    model.parts.update(tensor_name(part).partition(":")[0] for part, _ in flat_feeds(composite))


def _parts(ragged: Any) -> list[Any]:
    """The tensors or arrays that a ragged tensor, or the value of one, is made of."""
    return [ragged.flat_values, *ragged.nested_row_splits]


def _constant_of(tensor: Any) -> Any:
    """Returns the constant value of a part of a sparse tensor, such as a given shape; None if it is not constant."""
    return tf.get_static_value(tensor) if traits(tensor.op).is_constant else None


def _add(fetch: Any, found: list[Any]) -> _Build:
    """Adds the fetches in a nest to those that were found, and returns what builds the nest of all values."""
    kind = type(fetch)
    if isinstance(fetch, list | tuple):
        parts = [_add(each, found) for each in fetch]
        make = list if isinstance(fetch, list) else getattr(kind, "_make", kind)
        return lambda values: make([part(values) for part in parts])
    if isinstance(fetch, Mapping):
        by_key = {key: _add(fetch[key], found) for key in _in_one_order(fetch)}

        def build(values: Sequence[Any]) -> Any:
            made: Any = kind(fetch.default_factory) if isinstance(fetch, defaultdict) else kind()
            for key in fetch:
                made[key] = by_key[key](values)
            return made

        return build
    if hasattr(kind, "__attrs_attrs__"):
        fields = [_add(getattr(fetch, field.name), found) for field in kind.__attrs_attrs__]
        return lambda values: kind(*(field(values) for field in fields))
    if isinstance(fetch, tf.SparseTensor):
        sparse = _add((fetch.indices, fetch.values, fetch.dense_shape), found)
        return lambda values: tf.compat.v1.SparseTensorValue(*sparse(values))
    if isinstance(fetch, tf.RaggedTensor):
        ragged = _add(_parts(fetch), found)

        def nested(values: Sequence[Any]) -> Any:
            made, *splits = ragged(values)
            for each in reversed(splits):
                made = tf.compat.v1.ragged.RaggedTensorValue(made, each)
            return made

        return nested
    if isinstance(fetch, tf.IndexedSlices):
        shape = fetch.dense_shape
        rows = _add((fetch.values, fetch.indices, *(() if shape is None else (shape,))), found)
        return lambda values: IndexedSlicesValue(*rows(values), *(() if shape is not None else (None,)))
    place = len(found)
    found.append(fetch)
    return lambda values: values[place]


def _in_one_order(fetches: Mapping[Any, Any]) -> list[Any]:
    """The keys in an order that all ranks share, where they have one of their own."""
    try:
        return sorted(fetches)
    except TypeError:
        return list(fetches)
