"""How random ops in branches and loops are counted: with those around them, as in TensorFlow 1, or apart.

With a graph's seed alone, a random op draws by that seed and by how many such ops its graph had before. TensorFlow 1
has branches and loops in one graph with all else, TensorFlow 2 traces each as a graph that counts anew. So it decides
what every later initializer and dropout draws. Branches and loops are traced here in any case.
"""

from __future__ import annotations

import contextlib
import re
import weakref
from collections.abc import Iterator
from typing import Any

__all__ = ["count_random_ops_apart", "counted_as", "give_graphs_counters", "mark_script_graph"]

_OF_SWITCH = re.compile(r"branch\d+_\d+$")
"""Finds the branches of ``tf.switch_case``, which TensorFlow 1 traces, too."""

_is_done = False
_are_apart = False
_scripts: weakref.WeakSet[Any] = weakref.WeakSet()


def mark_script_graph(graph: Any) -> None:
    """Takes note of a graph that mirrored calls build, of which branches and loops are parts."""
    _scripts.add(graph)


def count_random_ops_apart(on: bool) -> None:
    """Says whether each branch and loop of a script counts its random ops anew, as in TensorFlow 2."""
    global _are_apart
    _are_apart = on


@contextlib.contextmanager
def counted_as(ops: int) -> Iterator[None]:
    """Has the default graph count so many random ops without a seed of their own for all that is made inside."""
    import tensorflow as tf
    from tensorflow.python.framework import random_seed

    graph, counters = tf.compat.v1.get_default_graph(), _counters()
    begun = counters.get(graph, 0)
    yield
    if counters.get(graph, 0) != begun:
        counters[graph] = begun
    for _ in range(ops):
        random_seed.get_seed(None)


def _counters() -> Any:
    """How many random ops each graph has, by graph."""
    from tensorflow.python.framework import random_seed

    return random_seed._graph_to_seed_dict


def give_graphs_counters() -> None:
    """Makes branches and loops of marked graphs go on with the counter of the graph that they stand in."""
    global _is_done
    if _is_done:
        return
    from tensorflow.python.framework import random_seed
    from tensorflow.python.ops.control_flow_v2_func_graphs import ControlFlowFuncGraph

    def counting(graph: Any) -> Any:
        """The graph whose counter a random op of another one takes; that of a function is the function's own."""
        outer = graph
        while isinstance(outer, ControlFlowFuncGraph) and not _OF_SWITCH.search(outer.name):
            outer = outer.outer_graph
        return outer if outer in _scripts and not _are_apart else graph

    class Counters(weakref.WeakKeyDictionary[Any, int]):
        def setdefault(self, graph: Any, default: Any = None) -> Any:
            return super().setdefault(counting(graph), default)

        def __getitem__(self, graph: Any) -> int:
            return super().__getitem__(counting(graph))

        def get(self, graph: Any, default: Any = None) -> Any:
            return super().get(counting(graph), default)

        def __setitem__(self, graph: Any, count: int) -> None:
            super().__setitem__(counting(graph), count)

    random_seed._graph_to_seed_dict = Counters(_counters())
    _is_done = True
