"""Random operators without a seed get one, the same on every rank and in the single-process reference."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import tensorflow as tf

from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator

__all__ = ["resolve_seeds", "with_seeds", "with_seeds_in_meta_graph"]

Seeds = Mapping[str, tuple[int, int]]


def resolve_seeds(graph: Any, base: int) -> dict[str, tuple[int, int]]:
    """``(seed, seed2)`` for each random op of a ``tf.Graph`` that would draw its own at random (both are 0).

    Args:
        graph: the logical graph.
        base: a positive number that all ranks share.
    """
    return {
        op.name: (base, zlib.crc32(op.name.encode()) & 0x7FFFFFFF | 1)
        for op in graph.get_operations()
        if "seed2" in op.node_def.attr and not op.get_attr("seed") and not op.get_attr("seed2")
    }


def with_seeds(graph: Graph, seeds: Seeds) -> Graph:
    """The graph with the seeds in its operators' TensorFlow attributes. Plans do not depend on them."""

    def seeded(op: Operator) -> Operator:
        if op.draws:
            return replace(op, draws=tuple(map(seeded, op.draws)))
        if op.name not in seeds:
            return op
        given = dict(zip(("seed", "seed2"), seeds[op.name], strict=True))
        node = {**op.node, **{key: tf.compat.v1.AttrValue(i=value) for key, value in given.items()}}
        return replace(op, node=node, attrs={**op.attrs, **given})

    return replace(graph, operators=tuple(map(seeded, graph.operators)))


def with_seeds_in_meta_graph(meta_graph: Any, seeds: Seeds) -> Any:
    """Sets the seeds in a MetaGraphDef, in place."""
    for node in meta_graph.graph_def.node:
        if node.name in seeds:
            node.attr["seed"].i, node.attr["seed2"].i = seeds[node.name]
    return meta_graph
