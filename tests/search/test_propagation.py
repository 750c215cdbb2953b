"""Strategies by following: what changes in few decisions is what all of them give anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest

from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.plan.configuration import place_of
from tensoropt.space.propagation import Actions, Decide, Followed, Follower
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import convolutions, deep, embedding, mlp, tied, two_lookups

pytestmark = pytest.mark.pure


def _deciding(decisions: Mapping[str, Actions], since: Followed | None) -> Decide:
    """What is decided, and otherwise the place of what an operator reads, as it was decided."""
    made = {} if since is None else {name: wanted[0] for name, wanted in since.wanted.items()}

    def decide(op: Operator, followed: Actions) -> Sequence[Actions]:
        source = next((made[tensor.op] for tensor in op.inputs if tensor.op in made), followed)
        there = tuple(b if place_of(b) is not None else a for a, b in zip(followed, source, strict=True))
        made[op.name] = decisions.get(op.name, there)
        return (made[op.name], there)

    return decide


@pytest.mark.parametrize("graph", [mlp(), tied(), tied(more=2), convolutions(), embedding(), two_lookups(), deep(3)])
def test_a_strategy_made_from_another_is_the_one_made_of_nothing(graph: Graph) -> None:
    space = SearchSpace(graph, AnalyticCost(cpu(4)), placements=True)
    follower, rng = Follower(space), np.random.default_rng(0)
    names = [op.name for op in space.operators if op.name not in follower.still]
    decisions: dict[str, Actions] = {}
    current = follower.follow(_deciding(decisions, None))
    assert current.changed == tuple(op.name for op in space.operators)
    fewer = 0
    for _ in range(60):
        moves: dict[str, Actions] = {}
        for name in rng.choice(names, size=int(rng.integers(1, 4)), replace=False).tolist():
            choices = space.choices(name)
            moves[name] = choices[int(rng.integers(len(choices)))].actions
        proposed = {**decisions, **moves}
        found = follower.follow(_deciding(proposed, current), current, moves)
        whole = Follower(space).follow(_deciding(proposed, None))
        for field in ("configurations", "torn", "actions"):
            assert getattr(found, field) == getattr(whole, field), field
        assert {name: tuple(asked) for name, asked in found.wanted.items()} == {
            name: tuple(asked) for name, asked in whole.wanted.items()
        }
        before = current.configurations
        differ = [op.name for op in space.operators if whole.configurations[op.name] != before[op.name]]
        assert sorted(found.changed) == sorted(differ)
        fewer += len(differ) < len(space.operators)
        if rng.random() < 0.5:
            decisions, current = proposed, found
    assert fewer
