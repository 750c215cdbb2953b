"""The graph as text, one operator a line: for logs, tests and eyes."""

from __future__ import annotations

import numpy as np

from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator

__all__ = ["graph_text", "operator_text"]

_HIDDEN = frozenset({"T", "Tidx", "dtype", "Tparams", "Tindices", "Taxis", "Tshape", "Tdim", "Tperm", "N", "value"})


def operator_text(op: Operator) -> str:
    """``name = Type(inputs) {attributes} -> outputs``; dtypes' attributes are left out, outputs show them."""
    attrs = {key: value for key, value in sorted(op.attrs.items()) if key not in _HIDDEN and value not in ("", (), [])}
    attrs |= {f"operand{position}": _short(value) for position, value in sorted(op.static.items())}
    shown = " {" + ", ".join(f"{key}={value}" for key, value in attrs.items()) + "}" if attrs else ""
    control = " after " + ", ".join(op.control_inputs) if op.control_inputs else ""
    outputs = ", ".join(map(str, op.outputs)) or "()"
    return f"{op.name} = {op.type}({', '.join(map(str, op.inputs))}){shown}{control} -> {outputs}"


def graph_text(graph: Graph) -> str:
    """Every operator on a line of its own, in topological order."""
    return "\n".join(operator_text(op) for op in graph.operators)


def _short(value: object) -> object:
    return value.tolist() if isinstance(value, np.ndarray) and value.size <= 16 else value
