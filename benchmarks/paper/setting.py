"""What all experiments do: build a model, plan it for a cluster, track its frontier, apply baselines."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.arguments import UsageError, built
from examples.models import MODELS
from tensoropt.api.find.planner import Planner
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.mirror.model import current_model, reset_default_graph
from tensoropt.baselines import apply_baseline
from tensoropt.cluster import Topology
from tensoropt.errors import TensorOptError
from tensoropt.ft.space_frontier import SpaceTracker
from tensoropt.graph.graph import Graph
from tensoropt.graph.registry import traits
from tensoropt.problem import Frontier
from tensoropt.space.space import SearchSpace

__all__ = ["BASELINES_OF_THE_PAPER", "GIB", "Curve", "Options", "baselines", "planner", "track", "without_updates"]

BASELINES_OF_THE_PAPER = ("data_parallel", "mesh_tensorflow", "optcnn", "tofu")

GIB = 2.0**30
Report = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Options:
    """How to run an experiment.

    Attributes:
        models: names in ``examples.models``; the experiment's own if empty.
        devices: device counts; the experiment's own if empty.
        sizes: per model, arguments that replace its defaults.
        epsilon: bound on the relative error of frontiers; 0 for exact ones.
        threads: of the search.
    """

    models: tuple[str, ...] = ()
    devices: tuple[int, ...] = ()
    sizes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    epsilon: float = 0.0
    threads: int | None = None

    def count(self, usual: int) -> int:
        """The device count of an experiment that has one.

        Raises:
            UsageError: several were asked for.
        """
        if len(self.devices) > 1:
            raise UsageError(f"--devices: takes one number, got {' '.join(map(str, self.devices))}; run it for each")
        return self.devices[0] if self.devices else usual


@dataclass(frozen=True, slots=True)
class Curve:
    """A frontier, or strategies beside one, as arrays to report and to draw.

    Attributes:
        memory_bytes: per device, ascending.
        time_s: per iteration.
        network_s: of which communication.
        exact: whether the search that made it says so.
        search_s: seconds that the search took.
        table_s: seconds that building the tables took, if that was part of it.
    """

    memory_bytes: np.ndarray
    time_s: np.ndarray
    network_s: np.ndarray
    turning_point: int
    exact: bool
    search_s: float
    table_s: float | None = None

    @classmethod
    def of(cls, space: SearchSpace, frontier: Frontier, table_s: float | None = None) -> Curve:
        """Takes a frontier on a space's problem."""
        return cls(
            np.array(frontier.memory_bytes),
            np.array(frontier.time_s),
            space.network_seconds(frontier.assignments, frontier.alternatives),
            frontier.turning_point().index,
            frontier.exact,
            frontier.seconds,
            table_s,
        )

    def to_json(self) -> Report:
        """The curve as JSON values."""
        turn = self.turning_point
        return {
            "points": len(self.time_s),
            "memory_gib": (self.memory_bytes / GIB).tolist(),
            "time_s": self.time_s.tolist(),
            "network_s": self.network_s.tolist(),
            "turning_point": {"memory_gib": float(self.memory_bytes[turn] / GIB), "time_s": float(self.time_s[turn])},
            "exact": self.exact,
            "search_s": self.search_s,
            **({} if self.table_s is None else {"table_s": self.table_s}),
        }


def planner(model: str, options: Options) -> Planner:
    """The planner of a freshly built model.

    Raises:
        UsageError: sizes that the model has not, or cannot have.
    """
    sizes = dict(options.sizes.get(model, {}))
    reset_default_graph()
    built(model, MODELS[model], sizes)
    made = current_model()
    return Planner(import_model(made), "data_parallel", made)


def without_updates(graph: Graph) -> Graph:
    """A graph whose training step ends with gradients, as those of papers that leave updates out."""
    losses = [op.name for op in graph.operators if op.name in graph.training and traits(op).is_sink]
    return dataclasses.replace(graph, training=frozenset(op.name for op in graph.needed_for(losses)))


def track(plans: Planner, topology: Topology, options: Options) -> tuple[SearchSpace, Frontier, Curve]:
    """Builds the tables of a model on a cluster and tracks the frontier."""
    began = time.perf_counter()
    space = plans.space(topology)
    _ = space.problem
    table_s = time.perf_counter() - began
    frontier = SpaceTracker(space, threads=options.threads).frontier(epsilon=options.epsilon)
    return space, frontier, Curve.of(space, frontier, table_s)


def baselines(space: SearchSpace, names: tuple[str, ...]) -> tuple[dict[str, Curve], dict[str, str]]:
    """The baselines that apply, and why the others do not."""
    curves, reasons = {}, {}
    for name in names:
        try:
            curves[name] = Curve.of(space, apply_baseline(name, space))
        except TensorOptError as error:
            reasons[name] = str(error)
    return curves, reasons
