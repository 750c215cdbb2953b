"""Runs a model's input pipelines, in a session of TensorFlow's own on each rank."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tensoropt.api.frontend.effects import makes_handle
from tensoropt.api.frontend.input_pipelines import Pipelines, pipelines_of
from tensoropt.api.frontend.walks import needs, reached
from tensoropt.api.untuned_data import untune_factory, untuned_variant
from tensoropt.errors import SessionError
from tensoropt.exec.program.bodies import add_functions

__all__ = ["Piped", "PipelineSession"]

_SEEDS = ("seed", "seed2")
_LEFT_OUT_ATTRS = ("_class",)
_FACTORY = "dataset_factory"  # of an iterator, the function that makes what it is over


@dataclass(frozen=True, slots=True)
class Piped:
    """An operation or a tensor of a pipeline, by name."""

    name: str


class PipelineSession:
    """A copy of the input pipelines in a model's graph, and sessions that run it, one for each of the script's.

    Iterators live in sessions, as TensorFlow's do. The copy is made as it is needed, since scripts make operations (the
    string of an iterator's handle) when they run.

    What shuffles or draws without a seed gets one, the same on all ranks.
    """

    def __init__(self, graph: Any, seed: int) -> None:
        """Takes a model's graph and a positive number that all ranks share."""
        self.graph = graph
        self._seed = seed
        self._copy = tf.Graph()
        self._sessions: dict[int | None, Any] = {}  # by the number of the script's session
        self._known: tuple[int, Pipelines] = (-1, Pipelines())
        self._functions: set[str] = set()
        self._calls: dict[tuple[int | None, tuple[str, ...], tuple[str, ...]], Callable[..., Sequence[Any]]] = {}
        self._needs: dict[tuple[str, ...], frozenset[str]] = {}

    @property
    def pipelines(self) -> Pipelines:
        """The pipelines in the graph as it is now."""
        if self._known[0] != self.graph.version:
            self._known = self.graph.version, pipelines_of(self.graph)
        return self._known[1]

    def run(self, names: Sequence[str], feeds: Mapping[str, Any], session: int | None = None) -> list[Any]:
        """Runs pipelines; returns the values of tensors, all of one element of their iterator, and None for operations.

        Args:
            names: of tensors and operations.
            feeds: by the names of tensors of the graph; those that none of ``names`` needs are ignored.
            session: the number of the script's session; None without one.

        Raises:
            tf.errors.OutOfRangeError: at the end of the data.
            SessionError: if a pipeline reads a variable.
        """
        wanted = tuple(names)
        if wanted not in self._needs:
            roots = [self.graph.get_operation_by_name(name.split(":")[0]) for name in wanted]
            self._needs[wanted] = self._add(roots)
        needed = self._needs[wanted]
        fed = tuple(sorted(name for name in feeds if name.split(":")[0] in needed))
        key = session, wanted, fed
        if key not in self._calls:
            if session not in self._sessions:
                # Not by the script's config: where the model's steps take one thread, elements are made beside them.
                config = tf.compat.v1.ConfigProto(device_count={"GPU": 0})
                self._sessions[session] = tf.compat.v1.Session(graph=self._copy, config=config)
            elements = [self._copy.as_graph_element(name) for name in wanted]
            tensors = [self._copy.get_tensor_by_name(name) for name in fed]
            self._calls[key] = self._sessions[session].make_callable(elements, tensors)
        dtypes = [self._copy.get_tensor_by_name(name).dtype.as_numpy_dtype for name in fed]
        values = [np.asarray(feeds[name], dtype) for name, dtype in zip(fed, dtypes, strict=True)]
        return list(self._calls[key](*values))

    def end(self, session: int | None) -> None:
        """Ends the iterators of one of the script's sessions."""
        self._calls = {key: call for key, call in self._calls.items() if key[0] != session}
        if session in self._sessions:
            self._sessions.pop(session).close()

    def close(self) -> None:
        """Ends all sessions."""
        for session in [*self._sessions]:
            self.end(session)

    def _add(self, roots: Iterable[Any]) -> frozenset[str]:
        """Copies operations and what they need, as far as it is not there yet; the names of all of these."""
        found = {op.name for op in reached(roots, needs)}
        there = {op.name for op in self._copy.get_operations()}
        for op in (op for op in self.graph.get_operations() if op.name in found - there):
            if makes_handle(op):
                raise SessionError(
                    f"Variable '{op.name}': an input pipeline reads it, but devices hold the variables. Apply what "
                    "needs it to what get_next() gives."
                )
            self._copy_operation(op)
        return frozenset(found)

    def _copy_operation(self, op: Any) -> None:
        attrs = {key: value for key, value in op.node_def.attr.items() if key not in _LEFT_OUT_ATTRS}
        factories = [op.get_attr(_FACTORY).name] if _FACTORY in attrs else []
        self._add_functions(_functions_of(op.node_def), factories=factories)
        attrs |= self._drawn(op.node_def)
        inputs = [self._copy.get_tensor_by_name(tensor.name) for tensor in op.inputs]
        if [arg.name for arg in op.op_def.input_arg] == ["dataset", "iterator"]:
            with self._copy.as_default():
                inputs[0] = untuned_variant(inputs[0])
        unset = [op.inputs[place] for place in _seed_places(op.op_def)]
        if unset and all(_is_zero(tensor.op.node_def) for tensor in unset):
            with self._copy.as_default():
                for place, number in zip(_seed_places(op.op_def), self._seeds(op.name), strict=True):
                    inputs[place] = tf.constant(number, tf.int64, name=f"{op.name}/shared_seed")
        made = self._copy._create_op_internal(
            op.type, inputs, [tensor.dtype for tensor in op.outputs], name=f"{op.name}/", attrs=attrs
        )
        made._add_control_inputs([self._copy.get_operation_by_name(control.name) for control in op.control_inputs])

    def _add_functions(self, names: Iterable[str], *, factories: Sequence[str]) -> None:
        """Copies functions, and those that they call; ``factories`` are those that make an iterator's dataset."""
        library = tf.compat.v1.GraphDef()
        pending = [name for name in names if name not in self._functions]
        while pending:
            name = pending.pop()
            if name in self._functions:
                continue
            self._functions.add(name)
            definition = library.library.function.add()
            definition.CopyFrom(self.graph._get_function(name).cached_definition)
            self._seed_function(definition, len(self._functions))
            if name in factories:
                untune_factory(definition)
            pending += [called for node in definition.node_def for called in _functions_of(node)]
        if library.library.function:
            with self._copy.as_default():
                add_functions(library.library.function)

    def _seed_function(self, definition: Any, number: int) -> None:
        """Gives what draws in a function without a seed one, in place.

        By the function's number, as names of functions differ between ranks.
        """
        nodes = {node.name: node for node in definition.node_def}
        for node in list(definition.node_def):
            for key, value in self._drawn(node, number).items():
                node.attr[key].CopyFrom(value)
            op_def = op_def_registry.get(node.op)
            places = [] if op_def is None else _seed_places(op_def)
            before = [nodes.get(node.input[place].split(":")[0]) for place in places]
            if before and all(other is not None and _is_zero(other) for other in before):
                for place, drawn in zip(places, self._seeds(f"{number}/{node.name}"), strict=True):
                    made = definition.node_def.add()
                    made.CopyFrom(nodes[node.input[place].split(":")[0]])
                    made.name = f"{node.name}/shared_seed{place}"
                    made.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(drawn, tf.int64))
                    node.input[place] = f"{made.name}:output:0"

    def _drawn(self, node: Any, number: int = 0) -> dict[str, Any]:
        """The seeds of an operation that would draw its own at random."""
        if not all(key in node.attr for key in _SEEDS) or any(node.attr[key].i for key in _SEEDS):
            return {}
        numbers = zip(_SEEDS, self._seeds(f"{number}/{node.name}"), strict=True)
        return {key: tf.compat.v1.AttrValue(i=drawn) for key, drawn in numbers}

    def _seeds(self, name: str) -> tuple[int, int]:
        return self._seed, zlib.crc32(name.encode()) & 0x7FFFFFFF | 1


def _functions_of(node: Any) -> list[str]:
    """The names of the functions that a node calls, in the same order on all ranks."""
    values = [node.attr[key] for key in sorted(node.attr)]
    return [one.name for value in values for one in (value.func, *value.list.func) if one.name]


def _seed_places(op_def: Any) -> list[int]:
    """Returns the places of an operation's two seed inputs; none if an input before has no fixed place."""
    names = [arg.name for arg in op_def.input_arg]
    if not all(key in names for key in _SEEDS):
        return []
    places = [names.index(key) for key in _SEEDS]
    before = op_def.input_arg[: max(places)]
    return [] if any(arg.number_attr or arg.type_list_attr for arg in before) else places


def _is_zero(node: Any) -> bool:
    """Tells whether a node is the constant 0."""
    if "value" not in node.attr or node.input:
        return False
    value = tf.make_ndarray(node.attr["value"].tensor)
    return value.shape == () and value.dtype.kind == "i" and not value
