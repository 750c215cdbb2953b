"""Random plans for random models, three steps of them on this rank, and what one process gives instead."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.api.frontend.imported_model import ImportedModel, import_model
from tensoropt.api.mirror.model import GradientOutput, Model, current_model
from tensoropt.api.session.difference import Expected, difference, expected_gradients, largest, tolerance_of
from tensoropt.api.session.reference import InitialValues, Reference, whole_gradients
from tensoropt.api.session.seeds import resolve_seeds, with_seeds
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.errors import MicroBatchError
from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.program.device_state import DeviceState
from tensoropt.exec.program.executor import Executor
from tensoropt.exec.program.fetch import Fetch
from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId
from tensoropt.layout import Layout, canonical_path
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.in_time import in_time
from tensoropt.plan.places import places_of
from tensoropt.plan.plan import Plan, row_edges, rules_of
from tensoropt.plan.recomputation import why_not_again
from tensoropt.plan.tensor_reuse import keep_choices, why_not_back_each
from tensoropt.space.space import SearchSpace
from tests.cost.odd_cost import OddCost
from tests.exec.random_models import RandomModel, build_model

__all__ = [
    "Case",
    "Outcome",
    "Wanted",
    "as_stored",
    "differences",
    "first_difference",
    "make_case",
    "random_keep",
    "random_plan",
    "real_session",
    "reference_outcome",
    "small_session",
    "train",
]


@dataclass(frozen=True)
class Case:
    """A model with a plan."""

    model: RandomModel
    recorded: Model
    imported: ImportedModel
    plan: Plan
    seeds: Mapping[str, tuple[int, int]]

    def outputs(self, op: str) -> list[GradientOutput]:
        """The gradients that an operation needs."""
        names = {needed.name for needed in self.imported.graph.needed_for([op]) if traits(needed).is_gradient}
        calls = self.recorded.gradient_calls
        return [output for call in calls for output in call.outputs if output.name in names]


@dataclass
class Outcome:
    """What training gives: per turn the losses and the gradients, and the variables after the last.

    ``given`` is gradients as the turn has them: of each a value, and indices where it is rows. ``stored`` is this
    rank's pieces of variables then, with their parts of the whole.
    """

    losses: list[list[float]] = field(default_factory=list)
    given: list[list[np.ndarray]] = field(default_factory=list)
    gradients: list[dict[str, np.ndarray]] = field(default_factory=list)
    variables: dict[str, np.ndarray] = field(default_factory=dict)
    stored: dict[str, tuple[np.ndarray, tuple[slice, ...]]] = field(default_factory=dict)


def make_case(seed: int, devices: int, folder: Path, *, build: Callable[[int], RandomModel] = build_model) -> Case:
    """The model of a seed and a random plan for it, which has been to a file and back."""
    model = build(seed)
    imported = import_model(current_model())
    plan = random_plan(imported, seed, devices)
    path = folder / f"plan{seed}.{os.getpid()}.json"
    plan.save(path)
    loaded = Plan.load(path)
    path.unlink()
    if loaded.to_json() != plan.to_json():
        raise AssertionError(f"seed {seed}: the plan changed on its way through a file")
    return Case(model, current_model(), imported, loaded, resolve_seeds(imported.tf_graph, seed + 1))


def random_plan(imported: ImportedModel, seed: int, devices: int) -> Plan:
    """A legal plan with a random configuration for every operator, and random copies kept of what is moved."""
    random = np.random.default_rng(seed)
    topology = cpu(devices)
    cost = OddCost(topology, seed) if random.random() < 0.5 else AnalyticCost(topology)
    times = random_times(imported.graph, seed)
    # Two of five have operators on a part of the devices.
    placements = not imported.graph.is_differentiated_twice and np.random.default_rng((seed, 4)).random() < 0.4
    space = SearchSpace(imported.graph, cost, micro_batches=times, placements=placements)
    problem = space.problem
    alike = _alike(imported.graph)
    chosen: list[int] = []
    stored: dict[str, Any] = {}  # how variables lie that lie as others do
    whole = random.random() * 0.4  # so much of the graph is left whole
    for node, name in enumerate(problem.names):
        possible = np.isfinite(problem.node_time_s[node])
        for (source, target), time in zip(problem.edges.tolist(), problem.edge_time_s, strict=True):
            if target == node:
                possible = possible & np.isfinite(time[chosen[source]])
        if name in alike:
            shared = [{*_layouts(space, other)} for other in alike[name]]
            layouts = _layouts(space, name)
            wanted = {stored[name]} if name in stored else set.intersection(*shared)
            possible = possible & np.array([layout in wanted for layout in layouts])
        legal = np.flatnonzero(possible)
        chosen.append(int(legal[-1] if random.random() < whole else random.choice(legal)))
        if name in alike:
            stored |= dict.fromkeys(alike[name], layouts[chosen[-1]])
    plan = random_again(space.plan(chosen, "random", {"seed": seed}), space, np.random.default_rng((seed, 3)))
    plan = random_keep(plan, space, np.random.default_rng((seed, 1)))
    plan.check(imported.graph)
    return plan


def random_times(graph: Graph, seed: int) -> int:
    """A number of micro-batches that a graph's step can be split into, for two of three seeds more than one if any."""
    if seed % 3 == 0:
        return 1
    batch, rules = graph.batch_size() or 1, rules_of(graph)
    divisors = [times for times in range(2, batch + 1) if batch % times == 0]
    for times in np.random.default_rng((seed, 2)).permutation(divisors).tolist():
        try:
            in_time(graph, rules, times)
        except MicroBatchError:
            continue
        return int(times)
    return 1


def _alike(graph: Graph) -> dict[str, set[str]]:
    """For each variable that an update takes in place with others, such as its slots, all that it must lie as."""
    groups: dict[str, set[str]] = {}
    for op in graph.operators:
        names = [op.inputs[place].op for place in op.handles]
        if len(names) > 1:
            merged = set(names).union(*(groups.get(name, ()) for name in names))
            groups |= dict.fromkeys(merged, merged)
    return groups


def _layouts(space: SearchSpace, variable: str) -> list[Layout]:
    """How a variable lies by each of its configurations."""
    rule = space.rules[variable]
    return [configuration.output_layouts(rule, 0).value for configuration in space.choices(variable)]


def as_stored(space: SearchSpace, op: Operator, chosen: Mapping[str, Configuration]) -> Configuration | None:
    """How an operator must be split that takes a variable where it is stored; None if it takes none."""
    rule = space.rules[op.name]
    if not rule.pinned:
        return None
    place = rule.pinned[0]
    variable = op.inputs[place].op
    stored = chosen[variable].output_layouts(space.rules[variable], 0).value
    return next(each for each in space.choices(op.name) if each.input_layouts(rule, place).value == stored)


def random_again(plan: Plan, space: SearchSpace, random: np.random.Generator) -> Plan:
    """The plan with some of the operators that can be made again, in half of the plans none."""
    share = max(0.0, random.random() - 0.5) * 2
    operators = dict(plan.operators)
    for op in space.graph.operators:
        if why_not_again(space.graph, op, space.steps) is None and random.random() < share:
            entry = operators[op.name]
            configuration = dataclasses.replace(entry.configuration, again=True)
            operators[op.name] = dataclasses.replace(entry, configuration=configuration)
    return dataclasses.replace(plan, operators=operators)


def random_keep(plan: Plan, space: SearchSpace, random: np.random.Generator) -> Plan:
    """The plan with random ones of the choices that each of its edges has: copies, and when its gradient goes back."""
    edges, again, rows = dict(plan.edges), plan.again, row_edges(space.graph, space.rules)
    places = places_of(space.graph, plan, space.steps)
    for edge, entry in sorted(edges.items()):
        if space.row_elements(edge) is not None and places is not None and places.apart(edge):
            # Rows of gradients stay where their table is; so does the table.
            given = plan.configuration(edge.tensor.op).output_layouts(space.rules[edge.tensor.op], edge.tensor.index)
            wanted = plan.configuration(edge.consumer).input_layouts(space.rules[edge.consumer], edge.position)
            entry = dataclasses.replace(entry, forward=canonical_path(given.value, wanted.value))
        choices = keep_choices(space.graph, space.rules, edge, again, space.steps) if entry.forward else ("both",)
        keep, back_each = choices[int(random.integers(len(choices)))], False
        if entry.backward and why_not_back_each(space.graph, edge, rows, space.steps) is None:
            back_each = bool(random.integers(2))
        if places is not None and places.apart(edge):
            keep, back_each = "both", False  # others would have to be there
        edges[edge] = dataclasses.replace(entry, keep=keep, back_each=back_each)
    return dataclasses.replace(plan, edges=edges)


def small_session() -> Any:
    """A session's configuration for small graphs of which each runs a few times: the optimizer would take longer."""
    config = tf.compat.v1.ConfigProto(
        use_per_session_threads=True,
        inter_op_parallelism_threads=2,
        intra_op_parallelism_threads=1,
    )
    config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def real_session() -> Any:
    """A session's configuration as jobs have it, with one thread: TensorFlow's optimizer, ranks kept in step."""
    return tf.compat.v1.ConfigProto(
        use_per_session_threads=True,
        inter_op_parallelism_threads=1,
        intra_op_parallelism_threads=1,
    )


def train(
    case: Case,
    engine: CollectiveEngine,
    *,
    agree: Callable[[str, str], None] | None,
    config: Any,
    gather: Callable[[Any], Sequence[Any]] | None = None,
) -> Outcome:
    """Three steps of this rank's part."""
    executor = Executor(
        DeviceState(
            with_seeds(case.imported.graph, case.seeds),
            case.plan,
            engine,
            agree=agree,
            gather=gather,
            config=config,
        )
    )
    initial = InitialValues(case.recorded.graph, case.seeds)
    executor.state.set_variables(initial)
    initial.close()
    model = case.model
    outcome = Outcome()
    for turn, feeds in zip(model.turns, model.feeds, strict=True):
        outputs = case.outputs(turn.op)
        fetches: list[Fetch] = [TensorId(loss.split(":")[0]) for loss in turn.losses]
        for output in outputs:
            fetches += [TensorId(output.name, index) for index in range(1 if output.indices is None else 2)]
        values = executor.run([*fetches, turn.op], _fed(feeds, engine, model.seed))
        outcome.losses.append([float(value) for value in values[: len(turn.losses)]])
        outcome.given.append(values[len(turn.losses) : -1])
        outcome.gradients.append(_whole(case, outputs, outcome.given[-1]))
    names = list(model.states)
    finals = executor.run([TensorId(name) for name in names])
    outcome.variables = dict(zip(names, finals, strict=True))
    outcome.stored = executor.state.stored()
    executor.state.close()
    return outcome


def _whole(case: Case, outputs: Sequence[GradientOutput], values: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
    """Gradients by name, rows added up; beside them what a norm of rows sees of them, and which rows there are."""
    graph = case.imported.graph
    shapes = {output.name: graph.spec(graph[output.name].inputs[0]).shape for output in outputs}
    names = [output.name for output in outputs]
    found = dict(zip(names, whole_gradients(outputs, values, shapes), strict=True))
    remaining = iter(values)
    for output in outputs:
        value = next(remaining)
        if output.indices is not None:
            found[f"norm of the rows of {output.name}"] = np.sqrt(np.sum(np.square(value)))
            found[f"indices of {output.name}"] = np.sort(next(remaining))
    return found


def _fed(feeds: Mapping[str, np.ndarray], engine: CollectiveEngine, seed: int) -> dict[str, np.ndarray]:
    """The feeds of this rank: whole, or for every other seed its share of each batch that ranks divide."""
    if seed % 2:
        return dict(feeds)
    result = {}
    for name, array in feeds.items():
        batch = array.shape[0] if array.ndim else 1
        rows, shared = batch // engine.size, batch % engine.size == 0
        result[name] = array[engine.rank * rows : (engine.rank + 1) * rows] if shared else array
    return result


@dataclass
class Wanted:
    """What one process gives, as :class:`Outcome`; its updates go by another run's gradients."""

    losses: list[list[Expected]] = field(default_factory=list)
    gradients: list[dict[str, Expected]] = field(default_factory=list)
    variables: dict[str, Expected] = field(default_factory=dict)
    stored: dict[str, Expected] = field(default_factory=dict)


def reference_outcome(case: Case, found: Outcome) -> Wanted:
    """The same three steps by TensorFlow alone, which takes them by the gradients that were found."""
    model = case.model
    reference = Reference(case.recorded, case.seeds)
    tolerance = tolerance_of([model.dtype])
    wanted = Wanted()
    before = reference.stored()
    sizes: dict[str, float] = {}
    for turn, feeds, given in zip(model.turns, model.feeds, found.given, strict=True):
        outputs = case.outputs(turn.op)
        losses, own, made_of = reference.follow_step(turn.op, turn.losses, outputs, feeds, given)
        for name, size in made_of.items():
            sizes[name] = max(sizes.get(name, 0.0), float(size))
        wanted.losses.append(losses)
        gradients = _whole(case, outputs, own)
        wanted.gradients.append(dict(zip(gradients, expected_gradients([*gradients.values()], tolerance), strict=True)))
    after = reference.stored()
    wanted.stored = {key: Expected.changed(before[key], after[key], tolerance, sizes.get(key, 0.0)) for key in after}
    wanted.variables = {name: wanted.stored[name] for name in model.states}
    reference.close()
    values = [float(loss.value) for losses in wanted.losses for loss in losses]
    if not np.all(np.isfinite(values)):
        raise AssertionError(f"seed {model.seed}: the model is no good, its losses are {values}")
    return wanted


def differences(case: Case, found: Outcome, wanted: Wanted) -> list[str]:
    """What is not equal, in order of appearance."""
    pairs: list[tuple[str, Any, Expected]] = []
    for turn, (losses, gradients) in enumerate(zip(wanted.losses, wanted.gradients, strict=True)):
        pairs += [(f"loss of turn {turn}", *each) for each in zip(found.losses[turn], losses, strict=True)]
        pairs += [(f"{n} in turn {turn}", found.gradients[turn][n], g) for n, g in gradients.items()]
    pairs += [(f"variable {name}", found.variables[name], value) for name, value in wanted.variables.items()]
    pairs += [(str(key), piece, wanted.stored[key].part(part)) for key, (piece, part) in found.stored.items()]
    tolerance = tolerance_of([case.model.dtype])
    errors = [(what, difference(one, other, tolerance), other.scale) for what, one, other in pairs]
    return [f"{what}: {error:.3g} of {scale:.3g}" for what, error, scale in errors if not error <= tolerance.relative]


def first_difference(case: Case, engine: CollectiveEngine, config: Any) -> str:
    """The first operator of the forward pass whose value differs from TensorFlow's, with its entry in the plan."""
    graph = case.imported.graph
    names = [
        op.name
        for op in graph.needed_for(loss.split(":")[0] for turn in case.model.turns for loss in turn.losses)
        if op.outputs and op.type not in ("Sink", "Fanout", "Variable", "Const")
    ]
    tensors = [TensorId(name) for name in names]
    executor = Executor(DeviceState(with_seeds(graph, case.seeds), case.plan, engine, config=config))
    initial = InitialValues(case.recorded.graph, case.seeds)
    executor.state.set_variables(initial)
    initial.close()
    feeds = case.model.feeds[0]
    found = executor.run(tensors, feeds)
    executor.state.close()
    existing = {op.name for op in case.recorded.graph.get_operations()}
    reference = Reference(case.recorded, case.seeds)
    kept = [(t, value) for t, value in zip(tensors, found, strict=True) if t.op in existing]
    expected = reference.run([str(t) for t, _ in kept], feeds)
    scales = {str(t): largest(value) for (t, _), value in zip(kept, expected, strict=True)}
    reference.close()
    tolerance = tolerance_of([case.model.dtype])
    for (tensor, value), other in zip(kept, expected, strict=True):
        op = graph[tensor.op]
        noise = tolerance.noise * max((scales.get(str(t), 1.0) for t in op.inputs), default=0.0)
        error = difference(value, Expected.of(other, noise), tolerance)
        if not error <= tolerance.relative:
            lines = [f"{op} {list(map(str, graph.input_specs(op)))} -> {op.outputs[0]}: {error:.3g}"]
            lines.append(f"  configuration {case.plan.configuration(op.name)}")
            for edge in graph.edges():
                if edge.consumer == op.name:
                    lines.append(f"  {edge} {list(map(str, case.plan.edge(edge).forward))}")
            return "\n".join(lines)
    return "no forward value differs"
