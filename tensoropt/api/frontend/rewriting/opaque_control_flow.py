"""Branches and loops that stay TensorFlow's: one operator each, which every device runs whole."""

from __future__ import annotations

import itertools
import re
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf
from tensorflow.python.framework import func_graph
from tensorflow.python.ops import control_flow_util_v2

from tensoropt.api.frontend.attributes import HINTS, types_of
from tensoropt.api.frontend.functions import function_of, name_functions_by_content
from tensoropt.api.frontend.rewriting.rewriter import CannotRewrite, Rewriter, Scope
from tensoropt.api.frontend.rewriting.values import Value, VariableValue, held
from tensoropt.errors import GraphError

__all__ = ["kept"]

_STATELESS = "Stateless"


def kept(rewriter: Rewriter, op: Any, scope: Scope, reason: str) -> Sequence[Value]:
    """The op again, with functions that take the values of variables in place of variables.

    Args:
        rewriter: makes it.
        op: a branch or a loop.
        scope: of it.
        reason: why it cannot become plain ops.

    Raises:
        CannotRewrite: if it stands where it may have to run though its branch is not taken; then that is kept.
        GraphError: if it cannot be kept, since it assigns to variables.
    """
    if rewriter.probing or scope.guard is not None:
        raise CannotRewrite(reason)
    loop = "body" in op.node_def.attr
    lead = 0 if loop else 1  # branches do not get the condition
    arguments = [scope.value(x) for x in op.inputs]
    # One in a loop that is written out takes the same in each turn. What is read from outside differs by turn, and an
    # op with a state has one for each of the functions.
    key = op, *((type(value), *map(str, held(value))) for value in arguments[lead:])
    found = rewriter.kept.get(key) or _functions(rewriter, op, scope, arguments[lead:], reason)
    if not found.captured and not found.is_stateful:
        rewriter.kept[key] = found
    arguments += found.captured
    attrs = {name: value for name, value in op.node_def.attr.items() if name not in HINTS} | found.attrs
    stateful = found.is_stateful
    waits = rewriter.before_read(op, scope, arguments)
    operands = [rewriter.content(value, op, scope, "value", waits) for value in arguments]
    dtypes = [x.dtype for x in operands] if loop else [x.dtype for x in op.outputs]
    attrs["T" if loop else "Tin"] = types_of(x.dtype for x in operands[lead:])
    if loop:
        attrs["output_shapes"] = tf.compat.v1.AttrValue()
        attrs["output_shapes"].list.shape.extend(
            (x.shape if old is None or old.dtype == tf.resource or place in found.fixed else old.shape).as_proto()
            for place, (x, old) in enumerate(itertools.zip_longest(operands, op.outputs))
        )
    kind = op.type.removeprefix(_STATELESS)
    name = rewriter.name(op, scope) if loop and scope.outer is None else rewriter.free(f"{scope.prefix}{op.name}/kept")
    made = rewriter.make(kind if stateful else f"{_STATELESS}{kind}", operands, dtypes, attrs, name, op)
    before = scope.before(op)
    if before:
        made._add_control_inputs(before)
    if stateful:
        rewriter.effects.append(made)
    values: list[Value] = []
    for place, (new, old) in enumerate(zip(made.outputs, op.outputs, strict=False)):
        if new.dtype != tf.variant and new.shape.is_compatible_with(old.shape) and old.dtype != tf.resource:
            new.set_shape(old.shape)
        given = [] if loop else [branch.outputs[place].shape for branch in found.graphs]
        if given and all(shape == given[0] for shape in given) and given[0].is_fully_defined():
            new.set_shape(given[0])
        if not stateful and new.dtype not in (tf.resource, tf.variant) and new.shape.is_fully_defined():
            # What reads a tensor of known shape need not be part of the operator: it may write a variable.
            new = rewriter.build(tf.identity, new, of=op, scope=scope, name="given")
        values.append(arguments[place] if loop and old.dtype == tf.resource else new)
    return values


@dataclass(frozen=True, slots=True)
class _Functions:
    """The functions of a branch or loop that stays one operator.

    Attributes:
        graphs: their ops.
        attrs: the op's attributes that name them.
        fixed: places of what has the same shape in each call.
        captured: what gradient functions in them read from outside; they take it after the op's inputs.
        is_stateful: whether they have ops with a state.
    """

    graphs: Sequence[Any]
    attrs: dict[str, Any]
    fixed: Collection[int]
    captured: Sequence[Value]
    is_stateful: bool


def _functions(rewriter: Rewriter, op: Any, scope: Scope, arguments: Sequence[Value], reason: str) -> _Functions:
    """Makes functions of values of those that a branch or loop names.

    Args:
        rewriter: of the graph in which they are called.
        op: the branch or loop.
        scope: of it.
        arguments: what the functions take.
        reason: why the op cannot become plain ops.

    Raises:
        GraphError: one cannot be a function of values.
    """
    loop = "body" in op.node_def.attr
    named = {
        attr: len(value.list.func) or 1
        for attr, value in op.node_def.attr.items()
        if value.HasField("func") or value.list.func
    }
    captured: dict[Any, Value] = {}  # by the user's tensors
    known = [held(value)[1] for value in arguments]

    def function(attr: str, place: int) -> _Function:
        # Ranks compare what they have made, so names count nothing that differs between processes.
        called = f"{getattr(rewriter.graph, 'name', '')}/{scope.prefix}{op.name}/{attr}/{place}"
        result = _Function(called, rewriter, op, scope, captured)
        result.make(function_of(op, attr, place), arguments, fixed, reason)
        return result

    # What a loop carries may change its shape from turn to turn, unless a turn gives the shape that it is given.
    fixed = {place for place, shape in enumerate(known) if not loop or shape.is_fully_defined()}
    body = function("body", 0) if loop else None
    while body is not None and (changed := {place for place in fixed if body.given_shape(place) != known[place]}):
        fixed -= changed
        body = function("body", 0)
    functions = {
        attr: [body] if body is not None and attr == "body" else [function(attr, place) for place in range(count)]
        for attr, count in sorted(named.items())
    }
    attrs: dict[str, Any] = {}
    for attr, several in functions.items():
        # A loop's condition gives a truth, all other functions what the op gives.
        names = [each.finished(gives_captured=loop and attr == "body") for each in several]
        attrs[attr] = tf.compat.v1.AttrValue()
        if op.node_def.attr[attr].HasField("func"):
            attrs[attr].func.name = names[0]
        else:
            for name in names:
                attrs[attr].list.func.add(name=name)
    graphs = [each.graph for several in functions.values() for each in several]
    is_stateful = any(each.op_def.is_stateful for made in graphs for each in made.get_operations())
    return _Functions(graphs, attrs, fixed, [*captured.values()], is_stateful)


class _Function:
    """A function of values that does what one of TensorFlow's does, which may take variables.

    Gradient functions of a script's that are in it may read tensors from outside, which TensorFlow's does not take.
    This one takes them after its other inputs: made again in it, they might be others (random numbers).

    Attributes:
        graph: its ops.
    """

    def __init__(self, called: str, rewriter: Rewriter, op: Any, scope: Scope, captured: dict[Any, Value]) -> None:
        """Begins it.

        Args:
            called: what its name is made of.
            rewriter: of the graph in which it is called.
            op: of the user's, which calls it.
            scope: of that.
            captured: what functions of the op take from outside, by the user's tensors; gets more.
        """
        with rewriter.graph.as_default():
            readable = re.sub(r"\W", "_", called).strip("_")
            self.graph: Any = func_graph.FuncGraph(f"{readable[-80:]}_{zlib.crc32(called.encode()):08x}")
        self._rewriter, self._op, self._scope, self._captured = rewriter, op, scope, captured
        self._inputs: list[Any] = []
        self._outputs: list[Any] = []
        self._outside: dict[Any, Any] = {}  # inputs for what is captured

    def make(self, function: Any, arguments: Sequence[Value], fixed: Collection[int], reason: str) -> None:
        """Makes its ops.

        Args:
            function: TensorFlow's.
            arguments: what that takes.
            fixed: places of those that have the same shape in each call.
            reason: why the op cannot become plain ops.

        Raises:
            GraphError: if it cannot be a function of values.
        """
        op, inner = self._op, self._rewriter.beside(self.graph)
        given: dict[int, Value] = {}
        with self.graph.as_default():
            for place, (value, x) in enumerate(zip(arguments, function.inputs, strict=True)):
                dtype, shape = held(value)
                is_variable = x.dtype == tf.resource
                has_shape = is_variable or (place in fixed and shape.is_compatible_with(x.shape))
                stand = tf.compat.v1.placeholder(dtype, shape if has_shape else x.shape)
                self._inputs.append(stand)
                given[place] = VariableValue(stand) if is_variable else stand
        try:
            found = inner.call(function, given, self._outer(self._scope), op, "body")
            self._outputs = [_given_back(inner, op, value) for value in found.values()]
        except CannotRewrite as inside:
            raise GraphError(
                f"{op.type} '{op.name}': cannot become plain operators, since {reason}; nor can it run as one "
                f"operator, since {inside}. Let a loop carry what it would assign, and assign after it, or give it a "
                "number of turns that is known (maximum_iterations)."
            ) from inside
        for each in self.graph.get_operations():
            if "seed2" in each.node_def.attr and not each.get_attr("seed") and not each.get_attr("seed2"):
                seed = 1 + (zlib.crc32(f"{op.name}/{each.name}".encode()) >> 1)
                each._set_attr("seed2", tf.compat.v1.AttrValue(i=seed))
        self.graph.control_outputs = list(inner.effects)

    def given_shape(self, place: int) -> Any:
        """The shape of one of its outputs, once it is made."""
        return self._outputs[place].shape

    def _outer(self, scope: Scope) -> Scope:
        """The scopes around the function, of whose tensors it takes what it needs."""
        outer = None if scope.outer is None else self._outer(scope.outer)
        return Scope(scope.graph, outer=outer, capture=self._capture)

    def _capture(self, tensor: Any) -> Value:
        key = tensor.ref()
        if key not in self._captured:
            self._captured[key] = self._rewriter.value(tensor, self._scope)
        return self._stand(key)

    def _stand(self, key: Any) -> Value:
        """The input for what is captured."""
        if key not in self._outside:
            with self.graph.as_default(), tf.control_dependencies(None):
                self._outside[key] = tf.compat.v1.placeholder(*held(self._captured[key]))
        is_variable = key.deref().dtype == tf.resource
        return VariableValue(self._outside[key]) if is_variable else self._outside[key]

    def finished(self, *, gives_captured: bool) -> str:
        """Has it take all that any function of the op captures; returns its name, by which TensorFlow knows it.

        Args:
            gives_captured: whether it gives that, too, for the next turn of a loop.
        """
        for key in self._captured:
            self._stand(key)
        outside = [self._outside[key] for key in self._captured]
        made = self.graph
        made.inputs, made.outputs = [*self._inputs, *outside], [*self._outputs, *(outside if gives_captured else ())]
        # TensorFlow knows functions by their names, for as long as the process lives.
        definition = made.as_graph_def()
        name_functions_by_content(definition)
        content = definition.SerializeToString(deterministic=True)
        made.name += f"_{zlib.crc32(content + repr([x.name for x in made.outputs]).encode()):08x}"
        return str(control_flow_util_v2.create_new_tf_function(made))


def _given_back(rewriter: Rewriter, op: Any, value: Value) -> Any:
    return value.tensor if isinstance(value, VariableValue) else rewriter.tensor(value, op)
