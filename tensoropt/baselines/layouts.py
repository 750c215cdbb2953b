"""Many layouts of named dimensions on one mesh, and what they cost in a search space."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from tensoropt.graph.operator import Operator
from tensoropt.graph.spec import TensorId
from tensoropt.plan.configuration import DEFER, Configuration
from tensoropt.problem.problem import FloatArray, IntArray, same_memory
from tensoropt.space.space import SearchSpace

__all__ = ["WHOLE", "Layouts"]

WHOLE = -1
"""The mesh dimension of a name that is not split."""

# Sums in float64 differ from exact ones by less than this share.
_ROUNDING = 1e-9


class Layouts:
    """All layouts of one mesh at once.

    What an operator does depends on its own names only, so it is worked out once for each way that these are split, and
    once for all operators that are alike.
    """

    def __init__(
        self,
        space: SearchSpace,
        names: Sequence[str],
        axis_of: Mapping[str, Mapping[str, str]],
        blocks: Sequence[tuple[int, ...]],
        splits: IntArray,
    ) -> None:
        """Takes the layouts.

        Args:
            space: the graph's search space.
            names: of dimensions.
            axis_of: per operator and name, the iteration axis that has it.
            blocks: per mesh dimension, its axes of the factor mesh.
            splits: ``(layouts, names)``, the mesh dimension that splits a name, or `WHOLE`.
        """
        self._space, self._axis_of, self._blocks, self._splits = space, axis_of, blocks, splits
        self._place = {name: place for place, name in enumerate(names)}
        self._kinds: list[int] = []  # per operator
        self._chosen: list[IntArray] = []  # per kind, a configuration index for each layout
        known: dict[tuple[object, ...], int] = {}
        for op in space.operators:
            key = (space.choices(op.name), self._names_of(op))
            if key not in known:
                known[key] = len(self._chosen)
                self._chosen.append(self._choose(op))
            self._kinds.append(known[key])

    def best(self) -> IntArray:
        """The assignments of all layouts that may be on the frontier, ``(points, N)``."""
        problem = self._space.problem
        total = np.zeros((2, len(self._splits)))
        # Equal operators and edges share their tables: each is looked up once.
        counts: Counter[tuple[int, object, tuple[int, ...]]] = Counter()
        tables: dict[object, FloatArray] = {}
        for number in range(problem.nodes + len(problem.edges)):
            if number < problem.nodes:
                pair, ends = problem.node_tables(number), [number]
            else:
                pair = problem.edge_tables(number - problem.nodes)
                ends = problem.edges[number - problem.nodes].tolist()
            for which, table in enumerate(pair):
                held = same_memory(table)
                tables[held] = table
                counts[which, held, tuple(self._kinds[end] for end in ends)] += 1
        for (which, key, kinds), count in counts.items():
            where = tuple(self._chosen[kind] for kind in kinds)
            total[which] += count * tables[key][..., 0][where]
        near = self._near_frontier(*total)
        return np.stack([self._chosen[kind][near] for kind in self._kinds], axis=1)

    @staticmethod
    def _near_frontier(time_s: FloatArray, memory_bytes: FloatArray) -> IntArray:
        order = np.lexsort((time_s, memory_bytes))
        order = order[np.isfinite(time_s[order] + memory_bytes[order])]
        before = np.minimum.accumulate(np.concatenate([[np.inf], time_s[order]]))[:-1]
        return np.sort(order[time_s[order] <= before * (1 + _ROUNDING)])

    def _names_of(self, op: Operator) -> tuple[object, ...]:
        """All that an operator's choice depends on: its names, and for a fan-out what its readers sum."""
        return (tuple(self._axis_of[op.name].items()), tuple(self._summed(op)))

    def _summed(self, op: Operator) -> list[str]:
        """The names along which a gradient that comes back to a fan-out is a partial sum."""
        graph, rules = self._space.graph, self._space.rules
        result: set[str] = set()
        for edge in graph.consumers(TensorId(op.name)) if rules[op.name].defer_gradient else ():
            if edge in graph.differentiable:
                read = {axis for dim in rules[edge.consumer].inputs[edge.position] for axis in dim}
                result |= {name for name, axis in self._axis_of[edge.consumer].items() if axis not in read}
        return sorted(result)

    def _choose(self, op: Operator) -> IntArray:
        """The configuration index of an operator in each layout."""
        axis_of, summed = self._axis_of[op.name], self._summed(op)
        names = sorted({*axis_of, *summed})
        code = np.zeros(len(self._splits), np.int64)
        for name in names:
            code = code * (len(self._blocks) + 1) + self._splits[:, self._place[name]] + 1
        _, first, kind = np.unique(code, return_index=True, return_inverse=True)
        # Of a fan-out's equal configurations, in several states, the first.
        choices = self._space.choices(op.name)
        index = {configuration: len(choices) - 1 - back for back, configuration in enumerate(reversed(choices))}
        chosen = []
        for row in self._splits[first]:
            block_of = {name: int(row[self._place[name]]) for name in names}
            actions: list[str | None] = [None] * len(self._space.mesh.axes)
            for name, axis in axis_of.items():
                for mesh_axis in self._blocks[block_of[name]] if block_of[name] != WHOLE else ():
                    actions[mesh_axis] = axis
            for name in summed:
                for mesh_axis in self._blocks[block_of[name]] if block_of[name] != WHOLE else ():
                    actions[mesh_axis] = DEFER if actions[mesh_axis] is None else actions[mesh_axis]
            chosen.append(_nearest(actions, index))
        result: IntArray = np.array(chosen, dtype=np.int64)[kind]
        return result


def _nearest(actions: list[str | None], index: Mapping[Configuration, int]) -> int:
    """The configuration that does this or, where sizes do not allow it, less: then more is computed whole."""
    for dropped in (None, *sorted({action for action in actions if action is not None})):
        candidate = Configuration(tuple(None if action == dropped else action for action in actions))
        if candidate in index:
            return index[candidate]
    # An input has the one configuration in which it is fed.
    return index.get(Configuration((None,) * len(actions)), len(index) - 1)
