"""Orders what touches a variable in one program, where TensorFlow leaves open what comes first.

TensorFlow runs what is ready, and on each rank something else may be. Two ops that touch one variable, one of them
writing it, then give other numbers from run to run, and from rank to rank. Of those that wait for each other in no way,
the one that the script has made later waits. What only reads a variable, and waits for nothing itself, is no matter
here: a program reads each variable once, before all that writes it.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence

from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits

__all__ = ["in_order", "order_line"]


def in_order(
    operators: Sequence[Operator], late: Container[str]
) -> tuple[list[Operator], Mapping[str, tuple[str, ...]]]:
    """The order in which the operators of a program are built, and what has to be waited for beside.

    Args:
        operators: all of them, as the script makes them.
        late: names of those that come after the others, since they come after gradients. What waits for one of them
            does, too.

    Returns:
        The operators, and for each that has to wait for others that touch a variable of its, by name, their names.
    """
    touching: dict[str, list[Operator]] = {}
    for op in operators:
        for variable in _variables(op):
            touching.setdefault(variable, []).append(op)
    touching = {name: each for name, each in touching.items() if len(each) > 1 and any(map(_writes, each))}
    names = dict.fromkeys(op.name for each in touching.values() for op in each)
    bits = {name: 1 << place for place, name in enumerate(names)}
    after: dict[str, int] = {}  # of each operator, the bits of those that come before it, and its own
    waits: dict[str, tuple[str, ...]] = {}
    behind: set[str] = set()
    for op in operators:
        before = [*(tensor.op for tensor in op.inputs), *op.control_inputs]
        reached = 0
        for name in before:
            reached |= after.get(name, 0)
        added: list[str] = []
        for variable in _variables(op):
            others = touching.get(variable, [])
            earlier = others[: others.index(op)] if others else []
            for other in reversed(earlier):  # the last one comes after most of the others
                if (_writes(op) or _writes(other)) and not reached & bits[other.name]:
                    added.append(other.name)
                    reached |= after[other.name]
        if added:
            waits[op.name] = tuple(added)
        after[op.name] = reached | bits.get(op.name, 0)
        if op.name in late or not behind.isdisjoint((*before, *added)):
            behind.add(op.name)
    return sorted(operators, key=lambda op: op.name in behind), waits


def order_line(operators: Sequence[Operator], waits: Mapping[str, tuple[str, ...]]) -> str:
    """A line for people of operators that wait for others, naming the first two."""
    by_name = {op.name: op for op in operators}
    name, others = next(iter(waits.items()))
    op, other = by_name[name], by_name[others[0]]
    variable = next(each for each in _variables(op) if each in _variables(other))
    return (
        f"run: {other} and {op} touch variable '{variable}' in no order that the script says. They, and all that do, "
        "take the order in which the script makes them, on every rank (tensoropt.control_dependencies says another one)"
    )


def _variables(op: Operator) -> tuple[str, ...]:
    """The variables that an operator touches itself, by name."""
    return () if traits(op).is_gradient else tuple(dict.fromkeys(op.inputs[place].op for place in op.handles))


def _writes(op: Operator) -> bool:
    """Tells whether an operator that touches a variable may write it; unknown operators may."""
    return not traits(op).reads_variable
