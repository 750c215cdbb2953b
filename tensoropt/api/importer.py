"""Reads a TensorFlow graph into ours: the one importer behind every front end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import meta_graph

from tensoropt.errors import GraphError
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import declaration, has_rule
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.graph.verify import verify_graph

__all__ = ["import_graph", "import_operators"]

ASSIGNMENTS = ("AssignVariableOp", "AssignAddVariableOp", "AssignSubVariableOp")
_READS = ("ReadVariableOp",)
# A loop of TensorFlow 1 leads back to these.
_LOOPS = ("Merge", "RefMerge")
_NO_GRADIENT = ("StopGradient", "PreventGradient")
# Constants are copied per consumer: they cost nothing to make, and a shared one would tie its consumers together.
_COPIED = ("Const",)

# Outputs for TensorFlow's own gradient whose size is up to the device.
_SCRATCH = (("FusedBatchNormV3", 5),)


def import_graph(
    graph: Any,
    *,
    losses: Iterable[str] = (),
    parameters: Iterable[str] = (),
    trainable: Iterable[str] = (),
    updates: Iterable[str] = (),
    others: Iterable[str] = (),
    sources: Any = None,
) -> Graph:
    """The logical graph of a training step, and of whatever else may be fetched.

    Args:
        graph: a ``tf.Graph`` whose needed tensors have static shapes.
        losses: names of the tensors that training steps minimise.
        parameters: names of tensors that optimizers read, such as a decayed learning rate.
        trainable: names of the variables that are trained.
        updates: names of operations that a training step runs beside (assignments and groups of them).
        others: names of operations that may be fetched; what cannot be imported of them is left out.
        sources: the ``tf.Graph`` in which the user built the ops, if ``graph`` is a copy of it.

    Raises:
        GraphError: naming the user's op and line, if a tensor has no static shape or a dtype that cannot be moved,
            or an operand that must be fixed is not.
    """
    sinks = tuple(dict.fromkeys((*losses, *parameters)))
    roots = [graph.get_tensor_by_name(name).op for name in sinks]
    roots += [graph.get_operation_by_name(name) for name in updates]
    operators = import_operators(graph, roots, sources=sources)
    training = {op.name for op in operators} if roots else set()
    known = {op.name for op in operators}
    for name in others:
        if name in known:
            continue
        try:
            more = import_operators(graph, [graph.get_operation_by_name(name)], known=known, sources=sources)
        except GraphError:
            continue  # it is outside of training; fetching it will say that it is not in the plan's graph
        operators += more
        known |= {op.name for op in more}
    order = {op.name: position for position, op in enumerate(graph.get_operations())}
    operators.sort(key=lambda op: order[op.name])
    operators += [
        Operator(
            f"{name}/sink",
            "Sink",
            (_tensor_id(graph.get_tensor_by_name(name)),),
            (_spec(graph.get_tensor_by_name(name)),),
        )
        for name in sinks
    ]
    training |= {f"{name}/sink" for name in sinks}
    if not roots:
        training = {op.name for op in operators}
    operators, training = _with_fanouts(operators, training)
    result = Graph(tuple(operators), frozenset(training))
    differentiable = _differentiable(result, set(trainable), [f"{name}/sink" for name in losses])
    result = Graph(result.operators, result.training, frozenset(differentiable))
    verify_graph(result)
    return result


def import_operators(
    graph: Any, roots: Sequence[Any], *, known: Iterable[str] = (), sources: Any = None
) -> list[Operator]:
    """The operators that ``roots`` (``tf.Operation``) need, in the order in which they were built."""
    done: dict[str, Operator] = {}
    known = frozenset(known) if not isinstance(known, set) else known
    seen: set[str] = set()
    pending = list(roots)
    significant: dict[str, bool] = {}
    while pending:
        tf_op = pending.pop()
        if _is_plain_read(tf_op, significant):
            tf_op = tf_op.inputs[0].op
        if tf_op.name in known or tf_op.name in seen:
            continue
        seen.add(tf_op.name)
        origin = tf_op if sources is None else sources.get_operation_by_name(tf_op.name)
        operator, dynamic = _operator(tf_op, significant, _source(origin))
        done[operator.name] = operator
        pending += [tensor.op for tensor in dynamic]
        pending += [graph.get_operation_by_name(name) for name in operator.control_inputs]
    if len(done) < 2:
        return list(done.values())
    order = {op.name: position for position, op in enumerate(graph.get_operations())}
    return sorted(done.values(), key=lambda op: order[op.name])


def _operator(tf_op: Any, significant: dict[str, bool], source: str | None) -> tuple[Operator, list[Any]]:
    if tf_op.type == "VarHandleOp":
        return _variable(tf_op, source), []
    static_operands = declaration(tf_op.type).static if has_rule(tf_op.type) else {}
    count = len(tf_op.inputs)
    fixed = {position % count: what for position, what in static_operands.items()} if count else {}
    static: dict[int, Any] = {}
    dynamic: list[Any] = []
    for position, tensor in enumerate(tf_op.inputs):
        if position not in fixed:
            dynamic.append(tensor)
            continue
        value = _static_value(tensor)
        if value is None:
            raise GraphError(
                f"{tf_op.type} '{tf_op.name}' ({source}): its {fixed[position]} is '{tensor.name}', which is not known "
                "before the graph runs. Give it as a constant, or give all placeholders full shapes (batch_size=…)."
            )
        static[position] = value
    if "_gradient_op_type" in tf_op.node_def.attr:
        raise GraphError(
            f"{tf_op.type} '{tf_op.name}' ({source}): has a gradient of its own (tf.custom_gradient), which devices "
            "could not follow. Write it with ops whose gradients TensorFlow knows; for tf.nn.silu and tf.nn.swish use "
            "tensoropt.nn's."
        )
    if any(value.HasField("func") or value.list.func for value in tf_op.node_def.attr.values()):
        raise GraphError(
            f"{tf_op.type} '{tf_op.name}' ({source}): has branches or a body of its own, which devices cannot "
            "follow. Compute both branches and choose with tensoropt.where, write a loop's turns one after another, "
            "or feed what it computes, such as a learning rate."
        )
    attrs = {key: _decode(value) for key, value in tf_op.node_def.attr.items() if not key.startswith("_")}
    if tf_op.type == "Const":
        attrs = {"value": tf.get_static_value(tf_op.outputs[0]), "dtype": attrs["dtype"]}
    operator = Operator(
        tf_op.name,
        tf_op.type,
        tuple(_tensor_id(tensor) for tensor in dynamic),
        tuple(_spec(tensor, source) for tensor in tf_op.outputs),
        MappingProxyType(attrs),
        MappingProxyType(static),
        tuple(dict.fromkeys(dep.name for dep in tf_op.control_inputs if _is_significant(dep, significant))),
        source,
        dict(tf_op.node_def.attr),
    )
    return operator, dynamic


def _static_value(tensor: Any) -> Any:
    """The value of a tensor that depends on nothing but constants and static shapes, else None."""
    value = tf.get_static_value(tensor)
    if value is not None:
        return value
    # What TensorFlow does not fold by itself is computed, in a graph that holds nothing else.
    with tf.Graph().as_default() as scratch:
        copy = _constant_copy(tensor, scratch, {})
        if copy is None:
            return None
        with tf.compat.v1.Session(config=tf.compat.v1.ConfigProto(device_count={"GPU": 0})) as session:
            return session.run(copy)


def _constant_copy(tensor: Any, scratch: Any, made: dict[str, Any]) -> Any:
    """``tensor`` rebuilt in ``scratch`` from constants; None if it depends on anything else."""
    if tensor.name not in made:
        value = tf.get_static_value(tensor)
        op = tensor.op
        if value is not None:
            made[tensor.name] = tf.constant(value)
        elif op.op_def.is_stateful or not op.inputs or tensor.dtype in (tf.resource, tf.variant):
            made[tensor.name] = None
        else:
            operands = [_constant_copy(operand, scratch, made) for operand in op.inputs]
            made[tensor.name] = None
            if all(operand is not None for operand in operands):
                attrs = {key: item for key, item in op.node_def.attr.items() if not key.startswith("_")}
                copy = scratch.create_op(op.type, operands, [out.dtype for out in op.outputs], attrs=attrs)
                made |= {out.name: twin for out, twin in zip(op.outputs, copy.outputs, strict=True)}
    return made[tensor.name]


def _variable(tf_op: Any, source: str | None) -> Operator:
    attrs = {key: _decode(value) for key, value in tf_op.node_def.attr.items() if not key.startswith("_")}
    if attrs["shape"] is None:
        raise GraphError(f"Variable '{tf_op.name}' ({source}): its shape is unknown. Give it a full shape.")
    spec = TensorSpec(attrs["shape"], attrs["dtype"])
    return Operator(tf_op.name, "Variable", (), (spec,), source=source)


def _tensor_id(tensor: Any) -> TensorId:
    op = tensor.op
    if _is_plain_read(op, {}):
        return TensorId(op.inputs[0].op.name)
    return TensorId(op.name, tensor.value_index)


def _spec(tensor: Any, source: str | None = None) -> TensorSpec:
    where = f" ({source})" if source else ""
    if tensor.dtype in (tf.string, tf.resource, tf.variant):
        raise GraphError(
            f"{tensor.op.type} '{tensor.op.name}'{where}: its output is a {tensor.dtype.name} tensor, which devices "
            "cannot exchange. Keep such ops in the input pipeline."
        )
    if (tensor.op.type, tensor.value_index) in _SCRATCH and not tensor.consumers():
        return TensorSpec((0,), tensor.dtype.name)
    if not tensor.shape.is_fully_defined():
        raise GraphError(
            f"{tensor.op.type} '{tensor.op.name}'{where}: its output has shape {tensor.shape}, but planning needs "
            "every size. Give the placeholders full shapes, or find_strategy(batch_size=…)."
        )
    return TensorSpec(tuple(tensor.shape.as_list()), tensor.dtype.name)


def _decode(value: Any) -> Any:
    """An AttrValue as a Python value; functions and tensors as None (lowering passes the original on)."""
    kind = value.WhichOneof("value")
    if kind in ("i", "f", "b"):
        return getattr(value, kind)
    if kind == "s":
        return value.s.decode("utf-8", "replace")
    if kind == "type":
        return tf.dtypes.as_dtype(value.type).name
    if kind == "shape":
        return None if value.shape.unknown_rank else tuple(dim.size for dim in value.shape.dim)
    if kind == "list":
        fields = value.list
        texts = tuple(item.decode("utf-8", "replace") for item in fields.s)
        types = tuple(tf.dtypes.as_dtype(item).name for item in fields.type)
        return tuple(fields.i) or tuple(fields.f) or tuple(fields.b) or texts or types
    return None


def _is_plain_read(op: Any, significant: dict[str, bool]) -> bool:
    """Whether an operation reads a variable whenever it likes: it waits for no assignment or training step."""
    return op.type in _READS and not any(_is_significant(dep, significant) for dep in op.control_inputs)


def _is_significant(op: Any, memo: dict[str, bool]) -> bool:
    """Whether waiting for ``op`` matters.

    It does if ``op`` assigns a variable, groups what does (a training step is a group), or comes after such an
    operation itself.
    """
    pending = [op]
    while pending:
        current = pending[-1]
        before = [*(tensor.op for tensor in current.inputs), *current.control_inputs]
        unknown = [] if current.name in memo else [other for other in before if other.name not in memo]
        if current.type in (*ASSIGNMENTS, "NoOp"):
            memo[current.name] = True
        elif unknown and current.type not in _LOOPS:
            pending += unknown
            continue
        else:
            memo.setdefault(current.name, any(memo.get(other.name, False) for other in before))
        pending.pop()
    return memo[op.name]


def _source(tf_op: Any) -> str | None:
    """``file:line`` of the user's call: the innermost frame outside of TensorFlow and of this package."""
    for frame in reversed(tf_op.traceback or ()):
        name = frame.filename.replace("\\", "/")
        if not any(part in name for part in ("/tensorflow/", "/keras/", "/tensoropt/", "<frozen", "/contextlib.py")):
            return f"{name.rsplit('/', 1)[-1]}:{frame.lineno}"
    return None


def _with_fanouts(operators: list[Operator], training: set[str]) -> tuple[list[Operator], set[str]]:
    """Gives each tensor that several operators of training read one fan-out, and each reader of a constant its own.

    Operators outside of training read what training reads, so that they do not change its graph.
    """
    readers: dict[TensorId, list[tuple[str, int]]] = {}
    for op in operators:
        for position, tensor in enumerate(op.inputs):
            if op.name in training:
                readers.setdefault(tensor, []).append((op.name, position))
    renamed: dict[tuple[str, int], TensorId] = {}
    result: list[Operator] = []
    training = set(training)
    by_name = {op.name: op for op in operators}
    pinned = {(op.name, 0) for op in operators if op.type in (*ASSIGNMENTS, *_READS)}
    for op in operators:
        inputs = tuple(renamed.get((op.name, position), tensor) for position, tensor in enumerate(op.inputs))
        result.append(_replace_inputs(op, inputs))
        for index, spec in enumerate(op.outputs):
            tensor = TensorId(op.name, index)
            users = [user for user in readers.get(tensor, ()) if user not in pinned]
            if len(users) < 2:
                continue
            if op.type in _COPIED:
                for number, user in enumerate(users[1:], start=1):
                    copy = f"{op.name}/copy{number}"
                    result.append(Operator(copy, op.type, (), op.outputs, op.attrs, op.static, (), op.source, op.node))
                    training.add(copy)
                    renamed[user] = TensorId(copy)
                continue
            fanout = f"{op.name}/fanout{index}"
            result.append(Operator(fanout, "Fanout", (tensor,), (spec,), source=by_name[op.name].source))
            training.add(fanout)
            renamed |= {user: TensorId(fanout) for user in users}
    return result, training


def _replace_inputs(op: Operator, inputs: tuple[TensorId, ...]) -> Operator:
    return Operator(op.name, op.type, inputs, op.outputs, op.attrs, op.static, op.control_inputs, op.source, op.node)


def _differentiable(graph: Graph, trainable: set[str], sinks: Sequence[str]) -> list[Edge]:
    """Edges on a path of floating-point tensors from a trained variable to a loss."""
    moved: set[TensorId] = set()
    for op in graph.operators:
        depends = op.name in trainable or (op.type not in _NO_GRADIENT and any(tensor in moved for tensor in op.inputs))
        if depends:
            moved |= {TensorId(op.name, i) for i, spec in enumerate(op.outputs) if spec.is_differentiable}
    leads: set[str] = set(sinks)
    edges: list[Edge] = []
    for op in reversed(graph.operators):
        if op.name not in leads or op.type in _NO_GRADIENT:
            continue
        for position, tensor in enumerate(op.inputs):
            if tensor in moved:
                edges.append(Edge(tensor, op.name, position))
                leads.add(tensor.op)
    return edges


def static_shapes(graph: Any, batch_sizes: Mapping[str, Sequence[int]]) -> Any:
    """A copy of ``graph`` in which the named placeholders have the given shapes, all other shapes inferred anew."""
    with graph.as_default():  # TensorFlow exports no graph of a thread that is in eager mode
        meta = tf.compat.v1.train.export_meta_graph(graph=graph)
    for node in meta.graph_def.node:
        if node.name in batch_sizes:
            shape = tf.TensorShape(batch_sizes[node.name]).as_proto()
            node.attr["shape"].shape.CopyFrom(shape)
        node.attr.pop("_output_shapes", None)
    copy = tf.Graph()
    with copy.as_default():
        meta_graph.import_scoped_meta_graph(meta)  # unlike import_meta_graph it adds no ops that save and restore
    return copy
