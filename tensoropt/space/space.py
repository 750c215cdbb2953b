"""From a graph to tables: every operator's configurations, and the problem that searches solve."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
from numpy.typing import NDArray

from tensoropt.cost import CostModel, OpCall, packing_of, piece_bytes
from tensoropt.errors import PlanError
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Coarsening, Layout, Mesh, Resharder, ReshardTable, Step
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.in_time import in_time
from tensoropt.plan.places import is_everywhere
from tensoropt.plan.plan import ALTERNATIVES, KEEPS, EdgePlan, OperatorPlan, Plan, rules_of
from tensoropt.problem.problem import IntArray, Problem
from tensoropt.space.account import about_operators, setting_of
from tensoropt.space.choices import Choices, State
from tensoropt.space.edge_costs import BOTH, EdgeCosts, FloatArray, Tables
from tensoropt.space.keeping import Keeping
from tensoropt.space.peak import peak_memory, scratch_of
from tensoropt.space.recomputation import fanned_out, states_of
from tensoropt.space.side_by_side import pipelined
from tensoropt.space.traffic import moves_of

__all__ = ["SearchSpace", "feed_layout"]

_P = ParamSpec("_P")
_Made = TypeVar("_Made")
# One placed block, and one beside it: with more there are too many configurations on 16 devices.
_PLACED_BLOCKS = 2


class SearchSpace:
    """All strategies of a graph on a mesh, and what they cost.

    An operator may have any mesh that ``coarsening`` allows (TensorOpt section 2.1); plans name it in their notes.

    Images are split by height and width, too, whose rims neighbours exchange (FlexFlow section 4, attribute
    dimensions). With ``placements`` an operator may be on a part of the devices, with its tensors (operator dimension).
    Where something is placed,

    - time stays additive: an operator on half of the devices counts its whole time, as if the others waited;
    - memory of a tensor counts as if every device had it, so that a strategy's memory bounds that of the fullest
      device. :meth:`device_memory` has it for each device.

    Memory is what a device holds when the backward pass begins, which is when it holds most: variables with their
    gradients, inputs, and every tensor that the backward pass reads. A tensor belongs to the edge
    to its reader, because it takes both ends to know how many copies of it there are. Temporaries are not in it; plans
    note the largest (TensorOpt section 5.2 leaves a tenth for them), and the peak over the step, buffer by buffer
    (:func:`tensoropt.space.peak.peak_memory`).

    Attributes:
        whole: the logical graph.
        graph: the same, or where a step is split in time that of one micro-batch.
        steps: how a step is split in time; None if it is not.
        rules: by operator of ``graph``.
        cost: the cost model. Its time of an operator may depend on how many pieces a configuration cuts each
            iteration axis into, and on the mesh axes only of those over which the op communicates itself.
        mesh: its factor mesh.
        coarsening: the meshes that operators may have.
        reuse: whether edges have alternatives.
        recompute: whether operators may be made again.
        halos: whether images are split.
        operators: those of the training step, which are the nodes of the problem.
        edges: those between them, in the order of the problem's.
        resharder: makes tables of reshards.
    """

    def __init__(
        self,
        graph: Graph,
        cost: CostModel,
        *,
        allowed: Mapping[str, Sequence[Configuration]] | None = None,
        reuse: bool = False,
        recompute: bool = False,
        coarsening: Coarsening | None = None,
        placements: bool = False,
        halos: bool = True,
        micro_batches: int = 1,
        resharder: Resharder | None = None,
    ) -> None:
        """Takes the graph; configurations and tables are made when they are asked for.

        Args:
            graph: the logical graph.
            cost: the cost model.
            allowed: the only configurations of some operators, such as inputs that are fed by data parallelism.
            reuse: whether an edge whose copy is needed in the backward pass may choose what is kept (TensorOpt section
                4.2, "Tensor reuse"), and edges into micro-batches may choose when gradients go back. Their alternatives
                are `ALTERNATIVES`, or the first three of them; +inf where one cannot be had or never pays.
            recompute: whether operators may be made again in the backward pass
                (:func:`tensoropt.space.recomputation.states_of`), each in any of its configurations.
            coarsening: the meshes that operators may have; by default those of :class:`Coarsening` on the levels of the
                cost model's topology.
            placements: whether operators may run on a part of the devices; which parts, ``coarsening`` says. Sinks stay
                everywhere: every device wants to know the loss.
            halos: whether height and width of images may be split where neighbours must exchange rims.
            micro_batches: how many a step has, one after the other.
            resharder: of a space with the same cost model and coarsening, whose tables are taken over.

        Raises:
            MicroBatchError: the step cannot be split into so many.
        """
        rules = rules_of(graph) if halos else {name: rule.without_halos() for name, rule in rules_of(graph).items()}
        self.whole = graph
        self.steps = in_time(graph, rules, micro_batches)
        self.graph = graph if self.steps is None else self.steps.graph
        self.cost = cost
        self.mesh: Mesh = cost.mesh
        coarsening = Coarsening(borders=cost.topology.level_borders()) if coarsening is None else coarsening
        if placements and not coarsening.placed_blocks:
            coarsening = dataclasses.replace(coarsening, placed_blocks=_PLACED_BLOCKS)
        self.coarsening = coarsening
        self.reuse = reuse
        self.recompute = recompute
        self.halos = halos
        self.rules: Mapping[str, OpRule] = rules if self.steps is None else self.steps.rules
        self.operators = tuple(op for op in self.graph.operators if op.name in graph.training)
        self.edges = tuple(edge for edge in graph.edges() if edge.consumer in graph.training)
        self._keeping = Keeping(self.graph, self.rules)
        self._states = states_of(self.graph, self.rules, self._keeping, self.steps) if recompute else {}
        self._allowed = {name: tuple(chosen) for name, chosen in (allowed or {}).items()}
        self._kept: dict[object, Any] = {}
        self._choices: dict[tuple[object, ...], Choices] = {}
        self._named: dict[str, Choices] = {}
        self._nodes: dict[str, Tables] = {}
        self._alike: dict[tuple[object, ...], Tables] = {}
        self.resharder = resharder or Resharder(self.mesh, cost.step_seconds, self.coarsening, packing_of(cost))
        self._edge_costs = EdgeCosts(
            self.graph,
            self.rules,
            cost,
            self.resharder,
            self.choices_of,
            lambda op: self._op_seconds(op, 0),
            reuse=reuse,
            steps=self.steps,
        )

    def of_one_strategy(self, strategy: Mapping[str, Configuration]) -> SearchSpace:
        """The space of one strategy of the same steps, whose tables are small; its one assignment is all zeros.

        Args:
            strategy: by operator; this space need not have the strategy, which may place operators.
        """
        return SearchSpace(
            self.whole,
            self.cost,
            allowed={name: (configuration,) for name, configuration in strategy.items()},
            reuse=True,
            recompute=self.recompute,
            placements=True,
            micro_batches=1 if self.steps is None else self.steps.times,
        )

    def kept(self, make: Callable[Concatenate[SearchSpace, _P], _Made], *given: _P.args, **named: _P.kwargs) -> _Made:
        """Returns the value of ``make(space, …)``: computed once, then cached for the lifetime of the space."""
        key = (make, given, tuple(sorted(named.items())))
        if key not in self._kept:
            self._kept[key] = make(self, *given, **named)
        made: _Made = self._kept[key]
        return made

    def choices(self, name: str) -> tuple[Configuration, ...]:
        """The configurations of an operator, in the order of its table."""
        return self.choices_of(name).configurations

    def choices_of(self, name: str) -> Choices:
        """The configurations of an operator, with the layouts that follow."""
        if name not in self._named:
            everywhere = traits(self.graph[name]).is_sink or is_everywhere(self.graph, self.graph[name])
            states = self._states.get(name, (State.KEPT,))
            key = (self.rules[name], self._allowed.get(name), everywhere, states)
            if key not in self._choices:
                coarsening = dataclasses.replace(self.coarsening, placed_blocks=0) if everywhere else self.coarsening
                self._choices[key] = Choices(self.rules[name], self.mesh, coarsening, self._allowed.get(name), states)
            self._named[name] = self._choices[key]
        return self._named[name]

    def reshard_table(self, edge: Edge, *, widened: bool = False) -> ReshardTable:
        """Times and paths between the layouts that an edge may have.

        Args:
            edge: one of the graph's.
            widened: of its gradient where that goes back in each micro-batch.
        """
        return self._edge_costs.reshard_table(edge, widened=widened)

    def node_tables(self, name: str) -> Tables:
        """Seconds and bytes of an operator in each of its :meth:`choices`."""
        return self._node(self.graph[name])

    def edge_tables(self, edge: Edge) -> Tables:
        """Seconds and bytes of an edge for each pair of :meth:`choices` of its ends, and each alternative."""
        return self._edge_costs.tables(edge)

    def row_elements(self, edge: Edge) -> int | None:
        """Returns the number of elements of an edge's gradient if it comes back as rows; else None."""
        return self._edge_costs.row_elements(edge)

    @functools.cached_property
    def problem(self) -> Problem:
        """The tables of the training step; equal operators, and equal edges, share theirs."""
        index = {op.name: position for position, op in enumerate(self.operators)}
        nodes = [self._node(op) for op in self.operators]
        tables = [self._edge_costs.tables(edge) for edge in self.edges]
        ends = [(index[edge.tensor.op], index[edge.consumer]) for edge in self.edges]
        return Problem(
            [op.name for op in self.operators],
            [time for time, _ in nodes],
            [memory for _, memory in nodes],
            np.array(ends, dtype=np.int64).reshape(-1, 2),
            [time for time, _ in tables],
            [memory for _, memory in tables],
            constant_time_s=self.cost.iteration_seconds,
        )

    def is_trained(self, name: str) -> bool:
        """Tells whether an operator is a variable with a gradient, which its memory counts too."""
        readers = self.graph.consumers(TensorId(name))
        return traits(self.graph[name]).is_variable and any(edge in self.graph.differentiable for edge in readers)

    def internal_seconds(self, name: str, index: int) -> float:
        """The part of an operator's time in which it communicates itself, in one of its :meth:`choices`."""
        return float(self._internal_seconds(self.graph[name], np.array([index]))[0])

    def moved_again(self, edge: Edge, given: int, wanted: int, keep: str) -> bool:
        """Tells whether the backward pass moves an edge's tensor once more, a copy or what is made again."""
        pick = np.array([KEEPS.index(keep)])
        return bool(self._edge_costs.moved_again(edge, np.array([given]), np.array([wanted]), pick)[0])

    def seconds_again(self, edge: Edge, given: int, wanted: int, keep: str) -> float:
        """Returns the time that an edge has for recomputing its consumer's output; 0 if that is not needed."""
        is_again = self.choices_of(edge.consumer).states[wanted] == State.AGAIN
        if is_again or not self._edge_costs.repeats(edge) or not self.moved_again(edge, given, wanted, keep):
            return 0.0
        return float(self.cost.op_seconds(self.calls(self.graph[edge.consumer], np.array([wanted]), 0)[0]))

    def node_costs(self, name: str, index: int) -> tuple[float, float]:
        """Seconds and bytes of an operator in one of its :meth:`choices`."""
        time, memory = self._node(self.graph[name])
        return float(time[index]), float(memory[index])

    def edge_costs(self, edge: Edge, given: int, wanted: int, alternative: int = 0) -> tuple[float, float]:
        """Seconds and bytes of an edge, without the table of all pairs.

        Args:
            edge: one of the graph's.
            given: the configuration of the producer, as an index of its :meth:`choices`.
            wanted: that of the consumer.
            alternative: of `ALTERNATIVES`, where the space has these.

        Returns:
            What the table of the edge has there, +inf seconds where the alternative cannot be had or never pays.
        """
        time, memory = self._edge_costs.pair(edge, given, wanted)
        if alternative >= time.size:
            return np.inf, np.inf
        return float(time.flat[alternative]), float(memory.flat[alternative])

    def edge_plan(self, edge: Edge, given: int, wanted: int, alternative: int = 0) -> EdgePlan:
        """Steps and costs of an edge, without the table of all pairs; see :meth:`edge_costs`."""
        ends = {edge.tensor.op: given, edge.consumer: wanted}
        return self._edge_plan(edge, ends, alternative, self.edge_costs(edge, given, wanted, alternative))

    def plan(
        self,
        assignment: Sequence[int],
        option: str,
        notes: Mapping[str, object] | None = None,
        alternatives: npt.ArrayLike | None = None,
        *,
        peak: bool = True,
        moves: bool = True,
    ) -> Plan:
        """The plan of one strategy, operators outside of the training step included.

        Args:
            assignment: a configuration index for each operator of the problem.
            option: what chose it.
            notes: kept in the plan.
            alternatives: ``(N + E,)``, for each operator and each edge of the problem the alternative that was chosen;
                the first of each if omitted.
            peak: whether its notes have what is taken beside what searches add up, which takes as long as all else.
            moves: whether its edges have their moves, which a search does not look at.
        """
        picks = np.zeros(len(self.operators) + len(self.edges), np.int64)
        picks = picks if alternatives is None else np.asarray(alternatives, dtype=np.int64)
        time, memory = self.problem.costs(np.asarray(assignment, dtype=np.int64), picks)
        chosen = {op.name: int(index) for op, index in zip(self.operators, assignment, strict=True)}
        keep = dict(zip(self.edges, picks[len(self.operators) :].tolist(), strict=True))
        self._place_others(chosen)
        operators: dict[str, OperatorPlan] = {}
        edges: dict[Edge, EdgePlan] = {}
        held: dict[str, float] = {}
        for edge in self.graph.edges():
            entry = self._edge_plan(edge, chosen, keep.get(edge, BOTH))
            # A tensor that stays as its producer made it is shown as the producer's.
            own = self._keeping.alone(edge) and entry.keep != "after"
            spec, given = self.graph.spec(edge.tensor), self._edge_costs.given(edge)
            piece = float(piece_bytes(spec, given.value[[chosen[edge.tensor.op]]], self.mesh)[0]) if own else 0.0
            shown = min(piece, entry.memory_bytes) if self._keeping.makes(edge) or not entry.forward else 0.0
            held[edge.tensor.op] = held.get(edge.tensor.op, 0.0) + shown
            ends = chosen[edge.tensor.op], chosen[edge.consumer]
            steps = moves_of(self, edge, entry, *ends) if moves and edge.consumer in self.graph.training else ()
            entry = dataclasses.replace(entry, memory_bytes=entry.memory_bytes - shown, moves=steps)
            if entry != EdgePlan():
                edges[edge] = entry
        about = about_operators(self, chosen)
        for op in self.graph.operators:
            node_time, node_memory = self._node(op)
            operators[op.name] = OperatorPlan(
                self.choices(op.name)[chosen[op.name]],
                float(node_time[chosen[op.name]]),
                float(node_memory[chosen[op.name]]) + held.get(op.name, 0.0),
                about.get(op.name),
            )
        plan = Plan(
            self.mesh,
            self.whole.fingerprint(),
            option,
            operators,
            edges,
            float(time[0]),
            float(memory[0]),
            {
                **(notes or {}),
                "coarsening": self.coarsening.to_json(),
                **({"largest_temporary_bytes": self._largest_temporary(chosen, keep)} if peak else {}),
            },
            setting_of(self),
            self.whole,
            1 if self.steps is None else self.steps.times,
        )
        if any(entry.configuration.at for entry in operators.values()):
            # What devices hold differs; the course of a peak is that of devices which do the same.
            return plan if self.steps is None else pipelined(plan, self.steps, self.cost.iteration_seconds)
        if not peak:
            return plan
        found = peak_memory(self.graph, self.rules, plan, scratch_of(self.cost, self.graph, self.rules), self.steps)
        return dataclasses.replace(plan, notes={**plan.notes, "peak_memory": found.to_json()})

    def device_memory(self, assignment: Sequence[int], alternatives: npt.ArrayLike | None = None) -> FloatArray:
        """Bytes on each device, for a strategy as :meth:`plan` takes it: what is placed counts where it is.

        Returns:
            ``(devices,)``; each as much as the strategy's memory where nothing is placed, and never more.
        """
        picks = np.zeros(len(self.operators) + len(self.edges), np.int64)
        picks = picks if alternatives is None else np.asarray(alternatives, dtype=np.int64)
        chosen = {op.name: int(index) for op, index in zip(self.operators, assignment, strict=True)}
        result = np.zeros(self.mesh.size)
        for op in self.operators:
            result += self.node_device_memory(op.name, chosen[op.name])
        for edge, keep in zip(self.edges, picks[len(self.operators) :].tolist(), strict=True):
            result += self.edge_device_memory(edge, chosen[edge.tensor.op], chosen[edge.consumer], keep)
        return result

    def node_device_memory(self, name: str, index: int) -> FloatArray:
        """``(devices,)``, the bytes that an operator in one of its :meth:`choices` adds to :meth:`device_memory`."""
        result = np.zeros(self.mesh.size)
        result[list(self.choices(name)[index].devices(self.mesh))] = self.node_costs(name, index)[1]
        return result

    def edge_device_memory(self, edge: Edge, given: int, wanted: int, keep: int = BOTH) -> FloatArray:
        """``(devices,)``, the bytes that an edge adds to :meth:`device_memory`; see :meth:`edge_costs`."""
        entry = self.edge_costs(edge, given, wanted, keep)[1]
        held, spec = self._keeping.copies(edge), self.graph.spec(edge.tensor)
        source, target = self._edge_costs.given(edge).value[[given]], self._edge_costs.wanted(edge).value[[wanted]]
        moves = not np.array_equal(source, target)
        # What the entry has of the copy after the move; the rest is where it was made.
        after = float(piece_bytes(spec, target, self.mesh)[0])
        after *= {"both": held.after * moves, "before": 0, "after": 1}[ALTERNATIVES[keep][0]]
        result = np.zeros(self.mesh.size)
        result[list(self.choices(edge.tensor.op)[given].devices(self.mesh))] = entry - after
        result[list(self.choices(edge.consumer)[wanted].devices(self.mesh))] += after
        return result

    def assignment(self, configuration_of: Mapping[str, Configuration]) -> tuple[int, ...]:
        """The configuration indices of a strategy that is given by configurations.

        Raises:
            PlanError: naming the operator whose configuration is not among its choices.
        """
        result = []
        for op in self.operators:
            choices = self.choices(op.name)
            wanted = configuration_of[op.name]
            if wanted not in choices:
                raise PlanError(
                    f"{op}: configuration {wanted} is not one of its {len(choices)} on {self.mesh}: "
                    f"{', '.join(map(str, choices[:8]))}. The batch or a dimension may not be divisible, or the mesh "
                    f"has more blocks than {self.coarsening} allows."
                )
            result.append(choices.index(wanted))
        chosen = dict(zip((op.name for op in self.operators), result, strict=True))
        again = {name for name, index in chosen.items() if self.choices(name)[index].again}
        return tuple(
            fanned_out(self.graph, self.rules, self._states, op, again, chosen[op.name], self.choices_of(op.name))
            for op in self.operators
        )

    def strategy_of(self, plan: Plan) -> tuple[IntArray, IntArray]:
        """A plan as a strategy of this space: configurations by index, and alternatives.

        Raises:
            PlanError: it has configurations that the space has not.
        """
        assignment = self.assignment({op.name: plan.configuration(op.name) for op in self.operators})
        picks = [plan.edge(edge).alternative for edge in self.edges]
        return np.array(assignment), np.array([0] * len(self.operators) + picks)

    def configurations(self, assignment: Sequence[int]) -> dict[str, Configuration]:
        """The configurations of a strategy by operator, of which :meth:`assignment` gives the indices."""
        return {op.name: self.choices(op.name)[index] for op, index in zip(self.operators, assignment, strict=True)}

    def network_seconds(self, assignments: npt.ArrayLike, alternatives: npt.ArrayLike | None = None) -> FloatArray:
        """The part of the time in which devices talk to one another (TensorOpt Eq. 3, *c*).

        Args:
            assignments: ``(points, N)``, or one strategy ``(N,)``.
            alternatives: ``(points, N + E)``, or ``(N + E,)``; the first ones if omitted.

        Returns:
            ``(points,)`` seconds.
        """
        rows = np.atleast_2d(np.asarray(assignments, dtype=np.int64))
        nodes = len(self.operators)
        picks = np.zeros((len(rows), nodes + len(self.edges)), np.int64)
        picks = picks if alternatives is None else np.atleast_2d(np.asarray(alternatives, dtype=np.int64))
        index = {op.name: position for position, op in enumerate(self.operators)}
        result = np.zeros(len(rows))
        for position, op in enumerate(self.operators):
            result += self._internal_seconds(op, rows[:, position])
        for position, edge in enumerate(self.edges):
            given, wanted = rows[:, index[edge.tensor.op]], rows[:, index[edge.consumer]]
            result += self._edge_costs.communication(edge, given, wanted, picks[:, nodes + position])
        return result

    def _edge_plan(
        self, edge: Edge, chosen: Mapping[str, int], keep: int, costs: tuple[float, float] | None = None
    ) -> EdgePlan:
        given = self._layouts(edge.tensor.op, chosen).output_layouts(self.rules[edge.tensor.op], edge.tensor.index)
        wanted = self._layouts(edge.consumer, chosen).input_layouts(self.rules[edge.consumer], edge.position)
        is_pinned = edge.position in self.rules[edge.consumer].pinned
        if costs is None:
            time, memory = (
                table[chosen[edge.tensor.op], chosen[edge.consumer]] for table in self._edge_costs.tables(edge)
            )
            costs = (float(time[keep] if time.ndim else time), float(memory[keep] if memory.ndim else memory))

        def path(source: Layout, target: Layout, *, widened: bool = False) -> tuple[Step, ...]:
            return () if source == target else self.reshard_table(edge, widened=widened).path(source, target)

        kept, back_each = ALTERNATIVES[keep]
        returns = edge in self.graph.differentiable and self.row_elements(edge) is None
        return EdgePlan(
            () if is_pinned else path(given.value, wanted.value),
            path(wanted.gradient, given.gradient, widened=back_each) if returns else (),
            *costs,
            kept,
            back_each=back_each,
        )

    def _largest_temporary(self, chosen: Mapping[str, int], keep: Mapping[Edge, int]) -> float:
        """The most that one operator's backward pass takes beside what is kept.

        These are the gradients that come and that it makes, and the copies that are made again for it.
        """
        taken = [0.0]
        for op in self.operators:
            size_bytes = 0.0
            for position, tensor in enumerate(op.inputs):
                edge = Edge(tensor, op.name, position)
                states, spec = self._edge_costs.wanted(edge), self.graph.spec(tensor)
                returns = edge in self.graph.differentiable and self.row_elements(edge) is None
                again = int(ALTERNATIVES[keep[edge]][0] == "before") + int(returns)
                size_bytes += again * float(piece_bytes(spec, states.value[[chosen[op.name]]], self.mesh)[0])
            for index, spec in enumerate(op.outputs):
                if any(edge in self.graph.differentiable for edge in self.graph.consumers(TensorId(op.name, index))):
                    states = self.choices_of(op.name).outputs[index]
                    size_bytes += float(piece_bytes(spec, states.gradient[[chosen[op.name]]], self.mesh)[0])
            taken.append(size_bytes)
        return max(taken)

    def _layouts(self, name: str, chosen: Mapping[str, int]) -> Configuration:
        return self.choices(name)[chosen[name]]

    def _node(self, op: Operator) -> Tables:
        if op.name not in self._nodes:
            self._nodes[op.name] = self._shared_node(op)
        return self._nodes[op.name]

    def _shared_node(self, op: Operator) -> Tables:
        rule = self.rules[op.name]
        gradients = self.gradients(op)
        own = traits(op)
        trained = self.is_trained(op.name)
        kept = tuple(self._keeping.with_producer(TensorId(op.name, index)) for index in range(len(op.outputs)))
        readers = len(self.graph.consumers(TensorId(op.name))) if own.is_fanout else 0
        repeated, states = self.repeats(op.name), self.choices_of(op.name).states.tobytes()
        kind = op.type, rule, op.outputs, gradients, trained, kept, readers, self._allowed.get(op.name)
        key = (*kind, self.cost.kind(op), repeated, states)
        if key not in self._alike:
            choices = self.choices_of(op.name)
            sizes = [
                piece_bytes(spec, states.value, self.mesh)
                for spec, states in zip(op.outputs, choices.outputs, strict=True)
            ]
            time, memory = np.zeros(len(choices)), np.zeros(len(choices))
            if own.is_variable:
                memory = sizes[0] * (2 if trained else 1)
            elif own.is_gradient:
                pass  # it is computed by the operators that lead from what it belongs to to the losses
            elif own.updates:
                time = np.array([self.cost.update_seconds(op.type, size) for size in self._updated_bytes(op)])
            elif own.is_source:
                memory = sizes[0]
            elif own.is_fanout:
                if gradients and readers > 1:
                    time = np.array([self.cost.fanout_seconds(op, float(size), readers) for size in sizes[0]])
            elif not own.is_sink and not own.is_group:
                memory = sum((size for size, keep in zip(sizes, kept, strict=True) if keep), memory)
                time = self._op_seconds(op, gradients)
                again = choices.states == State.AGAIN
                if again.any():
                    time = time + np.where(again, self._op_seconds(op, 0), 0.0)
                    memory = np.where(again, 0.0, memory)
            self._alike[key] = (time if repeated == 1 else repeated * time), memory
        return self._alike[key]

    def spec(self, edge: Edge) -> TensorSpec:
        """What an edge moves: the whole tensor, or a micro-batch's piece between operators that run for each."""
        return self.graph.spec(edge.tensor) if self.steps is None else self.steps.spec(edge)

    def moves_per_step(self, edge: Edge, entry: EdgePlan) -> tuple[int, int]:
        """Returns how often a step moves an edge's tensor, forward and once more, and its gradient."""
        return self._edge_costs.moves_per_step(edge, entry)

    def adding_seconds(self, edge: Edge, entry: EdgePlan, given: int, wanted: int) -> float:
        """The time in which micro-batches add up the gradients of an edge that leads into them; 0 for other edges."""
        return self._edge_costs.adding_seconds(edge, entry, given, wanted)

    def repeats(self, name: str) -> int:
        """How often a step runs an operator: once, or once for each micro-batch."""
        return self.steps.times if self.steps is not None and self.steps.is_each(name) else 1

    def gradients(self, op: Operator) -> int:
        """How many of an operator's inputs gradients flow to."""
        return sum(Edge(tensor, op.name, i) in self.graph.differentiable for i, tensor in enumerate(op.inputs))

    def calls(self, op: Operator, indices: NDArray[np.int64], gradients: int) -> list[OpCall]:
        """Returns the calls of an operator in some of its :meth:`choices`, with so many gradients of inputs."""
        choices, inputs = self.choices_of(op.name), self.graph.input_specs(op)
        configurations = [choices.configurations[index] for index in indices.tolist()]
        return [OpCall(op, choices.rule, inputs, configuration, gradients) for configuration in configurations]

    def _op_seconds(self, op: Operator, gradients: int) -> FloatArray:
        """An operator's time in each configuration, asked for once for those in which devices do the same work."""
        first, group = self.choices_of(op.name).alike()
        return np.array([self.cost.op_seconds(call) for call in self.calls(op, first, gradients)])[group]

    def _internal_seconds(self, op: Operator, indices: NDArray[np.int64]) -> FloatArray:
        """The collectives inside an operator, in some of its configurations."""
        rule = self.rules[op.name]
        if traits(op).role is not None or not rule.communicates_over:
            return np.zeros(len(indices))
        different, place = np.unique(indices, return_inverse=True)
        calls = self.calls(op, different, self.gradients(op))
        seconds = np.array([self.cost.internal_seconds(call) for call in calls])[place.reshape(-1)]
        return self.repeats(op.name) * seconds

    def _updated_bytes(self, op: Operator) -> list[float]:
        """By configuration, the bytes that an update reads or writes: of a variable, its gradient and its slots.

        Of an update of rows these are so many rows of each.
        """
        inputs, states = self.graph.input_specs(op), self.choices_of(op.name).inputs
        rows = traits(op).rows
        sizes = [piece_bytes(spec, state.value, self.mesh) for spec, state in zip(inputs, states, strict=True)]
        total = np.sum([size for size, spec in zip(sizes, inputs, strict=True) if spec.rank], axis=0)
        if rows is not None:
            total = np.minimum(total, (1 + len(op.handles)) * sizes[rows(op, inputs)[0]])
        return [float(size) for size in np.broadcast_to(total, len(self.choices_of(op.name)))]

    def _place_others(self, chosen: dict[str, int]) -> None:
        """Gives operators outside of the training step the cheapest configuration after what they read."""
        for op in self.graph.operators:
            if op.name in chosen:
                continue
            time, _ = self._node(op)
            total = time.copy()
            for position, tensor in enumerate(op.inputs):
                edge_time, _ = self._edge_costs.tables(Edge(tensor, op.name, position))
                row = edge_time[chosen[tensor.op]]
                total += row if row.ndim == 1 else row[:, BOTH]  # a gradient may be outside of training, too
            chosen[op.name] = int(np.argmin(total))


def feed_layout(spec: TensorSpec, mesh: Mesh) -> Layout | None:
    """Returns how an input is fed by data parallelism: its first dimension split over all devices.

    Returns:
        None if the tensor has no dimensions, or its first one is not divisible.
    """
    if not spec.shape or spec.shape[0] % mesh.size:
        return None
    return Layout((mesh.axes, *((),) * (spec.rank - 1)))
