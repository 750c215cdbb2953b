"""Walks over what needs what: of TensorFlow's operations, of operators, of names."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn, TypeVar

from tensoropt.errors import GraphError

__all__ = ["needs", "order", "post_order", "reached"]

_Node = TypeVar("_Node", bound=Hashable)


def needs(op: Any) -> list[Any]:
    """The operations that an operation reads and waits for."""
    return [*(tensor.op for tensor in op.inputs), *op.control_inputs]


def reached(roots: Iterable[_Node], following: Callable[[_Node], Iterable[_Node]]) -> dict[_Node, None]:
    """All nodes that are reached from some, with these, in no order that means anything."""
    found: dict[_Node, None] = {}
    pending = list(roots)
    while pending:
        node = pending.pop()
        if node not in found:
            found[node] = None
            pending += following(node)
    return found


def post_order(
    roots: Iterable[_Node],
    before: Callable[[_Node], Iterable[_Node]],
    circle: Callable[[_Node], NoReturn] | None = None,
) -> list[_Node]:
    """All nodes that some need, with these, each after those that it needs; else in the order given.

    Args:
        roots: the nodes.
        before: gives those that a node needs.
        circle: raises an error of a node that needs itself; by default such a one comes before some that it needs.
    """
    done: dict[_Node, None] = {}
    for root in roots:
        pending, opened = [root], set[_Node]()
        while pending:
            node = pending[-1]
            waiting = [] if node in done else [one for one in before(node) if one not in done]
            if waiting and node not in opened:
                opened.add(node)
                pending += reversed(waiting)
                continue
            if waiting and circle is not None:
                circle(node)
            done.setdefault(node)
            pending.pop()
    return list(done)


def order(
    roots: Iterable[Any],
    *,
    controls: bool = True,
    besides: Mapping[Any, Sequence[Any]] = MappingProxyType({}),
) -> list[Any]:
    """All ops that ``roots`` read and, with ``controls``, wait for, each after those; else in the order given.

    Args:
        roots: the ops.
        controls: whether control inputs count.
        besides: what else ops come after.
    """

    def before(op: Any) -> list[Any]:
        # TensorFlow has them in another order in each process.
        waited = sorted(op.control_inputs, key=lambda x: x.name) if controls else ()
        return [*(t.op for t in op.inputs), *waited, *besides.get(op, ())]

    return post_order(roots, before, _waits_for_itself)


def _waits_for_itself(op: Any) -> NoReturn:
    raise GraphError(
        f"{op.type} '{op.name}': waits for itself, as TensorFlow 1's loops do. Build loops with "
        "tensoropt.while_loop, or leave out disable_control_flow_v2."
    )
