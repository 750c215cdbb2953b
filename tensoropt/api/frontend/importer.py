"""Reads a TensorFlow graph into ours: the one importer behind every front end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import meta_graph

from tensoropt.api.frontend.effects import called_functions, is_plain_read, is_significant, makes_handle
from tensoropt.errors import GraphError
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import declaration, has_rule, traits
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.graph.verify import verify_graph

__all__ = ["import_graph", "import_operators"]

# Between the name of an operation and the place of the variable that is read for it.
_READ_FOR = "/read"


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
    operators = _store_whole(_in_order(graph, operators))
    operators += [
        Operator(
            f"{name}/sink",
            "Sink",
            (_tensor_id(graph.get_tensor_by_name(name), {}),),
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
        if is_plain_read(tf_op, significant):
            tf_op = tf_op.inputs[0].op
        if tf_op.name in known or tf_op.name in seen:
            continue
        seen.add(tf_op.name)
        origin = tf_op if sources is None else sources.get_operation_by_name(tf_op.name)
        made, dynamic = _operators(tf_op, significant, origin)
        done |= {operator.name: operator for operator in made}
        pending += [tensor.op for tensor in dynamic]
        pending += [graph.get_operation_by_name(name) for operator in made for name in operator.control_inputs]
    return _in_order(graph, list(done.values()))


def _in_order(graph: Any, operators: list[Operator]) -> list[Operator]:
    """Operators in the order in which they were built; a read that was added comes before what it was added for."""
    if len(operators) < 2:
        return operators
    order = {op.name: float(position) for position, op in enumerate(graph.get_operations())}
    for op in operators:
        order.setdefault(op.name, order.get(op.name.rpartition(_READ_FOR)[0], 0.0) - 0.5)
    return sorted(operators, key=lambda op: order[op.name])


def _store_whole(operators: list[Operator]) -> list[Operator]:
    """Says of variables that an operator without a rule takes itself, and of what uses those where they are stored,
    that they are to be whole."""
    whole = {op.inputs[place].op for op in operators if not has_rule(op.type) for place in op.handles}

    def is_whole(op: Operator) -> bool:
        return op.name in whole or any(op.inputs[place].op in whole for place in op.handles)

    said = {"whole": True}
    return [replace(op, attrs=MappingProxyType({**op.attrs, **said})) if is_whole(op) else op for op in operators]


def _operators(tf_op: Any, significant: dict[str, bool], origin: Any) -> tuple[list[Operator], list[Any]]:
    """The operators that an operation becomes, and the tensors that they read.

    One, mostly; a lookup in a variable that waits for a write needs a read of its own, which waits too.
    """
    operator, dynamic = _operator(tf_op, significant, origin)
    before = [tensor.op for tensor in dynamic if is_significant(tensor.op, significant)]
    after = tuple(dict.fromkeys((*operator.control_inputs, *(op.name for op in before))))
    inputs, reads = list(operator.inputs), []
    for place, tensor in enumerate(dynamic):
        if tensor.dtype == tf.resource and place not in operator.handles and after:
            (spec,) = _variable(tensor.op, operator.source).outputs
            node = {"dtype": tf.compat.v1.AttrValue(type=tf.as_dtype(spec.dtype).as_datatype_enum)}
            read = Operator(
                f"{tf_op.name}{_READ_FOR}{place}",
                "ReadVariableOp",
                (inputs[place],),
                (spec,),
                MappingProxyType({"dtype": spec.dtype}),
                control_inputs=after,
                source=operator.source,
                node=node,
                handles=(0,),
            )
            reads.append(read)
            inputs[place] = TensorId(read.name)
    return [*reads, replace(operator, inputs=tuple(inputs))], dynamic


def _operator(tf_op: Any, significant: dict[str, bool], origin: Any) -> tuple[Operator, list[Any]]:
    source = _source(origin)
    if makes_handle(tf_op):
        return _variable(tf_op, source), []
    static_operands = declaration(tf_op.type).static if has_rule(tf_op.type) else {}
    count = len(tf_op.inputs)
    fixed = {position % count: what for position, what in static_operands.items()} if count else {}
    static: dict[int, Any] = {}
    dynamic: list[Any] = []
    controls = list(tf_op.control_inputs)
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
        controls += _controls_of(tensor)
    if "_gradient_op_type" in tf_op.node_def.attr:
        raise GraphError(
            f"{tf_op.type} '{tf_op.name}' ({source}): has a gradient of its own (tf.custom_gradient), which devices "
            "could not follow. Write it with ops whose gradients TensorFlow knows; for tf.nn.silu and tf.nn.swish use "
            "tensoropt.nn's."
        )
    functions = called_functions(origin)
    if functions is None:
        raise GraphError(
            f"{tf_op.type} '{tf_op.name}' ({source}): has branches or a body of its own, which devices cannot "
            "follow. Compute both branches and choose with tensoropt.where, write a loop's turns one after another, "
            "or feed what it computes, such as a learning rate."
        )
    attrs = {key: _decode(value) for key, value in tf_op.node_def.attr.items() if not key.startswith("_")}
    if traits(tf_op).is_constant:
        attrs = {"value": tf.get_static_value(tf_op.outputs[0]), "dtype": attrs["dtype"]}
    itself = not has_rule(tf_op.type) or traits(tf_op).on_variable
    operator = Operator(
        tf_op.name,
        tf_op.type,
        tuple(_tensor_id(tensor, significant) for tensor in dynamic),
        tuple(_spec(tensor, source) for tensor in tf_op.outputs),
        MappingProxyType(attrs),
        MappingProxyType(static),
        tuple(dict.fromkeys(dep.name for dep in controls if is_significant(dep, significant))),
        source,
        dict(tf_op.node_def.attr),
        tuple(place for place, tensor in enumerate(dynamic) if itself and tensor.dtype == tf.resource),
        functions,
    )
    return operator, dynamic


def _controls_of(tensor: Any) -> list[Any]:
    """What an operand waits for that is no input of its operator.

    TensorFlow lets the first ops that are made under a control dependency wait, such as the constant shape of a
    reshape, and not those that read them.
    """
    found: list[Any] = []
    pending, seen = [tensor.op], {tensor.op}
    while pending:
        op = pending.pop()
        found += op.control_inputs
        # A tensor that is no integer has given its shape.
        before = {operand.op: None for operand in op.inputs if operand.dtype.is_integer and operand.op not in seen}
        pending += before
        seen |= before.keys()
    return found


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


def _tensor_id(tensor: Any, significant: dict[str, bool]) -> TensorId:
    op = tensor.op
    if is_plain_read(op, significant):
        return TensorId(op.inputs[0].op.name)
    return TensorId(op.name, tensor.value_index)


def _spec(tensor: Any, source: str | None = None) -> TensorSpec:
    where = f" ({source})" if source else ""
    fed = traits(tensor.op).is_input
    if tensor.dtype in (tf.resource, tf.variant) or (tensor.dtype == tf.string and fed):
        raise GraphError(
            f"{tensor.op.type} '{tensor.op.name}'{where}: its output is a {tensor.dtype.name} tensor, which devices "
            "cannot exchange. Keep such ops in the input pipeline."
        )
    if tensor.value_index in traits(tensor.op).scratch_outputs and not tensor.consumers():
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
    pinned = {(op.name, place) for op in operators for place in op.handles}
    for op in operators:
        inputs = tuple(renamed.get((op.name, position), tensor) for position, tensor in enumerate(op.inputs))
        result.append(replace(op, inputs=inputs))
        for index, spec in enumerate(op.outputs):
            tensor = TensorId(op.name, index)
            users = [user for user in readers.get(tensor, ()) if user not in pinned]
            if len(users) < 2:
                continue
            # They cost nothing to make, and a shared one would tie its consumers together.
            if traits(op).is_constant:
                for number, user in enumerate(users[1:], start=1):
                    copy = f"{op.name}/copy{number}"
                    result.append(replace(op, name=copy))
                    training.add(copy)
                    renamed[user] = TensorId(copy)
                continue
            fanout = f"{op.name}/fanout{index}"
            result.append(Operator(fanout, "Fanout", (tensor,), (spec,), source=by_name[op.name].source))
            training.add(fanout)
            renamed |= {user: TensorId(fanout) for user in users}
    return result, training


def _differentiable(graph: Graph, trainable: set[str], sinks: Sequence[str]) -> list[Edge]:
    """Edges on a path of floating-point tensors from a trained variable to a loss."""
    moved: set[TensorId] = set()
    for op in graph.operators:
        depends = op.name in trainable or (
            not traits(op).blocks_gradient and any(tensor in moved for tensor in op.inputs)
        )
        if depends:
            moved |= {TensorId(op.name, i) for i, spec in enumerate(op.outputs) if spec.is_differentiable}
    leads: set[str] = set(sinks)
    edges: list[Edge] = []
    for op in reversed(graph.operators):
        if op.name not in leads or traits(op).blocks_gradient:
            continue
        for position, tensor in enumerate(op.inputs):
            if tensor in moved and position in op.handles and not has_rule(op.type):
                raise GraphError(
                    f"{op}: the loss depends on variable '{tensor.op}' through it, and it has no rule, so its gradient "
                    "is unknown here. Compute it from the variable's value (read_value())."
                )
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
