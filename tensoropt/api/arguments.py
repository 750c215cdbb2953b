"""Arguments that several calls take: the cluster, the batch, the memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

import numpy as np

from tensoropt.cluster import Topology, preset
from tensoropt.errors import PlanError, SessionError, did_you_mean
from tensoropt.search.registry import Options

__all__ = [
    "NUMBERS",
    "JobArguments",
    "SearchArguments",
    "StepArguments",
    "as_topology",
    "check_micro_batches",
    "check_names",
    "check_sizes",
    "listed",
    "where_to_plan",
]

NUMBERS = (int, float, np.integer, np.floating)
"""Types of real numbers."""


class SearchArguments(TypedDict, total=False):
    """Arguments of ``find_strategy`` that a Keras model's planning passes on."""

    memory_bytes: float | None
    costs: str | None
    search: str | Options
    micro_batches: int | str
    recompute: bool


class JobArguments(SearchArguments, total=False):
    """The arguments of ``find_strategy`` and ``build_execution_graph`` that a Keras model in training passes on."""

    collectives: str
    config: Any


class StepArguments(JobArguments, total=False):
    """The arguments that a function's ``plan`` passes on."""

    batch_size: int | None
    feed: str


def check_names(caller: str, given: Mapping[str, Any], kind: type) -> None:
    """Checks that a class of arguments, such as ``SearchArguments``, has all given arguments.

    Raises:
        SessionError: the class lacks an argument.
    """
    known = kind.__annotations__
    for name in given:
        if name not in known:
            raise SessionError(
                f"{caller}: {name!r} is not among its arguments.{did_you_mean(name, known)} Those that it passes on to "
                f"others are {', '.join(known)}."
            )


def as_topology(caller: str, topology: Topology | str) -> Topology:
    """A cluster that was given, by itself or as the name of a preset.

    Raises:
        ClusterError: no preset has the name.
        PlanError: it is neither.
    """
    if isinstance(topology, str):
        return preset(topology)
    if isinstance(topology, Topology):
        return topology
    raise PlanError(
        f"{caller}: topology must be a Topology or the name of a preset, got {topology!r}. Give "
        "tensoropt.cluster.preset('v100'), or Topology.load of a file."
    )


def where_to_plan(caller: str, topology: Topology | str | None, collected: Topology | None) -> Topology:
    """The cluster to plan for: the one that was given, or else the job's own.

    Raises:
        SessionError: there is none.
        ClusterError: no preset has the name that was given.
        PlanError: something else was given.
    """
    if topology is not None:
        return as_topology(caller, topology)
    if collected is None:
        raise SessionError(
            f"{caller}: the devices are unknown. Call tensoropt.init() first, or give topology=… to plan without them."
        )
    return collected


def check_sizes(caller: str, batch_size: Any, memory_bytes: Any) -> None:
    """Checks that a batch size and a memory limit, where given, are numbers above 0.

    Raises:
        PlanError: one of them is not.
    """
    if batch_size is not None and not isinstance(batch_size, int | np.integer):
        raise PlanError(f"{caller}: batch_size must be a whole number, got {batch_size!r}. Give the samples of a step.")
    if batch_size is not None and batch_size < 1:
        raise PlanError(f"{caller}: batch_size must be at least 1, got {batch_size}.")
    if memory_bytes is None:
        return
    if not isinstance(memory_bytes, NUMBERS) or math.isnan(memory_bytes):
        raise PlanError(
            f"{caller}: memory_bytes must be a number of bytes, got {memory_bytes!r}. Give for example 8e9, or leave "
            "it out for no limit but the device's."
        )
    if not memory_bytes > 0:
        raise PlanError(
            f"{caller}: memory_bytes must be above 0, got {memory_bytes}. Leave it out for no limit but the device's."
        )


def listed(caller: str, name: str, values: Any, example: str) -> list[Any]:
    """The members of an argument that takes several.

    Raises:
        PlanError: it is a single text, or nothing that has members.
    """
    if isinstance(values, str) or not isinstance(values, Iterable):
        raise PlanError(f"{caller}: {name} must be a list, got {values!r}. Give for example {name}={example}.")
    return list(values)


def check_micro_batches(caller: str, given: Any, *, auto: bool = True) -> None:
    """Checks a number of micro-batches.

    Args:
        caller: the name of the function that the user has called.
        given: the number.
        auto: whether it may be ``auto``.

    Raises:
        PlanError: it is neither a whole number of at least 1 nor, where that is allowed, ``auto``.
    """
    if auto and given == "auto":
        return
    if isinstance(given, bool) or not isinstance(given, int | np.integer) or given < 1:
        also = ", or 'auto'" if auto else ""
        raise PlanError(
            f"{caller}: micro_batches must be a whole number of at least 1{also}, got {given!r}. Give for example 4, "
            "or leave it out for whole batches."
        )
