"""A plan for another graph of the same model: other sizes of what is fed, or operators that the plan has not.

Variables stay as they are stored, so that a program of the new plan can share them with one of the old.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Set
from dataclasses import replace

from tensoropt.errors import LayoutError, MicroBatchError, PlanError
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import rule_of, traits
from tensoropt.graph.rule import OpRule
from tensoropt.layout import Layout, Mesh, Step, StepKind, canonical_path
from tensoropt.plan.configuration import Configuration, at, is_legal
from tensoropt.plan.in_time import InTime, in_time
from tensoropt.plan.places import is_everywhere
from tensoropt.plan.plan import EdgePlan, OperatorPlan, Plan, begin_of, row_edges, rules_of
from tensoropt.plan.recomputation import why_not_again
from tensoropt.plan.tensor_reuse import why_not_back_each, why_not_kept

__all__ = ["adapted", "nearest", "stored_in_pieces"]


def adapted(plan: Plan, graph: Graph, stored_as: Mapping[str, str] | None = None) -> Plan:
    """The plan's strategy for another graph.

    An operator that the plan has keeps its configuration, less the splits that its sizes do not allow
    (:func:`nearest`); another one is split as what it reads, where its rule allows that. An edge whose ends are as they
    were keeps its steps; others get a path that needs no costs. Figures are those of the plan, where it has them.

    Args:
        plan: for a graph whose variables of equal names have equal shapes.
        graph: the other graph.
        stored_as: variables that the plan has not, such as an optimizer's slots, which are to lie as others of the same
            shape that it has; by name. By default new variables are whole on every device.

    Raises:
        PlanError: an operator that takes a variable itself cannot do so where the plan stores it, or a variable has
            another shape.
    """
    whole = graph
    rules: Mapping[str, OpRule] = rules_of(graph)
    steps = _most_steps(graph, rules, plan.micro_batches)
    if steps is not None:
        graph, rules = steps.graph, steps.rules
    chosen: dict[str, Configuration] = {}
    for op in graph.operators:
        like = plan.operators.get((stored_as or {}).get(op.name, ""))
        if op.name not in plan.operators and like is not None and traits(op).is_variable:
            chosen[op.name] = nearest(like.configuration, rules[op.name], plan.mesh)
        else:
            chosen[op.name] = _configuration(plan, graph, rules, chosen, op)
    for name in plan.again & chosen.keys():
        if why_not_again(graph, graph[name], steps) is None:
            chosen[name] = replace(chosen[name], again=True)
    again = {name for name, one in chosen.items() if one.again}
    operators = {}
    for op in graph.operators:
        known = plan.operators.get(op.name)
        cost = (known.time_s, known.memory_bytes) if known is not None else (0.0, 0.0)
        operators[op.name] = OperatorPlan(chosen[op.name], *cost)
    rows = row_edges(graph, rules)
    edges: dict[Edge, EdgePlan] = {}
    for edge in graph.edges():
        entry = _edge(plan, graph, rules, chosen, edge, again, steps, rows)
        if entry != EdgePlan():
            edges[edge] = entry
    return Plan(
        plan.mesh,
        whole.fingerprint(),
        plan.option,
        operators,
        edges,
        plan.time_s,
        plan.memory_bytes,
        plan.notes,
        micro_batches=1 if steps is None else steps.times,
    )


def _most_steps(graph: Graph, rules: Mapping[str, OpRule], most: int) -> InTime | None:
    """The graph's step in as many micro-batches as it can be split into, of those that divide ``most``."""
    for times in range(most, 1, -1):
        if most % times == 0:
            with contextlib.suppress(MicroBatchError):
                return in_time(graph, rules, times)
    return None


def nearest(configuration: Configuration, rule: OpRule, mesh: Mesh) -> Configuration:
    """A legal configuration: the given one without the splits that the rule does not allow.

    Of the mesh axes that split an iteration axis those stay, from the first on, that divide it together.

    Example:
        >>> from tensoropt.graph.rule import elementwise
        >>> from tensoropt.graph.spec import TensorSpec
        >>> x = TensorSpec((6, 8), "float32")
        >>> str(nearest(Configuration(("d0", "d0", "d1")), elementwise([x], [x]), Mesh((2, 2, 2))))
        'd0,*,d1'
    """
    actions: list[str | None] = [None] * len(mesh.axes)
    for axis, action in enumerate(configuration.actions):
        actions[axis] = action
        if action is not None and not is_legal(_of(actions), rule, mesh):
            actions[axis] = None
    return _of(actions)


def stored_in_pieces(graph: Graph, mesh: Mesh) -> Plan:
    """A plan that stores each variable of a graph in as many pieces as its first dimensions allow, and does no more.

    What runs before there is a strategy is :func:`adapted` from it.

    Args:
        graph: of nothing but variables.
        mesh: the factor mesh.
    """
    operators = {}
    for op in graph.operators:
        rule = rule_of(op, ())
        best = max(
            (nearest(Configuration((axis,) * len(mesh.axes)), rule, mesh) for axis in rule.split),
            key=lambda configuration: configuration.pieces(rule, mesh),
            default=Configuration((None,) * len(mesh.axes)),
        )
        operators[op.name] = OperatorPlan(best, 0.0, 0.0)
    return Plan(mesh, graph.fingerprint(), "stored in pieces", operators, {}, 0.0, 0.0, {})


def _of(actions: list[str | None]) -> Configuration:
    return Configuration(tuple(actions))


def _configuration(
    plan: Plan, graph: Graph, rules: Mapping[str, OpRule], chosen: Mapping[str, Configuration], op: Operator
) -> Configuration:
    rule, mesh = rules[op.name], plan.mesh
    known = plan.operators.get(op.name)
    if known is not None and traits(op).is_variable:
        if not is_legal(known.configuration, rule, mesh):
            raise PlanError(
                f"{op}: is stored as {known.configuration} on {mesh}, which {op.outputs[0]} does not allow. A variable "
                "keeps its shape, and whether an op without a rule takes it, from find_strategy on: make what uses it "
                "before."
            )
        return known.configuration
    given = [begin_of(op, chosen[t.op].output_layouts(rules[t.op], t.index)) for t in op.inputs]
    # Where a variable is taken itself, what is stored decides.
    for place in op.handles:
        pinned = _follow(rule, mesh, [(place, given[place])])
        if pinned.input_layouts(rule, place).value != given[place]:
            raise PlanError(
                f"{op}: takes variable '{op.inputs[place].op}' itself, which the plan stores as {given[place]} on "
                f"{mesh}, and it cannot work on a piece. Make it before find_strategy, which then stores the variable "
                "whole, or compute it from the variable's value."
            )
    if op.handles:
        if known is not None and _takes(known.configuration, rule, mesh, op, given):
            return known.configuration
        return _follow(rule, mesh, [(place, given[place]) for place in op.handles])
    if known is not None:
        return _anywhere(graph, op, nearest(known.configuration, rule, mesh))
    specs = graph.input_specs(op)
    # What cannot be moved to another place comes first.
    largest = sorted(range(len(given)), key=lambda place: (specs[place].is_movable, -specs[place].size_bytes))
    return _anywhere(graph, op, _follow(rule, mesh, [(place, given[place]) for place in largest]))


def _anywhere(graph: Graph, op: Operator, configuration: Configuration) -> Configuration:
    """A configuration of an operator, at no place if what it gives cannot be sent from there."""
    placed = dict(configuration.at) if is_everywhere(graph, op) else {}
    return _of([None if axis in placed else action for axis, action in enumerate(configuration.actions)])


def _takes(configuration: Configuration, rule: OpRule, mesh: Mesh, op: Operator, given: list[Layout]) -> bool:
    """Tells whether a configuration is legal and takes the variables in their stored layouts."""
    return is_legal(configuration, rule, mesh) and all(
        configuration.input_layouts(rule, place).value == given[place] for place in op.handles
    )


def _follow(rule: OpRule, mesh: Mesh, inputs: list[tuple[int, Layout]]) -> Configuration:
    """The configuration that splits as inputs come, those that are named first before others, at the first one's place.

    What inputs at other places bring moves there.
    """
    actions: list[str | None] = [None] * len(mesh.axes)
    for axis, coordinate in inputs[0][1].at if inputs else ():
        actions[axis] = at(coordinate)
    for place, layout in inputs:
        for dim, axes in enumerate(layout.dims):
            names = rule.inputs[place][dim]
            for axis in axes:
                if actions[axis] is None and names and names[0] in rule.split:
                    actions[axis] = names[0]
                    if not is_legal(_of(actions), rule, mesh):
                        actions[axis] = None
    return _of(actions)


def _edge(
    plan: Plan,
    graph: Graph,
    rules: Mapping[str, OpRule],
    chosen: Mapping[str, Configuration],
    edge: Edge,
    again: Set[str],
    steps: InTime | None,
    rows: Set[Edge],
) -> EdgePlan:
    returns = edge in graph.differentiable and edge not in rows
    given = chosen[edge.tensor.op].output_layouts(rules[edge.tensor.op], edge.tensor.index)
    wanted = chosen[edge.consumer].input_layouts(rules[edge.consumer], edge.position)
    begins = begin_of(graph[edge.consumer], given)
    known = plan.edge(edge)
    shape, mesh = (graph.spec(edge.tensor) if steps is None else steps.spec(edge)).shape, plan.mesh
    forward, backward = known.forward, known.backward if returns else ()
    keeps = _leads(forward, begins, wanted.value, shape, mesh)
    if not keeps:
        forward = canonical_path(begins, wanted.value)
    if returns and not _leads(backward, wanted.gradient, given.gradient, shape, mesh):
        backward = canonical_path(wanted.gradient, given.gradient)
    reason = why_not_kept(graph, rules, edge, known.keep, again, steps)
    keep = known.keep if keeps and forward and reason is None else "both"
    back_each = known.back_each and bool(backward) and why_not_back_each(graph, edge, rows, steps) is None
    return EdgePlan(forward, backward, known.time_s, known.memory_bytes, keep, back_each=back_each)


def _leads(path: tuple[Step, ...], source: Layout, target: Layout, shape: tuple[int, ...], mesh: Mesh) -> bool:
    """Tells whether steps lead from ``source`` to ``target`` through layouts that a tensor of the shape can have."""
    try:
        for step in path:
            if step.kind is StepKind.PERMUTE:
                step.permutation(source, mesh)
            source = step.apply(source)
            source.check(shape, mesh, "")
    except LayoutError:
        return False
    return source == target
