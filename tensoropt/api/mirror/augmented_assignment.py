"""Variables as scripts of TensorFlow 1 use them: ``variable += tensor`` makes a tensor.

TensorFlow 1's own variables, which hold no resource, do so; those of a model refuse it in TensorFlow, since in eager
code it might look like an assignment.
"""

from __future__ import annotations

import operator
from typing import Any

__all__ = ["give_variables_operators"]

_OPERATORS = {
    "__iadd__": operator.add,
    "__isub__": operator.sub,
    "__imul__": operator.mul,
    "__itruediv__": operator.truediv,
    "__ipow__": operator.pow,
}
_is_done = False


def give_variables_operators() -> None:
    """Makes variables of models, and of all graphs other than functions', support ``+=`` and the like."""
    global _is_done
    if _is_done:
        return
    from tensorflow.python.ops.resource_variable_ops import BaseResourceVariable

    def made(name: str) -> Any:
        refuse, apply = getattr(BaseResourceVariable, name), _OPERATORS[name]

        def combine(self: Any, other: Any) -> Any:
            graph = getattr(self.handle, "graph", None) if self._in_graph_mode else None
            return refuse(self, other) if graph is None or graph.building_function else apply(self, other)

        return combine

    for name in _OPERATORS:
        setattr(BaseResourceVariable, name, made(name))
    _is_done = True
