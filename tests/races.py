"""Whether what a device runs writes each variable in one order with all else that touches it.

A race gives wrong numbers once in many runs; in the graph it is there each time.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import operator
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import tensorflow as tf

from tensoropt.api.frontend.effects import PASSED_ON, varies
from tensoropt.api.frontend.rewriting.rewriter import order
from tensoropt.exec.program import executor
from tensoropt.exec.schedule.segments import sources_of
from tensoropt.graph.registry import traits

__all__ = ["no_races", "races"]


@contextlib.contextmanager
def no_races() -> Iterator[None]:
    """Looks for races in each program that an executor builds inside the block, and raises AssertionError for one."""
    made = executor.callable_of

    def checked(session: Any, values: Sequence[Any], feeds: Sequence[Any]) -> Any:
        found = races(getattr(value, "op", value) for value in values)
        assert not found, f"{len(found)} pairs of ops touch a variable in no order, such as {found[:3]}"
        return made(session, values, feeds)

    with mock.patch.object(executor, "callable_of", checked):
        yield


def races(targets: Iterable[Any]) -> list[tuple[str, str, str]]:
    """A variable, an op that writes it, and one that touches it before or after, as it happens.

    Args:
        targets: the operations that a session runs, of one graph.
    """
    ops = order(targets)
    touched: dict[str, list[Any]] = {}
    for op in ops:
        if traits(op).gives_shape or op.type == PASSED_ON:
            continue
        handles = (x for x in op.inputs if x.dtype == tf.resource)
        for name in {_variable(x) for x in handles if x.op.type != "FIFOQueueV2"}:  # who takes waits for who gives
            touched.setdefault(name, []).append(op)
    places = {op: place for place, op in enumerate(dict.fromkeys(itertools.chain(*touched.values())))}
    # Of each op, a bit for itself and each op that it waits for, of those that touch a variable.
    after: dict[Any, int] = {}
    for op in ops:
        own = 1 << places[op] if op in places else 0
        after[op] = functools.reduce(operator.or_, (after[before] for before in sources_of(op)), own)
    return [
        (name, write.name, other.name)
        for name, each in touched.items()
        for write, other in itertools.permutations(each, 2)
        if varies(write)
        and (not varies(other) or write.name < other.name)
        and not (after[write] >> places[other] | after[other] >> places[write]) & 1
    ]


def _variable(handle: Any) -> str:
    while handle.op.type == PASSED_ON:
        handle = handle.op.inputs[0]
    return handle.op.name
