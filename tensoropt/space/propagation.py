"""Strategies that say how a few operators are split; all others go along with what they read."""

from __future__ import annotations

import functools
import heapq
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass

from tensoropt.graph.graph import Edge
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId
from tensoropt.plan.configuration import DEFER, Configuration, is_legal, place_of
from tensoropt.space.around_variables import Beside, around_variables
from tensoropt.space.choices import Choices
from tensoropt.space.space import SearchSpace

__all__ = [
    "Actions",
    "Decide",
    "Followed",
    "Follower",
    "activations",
    "follow",
    "parameter_side",
    "placed",
    "weight_of",
]

Actions = tuple[str | None, ...]
"""The action of each mesh axis on an operator."""

Decide = Callable[[Operator, Actions], Sequence[Actions]]
"""Given an operator and what following its inputs would be, what to do instead, best first; the first legal counts."""


@dataclass(frozen=True, slots=True)
class Followed:
    """A strategy by following.

    Attributes:
        configurations: of every operator.
        torn: parameters that several operators read and want split differently, in the order of operators.
        changed: operators whose configuration another strategy has not, from which this one was made; all of them, if
            it was made of nothing.
        wanted: what was decided of every operator that is computed from samples.
        actions: of every operator, before gradients of fan-outs are let be partial sums.
    """

    configurations: dict[str, Configuration]
    torn: tuple[str, ...]
    changed: tuple[str, ...]
    wanted: Mapping[str, Sequence[Actions]]
    actions: Mapping[str, Actions]


def follow(space: SearchSpace, decide: Decide, *, beyond: bool = False) -> Followed:
    """Makes a strategy of what a baseline decides; see :class:`Follower`.

    Args:
        space: the graph's search space.
        decide: also asked for inputs, of which following says nothing; not for parameters.
        beyond: whether configurations may be legal ones that the search space has not.
    """
    return Follower(space, beyond=beyond).follow(decide)


class Follower:
    """Makes strategies of what is decided of some operators.

    Operators are gone through in order. What is computed from samples splits, along each mesh axis, the dimension that
    its first split input is split by there, unless it is decided otherwise. Then, backwards, what is computed from
    variables and constants alone is split as its first reader wants it. Fan-outs let gradients stay partial sums where
    their readers make them such, so that they are summed once. What is placed on a part of the devices has its
    parameters there.

    What an operator does follows from its neighbours, so a strategy that differs in few decisions is made from the one
    before by going through what they change.

    Attributes:
        space: the graph's search space.
        still: the operators that depend on no sample.
    """

    def __init__(self, space: SearchSpace, *, beyond: bool = False) -> None:
        """Takes a space, and whether configurations may be legal ones that it has not."""
        self.space = space
        self.still = parameter_side(space)
        self._beyond = beyond
        self._place = {op.name: place for place, op in enumerate(space.operators)}
        reading = [[self._place[tensor.op] for tensor in op.inputs] for op in space.operators]
        self._sources = [tuple(dict.fromkeys(places)) for places in reading]
        readers: list[list[int]] = [[] for _ in space.operators]
        for place, sources in enumerate(self._sources):
            for source in sources:
                readers[source].append(place)
        self._readers = [tuple(places) for places in readers]
        self._is_still = [op.name in self.still for op in space.operators]
        self._defers = [space.rules[op.name].defer_gradient for op in space.operators]
        # What is after gradients goes along with the variables that it is for, and so do variables that it takes.
        self._late = space.graph.after_gradients()
        self._beside = _beside(space, self._late)

    def follow(self, decide: Decide, since: Followed | None = None, changed: Iterable[str] = ()) -> Followed:
        """Makes a strategy.

        Args:
            decide: also asked for inputs, of which following says nothing; not for parameters.
            since: a strategy that this made before, to change; None to begin with nothing.
            changed: the operators of which ``decide`` says something else than it did of ``since``, if what it is told
                of following is the same. It may also go by what it said of what an operator reads.
        """
        space, operators, beyond = self.space, self.space.operators, self._beyond
        actions: dict[str, Actions] = {} if since is None else dict(since.actions)
        wanted: dict[str, Sequence[Actions]] = {} if since is None else dict(since.wanted)
        configurations: dict[str, Configuration] = {} if since is None else dict(since.configurations)
        torn: set[str] = set() if since is None else {*since.torn}
        every = since is None
        places = range(len(operators)) if every else sorted(self._place[name] for name in changed)
        places = [place for place in places if operators[place].name not in self._beside]
        heap = [place for place in places if not self._is_still[place]]
        parameters = {place for place in places if self._is_still[place]}
        moved = {*places}
        queued = {*heap}
        while heap:
            place = heapq.heappop(heap)
            op = operators[place]
            asked = decide(op, _followed(space, op, actions, self.still))
            made = _first_legal(space, op, asked, beyond)
            if made == actions.get(op.name) and tuple(asked) == tuple(wanted.get(op.name, ())):
                continue
            actions[op.name], wanted[op.name] = made, asked
            moved.add(place)
            parameters.update(source for source in self._sources[place] if self._is_still[source])
            for reader in self._readers[place]:
                if reader not in queued and operators[reader].name not in self._beside:  # it comes later
                    queued.add(reader)
                    heapq.heappush(heap, reader)
        heap = sorted(-place for place in parameters)
        while heap:
            place = -heapq.heappop(heap)
            op = operators[place]
            wishes = list(_asked(space, op, actions, self._late))
            made = _first_legal(space, op, wishes[:1], beyond)
            if len({tuple(None if a == DEFER else a for a in one) for one in wishes}) > 1:
                torn.add(op.name)
            else:
                torn.discard(op.name)
            if made == actions.get(op.name):
                continue
            actions[op.name] = made
            moved.add(place)
            for source in self._sources[place]:
                if source not in parameters:  # what it reads depends on no sample either
                    parameters.add(source)
                    heapq.heappush(heap, -source)
        for name, one in self._beside.items():
            place = self._place[name]
            if every or self._place[one.leader] in moved:
                made = _first_legal(space, operators[place], [self._alongside(one, actions)], beyond)
                if made != actions.get(name):
                    actions[name] = made
                    moved.add(place)
        differ = []
        # What a fan-out defers goes by its readers.
        fanouts = {source for place in moved for source in self._sources[place] if self._defers[source]}
        for place in sorted(moved | fanouts):
            op = operators[place]
            final = actions[op.name]
            if self._defers[place]:
                deferred = tuple(
                    DEFER if action is None and _is_summed(space, op, axis, actions) else action
                    for axis, action in zip(space.mesh.axes, final, strict=True)
                )
                final = _first_legal(space, op, [deferred, final], beyond)
            configuration = _available(space, op, final, beyond)
            if configuration != configurations.get(op.name):
                configurations[op.name] = configuration
                differ.append(op.name)
        return Followed(
            configurations, tuple(sorted(torn, key=self._place.__getitem__)), tuple(differ), wanted, actions
        )

    def _alongside(self, one: Beside, actions: Mapping[str, Actions]) -> Actions:
        """Returns the actions with which an operator takes or gives a tensor in the layout of its leader."""
        rules, (tensor, consumer, position) = self.space.rules, one.edge
        made, taken = rules[tensor.op].outputs[tensor.index], rules[consumer].inputs[position]
        dims = list(zip(made, taken, strict=True) if one.reads else zip(taken, made, strict=True))
        return tuple(
            action
            if place_of(action) is not None
            else next((ours[0] for theirs, ours in dims if theirs and ours and theirs[0] == action), None)
            for action in actions[one.leader]
        )


def _beside(space: SearchSpace, late: Set[str]) -> dict[str, Beside]:
    """Returns leaders for operators around variables and for ``late`` ones, which follow their largest input."""
    found = around_variables(space)
    for op in space.operators:
        if op.name in late and op.inputs and op.name not in found:
            sizes = [space.graph.spec(tensor).elements for tensor in op.inputs]
            place = op.handles[0] if op.handles else sizes.index(max(sizes))
            found[op.name] = Beside(op.inputs[place].op, Edge(op.inputs[place], op.name, place), True)
    return found


def parameter_side(space: SearchSpace) -> frozenset[str]:
    """The operators that depend on no sample: variables, constants, and what is computed from them."""
    result: set[str] = set()
    for op in space.operators:
        if not traits(op).is_input and all(tensor.op in result for tensor in op.inputs):
            result.add(op.name)
    return frozenset(result)


def weight_of(op: Operator, still: frozenset[str]) -> int | None:
    """The input of a product or a lookup that is a parameter, if the other one is computed from samples."""
    if not (traits(op).is_product or traits(op).is_lookup) or len(op.inputs) < 2:
        return None
    found = [position for position, tensor in enumerate(op.inputs) if tensor.op in still]
    return found[0] if len(found) == 1 else None


def activations(op: Operator, still: frozenset[str]) -> bool:
    """Tells whether an operator multiplies two tensors that are computed from samples, as attention does."""
    return traits(op).is_product and len(op.inputs) > 1 and not any(tensor.op in still for tensor in op.inputs)


def placed(actions: Actions, axes: Iterable[int], action: str | None) -> Actions:
    """``actions`` with another one along some mesh axes."""
    chosen = set(axes)
    return tuple(action if axis in chosen else old for axis, old in enumerate(actions))


def _followed(space: SearchSpace, op: Operator, actions: Mapping[str, Actions], still: frozenset[str]) -> Actions:
    """Per mesh axis the iteration axis by which an operator computes on the pieces that it is given."""
    rule = space.rules[op.name]
    result: list[str | None] = []
    for axis in space.mesh.axes:
        found = None
        for position, tensor in enumerate(op.inputs):
            made = None if tensor.op in still else actions.get(tensor.op)
            if found is None and made is not None and made[axis] is not None:
                dims = zip(space.rules[tensor.op].outputs[tensor.index], rule.inputs[position], strict=True)
                mine = [ours[0] for theirs, ours in dims if theirs and ours and theirs[0] == made[axis]]
                found = mine[0] if mine and mine[0] in rule.split else None
        result.append(found)
    return tuple(result)


def _asked(space: SearchSpace, op: Operator, actions: Mapping[str, Actions], late: Set[str]) -> Iterator[Actions]:
    """Yields the split that each reader of an operator's first output wants, without ``late`` readers."""
    rule = space.rules[op.name]
    for edge in space.graph.consumers(TensorId(op.name)):
        reader = actions.get(edge.consumer)
        if reader is None or edge.consumer in late:
            continue
        dims = list(zip(rule.outputs[0], space.rules[edge.consumer].inputs[edge.position], strict=True))
        yield tuple(
            action
            if place_of(action) is not None
            else next((ours[0] for ours, theirs in dims if ours and theirs and theirs[0] == action), None)
            for action in reader
        )


def _is_summed(space: SearchSpace, op: Operator, axis: int, actions: Mapping[str, Actions]) -> bool:
    """Tells whether a reader of a fan-out, split along a mesh axis, gives its gradient as a partial sum."""
    for edge in space.graph.consumers(TensorId(op.name)):
        action = actions[edge.consumer][axis] if edge.consumer in actions else None
        if action is not None and place_of(action) is None and edge in space.graph.differentiable:
            read = {name for dim in space.rules[edge.consumer].inputs[edge.position] for name in dim}
            if action not in read:
                return True
    return False


@functools.lru_cache(maxsize=1024)
def _members(choices: Choices) -> frozenset[Configuration]:
    return frozenset(choices.configurations)


def _first_legal(space: SearchSpace, op: Operator, wanted: Sequence[Actions], beyond: bool) -> Actions:
    """The first that sizes allow, and otherwise the most of the first one that they do."""
    rule, mesh = space.rules[op.name], space.mesh
    # An input that is fed has one configuration only, but what reads it is told what it should have been.
    choices = frozenset() if beyond or traits(op).is_input else _members(space.choices_of(op.name))

    def fits(actions: Actions) -> bool:
        configuration = Configuration(actions)
        return configuration in choices if choices else is_legal(configuration, rule, mesh)

    legal = next((actions for actions in wanted if fits(actions)), None)
    if legal is not None:
        return legal
    candidates = []
    for first in wanted[:1]:
        for name in sorted({action for action in first if action is not None}):
            where = [axis for axis, action in enumerate(first) if action == name]
            # The inner axes, where links are fast, keep the split the longest.
            candidates += [placed(first, where[:count], None) for count in range(1, len(where) + 1)]
    return next((actions for actions in candidates if fits(actions)), (None,) * len(mesh.axes))


def _available(space: SearchSpace, op: Operator, actions: Actions, beyond: bool) -> Configuration:
    """The configuration, or the one in which an input is fed."""
    wanted, choices = Configuration(actions), space.choices_of(op.name)
    # One that cannot be split has one configuration too, but a place.
    found = wanted in _members(choices) or (beyond and (len(choices) > 1 or not traits(op).is_input))
    return wanted if found else choices.configurations[-1]
