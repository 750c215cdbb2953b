"""Tensor reuse: which copy of a moved tensor is kept for the backward pass, and how the other is made again.

TensorOpt section 4.2, "Tensor reuse": of a tensor that is moved to its consumer there are two copies, before and after
the move. If one of them is not kept, it is made from the other by a move of its own, in the backward pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import declaration, has_rule, traits
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorId
from tensoropt.layout import Layout, Step, StepKind, canonical_path
from tensoropt.layout.reshard_step import UNDONE_BY
from tensoropt.plan.in_time import InTime

__all__ = ["has_gradient", "keep_choices", "reads_again", "reverse_steps", "why_not_kept"]


def keep_choices(graph: Graph, rules: Mapping[str, OpRule], edge: Edge, steps: InTime | None = None) -> tuple[str, ...]:
    """The values of :attr:`EdgePlan.keep` with which an edge can run if it has forward steps; ``"both"`` is first.

    Whatever is chosen gives the same numbers, and choices of one edge do not depend on those of another.

    - ``"before"``: the consumer reads the tensor in its backward pass, and is an op that can be built twice. What of it
      its gradient needs is computed again from the copy that is made again; most gradients need none of it, some need
      the op's output (``Max``, ``Pow``, batch normalization).
    - ``"after"``: the producer's gradient follows from its output alone, which is made again from the copy that the
      consumer keeps for its own backward pass.

    What goes into micro-batches from before is moved once and held for all of them; with ``"before"`` each moves it for
    itself, and once more in its backward pass.

    Args:
        graph: the logical graph.
        rules: of its operators.
        edge: one of its edges.
        steps: how a step is split in time, if it is.
    """
    return tuple(keep for keep in ("both", "before", "after") if why_not_kept(graph, rules, edge, keep, steps) is None)


def why_not_kept(
    graph: Graph, rules: Mapping[str, OpRule], edge: Edge, keep: str, steps: InTime | None = None
) -> str | None:
    """Returns the reason why an edge cannot have a value of ``keep``, as the middle of a sentence; None if it can."""
    if keep == "both":
        return None
    if steps is not None and steps.is_border(edge) and (keep == "after" or steps.takes_piece(edge)):
        return "all micro-batches take what they need from the copy that is held for them"
    if graph.is_differentiated_twice:
        return "its gradient is differentiated, and that of what is made again cannot be"
    if not _kept_by_consumer(graph, rules, edge):
        return f"'{edge.consumer}' does not read it in the backward pass"
    if keep == "before":
        bad = [op for op in _readers(graph, rules, edge) if not _can_repeat(op)]
        return f"{bad[0]} has no rule or has a state, so it cannot be built twice" if bad else None
    producer = graph[edge.tensor.op]
    if traits(producer).gradient_from_output is None or not has_gradient(graph, producer.name):
        return f"the gradient of {producer} does not follow from its output"
    # Readers outside of training need no copy in the backward pass.
    others = [e.consumer for e in graph.consumers(edge.tensor) if e in graph.differentiable and e != edge]
    return f"'{others[0]}' reads it too" if others else None


def reads_again(
    graph: Graph, rules: Mapping[str, OpRule], edge: Edge, keep: Mapping[Edge, str], steps: InTime | None = None
) -> bool:
    """Tells whether the consumer of an edge reads a copy that the backward pass makes again.

    Args:
        graph: the logical graph.
        rules: of its operators.
        edge: one of its edges.
        keep: of all edges with forward steps.
        steps: how a step is split in time, if it is.
    """
    if not _kept_by_consumer(graph, rules, edge):
        return False
    if edge in keep:
        return keep[edge] == "before"
    producer = graph[edge.tensor.op]
    if not traits(producer).is_fanout or (steps is not None and steps.is_border(edge)):
        return False
    # Without steps it is the very tensor that the fan-out passes on.
    return reads_again(graph, rules, Edge(producer.inputs[0], producer.name, 0), keep, steps)


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


def has_gradient(graph: Graph, name: str) -> bool:
    """Tells whether gradients flow back through an operator."""
    return any(Edge(tensor, name, i) in graph.differentiable for i, tensor in enumerate(graph[name].inputs))


def _kept_by_consumer(graph: Graph, rules: Mapping[str, OpRule], edge: Edge) -> bool:
    return bool(_readers(graph, rules, edge))


def _readers(graph: Graph, rules: Mapping[str, OpRule], edge: Edge) -> list[Operator]:
    """The operators that read what arrives on an edge in the backward pass, those behind a fan-out included."""
    op = graph[edge.consumer]
    if traits(op).is_fanout:
        return [reader for further in graph.consumers(TensorId(op.name)) for reader in _readers(graph, rules, further)]
    reads = edge.position in rules[op.name].saved_inputs and has_gradient(graph, op.name)
    return [op] if reads else []


def _can_repeat(op: Operator) -> bool:
    return has_rule(op.type) and declaration(op.type).lower is not None and not declaration(op.type).shared
