"""Names the user's operator when TensorFlow fails in a local graph, whose names and shapes are not the user's."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tensoropt.errors import OpError
from tensoropt.exec.program.recording import Owner
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.gather import SAMPLES, counts_through_samples
from tensoropt.graph.spec import TensorSpec

__all__ = ["failed_operator", "operator_error"]

# What TensorFlow says of an op.
_SAID = re.compile(r"^\s*(?:\(\d+\) [\w ]+: )?(.*)\n\s*\[\[\{\{node [^}]+\}\}", re.MULTILINE)
# The ops that it names: one of a branch is followed by that which has the branch; some its optimizer has made.
_NODE = re.compile(r"\[\[(?:\{\{node )?([^\]}]+)")
# The call in which an op ran: of a micro-batch, of which the user's graph has no function.
_CALL = re.compile(r"\{\{function_node [^}]*\}\}\s*")
_LONGEST = 300  # characters of TensorFlow's that are repeated: some of its messages have all values of a tensor


def failed_operator(
    message: str, graph: Any, made: Mapping[str, str], owners: Callable[[], Mapping[str, Owner]] = dict
) -> tuple[str, str] | None:
    """Returns the operator of a failure, and TensorFlow's message; None if it is no operator's.

    Args:
        message: TensorFlow's.
        graph: the local ``tf.Graph``.
        made: the operator that gives a local tensor, by the tensor's name.
        owners: gives whose work a local op does, by the op's name: a check gives no tensor.
    """
    message = _CALL.sub("", message)
    found = _SAID.search(message)
    if found is None:
        return None
    known = {op.name: op for op in graph.get_operations()}
    op = next((known[name] for name in _NODE.findall(message) if name in known), None)
    if op is None:
        return None
    # An op of the backward pass goes by the one that it is the gradient of, a part of a lowering by what comes of it.
    while getattr(op, "_original_op", None) is not None:
        op = op._original_op
    pending, seen = [op], {op}
    for each in pending:
        for tensor in each.outputs:
            if tensor.name in made:
                return made[tensor.name], found[1]
            fresh = [consumer for consumer in tensor.consumers() if consumer not in seen]
            seen.update(fresh)
            pending += fresh
    owner = owners().get(op.name)
    return None if owner is None else (owner.subject, found[1])


def operator_error(
    failure: Any,
    op: Operator,
    inputs: Sequence[TensorSpec],
    pieces: Sequence[TensorSpec],
    said: str,
    rank: int,
    peak_bytes: float,
    times: int = 1,
) -> OpError:
    """Makes the error that tells the user of an operator that failed.

    Args:
        failure: TensorFlow's error.
        op: the operator.
        inputs: the specs of its whole inputs.
        pieces: the specs of this rank's pieces of the inputs.
        said: TensorFlow's message.
        rank: of this process.
        peak_bytes: that the plan is predicted to take of a device.
        times: in how many micro-batches the operator runs.

    Returns:
        An error that is of TensorFlow's class, too: scripts catch, say, ``tf.errors.InvalidArgumentError``.
    """
    said = said.rstrip(". ") if len(said) <= _LONGEST else f"{said[:_LONGEST]}…"
    text = f"{op}: failed on rank {rank}: {said}. It reads {', '.join(map(str, inputs)) or 'nothing'}"
    if list(inputs) != list(pieces):
        text += f", of which this rank has {', '.join(map(str, pieces))}"
    if times > 1:
        text += f"; it runs in {times} micro-batches, and the numbers count within a part of one"
    if isinstance(failure, tf.errors.ResourceExhaustedError):
        text += (
            f". There is less memory than the plan takes, about {peak_bytes:,.0f} bytes for each step. Plan for less: "
            "give memory_bytes, micro_batches='auto' or recompute=True."
        )
    elif counts_through_samples(op) and pieces[0] != inputs[0]:
        text += (
            f". As the script adds places to where {op.attrs[SAMPLES]} samples begin, a device has the rows of its own "
            "samples alone. If places may lead to rows of other samples, clip what they are added to "
            "(tf.clip_by_value, to all rows that there are), and each device has all rows."
        )
    else:
        text += ". Give it values that are legal for the whole operator."
    return _error_class(failure.__class__)(failure.node_def, None, text)


@functools.cache
def _error_class(of_tensorflow: type[Exception]) -> Any:
    """Errors that are both ours and TensorFlow's."""
    return type(of_tensorflow.__name__, (OpError, of_tensorflow), {"__module__": __name__})
