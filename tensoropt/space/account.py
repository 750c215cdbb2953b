"""Accounts of operators in a strategy, which plans carry for their readers: see :mod:`tensoropt.plan.account`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from tensoropt.graph.registry import traits
from tensoropt.plan.account import About, Links, Setting
from tensoropt.space.dimensions import words_of
from tensoropt.space.layers import layers_of

if TYPE_CHECKING:
    from tensoropt.space.space import SearchSpace

__all__ = ["about_operators", "setting_of"]


def about_operators(space: SearchSpace, chosen: Mapping[str, int]) -> dict[str, About]:
    """Returns the account of each operator of the training step in a strategy.

    Args:
        space: the strategy's search space.
        chosen: by operator, an index of its choices.
    """
    result = {}
    for name, one in space.kept(_whatever_the_strategy).items():
        index = chosen[name]
        actions = set(space.choices(name)[index].actions)
        result[name] = replace(
            one,
            words={axis: word for axis, word in one.words.items() if axis in actions},
            gradient_bytes=space.node_costs(name, index)[1] / 2 if space.is_trained(name) else 0.0,
            inside_s=space.internal_seconds(name, index),
        )
    return result


def setting_of(space: SearchSpace) -> Setting:
    """The cluster of a search space."""
    topology = space.cost.topology
    links = (Links(level.name, level.size, level.latency_s, level.bandwidth_bytes_per_s) for level in topology.levels)
    return Setting(
        topology.name,
        topology.device.name,
        float(topology.device.memory_bytes),
        tuple(links),
        float(space.cost.iteration_seconds),
        space.graph.batch_size(),
    )


def _whatever_the_strategy(space: SearchSpace) -> dict[str, About]:
    layers, words = layers_of(space), words_of(space)
    place = {op.name: number for number, op in enumerate(space.graph.operators)}
    result: dict[str, About] = {}
    for op in space.operators:
        own, role = traits(op), layers.role[op.name]
        sources = [result[tensor.op] for tensor in op.inputs]
        held = "activations"
        if role in ("slot", "input", "constant"):
            held = "slots" if role == "slot" else "inputs"
        elif role == "variable" or (  # or what is made of weights alone, which is a copy of them
            any(source.held == "weights" for source in sources)
            and all(source.held == "weights" or source.role == "constant" for source in sources)
        ):
            held = "weights"
        result[op.name] = About(
            place[op.name],
            op.type,
            role,
            layers.layer[op.name],
            tuple(map(str, op.inputs)),
            op.outputs,
            op.source,
            own.work.value if own.work is not None else None,
            space.rules[op.name].flops,
            words[op.name],
            held,
        )
    return result
