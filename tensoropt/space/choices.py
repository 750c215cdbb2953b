"""The configurations of an operator with the layouts that follow, as arrays."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from tensoropt.graph.rule import Dims, OpRule
from tensoropt.layout import PARTIAL, REPLICATED, Coarsening, Mesh, is_placed
from tensoropt.plan.configuration import (
    DEFER,
    Configuration,
    actions_of,
    from_patterns,
    legal_patterns,
    to_patterns,
)

__all__ = ["Choices", "State", "States", "TensorStates"]

# (K, axes): per configuration what each mesh axis does to a tensor, see tensoropt.layout.ReshardTable.numbers.
States = NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False)
class TensorStates:
    """The layouts of a tensor and of its gradient, as :class:`tensoropt.plan.configuration.TensorLayouts`."""

    value: States
    gradient: States

    def key(self) -> tuple[object, ...]:
        """Equal for equal layouts."""
        return (self.value.shape, self.value.tobytes(), self.gradient.tobytes())

    def of(self, index: int) -> TensorStates:
        """Returns the states of one configuration."""
        return self.at(np.array([index]))

    def at(self, some: NDArray[np.intp]) -> TensorStates:
        """Returns the states of some configurations."""
        return TensorStates(self.value[some], self.gradient[some])


class State(IntEnum):
    """What becomes of an operator's outputs until the backward pass.

    KEPT: the backward pass has all that it reads of them.
    AGAIN: they are made again from the operator's inputs.
    UNREAD: of a fan-out: the backward pass reads nothing of it.
    PASSED: of a fan-out: what is made again is passed on once more.
    """

    KEPT = 0
    AGAIN = 1
    UNREAD = 2
    PASSED = 3

    @property
    def let_go(self) -> bool:
        """True if what the backward pass reads of the outputs is not kept for it."""
        return self in (State.AGAIN, State.PASSED)


class Choices:
    """All configurations of operators with one rule, once in each state.

    Attributes:
        rule: of the operators.
        mesh: the factor mesh.
        patterns: ``(K, axes)``, the actions as :func:`tensoropt.plan.configuration.legal_patterns` numbers them.
        states: ``(K,)``, the :class:`State` of each.
    """

    def __init__(
        self,
        rule: OpRule,
        mesh: Mesh,
        coarsening: Coarsening,
        allowed: Sequence[Configuration] | None = None,
        states: Sequence[State] = (State.KEPT,),
    ) -> None:
        """Lists the configurations.

        Args:
            rule: of the operators.
            mesh: the factor mesh.
            coarsening: the meshes that they may have.
            allowed: the only configurations, if these are fewer.
            states: in which each of them is there.
        """
        self.rule = rule
        self.mesh = mesh
        self._actions = actions_of(rule)
        if allowed is None:
            self.patterns: States = legal_patterns(rule, mesh, coarsening)
        else:
            self.patterns = to_patterns(rule, mesh, allowed)
        self.states = np.repeat(np.array(states, np.int8), len(self.patterns))
        self.patterns = np.tile(self.patterns, (len(states), 1))

    def __len__(self) -> int:
        return len(self.patterns)

    @functools.cached_property
    def configurations(self) -> tuple[Configuration, ...]:
        """The configurations, in the order of tables."""
        every = from_patterns(self.rule, self.patterns)
        again = (self.states == State.AGAIN).tolist()
        return tuple(replace(one, again=True) if is_again else one for one, is_again in zip(every, again, strict=True))

    @functools.cached_property
    def inputs(self) -> tuple[TensorStates, ...]:
        """For each input what the op wants, and the gradient that it gives."""
        every = frozenset(self._actions)
        return tuple(
            TensorStates(self._states(dims, frozenset()), self._states(dims, every)) for dims in self.rule.inputs
        )

    @functools.cached_property
    def outputs(self) -> tuple[TensorStates, ...]:
        """For each output what the op gives, and the gradient that it needs."""
        deferred = frozenset([DEFER])
        return tuple(
            TensorStates(self._states(dims, self.rule.reduced), self._states(dims, deferred))
            for dims in self.rule.outputs
        )

    def alike(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Groups configurations by which every device does the same work.

        That is: each iteration axis is cut into as many pieces, and those over which the op communicates itself by the
        same mesh axes, with the same ones idle.

        Returns:
            For each group one configuration; for each configuration its group.
        """
        extents = np.array(self.mesh.shape, dtype=np.int64)
        bits = 1 << np.arange(len(extents), dtype=np.int64)
        placed = (is_placed(self.patterns) * bits).sum(axis=1)
        columns = [np.zeros(len(self), np.int64)]
        for state, action in enumerate(self._actions):
            on = self.patterns == state
            columns.append(np.where(on, extents, 1).prod(axis=1, dtype=np.int64))
            if action in self.rule.communicates_over:
                columns += [(on * bits).sum(axis=1), np.where(on.any(axis=1), placed, 0)]
        _, first, group = np.unique(np.stack(columns, axis=1), axis=0, return_index=True, return_inverse=True)
        return first, group.reshape(-1)

    def _states(self, dims: Dims, summed: frozenset[str]) -> States:
        """A tensor's states: split where a dimension starts with the action's axis, else a summand or a copy."""
        of = {dim[0]: position for position, dim in enumerate(dims) if dim}
        number = [of.get(action, PARTIAL if action in summed else REPLICATED) for action in self._actions]
        states = np.array([*number, REPLICATED], dtype=np.int8)[np.maximum(self.patterns, 0)]
        return np.where(is_placed(self.patterns), self.patterns, states)  # its tensors are where the op is
