"""TensorFlow's lists of tensors (``TensorArray``): with known places they are no tensors at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.api.frontend.rewriting.custom_gradients import gated
from tensoropt.api.frontend.rewriting.rewriter import CannotRewrite, Handler, Rewriter, Scope
from tensoropt.api.frontend.rewriting.values import TensorList, Value, or_zeros, select

__all__ = ["LIST_HANDLERS", "chosen_list", "items_of", "legal_indices", "materialize"]

# A list of more tensors is left to TensorFlow.
_LONGEST = 4096


def items_of(rewriter: Rewriter, value: TensorList, op: Any, scope: Scope) -> tuple[Any, ...]:
    """The tensors of a list; None where none was written."""
    if value.source is None:
        return value.items
    source = value.source
    if source.name not in rewriter.rows:
        rows = rewriter.build(lambda x: tf.unstack(x, num=len(value)), source, of=op, scope=scope, name="rows")
        rewriter.rows[source.name] = tuple(rows)
    return rewriter.rows[source.name]


def materialize(rewriter: Rewriter, op: Any, value: TensorList) -> Any:
    """The list as TensorFlow's own tensor."""
    given = value.map(lambda x: _gated(rewriter, value, x, op, Scope(op.graph)))

    def make() -> Any:
        if given.source is not None:
            return tf.raw_ops.TensorListFromTensor(tensor=given.source, element_shape=_extents(value.shape))
        made = tf.raw_ops.TensorListReserve(
            element_shape=_extents(value.shape), num_elements=len(value), element_dtype=value.dtype
        )
        for index, item in enumerate(given.items):
            if item is not None:
                made = tf.raw_ops.TensorListSetItem(input_handle=made, index=index, item=item)
        return made

    return rewriter.build(make, of=op, scope=Scope(op.graph), name="list")


def chosen_list(
    rewriter: Rewriter, condition: Any, one: TensorList, other: TensorList, op: Any, scope: Scope
) -> TensorList | None:
    """The list of which each tensor is chosen by a condition; None if the two have not the same length."""
    if len(one) != len(other):
        return None
    shared = tuple(a for a, b in zip(one.conditions, other.conditions, strict=False) if a is b)
    if one.source is not None and one.source is other.source:
        return replace(one, conditions=shared)
    own, others = (replace(each, conditions=each.conditions[len(shared) :]) for each in (one, other))
    items = []
    for a, b in zip(items_of(rewriter, one, op, scope), items_of(rewriter, other, op, scope), strict=True):
        if a is b:
            items.append(a)
            continue
        zeros = _zeros(rewriter, b if a is None else a, op)  # what TensorFlow gives where nothing was written
        sides = (
            zeros if a is None else _gated(rewriter, own, a, op, scope),
            zeros if b is None else _gated(rewriter, others, b, op, scope),
        )
        items.append(rewriter.build(select, condition, *sides, of=op, scope=scope, name="choice"))
    return replace(one, items=tuple(items), source=None, conditions=shared)


def _gated(rewriter: Rewriter, value: TensorList, read: Any, op: Any, scope: Scope) -> Any:
    """What was read from a list, with gradients that count under the list's conditions."""
    for condition in value.conditions:
        read = gated(rewriter, read, condition, op, scope)
    return read


def _zeros(rewriter: Rewriter, like: Any, op: Any) -> Any:
    return rewriter.constant(np.zeros(like.shape.as_list(), like.dtype.as_numpy_dtype), op)


def _extents(shape: Any) -> Any:
    if shape.rank is None:
        return tf.constant(-1)
    return tf.constant([-1 if size is None else size for size in shape.as_list()], tf.int32)


def _shape(rewriter: Rewriter, value: Any) -> Any:
    extents = rewriter.known.value(value)
    if extents is None or extents.ndim == 0:
        return tf.TensorShape(None)
    return tf.TensorShape([None if size < 0 else int(size) for size in extents])


def _dtype(op: Any) -> Any:
    return tf.as_dtype(op.get_attr("element_dtype"))


def _number(rewriter: Rewriter, value: Any) -> int | None:
    found = rewriter.known.value(value)
    return None if found is None or found.ndim else int(found)


def _operands(op: Any, scope: Scope) -> list[Value]:
    return [scope.value(x) for x in op.inputs]


def _reserve(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    shape, count = _operands(op, scope)
    number = _number(rewriter, count)
    if number is None or not 0 <= number <= _LONGEST:
        return None
    return [TensorList(_dtype(op), _shape(rewriter, shape), (None,) * number)]


def _empty(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    return [TensorList(_dtype(op), _shape(rewriter, _operands(op, scope)[0]))]


def _from_tensor(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    tensor = _operands(op, scope)[0]
    shape = tensor.shape
    if shape.rank is None or shape[0] is None or shape[0] > _LONGEST:
        return None
    return [TensorList(_dtype(op), shape[1:], (), tensor)]


def _get(
    rewriter: Rewriter, op: Any, scope: Scope, value: TensorList, index: Value, shape: Value
) -> Sequence[Value] | None:
    place = _number(rewriter, index)
    items = items_of(rewriter, value, op, scope)
    if place is None:
        if not items or any(item is None for item in items):
            return None
        everything = _stacked(rewriter, value, op, scope)
        index = legal_indices(rewriter, index, op, scope)
        return [rewriter.build(tf.gather, everything, index, of=op, scope=scope, name="item")]
    if not 0 <= place < len(items):
        return [_nothing(rewriter, value, shape, op)] if scope.guard is not None else None
    return [_nothing(rewriter, value, shape, op) if items[place] is None else items[place]]


def _nothing(rewriter: Rewriter, value: TensorList, shape: Any, op: Any) -> Any:
    """The zeros that TensorFlow gives for an element that was not written."""
    extents = value.shape.merge_with(_shape(rewriter, shape))
    for item in value.items:
        extents = extents if item is None else extents.merge_with(item.shape)
    return rewriter.constant(np.zeros(extents.as_list(), value.dtype.as_numpy_dtype), op)


def _set(
    rewriter: Rewriter, op: Any, scope: Scope, value: TensorList, index: Value, item: Value
) -> Sequence[Value] | None:
    place = _number(rewriter, index)
    if place is None or place < 0:
        return None
    items = list(items_of(rewriter, value, op, scope))
    if place >= len(items):
        grows = op.get_attr("resize_if_index_out_of_bounds")
        if scope.guard is not None and grows:
            raise CannotRewrite("how long a list gets depends on data")
        if scope.guard is not None:
            return [value]
        if not grows:
            return None
        items += [None] * (place + 1 - len(items))
    items[place] = item
    return [value.with_items(items)]


def _push(rewriter: Rewriter, op: Any, scope: Scope, value: TensorList, item: Value) -> Sequence[Value] | None:
    return [value.with_items((*items_of(rewriter, value, op, scope), item))]


def _pop(rewriter: Rewriter, op: Any, scope: Scope, value: TensorList, shape: Value) -> Sequence[Value] | None:
    if not len(value):
        return None
    *items, last = items_of(rewriter, value, op, scope)
    return [value.with_items(items), _nothing(rewriter, value, shape, op) if last is None else last]


def _length(rewriter: Rewriter, op: Any, scope: Scope, value: TensorList) -> Sequence[Value] | None:
    return [rewriter.constant(np.int32(len(value)), op)]


def _element_shape(rewriter: Rewriter, op: Any, scope: Scope, value: TensorList) -> Sequence[Value] | None:
    extents = -1 if value.shape.rank is None else [-1 if size is None else size for size in value.shape.as_list()]
    return [rewriter.constant(np.asarray(extents, tf.as_dtype(op.get_attr("shape_type")).as_numpy_dtype), op)]


def _resize(rewriter: Rewriter, op: Any, scope: Scope, value: TensorList, size: Value) -> Sequence[Value] | None:
    number = _number(rewriter, size)
    if number is None:
        return None
    items = items_of(rewriter, value, op, scope)[:number]
    return [value.with_items((*items, *(None,) * (number - len(items))))]


def _stacked(rewriter: Rewriter, value: TensorList, op: Any, scope: Scope, shape: Any = None) -> Any:
    if value.source is not None:
        return value.source
    given = value.shape if shape is None else value.shape.merge_with(_shape(rewriter, shape))
    for item in value.items:
        given = given if item is None else given.merge_with(item.shape)
    zeros = None
    if any(item is None for item in value.items) or not value.items:
        if not given.is_fully_defined():
            return None
        if not value.items:
            return rewriter.constant(np.zeros([0, *given.as_list()], value.dtype.as_numpy_dtype), op)
        zeros = rewriter.constant(np.zeros(given.as_list(), value.dtype.as_numpy_dtype), op)
    items = [zeros if item is None else item for item in value.items]
    return rewriter.build(lambda *x: tf.stack(list(x)), *items, of=op, scope=scope, name="stack")


def _stack(rewriter: Rewriter, op: Any, scope: Scope, value: TensorList, shape: Value) -> Sequence[Value] | None:
    made = _stacked(rewriter, value, op, scope, shape)
    return None if made is None else [made]


def _gather(
    rewriter: Rewriter, op: Any, scope: Scope, value: TensorList, indices: Value, shape: Value
) -> Sequence[Value] | None:
    places = rewriter.known.value(indices)
    if places is not None:
        items = items_of(rewriter, value, op, scope)
        if any(not 0 <= place < len(items) for place in places):
            return None
        if places.tolist() != list(range(len(items))):
            value = value.with_items([items[place] for place in places])
        made = _stacked(rewriter, value, op, scope, shape)
        return None if made is None else [made]
    made = _stacked(rewriter, value, op, scope, shape)
    if made is None:
        return None
    indices = legal_indices(rewriter, indices, op, scope)
    return [rewriter.build(tf.gather, made, indices, of=op, scope=scope, name="items")]


def legal_indices(rewriter: Rewriter, indices: Any, op: Any, scope: Scope) -> Any:
    """Indices, or the first one where a branch is not taken."""
    if scope.guard is None:
        return indices
    return rewriter.build(or_zeros, scope.guard, indices, of=op, scope=scope, name="index")


def _scatter(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    tensor, indices, _, *rest = _operands(op, scope)
    places = rewriter.known.value(indices)
    size = _number(rewriter, rest[0]) if rest else -1
    if places is None or size is None or len(places) > _LONGEST or any(place < 0 for place in places):
        return None
    whole = TensorList(_dtype(op), tensor.shape[1:], (), tensor)
    count = size if size >= 0 else int(max(places, default=-1)) + 1
    if places.tolist() == list(range(count)) and tensor.shape[0] == count:
        return [whole]
    items: list[Any] = [None] * count
    for place, item in zip(places, items_of(rewriter, whole, op, scope), strict=True):
        if place >= count:
            return None
        items[place] = item
    return [whole.with_items(items)]


def _concat(rewriter: Rewriter, op: Any, scope: Scope, value: TensorList, *_: Value) -> Sequence[Value] | None:
    items = items_of(rewriter, value, op, scope)
    if not items or any(item is None or item.shape.rank in (None, 0) or item.shape[0] is None for item in items):
        return None
    made = rewriter.build(lambda *x: tf.concat(list(x), 0), *items, of=op, scope=scope, name="concat")
    return [made, rewriter.constant(np.asarray([item.shape[0] for item in items], np.int64), op)]


def _split(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    tensor, _, lengths = _operands(op, scope)
    sizes = rewriter.known.value(lengths)
    if sizes is None or len(sizes) > _LONGEST:
        return None
    items = rewriter.build(lambda x: tf.split(x, sizes.tolist()), tensor, of=op, scope=scope, name="split")
    rest = tensor.shape[1:]
    return [TensorList(_dtype(op), tf.TensorShape([None]).concatenate(rest), tuple(items))]


def _identity(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    (value,) = _operands(op, scope)
    return None if isinstance(value, tf.Tensor) and value.dtype != tf.resource else [value]


def _of_list(handler: Callable[..., Sequence[Value] | None]) -> Handler:
    """The handler of an op whose first operand is a list: TensorFlow's own are left to TensorFlow."""

    def handle(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
        value, *rest = _operands(op, scope)
        if not isinstance(value, TensorList):
            return None
        found = handler(rewriter, op, scope, value, *rest)
        if found is None:
            return None
        return [x if isinstance(x, TensorList) else _gated(rewriter, value, x, op, scope) for x in found]

    return handle


LIST_HANDLERS: dict[str, Handler] = {
    "EmptyTensorList": _empty,
    "Identity": _identity,
    "TensorListConcatV2": _of_list(_concat),
    "TensorListElementShape": _of_list(_element_shape),
    "TensorListFromTensor": _from_tensor,
    "TensorListGather": _of_list(_gather),
    "TensorListGetItem": _of_list(_get),
    "TensorListLength": _of_list(_length),
    "TensorListPopBack": _of_list(_pop),
    "TensorListPushBack": _of_list(_push),
    "TensorListReserve": _reserve,
    "TensorListResize": _of_list(_resize),
    "TensorListScatterV2": _scatter,
    "TensorListSetItem": _of_list(_set),
    "TensorListSplit": _split,
    "TensorListStack": _of_list(_stack),
}
