"""The pass that reads TensorFlow's operations as operators of ours."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tensoropt.api.frontend.draws import is_draw, original_of
from tensoropt.api.frontend.fetchable_operations import fetchable, given_names
from tensoropt.api.frontend.parts import training_roots
from tensoropt.api.frontend.reader import Reader
from tensoropt.api.frontend.source import Source
from tensoropt.api.frontend.stand_ins import indices_of
from tensoropt.errors import GraphError

__all__ = ["read_operators"]


def read_operators(source: Source) -> Source:
    """Reads TensorFlow's operations as operators: those of the training step, and whatever else may be fetched.

    A training step is all that changes something and comes after a gradient, and every update of a variable that a loss
    is differentiated by; without any, the gradients; without these, all that may be fetched. What cannot be read beside
    training is left out; fetching it says why.

    Raises:
        GraphError: naming the user's op and line, if a tensor of training has no static shape or a dtype that cannot be
            moved, an operand that must be fixed is not, or a gradient is differentiated.
    """
    graph, only = source.graph, source.request.only
    calls, merged = source.part.gradients, source.part.merged
    reader = Reader(graph, calls, merged, source.origins, fetches=only, initializers=source.initial)
    outputs = [output for call in calls for output in call.outputs]
    given = [name for output in outputs for name in (output.name, indices_of(output) if output.indices else None)]
    roots = training_roots(graph, filter(None, given), {output.source for output in outputs}, source.initial)
    roots = [op for op in roots if only is None or op.name in source.part.operations]
    operators = reader.operators(roots)
    if not roots:
        operators = reader.gradients()
    training = {op.name for op in operators}
    known = set(training)
    if only is None:
        others = [name for name in fetchable(graph, source.initial, given_names(source.model)) if name in source.own]
    else:
        others = sorted(only)
    # The last draws of random ops, which decide where the next run draws, whoever reads them.
    draws = {original_of(op.node_def.attr).name: op.name for op in graph.get_operations() if is_draw(op)}
    refused = dict(source.refused)
    others += [*draws.values(), *reader.gradient_names]
    alone: list[str] = []  # mostly refused, which halves would find out one after the other
    together: list[str] = []
    for name in others:
        is_open = only is None and _has_open_output(graph.get_operation_by_name(name))
        (alone if is_open else together).append(name)
    # Together, so that what all of them need is in one group; if some are refused, half of them.
    pending = [*([name] for name in alone), together]
    while pending:
        names = [name for name in pending.pop() if name not in known]
        try:
            more = reader.operators([graph.get_operation_by_name(name) for name in names], known=known)
        except GraphError as error:
            half = len(names) // 2
            if half:
                pending += [names[half:], names[:half]]
            else:
                refused[names[0]] = error
            continue
        operators += more
        known |= {op.name for op in more}
    operators = reader.in_order(reader.after_reads(operators))
    return replace(
        source,
        operators=tuple(operators),
        training=frozenset(training or (op.name for op in operators)),
        refused=refused,
    )


def _has_open_output(op: Any) -> bool:
    return not all(tensor.shape.is_fully_defined() for tensor in op.outputs)
