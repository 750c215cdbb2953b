"""Strategies that others use or search for, in the same space and with the same costs as ours, to compare with.

A baseline gives a `Frontier` on a search space's problem: of a single point, unless it has a trade-off of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tensoropt.baselines.baseline import Baseline as Baseline
from tensoropt.baselines.data_parallel import data_parallel_baseline
from tensoropt.baselines.gnmt import configurations as gnmt_configurations
from tensoropt.baselines.gnmt import gnmt
from tensoropt.baselines.megatron import megatron
from tensoropt.baselines.mesh_tensorflow import mesh_tensorflow
from tensoropt.baselines.mesh_tensorflow_hybrid import mesh_tensorflow_hybrid
from tensoropt.baselines.model_parallel import configurations as model_parallel_configurations
from tensoropt.baselines.model_parallel import model_parallel
from tensoropt.baselines.one_weird_trick import one_weird_trick
from tensoropt.baselines.optcnn import optcnn
from tensoropt.baselines.tofu import tofu
from tensoropt.baselines.zero1 import zero1
from tensoropt.baselines.zero2 import zero2
from tensoropt.baselines.zero3 import zero3
from tensoropt.errors import PlanError
from tensoropt.plan.configuration import Configuration
from tensoropt.search import Frontier
from tensoropt.search.registry import register_baseline
from tensoropt.search.space import SearchSpace

__all__ = ["BASELINES", "PLACED", "Baseline", "apply_baseline"]

BASELINES: Mapping[str, Baseline] = MappingProxyType(
    {
        "data_parallel": data_parallel_baseline,
        "optcnn": optcnn,
        "tofu": tofu,
        "mesh_tensorflow": mesh_tensorflow,
        "one_weird_trick": one_weird_trick,
        "mesh_tensorflow_hybrid": mesh_tensorflow_hybrid,
        "megatron": megatron,
        "model_parallel": model_parallel,
        "gnmt": gnmt,
        "zero1": zero1,
        "zero2": zero2,
        "zero3": zero3,
    }
)
"""By name. A baseline is a function of a `SearchSpace`; keyword arguments are its own, and have defaults."""

for _name, _function in BASELINES.items():
    register_baseline(_name, _function)  # searches may begin at what they give

PLACED: Mapping[str, Callable[[SearchSpace], dict[str, Configuration]]] = MappingProxyType(
    {"model_parallel": model_parallel_configurations, "gnmt": gnmt_configurations}
)
"""Baselines whose configurations a search space has only with placements, or if it is made of nothing else."""


def apply_baseline(name: str, space: SearchSpace) -> Frontier:
    """The strategy of a baseline for a graph, or its strategies.

    Args:
        name: one of `BASELINES`.
        space: the graph's search space; the assignments of the result are its problem's.

    Raises:
        PlanError: there is no such baseline, or it does not apply to the graph; the message says why.
        InfeasibleError: no strategy of the kind is possible.
    """
    if name not in BASELINES:
        raise PlanError(f"baseline {name!r}: must be one of {', '.join(map(repr, BASELINES))}, got {name!r}.")
    return BASELINES[name](space)
