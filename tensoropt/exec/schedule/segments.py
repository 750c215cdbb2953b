"""Makes all ranks do the same work between the same collectives.

Ranks meet in every collective. TensorFlow runs ready ops in an order of its own, which differs from rank to rank: work
that one rank does before a collective, such as the gradient of a weight, another rank may do after it. Then the second
rank waits for the first in this collective, and the first for the second in the next one. Control dependencies keep ops
that take long between the collectives that were made before and after them, or, in the forward pass, before the
collective after them.
"""

from __future__ import annotations

import heapq
from collections.abc import Container, Iterable
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.graph.registry import heavy_gradient_kernels, traits

__all__ = ["keep_segments", "needed_ops", "sources_of"]


def keep_segments(targets: Iterable[Any], collectives: Container[str], first: int, backward: int) -> int:
    """Adds control dependencies to a program that is complete, so that its heavy ops stay between their collectives.

    They go along one order of all ops, and so never close a circle.

    Args:
        targets: the operations that the program runs.
        collectives: names of those in which ranks meet, each of which waits for the one before.
        first: how many ops the graph had before the program.
        backward: how many it had before the backward pass.

    Returns:
        How many control dependencies were added.
    """
    live = needed_ops(targets, first)
    before = {op: [source for source in sources_of(op) if source in live] for op in live}
    after: dict[Any, list[Any]] = {op: [] for op in live}
    for op in live:
        for source in before[op]:
            after[source].append(op)
    order = _in_order(live, before, after)
    met: list[Any] = []
    segment: dict[Any, int] = {}
    for op in order:
        segment[op] = len(met)
        if op.name in collectives:
            met.append(op)
    index_of = {op: index for index, op in enumerate(met)}
    # The last collective before an op that it waits for anyway, and the first one after it that waits for the op.
    last: dict[Any, int] = {}
    for op in order:
        last[op] = index_of.get(op, max((last[source] for source in before[op]), default=-1))
    following: dict[Any, int] = {}
    ends = {_end(op, live, index_of, backward) for op in order if live[op] < backward and _takes_long(op)}
    added = 0
    for op in reversed(order):
        following[op] = index_of.get(op, min((following[other] for other in after[op]), default=len(met)))
        own = segment[op]
        if op in ends and own < len(met) and following[op] > own:
            met[own]._add_control_input(_seen(op))
            following[op] = own
            added += 1
    for op in order:
        if live[op] < backward or op.type not in heavy_gradient_kernels():
            continue
        # TensorFlow may compute one op together with another one that reads it. If a collective came in between, the
        # two would wait for each other, so only ops whose readers stay apart are kept; their kernels stay what they
        # are.
        if any(
            reader not in index_of and not traits(reader).unfused for out in op.outputs for reader in out.consumers()
        ):
            continue
        own = segment[op]
        if own < len(met) and following[op] > own:
            met[own]._add_control_input(op)
            added += 1
        if own > 0 and last[op] < own - 1:
            op._add_control_input(met[own - 1])
            added += 1
    return added


def _takes_long(op: Any) -> bool:
    """Tells whether an op of a forward pass takes long: whether it is a product or a convolution."""
    own = traits(op)
    return own.is_product or own.is_convolution


def _end(op: Any, live: dict[Any, int], collectives: Container[Any], backward: int) -> Any:
    """The last of the ops, each the only reader of the one before, that may be computed together with ``op``."""
    while True:
        readers = {reader for out in op.outputs for reader in out.consumers() if reader in live}
        if len(readers) != 1:
            return op
        reader = readers.pop()
        if reader in collectives or live[reader] >= backward or _takes_long(reader):
            return op
        op = reader


def _seen(op: Any) -> Any:
    """An op that runs after another one, and is not computed together with it.

    TensorFlow computes ops apart as soon as others wait for one of them, with other kernels and so other roundings.
    Something that reads a number of the result leaves them together.
    """
    value = op.outputs[0]
    first = np.zeros(value.shape.rank, np.int32)
    with op.graph.as_default(), tf.control_dependencies(None), tf.name_scope("segment"):
        return tf.raw_ops.Slice(input=value, begin=first, size=first + 1).op


def needed_ops(targets: Iterable[Any], first: int) -> dict[Any, int]:
    """The ops of a program that its targets need, with their numbers in the graph.

    Args:
        targets: the operations that the program runs.
        first: how many ops the graph had before the program.
    """
    pending = list(targets)
    number = {op: index for index, op in enumerate(pending[0].graph.get_operations())} if pending else {}
    found: dict[Any, int] = {}
    while pending:
        op = pending.pop()
        if op not in found and number[op] >= first:
            found[op] = number[op]
            pending += sources_of(op)
    return found


def _in_order(live: dict[Any, int], before: dict[Any, list[Any]], after: dict[Any, list[Any]]) -> list[Any]:
    """All ops, each after those that it waits for, otherwise as they were made.

    What was made late but is waited for by what was made early, such as an update of a variable, comes before that.
    """
    waiting = {op: len(set(before[op])) for op in live}
    wanted: dict[Any, int] = {}
    for op in reversed(_topological(live, before)):
        wanted[op] = min((live[op], *(wanted[other] for other in after[op])))
    ready = [(wanted[op], live[op], op) for op in live if not waiting[op]]
    heapq.heapify(ready)
    order = []
    while ready:
        op = heapq.heappop(ready)[2]
        order.append(op)
        for other in dict.fromkeys(after[op]):
            waiting[other] -= 1
            if not waiting[other]:
                heapq.heappush(ready, (wanted[other], live[other], other))
    return order


def _topological(live: dict[Any, int], before: dict[Any, list[Any]]) -> list[Any]:
    """All ops, each after those that it waits for, in no particular order."""
    done: dict[Any, None] = {}
    pending = [(op, False) for op in live]
    while pending:
        op, ready = pending.pop()
        if ready:
            done.setdefault(op)
        elif op not in done:
            pending.append((op, True))
            pending += [(source, False) for source in before[op] if source not in done]
    return list(done)


def sources_of(op: Any) -> list[Any]:
    """The ops that an op waits for."""
    return [*(tensor.op for tensor in op.inputs), *op.control_inputs]
