"""What the scripts of cases share: models, plans, the comparison with one process, and the running of the cases.

A model is a function of a module of TensorFlow's names: given ``tensoropt`` it makes the distributed one, given
``tf.compat.v1`` the one that TensorFlow itself runs, here and alone, to compare with.
"""

from __future__ import annotations

import importlib
import json
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

import tensoropt
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.mirror.model import current_model
from tensoropt.api.session.difference import Expected, difference, tolerance_of
from tensoropt.api.session.job import current_job
from tensoropt.cost import AnalyticCost
from tensoropt.errors import TensorOptError
from tensoropt.exec.engines.guard import is_told
from tensoropt.graph.registry import traits
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import Plan
from tensoropt.space.space import SearchSpace
from tests.effort import some
from tests.races import no_races

BATCH = 8
_OPTIONS: tuple[str | int, ...] = ("data_parallel", "mini_time", 1, 2)
CASES: dict[str, Callable[[], None]] = {}
Model = Mapping[str, Any]  # what to run and to feed, by name


def case(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a case under its function's name, with spaces."""
    name = function.__name__.replace("_", " ")
    if name in CASES:
        raise ValueError(f"two cases are called {name!r}")
    CASES[name] = function
    return function


def core_case(function: Callable[[], None]) -> Callable[[], None]:
    """Registers a case that is tried by default, too; all others are by ``make test-all``."""
    return case(function)


# ----------------------------------------------------------------------------------------------------- comparison


def random_plan(seed: int, batch_size: int | None = None) -> Plan:
    """A random legal plan for the current model, the same on every rank."""
    return next(random_plans([seed], batch_size))


def random_plans(seeds: Iterable[int], batch_size: int | None = None) -> Iterator[Plan]:
    """Random legal plans for the current model."""
    imported = current_job().imported[current_model()] = import_model(current_model(), batch_size)
    topology = current_job().topology
    assert topology is not None
    space = SearchSpace(imported.graph, AnalyticCost(topology))
    # An update takes a variable and its slots in place, so these lie alike.
    slots = {
        op.inputs[place].op: op.inputs[op.handles[0]] for op in imported.graph.operators for place in op.handles[1:]
    }
    for seed in seeds:
        random = np.random.default_rng(seed)
        chosen: dict[str, Configuration] = {}
        for op in imported.graph.operators:
            choices = space.choices(op.name)
            if op.name in slots:
                stored = chosen[slots[op.name].op].output_layouts(space.rules[slots[op.name].op], 0).value
                choices = tuple(c for c in choices if c.output_layouts(space.rules[op.name], 0).value == stored)
            for pinned in space.rules[op.name].pinned:  # written or read where the variable is stored
                source = op.inputs[pinned]
                given = chosen[source.op].output_layouts(space.rules[source.op], source.index)
                stored = given.gradient if traits(op).is_gradient else given.value
                choices = tuple(c for c in choices if c.input_layouts(space.rules[op.name], pinned).value == stored)
            chosen[op.name] = choices[int(random.integers(len(choices)))]
        yield space.plan(space.assignment(chosen), f"random {seed}", {})


class Plain:
    """A model that TensorFlow runs in this process alone."""

    def __init__(self, make: Callable[[Any], Model]) -> None:
        with tf.Graph().as_default() as graph:
            tf.compat.v1.set_random_seed(1)
            tf.compat.v1.get_variable_scope().set_use_resource(True)
            self.model = make(tf.compat.v1)
            self._session = tf.compat.v1.Session(graph=graph)
            self._session.run(tf.compat.v1.global_variables_initializer())

    def run(self, fetches: Any, feeds: Mapping[str, Any]) -> Any:
        """Runs by name."""
        return self._session.run(picked(self.model, fetches), {self.model[key]: v for key, v in feeds.items()})


class Distributed:
    """A model that the job runs."""

    def __init__(self, make: Callable[[Any], Model], option: str | int = "mini_time", **wanted: Any) -> None:
        tensoropt.reset_default_graph()
        tensoropt.random.set_seed(1)
        self.model = make(tensoropt)
        self.build(option, **wanted)

    def build(self, option: str | int, **wanted: Any) -> None:
        """Builds by the option and what else is wanted of a strategy, or by the random plan of that number."""
        self.plan = random_plan(option) if isinstance(option, int) else tensoropt.find_strategy(option, **wanted)
        tensoropt.build_execution_graph(plan=self.plan)

    def run(self, fetches: Any, feeds: Mapping[str, Any]) -> Any:
        """Runs by name."""
        return tensoropt.run(picked(self.model, fetches), {self.model[key]: v for key, v in feeds.items()})


def picked(model: Model, fetches: Any) -> Any:
    """A nest of names as a nest of what they stand for."""
    return tf.nest.map_structure(lambda name: model[name], fetches)


def close(mine: Any, theirs: Any, what: str) -> None:
    """Fails unless two values are equal up to rounding."""
    a, b = np.asarray(mine), np.asarray(theirs)
    tolerance = tolerance_of(["float32"])
    apart = difference(a, Expected.of(b), tolerance)
    assert apart <= tolerance.relative, (
        f"{what}: differs by {apart:.3g}: {a.reshape(-1)[:6]} is not {b.reshape(-1)[:6]}"
    )


def some_plans(plans: Sequence[str | int], out_of: int = 3) -> Sequence[str | int]:
    """Returns options, and numbers of random plans, of which a part is tried: see :func:`tests.effort.some`."""
    return some(plans, out_of)


def compare(
    make: Callable[[Any], Model],
    fetches: Sequence[str],
    step: str | Sequence[str],
    feeds: Callable[[int], Mapping[str, Any]],
    *,
    options: Sequence[str | int] = _OPTIONS,
    steps: int = 3,
) -> None:
    """Takes steps by several plans and in one process; before the first and after each, all fetches are compared.

    By default each comparison tries some of its plans.
    """
    plain = Plain(make)
    wanted = [plain.run(list(fetches), feeds(0))]
    for number in range(steps):
        plain.run(step, feeds(number))
        wanted.append(plain.run(list(fetches), feeds(number)))
    for option in some_plans(options, 4):
        job = Distributed(make, option)
        for number in range(steps + 1):
            if number:
                job.run(step, feeds(number - 1))
            got = job.run(list(fetches), feeds(max(0, number - 1)))
            for name, mine, theirs in zip(fetches, got, wanted[number], strict=True):
                close(mine, theirs, f"plan {option}, after {number} steps: {name}")


# ------------------------------------------------------------------------------------------------------- models


def normal(m: Any, seed: int) -> Any:
    """An initializer with seeds of its own."""
    return m.random_normal_initializer(stddev=0.5, seed=seed)


def classifier(m: Any, **extra: Any) -> dict[str, Any]:
    """Two dense layers."""
    x = m.placeholder(m.float32, [BATCH, 6], name="x")
    y = m.placeholder(m.int32, [BATCH], name="y")
    w1 = m.get_variable("w1", [6, 8], initializer=normal(m, 1))
    b1 = m.get_variable("b1", [8], initializer=m.zeros_initializer())
    w2 = m.get_variable("w2", [8, 4], initializer=normal(m, 2))
    hidden = m.nn.relu(m.matmul(x, w1) + b1)
    logits = m.matmul(hidden, w2, name="logits")
    losses = m.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    loss = m.reduce_mean(losses)
    accuracy = m.reduce_mean(m.cast(m.equal(m.argmax(logits, 1, output_type=m.int32), y), m.float32))
    found = {"x": x, "y": y, "w1": w1, "b1": b1, "w2": w2, "hidden": hidden, "logits": logits, "losses": losses}
    return {**found, "loss": loss, "accuracy": accuracy, **extra}


def sgd_classifier(m: Any) -> dict[str, Any]:
    """The classifier with a training step."""
    made = classifier(m)
    return {**made, "train": m.train.GradientDescentOptimizer(0.5).minimize(made["loss"])}


def batch(number: int, **extra: Any) -> dict[str, Any]:
    """A batch for the classifier."""
    random = np.random.default_rng(number)
    return {"x": random.normal(size=(BATCH, 6)).astype(np.float32), "y": random.integers(0, 4, BATCH), **extra}


def share(array: np.ndarray) -> np.ndarray:
    """This rank's part of a batch."""
    count = len(array) // tensoropt.world_size()
    return array[tensoropt.world_rank() * count :][:count]


def raises(call: Any, *words: str, kind: type[Exception] = TensorOptError) -> None:
    """Checks that a call ends with an error of a kind, which says some words."""
    try:
        call()
    except kind as error:
        assert all(word in str(error) for word in words), f"{error!r} lacks one of {words}"
        return
    raise AssertionError(f"no error that says {words}")


def _meet(name: str, error: Exception | None = None) -> None:
    """Waits for the other ranks after a case, for a rank where it failed alone is ahead of them from there on.

    Those that are still in it end by the error, and one that has ended by another rank's has met that rank by it.

    Raises:
        CollectiveError: the case failed on another rank.
    """
    told: BaseException | None = error
    while told is not None:
        if is_told(told):
            return
        told = told.__context__
    guard = current_job().world.guard
    if guard is not None:
        guard.meet(f"the end of case {name!r}", error)


@no_races()
def main(*scripts: str) -> None:
    """Runs all cases of some modules beside this one, in one job; of one that is named ``module:case`` that case.

    Prints, as a line of JSON, the failures of each rank by case; an empty text where there is none.
    """
    chosen: set[str] = set()
    for script in scripts:
        module, _, name = script.partition(":")
        before = set(CASES)
        importlib.import_module(f"tests.scripts.{module}")
        chosen |= {name} if name else CASES.keys() - before
    if not chosen <= CASES.keys():
        raise ValueError(f"there are no cases called {sorted(chosen - CASES.keys())}")
    tf.config.experimental.enable_tensor_float_32_execution(False)  # where products on cards round more
    tensoropt.init()
    failures = {}
    for name, run in CASES.items():
        if name not in chosen:
            continue
        try:
            run()
            _meet(name)
        except Exception as error:  # whatever it is, it is what the case has found
            failures[name] = traceback.format_exc()
            # At once, too, for what comes after may hang.
            print(f"rank {tensoropt.world_rank()}, {name}: {failures[name]}", file=sys.stderr, flush=True)
            _meet(name, error)
        else:
            failures[name] = ""
    from mpi4py import MPI

    ranks = MPI.COMM_WORLD.gather(failures)
    if ranks:
        print("RESULT", json.dumps(ranks), flush=True)
