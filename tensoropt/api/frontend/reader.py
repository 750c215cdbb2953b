"""Reads operations of a TensorFlow graph as operators of ours, one by one."""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import itertools
import os
from collections.abc import Collection, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf

from tensoropt.api.frontend.attributes import decoded, types_of
from tensoropt.api.frontend.dilation import Dilated, dilated_convolution
from tensoropt.api.frontend.draws import draw_attrs, original_of
from tensoropt.api.frontend.effects import (
    Accesses,
    accesses_before,
    called_functions,
    is_plain_read,
    is_significant,
    late_reads,
    makes_handle,
)
from tensoropt.api.frontend.functions import TOKEN
from tensoropt.api.frontend.stand_ins import indices_of
from tensoropt.api.frontend.static_values import static_operands, static_value
from tensoropt.api.frontend.subgraphs import GIVEN_FOR_LISTS, Differentiated, Group, groups_of, is_done_once, is_opaque
from tensoropt.api.frontend.walks import needs, post_order, reached
from tensoropt.api.mirror.model import GradientCall, GradientOutput, MergedRows
from tensoropt.errors import GraphError
from tensoropt.graph.gradient_graphs import COUNT, GRADIENT_TYPE, GRAPH, traced_attrs
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import has_rule, traits
from tensoropt.graph.spec import TensorId, TensorSpec

__all__ = ["SINK", "Reader", "import_operators", "noted_tensors"]

# Packages whose frames are not the user's.
_LIBRARIES = ("tensorflow", "keras", "tf_keras", "tensoropt")
# Between the name of an operation and the place of the variable that is read for it.
_READ_FOR = "/read"
# After the name of a loss: the operator that holds the whole of it on every device.
SINK = "/sink"


def import_operators(
    graph: Any, roots: Sequence[Any], *, known: Iterable[str] = (), sources: Mapping[str, Any] | None = None
) -> list[Operator]:
    """The operators that ``roots`` (``tf.Operation``) need, in the order in which they were built."""
    return Reader(graph, (), (), sources or {}).operators(roots, known=known)


def noted_tensors(calls: Iterable[GradientCall], merged: Iterable[MergedRows]) -> dict[str, TensorId]:
    """Returns the outputs of our operators that stand for TensorFlow's tensors, by the names of these tensors.

    Names are the user's, and those of :func:`~tensoropt.api.frontend.static_graph.to_static_shapes`.
    """
    found: dict[str, TensorId] = {}
    for output in (output for call in calls for output in call.outputs):
        found |= dict.fromkeys((output.values, f"{output.name}:0"), TensorId(output.name))
        if output.indices is not None:
            found |= dict.fromkeys((output.indices, f"{indices_of(output)}:0"), TensorId(output.name, 1))
    for rows in merged:
        found[f"{rows.merged_values}:0"] = TensorId(rows.merged_values)
        found[f"{rows.merged_indices}:0"] = TensorId(rows.merged_values, 1)
    return found


@dataclass(frozen=True, slots=True)
class _Known(Container[str]):
    """Names of operators that are there, and of what has an effect in one of them, which it has once."""

    names: Container[str]
    effects: Mapping[str, str]

    def __contains__(self, name: object) -> bool:
        return name in self.names or (name in self.effects and self.effects[str(name)] in self.names)


class Reader:
    """Reads operations of one graph."""

    def __init__(
        self,
        graph: Any,
        calls: Sequence[GradientCall],
        merged: Sequence[MergedRows],
        sources: Mapping[str, Any],
        *,
        fetches: Collection[str] | None = None,
        initializers: Container[str] = (),
    ) -> None:
        """Takes a graph.

        Args:
            graph: TensorFlow's.
            calls: the gradients in it.
            merged: the merged rows in it.
            sources: the user's operations behind its own, by name.
            fetches: the names of what a run asks for, which may have shapes that only a run knows; None if that is
                not known yet.
            initializers: names of operations that give variables their initial values.
        """
        self._fetches = fetches
        self._graph = graph
        self._sources = sources
        self._late = late_reads(graph, initializers)
        self._significant = dict.fromkeys(self._late, True)
        self._accessed: Accesses = {}
        self._place = {op.name: float(position) for position, op in enumerate(graph.get_operations())}
        self._outputs = {
            output.name: (number, call, output) for number, call in enumerate(calls) for output in call.outputs
        }
        self._merged = {rows.merged_values: rows for rows in merged}
        self._given = noted_tensors(calls, merged)
        self._groups: dict[str, Group] = {}  # by their operators' names
        self._swallowed: dict[str, str] = {}  # the groups of operations that are no operators of their own
        self._effects: dict[str, str] = {}  # those of them that are done once
        self._tokens: dict[str, int] = {}  # the numbers of the user's Python functions
        outputs = [output for call in calls for output in call.outputs]
        self._differentiated = Differentiated(
            calls,
            frozenset(name for output in outputs for name in (output.name, indices_of(output)))
            | {name for rows in merged for name in (rows.merged_values, rows.merged_indices)},
        )
        self._has_opaque = any(map(is_opaque, graph.get_operations()))

    @property
    def gradient_names(self) -> tuple[str, ...]:
        """The names of the operators of gradients."""
        return tuple(self._outputs)

    def gradients(self) -> list[Operator]:
        """Operators of all gradients, and what they need."""
        return self._needed(self.gradient_names, frozenset())

    def operators(self, roots: Sequence[Any], *, known: Iterable[str] = ()) -> list[Operator]:
        """The operators that ``roots`` (``tf.Operation``) need, in the order in which they were built."""
        names = [self._reached(op) for op in roots]
        return self._needed(names, known if isinstance(known, set) else frozenset(known))

    def _needed(self, roots: Sequence[str], known: Container[str]) -> list[Operator]:
        before = dict(self._swallowed), dict(self._effects)
        try:
            return self._read_all(roots, _Known(known, self._effects))
        except GraphError:
            self._swallowed, self._effects = before  # no operator may wait for one that there is not
            raise

    def _read_all(self, roots: Sequence[str], known: Container[str]) -> list[Operator]:
        done: dict[str, Operator] = {}
        seen: set[str] = set()
        pending = list(roots)
        tf_roots = [self._graph.get_operation_by_name(name) for name in roots] if self._has_opaque else []
        found = groups_of(
            tf_roots, known, self._place, self._differentiated, accessed=self._accessed, fetches=self._fetches
        )
        groups = [group for group in map(self._of_its_own_name, found) if group.name not in known]
        for group in groups:
            read = {tensor.op for tensor in group.outputs}
            self._swallowed |= {op.name: group.name for op in group.operations if op not in read}
            self._effects |= {op.name: group.name for op in group.operations if op not in read and is_done_once(op)}
        for group in groups:
            made = self._subgraph(group)
            done |= {operator.name: operator for operator in made}
            seen.update(op.name for op in group.operations)
            seen.update(done)
            pending += [tensor.op for operator in made for tensor in operator.inputs]
            pending += [name for operator in made for name in operator.control_inputs]
        while pending:
            name = pending.pop()
            if name in known or name in seen:
                continue
            seen.add(name)
            made, before = self._read(name)
            done |= {operator.name: operator for operator in made}
            pending += before
            pending += [other for operator in made for other in operator.control_inputs]
        return self.in_order(list(done.values()))

    def _of_its_own_name(self, group: Group) -> Group:
        """A group, with a number in its name if another one, of an earlier reading, ends with the same operation."""
        names = (f"{group.name}{number or ''}" for number in itertools.count())
        name = next(name for name in names if self._groups.setdefault(name, group).is_as(group))
        return replace(group, name=name)

    def _read(self, name: str) -> tuple[list[Operator], list[str]]:
        """The operators of a name, and the names of those that they read."""
        if name in self._outputs:
            return self._gradient(*self._outputs[name])
        if name.endswith(SINK) and ":" in name:  # no operation's name has one, but a loss's
            loss = self._passed_on(self._tensor(name.removesuffix(SINK)))
            self._place[name] = self._place[loss.op.name] + 0.25
            sink = Operator(name, "Sink", (self._tensor_id(loss),), (_spec(loss),))
            return [sink], [sink.inputs[0].op]
        if name in self._merged:
            return self._merging(self._merged[name])
        tf_op = self._graph.get_operation_by_name(name)
        made, dynamic = self._operators(tf_op, self._origin(name))
        return made, [self._tensor_id(tensor).op for tensor in dynamic]

    def _tensor(self, name: str) -> Any:
        """TensorFlow's tensor of a name, or what stands for it: a gradient may be differentiated again as it is."""
        given = self._given.get(name)
        return self._graph.get_tensor_by_name(name if given is None else f"{given.op}:0")

    def _passed_on(self, tensor: Any) -> Any:
        """What a call of a function passes on under its own name, together with all else that the function gives."""
        while tensor.op.type == "IdentityN" and GRADIENT_TYPE not in tensor.op.node_def.attr:
            if tensor.name in self._differentiated.crossed:
                break
            tensor = tensor.op.inputs[tensor.value_index]
        return tensor

    def _origin(self, name: str) -> Any:
        """The operation that the user made."""
        return self._sources[name] if name in self._sources else self._graph.get_operation_by_name(name)

    def _is_plain_read(self, op: Any) -> bool:
        if not is_plain_read(op, self._significant) or op.name in self._late:
            return False
        return op.outputs[0].name not in self._differentiated.stopped

    def _reached(self, op: Any) -> str:
        """The name of the operator that an operation becomes; a plain read is its variable."""
        return str(op.inputs[0].op.name if self._is_plain_read(op) else op.name)

    def after_reads(self, operators: list[Operator]) -> list[Operator]:
        """Operators of which those that write a variable wait for the reads of it that groups have of their own."""
        read_for: dict[str, list[str]] = {}  # by operations in groups, the reads for them
        for group in (op for op in operators if op.body is not None):
            for place, (readers, _) in self._groups[group.name].late.items():
                for op in readers:
                    read_for.setdefault(op.name, []).append(group.inputs[place].op)

        def after(operator: Operator) -> Operator:
            op = self._graph.get_operation_by_name(operator.name)
            before = accesses_before(op.inputs, needs(op), self._accessed, writes=False)
            reads = sorted(name for each in before for name in read_for.get(each.name, ()))
            return replace(operator, control_inputs=tuple(dict.fromkeys((*operator.control_inputs, *reads))))

        return [after(op) if read_for and op.handles and traits(op).has_effect else op for op in operators]

    def in_order(self, operators: list[Operator]) -> list[Operator]:
        """Operators in the order in which they were built; a read that was added comes before what it was added for."""
        for op in sorted(operators, key=lambda op: not op.results):  # a group before the reads that are for it
            made_of = op.results[-1].split(":")[0] if op.results else op.name.rpartition(_READ_FOR)[0]
            self._place.setdefault(op.name, self._place.get(made_of, 0.0) - 0.5)
        ordered = sorted(operators, key=lambda op: self._place[op.name])
        return _after_what_they_read(ordered) if any(op.body is not None for op in ordered) else ordered

    def _gradient(self, number: int, call: GradientCall, output: GradientOutput) -> tuple[list[Operator], list[str]]:
        """The operator of a gradient: the gradient has the shape, and the layout, of what it belongs to."""
        names = [output.name] if output.indices is None else [output.name, indices_of(output)]
        given = [self._graph.get_operation_by_name(name) for name in names]
        source = _source(self._origin(output.values.split(":")[0]))
        if ":" in output.source:
            belongs = self._tensor(output.source)
            if self._is_plain_read(belongs.op):
                raise GraphError(
                    f"gradients ({source}): '{output.source}' is one reading of the variable "
                    f"'{belongs.op.inputs[0].op.name}'. Give the variable itself, whose gradient is that of all "
                    "readings, or a reading by tf.identity."
                )
            read = self._tensor_id(belongs)
        else:
            read = TensorId(output.source)
        sinks = tuple(f"{loss}{SINK}" for loss in call.losses)
        waits = self._waited_for(dep for op in given for dep in op.control_inputs)
        operator = Operator(
            output.name,
            "Gradient",
            (read,),
            tuple(_spec(op.outputs[0], source, given=True, rows=len(given) > 1) for op in given),
            MappingProxyType(
                {
                    "call": number,
                    "losses": sinks,
                    "stopped": tuple(str(self._tensor_id(self._tensor(name))) for name in call.stopped),
                }
            ),
            control_inputs=tuple(dict.fromkeys((*sinks, *waits))),
            source=source,
            handles=(0,),
        )
        return [operator], [read.op]

    def _waited_for(self, operations: Iterable[Any]) -> tuple[str, ...]:
        """The operators that it matters to wait for."""
        return tuple(sorted({self._operator_of(op) for op in operations if is_significant(op, self._significant)}))

    def _operator_of(self, op: Any) -> str:
        """The name of the operator that an operation is done by: a gradient's, a group's, or its own."""
        given = self._given.get(f"{op.name}:0")
        return self._swallowed.get(op.name, op.name) if given is None else given.op

    def _merging(self, rows: MergedRows) -> tuple[list[Operator], list[str]]:
        ops = [self._graph.get_operation_by_name(name) for name in (rows.merged_values, rows.merged_indices)]
        inputs = tuple(self._tensor_id(op.inputs[0]) for op in ops)
        outputs = tuple(_spec(op.outputs[0], rows=True) for op in ops)
        return [Operator(rows.merged_values, "MergeRows", inputs, outputs)], [tensor.op for tensor in inputs]

    def _tensor_id(self, tensor: Any) -> TensorId:
        if tensor.name in self._given:
            return self._given[tensor.name]
        op = tensor.op
        if op.name in self._effects:
            raise GraphError(
                f"{op.type} '{op.name}': is done once, amid operations on tensors whose shapes only a run knows, which "
                f"are one operator ('{self._effects[op.name]}'). Fetch what it gives together with these."
            )
        if self._is_plain_read(op):
            return TensorId(op.inputs[0].op.name)
        return TensorId(op.name, tensor.value_index)

    def _subgraph(self, group: Group) -> list[Operator]:
        """The operator that a group becomes, and one for each of its operations that others read, of its name."""
        source = _source(self._origin(group.operations[0].name))
        waits = (dep for op in group.operations for dep in op.control_inputs if dep not in group.operations)
        whole = Operator(
            group.name,
            "Subgraph",
            tuple(self._tensor_id(tensor) for tensor in group.inputs),
            tuple(_spec_of_group(tensor, source) for tensor in group.outputs),
            MappingProxyType({"ops": " ".join(op.type for op in group.operations), "digest": group.digest}),
            control_inputs=self._waited_for(waits),
            source=source,
            node={},
            body=group.body,
            results=group.results,
            draws=group.draws,
        )
        late = {place: self._waited_for(writes) for place, (_, writes) in group.late.items()}
        reads, whole = self._reads_of(whole, late)
        for read, (readers, _) in zip(reads, group.late.values(), strict=True):
            self._place[read.name] = self._place[readers[0].name] - 0.5  # later writes come before the group
        places = {tensor.name: place for place, tensor in enumerate(group.outputs)}
        passed = []
        for op in dict.fromkeys(tensor.op for tensor in group.outputs):
            given = [tensor for tensor in op.outputs if tensor.name in places]
            passed.append(
                Operator(
                    op.name,
                    "IdentityN",
                    tuple(TensorId(group.name, places[tensor.name]) for tensor in given),
                    tuple(_spec_of_group(tensor, source) for tensor in given),
                    MappingProxyType({"T": tuple(_dtype_of_group(tensor).name for tensor in given)}),
                    source=source,
                    node={"T": types_of(map(_dtype_of_group, given))},
                )
            )
        return [*reads, whole, *passed]

    def _operators(self, tf_op: Any, origin: Any) -> tuple[list[Operator], list[Any]]:
        """The operators that an operation becomes, and the tensors that they read.

        One, mostly; a lookup in a variable that waits for a write needs a read of its own, which waits too.
        """
        operator, dynamic = self._operator(tf_op, origin)
        reads, operator = self._reading_late(operator, dynamic)
        return [*reads, operator], dynamic

    def _reading_late(self, operator: Operator, tensors: Sequence[Any]) -> tuple[list[Operator], Operator]:
        """Reads of the variables whose values an operator takes, after what it waits for, and the operator itself.

        What its inputs wait for counts where that may write the variable.

        Args:
            operator: as it is by itself.
            tensors: its inputs in TensorFlow's graph.
        """
        late = {}
        for place, tensor in enumerate(tensors):
            if tensor.dtype != tf.resource or place in operator.handles:
                continue
            before = self._waited_for(
                x.op for x in tensors if accesses_before([tensor], [x.op], self._accessed, writes=True)
            )
            after = tuple(dict.fromkeys((*operator.control_inputs, *before)))
            if after or operator.name in self._late:
                late[place] = after
        return self._reads_of(operator, late)

    def _reads_of(self, operator: Operator, late: Mapping[int, tuple[str, ...]]) -> tuple[list[Operator], Operator]:
        """Reads of the variables that an operator takes, by place, each after others; and the operator itself."""
        inputs, reads = list(operator.inputs), []
        for place, after in late.items():
            (spec,) = _variable(self._graph.get_operation_by_name(inputs[place].op), operator.source).outputs
            node = {"dtype": tf.compat.v1.AttrValue(type=tf.as_dtype(spec.dtype).as_datatype_enum)}
            read = Operator(
                f"{operator.name}{_READ_FOR}{place}",
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
        return reads, replace(operator, inputs=tuple(inputs))

    def _operator(self, tf_op: Any, origin: Any) -> tuple[Operator, list[Any]]:
        source = _source(origin)
        if makes_handle(tf_op):
            return _variable(tf_op, source), []
        if traits(tf_op).gives_shape and tf_op.inputs[0].dtype == tf.string:
            return _constant(tf_op, source), []  # nobody needs the texts for it
        dilated = dilated_convolution(tf_op)
        if dilated is not None and self._differentiated.crossed.isdisjoint(
            tensor.name for op in dilated.between for tensor in op.outputs
        ):
            return self._dilated(tf_op, dilated, origin)
        fixed = static_operands(tf_op)
        static: dict[int, Any] = {}
        dynamic: list[Any] = []
        controls = list(tf_op.control_inputs)
        for position, tensor in enumerate(tf_op.inputs):
            if position not in fixed:
                dynamic.append(tensor)
                continue
            value = static_value(tensor)
            if value is None:
                raise GraphError(
                    f"{tf_op.type} '{tf_op.name}' ({source}): its {fixed[position]} is '{tensor.name}', which is not "
                    "known before the graph runs. Give it as a constant, or give all placeholders full shapes "
                    "(batch_size=…)."
                )
            static[position] = value
            controls += _controls_of(tensor)
        functions = called_functions(tf_op)
        if functions is None:
            raise GraphError(
                f"{tf_op.type} '{tf_op.name}' ({source}): has branches or a body of its own, which devices cannot "
                "follow. Compute both branches and choose with tensoropt.where, write a loop's turns one after "
                "another, or feed what it computes, such as a learning rate."
            )
        node = tf_op.node_def.attr  # TensorFlow writes and reads the whole definition for each use of it
        attrs = {key: decoded(value) for key, value in node.items() if not key.startswith("_")}
        if traits(tf_op).is_constant:
            # Not by get_static_value, after which it could not be fed.
            attrs = {"value": tf.make_ndarray(tf_op.get_attr("value")), "dtype": attrs["dtype"]}
        if TOKEN in attrs:  # TensorFlow's counts what a process has made before
            attrs[TOKEN] = self._tokens.setdefault(attrs[TOKEN], len(self._tokens))
        traced = GRAPH in node
        if traced:
            attrs |= traced_attrs(node)
        outputs = tf_op.outputs[: attrs[COUNT]] if traced else tf_op.outputs
        op_type, original = tf_op.type, original_of(node)
        if original is not None:
            # Beside the shape, which is fixed, an operator has a random op's own operands, and the counts.
            _, counts, _, *limits = dynamic
            op_type, dynamic, node = original.op, [*limits, counts], original.attr
            attrs = {key: decoded(value) for key, value in node.items()} | draw_attrs(original)
        itself = not has_rule(op_type) or traits(tf_op).on_variable
        operator = Operator(
            tf_op.name,
            op_type,
            tuple(self._tensor_id(tensor) for tensor in dynamic),
            tuple(_spec(tensor, source) for tensor in outputs),
            MappingProxyType(attrs),
            MappingProxyType(static),
            self._waited_for(controls),
            source,
            dict(node),
            tuple(place for place, tensor in enumerate(dynamic) if itself and tensor.dtype == tf.resource),
            functions,
        )
        return operator, dynamic

    def _dilated(self, tf_op: Any, dilated: Dilated, origin: Any) -> tuple[Operator, list[Any]]:
        """The convolution as an operator that makes what the last of its operations does."""
        operator, dynamic = self._operator(dilated.convolution, origin)
        controls = [dep for op in (*dilated.between, tf_op) for dep in op.control_inputs]
        made = replace(
            operator,
            name=tf_op.name,
            inputs=(self._tensor_id(dilated.image), *operator.inputs[1:]),
            outputs=(_spec(tf_op.outputs[0], operator.source),),
            attrs=MappingProxyType({**operator.attrs, **dilated.attrs}),
            control_inputs=self._waited_for(controls),
        )
        return made, [dilated.image, *dynamic[1:]]


def _after_what_they_read(operators: Sequence[Operator]) -> list[Operator]:
    """Operators each after what it reads; otherwise in the order given, as far as subgraphs let it be."""
    by_name = {op.name: op for op in operators}

    def before(name: str) -> list[str]:
        op = by_name[name]
        return [each for each in (*(tensor.op for tensor in op.inputs), *op.control_inputs) if each in by_name]

    def circle(name: str) -> NoReturn:
        raise GraphError(
            f"{by_name[name]}: needs a gradient of what it makes itself, as it works with tensors whose shapes only a "
            "run knows before and after that. Use after the gradient only what has a known shape, such as sums."
        )

    return [by_name[name] for name in post_order(by_name, before, circle)]


def _controls_of(tensor: Any) -> list[Any]:
    """Returns the operations that a static operand waits for; the operand is no input of its operator.

    TensorFlow makes only the first ops under a control dependency wait, such as the constant shape of a reshape, and
    not the ops that read these.
    """
    # A tensor that is no integer has given its shape.
    operations = reached([tensor.op], lambda op: [operand.op for operand in op.inputs if operand.dtype.is_integer])
    return [dep for op in operations for dep in op.control_inputs]


def _variable(tf_op: Any, source: str | None) -> Operator:
    attrs = {key: decoded(value) for key, value in tf_op.node_def.attr.items() if not key.startswith("_")}
    if attrs["shape"] is None:
        raise GraphError(f"Variable '{tf_op.name}' ({source}): its shape is unknown. Give it a full shape.")
    spec = TensorSpec(attrs["shape"], attrs["dtype"])
    return Operator(tf_op.name, "Variable", (), (spec,), source=source)


def _constant(tf_op: Any, source: str | None) -> Operator:
    """Makes a constant operator for an operation whose value is known before the graph runs."""
    (output,) = tf_op.outputs
    value = static_value(output)
    if value is None:
        raise GraphError(f"{tf_op.type} '{tf_op.name}' ({source}): is of texts of a shape that only a run knows.")
    node = tf.compat.v1.NodeDef()
    node.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(value, output.dtype))
    node.attr["dtype"].type = output.dtype.as_datatype_enum
    attrs = {"value": np.asarray(value, output.dtype.as_numpy_dtype), "dtype": output.dtype.name}
    return Operator(
        tf_op.name, "Const", (), (_spec(output),), MappingProxyType(attrs), source=source, node=dict(node.attr)
    )


def _spec(tensor: Any, source: str | None = None, *, given: bool = False, rows: bool = False) -> TensorSpec:
    """Returns the spec of a tensor, whose shape must be known; with ``rows``, its first dimension may be open."""
    where = f" ({source})" if source else ""
    fed = traits(tensor.op).is_input and not given
    if tensor.dtype in (tf.resource, tf.variant) or (tensor.dtype == tf.string and fed):
        raise GraphError(
            f"{tensor.op.type} '{tensor.op.name}'{where}: its output is a {tensor.dtype.name} tensor, which devices "
            "cannot exchange. Keep such ops in the input pipeline."
        )
    if tensor.value_index in traits(tensor.op).scratch_outputs and not tensor.consumers():
        return TensorSpec((0,), tensor.dtype.name)
    if rows and tensor.shape.rank and tensor.shape[1:].is_fully_defined():
        return _open_spec(tensor)
    if not tensor.shape.is_fully_defined():
        raise GraphError(
            f"{tensor.op.type} '{tensor.op.name}'{where}: its output has shape {tensor.shape}, but planning needs "
            "every size. Give the placeholders full shapes, and batches of a dataset drop_remainder=True, or "
            "find_strategy(batch_size=…)."
        )
    return TensorSpec(tuple(tensor.shape.as_list()), tensor.dtype.name)


def _dtype_of_group(tensor: Any) -> Any:
    return GIVEN_FOR_LISTS if tensor.dtype == tf.variant else tensor.dtype


def _spec_of_group(tensor: Any, source: str | None) -> TensorSpec:
    """Returns the spec of a tensor that every device has whole, so that its shape may be open."""
    if tensor.dtype == tf.variant:
        return TensorSpec((), GIVEN_FOR_LISTS.name)
    return _spec(tensor, source) if tensor.shape.is_fully_defined() else _open_spec(tensor)


def _open_spec(tensor: Any) -> TensorSpec:
    """Returns the spec of a tensor with open sizes: they count as 0, which nothing splits."""
    sizes = tensor.shape.as_list() if tensor.shape.rank is not None else [None]
    return TensorSpec(tuple(size or 0 for size in sizes), tensor.dtype.name)


def _source(tf_op: Any) -> str | None:
    """``file:line`` of the user's call: the innermost frame outside of TensorFlow and of this package."""
    for frame in reversed(tf_op.traceback or ()):
        name = _file_of_the_user(frame.filename)
        if name is not None:
            return f"{name}:{frame.lineno}"
    return None


@functools.cache
def _file_of_the_user(path: str) -> str | None:
    """The name of a file of the user's code; None for one of a library."""
    is_library = path.startswith(("<frozen", contextlib.__file__, *_library_folders()))
    return None if is_library else Path(path).name


@functools.cache
def _library_folders() -> tuple[str, ...]:
    """Where the libraries are installed; a user's own folder may have the name of one."""
    specs = filter(None, map(importlib.util.find_spec, _LIBRARIES))
    return tuple(os.path.join(folder, "") for spec in specs for folder in spec.submodule_search_locations or ())
