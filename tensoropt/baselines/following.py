"""Strategies that say how a few operators are split; all others go along with what they read."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from tensoropt.graph.operator import Operator
from tensoropt.graph.spec import TensorId
from tensoropt.plan.configuration import DEFER, Configuration, is_legal, place_of
from tensoropt.search.choices import Choices
from tensoropt.search.space import SearchSpace

__all__ = ["LOOKUPS", "Actions", "Decide", "Followed", "activations", "follow", "parameter_side", "placed", "weight_of"]

Actions = tuple[str | None, ...]
"""What each mesh axis does to an operator."""

Decide = Callable[[Operator, Actions], Sequence[Actions]]
"""Given an operator and what following its inputs would be, what to do instead, best first; the first legal counts."""

LOOKUPS = ("Gather", "GatherV2", "ResourceGather")
"""Types of operators that look rows of a table up."""

_INPUTS = ("Placeholder", "PlaceholderWithDefault")
_PRODUCTS = ("MatMul", "BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "Einsum")


@dataclass(frozen=True, slots=True)
class Followed:
    """A strategy by following.

    Attributes:
        configurations: of every operator.
        torn: parameters that several operators read and want split differently, in the order of operators.
    """

    configurations: dict[str, Configuration]
    torn: tuple[str, ...]


def follow(space: SearchSpace, decide: Decide, *, beyond: bool = False) -> Followed:
    """Makes a strategy of what a baseline decides.

    Operators are gone through in order. What is computed from samples splits, along each mesh axis, the dimension that
    its first split input is split by there, unless ``decide`` says otherwise. Then, backwards, what is computed from
    variables and constants alone is split as its first reader wants it. Fan-outs let gradients stay partial sums where
    their readers make them such, so that they are summed once. What is placed on a part of the devices has its
    parameters there.

    Args:
        space: the graph's search space.
        decide: also asked for inputs, of which following says nothing; not for parameters.
        beyond: whether configurations may be legal ones that the search space has not.
    """
    axes = space.mesh.axes
    still = parameter_side(space)
    actions: dict[str, Actions] = {}
    for op in space.operators:
        if op.name not in still:
            wanted = decide(op, _followed(space, op, actions))
            actions[op.name] = _first_legal(space, op, wanted, beyond)
    torn = []
    for op in reversed(space.operators):
        if op.name in still:
            asked = list(_asked(space, op, actions))
            actions[op.name] = _first_legal(space, op, asked[:1], beyond)
            if len({tuple(None if a == DEFER else a for a in one) for one in asked}) > 1:
                torn.append(op.name)
    for op in space.operators:
        if space.rules[op.name].defer_gradient:
            deferred = tuple(
                DEFER if action is None and _is_summed(space, op, axis, actions) else action
                for axis, action in zip(axes, actions[op.name], strict=True)
            )
            actions[op.name] = _first_legal(space, op, [deferred, actions[op.name]], beyond)
    chosen = {op.name: _available(space, op, actions[op.name], beyond) for op in space.operators}
    return Followed(chosen, tuple(reversed(torn)))


def parameter_side(space: SearchSpace) -> frozenset[str]:
    """The operators that depend on no sample: variables, constants, and what is computed from them."""
    result: set[str] = set()
    for op in space.operators:
        if op.type not in _INPUTS and all(tensor.op in result for tensor in op.inputs):
            result.add(op.name)
    return frozenset(result)


def weight_of(op: Operator, still: frozenset[str]) -> int | None:
    """The input of a product or a lookup that is a parameter, if the other one is computed from samples."""
    if op.type not in (*_PRODUCTS, *LOOKUPS) or len(op.inputs) < 2:
        return None
    found = [position for position, tensor in enumerate(op.inputs) if tensor.op in still]
    return found[0] if len(found) == 1 else None


def activations(op: Operator, still: frozenset[str]) -> bool:
    """Whether an operator multiplies two tensors that are computed from samples, as attention does."""
    return op.type in _PRODUCTS and len(op.inputs) > 1 and not any(tensor.op in still for tensor in op.inputs)


def placed(actions: Actions, axes: Iterable[int], action: str | None) -> Actions:
    """``actions`` with another one along some mesh axes."""
    chosen = set(axes)
    return tuple(action if axis in chosen else old for axis, old in enumerate(actions))


def _followed(space: SearchSpace, op: Operator, actions: dict[str, Actions]) -> Actions:
    """Per mesh axis the iteration axis by which an operator computes on the pieces that it is given."""
    rule = space.rules[op.name]
    result: list[str | None] = []
    for axis in space.mesh.axes:
        found = None
        for position, tensor in enumerate(op.inputs):
            made = actions.get(tensor.op)
            if found is None and made is not None and made[axis] is not None:
                dims = zip(space.rules[tensor.op].outputs[tensor.index], rule.inputs[position], strict=True)
                mine = [ours[0] for theirs, ours in dims if theirs and ours and theirs[0] == made[axis]]
                found = mine[0] if mine and mine[0] in rule.split else None
        result.append(found)
    return tuple(result)


def _asked(space: SearchSpace, op: Operator, actions: dict[str, Actions]) -> Iterator[Actions]:
    """How the readers of an operator's first output want it split, reader by reader."""
    rule = space.rules[op.name]
    for edge in space.graph.consumers(TensorId(op.name)):
        reader = actions.get(edge.consumer)
        if reader is None:
            continue
        dims = list(zip(rule.outputs[0], space.rules[edge.consumer].inputs[edge.position], strict=True))
        yield tuple(
            action
            if place_of(action) is not None
            else next((ours[0] for ours, theirs in dims if ours and theirs and theirs[0] == action), None)
            for action in reader
        )


def _is_summed(space: SearchSpace, op: Operator, axis: int, actions: dict[str, Actions]) -> bool:
    """Whether a reader of a fan-out, split along a mesh axis, gives a partial sum as gradient."""
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
    choices = frozenset() if beyond or op.type in _INPUTS else _members(space.choices_of(op.name))

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
    found = wanted in _members(choices) or (beyond and len(choices) > 1)
    return wanted if found else choices.configurations[-1]
