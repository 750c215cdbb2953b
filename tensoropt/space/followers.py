"""Operators that do little take the configuration that suits what they are beside, so that few operators decide."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.problem.contraction import Contraction
from tensoropt.problem.determined import determined
from tensoropt.problem.problem import IntArray, same_memory
from tensoropt.problem.repeated_layers import repeated_layers
from tensoropt.problem.resolution import Resolution
from tensoropt.space.around_variables import around_variables, is_heavy
from tensoropt.space.choices import State
from tensoropt.space.repeated_cells import repeated_cells
from tensoropt.space.space import SearchSpace

__all__ = ["Following", "contracted", "follow", "without_choice"]

_DEEP = 1000
"""Operators that decide for themselves, from which layers in a row decide as one: some thirty-five layers of a
Transformer."""

Following = tuple[IntArray, tuple[IntArray | None, ...]]
"""Per operator the one that decides for it, ``(N,)``, and its configuration by that one's, ``(K,)``, or None for its
own."""


def follow(space: SearchSpace, *, small_bytes: float = 0.0) -> Following:
    """Returns the operator that each operator of a space follows, if any.

    What another operator's configuration leaves no choice of follows that one (`determined`).
    Products, convolutions and lookups decide for themselves, and so do variables, inputs, fan-outs that one of them
    reads, and whatever reads a possible partial sum, since it says how the sum is made whole. Any other operator
    follows the largest tensor that it reads (of equal ones the last made); a constant or a variable of less than
    ``small_bytes`` its reader; an operator that only a fan-out reads, the fan-out. What a step does with a variable
    once its gradient is there follows the variable: the update, what is computed point by point on the way to it, and
    other variables that take part, such as optimizers' slots. An operator that follows takes the configuration that
    costs least right beside the one that it follows: its own time and the edge's, of equal ones the least memory. For
    most that is the one without communication.

    Args:
        space: whose operators they are. Edges count with both copies kept.
        small_bytes: what is smaller than the memory that a search can tell apart.
    """
    return _Follower(space, small_bytes).result()


def without_choice(space: SearchSpace) -> Following:
    """What another operator's configuration leaves no choice of, and how it follows that one (`determined`)."""
    return determined(space.problem)


def contracted(space: SearchSpace) -> Contraction:
    """The problem of a space over the operators that decide, repeated cells as one, and layers of very deep models."""
    leaders, index = follow(space, small_bytes=Resolution.of(space.problem).memory_bytes / 2)
    contraction = Contraction(space.problem, space.kept(repeated_cells)[leaders], index)
    problem = contraction.problem
    if problem.nodes <= _DEEP:
        return contraction
    deciding = repeated_layers(problem)
    free = problem.nodes if problem.groups is None else len(np.unique(problem.groups))
    return contraction if len(np.unique(deciding)) == free else contraction.further(deciding)


def _is_fixed(op: Operator) -> bool:
    """Tells whether an operator is a fan-out, a variable or an input; only a fan-out may still follow its input."""
    own = traits(op)
    return own.is_fanout or own.is_variable or own.is_input


def _leads_to(i: int, target: int, ahead: Mapping[int, int]) -> bool:
    """Tells whether an operator follows another one, directly or through others."""
    while i in ahead:
        i = ahead[i]
        if i == target:
            return True
    return False


class _Follower:
    def __init__(self, space: SearchSpace, small_bytes: float) -> None:
        self._space, self._problem, self._small_bytes = space, space.problem, small_bytes
        self._place = {op.name: i for i, op in enumerate(space.operators)}
        self._edges: dict[tuple[int, int], int] = {}
        self._readers: list[list[int]] = [[] for _ in space.operators]
        for e, (u, v) in enumerate(self._problem.edges.tolist()):
            self._edges.setdefault((u, v), e)
            self._readers[u].append(v)
        self._heavy = [is_heavy(space, op) for op in space.operators]
        self._found: dict[tuple[object, ...], IntArray] = {}
        self._least: dict[tuple[object, ...], IntArray] = {}
        self._chained: dict[tuple[int, int], tuple[IntArray, IntArray, IntArray]] = {}

    def result(self) -> Following:
        # First what has no choice beside another operator: whoever follows somebody else would be impossible there.
        roots, exact = self._space.kept(without_choice)
        ahead = {i: root for i, root in enumerate(roots.tolist()) if root != i}
        beside = {self._place[name]: self._place[one.leader] for name, one in around_variables(self._space).items()}
        decides = {
            ahead[i] for i in ahead if i not in beside and (self._heavy[i] or _is_fixed(self._space.operators[i]))
        }
        for i, leader in beside.items():
            if i not in ahead and i not in decides and not _leads_to(leader, i, ahead):
                ahead[i] = leader
        for i, op in enumerate(self._space.operators):
            chosen = None if i in ahead or i in beside or i in decides else self._followed(i, op)
            if chosen is not None and not _leads_to(chosen, i, ahead):
                ahead[i] = chosen
        for i, op in enumerate(self._space.operators):
            readers = [reader for reader in self._readers[i] if not _leads_to(reader, i, ahead)]
            if i in ahead or i in decides or self._heavy[i] or len(readers) != 1:
                continue
            small = traits(op).is_variable and self._problem.node_memory_bytes[i].max() < self._small_bytes
            only_fanned = not _is_fixed(op) and traits(self._space.operators[readers[0]]).is_fanout
            if traits(op).is_constant or small or only_fanned:
                ahead[i] = readers[0]
        leaders = np.arange(len(self._space.operators))
        index: list[IntArray | None] = [None] * len(leaders)
        for i in range(len(leaders)):
            way = [i]
            while way[-1] in ahead:
                way.append(ahead[way[-1]])
            leaders[i] = way[-1]
            for follower, followed in reversed([*itertools.pairwise(way)]):
                step = exact[follower]
                index[follower] = self._chain(
                    self._beside(followed, follower) if step is None else step, index[followed]
                )
        return leaders, tuple(index)

    def _followed(self, i: int, op: Operator) -> int | None:
        """Returns the number of the operator that an operator reads and follows, or None."""
        operators = self._space.operators
        sources = [self._place[tensor.op] for tensor in op.inputs]
        if traits(op).is_fanout:
            deciding = any(self._heavy[reader] for reader in self._readers[i])
            return None if deciding or traits(operators[sources[0]]).is_variable else sources[0]
        if _is_fixed(op) or self._heavy[i]:
            return None
        sizes = {
            source: self._space.graph.spec(tensor).elements
            for tensor, source in zip(op.inputs, sources, strict=True)
            if not traits(operators[source]).is_source
        }
        largest = [source for source in sorted(sizes) if sizes[source] == max(sizes.values())]
        summed = any(self._heavy[source] and self._space.rules[operators[source].name].reduced for source in largest)
        return None if summed or not largest else largest[-1]

    def _beside(self, followed: int, follower: int) -> IntArray:
        """For each configuration of one operator, that of its neighbour which costs least beside it."""
        backward = (followed, follower) not in self._edges
        e = self._edges[(follower, followed) if backward else (followed, follower)]
        problem = self._problem
        edge = problem.edge_time_s[e], problem.edge_memory_bytes[e]
        node = problem.node_time_s[follower], problem.node_memory_bytes[follower]
        # By the objects first, as to look for their memory takes longer than all else here.
        let_go = tuple(self._let_go(each) for each in (followed, follower))
        place = (backward, *map(id, (*edge, *node)), *(each.tobytes() for each in let_go))
        if place not in self._found:
            self._found[place] = self._least_beside(e, follower, backward, *let_go)
        return self._found[place]

    def _let_go(self, i: int) -> NDArray[np.bool_]:
        """Per configuration, whether what the backward pass reads of an operator's outputs is not kept for it."""
        states = self._space.choices_of(self._space.operators[i].name).states
        return np.isin(states, [state for state in State if state.let_go])

    def _least_beside(
        self, e: int, follower: int, backward: bool, leads: NDArray[np.bool_], follows: NDArray[np.bool_]
    ) -> IntArray:
        tables = (*self._problem.edge_tables(e), *self._problem.node_tables(follower))
        states = leads.tobytes(), follows.tobytes()
        key = (backward, *states, *(part for table in tables for part in same_memory(table)))
        if key not in self._least:
            # Alternative 0 keeps both copies.
            edge_time, edge_memory, time, memory = (table[..., 0] for table in tables)
            if backward:
                edge_time, edge_memory = edge_time.T, edge_memory.T
            time, memory = edge_time + time, edge_memory + memory
            # What can be made again is, where what it follows is.
            unlike = (leads[:, None] != follows) & np.isfinite(np.where(leads[:, None] == follows, time, np.inf)).any(
                axis=1, keepdims=True
            )
            time = np.where(unlike, np.inf, time)
            # Both costs may be rounded by half a unit, of the least as well.
            longest = time.min(axis=1, keepdims=True) * (1.0 + 1e-12) + 2.0 * self._problem.time_unit_s
            memory = np.where(time <= longest, memory, np.inf)
            self._least[key] = memory.argmin(axis=1)
        return self._least[key]

    def _chain(self, step: IntArray, before: IntArray | None) -> IntArray:
        """``step`` after ``before``; one object for equal parts, so that tables by it are shared."""
        if before is None:
            return step
        key = (id(step), id(before))
        if key not in self._chained:
            self._chained[key] = step, before, step[before]
        return self._chained[key][2]
