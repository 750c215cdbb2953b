"""Costs of edges: moving a tensor to its reader and its gradient back, and keeping copies of the tensor."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from tensoropt.cost import CostModel, piece_bytes
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Resharder, ReshardTable, is_placed
from tensoropt.plan.in_time import InTime
from tensoropt.plan.plan import ALTERNATIVES, KEEPS, EdgePlan, row_edges
from tensoropt.plan.tensor_reuse import why_not_back_each
from tensoropt.space.choices import Choices, State, TensorStates
from tensoropt.space.keeping import Keeping
from tensoropt.space.sparse_gradient_seconds import rows_seconds

__all__ = ["AFTER", "BEFORE", "BEFORE_BACK_EACH", "BOTH", "BOTH_BACK_EACH", "EdgeCosts", "FloatArray", "Tables"]

FloatArray = NDArray[np.float64]
Tables = tuple[FloatArray, FloatArray]  # time_s, memory_bytes

# Alternatives of an edge, as in `ALTERNATIVES`.
BOTH, BEFORE, AFTER, BOTH_BACK_EACH, BEFORE_BACK_EACH = range(len(ALTERNATIVES))
_BEFORE = [pick for pick, (keep, _) in enumerate(ALTERNATIVES) if keep == "before"]
_BACK_EACH = [pick for pick, (_, back_each) in enumerate(ALTERNATIVES) if back_each]


class EdgeCosts:
    """Tables of a graph's edges, and single entries of them without the tables."""

    def __init__(
        self,
        graph: Graph,
        rules: Mapping[str, OpRule],
        cost: CostModel,
        resharder: Resharder,
        choices_of: Callable[[str], Choices],
        forward_seconds: Callable[[Operator], FloatArray],
        *,
        reuse: bool,
        steps: InTime | None = None,
    ) -> None:
        """Takes what a search space is made of.

        Args:
            graph: the logical graph.
            rules: of its operators.
            cost: the cost model.
            resharder: of its mesh.
            choices_of: the configurations of an operator.
            forward_seconds: an operator's time in each of them, forward.
            reuse: whether edges have alternatives.
            steps: how a step is split in time, whose graph and rules these are; None if it is not.
        """
        self._graph = graph
        self._rules = rules
        self._cost = cost
        self._resharder = resharder
        self._choices_of = choices_of
        self._forward_seconds = forward_seconds
        self._reuse = reuse
        self._steps = steps
        self._keeping = Keeping(graph, rules)
        self._row_edges = row_edges(graph, rules)
        self._tables: dict[tuple[Edge, bool], ReshardTable] = {}
        self._alike_tables: dict[tuple[object, ...], ReshardTable] = {}
        self._edges: dict[Edge, Tables] = {}
        self._alike: dict[tuple[object, ...], Tables] = {}
        self._pairs: dict[tuple[Edge, int, int], Tables] = {}

    def given(self, edge: Edge) -> TensorStates:
        """Returns the layouts in which the producer of an edge gives the tensor, one for each of its configurations."""
        given = self._choices_of(edge.tensor.op).outputs[edge.tensor.index]
        # The gradient of a tensor is where gradients of it arrive: whole, where the tensor is a partial sum.
        return TensorStates(given.gradient, given.gradient) if traits(self._graph[edge.consumer]).is_gradient else given

    def wanted(self, edge: Edge) -> TensorStates:
        """Returns the layouts in which the consumer of an edge takes the tensor, one for each of its configurations."""
        return self._choices_of(edge.consumer).inputs[edge.position]

    def reshard_table(self, edge: Edge, *, widened: bool = False) -> ReshardTable:
        """Times and paths between the layouts that an edge may have.

        Args:
            edge: one of the graph's.
            widened: of its gradient where that goes back in each micro-batch, so that all is a part of a sum.
        """
        widened = widened and self._spec(edge).widened != self._spec(edge)
        if (edge, widened) not in self._tables:
            spec = self._spec(edge).widened if widened else self._spec(edge)
            given, wanted = self.given(edge), self.wanted(edge)
            alike = spec, given.key(), wanted.key()
            if alike not in self._alike_tables:
                states = np.concatenate([given.value, given.gradient, wanted.value, wanted.gradient])
                # Bytes that cannot be counted (opaque dtypes) still have to be moved somehow; one per element.
                self._alike_tables[alike] = self._resharder.table(
                    spec.shape, max(1, spec.itemsize), states, max(1, spec.sum_itemsize)
                )
            self._tables[edge, widened] = self._alike_tables[alike]
        return self._tables[edge, widened]

    def row_elements(self, edge: Edge) -> int | None:
        """Returns the number of elements of an edge's gradient if it comes back as rows; else None."""
        backward = edge in self._graph.differentiable
        return self._row_elements(edge) if backward and edge in self._row_edges else None

    def tables(self, edge: Edge) -> Tables:
        """Seconds and bytes of an edge for each pair of configurations of its ends; equal edges share theirs."""
        if edge not in self._edges:
            self._edges[edge] = self._shared_tables(edge)
        return self._edges[edge]

    def _shared_tables(self, edge: Edge) -> Tables:
        spec = self._spec(edge)
        given, wanted = self.given(edge), self.wanted(edge)
        held = self._keeping.copies(edge)
        keeps, repeated, border = self._keeps(edge), *self._in_time(edge)
        states = self._choices_of(edge.tensor.op).states, self._choices_of(edge.consumer).states
        if any(each.any() for each in states):
            more = self._keeping.reads(edge), self._keeping.copies(edge, more=True), self._reuse
            place = (*(each.tobytes() for each in states), *more, self._keeps(edge, more=True))
            held_by_states: tuple[object, ...] = (*place, traits(self._graph[edge.consumer]).is_fanout)
        else:
            held_by_states = ()
        backward, rows, pinned = self._manner(edge)
        # What the consumer computes again, if it does, is priced as its own.
        again = self._repeated(edge) if "before" in keeps or held_by_states else None
        moved = spec, given.key(), wanted.key(), held, keeps, backward, rows, pinned
        key = (*moved, again, held_by_states, repeated, border, self._may_go_back_each(edge))
        if key not in self._alike:
            self._alike[key] = self._by_states(edge, np.arange(len(states[0])), np.arange(len(states[1])))
        return self._alike[key]

    def _by_states(self, edge: Edge, given: NDArray[np.intp], wanted: NDArray[np.intp]) -> Tables:
        """Seconds and bytes of an edge between some configurations of its ends, whatever states these are in.

        Args:
            edge: one of the graph's.
            given: configurations of the producer, by number.
            wanted: configurations of the consumer.
        """
        sources, targets = (
            self._choices_of(edge.tensor.op).states[given],
            self._choices_of(edge.consumer).states[wanted],
        )
        layouts = self.given(edge), self.wanted(edge)
        if not sources.any() and not targets.any():
            return self._edge_tables(edge, layouts[0].at(given), layouts[1].at(wanted), wanted)
        parts: list[tuple[NDArray[np.bool_], NDArray[np.bool_], Tables]] = []
        for source, target in itertools.product(np.unique(sources).tolist(), np.unique(targets).tolist()):
            rows, columns = sources == source, targets == target
            some = layouts[0].at(given[rows]), layouts[1].at(wanted[columns])
            tables = self._edge_tables(edge, *some, wanted[columns], (State(source), State(target)))
            parts.append((rows, columns, tables))
        kinds = max(tables[0][0, 0].size for _, _, tables in parts)
        shape = (len(given), len(wanted), kinds)
        time, memory = np.full(shape, np.inf), np.full(shape, np.inf)
        for rows, columns, found in parts:
            for whole, part in zip((time, memory), found, strict=True):
                part = part.reshape(*part.shape[:2], -1)
                whole[np.ix_(rows, columns, np.arange(part.shape[2]))] = part
        return (time, memory) if kinds > 1 else (time[..., 0], memory[..., 0])

    def pair(self, edge: Edge, given: int, wanted: int) -> Tables:
        """The entries of an edge's tables for one pair of configurations; of one alternative, or of all."""
        key = (edge, given, wanted)
        if key not in self._pairs:
            time, memory = self._by_states(edge, np.array([given]), np.array([wanted]))
            self._pairs[key] = time[0, 0], memory[0, 0]
        return self._pairs[key]

    def _edge_tables(
        self,
        edge: Edge,
        given: TensorStates,
        wanted: TensorStates,
        consumer: NDArray[np.intp],
        states: tuple[State, State] = (State.KEPT, State.KEPT),
    ) -> Tables:
        """Seconds and bytes of an edge between some configurations of its ends.

        Args:
            edge: one of the graph's.
            given: what the producer gives in some of its configurations.
            wanted: what the consumer wants in some of its own.
            consumer: which ones these are.
            states: of both ends.
        """
        spec, table = self._spec(edge), self.reshard_table(edge)
        producer, reader = states
        more = self._more(edge, reader)
        held = self._keeping.copies(edge, more=more)
        keeps = KEEPS[:1] if producer.let_go else self._keeps(edge, more=more)
        repeated, border = self._in_time(edge)
        backward, rows, pinned = self._manner(edge)
        moves = table.between(given.value, wanted.value)
        time = moves.copy()
        same = moves == 0.0
        if pinned:
            time[~same] = np.inf
        if backward and rows is not None:
            time += rows_seconds(self._cost, spec, rows, wanted.gradient, given.gradient).T
        elif backward:
            time += table.between(wanted.gradient, given.gradient).T
        before = np.broadcast_to(piece_bytes(spec, given.value, self._cost.mesh)[:, None], time.shape)
        after = np.broadcast_to(piece_bytes(spec, wanted.value, self._cost.mesh)[None, :], time.shape)
        memory = np.where(same, held.unmoved * before, held.before * before + held.after * after)
        late, early, sooner = np.zeros(1), np.zeros(1), np.full(1, np.inf)
        if border:  # what is moved stays for all micro-batches
            memory = memory + np.where(same, 0.0, (1 - held.after) * after)
        if border and backward:
            # So does the sum of the gradients that its readers give, which each micro-batch reads and writes. Where no
            # move follows, it is the gradient, which is counted elsewhere but for what it is wider.
            moved = (given.gradient[:, None, :] != wanted.gradient[None, :, :]).any(axis=-1)
            size, own = (piece_bytes(spec.widened, ends.gradient, self._cost.mesh) for ends in (wanted, given))
            early = (own - np.minimum(own, piece_bytes(spec, given.gradient, self._cost.mesh)))[:, None]
            late = np.where(moved, size[None, :], early)
            if self._may_go_back_each(edge):
                each = self.reshard_table(edge, widened=True).between(wanted.gradient, given.gradient).T
                sooner = self._times * each + self._adding_seconds(own)[:, None]
                sooner = sooner - table.between(wanted.gradient, given.gradient).T - self._adding_seconds(size)
                sooner = np.where(moved, sooner, np.inf)
            time = time + self._adding_seconds(size)
        apart = _apart(given, wanted)
        if producer.let_go:
            memory = np.zeros_like(memory)
            if self.reads_in(edge, reader):
                again = moves
                if reader is State.KEPT and self._repeated(edge) is not None:
                    again = again + self._forward_seconds(self._graph[edge.consumer])[consumer]
                # Another place keeps what has come, and so does what runs once after micro-batches.
                stays = apart | (self._steps is not None and self._steps.is_exit(edge))
                time, memory = time + np.where(stays, 0.0, again), np.where(stays, held.after * after, memory)
        time = repeated * time if repeated > 1 else time
        if rows is not None or not spec.is_movable:
            # Rows come back within a place; what has no known bytes can be dropped, but not sent.
            sent = is_placed(given.value).any(axis=-1, keepdims=True) | backward
            time[apart & sent] = np.inf
        if not self._go_together(edge, producer, reader):
            time, memory = np.full_like(time, np.inf), np.full_like(memory, np.inf)
        holding, memory = memory, memory + late
        if len(keeps) > 1 or np.isfinite(sooner).any():
            kinds = len(ALTERNATIVES if self._may_go_back_each(edge) else KEEPS)
            extra = np.full((*time.shape, kinds), np.inf)
            bytes_kept = np.full((*time.shape, kinds), np.inf)
            extra[..., BOTH], bytes_kept[..., BOTH] = 0.0, memory
            if "before" in keeps:
                repeat: float | FloatArray = 0.0
                if reader is not State.AGAIN and self._repeated(edge) is not None and held.after:
                    repeat = self._forward_seconds(self._graph[edge.consumer])[consumer]
                again = repeated * (moves + repeat)
                if border:
                    again = self._times * ((1 + held.after) * moves + repeat) - moves
                extra[..., BEFORE] = np.where(same, np.inf, again)
                bytes_kept[..., BEFORE] = held.alone * before + late
            if "after" in keeps:
                extra[..., AFTER] = np.where(same, np.inf, repeated * table.back(given.value, wanted.value))
                bytes_kept[..., AFTER] = after
            if kinds > len(KEEPS):
                extra[..., BOTH_BACK_EACH] = sooner
                bytes_kept[..., BOTH_BACK_EACH] = holding + early
                extra[..., BEFORE_BACK_EACH] = extra[..., BEFORE] + sooner
                bytes_kept[..., BEFORE_BACK_EACH] = bytes_kept[..., BEFORE] + (early - late)
            extra[apart, 1:] = np.inf  # nothing is made again for another place
            extra = _worthwhile(extra, bytes_kept)
            if border:  # whoever asks for no alternative gets the first
                extra[..., BOTH] = 0.0
            if np.isfinite(extra[..., 1:]).any():
                time = time[..., None] + extra
                memory = np.where(np.isfinite(time), bytes_kept, np.inf)
        return time, memory

    def _more(self, edge: Edge, reader: State) -> bool:
        """Tells whether a reader that is made again reads an edge's tensor, if its consumer is in a state."""
        more = reader is State.AGAIN or (traits(self._graph[edge.consumer]).is_fanout and reader is not State.UNREAD)
        # Where nothing has another state, a fan-out is kept as the backward pass reads it.
        return more and self._has_states(edge.consumer)

    def reads_in(self, edge: Edge, reader: State) -> bool:
        """Tells whether the backward pass reads what arrives on an edge, if its consumer is in a state."""
        if traits(self._graph[edge.consumer]).is_fanout:
            return reader is State.PASSED or (reader is State.KEPT and self._keeping.reads(edge))
        return reader is State.AGAIN or self._keeping.reads(edge)

    def _go_together(self, edge: Edge, producer: State, reader: State) -> bool:
        """Tells whether an edge may lead from a state to another: a fan-out passes on what there is."""
        if traits(self._graph[edge.consumer]).is_fanout and reader is not State.UNREAD:
            return producer is not State.UNREAD and producer.let_go == (reader is State.PASSED)
        return producer is not State.UNREAD or not self.reads_in(edge, reader)

    def _has_states(self, name: str) -> bool:
        return bool(self._choices_of(name).states.any())

    def _manner(self, edge: Edge) -> tuple[bool, int | None, bool]:
        """Returns whether a gradient comes back, the number of elements of its rows, and whether the tensor is pinned.

        The number of elements is None unless the gradient is given as rows; a pinned tensor must arrive in its stored
        layout.
        """
        pinned = edge.position in self._rules[edge.consumer].pinned
        return edge in self._graph.differentiable, self.row_elements(edge), pinned

    def _spec(self, edge: Edge) -> TensorSpec:
        """What an edge moves."""
        return self._graph.spec(edge.tensor) if self._steps is None else self._steps.spec(edge)

    @property
    def _times(self) -> int:
        return 1 if self._steps is None else self._steps.times

    def _keeps(self, edge: Edge, *, more: bool = False) -> tuple[str, ...]:
        """The copies that an edge may keep; ``more`` tells whether a reader that is made again reads it."""
        return self._keeping.choices(edge, more=more, steps=self._steps) if self._reuse else KEEPS[:1]

    def _may_go_back_each(self, edge: Edge) -> bool:
        """Tells whether the gradient of an edge may go back in each micro-batch."""
        return self._reuse and why_not_back_each(self._graph, edge, self._row_edges, self._steps) is None

    def _in_time(self, edge: Edge) -> tuple[int, bool]:
        """Returns how often a step moves an edge's tensor, and whether it goes into micro-batches from before."""
        if self._steps is None:
            return 1, False
        inside = self._steps.is_each(edge.tensor.op) and self._steps.is_each(edge.consumer)
        return (self._times if inside else 1), self._steps.is_border(edge)

    def _adding_seconds(self, sizes: FloatArray) -> FloatArray:
        """The times in which all micro-batches add so many bytes of gradients up: each reads two sums, writes one."""
        return np.array([self._times * self._cost.traffic_seconds(3.0 * float(size)) for size in sizes])

    def moves_per_step(self, edge: Edge, entry: EdgePlan) -> tuple[int, int]:
        """Returns how often a step moves an edge's tensor, forward and once more, and its gradient."""
        repeated, border = self._in_time(edge)
        each = entry.keep == "before", entry.back_each
        forward, backward = (self._times if border and one else repeated for one in each)
        return forward, backward

    def adding_seconds(self, edge: Edge, entry: EdgePlan, given: int, wanted: int) -> float:
        """The time in which gradients of an edge that leads into micro-batches are added up."""
        if not self._in_time(edge)[1] or edge not in self._graph.differentiable:
            return 0.0
        ends = self.given(edge).of(given) if entry.back_each else self.wanted(edge).of(wanted)
        return float(self._adding_seconds(piece_bytes(self._spec(edge).widened, ends.gradient, self._cost.mesh))[0])

    def repeats(self, edge: Edge) -> bool:
        """Tells whether the consumer of an edge recomputes its output where only the copy before the move is kept."""
        return self._repeated(edge) is not None

    def _repeated(self, edge: Edge) -> tuple[object, ...] | None:
        """Returns a key for consumers that recompute their output because their gradient reads it; None for others."""
        op, rule = self._graph[edge.consumer], self._rules[edge.consumer]
        return (
            (op.type, rule, op.outputs, self._cost.kind(op))
            if rule.saved_outputs and not traits(op).is_fanout
            else None
        )

    def communication(
        self, edge: Edge, given: NDArray[np.int64], wanted: NDArray[np.int64], picks: NDArray[np.int64]
    ) -> FloatArray:
        """Seconds of an edge's collectives for some pairs of configurations."""
        source, target = self.given(edge), self.wanted(edge)
        stays = all(
            np.array_equal(one[given], other[wanted])
            for one, other in ((source.value, target.value), (source.gradient, target.gradient))
        )
        if stays and self.row_elements(edge) is None:
            return np.zeros(len(picks))
        table = self.reshard_table(edge)
        forward = table.communication(source.value[given], target.value[wanted])
        seconds = np.where(self.moved_again(edge, given, wanted, picks), 2, 1) * forward
        if np.any(picks == AFTER):
            back = table.communication(source.value[given], target.value[wanted], back=True)
            seconds += np.where(picks == AFTER, back, 0.0)
        repeated, border = self._in_time(edge)
        if border:
            seconds = np.where(np.isin(picks, _BEFORE), self._times, 1) * seconds
        if edge not in self._graph.differentiable:
            return repeated * seconds
        elements = self.row_elements(edge)
        if elements is not None:
            spec = self._spec(edge)
            made, need = target.gradient[wanted], source.gradient[given]
            seconds = seconds + np.diagonal(rows_seconds(self._cost, spec, elements, made, need))
        else:
            ends = target.gradient[wanted], source.gradient[given]
            each = self._times * self.reshard_table(edge, widened=True).communication(*ends) if border else 0.0
            seconds = seconds + np.where(np.isin(picks, _BACK_EACH), each, table.communication(*ends))
        return repeated * seconds

    def moved_again(
        self, edge: Edge, given: NDArray[np.int64], wanted: NDArray[np.int64], picks: NDArray[np.int64]
    ) -> NDArray[np.bool_]:
        """Tells whether the backward pass moves a tensor once more, for some pairs of configurations."""
        sources, targets = (
            self._choices_of(edge.tensor.op).states[given],
            self._choices_of(edge.consumer).states[wanted],
        )
        again = np.zeros(len(picks), bool)
        for state in map(State, np.unique(targets).tolist()):
            let_go = np.array([State(source).let_go for source in sources.tolist()], bool) & self.reads_in(edge, state)
            reads = self._keeping.copies(edge, more=self._more(edge, state)).after
            again |= (targets == state) & (let_go | (np.isin(picks, _BEFORE) & bool(reads)))
        return again

    def _row_elements(self, edge: Edge) -> int:
        """Returns the number of elements of the rows of all lookups behind an edge."""
        op = self._graph[edge.consumer]
        if not traits(op).hands_rows_on:
            return op.outputs[0].elements
        readers = self._graph.consumers(TensorId(op.name))
        return sum(self._row_elements(reader) for reader in readers if reader in self._graph.differentiable)


def _apart(given: TensorStates, wanted: TensorStates) -> NDArray[np.bool_]:
    """For each pair of layouts whether they are at different places."""
    here, there = (np.where(is_placed(each.value), each.value, 0) for each in (given, wanted))
    if not here.any() and not there.any():
        return np.zeros((len(here), len(there)), np.bool_)
    return np.asarray((here[:, None, :] != there[None, :, :]).any(axis=-1))


def _worthwhile(seconds: FloatArray, size_bytes: FloatArray) -> FloatArray:
    """``seconds`` ``(..., P)``, +inf for alternatives that an earlier or a better one makes needless."""
    result = seconds.copy()
    for one in range(seconds.shape[-1]):
        for other in range(seconds.shape[-1]):
            faster, smaller = seconds[..., other] <= seconds[..., one], size_bytes[..., other] <= size_bytes[..., one]
            equal = (seconds[..., other] == seconds[..., one]) & (size_bytes[..., other] == size_bytes[..., one])
            if one != other:
                result[..., one][faster & smaller & ~(equal & (one < other))] = np.inf
    return result
