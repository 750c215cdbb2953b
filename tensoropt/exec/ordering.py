"""Orders a training step so that memory is given back soon and variables are updated in place.

TensorFlow runs what is ready in an order of its own. Two of its habits cost much and are hard to predict:

- *A variable that is updated while something still reads it is copied first*, the whole of it, in every step.
  :func:`after_readers` lets an update wait for the readers.
- *A weight's gradient may be put off to the end of the step*, and what it is made of waits with it: activations, and
  the gradients of all layers. :func:`bring_forward` lets the backward pass go on only after it.

Control dependencies go from an op to one that was made later, so they never close a circle. What no gradient needs,
such as the gradient of an input, is not waited for: that would make TensorFlow compute it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import tensorflow as tf

__all__ = ["after_readers", "bring_forward"]

# Their outputs are their inputs' buffers.
_ALIASES = frozenset({"Identity", "IdentityN", "StopGradient", "Reshape", "Squeeze", "ExpandDims"})
# What they give is small, and no tensor that the forward pass leaves behind.
_FREE = frozenset({"Const", "Shape", "ShapeN", "Rank", "Size", "VarHandleOp"})


def after_readers(gradients: Sequence[Any], reads: Sequence[Any], loss: Any) -> list[Any]:
    """The gradients of variables, each there only once nothing reads its variable any more.

    Args:
        gradients: of the variables: tensors or ``tf.IndexedSlices``.
        reads: the value of each variable that the step goes by.
        loss: of the step.
    """
    live = _ancestors([*_ops(gradients), loss.op])
    result = []
    for gradient, read in zip(gradients, reads, strict=True):
        readers = _readers(read, live)
        own = {op for op in _ops([gradient])}
        with tf.control_dependencies([op for op in readers if op not in own]):
            if isinstance(gradient, tf.IndexedSlices):
                values = tf.identity(gradient.values)
                result.append(tf.IndexedSlices(values, gradient.indices, gradient.dense_shape))
            else:
                result.append(tf.identity(gradient))
    return result


def bring_forward(gradients: Sequence[Any], first: int) -> int:
    """Lets the backward pass of a layer wait for the gradients of the weights of the layer before it.

    Backward ops are *last* from the one that makes a weight's gradient of the forward pass's tensors on, up to the
    variable. Where such an op reads what others that are not last read too, the ops that come next after those wait for
    it. Next are those that read a tensor of the forward pass; collectives on the way do not wait.

    Args:
        gradients: of the variables, by ``tf.gradients``.
        first: how many ops the graph had before the backward pass was built.

    Returns:
        How many control dependencies were added.
    """
    number = _numbers(gradients)
    live = {op for op in _ancestors(_ops(gradients)) if number[op] >= first}
    order = sorted(live, key=number.__getitem__)
    following = {op: _consumers(op, live) for op in order}
    reading = {op for op in order if any(_is_saved(tensor, live) for tensor in op.inputs)}
    last: set[Any] = set()
    for op in reversed(order):
        if all(other in last and other not in reading for other in following[op]):
            last.add(op)
    added = 0
    for op in order:
        if op not in last:
            continue
        # What it shares with the rest of the backward pass: the gradient of its layer's output.
        shared = {tensor.op for tensor in op.inputs if tensor.op in live and tensor.op not in last}
        siblings = {other for source in shared for other in following[source] if other not in last}
        waiting = {found for sibling in siblings for found in _next(sibling, following, last, reading)}
        for other in sorted(waiting, key=number.__getitem__):
            if number[other] > number[op] and op not in other.control_inputs:
                other._add_control_input(op)
                added += 1
    return added


def _next(op: Any, following: dict[Any, list[Any]], last: set[Any], reading: set[Any]) -> set[Any]:
    """The first ops after ``op``, on any way through the backward pass, that read a tensor of the forward pass."""
    found: set[Any] = set()
    pending, seen = [op], {op}
    while pending:
        for other in following[pending.pop()]:
            if other in seen or other in last:
                continue
            seen.add(other)
            if other in reading:
                found.add(other)
            else:
                pending.append(other)
    return found


def _is_saved(tensor: Any, live: set[Any]) -> bool:
    """Whether an input of a backward op is a tensor of the forward pass."""
    return tensor.op not in live and tensor.op.type not in _FREE


def _readers(tensor: Any, live: set[Any]) -> list[Any]:
    """The ops that read a tensor's buffer, through ops that only pass it on."""
    found: dict[Any, None] = {}
    pending, seen = [tensor], {tensor.ref()}
    while pending:
        value = pending.pop()
        for op in value.consumers():
            if op not in live:
                continue
            if op.type not in _ALIASES:
                found[op] = None
                continue
            passed = [op.outputs[i] for i, source in enumerate(op.inputs[: len(op.outputs)]) if source is value]
            for output in passed:
                if output.ref() not in seen:
                    seen.add(output.ref())
                    pending.append(output)
    return list(found)


def _consumers(op: Any, live: set[Any]) -> list[Any]:
    return list(dict.fromkeys(other for output in op.outputs for other in output.consumers() if other in live))


def _ancestors(ops: Iterable[Any]) -> set[Any]:
    """All ops that some need, themselves included."""
    pending = list(ops)
    found = set(pending)
    while pending:
        op = pending.pop()
        for other in (*(tensor.op for tensor in op.inputs), *op.control_inputs):
            if other not in found:
                found.add(other)
                pending.append(other)
    return found


def _ops(gradients: Iterable[Any]) -> list[Any]:
    found = []
    for gradient in gradients:
        parts = [gradient.values, gradient.indices] if isinstance(gradient, tf.IndexedSlices) else [gradient]
        found += [part.op for part in parts]
    return found


def _numbers(gradients: Sequence[Any]) -> dict[Any, int]:
    """The place of every op of the graph in the order in which they were made."""
    graph = _ops(gradients)[0].graph
    return {op: number for number, op in enumerate(graph.get_operations())}
