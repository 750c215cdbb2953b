"""The input pipelines of a model (``tf.data``), and the pass that cuts them out of its graph.

A pipeline is no part of the logical graph: each rank runs it in a session of TensorFlow's own, and feeds what it gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.framework import meta_graph

from tensoropt.api.frontend.effects import PLACEHOLDER, is_pipeline, makes_handle
from tensoropt.api.frontend.functions import add_functions
from tensoropt.api.frontend.initializers import initializers
from tensoropt.api.frontend.meta_graphs import exported, keep_said_shapes, without_hints
from tensoropt.api.frontend.parts import part_of
from tensoropt.api.frontend.source import Part, Source
from tensoropt.api.frontend.walks import needs
from tensoropt.api.mirror.model import GradientCall, Model

__all__ = ["Pipelines", "cut_pipelines", "pipelines_of", "read_of", "with_placeholders", "without_pipelines"]


@dataclass(frozen=True, slots=True)
class Pipelines:
    """The input pipelines in a graph.

    Attributes:
        inside: names of the operations that they consist of, and of those that only these read.
        elements: the tensors that the model reads of them, by the names of the placeholders in their place.
    """

    inside: frozenset[str] = frozenset()
    elements: Mapping[str, Any] = field(default_factory=dict)

    @property
    def places(self) -> dict[str, str]:
        """The names of placeholders by those of the tensors in whose places they are."""
        return {tensor.name: place for place, tensor in self.elements.items()}

    def redirected(self, calls: Iterable[GradientCall]) -> tuple[GradientCall, ...]:
        """Differentiations whose tensors are the placeholders where they are those of pipelines."""
        tensors = {name: f"{place}:0" for name, place in self.places.items()}
        return tuple(call.renamed(tensors) for call in calls)


def pipelines_of(graph: Any) -> Pipelines:
    """The input pipelines in a ``tf.Graph``."""
    operations = graph.get_operations()
    inside = {op.name for op in operations if is_pipeline(op)}
    if not inside:
        return Pipelines()
    for op in operations:
        # What goes on with an iterator, a branch that reads one, say, or with an element that cannot be fed.
        taken = (tensor.op.name for tensor in op.inputs if tensor.dtype in (tf.resource, tf.variant))
        if op.name not in inside and any(name in inside for name in taken):
            inside.add(op.name)
    for op in reversed(operations):
        readers = [reader for tensor in op.outputs for reader in tensor.consumers()] + op._control_outputs
        if readers and not makes_handle(op) and all(reader.name in inside for reader in readers):
            inside.add(op.name)
    read = [
        tensor
        for op in operations
        if op.name in inside
        for tensor in op.outputs
        if any(reader.name not in inside for reader in tensor.consumers())
    ]
    return Pipelines(frozenset(inside), {f"{x.op.name}/element{x.value_index}": x for x in read})


def read_of(
    model: Model, pipelines: Pipelines, names: Iterable[str], given: Iterable[str], fed: Iterable[str]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What operations read of pipelines, as TensorFlow would: the placeholders of elements, and operations to run.

    TensorFlow takes an element where only its size is asked for, and for what waits for the element.

    Args:
        model: the model.
        pipelines: of its graph.
        names: of operations, or of operators that are gradients.
        given: names of tensors that are fed.
        fed: names of placeholders that are fed, those of elements among them.
    """
    fed = frozenset(fed)
    there = {*given, *(tensor.name for place, tensor in pipelines.elements.items() if place in fed)}
    part = part_of(model, names, there, fed).operations
    places = [x for x, tensor in pipelines.elements.items() if tensor.op.name in part and x not in fed]
    makers = {pipelines.elements[place].op.name for place in places}
    inside = [model.graph.get_operation_by_name(name) for name in sorted(part & pipelines.inside)]
    within = {needed.name for op in inside for needed in needs(op)}
    return tuple(places), tuple(op.name for op in inside if op.name not in within | makers)


# By model: its graph's version and the numbers of its differentiations and merged rows, and what it was made to then.
_known: WeakKeyDictionary[Model, tuple[tuple[int, ...], Model]] = WeakKeyDictionary()


def cut_pipelines(source: Source) -> Source:
    """Puts placeholders into the places of what is read of input pipelines, which each rank reads by itself."""
    model = source.model
    read = {place: tensor.op for place, tensor in pipelines_of(model.graph).elements.items()}
    own = {op.name: op for op in model.graph.get_operations()}
    made = without_pipelines(model)
    initial = frozenset(initializer.name for initializer in initializers(made.graph).values())
    origins = {**own, **model.origins, **read}
    return replace(source, model=made, own=own.keys(), origins=origins, initial=initial, part=Part.whole(made))


def without_pipelines(model: Model) -> Model:
    """A copy of a model with placeholders for what it reads of input pipelines; itself where it has none.

    Worked out once for what the model is now. Names stay as they are.
    """
    graph = model.graph
    state = (graph.version, len(model.gradient_calls), len(model.merged_rows))
    known = _known.get(model)
    if known is not None and known[0] == state:
        return known[1]
    pipelines = pipelines_of(graph)
    if not pipelines.inside:
        return model
    made = _without(model, pipelines)
    _known[model] = state, made
    return made


def with_placeholders(model: Model, tensors: Mapping[str, Any]) -> Model:
    """A copy of a model, without pipelines, in which placeholders of the given names are in the place of tensors."""
    return _without(without_pipelines(model), Pipelines(elements=tensors))


def _without(model: Model, pipelines: Pipelines) -> Model:
    graph, meta = model.graph, exported(model.graph)
    _put_in_place(meta, pipelines.elements, pipelines.inside)
    copy = tf.Graph()
    copy.seed = graph.seed
    kept = {node.name for node in meta.graph_def.node}
    for op in graph.get_operations():
        if op.name in kept:
            add_functions(op, copy)
    meta.graph_def.library.Clear()
    with copy.as_default():
        meta_graph.import_scoped_meta_graph(meta)
    keep_said_shapes(graph, copy)
    made = Model(copy)
    made.terms = model.terms
    for call in pipelines.redirected(model.gradient_calls):
        made.add_gradient_call(call)
    for rows in model.merged_rows:
        made.add_merged_rows(rows)
    return made


def _put_in_place(meta: Any, elements: Mapping[str, Any], inside: frozenset[str]) -> None:
    """Puts placeholders into the places of what a pipeline gives, and takes out the operations that made that.

    Nodes stay in the order in which the script has made them, which the importer reads.

    Args:
        meta: a graph.
        elements: the tensors, by the names of the placeholders.
        inside: names of the operations.
    """
    given: dict[str, str] = {}
    added: dict[str, list[Any]] = {}
    for place, tensor in elements.items():
        given[tensor.name] = f"{place}:0"
        made = tf.compat.v1.NodeDef(name=place, op=PLACEHOLDER)
        made.attr["dtype"].type = tensor.dtype.as_datatype_enum
        made.attr["shape"].shape.CopyFrom(tensor.shape.as_proto())
        added.setdefault(tensor.op.name, []).append(made)
    places = {name.split(":")[0]: place.split(":")[0] for name, place in given.items()}
    kept = []
    for node in without_hints(meta.graph_def.node):
        kept += [*([] if node.name in inside else [node]), *added.get(node.name, ())]
    for node in kept:
        inputs = []
        for name in node.input:
            if name.startswith("^"):
                reached = places.get(name[1:], name[1:])
                inputs += [f"^{reached}"] if reached not in inside else []
            else:
                inputs.append(given.get(name if ":" in name else f"{name}:0", name))
        del node.input[:]
        node.input.extend(inputs)
    del meta.graph_def.node[:]
    meta.graph_def.node.extend(kept)
    for collection in meta.collection_def.values():
        if collection.HasField("node_list"):
            named = [given.get(name, name) for name in collection.node_list.value]
            del collection.node_list.value[:]
            collection.node_list.value.extend(name for name in named if name.split(":")[0] not in inside)
