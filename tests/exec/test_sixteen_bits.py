"""Models of 16-bit floats train in pieces as precisely as in one process: sums over devices round once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tensoropt as to
from tensoropt.api.frontend.imported_model import ImportedModel, import_model
from tensoropt.api.mirror.model import current_model, leave_graph
from tensoropt.api.session.reference import Reference
from tensoropt.api.session.seeds import resolve_seeds
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import Plan
from tensoropt.space.space import SearchSpace
from tests.effort import some
from tests.exec.random_models import RandomModel
from tests.exec.random_runs import Case, Outcome, as_stored, random_keep, small_session, train
from tests.exec.random_training import Turn
from tests.thread_world import run_threads

pytestmark = pytest.mark.tf

# What pieces may add to the error of one process, which rounds every tensor as well: differences of float32 sums that
# turn a rounding the other way. Parts that are rounded to 16 bits add 0.3 to 1 of it, and more where there are few. Of
# bfloat16, pieces add 0.05 with AVX512 and up to 0.23 without.
EXCESS = {"bfloat16": 0.28, "float16": 0.05}


def _mlp(dtype: Any) -> RandomModel:
    """Two layers, the first of which reads its input twice; all sums are of 48 to 96 numbers."""
    random = np.random.default_rng(1)
    arrays = {"a": (96, 48), "b": (48,), "c": (48, 96), "scale": (96,)}
    values = {name: _rounded(random.normal(size=shape, scale=shape[0] ** -0.5)) for name, shape in arrays.items()}
    to.reset_default_graph()
    x = to.placeholder(dtype, [48, 96], name="x")
    a, b, c, scale = (
        to.get_variable(name, value.shape, dtype, to.constant_initializer(value)) for name, value in values.items()
    )
    hidden = to.nn.relu(to.matmul(x, a) + b)
    y = to.matmul(hidden, c) * scale + to.reduce_mean(hidden, 1, keepdims=True)
    return _trained(y, [*values], [{"x": _rounded(random.normal(size=(48, 96)))}])


def _convolutions(dtype: Any) -> RandomModel:
    """Two convolutions with bias and the mean over the image."""
    random = np.random.default_rng(2)
    arrays = {"a": (3, 3, 12, 24), "b": (24,), "c": (3, 3, 24, 12)}
    values = {name: _rounded(random.normal(size=shape, scale=0.1)) for name, shape in arrays.items()}
    to.reset_default_graph()
    x = to.placeholder(dtype, [12, 6, 6, 12], name="x")
    a, b, c = (
        to.get_variable(name, value.shape, dtype, to.constant_initializer(value)) for name, value in values.items()
    )
    hidden = to.nn.relu(to.nn.bias_add(to.nn.conv2d(x, a, strides=1, padding="SAME"), b))
    y = to.reduce_mean(to.nn.conv2d(hidden, c, strides=1, padding="SAME"), [1, 2])
    return _trained(y, [*values], [{"x": _rounded(random.normal(size=(12, 6, 6, 12)))}])


def _own_gradients(dtype: Any) -> RandomModel:
    """Two layers with an activation whose gradient is a function of the script, of a number, too, that points share."""
    random = np.random.default_rng(3)
    arrays = {"a": (96, 48), "c": (48, 96)}
    values = {name: _rounded(random.normal(size=shape, scale=0.2)) for name, shape in arrays.items()}
    to.reset_default_graph()
    x = to.placeholder(dtype, [48, 96], name="x")
    a, c = (to.get_variable(name, value.shape, dtype, to.constant_initializer(value)) for name, value in values.items())

    @to.custom_gradient
    def swish(x: Any, beta: Any) -> Any:
        def gradient(dy: Any) -> Any:
            share = to.sigmoid(beta * x)
            return dy * share * (1.0 + beta * x * (1.0 - share)), to.reduce_sum(dy * x * x * share * (1.0 - share))

        return x * to.sigmoid(beta * x), gradient

    y = to.matmul(swish(to.matmul(x, a), to.constant(1.25, dtype)), c)
    return _trained(y, [*values], [{"x": _rounded(random.normal(size=(48, 96)))}])


def _trained(y: Any, names: list[str], feeds: list[dict[str, np.ndarray]]) -> RandomModel:
    loss = to.reduce_mean(to.square(y), name="loss")
    step = to.train.GradientDescentOptimizer(0.5).minimize(loss)
    leave_graph()
    return RandomModel(0, loss.dtype.name, (Turn(step.name, (loss.name,)),), tuple(names), tuple(feeds))


def _rounded(values: np.ndarray) -> np.ndarray:
    """Numbers that both 16-bit floats hold."""
    return np.round(values * 32) / 32


def _imported(build: Callable[[Any], RandomModel], dtype: Any) -> tuple[RandomModel, ImportedModel]:
    return build(dtype), import_model(current_model())


def _plan(imported: ImportedModel, devices: int, which: str, seed: int = 0) -> Plan:
    """A plan that splits what is summed over, or samples, or anything."""
    space = SearchSpace(imported.graph, AnalyticCost(cpu(devices)))
    random = np.random.default_rng(seed)
    chosen: dict[str, Configuration] = {}
    for op in space.operators:
        stored = as_stored(space, op, chosen)
        rule, choices = space.rules[op.name], space.choices(op.name)
        summed = [any(action in rule.reduced for action in choice.actions) for choice in choices]
        wanted = np.flatnonzero(summed) if which == "sums" else np.arange(len(choices))
        drawn = choices[int(random.choice(wanted if len(wanted) else np.arange(len(choices))))]
        chosen[op.name] = stored or drawn
    plan = space.plan(space.assignment(chosen), "random", {})
    return random_keep(plan, space, random) if which == "any" else plan


def _alone(case: Case) -> Outcome:
    """The first step by one process."""
    model = case.model
    reference = Reference(case.recorded, case.seeds)
    (turn,) = model.turns
    outputs = case.outputs(turn.op)
    loss, gradients = reference.run_step(turn.op, turn.losses[0], outputs, model.feeds[0])
    reference.close()
    names = [output.name for output in outputs]
    return Outcome([[float(loss)]], gradients=[dict(zip(names, gradients, strict=True))])


def _errors(found: Outcome, truth: Outcome) -> dict[str, float]:
    pairs: dict[str, tuple[Any, Any]] = {"loss": (found.losses[0][0], truth.losses[0][0])}
    pairs |= {name: (found.gradients[0][name], value) for name, value in truth.gradients[0].items()}
    return {
        name: float(np.linalg.norm(np.asarray(one, np.float64) - other) / np.linalg.norm(other))
        for name, (one, other) in pairs.items()
    }


@pytest.mark.parametrize(
    ("build", "dtype"),
    some([(build, dtype) for build in (_convolutions, _own_gradients, _mlp) for dtype in ("float16", "bfloat16")]),
)
def test_sums_over_devices_are_as_precise_as_one_process(build: Callable[[Any], RandomModel], dtype: str) -> None:
    model, imported = _imported(build, to.float64)
    seeds = resolve_seeds(imported.tf_graph, 1)
    truth = _alone(Case(model, current_model(), imported, _plan(imported, 2, "sums"), seeds))
    model, imported = _imported(build, to.as_dtype(dtype))
    problems = []
    for devices, which, seed in ((2, "sums", 0), (3, "sums", 0), (4, "sums", 0), (4, "any", 1), (4, "any", 2)):
        case = Case(model, current_model(), imported, _plan(imported, devices, which, seed), seeds)
        alone = _errors(_alone(case), truth)
        mesh = case.plan.mesh.shape

        def run(engine: Any, case: Case = case) -> Outcome:
            return train(case, engine, agree=None, config=small_session())

        for rank, outcome in enumerate(run_threads(devices, mesh, run)):
            for name, error in _errors(outcome, truth).items():
                if error > alone[name] * (1 + EXCESS[dtype]) + 2e-5:
                    problems.append(
                        f"{devices} ranks, {which} {seed}, rank {rank}: {name} {error:.3g} > {alone[name]:.3g}"
                    )
    assert not problems, "\n".join(problems)
