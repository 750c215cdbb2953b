"""Nests of fetches as TensorFlow takes them, and results in the same nests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf
from tensorflow.python.framework.indexed_slices import IndexedSlicesValue

__all__ = ["nested_fetches"]

_Build = Callable[[Sequence[Any]], Any]


def nested_fetches(fetches: Any) -> tuple[list[Any], _Build]:
    """What is fetched, one by one, and what puts the values of these into the nest that they came in.

    Lists, tuples, named tuples, dicts (with any keys) and classes of ``attrs`` may be nested. Of sparse tensors and of
    rows come TensorFlow's values of these. Whatever else there is (None, too) counts as something to fetch.
    """
    found: list[Any] = []
    return found, _add(fetches, found)


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
