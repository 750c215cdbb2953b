"""Effects of operations in a TensorFlow graph, by TensorFlow's own definitions of the operations."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Iterator
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.framework import auto_control_deps_utils, op_def_registry

from tensoropt.api.frontend.functions import called_graphs, function_attrs, is_call, without_devices
from tensoropt.api.frontend.walks import needs, reached
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import is_differentiable

__all__ = [
    "HANDLE",
    "PASSED_ON",
    "PLACEHOLDER",
    "WITH_DEFAULT",
    "Accesses",
    "accesses_before",
    "called_functions",
    "comes_after",
    "has_effect",
    "is_on_variables",
    "is_pipeline",
    "is_plain_read",
    "is_significant",
    "is_stateful",
    "late_reads",
    "makes_handle",
    "only_reads",
    "saves",
    "takes_handle",
    "varies",
    "writes_in",
]

_Value = TypeVar("_Value")

# A loop of TensorFlow 1 leads back to these.
_LOOPS = ("Merge", "RefMerge")
HANDLE = "VarHandleOp"
PLACEHOLDER, WITH_DEFAULT, PASSED_ON = "Placeholder", "PlaceholderWithDefault", "Identity"
"""The op types of nodes that are fed, and of nodes that stand for another node."""

_BUFFER = "Empty"
"""The op type that has a state by its definition so that TensorFlow makes a tensor anew each time: one to be filled."""

_IS_INITIALIZED = "VarIsInitializedOp"
_CHECKPOINTS = ("SaveV2", "MergeV2Checkpoints")


def has_effect(op: Any) -> bool:
    """Tells whether running an operation matters even if nobody reads its outputs.

    TensorFlow's definition says that the operation has or changes a state (``is_stateful``): it writes a variable,
    draws random numbers, checks, prints. Making a variable's handle and reading a variable are stateful too, but change
    nothing.
    """
    makes = not op.inputs and op.outputs and all(tensor.dtype == tf.resource for tensor in op.outputs)
    return is_stateful(op) and not makes and not only_reads(op)


def is_stateful(op: Any) -> bool:
    """Tells whether TensorFlow's definition of an operation says that it has or changes a state."""
    known = op_def_registry.get(op.type)  # which an operation has to read anew each time; of a function there is none
    return op.type != _BUFFER and bool((op.op_def if known is None else known).is_stateful)


def makes_handle(op: Any) -> bool:
    """Tells whether an operation makes the handle of a variable."""
    return op.type == HANDLE


def is_pipeline(op: Any) -> bool:
    """Tells whether an operation makes, changes or reads a dataset or an iterator; the names of all such ops say so."""
    return "Dataset" in op.type or "Iterator" in op.type


def saves(op: Any) -> bool:
    """Tells whether an operation writes a checkpoint: every rank would write the file."""
    return op.type in _CHECKPOINTS


def varies(op: Any) -> bool:
    """Tells whether an operation may give different results from run to run: it has a state other than a variable's."""
    return has_effect(op) and op.type != _IS_INITIALIZED


def takes_handle(op: Any) -> bool:
    """Tells whether an operation takes a variable itself, not its value."""
    return any(tensor.dtype == tf.resource for tensor in op.inputs)


def writes_in(graph: Any) -> Iterator[Any]:
    """Yields the operations of a graph that write variables, with those of the functions that it calls."""
    for op in graph.get_operations():
        for function in called_graphs(op):
            yield from writes_in(function)
        if is_on_variables(op) and has_effect(op):
            yield op


def is_on_variables(op: Any) -> bool:
    """Tells whether an operation acts on the variables that it takes, and on nothing else."""
    return takes_handle(op) and not is_call(op) and not function_attrs(op)


def is_plain_read(op: Any, memo: dict[str, bool]) -> bool:
    """Tells whether an operation reads a variable at any time: nothing that it waits for :func:`is_significant`."""
    return traits(op).reads_variable and not any(is_significant(dep, memo) for dep in op.control_inputs)


def late_reads(graph: Any, initializers: Container[str]) -> frozenset[str]:
    """The names of reads of variables that wait for nothing, and yet come after a write where both run.

    What reads a variable whenever it likes reads it first, as TensorFlow mostly does. But where a write puts something
    in the place of what the variable held that is made of just that, writes before it would be undone: it reads what
    these have left, if the script makes the read after them (``clip = w.assign(clip_by_value(w, …))`` after an
    optimizer's step).

    Args:
        graph: a ``tf.Graph``.
        initializers: names of operations that give variables their initial values.
    """
    memo: dict[str, bool] = {}
    place = {op: number for number, op in enumerate(graph.get_operations())}
    writes: dict[Any, list[Any]] = {}
    for op in place:
        if op.name not in initializers and varies(op):
            for handle in {tensor.op: None for tensor in op.inputs if makes_handle(tensor.op)}:
                writes.setdefault(handle, []).append(op)
    found = set()
    for handle, (first, *others) in writes.items():
        given = [tensor.op for op in others if not traits(op).adds for tensor in op.inputs]
        for op in reached(given, lambda op: [tensor.op for tensor in op.inputs]):
            reads = any(tensor.op is handle for tensor in op.inputs) and not has_effect(op)
            if reads and place[op] > place[first] and not any(is_significant(x, memo) for x in op.control_inputs):
                found.add(op.name)
    return frozenset(found)


def is_significant(op: Any, memo: dict[str, bool]) -> bool:
    """Tells whether waiting for ``op`` matters.

    It does if ``op`` has an effect, groups operations that may have one (a training step is a group), or comes after
    such an operation itself.

    Args:
        op: a ``tf.Operation``.
        memo: known answers by name, to which this call adds.
    """
    return comes_after(op, lambda each: traits(each).is_group or has_effect(each), memo)


def comes_after(op: Any, acts: Callable[[Any], bool], memo: dict[str, bool]) -> bool:
    """Tells whether an operation acts, or reads or waits for one that does.

    Args:
        op: a ``tf.Operation``.
        acts: tells whether one acts.
        memo: known answers by name, to which this call adds.
    """
    return _from_before(op, memo, lambda each: True if acts(each) else None, any)


def _from_before(
    op: Any, known: dict[str, _Value], own: Callable[[Any], _Value | None], joined: Callable[[Iterable[_Value]], _Value]
) -> _Value:
    """The value of an operation: its own, or else what is joined of those of all that it reads or waits for.

    Args:
        op: a ``tf.Operation``.
        known: values by name, to which this call adds.
        own: gives an operation's own value; None where it has none.
        joined: joins values.
    """
    pending = [op]
    while pending:
        current = pending.pop()
        if current.name in known:
            continue
        value = own(current)
        if value is not None:
            known[current.name] = value
            continue
        before = needs(current)
        unknown = [] if current.type in _LOOPS else [other for other in before if other.name not in known]
        if unknown:
            pending += [current, *unknown]
        else:
            known[current.name] = joined(known[other.name] for other in before if other.name in known)
    return known[op.name]


Accesses = dict[tuple[frozenset[str], bool], dict[str, dict[str, Any]]]
"""The last accesses that operations come after, by variables, whether writes alone count, and the operation."""


def accesses_before(given: Iterable[Any], ops: Iterable[Any], memo: Accesses, *, writes: bool) -> Collection[Any]:
    """The accesses to variables that operations come after, without those that come before another of them.

    Args:
        given: tensors, among them the variables' handles.
        ops: operations of TensorFlow.
        memo: known answers, to which this call adds.
        writes: whether writes alone count, which is what a read must come after. A write must come after reads, too,
            and after effects on other things than variables, such as a check.
    """
    handles = frozenset(_handles(given))
    known = memo.setdefault((handles, writes), {})

    def own(op: Any) -> dict[str, Any] | None:
        is_access, acts = not handles.isdisjoint(_handles(op.inputs)), has_effect(op)
        counts = is_access and acts if writes else is_access or (acts and not is_on_variables(op))
        return {op.name: op} if counts else None

    return _joined(_from_before(op, known, own, _joined) for op in ops).values()


def _joined(accesses: Iterable[dict[str, Any]]) -> dict[str, Any]:
    return {name: op for each in accesses for name, op in each.items()}


def _handles(given: Iterable[Any]) -> Iterator[str]:
    """Yields the names of the handles among some tensors; of one that is passed on, the name at its source."""
    for tensor in given:
        if tensor.dtype == tf.resource:
            while tensor.op.type == PASSED_ON:
                tensor = tensor.op.inputs[0]
            yield tensor.name


def called_functions(op: Any) -> tuple[Any, ...] | None:
    """TensorFlow's definitions of the functions that ``op`` calls; None if devices cannot follow them.

    They can if no gradient flows through, and if nothing in them has an effect but to check or to print: every device
    then does the same with the same tensors. ``tf.debugging.assert_*`` makes such branches.
    """
    attrs = op.node_def.attr.values()
    names = [value.func.name for value in attrs if value.HasField("func")]
    lists = any(value.list.func for value in attrs)
    if not names and not lists:
        return ()
    if lists or any(is_differentiable(tensor.dtype) for tensor in op.outputs) or takes_handle(op):
        return None
    found = (op.graph._get_function(name).cached_definition for name in dict.fromkeys(names))
    definitions = tuple(map(without_devices, found))
    nodes = [node for definition in definitions for node in definition.node_def]
    return None if any(_is_beyond_devices(node) for node in nodes) else definitions


def _is_beyond_devices(node: Any) -> bool:
    """Tells whether a node of a function calls other functions, or keeps a state."""
    definition = op_def_registry.get(node.op)
    if definition is None or any(value.HasField("func") or value.list.func for value in node.attr.values()):
        return True
    handles = [arg for arg in definition.input_arg if arg.type == tf.resource.as_datatype_enum]
    return bool(definition.is_stateful and (definition.output_arg or handles))


def only_reads(op: Any) -> bool:
    """Tells whether TensorFlow's automatic control dependencies count an operation among the readers of variables."""
    return op.type in auto_control_deps_utils.RESOURCE_READ_OPS
