"""The peak of a device's memory over a training step, by following every buffer of one strategy.

Searches need memory that adds up over operators and edges: what is held when the backward pass begins, with all
gradients of variables. A device never holds all of that at once, and it holds other things for a moment: gradients of
activations, buffers that collectives are packed in, what kernels work in. For a plan that was chosen, the step is known
in order: forward in the order of the graph, backward in reverse, every variable updated once its gradient is there. So
it is known when each buffer is made and last read. The largest sum at any time is the peak.

What the executor and TensorFlow's kernels do with buffers is taken into account: outputs that are their inputs, updates
in place, gradients that pass through, copies that are made again (TensorOpt section 4.2), outputs that are made again
from an operator's inputs, pieces that are packed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tensoropt.cost import CostModel, KnowsScratch, OpCall, rim_copies
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Layout, Step, StepKind
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.in_time import InTime
from tensoropt.plan.plan import Plan, row_edges
from tensoropt.plan.recomputation import made_by
from tensoropt.plan.tensor_reuse import reads_again, reverse_steps

__all__ = ["MemoryCourse", "PeakMemory", "Scratch", "memory_course", "peak_memory", "scratch_of"]

# What an operator takes beside its tensors, in bytes: at most forward, of which it keeps so much for the backward pass,
# and at most backward.
Scratch = Callable[[Operator, Configuration], tuple[float, float, float]]


@dataclass(frozen=True, slots=True)
class PeakMemory:
    """The largest sum of buffers on a device at any time of a step.

    Attributes:
        memory_bytes: all together.
        operator: whose work it is at that time.
        backward: whether that is in the backward pass.
        parts: bytes by what they are: ``variables``, ``inputs`` with constants, ``activations``, ``moved``
            (copies that reshards made, and their packing), ``gradients`` (of activations), ``variable_gradients``,
            ``scratch``.
    """

    memory_bytes: float
    operator: str
    backward: bool
    parts: Mapping[str, float]

    def to_json(self) -> dict[str, object]:
        """A JSON object."""
        return {
            "memory_bytes": self.memory_bytes,
            "operator": self.operator,
            "backward": self.backward,
            "parts": dict(self.parts),
        }


@dataclass(frozen=True, slots=True)
class MemoryCourse:
    """A device's memory over a training step.

    Attributes:
        moments: what is held while each kernel works, in order.
        peak: the one of them that holds most.
        buffers: that are held then beside variables and inputs, the largest first: the operator that made each, what
            it is (see :attr:`PeakMemory.parts`), bytes.
    """

    moments: tuple[PeakMemory, ...]
    peak: PeakMemory
    buffers: tuple[tuple[str, str, float], ...]


def scratch_of(cost: CostModel, graph: Graph, rules: Mapping[str, OpRule]) -> Scratch:
    """Returns the function that gives kernels' scratch memory: what a cost model measured, or rims of cut images."""

    measured = cost.scratch_bytes if isinstance(cost, KnowsScratch) else None

    def scratch(op: Operator, configuration: Configuration) -> tuple[float, float, float]:
        rule, inputs = rules[op.name], graph.input_specs(op)
        if measured is not None:
            gradients = sum(Edge(tensor, op.name, i) in graph.differentiable for i, tensor in enumerate(op.inputs))
            return measured(OpCall(op, rule, inputs, configuration, gradients))
        copies = rim_copies(OpCall(op, rule, inputs, configuration, 0), cost.mesh)
        return sum(copies[-2:]), 0.0, 2 * sum(copies[-1:])

    return scratch


def _nothing(op: Operator, configuration: Configuration) -> tuple[float, float, float]:
    del op, configuration
    return 0.0, 0.0, 0.0


def peak_memory(
    graph: Graph,
    rules: Mapping[str, OpRule],
    plan: Plan,
    scratch: Scratch = _nothing,
    steps: InTime | None = None,
) -> PeakMemory:
    """Follows the buffers of a plan through one training step.

    Args:
        graph: the logical graph.
        rules: of its operators.
        plan: for it. Of its operators those of training count.
        scratch: what kernels take beside their tensors.
        steps: how a step is split in time, whose graph and rules these are; None if it is not. Followed is the last
            micro-batch, in which all sums of gradients are there.
    """
    return max((step.peak() for step in _steps(graph, rules, plan, scratch, steps)), key=lambda peak: peak.memory_bytes)


def memory_course(
    graph: Graph,
    rules: Mapping[str, OpRule],
    plan: Plan,
    scratch: Scratch = _nothing,
    steps: InTime | None = None,
) -> MemoryCourse:
    """Returns the memory of a device at each moment of a training step; for the arguments see :func:`peak_memory`."""
    courses = (step.course() for step in _steps(graph, rules, plan, scratch, steps))
    return max(courses, key=lambda course: course.peak.memory_bytes)


def _steps(
    graph: Graph, rules: Mapping[str, OpRule], plan: Plan, scratch: Scratch, steps: InTime | None
) -> Iterator[_Step]:
    """The step of a plan; of the first device and of the others, where these drop their parts of sums."""
    operators = [op for op in graph.operators if op.name in graph.training]
    moves = (move for entry in plan.edges.values() for move in (*entry.forward, *entry.backward))
    for is_first in (True, False) if any(move.kind is StepKind.TO_PARTIAL for move in moves) else (True,):
        step = _Step(graph, rules, plan, scratch, is_first, steps)
        for op in operators:
            if op.name not in step.late:
                step.forward(op)
        for op in reversed(operators):
            if op.name not in step.late:
                step.backward(op)
        yield step


@dataclass(slots=True, eq=False)
class _Buffer:
    """Memory that is taken at once and given back at once."""

    size_bytes: float
    kind: str
    last_use: int = -1
    born: int = -1
    gone: int = -1  # the last moment at which it is there


@dataclass(slots=True)
class _Moment:
    """The work of one kernel.

    Attributes:
        operator: that it belongs to.
        backward: in the backward pass.
        made: the buffers that are taken.
        replaced: buffers that may be overwritten if nothing reads them later.
        scratch_bytes: taken while it runs.
    """

    operator: str
    backward: bool
    made: list[_Buffer] = field(default_factory=list)
    replaced: list[_Buffer] = field(default_factory=list)
    scratch_bytes: float = 0.0


def _before(op: Operator) -> tuple[str, ...]:
    return (*op.control_inputs, *(tensor.op for tensor in op.inputs))


class _Step:
    """The moments of a training step in order."""

    def __init__(
        self,
        graph: Graph,
        rules: Mapping[str, OpRule],
        plan: Plan,
        scratch: Scratch,
        is_first: bool,
        steps: InTime | None = None,
    ) -> None:
        """Takes what :func:`peak_memory` does, and whether the device keeps its part where others drop theirs."""
        self._is_first = is_first
        self._time = steps
        self._remade = plan.again
        self._graph = graph
        self._rules = rules
        self._plan = plan
        self._scratch = scratch
        self._rows = row_edges(graph, rules)
        self._keep = {edge: entry.keep for edge, entry in plan.edges.items() if entry.forward}
        self._from_after = {edge.tensor: edge for edge, keep in self._keep.items() if keep == "after"}
        # What is made of gradients, as soon as all that it reads is there.
        self.late = graph.after_gradients() & graph.training
        self._waiting = {name: {*_before(graph[name])} & self.late for name in self.late}
        self._readers: dict[str, list[str]] = {}
        for op in (op for op in graph.operators if op.name in self.late):
            for before in dict.fromkeys(_before(op)):
                self._readers.setdefault(before, []).append(op.name)
        self._moments: list[_Moment] = []
        self._always: dict[str, float] = {}
        self._zeros: dict[tuple[TensorId, bool], float] = {}
        self._values: dict[TensorId, _Buffer] = {}
        self._arrived: dict[Edge, _Buffer] = {}
        self._incoming: dict[TensorId, list[_Buffer]] = {}
        self._kept: dict[str, _Buffer] = {}
        self._second: dict[str, list[_Buffer]] = {}  # the outputs of operators that are made again
        self._passed_on: dict[str, _Buffer] = {}  # by fan-out, what arrives there once more

    # ---------------------------------------------------------------------------------------------------- forward

    def forward(self, op: Operator, *, late: bool = False) -> None:
        """An operator of the forward pass, or a ``late`` one, with what brings its inputs."""
        if traits(op).is_source:
            self._source(op)
            return
        edges = [Edge(tensor, op.name, position) for position, tensor in enumerate(op.inputs)]
        for edge in edges:
            if self._time is not None and self._time.is_border(edge):
                self._hold(edge)
                continue
            entry, source = self._plan.edge(edge), self._values[edge.tensor]
            self._arrived[edge] = self._move(
                edge.tensor, source, self._given(edge), entry.forward, op.name, late, "moved"
            )
        inputs = [self._arrived[edge] for edge in edges]
        if traits(op).alias and inputs:
            self._values.update((TensorId(op.name, index), buffer) for index, buffer in enumerate(inputs))
            return
        outputs = self._run(op, inputs, late, "variable_gradients" if late else "activations")
        self._values.update((TensorId(op.name, index), buffer) for index, buffer in enumerate(outputs))

    def _hold(self, edge: Edge) -> None:
        """What goes into micro-batches from before, which all of them read, and the sum of gradients that they give."""
        spec, entry = self._graph.spec(edge.tensor), self._plan.edge(edge)
        wanted = self._plan.configuration(edge.consumer).input_layouts(self._rules[edge.consumer], edge.position)
        given = self._plan.configuration(edge.tensor.op).output_layouts(self._rules[edge.tensor.op], edge.tensor.index)
        self._arrived[edge] = self._values[edge.tensor]
        if entry.forward and entry.keep == "both":
            self._add_always("moved", self._bytes(spec, wanted.value))
            self._arrived[edge] = _Buffer(0.0, "moved")
        elif entry.forward:
            source = self._values[edge.tensor]
            self._arrived[edge] = self._move(
                edge.tensor, source, given.value, entry.forward, edge.consumer, False, "moved"
            )
        if edge in self._graph.differentiable:
            summed = given.gradient if entry.back_each else wanted.gradient
            self._add_always("variable_gradients", self._bytes(spec.widened, summed))

    def _add_always(self, kind: str, size: float) -> None:
        self._always[kind] = self._always.get(kind, 0.0) + size

    def _run(self, op: Operator, inputs: Sequence[_Buffer], backward: bool, made_as: str) -> list[_Buffer]:
        """The outputs of an operator's kernel, with what it keeps of its scratch memory beside them."""
        forward, kept, _ = self._scratch(op, self._plan.configuration(op.name))
        kept = kept if self._graph.has_gradient(op.name) else 0.0
        moment = self._moment(op.name, backward, inputs, max(0.0, forward - kept))
        outputs = []
        for index, spec in enumerate(op.outputs):
            tensor = TensorId(op.name, index)
            is_missing = kept > 0 and self._is_replaced(op, tensor)
            outputs.append(_Buffer(0.0 if is_missing else self._bytes(spec, self._made(tensor)), made_as))
        moment.made += outputs
        if kept:
            self._kept[op.name] = _Buffer(kept, "activations")
            moment.made.append(self._kept[op.name])
        self._replace(op, moment, inputs, 0)
        return outputs

    def _is_replaced(self, op: Operator, tensor: TensorId) -> bool:
        """Tells whether an output is never made: only TensorFlow's gradient reads it, and the lowering has its own."""
        rule, configuration = self._rules[op.name], self._plan.configuration(op.name)
        communicates = any(configuration.mesh_axes(name) for name in rule.internal)
        return communicates and tensor.index in rule.saved_outputs and not self._graph.consumers(tensor)

    def _source(self, op: Operator) -> None:
        for index, spec in enumerate(op.outputs):
            kind = "variables" if traits(op).is_variable else "inputs"
            size = self._bytes(spec, self._made(TensorId(op.name, index)))
            # The whole batch is fed before the first micro-batch.
            pieces = self._time.times if self._time is not None and self._time.is_each(op.name) else 1
            self._add_always(kind, pieces * size)
            self._values[TensorId(op.name, index)] = _Buffer(0.0, kind)

    def _replace(self, op: Operator, moment: _Moment, inputs: Sequence[_Buffer], output: int) -> None:
        """An elementwise op writes to an input that nothing reads any more."""
        if not traits(op).in_place or not op.outputs:
            return
        rule = self._rules[op.name]
        for position, buffer in enumerate(inputs):
            alike = rule.inputs[position] == rule.outputs[output]
            if alike and buffer.size_bytes == moment.made[output].size_bytes and buffer.kind != "inputs":
                moment.replaced.append(buffer)

    # --------------------------------------------------------------------------------------------------- backward

    def backward(self, op: Operator) -> None:
        """An operator of the backward pass, with what makes its inputs again, and what takes its gradients back."""
        incoming = [self._summed(TensorId(op.name, index)) for index in range(max(1, len(op.outputs)))]
        arrived = [buffer for buffer in incoming if buffer is not None]
        for index, buffer in enumerate(incoming):
            if buffer is not None:
                self._use(TensorId(op.name, index), buffer)
        if traits(op).is_source:
            return
        edges = [Edge(tensor, op.name, position) for position, tensor in enumerate(op.inputs)]
        wanted = [edge for edge in edges if edge in self._graph.differentiable]
        if not wanted:
            return
        # Weights first: their gradients wait for nobody, but their updates for all that read them.
        wanted.sort(key=lambda edge: not self._is_weight(edge))
        passed = self._passed(op, wanted, arrived)
        updates: list[tuple[str, _Buffer]] = []
        # The gradients of a convolution's inputs are made one after the other, all others at once.
        for part in [[edge] for edge in wanted] if traits(op).is_convolution else [wanted]:
            for edge, gradient in self._computed(op, edges, part, arrived) if passed is None else passed:
                entry, kind = self._plan.edge(edge), gradient.kind
                if not self._is_weight(edge):
                    self._update(updates)
                wanted_gradient, each = self._wanted_gradient(edge), entry.back_each
                moved = self._move(
                    edge.tensor, gradient, wanted_gradient, entry.backward, op.name, True, kind, widened=each
                )
                if each:  # added to the sum, which is there all the time
                    self._moment(op.name, True, [moved])
                    moved = _Buffer(0.0, kind)
                if self._is_weight(edge) and traits(self._graph[edge.tensor.op]).is_variable:
                    updates.append((edge.tensor.op, moved))
                else:
                    self._incoming.setdefault(edge.tensor, []).append(moved)
        self._update(updates)

    def _update(self, updates: list[tuple[str, _Buffer]]) -> None:
        """Makes of gradients of variables what is made of them; none are left."""
        for variable, gradient in updates:
            self._use(TensorId(variable), gradient)
        updates.clear()

    def _use(self, tensor: TensorId, gradient: _Buffer) -> None:
        """Does what a gradient was the last to be waited for by: its variable's update, or what all gradients go into.

        Args:
            tensor: what the gradient belongs to.
            gradient: of it.
        """
        ready = []
        for name in self._readers.get(tensor.op, ()):
            op = self._graph[name]
            if traits(op).is_gradient and op.inputs[0] == tensor:
                self._values.update((TensorId(name, index), gradient) for index in range(len(op.outputs)))
                self._waiting[name].clear()
                ready.append(name)
        self._moment(tensor.op, True, [gradient])
        while ready:
            done = ready.pop()
            for name in self._readers.get(done, ()):
                waiting = self._waiting[name]
                if done not in waiting:
                    continue  # a gradient that came before the step in which it is computed again
                waiting.remove(done)
                if not waiting:
                    self.forward(self._graph[name], late=True)
                    ready.append(name)

    def _summed(self, tensor: TensorId) -> _Buffer | None:
        """The sum of the gradients from a tensor's readers, once all are there, in place of the first one."""
        parts = self._incoming.pop(tensor, [])
        if len(parts) < 2:
            return parts[0] if parts else None
        moment = self._moment(tensor.op, True, parts)
        moment.made.append(_Buffer(parts[0].size_bytes, parts[0].kind))
        moment.replaced.append(parts[0])
        return moment.made[0]

    def _passed(
        self, op: Operator, wanted: Sequence[Edge], arrived: Sequence[_Buffer]
    ) -> list[tuple[Edge, _Buffer]] | None:
        """The gradients of an operator that passes its output's on; None for one that computes them."""
        if not traits(op).passes_gradient or len(arrived) != 1:
            return None
        result = []
        for edge in wanted:
            size = self._bytes(self._graph.spec(edge.tensor), self._wanted_gradient(edge))
            if size >= arrived[0].size_bytes:
                result.append((edge, arrived[0]))
            else:  # summed over what was broadcast
                summed = _Buffer(size, self._kind(edge))
                self._moment(op.name, True, arrived).made.append(summed)
                result.append((edge, summed))
        return result

    def _computed(
        self, op: Operator, edges: Sequence[Edge], wanted: Sequence[Edge], arrived: Sequence[_Buffer]
    ) -> list[tuple[Edge, _Buffer]]:
        rule = self._rules[op.name]
        read = list(arrived)
        for edge in edges:
            if edge.position not in rule.saved_inputs or (traits(op).multilinear and list(wanted) == [edge]):
                continue
            read.append(self._arrived_again(edge))
        remade = bool(rule.saved_outputs) and any(
            made_by(self._graph, edge.tensor).name in self._remade
            for edge in edges
            if edge.position in rule.saved_inputs
        )
        for index in rule.saved_outputs:
            if remade or op.name in self._remade:
                read.append(self._second_copy(op)[index])
            else:
                read.append(self._output_again(op, TensorId(op.name, index)))
        if op.name in self._kept:
            read.append(self._kept[op.name])
        moment = self._moment(op.name, True, read, self._scratch(op, self._plan.configuration(op.name))[2])
        result = []
        for edge in wanted:
            spec = self._graph.spec(edge.tensor)
            size = self._bytes(spec, self._wanted_gradient(edge))
            if edge in self._rows:
                size = min(size, self._bytes(op.outputs[0], self._made(TensorId(op.name))))
            buffer = _Buffer(size, self._kind(edge))
            moment.made.append(buffer)
            result.append((edge, buffer))
        if len(wanted) == 1 and traits(op).in_place:
            alike = rule.inputs[wanted[0].position] == rule.outputs[0]
            moment.replaced += [part for part in arrived if alike and part.size_bytes == moment.made[0].size_bytes]
        return result

    def _reads_again(self, edge: Edge) -> bool:
        return reads_again(self._graph, self._rules, edge, self._keep, self._remade, self._time)

    def _arrived_again(self, edge: Edge) -> _Buffer:
        """What arrived on an edge, as the backward pass has it: made again if it was not kept."""
        if not self._reads_again(edge):
            return self._arrived[edge]
        producer, source = self._graph[edge.tensor.op], self._values[edge.tensor]
        if producer.name in self._remade:
            source = self._second_copy(producer)[edge.tensor.index]
        elif made_by(self._graph, edge.tensor).name in self._remade:
            if producer.name not in self._passed_on:
                self._passed_on[producer.name] = self._arrived_again(Edge(producer.inputs[0], producer.name, 0))
            source = self._passed_on[producer.name]
        steps = self._plan.edge(edge).forward
        return self._move(edge.tensor, source, self._given(edge), steps, edge.consumer, True, "moved")

    def _second_copy(self, op: Operator) -> list[_Buffer]:
        """The outputs of an operator that is built a second time, in the backward pass."""
        if op.name not in self._second:
            edges = [Edge(tensor, op.name, position) for position, tensor in enumerate(op.inputs)]
            inputs = [self._arrived_again(edge) for edge in edges]
            outputs = inputs if traits(op).alias else self._run(op, inputs, True, "activations")
            self._second[op.name] = outputs
        return self._second[op.name]

    def _output_again(self, op: Operator, tensor: TensorId) -> _Buffer:
        """An output that the backward pass reads, made again where only its reader's copy is kept."""
        edge = self._from_after.get(tensor)
        if edge is None:
            return self._values[tensor]
        layout = given = self._given(edge)
        for step in self._plan.edge(edge).forward:
            layout = step.apply(layout)
        steps = reverse_steps(given, self._plan.edge(edge).forward)
        return self._move(tensor, self._arrived[edge], layout, steps, op.name, True, "moved")

    # ------------------------------------------------------------------------------------------------------ moving

    def _move(
        self,
        tensor: TensorId,
        source: _Buffer,
        layout: Layout,
        steps: Sequence[Step],
        operator: str,
        backward: bool,
        kind: str,
        *,
        widened: bool = False,
    ) -> _Buffer:
        """The buffer after reshard steps, as ``exec/resharding.py`` does them; all are parts of a sum if widened."""
        spec = self._graph.spec(tensor).widened if widened else self._graph.spec(tensor)
        for step in steps:
            reached = step.apply(layout)
            before, after = self._bytes(spec, layout), self._bytes(spec, reached)
            if step.kind is StepKind.SLICE and step.dim == 0:
                layout = reached
                continue  # a view
            if step.kind is StepKind.TO_PARTIAL:
                # The buffer itself on the first member. Elsewhere zeros, which TensorFlow makes once and for all; of
                # zeros that are summed it makes one, and what they stand for is not computed.
                if not self._is_first:
                    self._zeros[tensor, backward] = max(before, self._zeros.get((tensor, backward), 0.0))
                    source = _Buffer(0.0, kind)
                elif after > before:  # in the dtype of parts of sums
                    source = self._copy(source, after, operator, backward, kind)
                layout = reached
                continue
            packs = step.to_dim if step.kind is StepKind.ALL_TO_ALL else step.dim
            if step.kind in (StepKind.ALL_TO_ALL, StepKind.REDUCE_SCATTER):
                if not self._is_outermost(spec, layout, packs):
                    source = self._copy(source, before, operator, backward, kind)
            in_place = step.kind is StepKind.ALL_REDUCE
            moved = self._bytes(spec, reached, of=layout)
            source = self._copy(source, moved, operator, backward, kind, in_place=in_place)
            if moved > after:  # the sum is rounded to the dtype that its parts were too narrow in
                source = self._copy(source, after, operator, backward, kind)
            unpacks = step.kind in (StepKind.ALL_TO_ALL, StepKind.ALL_GATHER)
            if unpacks and not self._is_outermost(spec, reached, step.dim):
                source = self._copy(source, after, operator, backward, kind)
            layout = reached
        return source

    def _copy(
        self,
        source: _Buffer,
        size: float,
        operator: str,
        backward: bool,
        kind: str,
        *,
        in_place: bool = False,
    ) -> _Buffer:
        moment = self._moment(operator, backward, [source])
        buffer = _Buffer(size, kind)
        moment.made.append(buffer)
        moment.replaced += [source] if in_place else []
        return buffer

    def _is_outermost(self, spec: TensorSpec, layout: Layout, dim: int | None) -> bool:
        """Tells whether a tensor's pieces along a dimension are contiguous."""
        return dim is None or math.prod(layout.local_shape(spec.shape, self._plan.mesh)[:dim]) == 1

    # ------------------------------------------------------------------------------------------------------ sizes

    def _bytes(self, spec: TensorSpec, layout: Layout, *, of: Layout | None = None) -> float:
        """Bytes of a device's piece in a layout, in the dtype of one in the layout ``of``, by default the same."""
        itemsize = spec.sum_itemsize if (of or layout).partial else spec.itemsize
        return float(math.prod(layout.local_shape(spec.shape, self._plan.mesh)) * itemsize)

    def _made(self, tensor: TensorId) -> Layout:
        return self._plan.configuration(tensor.op).output_layouts(self._rules[tensor.op], tensor.index).value

    def _given(self, edge: Edge) -> Layout:
        return self._made(edge.tensor)

    def _wanted_gradient(self, edge: Edge) -> Layout:
        return self._plan.configuration(edge.consumer).input_layouts(self._rules[edge.consumer], edge.position).gradient

    def _is_weight(self, edge: Edge) -> bool:
        producer = self._graph[edge.tensor.op]
        if traits(producer).is_fanout:
            producer = self._graph[producer.inputs[0].op]
        return traits(producer).is_variable

    def _kind(self, edge: Edge) -> str:
        return "variable_gradients" if self._is_weight(edge) else "gradients"

    # ------------------------------------------------------------------------------------------------------- time

    def _moment(self, operator: str, backward: bool, read: Sequence[_Buffer], scratch: float = 0.0) -> _Moment:
        moment = _Moment(operator, backward, scratch_bytes=scratch)
        for buffer in read:
            buffer.last_use = len(self._moments)
        self._moments.append(moment)
        return moment

    def peak(self) -> PeakMemory:
        """The largest sum over all moments."""
        best: PeakMemory | None = None
        for moment, total, held in self._holdings():
            if best is None or total > best.memory_bytes:
                best = _held_at(moment, total, held)
        return best or self._nothing_done()

    def course(self) -> MemoryCourse:
        """The sums at all moments."""
        moments = tuple(_held_at(*each) for each in self._holdings())
        if not moments:
            return MemoryCourse((), self._nothing_done(), ())
        at = max(range(len(moments)), key=lambda place: moments[place].memory_bytes)
        buffers = [
            (moment.operator, buffer.kind, buffer.size_bytes)
            for moment in self._moments
            for buffer in moment.made
            if buffer.born <= at <= buffer.gone and buffer.size_bytes
        ]
        return MemoryCourse(moments, moments[at], tuple(sorted(buffers, key=lambda one: -one[2])))

    def _nothing_done(self) -> PeakMemory:
        held = self._at_first()
        return PeakMemory(sum(held.values()), "", False, held)

    def _at_first(self) -> dict[str, float]:
        """Bytes of what is always there."""
        return {**self._always, "inputs": self._always.get("inputs", 0.0) + sum(self._zeros.values())}

    def _holdings(self) -> Iterator[tuple[_Moment, float, Mapping[str, float]]]:
        """At each moment all bytes, and those of buffers by what they are, which change with the next moment."""
        held = self._at_first()
        ending: dict[int, list[_Buffer]] = {}
        for now, moment in enumerate(self._moments):
            for buffer in moment.replaced:
                # One input at most is overwritten.
                if buffer.last_use == now and buffer in ending.get(now, ()):
                    ending[now].remove(buffer)
                    held[buffer.kind] -= buffer.size_bytes
                    buffer.gone = now - 1
                    break
            for buffer in moment.made:
                held[buffer.kind] = held.get(buffer.kind, 0.0) + buffer.size_bytes
                buffer.born, buffer.gone = now, max(buffer.last_use, now)
                ending.setdefault(buffer.gone, []).append(buffer)
            yield moment, sum(held.values()) + moment.scratch_bytes, held
            for buffer in ending.pop(now, []):
                held[buffer.kind] -= buffer.size_bytes


def _held_at(moment: _Moment, total: float, held: Mapping[str, float]) -> PeakMemory:
    parts = {kind: held[kind] for kind in sorted(held) if held[kind] > 0}
    parts |= {"scratch": moment.scratch_bytes} if moment.scratch_bytes else {}
    return PeakMemory(total, moment.operator, moment.backward, parts)
