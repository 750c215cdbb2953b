"""Loops: unrolled where it is known how many turns they take at most."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tensoropt.api.frontend.effects import has_effect
from tensoropt.api.frontend.functions import called_graphs, function_of
from tensoropt.api.frontend.rewriting.custom_gradients import gated
from tensoropt.api.frontend.rewriting.inlining import check, choose
from tensoropt.api.frontend.rewriting.opaque_control_flow import kept
from tensoropt.api.frontend.rewriting.rewriter import CannotRewrite, Handler, Rewriter, Scope, roots_of
from tensoropt.api.frontend.rewriting.values import TensorList, Value, VariableValue, held
from tensoropt.api.frontend.walks import order
from tensoropt.api.mirror.recurrent import STEPS
from tensoropt.graph.registry import declaration, has_rule

__all__ = ["LOOP_HANDLERS", "MAX_OPERATORS", "MAX_TURNS"]

MAX_TURNS = 256
MAX_OPERATORS = 20_000


def _while(rewriter: Rewriter, op: Any, scope: Scope) -> Sequence[Value]:
    """A loop as its turns, one after the other, or as one operator."""
    condition, body = function_of(op, "cond"), function_of(op, "body")
    begun = len(rewriter.effects)
    unread = _unread(rewriter, op, scope, body)
    try:
        turns = _turns(rewriter, op, scope, condition, body)
        size = len(body.get_operations()) * len(turns)
        if size > MAX_OPERATORS and STEPS not in op.node_def.attr:
            raise CannotRewrite(f"its {len(turns)} turns would be {size:,} operators, more than {MAX_OPERATORS:,}")
        if None in turns:
            check(rewriter, order(roots_of(body, unread)))
            check(rewriter, order(roots_of(condition)))
        with rewriter.attempt():
            values = _unrolled(rewriter, op, scope, condition, body, turns, unread)
    except CannotRewrite as reason:
        return kept(rewriter, op, scope, str(reason))
    return rewriter.waiting(values, rewriter.effects[begun:], op, scope)


def _unread(rewriter: Rewriter, op: Any, scope: Scope, body: Any) -> frozenset[int]:
    """The places of what is carried from turn to turn for TensorFlow's own gradients alone."""
    found = rewriter.unread(op, scope)
    while True:
        read = {each.name for each in order(roots_of(body, found))}
        fewer = frozenset(place for place in found if body.inputs[place].op.name not in read)
        if fewer == found:
            return found
        found = fewer


def _acts(function: Any) -> bool:
    """Tells whether a function does something besides drawing random numbers, here or in what it calls."""
    return any(
        any(map(_acts, called)) if (called := list(called_graphs(op))) else has_effect(op) and not _draws(op)
        for op in function.get_operations()
    )


def _draws(op: Any) -> bool:
    return has_rule(op.type) and declaration(op.type).shared


def _turns(rewriter: Rewriter, op: Any, scope: Scope, condition: Any, body: Any) -> list[bool | None]:
    """For each turn that the loop may take, whether it is certain to: True, or None where that depends on data.

    Worked out once for what the loop begins with: one within another may begin alike in all turns of that.

    Raises:
        CannotRewrite: if there is no end to it that is known.
    """
    begins = {place: scope.value(op.inputs[place]) for place in _deciding(condition, body)}
    key = op, *(_known_of(rewriter, value) for value in begins.values())
    known = rewriter.user.turns
    if key not in known:
        try:
            known[key] = _turns_from(begins, rewriter, op, condition, body)
        except CannotRewrite as reason:
            known[key] = str(reason)
    found = known[key]
    if isinstance(found, str):
        raise CannotRewrite(found)
    return found


def _known_of(rewriter: Rewriter, value: Value) -> tuple[Any, ...]:
    """All that is known of a value before a run, for comparisons."""
    if isinstance(value, TensorList):
        return TensorList, value.dtype, str(value.shape), len(value)
    if isinstance(value, VariableValue):
        return VariableValue, *_known_of(rewriter, value.tensor)
    known = rewriter.known.value(value)
    if known is not None:
        content = tuple(known.ravel().tolist()) if known.dtype.hasobject else known.tobytes()
        return known.dtype.str, known.shape, content
    return value.dtype, *map(str, held(value))


def _turns_from(
    begins: Mapping[int, Value], rewriter: Rewriter, op: Any, condition: Any, body: Any
) -> list[bool | None]:
    """The turns of a loop, from what of it decides on them and its values at the beginning, by place."""
    places = [*begins]
    others = frozenset(range(len(body.outputs))) - frozenset(places)
    probe = rewriter.beside(tf.Graph(), probing=True)
    state = {place: _probed(rewriter, probe, value, op) for place, value in begins.items()}
    turns: list[bool | None] = []
    while True:
        top = Scope(op.graph)
        found = probe.call(condition, state, top, op, f"condition_{len(turns)}")
        truth = probe.known.truth(found[0])
        if truth is False:
            return turns
        if len(turns) == MAX_TURNS:
            raise CannotRewrite(f"how many turns it takes is not known before it runs, or is more than {MAX_TURNS}")
        turns.append(truth)
        new = probe.call(body, state, top, op, f"turn_{len(turns)}", unread=others)
        state = {place: probe.folded(value, op) for place, value in new.items()}
        if truth is None and not any(probe.known.is_known(state[place]) for place in places):
            raise CannotRewrite("how many turns it takes depends on data, and it has no maximum_iterations")


def _deciding(condition: Any, body: Any) -> list[int]:
    """The places of what is carried from turn to turn and that conditions depend on."""
    found = _read(condition, [0])
    while True:
        more = found | _read(body, sorted(found))
        if more == found:
            return sorted(found)
        found = more


def _read(function: Any, outputs: Sequence[int]) -> set[int]:
    needed = {op.name for op in order([function.outputs[place].op for place in outputs], controls=False)}
    return {place for place, x in enumerate(function.inputs) if x.op.name in needed}


def _probed(rewriter: Rewriter, probe: Rewriter, value: Value, op: Any) -> Value:
    """A value where only what is known is looked for: a constant, or something of which nothing is known."""
    if isinstance(value, TensorList):
        with probe.graph.as_default():
            items = [tf.compat.v1.placeholder(value.dtype, value.shape) for _ in range(len(value))]
        return value.with_items(items)
    if isinstance(value, VariableValue):
        return VariableValue(_probed(rewriter, probe, value.tensor, op))
    known = rewriter.known.value(value)
    if known is not None:
        return probe.constant(known, op)
    dtype, shape = held(value)
    if dtype == tf.resource:
        raise CannotRewrite("how many turns it takes depends on data")
    with probe.graph.as_default():
        stand = tf.compat.v1.placeholder(dtype, shape)
    return VariableValue(stand) if value.dtype == tf.resource else stand


def _unrolled(
    rewriter: Rewriter,
    op: Any,
    scope: Scope,
    condition: Any,
    body: Any,
    turns: Sequence[bool | None],
    unread: Container[int],
) -> list[Value]:
    places = range(len(op.inputs))
    state = {place: scope.value(op.inputs[place]) for place in places}
    results = dict(state)
    running: Any = None  # whether the loop has not ended, once that depends on data
    effects: list[Any] = []
    idle = STEPS in op.node_def.attr and not _acts(body)

    def check_end(number: int, prefix: str) -> Any:
        """Whether another turn follows, which TensorFlow asks before each turn, and once more after the last one."""
        draws = () if running is None else (running,)
        part, turn = f"{prefix}/condition", ("cond", number)
        (holds,) = rewriter.call(condition, state, scope, op, part, draws=draws, after=effects, loop=turn).values()
        return holds

    for number, certain in enumerate(turns):
        begun = len(rewriter.effects)
        prefix = f"{scope.prefix}{op.name}/turn_{number}"
        guard = None
        if certain is None:
            holds = check_end(number, prefix)
            if running is not None:
                holds = rewriter.build(tf.logical_and, running, holds, of=op, scope=scope, name="running")
            running = guard = holds
        elif running is not None:
            guard = running
        draws: tuple[Any, ...] = ()
        if idle and guard is not None:
            guard, draws = None, (guard,)
        arguments = state
        if guard is not None:
            arguments = {place: gated(rewriter, value, guard, op, scope) for place, value in state.items()}
            if scope.guard is not None:
                guard = rewriter.build(tf.logical_and, scope.guard, guard, of=op, scope=scope, name="guard")
        made = rewriter.call(
            body,
            arguments,
            scope,
            op,
            prefix,
            unread=unread,
            guard=guard,
            draws=draws,
            after=effects,
            loop=("body", number),
        )
        made = {
            place: state[place] if body.outputs[place] is body.inputs[place] else rewriter.folded(value, op)
            for place, value in made.items()
        }
        effects = [*effects, *rewriter.effects[begun:]]
        if running is None or idle:
            state |= made
            results |= made
            continue
        for place, value in made.items():
            results[place] = choose(rewriter, running, value, results[place], op, scope)
            # What is known goes on as if the loop did: places in lists stay known, and nobody reads the turns after.
            state[place] = value if rewriter.known.is_known(value) else results[place]
    if any(map(_draws, condition.get_operations())):
        check_end(len(turns), f"{scope.prefix}{op.name}/end")
    return [results[place] for place in places]


LOOP_HANDLERS: dict[str, Handler] = {"StatelessWhile": _while, "While": _while}
