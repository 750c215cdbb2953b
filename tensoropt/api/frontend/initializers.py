"""Finds the operations that give variables their initial values, whatever collections the variables are in."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensoropt.api.frontend.effects import makes_handle
from tensoropt.graph.registry import traits

__all__ = ["initialized_by", "initializers", "variables_of"]


def variables_of(graph: Any) -> dict[str, Any]:
    """The variables (``tf.Variable``) in the collections of a ``tf.Graph``, by name: global, local and others.

    What an assignment returns is a ``tf.Variable``, too, but none of its own: scripts put it into ``UPDATE_OPS``.
    """
    found: dict[str, Any] = {}
    for key in graph.get_all_collection_keys():
        for each in graph.get_collection_ref(key):
            if isinstance(each, tf.Variable) and each.graph is graph and each.initializer is not None:
                found.setdefault(each.op.name, each)
    return found


def initializers(graph: Any) -> dict[str, Any]:
    """For each variable of a ``tf.Graph``, by name, the operation that gives it its initial value.

    A variable that is in no collection (``collections=[]``) is known by the name that TensorFlow gives that operation.
    """
    found = {name: variable.initializer for name, variable in variables_of(graph).items()}
    for op in graph.get_operations():
        if makes_handle(op) and op.name not in found:
            own = f"{op.name}/Assign"
            assigns = {consumer.name: consumer for consumer in op.outputs[0].consumers()}
            if own in assigns:
                found[op.name] = assigns[own]
    return found


def initialized_by(operation: Any) -> tuple[frozenset[str], tuple[str, ...]]:
    """The variables whose initializers an operation is or groups, and the names of the others that it groups.

    ``global_variables_initializer`` is a group; scripts group such groups, and add other operations. What is no group
    and waits for an initializer is none of these: it does something itself.
    """
    names = {initializer.name: variable for variable, initializer in initializers(operation.graph).items()}
    if operation.name in names:
        return frozenset({names[operation.name]}), ()
    if not traits(operation).is_group:
        return frozenset(), ()
    variables: set[str] = set()
    others: list[str] = []
    pending, seen = [operation], {operation.name}
    while pending:
        for control in pending.pop().control_inputs:
            if control.name in names:
                variables.add(names[control.name])
            elif control.name not in seen:
                seen.add(control.name)
                # Where variables have devices, TensorFlow groups the groups of each of them.
                if traits(control).is_group:
                    pending.append(control)
                else:
                    others.append(control.name)
    return frozenset(variables), tuple(others)
