"""From a graph to tables: every operator's configurations, and the problem that searches solve."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tensoropt.cost import CostModel, activation_bytes, copy_bytes, variable_bytes
from tensoropt.errors import PlanError
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Layout, Mesh, ReshardTable, Step, StepKind, common_prefix, reshard_table
from tensoropt.plan.configuration import Configuration, TensorLayouts, configurations
from tensoropt.plan.plan import EdgePlan, OperatorPlan, Plan, row_edges, rules_of
from tensoropt.search.problem import Problem

__all__ = ["SearchSpace", "feed_layout"]


@dataclass(frozen=True, slots=True)
class _Choice:
    """One configuration of one operator with its layouts, worked out once."""

    configuration: Configuration
    inputs: tuple[TensorLayouts, ...]
    outputs: tuple[TensorLayouts, ...]


class SearchSpace:
    """All strategies of a graph on a mesh, and what they cost.

    Attributes:
        graph: the logical graph.
        rules: by operator.
        cost: the cost model.
        mesh: its factor mesh.
    """

    def __init__(
        self,
        graph: Graph,
        cost: CostModel,
        *,
        slots: Mapping[str, int] | None = None,
        allowed: Mapping[str, Sequence[Configuration]] | None = None,
    ) -> None:
        """Works out the configurations.

        Args:
            graph: the logical graph.
            cost: the cost model.
            slots: for each trained variable, how many tensors of its shape its optimizer keeps.
            allowed: the only configurations of some operators, such as inputs that are fed by data parallelism.
        """
        self.graph = graph
        self.cost = cost
        self.mesh: Mesh = cost.mesh
        self.rules = rules_of(graph)
        self._row_edges = row_edges(graph, self.rules)
        self._slots = dict(slots or {})
        self._allowed = dict(allowed or {})
        self._choices: dict[str, tuple[_Choice, ...]] = {}
        self._tables: dict[tuple[tuple[int, ...], int], ReshardTable] = {}
        self._edge_memo: dict[tuple[object, ...], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        self._node_memo: dict[tuple[object, ...], tuple[NDArray[np.float64], NDArray[np.float64]]] = {}
        self.operators = tuple(op for op in graph.operators if op.name in graph.training)

    def choices(self, name: str) -> tuple[Configuration, ...]:
        """The configurations of an operator, in the order of its table."""
        return tuple(choice.configuration for choice in self._of(name))

    @functools.cached_property
    def problem(self) -> Problem:
        """The tables of the training step."""
        index = {op.name: position for position, op in enumerate(self.operators)}
        nodes = [self._node(op) for op in self.operators]
        edges = [edge for edge in self.graph.edges() if edge.consumer in self.graph.training]
        tables = [self._edge(edge) for edge in edges]
        return Problem(
            [op.name for op in self.operators],
            [time for time, _ in nodes],
            [memory for _, memory in nodes],
            np.array([(index[edge.tensor.op], index[edge.consumer]) for edge in edges], dtype=np.int64).reshape(-1, 2),
            [time for time, _ in tables],
            [memory for _, memory in tables],
        )

    def plan(self, assignment: Sequence[int], option: str, notes: Mapping[str, object] | None = None) -> Plan:
        """The plan of one strategy, operators outside of the training step included.

        Args:
            assignment: a configuration index for each operator of the problem.
            option: what chose it.
            notes: kept in the plan.
        """
        time, memory = self.problem.costs(np.asarray(assignment, dtype=np.int64))
        chosen = {op.name: int(index) for op, index in zip(self.operators, assignment, strict=True)}
        self._place_others(chosen)
        operators: dict[str, OperatorPlan] = {}
        edges: dict[Edge, EdgePlan] = {}
        for op in self.graph.operators:
            node_time, node_memory = self._node(op)
            index = chosen[op.name]
            operators[op.name] = OperatorPlan(
                self._of(op.name)[index].configuration, float(node_time[index]), float(node_memory[index])
            )
            for position, tensor in enumerate(op.inputs):
                edge = Edge(tensor, op.name, position)
                given = self._of(tensor.op)[chosen[tensor.op]].outputs[tensor.index]
                wanted = self._of(op.name)[index].inputs[position]
                edge_time, edge_memory = self._edge(edge)
                entry = EdgePlan(
                    self._path(tensor, given.value, wanted.value),
                    self._path(tensor, wanted.gradient, given.gradient) if self._returns_tensor(edge) else (),
                    float(edge_time[chosen[tensor.op], index]),
                    float(edge_memory[chosen[tensor.op], index]),
                )
                if entry != EdgePlan():
                    edges[edge] = entry
        return Plan(
            self.mesh,
            self.graph.fingerprint(),
            option,
            operators,
            edges,
            float(time[0]),
            float(memory[0]),
            dict(notes or {}),
        )

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
                    f"{', '.join(map(str, choices[:8]))}. The batch or a dimension may not be divisible."
                )
            result.append(choices.index(wanted))
        return tuple(result)

    def _of(self, name: str) -> tuple[_Choice, ...]:
        if name not in self._choices:
            op, rule = self.graph[name], self.rules[name]
            self._choices[name] = tuple(
                _Choice(
                    configuration,
                    tuple(configuration.input_layouts(rule, i) for i in range(len(op.inputs))),
                    tuple(configuration.output_layouts(rule, i) for i in range(len(op.outputs))),
                )
                for configuration in self._allowed.get(name, configurations(rule, self.mesh))
            )
        return self._choices[name]

    def _returns_tensor(self, edge: Edge) -> bool:
        """Whether a whole gradient tensor goes back along the edge, rather than nothing or rows."""
        return edge in self.graph.differentiable and not self._is_sparse(edge)

    def _is_sparse(self, edge: Edge) -> bool:
        return edge in self._row_edges

    def _row_elements(self, edge: Edge) -> int:
        """How many elements the rows of all lookups behind an edge have."""
        op = self.graph[edge.consumer]
        if op.type != "Fanout":
            return op.outputs[0].elements
        readers = self.graph.consumers(TensorId(op.name))
        return sum(self._row_elements(reader) for reader in readers if reader in self.graph.differentiable)

    def _path(self, tensor: TensorId, source: Layout, target: Layout) -> tuple[Step, ...]:
        return () if source == target else self._table(self.graph.spec(tensor)).path(source, target)

    def _table(self, spec: TensorSpec) -> ReshardTable:
        # Bytes that cannot be counted (opaque dtypes) still have to be moved somehow; one per element.
        key = (spec.shape, max(1, spec.itemsize))
        if key not in self._tables:
            self._tables[key] = reshard_table(self.mesh, spec.shape, key[1], self.cost.step_seconds)
        return self._tables[key]

    def _node(self, op: Operator) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        rule = self.rules[op.name]
        gradients = sum(Edge(t, op.name, i) in self.graph.differentiable for i, t in enumerate(op.inputs))
        trained = op.type == "Variable" and any(
            edge in self.graph.differentiable for edge in self.graph.consumers(TensorId(op.name))
        )
        slots = self._slots.get(op.name, 0)
        kept = tuple(self._keeps(TensorId(op.name, index)) for index in range(len(op.outputs)))
        readers = len(self.graph.consumers(TensorId(op.name))) if op.type == "Fanout" else 0
        allowed = tuple(self._allowed.get(op.name, ()))
        key = (op.type, rule, op.outputs, gradients, trained, slots, kept, readers, allowed)
        if key in self._node_memo:
            return self._node_memo[key]
        inputs = self.graph.input_specs(op)
        times, memories = [], []
        for choice in self._of(op.name):
            outputs = [layouts.value for layouts in choice.outputs]
            if op.type == "Variable":
                memory = variable_bytes(op.outputs[0], outputs[0], self.mesh, slots=slots, trained=trained)
                # The update reads and writes the variable, its gradient and its slots.
                time = self.cost.traffic_seconds(self._update_bytes(op, memory)) if trained else 0.0
            elif op.type in ("Fanout", "Sink", "Const", "Placeholder", "PlaceholderWithDefault", "NoOp"):
                memory = 0.0
                size = activation_bytes(op.outputs[0], outputs[0], self.mesh, kept=True) if outputs else 0.0
                time = self.cost.traffic_seconds(3 * size * (readers - 1)) if gradients and readers > 1 else 0.0
                if op.type in ("Const", "Placeholder", "PlaceholderWithDefault"):
                    memory = size
            else:
                memory = sum(
                    activation_bytes(spec, layout, self.mesh, kept=keep)
                    for spec, layout, keep in zip(op.outputs, outputs, kept, strict=True)
                )
                time = self.cost.op_seconds(op, rule, inputs, choice.configuration, gradients=gradients)
            times.append(time)
            memories.append(memory)
        self._node_memo[key] = np.array(times), np.array(memories)
        return self._node_memo[key]

    def _update_bytes(self, op: Operator, memory: float) -> float:
        edges = [edge for edge in self.graph.consumers(TensorId(op.name)) if edge in self.graph.differentiable]
        if all(self._is_sparse(edge) for edge in edges):
            return min(memory, 3.0 * op.outputs[0].itemsize * sum(map(self._row_elements, edges)))
        return memory

    def _keeps(self, tensor: TensorId) -> bool:
        """Whether its producer or a consumer needs the tensor in the backward pass."""
        producer = self.rules[tensor.op]
        readers = self.graph.consumers(tensor)
        if any(edge in self.graph.differentiable for edge in self._incoming(tensor.op)):
            if tensor.index in producer.saved_outputs:
                return True
        return any(self._consumer_keeps(edge) for edge in readers)

    def _consumer_keeps(self, edge: Edge) -> bool:
        op = self.graph[edge.consumer]
        if op.type == "Fanout":
            return any(self._consumer_keeps(further) for further in self.graph.consumers(TensorId(op.name)))
        differentiable = any(other in self.graph.differentiable for other in self._incoming(edge.consumer))
        return differentiable and edge.position in self.rules[edge.consumer].saved_inputs

    def _incoming(self, name: str) -> list[Edge]:
        return [Edge(tensor, name, position) for position, tensor in enumerate(self.graph[name].inputs)]

    def _edge(self, edge: Edge) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        spec = self.graph.spec(edge.tensor)
        given = [choice.outputs[edge.tensor.index] for choice in self._of(edge.tensor.op)]
        wanted = [choice.inputs[edge.position] for choice in self._of(edge.consumer)]
        kept = self._consumer_keeps(edge)
        backward = edge in self.graph.differentiable
        sparse = self._is_sparse(edge)
        rows = self._row_elements(edge) if sparse else 0
        pinned = self.rules[edge.consumer].pinned_input == edge.position
        key = (spec, tuple(given), tuple(wanted), kept, backward, sparse, rows, pinned)
        if key in self._edge_memo:
            return self._edge_memo[key]
        table = self._table(spec)
        index = table.index
        give = np.array([index[layouts.value] for layouts in given])
        take = np.array([index[layouts.value] for layouts in wanted])
        time = table.seconds[np.ix_(give, take)].copy()
        if pinned:
            time[give[:, None] != take[None, :]] = np.inf
        if backward and sparse:
            time += self._rows_seconds(spec, rows, wanted, given).T
        elif backward:
            need = np.array([index[layouts.gradient] for layouts in given])
            made = np.array([index[layouts.gradient] for layouts in wanted])
            time += table.seconds[np.ix_(made, need)].T
        copies = {
            (source, target): copy_bytes(spec, source, target, self.mesh, kept=kept)
            for source in {layouts.value for layouts in given}
            for target in {layouts.value for layouts in wanted}
        }
        memory = np.array([[copies[one.value, other.value] for other in wanted] for one in given])
        self._edge_memo[key] = time, memory
        return self._edge_memo[key]

    def _rows_seconds(
        self,
        spec: TensorSpec,
        rows_elements: int,
        made: Sequence[TensorLayouts],
        need: Sequence[TensorLayouts],
    ) -> NDArray[np.float64]:
        """Seconds to move a gradient that is given as rows: they are gathered over the axes to sum over."""
        result = np.zeros((len(made), len(need)))
        memo: dict[tuple[Layout, Layout], float] = {}
        for row, source in enumerate(made):
            for column, target in enumerate(need):
                pair = (source.gradient, target.gradient)
                if pair not in memo:
                    memo[pair] = self._rows_pair_seconds(spec, rows_elements, *pair)
                result[row, column] = memo[pair]
        return result

    def _rows_pair_seconds(self, spec: TensorSpec, elements: int, source: Layout, target: Layout) -> float:
        alike = len(common_prefix(source.dims[0], target.dims[0]))
        gathered = tuple(sorted({*source.partial} - {*target.partial} | {*source.dims[0][alike:]}))
        held = elements * spec.itemsize / self.mesh.extent([*source.used_axes])
        seconds = 0.0
        if gathered:
            seconds += self._all_gather_seconds(gathered, held)
            held *= self.mesh.extent(gathered)
        for have, want in zip(source.dims[1:], target.dims[1:], strict=True):
            if have != want and have:
                seconds += self._all_gather_seconds(have, held)
                held *= self.mesh.extent(have)
        return seconds

    def _all_gather_seconds(self, axes: tuple[int, ...], size_bytes: float) -> float:
        return float(self.cost.step_seconds(StepKind.ALL_GATHER, axes, np.array([max(1.0, size_bytes)]))[0])

    def _place_others(self, chosen: dict[str, int]) -> None:
        """Gives operators outside of the training step the cheapest configuration after what they read."""
        for op in self.graph.operators:
            if op.name in chosen:
                continue
            time, _ = self._node(op)
            total = time.copy()
            for position, tensor in enumerate(op.inputs):
                edge_time, _ = self._edge(Edge(tensor, op.name, position))
                total += edge_time[chosen[tensor.op]]
            chosen[op.name] = int(np.argmin(total))


def feed_layout(spec: TensorSpec, mesh: Mesh) -> Layout | None:
    """How an input is fed by data parallelism: its first dimension split over all devices.

    Returns:
        None if the tensor has no dimensions, or its first one is not divisible.
    """
    if not spec.shape or spec.shape[0] % mesh.size:
        return None
    return Layout((mesh.axes, *((),) * (spec.rank - 1)))
