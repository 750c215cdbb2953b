"""The model's graph as devices are to have it: of static shapes, and without what they do in a way of their own.

Gradients and merged rows are TensorFlow's in the model's graph. Here they are given, by operations of the names of our
operators, which the importer makes of them. So is what is read of input pipelines, by placeholders.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

import tensorflow as tf
from tensorflow.python.framework import meta_graph

from tensoropt.api.frontend.effects import PASSED_ON, PLACEHOLDER
from tensoropt.api.frontend.functions import add_functions
from tensoropt.api.frontend.meta_graphs import exported
from tensoropt.api.frontend.pipelines import pipelines_of
from tensoropt.api.mirror.model import GradientCall, GradientOutput, MergedRows, Model
from tensoropt.graph.registry import traits

__all__ = ["Given", "Part", "device_graph", "given_in", "indices_of", "merged_from", "part_of", "without_pipelines"]

# By model: its graph's version and the numbers of its differentiations and merged rows, and what it was made to then.
_without: WeakKeyDictionary[Model, tuple[tuple[int, ...], Model]] = WeakKeyDictionary()


@dataclass(frozen=True, slots=True)
class Given:
    """What stands in the place of a tensor of gradients, or of an input pipeline.

    Attributes:
        name: of the operation that gives it.
        dtype: TensorFlow's.
        shape: a ``tf.TensorShape``.
        after: names of operations that it comes after.
        like: name of a tensor that always has its shape, if any.
    """

    name: str
    dtype: Any
    shape: Any
    after: tuple[str, ...]
    like: str | None = None


def given_in(graph: Any, calls: Sequence[GradientCall], inside: Collection[str]) -> dict[str, Given]:
    """What stands in the places of gradients in a graph, by the names of TensorFlow's tensors there.

    Args:
        graph: a model's graph, or a copy of it.
        calls: the differentiations.
        inside: the operations that TensorFlow made for gradients.
    """
    found: dict[str, Given] = {}
    for call in calls:
        losses = [graph.get_tensor_by_name(name).op.name for name in call.losses]
        for output in call.outputs:
            for name, place in ((output.values, output.name), (output.indices, indices_of(output))):
                if name is None:
                    continue
                tensor = graph.get_tensor_by_name(name)
                before = [op.name for op in tensor.op.control_inputs if op.name not in inside]
                shape = tensor.shape
                if output.indices is None and ":" not in output.source:  # what TensorFlow may not know behind a loop
                    shape = tf.TensorShape(graph.get_operation_by_name(output.source).get_attr("shape"))
                like = output.source if output.indices is None and ":" in output.source else None
                found[name] = Given(place, tensor.dtype, shape, tuple(dict.fromkeys((*losses, *before))), like)
    return found


def merged_from(rows: Sequence[MergedRows]) -> dict[str, str]:
    """For the operations that give merged rows, the names of the tensors before."""
    return {after: before for one in rows for after, before in _merges(one)}


def _merges(rows: MergedRows) -> tuple[tuple[str, str], tuple[str, str]]:
    return (rows.merged_values, rows.values), (rows.merged_indices, rows.indices)


def indices_of(output: GradientOutput) -> str:
    """The name of the operation that gives the indices of a gradient's rows."""
    return f"{output.name}/indices"


@dataclass(frozen=True, slots=True)
class Part:
    """Some operations of a model, with all that they need.

    Attributes:
        operations: their names; a gradient is by the name of our operator, and needs its losses and what it is of.
        gradients: the differentiations of which they need gradients, with no others.
        merged: the rows among them.
        inferred_from: with those that TensorFlow computes these gradients by, which say what shapes they have.
    """

    operations: frozenset[str]
    gradients: tuple[GradientCall, ...]
    merged: tuple[MergedRows, ...]
    inferred_from: frozenset[str]


def part_of(model: Model, names: Iterable[str], given: Collection[str] = ()) -> Part:
    """The part of a model that some operations are.

    Args:
        model: the model.
        names: of operations, or of operators that are gradients.
        given: names of tensors that are there already, of which nothing is needed.
    """
    graph = model.graph
    outputs = [(call, output) for call in model.gradient_calls for output in call.outputs]
    inside = frozenset().union(*(call.inside for call in model.gradient_calls))
    gradients = {name: found for found in outputs for name in (found[1].name, indices_of(found[1]))}
    by_tensor = {name: output for _, output in outputs for name in (output.values, output.indices) if name is not None}
    by_op: dict[str, list[str]] = {}
    for name, output in by_tensor.items():
        by_op.setdefault(name.split(":")[0], []).append(output.name)
    merged = {name: rows for rows in model.merged_rows for name in (rows.merged_values, rows.merged_indices)}

    def made_by(tensor: Any) -> list[str]:
        if tensor.name in given:
            return []
        output = by_tensor.get(tensor.name)
        return [tensor.op.name] if output is None else [output.name]

    def before(op: Any) -> list[str]:
        """What a control input is in the graph of devices."""
        return by_op.get(op.name) or ([] if op.name in inside else [op.name])

    found: set[str] = set()
    pending = [name for given in names for name in by_op.get(given, [given])]
    while pending:
        name = pending.pop()
        if name in found:
            continue
        found.add(name)
        if name in gradients:
            call, output = gradients[name]
            found |= {output.name, *([] if output.indices is None else [indices_of(output)])}
            tensors = [*call.losses, *call.stopped, *([output.source] if ":" in output.source else [])]
            pending += [made for tensor in tensors for made in made_by(graph.get_tensor_by_name(tensor))]
            pending += [] if ":" in output.source else [output.source]
            for tensor in filter(None, (output.values, output.indices)):
                controls = graph.get_tensor_by_name(tensor).op.control_inputs
                pending += [control.name for control in controls if control.name not in inside]
        elif name in merged:
            rows = merged[name]
            pending += [rows.merged_values, rows.merged_indices]
            tensors = [rows.values, rows.indices]
            pending += [made for tensor in tensors for made in made_by(graph.get_tensor_by_name(tensor))]
        else:
            op = graph.get_operation_by_name(name)
            pending += [made for tensor in op.inputs for made in made_by(tensor)]
            pending += [made for control in op.control_inputs for made in before(control)]
    calls = [replace(call, outputs=tuple(o for o in call.outputs if o.name in found)) for call in model.gradient_calls]
    calls = [call for call in calls if call.outputs]
    return Part(
        frozenset(found),
        tuple(calls),
        tuple(rows for rows in model.merged_rows if rows.merged_values in found),
        _inferred_from(graph, found, calls, merged),
    )


def _inferred_from(
    graph: Any, found: Collection[str], calls: Sequence[GradientCall], merged: Mapping[str, MergedRows]
) -> frozenset[str]:
    outputs = [output for call in calls for output in call.outputs]
    given = {name for output in outputs for name in (output.name, indices_of(output))}
    tensors = [name for output in outputs for name in (output.values, output.indices) if name is not None]
    pending = [*(name for name in found if name not in given), *(name.split(":")[0] for name in tensors)]
    seen: set[str] = set()
    while pending:
        name = pending.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in merged:
            pending += [tensor.split(":")[0] for tensor in (merged[name].values, merged[name].indices)]
            continue
        op = graph.get_operation_by_name(name)
        pending += [tensor.op.name for tensor in op.inputs]
        pending += [control.name for control in op.control_inputs]
    return frozenset(seen)


def without_pipelines(model: Model) -> Model:
    """A copy of a model with placeholders for what it reads of input pipelines; itself where it has none.

    Worked out once for what the model is now. Names stay as they are.
    """
    graph = model.graph
    state = (graph.version, len(model.gradient_calls), len(model.merged_rows))
    known = _without.get(model)
    if known is not None and known[0] == state:
        return known[1]
    pipelines = pipelines_of(graph)
    if not pipelines.inside:
        return model
    meta = _exported(graph, {})
    given = {x.name: Given(place, x.dtype, x.shape, ()) for place, x in pipelines.elements.items()}
    _put_in_place(meta, given, pipelines.inside)
    copy = tf.Graph()
    copy.seed = graph.seed
    kept = {node.name for node in meta.graph_def.node}
    for op in graph.get_operations():
        if op.name in kept:
            add_functions(op, copy)
    meta.graph_def.library.Clear()
    with copy.as_default():
        meta_graph.import_scoped_meta_graph(meta)
    _keep_said_shapes(graph, copy)
    made = Model(copy)
    for call in pipelines.redirected(model.gradient_calls):
        made.add_gradient_call(call)
    for rows in model.merged_rows:
        made.add_merged_rows(rows)
    _without[model] = state, made
    return made


def device_graph(
    model: Model, shapes: Mapping[str, Sequence[int]], part: Part | None = None, *, cut: bool = True
) -> Any:
    """A copy of the model's graph without the operations that TensorFlow made for gradients.

    Args:
        model: the model.
        shapes: of placeholders that the model leaves open, by name.
        part: what is copied, without collections; by default all.
        cut: whether gradients are taken out.

    Returns:
        The model's own graph where there is nothing to change.

    Raises:
        ValueError: TensorFlow finds that the shapes do not go together.
    """
    graph = model.graph
    calls, merged = model.gradient_calls, model.merged_rows
    if part is not None:
        calls, merged = part.gradients, part.merged
    elif not shapes and not calls and not merged:
        return graph
    inside = frozenset().union(*(call.inside for call in model.gradient_calls))
    meta = _exported(graph, shapes)
    if cut and not any(output.indices is not None for call in calls for output in call.outputs):
        # All shapes are known without TensorFlow's gradients, which have sizes of the user's built in.
        _cut(meta, graph, calls, inside)
        if part is not None:
            _keep(meta, part.operations)
        _redirect(meta, merged_from(merged))
        made = _imported(meta)
        _keep_said_shapes(graph, made)
        return made
    if part is not None:
        _keep(meta, part.inferred_from)
    _redirect(meta, merged_from(merged))
    sized = graph
    if part is not None or shapes or merged:
        sized = _imported(meta)
        _keep_said_shapes(graph, sized)
    if not calls or not cut:
        return sized
    if sized is not graph:
        meta = _exported(sized, {})
    _cut(meta, sized, calls, inside)
    if part is not None:
        _keep(meta, part.operations)
    made = _imported(meta)
    _keep_said_shapes(sized, made)
    return made


def _exported(graph: Any, shapes: Mapping[str, Sequence[int]]) -> Any:
    meta = exported(graph)
    for node in meta.graph_def.node:
        if node.name in shapes:
            node.attr["shape"].shape.CopyFrom(tf.TensorShape(shapes[node.name]).as_proto())
        for name in ("_output_shapes", "_class"):
            node.attr.pop(name, None)
    return meta


def _imported(meta: Any) -> Any:
    copy = tf.Graph()
    with copy.as_default():
        meta_graph.import_scoped_meta_graph(meta)  # unlike import_meta_graph it adds no ops that save and restore
    return copy


def _keep_said_shapes(graph: Any, copy: Any) -> None:
    """Gives tensors of a copy the shapes that the user has said (``set_shape``), which no operation has.

    Not where placeholders are to have others than those that the user gave them.
    """
    pairs = [
        (tensor, graph.get_tensor_by_name(tensor.name))
        for op in copy.get_operations()
        for tensor in op.outputs
        if _has(graph, op)
    ]
    if any(traits(tensor.op).is_input and not tensor.shape.is_compatible_with(own.shape) for tensor, own in pairs):
        return
    for tensor, own in pairs:
        if not tensor.shape.is_fully_defined() and tensor.shape.is_compatible_with(own.shape):
            tensor.set_shape(own.shape)


def _has(graph: Any, op: Any) -> bool:
    """Whether a graph has an operation of this name and type, which the placeholders of gradients are not."""
    try:
        return bool(graph.get_operation_by_name(op.name).type == op.type)
    except KeyError:
        return False


def _keep(meta: Any, names: Collection[str]) -> None:
    """Leaves out all other operations, and collections, which name them."""
    kept = [node for node in meta.graph_def.node if node.name in names]
    del meta.graph_def.node[:]
    meta.graph_def.node.extend(kept)
    meta.collection_def.clear()


def _redirect(meta: Any, inputs: Mapping[str, str]) -> None:
    """Gives operations another first input."""
    for node in meta.graph_def.node:
        if node.name in inputs:
            node.input[0] = inputs[node.name]


def _cut(meta: Any, graph: Any, calls: Sequence[GradientCall], inside: frozenset[str]) -> None:
    """Puts placeholders into the places of gradients, and takes out what these were computed by.

    What the user's operations still read of it stays: the sizes of variables, for rows that are made whole.
    """
    _put_in_place(meta, given_in(graph, calls, inside), inside)


def _put_in_place(meta: Any, stand_ins: Mapping[str, Given], inside: frozenset[str]) -> None:
    """Puts placeholders into the places of tensors, and takes out the operations that made these."""
    nodes = meta.graph_def.node
    given: dict[str, str] = {}
    for name, one in stand_ins.items():
        given[name] = f"{one.name}:0"
        made = nodes.add(name=one.name, op=PLACEHOLDER if one.like is None else PASSED_ON)
        if one.like is None:
            made.attr["dtype"].type = one.dtype.as_datatype_enum
            made.attr["shape"].shape.CopyFrom(one.shape.as_proto())
        else:
            made.attr["T"].type = one.dtype.as_datatype_enum
            made.input.append(one.like)
        made.input.extend(f"^{op}" for op in one.after)
    read = _still_read(meta, inside, given)
    places = {name.split(":")[0]: place.split(":")[0] for name, place in given.items()}
    whole = tf.compat.v1.GraphDef()
    whole.CopyFrom(meta.graph_def)
    del nodes[:]
    nodes.extend(node for node in whole.node if node.name not in inside or node.name in read)
    for node in nodes:
        kept = []
        for name in node.input:
            if name.startswith("^"):
                reached = places.get(name[1:], name[1:])
                kept += [f"^{reached}"] if reached not in inside or reached in read else []
            else:
                kept.append(given.get(name if ":" in name else f"{name}:0", name))
        del node.input[:]
        node.input.extend(kept)
    for collection in meta.collection_def.values():
        if collection.HasField("node_list"):
            named = [given.get(name, name) for name in collection.node_list.value]
            del collection.node_list.value[:]
            collection.node_list.value.extend(name for name in named if name.split(":")[0] not in inside)


def _still_read(meta: Any, inside: frozenset[str], given: Mapping[str, str]) -> set[str]:
    """Of operations that are to be taken out, those that others read after gradients have been put in."""
    by_name = {node.name: node for node in meta.graph_def.node}
    found: set[str] = set()
    pending = [node for node in meta.graph_def.node if node.name not in inside]
    while pending:
        for name in pending.pop().input:
            op = name.split(":")[0]
            if name.startswith("^") or op not in inside or op in found:
                continue
            if (name if ":" in name else f"{name}:0") not in given:
                found.add(op)
                pending.append(by_name[op])
    return found
