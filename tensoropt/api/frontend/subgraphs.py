"""Groups of TensorFlow's operations that become one operator, since what passes between them cannot be planned."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import tensorflow as tf

from tensoropt.api.frontend.attributes import HINTS
from tensoropt.api.frontend.draws import draw_attrs, original_of
from tensoropt.api.frontend.effects import (
    PASSED_ON,
    Accesses,
    accesses_before,
    called_functions,
    has_effect,
    is_significant,
    takes_handle,
)
from tensoropt.api.frontend.functions import (
    function_attrs,
    name_functions_by_content,
    with_numbered_tokens,
    without_devices,
)
from tensoropt.api.frontend.static_values import is_static, static_operands
from tensoropt.api.frontend.walks import needs, post_order, reached
from tensoropt.api.mirror.model import GradientCall
from tensoropt.errors import GraphError
from tensoropt.graph.called_functions import called_by
from tensoropt.graph.operator import Operator, body_input
from tensoropt.graph.ops.random import draws_by_state
from tensoropt.graph.registry import traits

__all__ = ["GIVEN_FOR_LISTS", "Differentiated", "Group", "groups_of", "is_done_once", "is_opaque"]


_KNOWN_SHAPES = "known shapes (tensoropt.where instead of tensoropt.boolean_mask, a bincount with a maxlength)"
_GIVE_SHAPES = f"Give these {_KNOWN_SHAPES}."
_STOP, _CONSTANT = "StopGradient", "Const"
GIVEN_FOR_LISTS = tf.int32
"""The dtype of the 0 that a group gives in place of a list, which only ops inside of the group read."""
# Checks, and the user's Python: `py_func` runs on every rank in any case, and has to give the same there.
_ALIKE = ("Assert", "CheckNumerics", "EagerPyFunc", "PyFunc")


@dataclass(frozen=True, slots=True)
class Group:
    """Operations that are one operator.

    Attributes:
        name: the operator's.
        operations: in the order in which they run.
        inputs: tensors that they read and do not make; a variable's handle once for each value of it that they read.
        late: by places of inputs that are handles, the operations that read the value, and the writes of the variable
            that they come after; where there are any.
        outputs: tensors of known shapes that they make for others.
        body: a ``GraphDef`` of them, in which placeholders stand for the inputs (`body_input`).
        results: the outputs' names in it.
        draws: the ops of it that draw numbers, with their seeds, which it has not.
        digest: a hash of it.
    """

    name: str
    operations: tuple[Any, ...]
    inputs: tuple[Any, ...]
    late: Mapping[int, tuple[Sequence[Any], Sequence[Any]]]
    outputs: tuple[Any, ...]
    body: Any
    results: tuple[str, ...]
    draws: tuple[Operator, ...]
    digest: str

    def is_as(self, other: Group) -> bool:
        """Tells whether both groups have the same operations and the same results."""
        return (self.operations, self.results) == (other.operations, other.results)


def is_opaque(op: Any) -> bool:
    """Tells whether an operation is opaque: its shapes, lists or control flow are open before a run.

    It makes or reads a tensor whose shape only a run knows, or a list of tensors; it is a branch or a loop; or its rule
    depends on a value that only a run knows, such as where a slice begins.
    """
    if traits(op).is_source or traits(op).is_group or traits(op).reads_variable:
        return False
    if _is_open(op) or (any(map(_has_open_shape, op.inputs)) and not _takes_rows(op)):
        return True
    return not all(is_static(op.inputs[place]) for place in static_operands(op))


def _is_open(op: Any) -> bool:
    if any(tensor.dtype == tf.variant for tensor in op.outputs):
        return True
    if function_attrs(op):
        return called_functions(op) is None
    scratch = traits(op).scratch_outputs
    return any(
        _has_open_shape(tensor) for place, tensor in enumerate(op.outputs) if place not in scratch or tensor.consumers()
    )


def _has_open_shape(tensor: Any) -> bool:
    return not tensor.shape.is_fully_defined() and tensor.dtype not in (tf.resource, tf.string)


def _takes_rows(op: Any) -> bool:
    """Tells whether an operation writes rows of a variable whose number only a run knows."""
    if traits(op).rows is None:
        return False
    return all(t.shape.rank and t.shape[1:].is_fully_defined() for t in op.inputs if _has_open_shape(t))


@dataclass(frozen=True)
class Differentiated:
    """The roles of a graph's operations in gradients, which the operations themselves do not show.

    Attributes:
        calls: the differentiations.
        given: names of the operations that stand for gradients, and for rows of them that are merged.
    """

    calls: Sequence[GradientCall]
    given: frozenset[str]

    @functools.cached_property
    def losses(self) -> frozenset[str]:
        """The names of the tensors that are differentiated."""
        return frozenset(loss for call in self.calls for loss in call.losses)

    @functools.cached_property
    def sources(self) -> frozenset[str]:
        """The names of the tensors that they are differentiated by."""
        return frozenset(output.source for call in self.calls for output in call.outputs if ":" in output.source)

    @functools.cached_property
    def stopped(self) -> frozenset[str]:
        """The names of the tensors that count as constants for some gradients."""
        return frozenset(name for call in self.calls for name in call.stopped)

    @functools.cached_property
    def crossed(self) -> frozenset[str]:
        """The names of the tensors by which losses are differentiated, or at which gradients stop."""
        return frozenset(name for call in self.calls for name in call.crossed)

    def is_constant(self, tensor: Any) -> bool:
        """Tells whether a tensor counts as constant wherever gradients would flow through it.

        Raises:
            GraphError: it does for some gradients alone.
        """
        if tensor.name not in self.stopped:
            return False
        found = set()
        for call in self.calls:
            roots = (tensor.graph.get_tensor_by_name(name).op for name in call.losses)
            if tensor.op in reached(roots, lambda op: (x.op for x in op.inputs)):
                found.add(tensor.name in call.stopped)
        if len(found) > 1:
            raise GraphError(
                f"{tensor.op.type} '{tensor.op.name}': counts as constant for one gradient and not for another one, "
                f"amid operations on tensors whose shapes only a run knows, which are one operator. {_GIVE_SHAPES}"
            )
        return True in found


def groups_of(
    roots: Iterable[Any],
    known: Container[str],
    position: Mapping[str, float],
    differentiated: Differentiated,
    *,
    accessed: Accesses,
    fetches: Collection[str] | None = None,
) -> list[Group]:
    """The groups among the operations that ``roots`` need and that are not known yet.

    Args:
        roots: operations.
        known: names of those that are known.
        position: of each operation of the graph, by its name. TensorFlow gives what an operation waits for, and what
            reads it, in an order that differs between processes.
        differentiated: what gradients there are.
        accessed: what is known of accesses to variables, to which this call adds.
        fetches: the names of what a run asks for, which may have shapes that only a run knows; None if that is not
            known yet.

    Raises:
        GraphError: if one holds what must not be done by every device, or a gradient, or a root has no known shape.
    """
    roots = list(roots)
    if fetches is None:
        _check_roots(op for op in roots if op.name not in differentiated.given)
    needed = _needed(roots, known, position)
    others = _readers_of_effects(needed, fetches or ())
    if others:
        roots += others
        needed = _needed(roots, known, position)
    opaque = [op for op in needed if is_opaque(op) and op.name not in differentiated.given]
    place = {op: number for number, op in enumerate(needed)}
    found: list[set[Any]] = []
    for op in opaque:
        readers = [x for t in op.outputs for x in t.consumers() if x in place] if _is_open(op) else []
        _add(found, {op, *(x for x in readers if not _takes_rows(x) and x.name not in differentiated.given)})
    core = frozenset().union(*found)
    while True:
        convex = [_closed(members, needed, place, differentiated.given) for members in found]
        merged: list[set[Any]] = []
        for members in convex:
            _add(merged, members)
        if merged == found:
            break
        found = merged
    apart = differentiated.given | {op.name for op in roots if traits(op).is_group}
    parts = [
        _closed(part, needed, place, differentiated.given)
        for members in found
        for part in _parted(sorted(members, key=place.__getitem__), core, differentiated.given, apart)
    ]
    reads = _Reads(frozenset(roots), differentiated, place, frozenset().union(*parts), fetches is not None, accessed)
    return [_group(sorted(members, key=place.__getitem__), reads) for members in parts]


def _check_roots(roots: Iterable[Any]) -> None:
    """Checks that what nobody fetches has known shapes, before all that it needs is walked through.

    Raises:
        GraphError: naming one that has not.
    """
    for op in roots:
        if is_opaque(op) and not is_done_once(op):
            for t in op.outputs:
                if t.dtype == tf.variant or not t.shape.is_fully_defined():
                    raise _not_by_itself(t)


def _not_by_itself(t: Any) -> GraphError:
    return GraphError(
        f"{t.op.type} '{t.op.name}': its output has shape {t.shape}, which only a run knows, so it cannot be fetched "
        "by itself. Fetch what has a known shape, such as a sum of it."
    )


def _parted(
    members: Sequence[Any], core: Container[Any], given: Container[str], apart: Container[str]
) -> list[set[Any]]:
    """Splits the operations of a group where an operation that must be in no group stands between them.

    Such an operation is a gradient, a write to a variable, or a step that is run by its name. Tensors whose shapes only
    a run knows may also pass from group to group.

    Args:
        members: in order.
        core: those that must be in groups.
        given: names of gradients.
        apart: names of operations that are in no group.
    """
    memo: dict[str, bool] = {}
    level: dict[Any, int] = {}
    for op in members:
        before = [x for x in _waits_for(op, given, memo) if x in level]
        level[op] = max(
            (level[x] + (x not in core and (x.name in apart or not _is_alike(x))) for x in before), default=0
        )
    kept = [op for op in members if op in core]
    return [{op for op in kept if level[op] == each} for each in sorted({level[op] for op in kept})]


def _needed(roots: Iterable[Any], known: Container[str], position: Mapping[str, float]) -> list[Any]:
    """Returns the operations that roots need, in an order in which they can run, the same in every process."""

    def last_first(operations: Iterable[Any]) -> list[Any]:
        return sorted((op for op in operations if op.name not in known), key=lambda op: -position[op.name])

    return post_order(last_first(roots), lambda op: last_first(needs(op)))


def _readers_of_effects(needed: Iterable[Any], fetches: Container[str]) -> list[Any]:
    """Returns the operations that make tensors of known shapes from tensors of open shapes that effects made.

    Those that a run asks for may have open shapes, too. They are computed once, in one group, whichever of them are
    fetched later. For example, of a loop in which the user's Python plays a game, the losses serve training, and the
    length is for the user.
    """
    pending = [op for op in needed if is_done_once(op) and is_opaque(op)]
    seen: set[Any] = set(pending)
    found: list[Any] = []
    while pending:
        op = pending.pop()
        for reader in (x for t in op.outputs for x in t.consumers() if x not in seen):
            seen.add(reader)
            if not _is_alike(reader):
                continue
            has_open_shape = is_opaque(reader)
            if has_open_shape:
                pending.append(reader)
            if not has_open_shape or reader.name in fetches:
                found.append(reader)
    return found


def _add(found: list[set[Any]], members: set[Any]) -> None:
    """Adds a group, as one with those that it shares operations with."""
    for other in [each for each in found if each & members]:
        members |= other
        found.remove(other)
    found.append(members)


def _closed(members: set[Any], needed: Sequence[Any], place: dict[Any, int], given: Container[str]) -> set[Any]:
    """With all that lies between members, without which the group would need what needs it."""
    places = [place[op] for op in members]
    span = needed[min(places) : max(places) + 1]  # each operation stands after those that it waits for
    memo: dict[str, bool] = {}
    after: set[Any] = set()
    for op in span[1:]:
        if any(x in members or x in after for x in _waits_for(op, given, memo)):
            after.add(op)
    before: set[Any] = set()
    for op in reversed(span):
        if op in members or op in before:
            before.update(_waits_for(op, given, memo))
    return members | (after & before)


def _waits_for(op: Any, given: Container[str], memo: dict[str, bool]) -> Iterator[Any]:
    """Yields the operations that an operation comes after; for a gradient also its losses, which it does not read."""
    yield from (t.op for t in op.inputs)
    yield from (x for x in op.control_inputs if op.name in given or is_significant(x, memo))


def _is_alike(op: Any) -> bool:
    """Tells whether every device may run an operation: its result is alike on all, and it changes nothing elsewhere."""
    if traits(op).is_variable:
        return False
    return not has_effect(op) or draws_by_state(op) or is_done_once(op)


def is_done_once(op: Any) -> bool:
    """Tells whether an operation has an effect that only one group may have: it calls functions, or Python."""
    return has_effect(op) and (bool(function_attrs(op)) or op.type in _ALIKE)


@dataclass(frozen=True, slots=True)
class _Reads:
    """The readers of tensors: needed operations, also in groups; the caller of the roots; gradients, of losses."""

    roots: frozenset[Any]
    differentiated: Differentiated
    needed: Collection[Any]
    grouped: Container[Any]
    fetched: bool
    accessed: Accesses

    def may_give(self, tensor: Any, inside: Collection[Any]) -> bool:
        """Tells whether a group may give a tensor: its shape is known, or only groups and writers of rows read it."""
        readers = [x for x in tensor.consumers() if x in self.needed and x not in inside]
        if tensor.dtype == tf.variant:
            return not readers and tensor.op not in self.roots  # its place alone is there
        if is_done_once(tensor.op):
            return True
        taken = all(x in self.grouped or _takes_rows(x) or x.name in self.differentiated.given for x in readers)
        is_root = tensor.op in self.roots
        return tensor.shape.is_fully_defined() or (self.fetched if is_root else bool(readers) and taken)

    def outputs(self, op: Any, inside: Collection[Any]) -> list[Any]:
        """The outputs of an operation of a group, up to the last that is read, so that their places stay the same.

        If it is read at all, also by what is not needed now: the operator will be there already when that is.
        """
        losses, sources = self.differentiated.losses, self.differentiated.sources
        outside = [[x for x in t.consumers() if x not in inside] for t in op.outputs]
        read = [
            number
            for number, (t, readers) in enumerate(zip(op.outputs, outside, strict=True))
            if t.name in losses or t.name in sources or any(x in self.needed for x in readers)
        ]
        once = is_done_once(op)
        if read or once:
            # What is done once can be had by nobody else who reads it without its group.
            known = [t.dtype != tf.variant and (once or t.shape.is_fully_defined()) for t in op.outputs]
            wanted = [readers or (once and t.consumers()) for t, readers in zip(op.outputs, outside, strict=True)]
            read += [number for number, readers in enumerate(wanted) if readers and known[number]]
        is_root = op in self.roots
        last = len(op.outputs) - 1 if is_root and (self.fetched or not read) else max(read, default=-1)
        given = list(op.outputs[: last + 1])
        # What is made later, such as for a fetch, may read what nothing but the group does now.
        for t in op.outputs[last + 1 :] if given else ():
            if not (t.shape.is_fully_defined() and self.may_give(t, inside)):
                break
            given.append(t)
        return given

    def writes_before(self, tensor: Any, op: Any) -> tuple[Any, ...]:
        """The last writes of a variable that an operation that takes its handle comes after; else nothing."""
        if tensor.dtype != tf.resource:
            return ()
        return tuple(sorted(accesses_before([tensor], [op], self.accessed, writes=True), key=lambda each: each.name))

    def check(self, operations: Sequence[Any], inside: Collection[Any]) -> None:
        """Checks that nothing in the midst of a group has a gradient of its own."""
        for op in operations:
            split = [t for t in op.outputs if t.name in self.differentiated.sources]
            if any(x in inside for t in split for x in t.consumers()):
                raise GraphError(
                    f"{op.type} '{op.name}': has a gradient of its own, amid operations on tensors whose shapes only a "
                    f"run knows (from '{operations[0].name}' to '{operations[-1].name}'), which are one operator. "
                    f"{_GIVE_SHAPES}"
                )


def _group(operations: Sequence[Any], reads: _Reads) -> Group:
    inside = set(operations)
    reads.check(operations, inside)
    for op in operations:
        if not _is_alike(op):
            raise GraphError(
                f"{op.type} '{op.name}': has an effect, or a random state of its own, and works with tensors whose "
                f"shapes only a run knows ('{operations[0].name}' makes one), so that every device would do it by "
                f"itself. Give it tensors of {_KNOWN_SHAPES}, and draw by random_uniform or random_normal, which may "
                "have any."
            )
    outputs = [t for op in operations for t in reads.outputs(op, inside)]
    for t in outputs:
        if not reads.may_give(t, inside):
            raise _not_by_itself(t)
    constants = {t.name for op in operations for t in op.outputs if reads.differentiated.is_constant(t)}
    inputs: dict[tuple[str, tuple[Any, ...]], Any] = {}
    late: dict[int, tuple[list[Any], Sequence[Any]]] = {}
    draws: list[Operator] = []
    graph = operations[0].graph
    body = tf.compat.v1.GraphDef()
    body.versions.CopyFrom(graph.graph_def_versions)
    body.library.function.extend(_functions(graph, [op.node_def for op in operations]))
    for op in operations:
        node = op.node_def
        node.device = ""
        for attr in HINTS:
            node.attr.pop(attr, None)
        if draws_by_state(op):
            seeds = {key: node.attr.pop(key).i for key in ("seed", "seed2")}
            draws.append(Operator(op.name, op.type, (), (), MappingProxyType(seeds), node={}))
        original = original_of(node.attr)
        if original is not None:
            draws.append(Operator(op.name, original.op, (), (), MappingProxyType(draw_attrs(original)), node={}))
        names = []
        for t in op.inputs:
            if t.op not in inside:
                # What reads a variable before a write of it, and what does after that, may be in one group.
                writes = reads.writes_before(t, op)
                inputs.setdefault((t.name, writes), t)
                place = list(inputs).index((t.name, writes))
                names.append(body_input(place))
                if writes:
                    late.setdefault(place, ([], writes))[0].append(op)
            elif t.name in constants:
                names.append(f"{t.op.name}/.constant{t.value_index}")
            else:
                names.append(t.name)
        del node.input[:]
        node.input.extend(names)
        node.input.extend(sorted(f"^{x.name}" for x in op.control_inputs if x in inside))
        if takes_handle(op):
            _take_value(op, node, body)
        body.node.append(node)
        for t in op.outputs:
            if t.name in constants:
                stop = body.node.add(name=f"{t.op.name}/.constant{t.value_index}", op=_STOP, input=[t.name])
                stop.attr["T"].type = t.dtype.as_datatype_enum
    results = [f"{t.op.name}/.nothing{t.value_index}:0" if t.dtype == tf.variant else t.name for t in outputs]
    for t, name in zip(outputs, results, strict=True):
        if t.dtype == tf.variant:
            nothing = body.node.add(name=name.removesuffix(":0"), op=_CONSTANT)
            nothing.attr["dtype"].type = GIVEN_FOR_LISTS.as_datatype_enum
            nothing.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0, GIVEN_FOR_LISTS))
    for number, t in enumerate(inputs.values()):
        dtype = tf.as_dtype(t.op.get_attr("dtype")) if t.dtype == tf.resource else t.dtype
        node = body.node.add(name=body_input(number), op="Placeholder")
        node.attr["dtype"].type = dtype.as_datatype_enum
    name_functions_by_content(body)
    digest = hashlib.sha256(with_numbered_tokens(body).SerializeToString(deterministic=True)).hexdigest()[:16]
    return Group(
        f"{operations[-1].name}/group",
        tuple(operations),
        tuple(inputs.values()),
        late,
        tuple(outputs),
        body,
        tuple(results),
        tuple(draws),
        digest,
    )


def _functions(graph: Any, nodes: Iterable[Any]) -> list[Any]:
    """TensorFlow's definitions of the functions that nodes call, and of those that these call."""
    found: dict[str, Any] = {}
    pending = list(nodes)
    while pending:
        _, *named = called_by(pending.pop())
        for name in filter(None, named):
            if name not in found:
                found[name] = graph._get_function(name).cached_definition
                pending += found[name].node_def
    return [without_devices(found[name]) for name in sorted(found)]


def _take_value(op: Any, node: Any, body: Any) -> None:
    """Makes a read of a variable, or a lookup in it, take the variable's value instead; adds what it reads."""
    if traits(op).reads_variable:
        dtype = node.attr["dtype"].type
        node.op = PASSED_ON
        node.attr.clear()
        node.attr["T"].type = dtype
        return
    dtype, indices = node.attr["dtype"].type, node.attr["Tindices"].type
    if op.type == "ResourceGatherNd":
        node.op = "GatherNd"
        node.attr.clear()
        node.attr["Tparams"].type, node.attr["Tindices"].type = dtype, indices
        return
    if op.type != "ResourceGather":
        raise GraphError(
            f"{op.type} '{op.name}': takes a variable itself and works with tensors whose shapes only a run knows. "
            "Give it the variable's value (read_value())."
        )
    axis = body.node.add(name=f"{op.name}/.axis", op=_CONSTANT)
    axis.attr["dtype"].type = tf.int32.as_datatype_enum
    axis.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(0))
    batch_dims = node.attr["batch_dims"].i
    node.op = "GatherV2"
    node.input.append(axis.name)
    node.attr.clear()
    node.attr["Tparams"].type, node.attr["Tindices"].type, node.attr["Taxis"].type = (
        dtype,
        indices,
        tf.int32.as_datatype_enum,
    )
    node.attr["batch_dims"].i = batch_dims
