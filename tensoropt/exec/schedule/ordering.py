"""Orders a training step so that memory is given back soon and variables are updated in place.

TensorFlow runs what is ready in an order of its own. Two of its habits cost much and are hard to predict:

- *A variable that is updated while something still reads it is copied first*, the whole of it, in every step.
  An update waits for its :func:`readers`.
- *A weight's gradient may be put off to the end of the step*, and what it is made of waits with it: activations, and
  the gradients of all layers. So may its update, which then holds the gradient. :class:`Backward` lets the backward
  pass go on only after them.

Control dependencies go from an op to one that was made later, so they never close a circle; those from updates and from
sums only go to ops that were made later than all that these need. What no gradient needs, such as the gradient of an
input, is not waited for: that would make TensorFlow compute it.
"""

from __future__ import annotations

import bisect
from collections.abc import Container, Iterable, Sequence
from typing import Any

import tensorflow as tf

from tensoropt.graph.registry import traits

__all__ = ["Backward", "ancestors", "readers"]


class Backward:
    """The backward pass of one training step.

    Backward ops are *last* from the one that makes a weight's gradient of the forward pass's tensors on, up to the
    variable. Where such an op reads what others that are not last read too, the ops that come next after those wait for
    it. Next are those that read a tensor of the forward pass; collectives on the way do not wait.
    """

    def __init__(self, gradients: Sequence[Any], first: int) -> None:
        """Looks at the graph.

        Args:
            gradients: of the variables, by ``tf.gradients``.
            first: how many ops the graph had before the backward pass was built.
        """
        self._gradients = gradients
        self._first = first
        operations = _ops(gradients)[0].graph.get_operations()
        self._number = {op: number for number, op in enumerate(operations)}
        self._live = {op for op in ancestors(gradients) if self._number[op] >= first}
        order = sorted(self._live, key=self._number.__getitem__)
        self._following = {op: _consumers(op, self._live) for op in order}
        reading = {op for op in order if any(_is_saved(tensor, self._live) for tensor in op.inputs)}
        self._last: set[Any] = set()
        for op in reversed(order):
            if all(other in self._last and other not in reading for other in self._following[op]):
                self._last.add(op)
        self._waiting = {op: self._next(op, reading) for op in order if op in self._last}
        self._reading = [op for op in order if op in reading]

    def wait_for_gradients(self) -> int:
        """Makes the backward pass of a layer wait for the weights' gradients of the layer after it (in forward order).

        Returns:
            How many control dependencies were added.
        """
        return sum(_wait(other, op) for op, waiting in self._waiting.items() for other in waiting)

    def wait_for_updates(self, updates: Sequence[Iterable[Any]], collectives: Container[str]) -> int:
        """Makes the backward pass of a layer wait for the updates of those weights, too.

        Args:
            updates: by gradient, the ops that update its variable.
            collectives: names of ops that no op should wait for, so that others run meanwhile.

        Returns:
            How many control dependencies were added.
        """
        added = 0
        known: dict[Any, int] = {}
        for gradient, ops in zip(self._gradients, updates, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                continue
            pending, seen = [gradient.op], {gradient.op: None}
            while pending:
                for source in pending.pop().inputs:
                    if source.op in self._last and source.op not in seen:
                        seen[source.op] = None
                        pending.append(source.op)
            if any(op.name in collectives for op in seen):
                continue
            waiting = dict.fromkeys(other for op in seen for other in self._waiting.get(op, ()))
            for update in ops:
                latest = self._latest(update, known)
                added += sum(_wait(other, update) for other in waiting if self._number[other] > latest)
        return added

    def wait_for_sums(self, sums: Iterable[Any]) -> int:
        """Makes the backward pass go on only once gradients are added to sums, with the collectives on their way there.

        Args:
            sums: the ops that add.

        Returns:
            How many control dependencies were added.
        """
        added = 0
        known: dict[Any, int] = {}
        for op in sums:
            place = bisect.bisect_right(self._reading, self._latest(op, known), key=self._number.__getitem__)
            added += sum(_wait(other, op) for other in self._reading[place : place + 1])
        return added

    def _latest(self, op: Any, known: dict[Any, int]) -> int:
        """The number of the last op of the backward pass that an op needs which was made after it."""
        pending = [op]
        while pending:
            current = pending[-1]
            before = () if current in self._number else (*(x.op for x in current.inputs), *current.control_inputs)
            unknown = [other for other in before if other not in known]
            if unknown:
                pending += unknown
                continue
            known[current] = max((known[other] for other in before), default=self._number.get(current, -1))
            pending.pop()
        return known[op]

    def _next(self, op: Any, reading: set[Any]) -> list[Any]:
        """Returns the ops that wait for an op that is last, in the order in which they were made."""
        # What the op shares with the rest of the backward pass: the gradient of its layer's output.
        shared = {tensor.op for tensor in op.inputs if tensor.op in self._live and tensor.op not in self._last}
        siblings = {other for source in shared for other in self._following[source] if other not in self._last}
        found = {each for sibling in siblings for each in _next(sibling, self._following, self._last, reading)}
        later = [other for other in found if self._number[other] > self._number[op]]
        return sorted(later, key=self._number.__getitem__)


def _wait(op: Any, other: Any) -> int:
    """Makes an op wait for another; returns 1 if the dependency is new, else 0."""
    if other in op.control_inputs:
        return 0
    op._add_control_input(other)
    return 1


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
    """Tells whether an input of a backward op is a tensor that the forward pass keeps for it."""
    made_by = traits(tensor.op)
    is_small = made_by.is_constant or made_by.gives_shape or tensor.dtype == tf.resource
    return tensor.op not in live and not is_small


def readers(tensor: Any, live: set[Any]) -> list[Any]:
    """The ops, of those that are ``live``, that read a tensor's buffer, through ops that only pass it on."""
    found: dict[Any, None] = {}
    pending, seen = [tensor], {tensor.ref()}
    while pending:
        value = pending.pop()
        for op in value.consumers():
            if op not in live:
                continue
            passing = traits(op)
            if not passing.alias and not passing.views_rows:
                found[op] = None
                continue
            passed = [op.outputs[i] for i, source in enumerate(op.inputs[: len(op.outputs)]) if source is value]
            for output in passed:
                if output.ref() not in seen:
                    seen.add(output.ref())
                    pending.append(output)
    return list(found)


def _consumers(op: Any, live: set[Any]) -> list[Any]:
    """The ops that read an op, or wait for it to make something again."""
    reading = (other for output in op.outputs for other in output.consumers())
    return list(dict.fromkeys(other for other in (*reading, *op._control_outputs) if other in live))


def ancestors(tensors: Iterable[Any]) -> set[Any]:
    """All ops that tensors, or ``tf.IndexedSlices``, need."""
    pending = _ops(tensors)
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
