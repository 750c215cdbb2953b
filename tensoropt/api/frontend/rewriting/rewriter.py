"""The rewriter: makes the ops of a user's graph again, one by one, where what calls functions becomes plain ops.

It goes through a graph as an interpreter would, with tensors of a new graph for values. What is known before the graph
runs (counters, conditions, sizes) is found on the way, which is how loops can be unrolled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.api.frontend.attributes import HINTS, keep_shapes, types_of
from tensoropt.api.frontend.draws import DRAWN_APART, draws_by_kernel
from tensoropt.api.frontend.effects import (
    PASSED_ON,
    PLACEHOLDER,
    Accesses,
    accesses_before,
    comes_after,
    has_effect,
    is_on_variables,
    is_stateful,
    only_reads,
)
from tensoropt.api.frontend.functions import add_functions, function_attrs, functions_in, is_call
from tensoropt.api.frontend.rewriting.user_graph import UserGraph
from tensoropt.api.frontend.rewriting.values import KnownValues, TensorList, Value, VariableValue
from tensoropt.api.frontend.stand_ins import Given
from tensoropt.api.frontend.walks import needs, order
from tensoropt.graph.gradient_graphs import GRADIENT_TYPE
from tensoropt.graph.registry import declaration, has_rule, traits

__all__ = [
    "CALL",
    "OWN_GRADIENT",
    "CannotRewrite",
    "Handler",
    "Rewriter",
    "Rules",
    "Scope",
    "free_name",
    "roots_of",
]

# A tensor with more elements is not folded into a constant.
_FOLDED_ELEMENTS = 1024
_LEFT_OUT_ATTRS = (*HINTS, GRADIENT_TYPE)
# Copied at once: from so many ops on, below TensorFlow's limit of 2 GiB.
_MANY, _AT_ONCE_BYTES = 64, 2**30
_GROUP = "NoOp"
_MANY_TURNS = 1009
# Seeds of turns: from one to the next so far, at most so large.
_SEED_STEP, _LARGEST_SEED = 0x9E3779B1, 0x7FFFFFFF

OWN_GRADIENT, CALL = "_gradient", "_call"
"""The keys of the handlers of ops with a gradient of their own, and of those whose type is a function's name."""


class CannotRewrite(Exception):
    """An op cannot become plain ops where it stands; what calls it is to be kept as one operator.

    The message says why, for the user.
    """


@dataclass(slots=True, eq=False)
class Scope:
    """A graph that is gone through: the user's own, or the body of a function for one call of it.

    Attributes:
        graph: the graph.
        prefix: what names of ops that are made of its ops begin with.
        path: the prefix without the numbers of turns: one for all turns of a loop.
        outer: the scope in which the function is called.
        caller: the op of that scope which calls it.
        guard: a condition under which what is done here counts; None if it does in any case.
        draws: conditions under which random ops draw, beside that one.
        after: ops of the new graph that have run before anything here does.
        turn: a number that only this turn of the loops around has, 0 in their first ones; None outside of loops.
        values: by name of a tensor, what stands for it.
        operations: by name of an op, the ops of the new graph after which it has run.
        is_gradient: whether it is what a script's gradient function has made.
        needed: the names of the ops of a function that are needed; None in the user's graph, where all may be.
        results: the outputs of a function that are needed.
        capture: gives the value of a tensor of the graph where that is made elsewhere, and here nothing is.
    """

    graph: Any
    prefix: str = ""
    path: str = ""
    outer: Scope | None = None
    guard: Any = None
    after: tuple[Any, ...] = ()
    turn: int | None = None
    values: dict[str, Value] = field(default_factory=dict)
    operations: dict[str, list[Any]] = field(default_factory=dict)
    caller: Any = None
    is_gradient: bool = False
    draws: tuple[Any, ...] = ()
    needed: Container[str] | None = None
    results: Sequence[Any] = ()
    capture: Callable[[Any], Value] | None = None

    def value(self, tensor: Any) -> Value:
        """Returns the value that stands for a tensor of this graph or of an enclosing graph."""
        scope: Scope | None = self
        while scope is not None:
            if scope.graph is tensor.graph and tensor.name in scope.values:
                return scope.values[tensor.name]
            scope = scope.outer
        raise KeyError(tensor.name)

    def before(self, op: Any, besides: Container[str] = ()) -> list[Any]:
        """Ops of the new graph after which an op of this graph is to run, ``besides`` those that stand for some."""
        return [x for control in op.control_inputs if control.name not in besides for x in self._made_for(control)]

    def _made_for(self, op: Any) -> list[Any]:
        scope: Scope | None = self
        while scope is not None:
            if scope.graph is op.graph and op.name in scope.operations:
                return scope.operations[op.name]
            scope = scope.outer
        return []


# (the rewriter, the op, its scope) -> a value for each of its outputs; None if it is to be copied.
Handler = Callable[["Rewriter", Any, Scope], "Sequence[Value] | None"]


@dataclass(frozen=True, slots=True)
class Rules:
    """What becomes of ops.

    Attributes:
        handlers: for op types that are not copied, by type.
        guarded: of ops in branches, which also run if their branch is not taken.
        check_guarded: raises :class:`CannotRewrite` if not all of some ops of a function may run so.
        materialize: makes a list of tensors TensorFlow's own.
        copied: types of handlers that leave ops to be copied whose operands are all tensors.
    """

    handlers: Mapping[str, Handler]
    guarded: Handler
    check_guarded: Callable[[Rewriter, Iterable[Any]], None]
    materialize: Callable[[Rewriter, Any, TensorList], Any]
    copied: Container[str]


class Rewriter:
    """Makes ops in a new graph.

    Attributes:
        graph: the new graph.
        rules: what becomes of ops.
        user: the graph that is made again.
        probing: whether the graph is made only to find what is known.
        origins: the user's op behind each op that was made, by name.
        known: what is known of tensors of the new graph.
        effects: ops that were made and that have an effect, in order.
        branch_reads: ops of branches that were made and that read a variable, by the handle's name.
        gates: tensors whose gradients count under a condition, by the names of tensor and condition, which they read.
        rows: the rows of tensors, by their names.
        drawn: by states of random ops, how many numbers a run has drawn: an int, or a tensor if only a run knows.
        kept: functions of branches and loops that stay one operator, by these and by what they take.
        crossed: the names of the tensors that stand for `UserGraph.crossed` where these have other names here.
    """

    def __init__(self, graph: Any, rules: Rules, user: UserGraph, *, probing: bool = False) -> None:
        self.graph = graph
        self.rules = rules
        self.user = user
        self.probing = probing
        self.origins: dict[str, Any] = {}
        self.known = KnownValues(user.crossed)
        self.effects: list[Any] = []
        self.branch_reads: dict[str, list[Any]] = {}
        self.gates: dict[tuple[str, str], Any] = {}
        self.rows: dict[str, tuple[Any, ...]] = {}
        self.drawn: dict[str, Any] = {}
        self.kept: dict[Any, Any] = {}
        self.crossed: dict[str, str] = {}
        self._names: set[str] = set()
        self._begun: set[str] = {""}  # what names of ops that were made begin with, up to those counted, with the names
        self._counted = 0
        self._late: dict[str, bool] = {}  # whether an op comes after one that has an effect
        self._accessed: Accesses = {}
        self._constants: dict[tuple[str, bytes, tuple[int, ...]], Any] = {}

    def beside(self, graph: Any, *, probing: bool = False) -> Rewriter:
        """A rewriter of the same rules for another new graph."""
        return Rewriter(graph, self.rules, self.user, probing=probing or self.probing)

    def is_differentiated(self, op: Any, scope: Scope) -> bool:
        """Tells whether gradients may flow through an op; for a function's op, through the op that calls the function.

        Gradients flow through the ops of a gradient function only where that gradient is differentiated once more. (A
        gradient function may call the function that it belongs to: the gradient of a sum over replicas does.)
        """
        inside: Scope | None = scope
        gradients = 0
        while inside is not None:
            gradients += inside.is_gradient
            inside = inside.outer
        if gradients and gradients >= len(self.user.calls):
            return False
        while op.graph is not self.user.graph and scope.caller is not None and scope.outer is not None:
            op, scope = scope.caller, scope.outer
        return op.graph is not self.user.graph or op in self.user.differentiated

    # ------------------------------------------------------------------------------------------------ going through

    def rewrite(
        self, names: Container[str], required: Callable[[], Container[str]] | None = None
    ) -> dict[str, Exception]:
        """Makes the user's graph again, under its own names.

        Args:
            names: of the operations that are needed.
            required: gives names of the operations without which there is nothing; by default all.

        Returns:
            Why others could not be made, by name: the shapes of what they read do not go together.

        Raises:
            ValueError: that is so of one that is required.
        """
        user = self.user
        operations = user.graph.get_operations()
        self._names.update(op.name for op in operations)
        scope = Scope(user.graph)
        needed = [op for op in operations if op.name in names]
        refused: dict[str, Exception] = {}
        for op in self._singly(order(needed, besides=user.before_given), scope):
            reads = (user.before_given.get(op, ()) if op.name in user.inside else needs(op)) if refused else ()
            misfit = next((refused[each.name] for each in reads if each.name in refused), None)
            if misfit is None:
                try:
                    with self.attempt():
                        (self._special(op) or self._by_rules)(op, scope)
                except ValueError as error:
                    misfit = error
            if misfit is not None:
                if required is None or op.name in required():
                    raise misfit
                refused[op.name] = misfit
        return refused

    def _singly(self, operations: Iterable[Any], scope: Scope) -> Iterator[Any]:
        """Makes long runs of operations of the user's graph that become what they are; gives the others, in order."""
        run: dict[Any, Any] = {}
        for op in (*operations, None):
            node = None if op is None else self._plain(op)
            if node is not None:
                run[op] = node
                continue
            if len(run) < _MANY or not self._copy_run(run, scope):
                yield from run
            run = {}
            if op is not None:
                yield op

    def _plain(self, op: Any) -> Any:
        """The definition of an operation of the user's graph that is copied if it reads tensors alone; else None."""
        if self._special(op) is not None or (op.type in self.rules.handlers and op.type not in self.rules.copied):
            return None
        node = op.node_def
        return None if GRADIENT_TYPE in node.attr or function_attrs(op) or is_call(op) else node

    def _copy_run(self, run: Mapping[Any, Any], scope: Scope) -> bool:
        """Makes a run of plain operations again at once, as one by one it takes three times as long.

        Args:
            run: the operations, with their definitions.
            scope: of the user's graph.

        Returns:
            False if that cannot be, and nothing was made: what they read are no tensors, or sizes do not go together.
        """
        own = {op.name for op in run}
        for name in itertools.islice(self.origins, self._counted, None):
            while name not in self._begun:
                self._begun.add(name)
                name = name.rpartition("/")[0]
        self._counted = len(self.origins)
        given = {x.name: scope.values.get(x.name) for op in run for x in op.inputs if x.op.name not in own}
        waited = {x.name for op in run for x in op.control_inputs} - own
        # TensorFlow gives a name that begins another one a number; what was refused is not there.
        if (
            not all(isinstance(value, tf.Tensor) for value in given.values())
            or not own.isdisjoint(self._begun)
            or not waited <= scope.operations.keys()
        ):
            return False
        # Without its versions TensorFlow takes it for an old one, in which placeholders of numbers have no shape.
        definition = tf.compat.v1.GraphDef(versions=self.user.graph.graph_def_versions)
        for own_node in run.values():
            node = definition.node.add()
            node.CopyFrom(own_node)
            for key in _LEFT_OUT_ATTRS:
                node.attr.pop(key, None)
            kept = [name for name in node.input if not name.startswith("^") or name[1:] in own]
            del node.input[:]
            node.input.extend(kept)
        if definition.ByteSize() > _AT_ONCE_BYTES:
            return False
        try:
            with self.graph.as_default():
                tf.graph_util.import_graph_def(definition, input_map=given, name="")
        except ValueError:
            return False
        for op in run:
            made = self.graph.get_operation_by_name(op.name)
            keep_shapes(made.outputs, op.outputs)
            self.origins[op.name] = op
            self.known.note(made)
            self.finish(made, scope.before(op, besides=own))
            self._done(op, scope, made.outputs, [made])
        return True

    def _special(self, op: Any) -> Callable[[Any, Scope], None] | None:
        """What makes an operation of which the user's graph says more than the operation itself; None of others."""
        user = self.user
        if op.name in user.inside:
            return self._stand_ins
        if op.name in user.merged:
            return self._merged
        # Of inputs that leave a size open and have a default, which has a size.
        is_sized = op.name in user.shapes or (traits(op).has_default and not op.outputs[0].shape.is_fully_defined())
        return self._sized if is_sized else None

    def _by_rules(self, op: Any, scope: Scope) -> None:
        if op.name not in scope.operations:  # else a gradient of one's own needed it before
            self.visit(op, scope)

    def _stand_ins(self, op: Any, scope: Scope) -> None:
        """Makes what gives the gradients in the place of an operation that computes some."""
        given = self.user.given
        made = {x.name: self._given(given[x.name], op, scope) for x in op.outputs if x.name in given}
        scope.values |= {name: one.outputs[0] for name, one in made.items()}
        scope.operations[op.name] = list(made.values())

    def _merged(self, op: Any, scope: Scope) -> None:
        """Makes an operation that passes merged rows on read them before they are merged."""
        before = self.tensor(scope.value(self.user.graph.get_tensor_by_name(self.user.merged[op.name])), op)
        made = self._copy(op, [before], op.name, {})
        self._done(op, scope, made.outputs, [made])

    def _sized(self, op: Any, scope: Scope) -> None:
        """Makes an input again with the sizes that it has now."""
        default = [self.tensor(scope.value(x), op) for x in op.inputs]
        if op.name in self.user.shapes:
            shape = tf.TensorShape(self.user.shapes[op.name])
        else:
            shape = op.outputs[0].shape.merge_with(default[0].shape)
        attrs = {"shape": tf.compat.v1.AttrValue(shape=shape.as_proto())}
        if default and not shape.is_compatible_with(default[0].shape):  # fed, as the default is of another size
            attrs["dtype"] = op.node_def.attr["dtype"]
            made = self.make(PLACEHOLDER, [], [default[0].dtype], attrs, op.name, op)
        else:
            made = self._copy(op, default, op.name, attrs)
        self._done(op, scope, made.outputs, [made])

    def _given(self, one: Given, op: Any, scope: Scope) -> Any:
        """Makes the operation that gives a gradient."""
        self._names.add(one.name)
        datatype = tf.compat.v1.AttrValue(type=one.dtype.as_datatype_enum)
        if one.like is not None:
            like = self.tensor(scope.value(op.graph.get_tensor_by_name(one.like)), op)
            made = self.make(PASSED_ON, [like], [one.dtype], {"T": datatype}, one.name, op)
        else:
            attrs = {"dtype": datatype, "shape": tf.compat.v1.AttrValue(shape=one.shape.as_proto())}
            made = self.make(PLACEHOLDER, [], [one.dtype], attrs, one.name, op)
        made._add_control_inputs([x for name in one.after for x in scope.operations[name]])
        return made

    def call(
        self,
        function: Any,
        arguments: Mapping[int, Value],
        scope: Scope,
        caller: Any,
        prefix: str,
        *,
        unread: Container[int] = (),
        guard: Any = None,
        draws: Sequence[Any] = (),
        after: Sequence[Any] = (),
        loop: tuple[str, int] | None = None,
    ) -> dict[int, Value]:
        """Makes the ops of a function for one call of it.

        Args:
            function: its ``FuncGraph``.
            arguments: values by their places; those that nothing needs may be missing.
            scope: of the op that calls it.
            caller: that op.
            prefix: what names of ops begin with.
            unread: places of outputs that are not needed.
            guard: a condition beside the scope's.
            draws: conditions under which random ops draw, beside the scope's.
            after: ops that have run before.
            loop: what the function is of the loop that it is a part of, and the number of the turn.

        Returns:
            Values by places of outputs.

        Raises:
            CannotRewrite: there is a condition, and the function has ops that may run only if it holds.
        """
        places = [place for place in range(len(function.outputs)) if place not in unread]
        needed = order(roots_of(function, unread, effects=not self.probing), controls=not self.probing)
        own_guard = scope.guard if guard is None else guard
        if own_guard is not None:
            self.rules.check_guarded(self, needed)
        # As in TensorFlow, nothing in it reads a variable before the function's inputs are there.
        waits = (*scope.after, *scope.before(caller), *after, *self.late(arguments.values()))
        part = prefix.removeprefix(scope.prefix) if loop is None else f"{caller.name}/{loop[0]}"
        turns = None if loop is None and scope.turn is None else (scope.turn or 0) * _MANY_TURNS
        inner = Scope(
            function,
            prefix=f"{prefix}/",
            path=f"{scope.path}{part}/",
            outer=scope,
            caller=caller,
            guard=own_guard,
            after=waits,
            turn=turns if turns is None or loop is None else turns + loop[1],
            needed={op.name for op in needed},
            results=[function.outputs[place] for place in places],
            draws=(*scope.draws, *draws),
        )
        for place, value in arguments.items():
            inner.values[function.inputs[place].name] = value
            inner.operations[function.inputs[place].op.name] = []
        self._make(needed, inner)
        return {place: inner.value(function.outputs[place]) for place in places}

    def run(self, roots: Iterable[Any], scope: Scope) -> None:
        """Makes what is needed for some ops of a scope's graph, and is not made yet."""
        self._make(order(roots, controls=not self.probing), scope)

    def _make(self, operations: Iterable[Any], scope: Scope) -> None:
        for op in operations:
            if op.graph is scope.graph and op.name not in scope.operations:
                self.visit(op, scope)

    def visit(self, op: Any, scope: Scope) -> None:
        """Makes what becomes of one op."""
        begun = len(self.effects)
        own = GRADIENT_TYPE in op.node_def.attr
        handler = self.rules.handlers.get(OWN_GRADIENT if own else CALL if is_call(op) else op.type)
        try:
            values = None if handler is None else handler(self, op, scope)
            if values is None and scope.guard is not None:
                values = self.rules.guarded(self, op, scope)
            if values is None:
                made = self.copy(op, scope)
                self._done(op, scope, made.outputs, [made])
                return
        except ValueError as error:
            if scope.guard is None:
                raise
            # Of a turn past the end, or a branch that no run of these sizes takes.
            raise CannotRewrite(f"{op.type} '{op.name}' cannot be: {error}") from error
        if scope.outer is None and op.name not in self.origins:
            values = [self._crossed(x, value, op, scope) for x, value in zip(op.outputs, values, strict=True)]
        self._done(op, scope, values, self._after_handler(op, scope, values, self.effects[begun:]))

    def _crossed(self, tensor: Any, value: Value, op: Any, scope: Scope) -> Value:
        """The value of a tensor of the user's graph, which that of a tensor to differentiate by has for itself.

        A handler may give what others read, too, or what it has kept as another tensor.
        """
        if tensor.name not in self.user.crossed or not isinstance(value, tf.Tensor):
            return value
        made = self.build(tf.identity, value, of=op, scope=scope, name="crossed")
        self.crossed[tensor.name] = made.name
        return made

    def copy(self, op: Any, scope: Scope, inputs: Sequence[Any] | None = None, name: str | None = None) -> Any:
        """Makes an op again; with its own inputs and, in the user's graph, its own name by default."""
        operands = [self.tensor(scope.value(x), op) for x in op.inputs] if inputs is None else list(inputs)
        is_once = scope.guard is None and scope.turn is None
        attrs = {} if is_once or not draws_by_kernel(op) else _drawn_apart(op, scope.turn or 0)
        made = self._copy(op, operands, name or self.name(op, scope), attrs)
        before = scope.before(op)
        draws = has_rule(made.type) and declaration(made.type).shared  # the same numbers, whenever it runs
        if scope.after and is_stateful(made) and not draws:
            if is_on_variables(made):
                # After what accesses its variables alone: what else comes before may be computed from samples.
                before += accesses_before(made.inputs, scope.after, self._accessed, writes=only_reads(made))
            else:
                before += scope.after
        self.finish(made, before)
        return made

    @contextmanager
    def attempt(self) -> Iterator[None]:
        """Takes back the effects and the draws of what is made, if an error ends it: that is made in vain."""
        begun, drawn = len(self.effects), dict(self.drawn)
        try:
            yield
        except Exception:  # whatever it is: it goes on
            del self.effects[begun:]
            self.drawn = drawn
            raise

    def finish(self, made: Any, before: Sequence[Any]) -> None:
        """Has an op that was made again run after others, and takes note of its effect."""
        if before:
            made._add_control_inputs(list(dict.fromkeys(before)))
        if has_effect(made):
            self.effects.append(made)

    def _copy(self, op: Any, operands: Sequence[Any], name: str, attrs: Mapping[str, Any]) -> Any:
        node = op.node_def.attr
        own = {key: value for key, value in node.items() if key not in _LEFT_OUT_ATTRS}
        if is_call(op) or functions_in(node):
            add_functions(op, self.graph)
        made = self.make(op.type, operands, [x.dtype for x in op.outputs], {**own, **attrs}, name, op)
        keep_shapes(made.outputs, op.outputs)
        return made

    def make(
        self, op_type: str, operands: Sequence[Any], dtypes: Sequence[Any], attrs: Mapping[str, Any], name: str, of: Any
    ) -> Any:
        """Makes an op of a name that is free, for one of the user's."""
        made = self.graph._create_op_internal(op_type, list(operands), list(dtypes), name=f"{name}/", attrs=dict(attrs))
        self.origins[name] = of
        self.known.note(made)
        return made

    def build(self, function: Callable[..., Any], *operands: Any, of: Any, scope: Scope, name: str) -> Any:
        """Runs a Python function that makes ops, on behalf of one of the user's ops, and returns its result."""
        known = len(self.graph.get_operations())
        prefix = self.free(f"{scope.prefix}{of.name}/{name}")
        with self.graph.as_default(), tf.name_scope(f"{prefix}/"):
            result = function(*operands)
        for made in self.graph.get_operations()[known:]:
            self._names.add(made.name)
            self.origins[made.name] = of
            self.known.note(made)
        return result

    def unread(self, op: Any, scope: Scope) -> frozenset[int]:
        """The places of outputs that TensorFlow's own gradients alone read, such as lists of what turns made."""
        return frozenset(
            place for place, x in enumerate(op.outputs) if x.dtype == tf.variant and not self._is_read(x, scope)
        )

    def _is_read(self, tensor: Any, scope: Scope) -> bool:
        if any(tensor is result for result in scope.results):
            return True
        return any(scope.needed is None or op.name in scope.needed for op in self.user.readers(tensor))

    # ------------------------------------------------------------------------------------------------------- values

    def value(self, tensor: Any, scope: Scope) -> Value:
        """Returns the value for a tensor of a scope's graph or an enclosing one; makes it if it does not exist."""
        current: Scope | None = scope
        while current is not None and current.graph is not tensor.graph:
            current = current.outer
        if current is not None and tensor.name not in current.values:
            if current.capture is not None:
                current.values[tensor.name] = current.capture(tensor)
            else:
                self.run([tensor.op], current)
        return scope.value(tensor)

    def tensor(self, value: Value, of: Any) -> Any:
        """A value as a tensor; a list as TensorFlow's own.

        Raises:
            CannotRewrite: a variable itself is needed of which there is only the value.
        """
        if isinstance(value, TensorList):
            return self.rules.materialize(self, of, value)
        if isinstance(value, VariableValue):
            raise CannotRewrite(f"{of.type} '{of.name}' takes a variable itself")
        return value

    def constant(self, value: Any, of: Any) -> Any:
        """A constant, the same one for equal values."""
        array = np.asarray(value)
        key = (array.dtype.str, array.tobytes(), array.shape)
        if key not in self._constants:
            name = self.free("known/constant")
            with self.graph.as_default(), tf.control_dependencies(None), tf.compat.v1.name_scope(None):
                made = tf.constant(array, name=f"{name}/")
            self._names.add(made.op.name)
            self.origins[made.op.name] = of
            self.known.note(made.op)
            self._constants[key] = made
        return self._constants[key]

    def content(self, value: Value, of: Any, scope: Scope, name: str, waits: Sequence[Any] = ()) -> Any:
        """The tensor of a value; for a variable what it holds, read after some ops by an op of a name."""
        if isinstance(value, VariableValue):
            return value.tensor
        if not isinstance(value, tf.Tensor) or value.dtype != tf.resource:
            return self.tensor(value, of)
        attr = value.op.node_def.attr
        dtype = tf.as_dtype(attr["dtype"].type) if "dtype" in attr else value.dtype

        def read(handle: Any) -> Any:
            with tf.control_dependencies(list(waits)):
                return tf.raw_ops.ReadVariableOp(resource=handle, dtype=dtype)

        return self.build(read, value, of=of, scope=scope, name=name)

    def folded(self, value: Value, of: Any) -> Value:
        """A constant in place of a small tensor of whole numbers or truths that is known."""
        if not isinstance(value, tf.Tensor) or not (value.dtype.is_integer or value.dtype.is_bool):
            return value
        elements = value.shape.num_elements()
        found = self.known.value(value) if elements is not None and elements <= _FOLDED_ELEMENTS else None
        return value if found is None else self.constant(found, of)

    # -------------------------------------------------------------------------------------------------------- names

    def name(self, op: Any, scope: Scope) -> str:
        """The op's own name in the user's graph, a free one beneath the caller's in a function."""
        return op.name if scope.outer is None else self.free(f"{scope.prefix}{op.name}")

    def free(self, name: str) -> str:
        """A name that no op has, made of ``name``."""
        return free_name(name, self._names)

    # ---------------------------------------------------------------------------------------------- waiting for ops

    def before_read(self, op: Any, scope: Scope, values: Sequence[Value]) -> list[Any]:
        """Ops of the new graph after which a variable is read for an op: also those that its operands wait for.

        TensorFlow lets an op whose operands wait for something not wait for it itself. In a branch, what other branches
        have read of the variable was there before it writes.

        Args:
            op: of the user.
            scope: of it.
            values: what it takes.
        """
        waits = [*scope.before(op), *scope.after, *self.late(values)]
        if scope.guard is not None:
            waits += [read for x in values if isinstance(x, tf.Tensor) for read in self.branch_reads.get(x.name, ())]
        return list(dict.fromkeys(waits))

    def late(self, values: Iterable[Value]) -> list[Any]:
        """The ops behind values that are computed after an op that has an effect."""
        if not self.effects:
            return []
        return [x.op for x in values if isinstance(x, tf.Tensor) and comes_after(x.op, has_effect, self._late)]

    def _done(self, op: Any, scope: Scope, values: Iterable[Value], operations: list[Any]) -> None:
        scope.values |= {x.name: value for x, value in zip(op.outputs, values, strict=True)}
        scope.operations[op.name] = operations

    def _after_handler(self, op: Any, scope: Scope, values: Sequence[Value], effects: Sequence[Any]) -> list[Any]:
        """Ops that have run when the op would have; in the user's graph one of its name, which can be fetched."""
        tensors = [value for value in values if isinstance(value, tf.Tensor)]
        if scope.outer is not None:
            return [*effects, *(x.op for x in tensors)]
        if op.name in self.origins:  # its handler has made it
            return [self.graph.get_operation_by_name(op.name)]
        plain = [
            value if isinstance(value, tf.Tensor) and value.dtype not in (tf.resource, tf.variant) else None
            for value in values
        ]
        if not any(x is not None for x in plain):
            made = self.make(_GROUP, [], [], {}, op.name, op)
        else:
            given = [self.constant(np.int32(0), op) if x is None else x for x in plain]
            dtypes = [x.dtype for x in given]
            made = self.make("IdentityN", given, dtypes, {"T": types_of(dtypes)}, op.name, op)
        if effects:
            made._add_control_inputs(list(effects))
        # Others wait for what the op does, so it can be fetched by its name and is not run for them.
        return [*effects, *(x.op for x in tensors)] or [made]

    def waiting(self, values: Sequence[Value], effects: Sequence[Any], op: Any, scope: Scope) -> list[Value]:
        """Values that are there when effects have been had."""
        if not effects:
            return list(values)

        def late(x: Any) -> Any:
            with tf.control_dependencies(list(effects)):
                return tf.identity(x)

        def wait(value: Value) -> Value:
            if (
                value is None
                or isinstance(value, VariableValue)
                or (isinstance(value, tf.Tensor) and value.dtype == tf.resource)
            ):
                return value
            if isinstance(value, TensorList):
                return value.map(wait)
            return self.build(late, value, of=op, scope=scope, name="after")

        return [wait(value) for value in values]


def free_name(name: str, taken: set[str]) -> str:
    """A name that is not taken, made of ``name``, and taken from now on."""
    free, number = name, 0
    while free in taken:
        number += 1
        free = f"{name}_{number}"
    taken.add(free)
    return free


def roots_of(function: Any, unread: Container[int] = (), *, effects: bool = True) -> list[Any]:
    """The ops that a call of a function is made for: those of its outputs, but for unread ones, and of its effects."""
    given = [x.op for place, x in enumerate(function.outputs) if place not in unread]
    return [*given, *(op for op in function.get_operations() if effects and has_effect(op))]


def _drawn_apart(op: Any, turn: int) -> dict[str, Any]:
    """Attributes of a random op whose state is in TensorFlow's kernel: no turn draws what another one does."""
    attr, noted = op.node_def.attr, {DRAWN_APART: tf.compat.v1.AttrValue(b=True)}
    if not turn or not (attr["seed"].i or attr["seed2"].i):
        return noted
    return {**noted, "seed2": tf.compat.v1.AttrValue(i=(attr["seed2"].i + turn * _SEED_STEP) & _LARGEST_SEED or 1)}
