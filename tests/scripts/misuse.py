"""What the misuses of ``bad_input.py`` share: their registry, a small model, and its plans and runs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import tensoropt

BATCH = 8
CASES: dict[str, Callable[[], Any]] = {}


def case(function: Callable[[], Any]) -> Callable[[], Any]:
    """Registers a misuse under its function's name, with spaces."""
    CASES[function.__name__.replace("_", " ")] = function
    return function


def guilty() -> bool:
    """Whether this is the rank that misbehaves alone."""
    return tensoropt.world_rank() == tensoropt.world_size() - 1


@contextmanager
def environment(name: str, value: str) -> Iterator[None]:
    """Sets a variable for a while."""
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


class Classifier:
    """A small model, and what is needed to run it."""

    def __init__(self, batch: int | None = BATCH, width: int = 4) -> None:
        tensoropt.reset_default_graph()
        tensoropt.random.set_seed(1)
        self.x = tensoropt.placeholder(tensoropt.float32, [batch, 4], name="x")
        self.y = tensoropt.placeholder(tensoropt.int32, [batch], name="y")
        self.rate = tensoropt.placeholder(tensoropt.float32, [], name="rate")
        self.w = tensoropt.get_variable("w", [4, width])
        self.logits = tensoropt.matmul(self.x, self.w, name="logits")
        self.loss = tensoropt.softmax_cross_entropy(self.y, self.logits)
        self.train = tensoropt.GradientDescentOptimizer(self.rate).minimize(self.loss)
        self.eval = tensoropt.nn.softmax(self.logits, name="eval")

    def feeds(self, **changed: Any) -> dict[Any, Any]:
        """A right batch, but for what is changed."""
        right = {"x": np.ones((BATCH, 4), np.float32), "y": np.arange(BATCH) % 4, "rate": 0.1}
        return {getattr(self, name): value for name, value in (right | changed).items()}

    def build(self) -> Classifier:
        """Plans and builds."""
        tensoropt.build_execution_graph(plan=tensoropt.find_strategy("data_parallel"))
        return self


def plan_file(change: Callable[[dict[str, Any]], None] = lambda data: None) -> Path:
    """The file of a plan for the classifier, with a change; each rank has its own."""
    Classifier()
    data = tensoropt.find_strategy("data_parallel").to_json()
    change(data)
    path = Path(sys.argv[1]) / f"plan{tensoropt.world_rank()}.json"
    path.write_text(json.dumps(data))
    return path


_built: list[Classifier] = []


def built() -> Classifier:
    """The classifier with its execution graph, made anew after a case that replaced it."""
    if not _built:
        _built.append(Classifier().build())
    return _built[0]


def forget() -> None:
    """Makes the next case build a classifier of its own."""
    _built.clear()


def run_with(**changed: Any) -> None:
    """A run of a training step with wrong feeds."""
    model = built()
    tensoropt.run([model.loss, model.train], model.feeds(**changed))
