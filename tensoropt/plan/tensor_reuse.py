"""Tensor reuse: which copy of a moved tensor is kept for the backward pass, and how the other is made again.

TensorOpt section 4.2, "Tensor reuse": of a tensor that is moved to its consumer there are two copies, before and after
the move. If one of them is not kept, it is made from the other by a move of its own, in the backward pass.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence

from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import declaration, has_rule, traits
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorId
from tensoropt.layout import Layout, Step, StepKind, canonical_path
from tensoropt.layout.reshard_step import UNDONE_BY
from tensoropt.plan.in_time import InTime
from tensoropt.plan.recomputation import made_by

__all__ = [
    "backward_readers",
    "keep_choices",
    "reads_again",
    "reverse_steps",
    "why_not_back_each",
    "why_not_kept",
]


def keep_choices(
    graph: Graph, rules: Mapping[str, OpRule], edge: Edge, again: Collection[str] = (), steps: InTime | None = None
) -> tuple[str, ...]:
    """The values of :attr:`EdgePlan.keep` with which an edge can run if it has forward steps; ``"both"`` is first.

    Whatever is chosen gives the same numbers, and choices of one edge do not depend on those of another.

    - ``"before"``: the consumer reads the tensor in its backward pass, and is an op that can be built twice. What of it
      its gradient needs is computed again from the copy that is made again; most gradients need none of it, some need
      the op's output (``Max``, ``Pow``, batch normalization).
    - ``"after"``: the producer's gradient follows from its output alone, which is made again from the copy that the
      consumer keeps for its own backward pass.

    What goes into micro-batches from before is moved once and held for all of them; with ``"before"`` each moves it for
    itself, and once more in its backward pass if that reads it. What learns may be so, whoever reads it.

    Args:
        graph: the logical graph.
        rules: of its operators.
        edge: one of its edges.
        again: the operators whose outputs are made again.
        steps: how a step is split in time, if it is.
    """
    keeps = ("both", "before", "after")
    return tuple(keep for keep in keeps if why_not_kept(graph, rules, edge, keep, again, steps) is None)


def why_not_kept(
    graph: Graph,
    rules: Mapping[str, OpRule],
    edge: Edge,
    keep: str,
    again: Collection[str] = (),
    steps: InTime | None = None,
) -> str | None:
    """Returns the reason why an edge cannot have a value of ``keep``, as the middle of a sentence; None if it can.

    Args:
        graph: the logical graph.
        rules: of its operators.
        edge: one of its edges.
        keep: the value.
        again: the operators whose outputs are made again, which read their inputs once more.
        steps: how a step is split in time, if it is.
    """
    if keep == "both":
        return None
    if steps is not None and steps.is_exit(edge):
        return "what micro-batches give is put together once, and held"
    if steps is not None and steps.is_border(edge) and (keep == "after" or steps.takes_piece(edge)):
        return "all micro-batches take what they need from the copy that is held for them"
    if made_by(graph, edge.tensor).name in again:
        return f"'{edge.tensor.op}' is made again, so no copy of it is kept"
    if graph.is_differentiated_twice:
        return "its gradient is differentiated, and that of what is made again cannot be"
    moved_for_each = steps is not None and steps.is_border(edge) and edge in graph.differentiable
    if not moved_for_each and not backward_readers(graph, rules, edge, again):
        return f"'{edge.consumer}' does not read it in the backward pass"
    if keep == "before":
        bad = [op for op in backward_readers(graph, rules, edge, again) if not _can_repeat(op)]
        return f"{bad[0]} has no rule or has a state, so it cannot be built twice" if bad else None
    producer = graph[edge.tensor.op]
    if traits(producer).gradient_from_output is None or not graph.has_gradient(producer.name):
        return f"the gradient of {producer} does not follow from its output"
    # Readers outside of training need no copy in the backward pass.
    others = [e.consumer for e in graph.consumers(edge.tensor) if e in graph.differentiable and e != edge]
    return f"'{others[0]}' reads it too" if others else None


def why_not_back_each(graph: Graph, edge: Edge, rows: Collection[Edge], steps: InTime | None) -> str | None:
    """Returns the reason why an edge's gradient cannot go back in each micro-batch, as :func:`why_not_kept` does.

    Args:
        graph: the logical graph.
        edge: one of its edges.
        rows: the edges whose gradients are rows (:func:`tensoropt.plan.plan.row_edges`).
        steps: how a step is split in time, if it is.
    """
    if steps is None or not steps.is_border(edge):
        return "it does not lead from what runs once into micro-batches, so there is nothing to sum"
    if edge not in graph.differentiable:
        return "no gradient comes back on it"
    if steps.takes_piece(edge):
        return "each micro-batch reads a part of its own, so there is nothing to sum"
    if edge in rows:
        return "its gradient is rows, which are put together and not summed, so that nothing gets smaller"
    return None


def reads_again(
    graph: Graph,
    rules: Mapping[str, OpRule],
    edge: Edge,
    keep: Mapping[Edge, str],
    again: Collection[str] = (),
    steps: InTime | None = None,
    apart: Callable[[Edge], bool] | None = None,
) -> bool:
    """Tells whether the consumer of an edge reads a copy that the backward pass makes again.

    Args:
        graph: the logical graph.
        rules: of its operators.
        edge: one of its edges.
        keep: of all edges with forward steps.
        steps: how a step is split in time, if it is.
        again: the operators whose outputs are made again.
        apart: whether an edge brings its tensor from other devices, if any does; such a tensor is kept.
    """
    return bool(backward_readers(graph, rules, edge, again)) and _is_let_go(graph, edge, keep, again, steps, apart)


def _is_let_go(
    graph: Graph,
    edge: Edge,
    keep: Mapping[Edge, str],
    again: Collection[str],
    steps: InTime | None,
    apart: Callable[[Edge], bool] | None,
) -> bool:
    """Tells whether what arrives on an edge is not kept, so that who reads it in the backward pass makes it again."""
    if (apart is not None and apart(edge)) or (steps is not None and steps.is_exit(edge)):
        return False
    if made_by(graph, edge.tensor, apart).name in again:
        return True
    if edge in keep:
        return keep[edge] == "before"
    producer = graph[edge.tensor.op]
    if not traits(producer).is_fanout or (steps is not None and steps.is_border(edge)):
        return False
    # Without steps it is the very tensor that the fan-out passes on.
    before = Edge(producer.inputs[0], producer.name, 0)
    return _is_let_go(graph, before, keep, again, steps, apart)


def reverse_steps(layout: Layout, steps: Sequence[Step]) -> tuple[Step, ...]:
    """The steps back to ``layout``, from where ``steps`` lead; both are layouts of whole values, not partial sums.

    They undo one step after the other, unless some of them take sums on the way, which cannot be undone.

    Raises:
        LayoutError: if a step does not start from where the one before leads.
    """
    back: list[Step] = []
    reached = layout
    for step in steps:
        before, reached = reached, step.apply(reached)
        if step.kind is StepKind.PERMUTE:
            back.append(Step(StepKind.PERMUTE, target=before))
        elif step.kind in UNDONE_BY:
            dims = (step.to_dim, step.dim) if step.kind is StepKind.ALL_TO_ALL else (step.dim, None)
            back.append(Step(UNDONE_BY[step.kind], step.axes, *dims, at=step.to_at, to_at=step.at))
    if len(back) < len(steps):
        return canonical_path(reached, layout)
    return tuple(reversed(back))


def backward_readers(
    graph: Graph, rules: Mapping[str, OpRule], edge: Edge, again: Collection[str] = ()
) -> list[Operator]:
    """The operators that read what arrives on an edge in the backward pass, those behind a fan-out included.

    That is: those whose gradient reads it, and those that are made again.
    """
    op = graph[edge.consumer]
    if traits(op).is_fanout:
        readers = graph.consumers(TensorId(op.name))
        return [reader for further in readers for reader in backward_readers(graph, rules, further, again)]
    reads = edge.position in rules[op.name].saved_inputs and graph.has_gradient(op.name)
    return [op] if reads or op.name in again else []


def _can_repeat(op: Operator) -> bool:
    return has_rule(op.type) and declaration(op.type).lower is not None and not declaration(op.type).shared
