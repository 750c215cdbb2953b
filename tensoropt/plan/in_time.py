"""Micro-batches: the operators of a step that run once for each, on which piece of the batch, and the others.

The batch is split in time as it is over devices: along one more mesh axis, whose "devices" are one device at several
times. An operator that the batch goes through splits an iteration axis along it, or computes on a part of a sum; all
else runs once, before the first micro-batch or after the last. So the rules that make a split over devices exact make
one in time exact: a mean makes parts that divide by the whole count, a regularizer enters the sum of gradients once,
random numbers are pieces of those of the whole batch. What no rule allows is refused, by the operator.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from tensoropt.errors import MicroBatchError
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Layout, Mesh
from tensoropt.plan.configuration import Configuration

__all__ = ["InTime", "in_time"]

_AXIS = 0  # of the layouts along time, which have one mesh axis


@dataclass(frozen=True)
class InTime:
    """A graph's step as micro-batches.

    Attributes:
        times: how many micro-batches there are.
        whole: the graph of the whole batch.
        graph: of one micro-batch: tensors that the batch goes through are smaller.
        rules: of its operators.
        actions: of each operator that runs once for every micro-batch the iteration axis that is split; None of one
            that computes on a part of a sum, or passes on what every micro-batch reads.
        layouts: of its outputs along time: split, parts of a sum, or the same each time.
        after: the operators that run once, after the last micro-batch.
    """

    times: int
    whole: Graph
    graph: Graph
    rules: Mapping[str, OpRule]
    actions: Mapping[str, str | None]
    layouts: Mapping[TensorId, Layout]
    after: frozenset[str]

    def is_each(self, name: str) -> bool:
        """Tells whether an operator runs once for each micro-batch."""
        return name in self.actions

    def is_border(self, edge: Edge) -> bool:
        """Tells whether an edge leads from an operator that runs once to one that runs for each micro-batch."""
        return edge.consumer in self.actions and edge.tensor.op not in self.actions

    def is_exit(self, edge: Edge) -> bool:
        """Tells whether an edge leads from an operator that runs for each micro-batch to one that runs once.

        The whole tensor is put together from all of them, and held for the one that reads it.
        """
        return edge.tensor.op in self.actions and edge.consumer not in self.actions

    def is_part(self, edge: Edge) -> bool:
        """Tells whether an edge brings one addend to a sum whose others are parts of a sum along time.

        The addend counts once, in the first micro-batch; in others it is zeros.
        """
        if not self.is_border(edge) or self.actions[edge.consumer] is not None:
            return False
        op = self.whole[edge.consumer]
        return edge.position in _together(self.whole, op) and _is_partial(self.layouts.get(TensorId(op.name)))

    def spec(self, edge: Edge) -> TensorSpec:
        """What an edge moves: a piece between operators that run for each micro-batch, else the whole tensor."""
        inside = edge.consumer in self.actions and edge.tensor.op in self.actions
        return (self.graph if inside else self.whole).spec(edge.tensor)

    def takes_piece(self, edge: Edge) -> bool:
        """Tells whether micro-batches take different tensors from an edge that leads into them."""
        return self.split_dim(edge) is not None or self.is_part(edge)

    def split_dim(self, edge: Edge) -> int | None:
        """The dimension of an edge's tensor that is split in time where its consumer takes it; None if none is."""
        action = self.actions.get(edge.consumer)
        if action is None:
            return None
        found = [
            place for place, dim in enumerate(self.rules[edge.consumer].inputs[edge.position]) if dim[:1] == (action,)
        ]
        return found[0] if found else None


def in_time(graph: Graph, rules: Mapping[str, OpRule], times: int) -> InTime | None:
    """The step of a graph in so many micro-batches; None for one.

    Args:
        graph: of the whole batch.
        rules: of its operators.
        times: the number of micro-batches.

    Raises:
        MicroBatchError: the step cannot be split in time; it names the operator.
    """
    return None if times == 1 else _Walk(graph, rules, times).result()


class _Walk:
    """Follows the batch through a graph: from what is fed on, and from what is computed whole and cut afterwards.

    The latter are random numbers for every sample, which are drawn for the whole batch in any case, and what is
    computed at once although it comes of what is fed, such as samples in another order. No gradient flows into either.
    """

    def __init__(self, graph: Graph, rules: Mapping[str, OpRule], times: int) -> None:
        self._graph = graph
        self._rules = rules
        self._times = times
        batch = graph.batch_size()
        if batch is None:
            raise MicroBatchError(
                f"Micro-batches: {times} of them are parts of a batch, but the step is fed none: no inputs have one "
                "number of samples as their first dimension. Leave out micro_batches."
            )
        if batch % times:
            raise MicroBatchError(
                f"Micro-batches: {times} of them must divide the batch, which has {batch} samples. Ask for another "
                "number of micro-batches."
            )
        again = {edge.consumer for edge in graph.gradients_of_gradients}
        if again:
            first = next(op for op in graph.operators if op.name in again)
            raise self._refused(first, "it reads a gradient of the whole batch, which is differentiated again")
        self._batch = batch
        self._late = graph.after_gradients()
        losses = {name for op in graph.operators if traits(op).is_gradient for name in op.attrs["losses"]}
        self._forward = {op.name for op in graph.needed_for(losses)} if losses else set[str]()
        # Operators without parameters that are computed for the whole batch, as more than a piece of them is read.
        self._at_once: set[str] = set()
        self._first: tuple[Operator, str] | None = None  # the first that read more than a piece of them, and the reason
        self._actions: dict[str, str | None] = {}
        self._layouts: dict[TensorId, Layout] = {}
        self._after: set[str] = set()
        self._whole: set[str] = set()  # operators whose outputs micro-batches may take pieces of
        self._learned = {edge.consumer for edge in graph.differentiable}
        self._cuts = True  # whether a walk may begin at such outputs

    def result(self) -> InTime:
        """The step; raises MicroBatchError."""
        try:
            self._walk()
        except MicroBatchError:
            if not self._whole:
                raise
            self._cuts, self._first = False, None
            self._at_once.clear()
            self._walk()
        self._pass_on()
        learned = self._graph.differentiable
        if learned and not any(edge.consumer in self._actions for edge in learned):
            whole = "all that gradients flow through is computed from the whole batch"
            if self._first is None:
                raise self._refused(next(op for op in self._graph.operators if op.name in self._forward), whole)
            raise self._refused(self._first[0], f"{self._first[1]}, and {whole} then")
        for op in self._graph.operators:
            if traits(op).is_gradient and op.inputs[0].op in self._actions:
                raise self._refused(
                    op, f"it is the gradient by '{op.inputs[0]}', of which each micro-batch has a piece"
                )
        operators, rules, times = [], dict(self._rules), Mesh((self._times,))
        smaller = functools.cache(_smaller)  # layers have equal rules
        for op in self._graph.operators:
            if op.name in self._actions:
                layouts = [self._layouts[TensorId(op.name, index)] for index in range(len(op.outputs))]
                specs = tuple(
                    dataclasses.replace(spec, shape=layout.local_shape(spec.shape, times))
                    for spec, layout in zip(op.outputs, layouts, strict=True)
                )
                op = dataclasses.replace(op, outputs=specs)
                rules[op.name] = smaller(rules[op.name], self._actions[op.name], self._times)
            operators.append(op)
        samples = None if self._graph.samples is None else self._graph.samples // self._times
        small = dataclasses.replace(self._graph, operators=tuple(operators), samples=samples)
        return InTime(self._times, self._graph, small, rules, self._actions, self._layouts, frozenset(self._after))

    def _walk(self) -> None:
        """Goes through all operators until no more of them are to be computed at once.

        Raises:
            MicroBatchError: the step cannot be split.
        """
        while not self._walked():
            pass
        for edge in sorted(self._graph.differentiable, key=str):
            if edge.tensor.op in self._actions and edge.consumer not in self._actions:
                raise self._refused(
                    self._graph[edge.consumer],
                    f"it is computed from the whole batch, after other gradients, and its own flow back to "
                    f"'{edge.tensor}', of which each micro-batch has a piece",
                )

    def _walked(self) -> bool:
        """Goes once through all operators; False if it is to go again, as more is to be computed at once."""
        self._actions, self._layouts, self._after, self._whole = {}, {}, set(), set()
        for op in self._graph.operators:
            before = {*(tensor.op for tensor in op.inputs), *op.control_inputs}
            if op.name in self._late:
                self._after.add(op.name)
                continue
            is_fed = (
                traits(op).is_input and op.outputs[0].shape[:1] == (self._batch,) and "d0" in self._rules[op.name].split
            )
            if traits(op).gives_shape and not before & self._after:
                continue  # of the whole batch, which needs none of the samples
            cut = self._reads_cut(op)
            if op.name in self._at_once or not (is_fed or cut or before & self._actions.keys() or before & self._after):
                self._note_whole(op)
                continue
            reason = self._take(op, is_fed, cut)
            if reason is not None and cut:  # what is whole stays so here
                if not before & (self._actions.keys() | self._after):
                    self._note_whole(op)
                    continue
                reason = self._take(op, is_fed, False)
            if reason is None:
                continue
            if op.name not in self._forward:
                self._after.add(op.name)
            elif self._compute_at_once(op):
                self._first = self._first or (op, reason)
                return False
            else:
                raise self._refused(op, reason)
        return True

    def _note_whole(self, op: Operator) -> None:
        """Notes an operator that runs once for the whole batch, if it gives all samples what no gradient flows into."""
        begins = op.name in self._at_once or self._rules[op.name].replicated_flops or self._reads_cut(op)
        is_of_samples = all(spec.shape[:1] == (self._batch,) for spec in op.outputs)
        if self._cuts and begins and op.outputs and is_of_samples and op.name not in self._learned:
            self._whole.add(op.name)

    def _reads_cut(self, op: Operator) -> bool:
        """Tells whether an operator reads what is computed whole and may be cut."""
        return any(tensor.op in self._whole for tensor in op.inputs)

    def _take(self, op: Operator, is_fed: bool, cut: bool) -> str | None:
        """Notes how an operator runs for each micro-batch; returns the reason where it cannot.

        Args:
            op: the operator.
            is_fed: whether it is a part of the batch.
            cut: whether it takes pieces of what is computed whole.
        """
        own, rule = traits(op), self._rules[op.name]
        waits = [name for name in (*(tensor.op for tensor in op.inputs), *op.control_inputs) if name in self._after]
        if waits:
            return f"it waits for '{waits[0]}', which is computed from the whole batch"
        if own.has_effect and not own.alias:
            return "it has an effect, which would come once for each micro-batch"
        if not op.inputs and not op.outputs:  # others wait for it, and it for others
            self._note(op, None, [])
            return None
        given = {place: self._layouts[tensor] for place, tensor in enumerate(op.inputs) if tensor.op in self._actions}
        if cut:
            for place, tensor in enumerate(op.inputs):
                if tensor.op in self._whole:
                    rank = self._graph.spec(tensor).rank
                    given[place] = Layout(((_AXIS,), *[()] * (rank - 1)))
        partial = [place for place, layout in given.items() if layout.partial]
        split = {place: layout for place, layout in given.items() if any(layout.dims)}
        if partial:
            is_sum = set(partial) <= set(_together(self._graph, op)) or (own.multilinear and len(partial) == 1)
            is_sum &= own.passes_gradient or all(spec.is_differentiable for spec in op.outputs)  # integers are rounded
            if not is_sum or split:
                summed = self._summing(op.inputs[partial[0]])
                if traits(summed).is_lookup:
                    return f"it reads what {summed} looks up in the whole batch, of which a micro-batch has a part"
                return (
                    f"it needs the whole sum over the batch of {summed}, of which a micro-batch has a part (as batch "
                    "normalization does, and the root of a mean)"
                )
            self._note(op, None, [Layout(((),) * spec.rank, (_AXIS,)) for spec in op.outputs])
            return None
        if own.is_sink and split:
            self._note(op, None, [*split.values()])
            return None
        names = {
            rule.inputs[place][dim][:1]
            for place, layout in split.items()
            for dim, axes in enumerate(layout.dims)
            if axes
        }
        names |= {("d0",)} if is_fed else set()
        axis = next(iter(names))[0] if len(names) == 1 and () not in names else None
        if axis is None or axis not in rule.split or axis in rule.communicates_over or not rule.fits(axis, self._times):
            if axis is not None and axis in rule.internal:
                return f"it computes over all samples of the batch together (axis '{axis}' of {rule.size(axis)})"
            return f"it cannot be computed from a part of the batch's samples{_opaque_part(op)}"
        chosen = Configuration((axis,))
        if any(chosen.input_layouts(rule, place).value != layout for place, layout in given.items()):
            return "it reads the batch's samples in two ways at once"
        self._note(op, axis, [chosen.output_layouts(rule, index).value for index in range(len(op.outputs))])
        return None

    def _summing(self, tensor: TensorId) -> Operator:
        """The operator that sums over the batch what is a part of the sum here."""
        while True:
            op = self._graph[tensor.op]
            before = [given for given in op.inputs if given in self._layouts and self._layouts[given].partial]
            if not before:
                return op
            tensor = before[0]

    def _note(self, op: Operator, action: str | None, layouts: Iterable[Layout]) -> None:
        self._actions[op.name] = action
        self._layouts.update((TensorId(op.name, index), layout) for index, layout in enumerate(layouts))

    def _compute_at_once(self, op: Operator) -> bool:
        """Has inputs to which no gradient flows computed for the whole batch; False if that is no help."""
        edges = [Edge(tensor, op.name, place) for place, tensor in enumerate(op.inputs)]
        names = [edge.tensor.op for edge in edges if edge not in self._graph.differentiable]
        # A shape of the whole batch needs none of the samples.
        shapes = (each.name for each in self._graph.operators if traits(each).gives_shape)
        given = {TensorId(name) for name in shapes if name not in self._after}
        needed = {other.name for other in self._graph.needed_for([*names, *op.control_inputs], given)}
        added = needed & self._actions.keys()
        if not added or added & self._learned:
            return False
        self._at_once |= added
        return True

    def _pass_on(self) -> None:
        """Fan-outs that only micro-batches read pass on in each what came before: gradients are summed there first."""
        for op in reversed(self._graph.operators):
            edges = self._graph.consumers(TensorId(op.name))
            if not traits(op).is_fanout or op.name in self._actions or op.name in self._after or not edges:
                continue
            if all(edge.consumer in self._actions and self._reads_whole(edge) for edge in edges):
                self._note(op, None, [Layout.replicated(op.outputs[0].rank)])

    def _reads_whole(self, edge: Edge) -> bool:
        """Tells whether each micro-batch reads the whole of an edge's tensor, not as one addend of a sum."""
        action = self._actions[edge.consumer]
        if action is None:
            return (
                edge.position not in _together(self._graph, self._graph[edge.consumer])
                or traits(self._graph[edge.consumer]).is_fanout
            )
        return all(dim[:1] != (action,) for dim in self._rules[edge.consumer].inputs[edge.position])

    def _refused(self, op: Operator, reason: str) -> MicroBatchError:
        return MicroBatchError(
            f"{op}: the step cannot be split into {self._times} micro-batches, as {reason}. Leave out micro_batches; "
            "recompute=True saves memory, too."
        )


def _opaque_part(op: Operator) -> str:
    """What is open before a run in an operator that is several of TensorFlow's, to be appended to a reason."""
    if op.body is None:
        return ""
    nodes = [node for node in op.body.node if node.input] or list(op.body.node)
    return (
        f": it is {len(nodes)} operations, from {nodes[0].op} '{nodes[0].name}' on, as only a run knows a size, or how "
        "often a loop goes round"
    )


def _together(graph: Graph, op: Operator) -> tuple[int, ...]:
    """The inputs in which an operator is linear together: parts of sums on them give a part of a sum."""
    own = traits(op)
    moves = own.moves and all(spec.is_differentiable for spec in graph.input_specs(op))
    return tuple(range(len(op.inputs))) if own.passes_gradient or moves else own.linear


def _is_partial(layout: Layout | None) -> bool:
    return layout is not None and bool(layout.partial)


def _smaller(rule: OpRule, axis: str | None, times: int) -> OpRule:
    """The rule of an operator on one micro-batch."""
    if axis is None:
        return rule
    return dataclasses.replace(
        rule,
        sizes=tuple((name, size // times if name == axis else size) for name, size in rule.sizes),
        flops=rule.flops / times,
        backward_flops=rule.backward_flops / times,
    )
