"""Calls of functions and branches: inlined, and chosen by selects. Sizes that are capped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.api.frontend.effects import called_functions, has_effect, takes_handle
from tensoropt.api.frontend.functions import function_of
from tensoropt.api.frontend.rewriting.custom_gradients import gated
from tensoropt.api.frontend.rewriting.lists import chosen_list, legal_indices
from tensoropt.api.frontend.rewriting.opaque_control_flow import kept
from tensoropt.api.frontend.rewriting.rewriter import CALL, CannotRewrite, Handler, Rewriter, Scope, roots_of
from tensoropt.api.frontend.rewriting.values import TensorList, Value, VariableValue, or_zeros, select
from tensoropt.api.frontend.static_values import is_static, static_operands
from tensoropt.api.frontend.walks import order
from tensoropt.errors import GraphError
from tensoropt.graph.ops.random import numbers_skipped
from tensoropt.graph.registry import has_rule, traits

__all__ = ["CALL_HANDLERS", "SIZE_HANDLERS", "VARIABLE_HANDLERS", "choose", "guarded"]

_ASSIGN = "AssignVariableOp"
_ADDING = ("AssignAddVariableOp", "AssignSubVariableOp")
_ASSERT = "Assert"
_DIVISIONS = ("FloorDiv", "FloorMod", "Mod", "TruncateDiv", "TruncateMod", "Div", "RealDiv")


def _call(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    """A function that is called: its ops."""
    function = function_of(op, "f" if "f" in op.node_def.attr else None)
    return _called(rewriter, op, scope, function, op.inputs)


def _called(rewriter: Rewriter, op: Any, scope: Scope, function: Any, operands: Sequence[Any]) -> list[Value]:
    begun = len(rewriter.effects)
    arguments = {place: scope.value(x) for place, x in enumerate(operands)}
    unread = rewriter.unread(op, scope)
    found = rewriter.call(function, arguments, scope, op, f"{scope.prefix}{op.name}", unread=unread)
    values = [found.get(place) for place in range(len(op.outputs))]
    return rewriter.waiting(values, rewriter.effects[begun:], op, scope)


def _if(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    functions = [function_of(op, "then_branch"), function_of(op, "else_branch")]
    holds = rewriter.tensor(scope.value(op.inputs[0]), op)
    known = rewriter.known.computed(holds)
    if known is None and rewriter.known.truth(holds) is False:
        known = np.asarray(False)
    if known is not None:
        taken = functions[0] if known.size and np.any(known) else functions[1]
        return _called(rewriter, op, scope, taken, op.inputs[1:])
    acts = [any(has_effect(inner) for inner in function.get_operations()) for function in functions]
    if called_functions(op) is not None and (any(acts) or not op.outputs):
        # They check or print, and whatever else they do no gradient flows through: every device does alike.
        return None if scope.guard is None else _guarded_checks(rewriter, op, scope, acts, holds)
    if holds.dtype != tf.bool or holds.shape.rank != 0:
        if holds.shape.rank != 0 or not (holds.dtype.is_floating or holds.dtype.is_integer):
            return kept(rewriter, op, scope, "its condition is no single truth or number")
        holds = rewriter.build(lambda x: tf.not_equal(x, tf.zeros_like(x)), holds, of=op, scope=scope, name="holds")

    def other() -> Any:
        return rewriter.build(tf.logical_not, holds, of=op, scope=scope, name="otherwise")

    return _branches(rewriter, op, scope, functions, lambda: [holds, other()])


def _case(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    functions = [function_of(op, "branches", place) for place in range(len(op.get_attr("branches")))]
    index = rewriter.tensor(scope.value(op.inputs[0]), op)
    last = len(functions) - 1
    known = rewriter.known.value(index)
    if known is not None:
        return _called(rewriter, op, scope, functions[int(known) if 0 <= known <= last else last], op.inputs[1:])

    def conditions() -> list[Any]:
        """The last branch is taken for every index that no other has."""
        found = [
            rewriter.build(lambda x, k=k: tf.equal(x, k), index, of=op, scope=scope, name=f"is_{k}")
            for k in range(last)
        ]
        rest = found[0] if last else rewriter.constant(np.asarray(False), op)
        for each in found[1:]:
            rest = rewriter.build(tf.logical_or, rest, each, of=op, scope=scope, name="taken")
        return [*found, rewriter.build(tf.logical_not, rest, of=op, scope=scope, name="otherwise")]

    return _branches(rewriter, op, scope, functions, conditions)


def _branches(
    rewriter: Rewriter, op: Any, scope: Scope, functions: Sequence[Any], conditions: Callable[[], Sequence[Any]]
) -> Sequence[Value]:
    """All branches computed, and their results chosen by conditions, of which one holds; or one operator."""
    begun = len(rewriter.effects)
    try:
        with rewriter.attempt():
            values = _chosen(rewriter, op, scope, functions, conditions)
    except CannotRewrite as reason:
        return kept(rewriter, op, scope, str(reason))
    found = [values.get(place) for place in range(len(op.outputs))]
    return rewriter.waiting(found, rewriter.effects[begun:], op, scope)


def _chosen(
    rewriter: Rewriter, op: Any, scope: Scope, functions: Sequence[Any], conditions: Callable[[], Sequence[Any]]
) -> dict[int, Value]:
    """The results of branches by place, chosen by conditions.

    Raises:
        CannotRewrite: an op of a branch may not run where that is not taken, or results cannot be chosen from.
    """
    begun, unread = len(rewriter.effects), rewriter.unread(op, scope)
    for function in functions:
        check(rewriter, order(roots_of(function, unread)))
    results = []
    given = conditions()
    for number, (function, condition) in enumerate(zip(functions, given, strict=True)):
        guard = condition
        if scope.guard is not None:
            guard = rewriter.build(tf.logical_and, scope.guard, condition, of=op, scope=scope, name="guard")
        arguments = {
            place: gated(rewriter, scope.value(x), condition, op, scope) for place, x in enumerate(op.inputs[1:])
        }
        prefix = f"{scope.prefix}{op.name}/branch_{number}"
        # One branch after the other: the one that is not taken writes what it has read.
        before = [*rewriter.effects[begun:], *rewriter.late([condition])]
        made = rewriter.call(function, arguments, scope, op, prefix, unread=unread, guard=guard, after=before)
        results.append(made)
    values = dict(results[-1])
    for result, condition in zip(results[-2::-1], given[-2::-1], strict=True):
        values |= {place: choose(rewriter, condition, result[place], x, op, scope) for place, x in values.items()}
    return values


def choose(rewriter: Rewriter, condition: Any, one: Value, other: Value, op: Any, scope: Scope) -> Value:
    """``one`` where a condition holds, else ``other``."""
    if one is other:
        return one
    if isinstance(one, TensorList) and isinstance(other, TensorList):
        chosen = chosen_list(rewriter, condition, one, other, op, scope)
        if chosen is None:
            raise CannotRewrite("its branches give lists of different lengths")
        return chosen
    a, b = rewriter.tensor(one, op), rewriter.tensor(other, op)
    passed_on, always = _before_gate(rewriter, a, condition, holds=True), _before_gate(rewriter, b, condition)
    if passed_on is b or passed_on is always:
        return passed_on
    if a.dtype in (tf.resource, tf.variant) or not a.shape.is_compatible_with(b.shape):
        raise CannotRewrite("its branches give tensors that cannot be chosen from")
    if a.shape.rank is None or (a.shape.rank != b.shape.rank):
        raise CannotRewrite("its branches give tensors of unknown shapes")
    return rewriter.build(select, condition, a, b, of=op, scope=scope, name="choice")


def _before_gate(rewriter: Rewriter, tensor: Any, condition: Any, *, holds: bool = False) -> Any:
    """What a tensor is where a condition holds, or does not, without the gate that this makes superfluous."""
    read = tensor.op.inputs
    if len(read) != 2 or rewriter.gates.get((read[0].name, read[1].name)) is not tensor:
        return tensor
    value, gate = read
    if not holds and gate.op.type == "LogicalNot":
        return value if gate.op.inputs[0] is condition else tensor
    return value if holds and gate is condition else tensor


def check(rewriter: Rewriter, operations: Iterable[Any]) -> None:
    """Checks that ops of a function may run where it is not called.

    Raises:
        CannotRewrite: naming one that may not: it prints, or may fail.
    """
    for op in operations:
        if op.type in rewriter.rules.handlers or op.type in _ADDING or op.type in (_ASSIGN, _ASSERT):
            continue
        own = traits(op)
        takes_variable = takes_handle(op) and not (own.on_variable or own.is_lookup)
        acts = own.has_effect and not own.on_variable
        if not has_rule(op.type) or acts or own.may_fail or takes_variable:
            raise CannotRewrite(f"{op.type} '{op.name}' may not run where its branch is not taken")


def guarded(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    """An op of a branch, which also runs if that is not taken, where it must neither fail nor write."""
    guard = scope.guard
    if op.type == _ASSIGN or op.type in _ADDING:
        return _assigned(rewriter, op, scope)
    operands = [rewriter.tensor(scope.value(x), op) for x in op.inputs]
    if traits(op).on_variable and has_effect(op):
        return _updated(rewriter, op, scope, operands)
    if op.type == _ASSERT:
        holds = rewriter.build(_unless, guard, operands[0], of=op, scope=scope, name="checked")
        return list(rewriter.copy(op, scope, [holds, *operands[1:]]).outputs)
    for place, what in static_operands(op).items():
        if not rewriter.known.is_known(operands[place]) and not is_static(operands[place]):
            raise CannotRewrite(f"the {what} of {op.type} '{op.name}' may not be there where its branch is not taken")
    indices = traits(op).indices
    changed = False
    for place in indices:
        operands[place] = legal_indices(rewriter, operands[place], op, scope)
        changed = True
    if op.type in _DIVISIONS and operands[1].dtype.is_integer and not rewriter.known.is_known(operands[1]):
        ones = rewriter.build(tf.ones_like, operands[1], of=op, scope=scope, name="one")
        operands[1] = rewriter.build(select, guard, operands[1], ones, of=op, scope=scope, name="divisor")
        changed = True
    if traits(op).reads_variable or (traits(op).is_lookup and takes_handle(op)):
        if operands[0].op.name in rewriter.user.given_rows and rewriter.is_differentiated(op, scope):
            raise CannotRewrite(f"the gradient of '{operands[0].op.name}' has other rows than where it is not taken")
        made = rewriter.copy(op, scope, operands)
        rewriter.branch_reads.setdefault(operands[0].name, []).append(made)
        return [gated(rewriter, x, guard, op, scope) for x in made.outputs]
    return list(rewriter.copy(op, scope, operands).outputs) if changed else None


def _unless(guard: Any, holds: Any) -> Any:
    """A check that holds where a branch is not taken."""
    return tf.logical_or(tf.logical_not(guard), holds)


def _assigned(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value]:
    """A variable gets the new value or keeps its own."""
    handle, new = (rewriter.tensor(scope.value(x), op) for x in op.inputs)
    before = rewriter.before_read(op, scope, (handle, new))

    def assign(handle: Any, new: Any) -> Any:
        if op.type in _ADDING:
            kept_value = or_zeros(scope.guard, new)
            kind = (
                tf.raw_ops.AssignAddVariableOp if op.type == "AssignAddVariableOp" else tf.raw_ops.AssignSubVariableOp
            )
            return kind(resource=handle, value=kept_value)
        with tf.control_dependencies(before):
            old = tf.raw_ops.ReadVariableOp(resource=handle, dtype=new.dtype)
        return tf.raw_ops.AssignVariableOp(resource=handle, value=select(scope.guard, new, old))

    known = len(rewriter.graph.get_operations())
    rewriter.build(assign, handle, new, of=op, scope=scope, name="assign")
    made = [each for each in rewriter.graph.get_operations()[known:] if each.type == op.type]
    made[-1]._add_control_inputs(before)
    rewriter.effects.append(made[-1])
    return []


def _updated(rewriter: Rewriter, op: Any, scope: Scope, operands: Sequence[Any]) -> Sequence[Value]:
    """An optimizer's step, or a write to rows: what it has written is kept, or the values of before put back."""
    handles = [x for x in operands if x.dtype == tf.resource]
    attr = op.node_def.attr
    dtype = tf.as_dtype((attr["dtype"] if "dtype" in attr else attr["T"]).type)

    def read(after: Sequence[Any]) -> Any:
        with tf.control_dependencies(list(after)):
            return [tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype) for handle in handles]

    def choose_again(old: Sequence[Any], new: Sequence[Any]) -> list[Any]:
        return [
            tf.raw_ops.AssignVariableOp(resource=handle, value=select(scope.guard, b, a))
            for handle, a, b in zip(handles, old, new, strict=True)
        ]

    before = rewriter.before_read(op, scope, operands)
    old = rewriter.build(read, before, of=op, scope=scope, name="before")
    made = rewriter.copy(op, scope, operands)
    made._add_control_inputs([x.op for x in old])
    new = rewriter.build(read, [made], of=op, scope=scope, name="after")
    rewriter.effects += rewriter.build(choose_again, old, new, of=op, scope=scope, name="choice")
    return []


def _guarded_checks(rewriter: Rewriter, op: Any, scope: Scope, acts: Sequence[bool], holds: Any) -> Sequence[Value]:
    """Checks of a branch: where that is not taken, they are none."""
    if all(acts) or holds.dtype != tf.bool or holds.shape.rank != 0:
        raise CannotRewrite(f"{op.type} '{op.name}' may not run where its branch is not taken")

    def inert(holds: Any, guard: Any) -> Any:
        return tf.logical_and(holds, guard) if acts[0] else tf.logical_or(holds, tf.logical_not(guard))

    condition = rewriter.build(inert, holds, scope.guard, of=op, scope=scope, name="checked")
    operands = [rewriter.tensor(scope.value(x), op) for x in op.inputs[1:]]
    return list(rewriter.copy(op, scope, [condition, *operands]).outputs)


def _read(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    """A read of a variable of which there is only the value."""
    variable = scope.value(op.inputs[0])
    return [variable.tensor] if isinstance(variable, VariableValue) else None


def _looked_up(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    variable, indices = (scope.value(x) for x in op.inputs)
    if not isinstance(variable, VariableValue):
        return None
    indices = legal_indices(rewriter, indices, op, scope)
    lookup = tf.gather_nd if op.type == "ResourceGatherNd" else tf.gather
    batch_dims = op.get_attr("batch_dims") if op.type == "ResourceGather" else 0
    return [
        rewriter.build(
            lambda x, i: lookup(x, i, batch_dims=batch_dims), variable.tensor, indices, of=op, scope=scope, name="rows"
        )
    ]


def _read_and_skipped(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value]:
    """The state of a ``tf.random.Generator``, and the write of the next one, by ops that devices have of a variable.

    Numbers are TensorFlow's, of Philox, which counts in 128 bits.
    """
    state, algorithm, count = (scope.value(x) for x in op.inputs)
    if isinstance(state, VariableValue):
        raise CannotRewrite(f"{op.type} '{op.name}' writes the state of a tf.random.Generator")
    if rewriter.known.value(rewriter.tensor(algorithm, op)) != tf.random.Algorithm.PHILOX.value:
        raise GraphError(
            f"{op.type} '{op.name}': draws by another algorithm than Philox, which devices do not have. Make the "
            "generator with alg='philox'."
        )
    before = rewriter.before_read(op, scope, (state, count))

    def read(handle: Any) -> Any:
        with tf.control_dependencies(before):
            return tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.int64)

    def write(handle: Any, found: Any, count: Any) -> Any:
        if scope.guard is not None:
            count = or_zeros(scope.guard, count)
        low, high, key = tf.unstack(tf.bitcast(found, tf.uint64), num=3)
        skipped = low + numbers_skipped(tf.cast(count, tf.uint64))
        carried = high + tf.cast(skipped < low, tf.uint64)
        value = tf.bitcast(tf.stack([skipped, carried, key]), tf.int64)
        return tf.raw_ops.AssignVariableOp(resource=handle, value=value)

    handle = rewriter.tensor(state, op)
    found = rewriter.build(read, handle, of=op, scope=scope, name="read")
    found.set_shape([3])
    written = rewriter.build(write, handle, found, rewriter.tensor(count, op), of=op, scope=scope, name="skip")
    written._add_control_inputs([found.op, *before])
    rewriter.effects.append(written)
    return [found]


def _switch(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    raise GraphError(
        f"{op.type} '{op.name}': is of TensorFlow 1's branches and loops, which cannot be read. Build them with "
        "tensoropt.cond and tensoropt.while_loop, or leave out disable_control_flow_v2 and disable_v2_behavior."
    )


def _minimum(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value] | None:
    """A minimum whose value is known as what it reads is never below: so sizes are given, such as a count's."""
    found = rewriter.known.upper_bound(*(rewriter.tensor(scope.value(x), op) for x in op.inputs))
    return None if found is None else [rewriter.constant(found, op)]


SIZE_HANDLERS: dict[str, Handler] = {"Minimum": _minimum}

VARIABLE_HANDLERS: dict[str, Handler] = {
    "ReadVariableOp": _read,
    "ResourceGather": _looked_up,
    "ResourceGatherNd": _looked_up,
}

CALL_HANDLERS: dict[str, Handler] = {
    "Case": _case,
    "If": _if,
    CALL: _call,
    "PartitionedCall": _call,
    "RngReadAndSkip": _read_and_skipped,
    "StatefulPartitionedCall": _call,
    "StatelessCase": _case,
    "StatelessIf": _if,
    **dict.fromkeys(("Switch", "Merge", "Enter", "Exit", "LoopCond", "NextIteration"), _switch),
}
