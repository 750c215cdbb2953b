"""The functions that ops call: those that their attributes name, and those that their types do."""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import networkx as nx
import tensorflow as tf
from tensorflow.python.framework import function_def_to_graph, op_def_registry

from tensoropt.errors import GraphError
from tensoropt.graph.called_functions import called_by, rename_called

__all__ = [
    "TOKEN",
    "add_functions",
    "called_graphs",
    "function_attrs",
    "function_of",
    "functions_in",
    "is_call",
    "is_implementation",
    "name_functions_by_content",
    "with_numbered_tokens",
    "without_devices",
]

# TensorFlow's attributes of functions of which a device chooses one.
_IMPLEMENTS, _DEVICE, _PROCESSORS = "api_implements", "api_preferred_device", b"CPU"

TOKEN = "token"
"""The attribute by which TensorFlow finds the user's Python function."""

# What makes names of functions differ: TensorFlow's number, or a checksum of ours.
_NUMBER = re.compile(r"(_\d+|_[0-9a-f]{8})$")


def function_attrs(op: Any) -> list[str]:
    """The attributes of an op that name functions."""
    return functions_in(op.node_def.attr) if _may_name_functions(op.type) else []


@functools.cache
def _may_name_functions(op_type: str) -> bool:
    """Tells whether ops of a type may name functions, by TensorFlow's definition of it; there is none of a function."""
    definition = op_def_registry.get(op_type)
    return definition is None or any(attr.type in ("func", "list(func)") for attr in definition.attr)


def functions_in(attrs: Mapping[str, Any]) -> list[str]:
    """Returns the attributes that name functions, of those of an op."""
    return [key for key, value in attrs.items() if value.HasField("func") or len(value.list.func) > 0]


def is_call(op: Any) -> bool:
    """Tells whether an op's type is a function's name, as in calls of TensorFlow 1's functions (``function.Defun``)."""
    return op_def_registry.get(op.type) is None and _named(op.type, op.graph) is not None


def function_of(op: Any, attr: str | None = None, place: int = 0) -> Any:
    """The graph of a function that an attribute of an op names, or that a list in it does, or else its type."""
    found = _named(op.type if attr is None else _names(op, attr)[place], op.graph)
    if hasattr(found, "graph"):
        return found.graph
    if getattr(found, "python_grad_func", None) is not None or getattr(found, "grad_func_name", None) is not None:
        raise GraphError(
            f"{op.type} '{op.name}': calls '{found.name}', a function of TensorFlow 1 (function.Defun) with a gradient "
            "of its own (grad_func, python_grad_func), which cannot be gone through. Use tensoropt.custom_gradient."
        )
    # One of TensorFlow 1 has no graph, but says what is in it; it may call others.
    with tf.Graph().as_default() as library:
        found.add_to_graph(library)
        return function_def_to_graph.function_def_to_graph(found.definition, include_library_functions=True)


def called_graphs(op: Any) -> Iterator[Any]:
    """Yields the graphs of all functions that an op calls itself."""
    for attr in function_attrs(op):
        for place in range(len(_names(op, attr))):
            yield function_of(op, attr, place)
    if is_call(op):
        yield function_of(op)


def without_devices(definition: Any) -> Any:
    """TensorFlow's definition of a function without the script's devices, as the plan places everything."""
    if not any(node.device for node in definition.node_def):
        return definition
    placed = type(definition)()
    placed.CopyFrom(definition)
    for node in placed.node_def:
        node.device = ""
    return placed


def add_functions(op: Any, graph: Any) -> None:
    """Adds the functions that an op calls to another graph, unchanged, with all functions that these call."""
    names = [name for attr in function_attrs(op) for name in _names(op, attr)]
    for name in [*names, op.type] if is_call(op) else names:
        graph._add_function_recursive(_found(name, op.graph))


def _names(op: Any, attr: str) -> list[str]:
    value = op.node_def.attr[attr]
    return [one.name for one in ([value.func] if value.HasField("func") else value.list.func)]


def _named(name: str, graph: Any) -> Any:
    """Returns the function that runs where ops of a graph call one by a name; None if there is none."""
    found = _found(name, graph)
    return None if found is None else _for_processors(found, graph)


def _found(name: str, graph: Any) -> Any:
    return next((found for each in _around(graph) if (found := each._get_function(name)) is not None), None)


def _around(graph: Any) -> Iterator[Any]:
    """A graph and those outside of it, which have the functions of functions."""
    while graph is not None:
        yield graph
        graph = getattr(graph, "outer_graph", None)


def _for_processors(function: Any, graph: Any) -> Any:
    """The implementation of a function that TensorFlow puts in its place on processors, if there is one.

    TensorFlow does so when a graph runs, for functions that say what they implement. Samplers of TensorFlow Probability
    draw other numbers by each. Plans are the same whatever the machine has, so cards take this one, too.
    """
    implements = _attr(function, _IMPLEMENTS)
    if not implements or _attr(function, _DEVICE) == _PROCESSORS:
        return function
    form = _form(function)
    others = (other for each in _around(graph) for other in each._functions.values())
    return next((other for other in others if is_implementation(other, implements) and _form(other) == form), function)


def is_implementation(function: Any, of: bytes | None = None) -> bool:
    """Tells whether a function is an implementation for processors of what others implement, too, or of one thing."""
    implements = _attr(function, _IMPLEMENTS)
    return bool(implements) and _attr(function, _DEVICE) == _PROCESSORS and of in (None, implements)


def _attr(function: Any, name: str) -> bytes:
    definition = getattr(function, "cached_definition", None)  # functions of TensorFlow 1 have none
    return b"" if definition is None or name not in definition.attr else definition.attr[name].s


def _form(function: Any) -> list[list[int]]:
    signature = function.cached_definition.signature
    return [[arg.type for arg in args] for args in (signature.input_arg, signature.output_arg)]


def name_functions_by_content(definition: Any) -> None:
    """Gives the functions of a ``GraphDef`` names that are the same in every process, and sorts them.

    TensorFlow numbers them by all that it has made so far, eager tensors among it. Functions that do the same become
    one.
    """
    functions = {one.signature.name: one for one in definition.library.function}
    tokens = _token_numbers(definition)
    calls = nx.DiGraph()
    calls.add_nodes_from(functions)
    for name, function in functions.items():
        calls.add_edges_from(
            (called, name) for node in function.node_def for called in called_by(node) if called in calls
        )
    names: dict[str, str] = {}
    by_name: dict[str, Any] = {}
    for name in nx.topological_sort(calls):
        made = _named_by_content(functions[name], names, tokens)
        names[name] = made.signature.name
        by_name[made.signature.name] = made
    for node in definition.node:
        rename_called(node, names)
    library = type(definition.library)()
    library.function.extend(by_name[name] for name in sorted(by_name))
    definition.library.CopyFrom(library)


def with_numbered_tokens(definition: Any) -> Any:
    """A copy of a ``GraphDef`` for comparisons, in which the user's Python functions have numbers of its own.

    TensorFlow's tokens for them (``pyfunc_7``) count what a process has made before.
    """
    numbers, copy = _token_numbers(definition), type(definition)()
    copy.CopyFrom(definition)
    for node in [*copy.node, *(node for one in copy.library.function for node in one.node_def)]:
        _number_token(node, numbers)
    return copy


def _token_numbers(definition: Any) -> dict[bytes, int]:
    """The numbers of tokens, in the order in which nodes have them, and the functions that these call."""
    functions = {one.signature.name: one for one in definition.library.function}
    numbers: dict[bytes, int] = {}
    pending, seen = list(reversed(definition.node)), set[str]()
    while pending:
        node = pending.pop()
        if TOKEN in node.attr:
            numbers.setdefault(node.attr[TOKEN].s, len(numbers))
        for name in called_by(node):
            if name in functions and name not in seen:
                seen.add(name)
                pending += reversed(functions[name].node_def)
    return numbers


def _number_token(node: Any, numbers: Mapping[bytes, int]) -> None:
    if TOKEN in node.attr:
        node.attr[TOKEN].s = f"python_{numbers.get(node.attr[TOKEN].s)}".encode()


def _named_by_content(function: Any, names: Mapping[str, str], tokens: Mapping[bytes, int]) -> Any:
    """A function without what tells in which process it was made, named by a hash of what it does.

    Its arguments may be named by the numbers of eager tensors, its attributes name other functions, and what waits has
    no order.
    """
    content = type(function)()
    content.CopyFrom(function)
    content.attr.clear()
    arguments = {arg.name: f"argument_{place}" for place, arg in enumerate(content.signature.input_arg)}
    for arg in content.signature.input_arg:
        arg.name = arguments[arg.name]
    for node in content.node_def:
        rename_called(node, names)
        node.ClearField("experimental_debug_info")
        data = [arguments.get(x, x) for x in node.input if not x.startswith("^")]
        waits = sorted(f"^{arguments.get(x[1:], x[1:])}" for x in node.input if x.startswith("^"))
        node.input[:] = [*data, *waits]
    for result in list(content.ret):  # a map, which is written to
        content.ret[result] = arguments.get(content.ret[result], content.ret[result])
    content.signature.control_output[:] = sorted(content.signature.control_output)
    content.signature.name = _NUMBER.sub("", function.signature.name)
    compared = type(function)()
    compared.CopyFrom(content)
    for node in compared.node_def:
        _number_token(node, tokens)
    digest = hashlib.sha256(compared.SerializeToString(deterministic=True)).hexdigest()[:12]
    content.signature.name += f"_{digest}"
    return content
