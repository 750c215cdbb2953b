"""Whether what a device runs writes each variable in one order with all else that touches it.

A race gives wrong numbers once in many runs; in the graph it is there each time.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import Any
from unittest import mock

import networkx as nx
import tensorflow as tf

from tensoropt.exec.program import executor

__all__ = ["no_races", "races"]

_READS = ("ReadVariableOp", "ResourceGather", "ResourceGatherNd", "VarIsInitializedOp")
_SHAPES = ("VariableShape",)


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
    waits = _waits(targets)
    touched: dict[str, list[Any]] = {}
    for op in waits:
        if op.type in (*_SHAPES, "Identity", "VarHandleOp"):
            continue
        for name in {_variable(x) for x in op.inputs if x.dtype == tf.resource}:
            touched.setdefault(name, []).append(op)
    places = {op: place for place, op in enumerate(dict.fromkeys(itertools.chain(*touched.values())))}
    # Of each op, a bit for each op that touches a variable and that it waits for.
    after: dict[Any, int] = {}
    for op in nx.topological_sort(waits):
        bits = 1 << places[op] if op in places else 0
        for before in waits.predecessors(op):
            bits |= after[before]
        after[op] = bits
    return [
        (name, write.name, other.name)
        for name, ops in touched.items()
        for write, other in itertools.permutations(ops, 2)
        if write.type not in _READS
        and (other.type in _READS or write.name < other.name)
        and not (after[write] >> places[other] | after[other] >> places[write]) & 1
    ]


def _waits(targets: Iterable[Any]) -> nx.DiGraph:
    found: nx.DiGraph = nx.DiGraph()
    pending: list[Any] = list(targets)
    while pending:
        op = pending.pop()
        if op in found and found.nodes[op]:
            continue
        found.add_node(op, seen=True)
        before: Sequence[Any] = [*(x.op for x in op.inputs), *op.control_inputs]
        found.add_edges_from((each, op) for each in before)
        pending += before
    return found


def _variable(handle: Any) -> str:
    while handle.op.type == "Identity":
        handle = handle.op.inputs[0]
    return handle.op.name
