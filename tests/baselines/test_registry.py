"""Every baseline on every model: a legal strategy that the frontier is never above, or a reason."""

from __future__ import annotations

import pytest

from tensoropt.errors import PlanError
from tensoropt.ft.space_frontier import SpaceTracker
from tensoropt.plan.configuration import is_legal
from tensoropt.search import finders
from tensoropt.space.repeated_cells import with_repeated_cells
from tests.effort import EVERY_CASE, some
from tests.examples.small_models import SMALL, small_space

pytestmark = pytest.mark.tf

_CONVOLUTIONAL = {"vgg16", "wide_resnet", "alexnet", "inception3", "resnet101", "lenet"}
_TRANSFORMERS = {"transformer", "transformer_s", "bert_large"}
# Of baselines that do not apply to every model: those to which they do.
_APPLIES = {
    "one_weird_trick": _CONVOLUTIONAL,
    "mesh_tensorflow_hybrid": {*_TRANSFORMERS, "nmt"},
    "megatron": _TRANSFORMERS,
    "gnmt": {"rnn", "rnntc", "rnnlm", "nmt"},
}
# Plans take long to make and to check, so only those of baselines that differ the most are.
_PLANNED = {"one_weird_trick", "megatron", "gnmt", "zero3"}
# Steps of a recurrent layer have one configuration in the frontier's search, but not in every baseline.
_HELD_ALIKE = 1e-3


BASELINES = tuple(finder for finder in finders() if finder.kind == "baseline")


@pytest.mark.parametrize("model", some(sorted(SMALL), 2 if EVERY_CASE else 4))
def test_baselines_are_legal_and_never_below_the_frontier(model: str) -> None:
    whole = small_space(model)
    frontier = SpaceTracker(whole, threads=1).frontier()  # what users get
    slack = 0.0 if frontier.exact and with_repeated_cells(whole) is whole.problem else _HELD_ALIKE
    for baseline in BASELINES:
        name = baseline.name
        if model not in _APPLIES.get(name, SMALL):
            with pytest.raises(PlanError, match=rf"'{name}': does not apply because .*\. [A-Z]"):
                baseline.find(whole)
            continue
        result = baseline.find(whole)
        space, found = result.space, result.frontier
        assert result.devices_differ is baseline.places
        time_s, memory_bytes = space.problem.costs(found.assignments, found.alternatives)
        assert time_s.tolist() == found.time_s.tolist(), name
        assert memory_bytes.tolist() == found.memory_bytes.tolist(), name
        for point in range(len(found)):
            best = frontier.best(float(found.memory_bytes[point]))
            assert best.time_s <= found.time_s[point] * (1 + slack), (name, point)
            for op, index in zip(space.operators, found.assignments[point].tolist(), strict=True):
                assert is_legal(space.choices(op.name)[index], space.rules[op.name], space.mesh), (name, op)
        if name in _PLANNED:
            plan = space.plan(found.assignments[0], name, alternatives=found.alternatives[0])
            plan.check(space.graph)
