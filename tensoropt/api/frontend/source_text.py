"""A source as text, a line for each operation or operator: for people who look at passes, and for tests of passes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.api.frontend.attributes import HINTS, decoded
from tensoropt.api.frontend.source import Source
from tensoropt.graph.graph import Edge
from tensoropt.graph.operator import Operator
from tensoropt.graph.spec import TensorId

__all__ = ["text_of"]

_WIDTH = 60


def text_of(source: Source) -> str:
    """The part of a source that the last pass has come to: TensorFlow's operations, or operators.

    A line is ``name = Type(inputs) after controls {attributes} -> outputs``. Of operators, ``*`` in front marks the
    training step, ``~`` an input over which a gradient flows, ``#`` the script's line behind.
    """
    if source.operators:
        return _lines(_operator(op, source) for op in source.operators)
    graph = source.graph if source.graph is not None else source.model.graph
    known = [f"{name}: {list(shape)}" for name, shape in source.shapes.items()] if source.graph is None else []
    operations = (op for op in graph.get_operations() if source.graph is not None or op.name in source.part.operations)
    calls = [
        f"gradient {output.name} of {', '.join(call.losses)} by {output.source} = {output.values}"
        for call in source.part.gradients
        for output in call.outputs
    ]
    return _lines([*map(_operation, operations), *calls, *known])


def _lines(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _operation(op: Any) -> str:
    inputs = ", ".join(x.name.removesuffix(":0") for x in op.inputs)
    waits = "".join(f" ^{control.name}" for control in op.control_inputs)
    attrs = {name: _value(value) for name, value in op.node_def.attr.items() if name not in HINTS}
    outputs = ", ".join(f"{x.dtype.name}{_shape(x.shape)}" for x in op.outputs)
    return f"{op.name} = {op.type}({inputs}){waits} {_attrs(attrs)}-> {outputs}"


def _value(attr: Any) -> Any:
    if attr.HasField("tensor"):
        return tf.make_ndarray(attr.tensor)
    return attr.func.name if attr.HasField("func") else decoded(attr)


def _shape(shape: Any) -> str:
    return "[*]" if shape.rank is None else f"[{', '.join('?' if size is None else str(size) for size in shape)}]"


def _operator(op: Operator, source: Source) -> str:
    inputs = ", ".join(
        f"{'~' if Edge(tensor, op.name, place) in source.differentiable else ''}{_tensor(tensor)}"
        f"{'!' if place in op.handles else ''}"
        for place, tensor in enumerate(op.inputs)
    )
    waits = "".join(f" ^{name}" for name in op.control_inputs)
    attrs = _attrs({**op.attrs, **{f"operand{place}": value for place, value in op.static.items()}})
    outputs = ", ".join(f"{spec.dtype}{list(spec.shape)}" for spec in op.outputs)
    hidden = (op.node, op.functions, op.body, op.results, op.draws)
    digest = f" @{_digest(*map(_bytes, hidden))}" if any(hidden) else ""
    mark = "*" if op.name in source.training else " "
    return f"{mark} {op.name} = {op.type}({inputs}){waits} {attrs}-> {outputs}{digest}  # {op.source}"


def _tensor(tensor: TensorId) -> str:
    return tensor.op if tensor.index == 0 else f"{tensor.op}:{tensor.index}"


def _attrs(attrs: Mapping[str, Any]) -> str:
    if not attrs:
        return ""
    return f"{{{', '.join(f'{name}={_short(value)}' for name, value in sorted(attrs.items()))}}} "


def _short(value: Any) -> str:
    """A value in a few characters: what is longer by a digest."""
    if isinstance(value, np.ndarray):
        text = f"{value.dtype}{list(value.shape)}{value.tolist() if value.size < 8 else ''}"
        return text if value.size < 8 else f"{text}@{_digest(_bytes(value))}"
    text = " ".join(str(value).split())
    return text if len(text) <= _WIDTH else f"{text[:_WIDTH]}…@{_digest(_bytes(value))}"


def _bytes(value: Any) -> bytes:
    if hasattr(value, "SerializeToString"):
        return bytes(value.SerializeToString(deterministic=True))
    if isinstance(value, np.ndarray):
        return value.tobytes() if value.dtype != object else repr(value.tolist()).encode()
    if isinstance(value, Mapping):
        return b"".join(name.encode() + b"=" + _bytes(each) for name, each in sorted(value.items()))
    if isinstance(value, tuple | list):
        return b";".join(map(_bytes, value))
    return repr(value).encode()


def _digest(*values: bytes) -> str:
    return hashlib.sha256(b"|".join(values)).hexdigest()[:12]
