"""The logical graph: operators in topological order, and who reads what."""

from __future__ import annotations

import functools
import hashlib
import json
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from tensoropt.errors import GraphError
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId, TensorSpec

__all__ = ["Edge", "Graph"]

_SEEDS = ("seed", "seed2")  # a plan serves the same model under any seed


class Edge(NamedTuple):
    """Input ``position`` of ``consumer`` is ``tensor``."""

    tensor: TensorId
    consumer: str
    position: int

    def __str__(self) -> str:
        return f"{self.tensor} -> {self.consumer}[{self.position}]"


@dataclass(frozen=True)
class Graph:
    """Operators of one or more training steps (and of whatever else the user may fetch).

    Attributes:
        operators: in topological order.
        training: names of the operators that a training step runs; all of them if nothing is trained.
        differentiable: edges along which gradients flow back.
        samples: of a step, where they are known; by default :meth:`batch_size` goes by what most inputs have.

    Invariants:
        Operators come after everything that they read (:func:`tensoropt.graph.verifier.verify_graph`).
    """

    operators: tuple[Operator, ...]
    training: frozenset[str] = frozenset()
    differentiable: frozenset[Edge] = frozenset()
    samples: int | None = None
    _by_name: Mapping[str, Operator] = field(init=False, repr=False, compare=False)
    _consumers: Mapping[TensorId, tuple[Edge, ...]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        by_name: dict[str, Operator] = {}
        consumers: dict[TensorId, list[Edge]] = {}
        for op in self.operators:
            if op.name in by_name:
                raise GraphError(f"Graph: two operators are called '{op.name}'. Names must be unique.")
            by_name[op.name] = op
            for position, tensor in enumerate(op.inputs):
                consumers.setdefault(tensor, []).append(Edge(tensor, op.name, position))
        object.__setattr__(self, "_by_name", by_name)
        object.__setattr__(self, "_consumers", {t: tuple(edges) for t, edges in consumers.items()})

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: str) -> Operator:
        try:
            return self._by_name[name]
        except KeyError:
            raise GraphError(f"Graph: no operator is called '{name}'.") from None

    def spec(self, tensor: TensorId) -> TensorSpec:
        """Shape and dtype of ``tensor``."""
        op = self[tensor.op]
        if not 0 <= tensor.index < len(op.outputs):
            raise GraphError(f"{op}: has {len(op.outputs)} outputs, number {tensor.index} was asked for.")
        return op.outputs[tensor.index]

    def input_specs(self, op: Operator) -> tuple[TensorSpec, ...]:
        """Shapes and dtypes of what ``op`` reads."""
        return tuple(self.spec(tensor) for tensor in op.inputs)

    def consumers(self, tensor: TensorId) -> tuple[Edge, ...]:
        """The edges that leave ``tensor``, in the order of operators."""
        return self._consumers.get(tensor, ())

    def edges(self) -> tuple[Edge, ...]:
        """All edges, by consumer and position."""
        return tuple(
            Edge(tensor, op.name, position) for op in self.operators for position, tensor in enumerate(op.inputs)
        )

    def of_type(self, *types: str) -> tuple[Operator, ...]:
        """The operators of the given types, in order."""
        return tuple(op for op in self.operators if op.type in types)

    def variables(self) -> tuple[Operator, ...]:
        """The variables, in order."""
        return self._variables

    @functools.cached_property
    def _variables(self) -> tuple[Operator, ...]:
        return tuple(op for op in self.operators if traits(op).is_variable)

    def has_gradient(self, name: str) -> bool:
        """Tells whether gradients flow back through an operator."""
        return name in self._differentiated

    @functools.cached_property
    def _differentiated(self) -> frozenset[str]:
        return frozenset(edge.consumer for edge in self.differentiable)

    def inputs(self) -> tuple[Operator, ...]:
        """Returns the input operators (placeholders), in order."""
        return tuple(op for op in self.operators if traits(op).is_input)

    def batch_size(self) -> int | None:
        """Samples per step: the first dimension that most inputs of the training step have, the largest of several.

        None without inputs. An input with another one holds no samples (the state of a recurrent network by layers).
        """
        return self.samples if self.samples is not None else self.common_size(())

    def common_size(self, beside: Collection[str]) -> int | None:
        """The first dimension that most inputs of the training step have, but for some; the largest of several."""
        inputs = [op for op in self.inputs() if op.name in self.training and op.name not in beside]
        sizes = Counter(op.outputs[0].shape[0] for op in inputs if op.outputs[0].shape)
        return max(sizes, key=lambda size: (sizes[size], size), default=None)

    def needed_for(self, names: Iterable[str], given: Collection[TensorId] = ()) -> tuple[Operator, ...]:
        """The operators that must run for ``names``, control inputs included, in order.

        Args:
            names: of operators.
            given: tensors that are there already. Of these, inputs are among the result all the same.
        """
        wanted: set[str] = set()
        pending = list(names)
        while pending:
            name = pending.pop()
            if name in wanted:
                continue
            wanted.add(name)
            op = self[name]
            if traits(op).is_input and TensorId(name) in given:  # its default is not needed
                continue
            pending += [other.op for other in op.inputs if other not in given or traits(self[other.op]).is_input]
            pending += list(op.control_inputs)
        return tuple(op for op in self.operators if op.name in wanted)

    @property
    def is_differentiated_twice(self) -> bool:
        """True if the graph computes a gradient of a gradient."""
        return bool(self.gradients_of_gradients)

    @functools.cached_property
    def gradients_of_gradients(self) -> tuple[Edge, ...]:
        """The edges by which gradients are read that are differentiated again."""
        return tuple(edge for edge in self.differentiable if traits(self[edge.tensor.op]).is_gradient)

    def after_gradients(self) -> frozenset[str]:
        """The names of gradients, and of operators that read them or wait for them: all that no forward pass has."""
        return self._after_gradients

    @functools.cached_property
    def _after_gradients(self) -> frozenset[str]:
        late: set[str] = set()
        for op in self.operators:
            before = (*op.control_inputs, *(tensor.op for tensor in op.inputs))
            if traits(op).is_gradient or not late.isdisjoint(before):
                late.add(op.name)
        return frozenset(late)

    def fingerprint(self) -> str:
        """A hash of everything that a plan relies on: names, types, shapes, attributes and edges."""
        digest = hashlib.sha256()
        for op in self.operators:
            line = json.dumps(
                [
                    op.name,
                    op.type,
                    [str(tensor) for tensor in op.inputs],
                    [str(spec) for spec in op.outputs],
                    sorted((key, _stable(value)) for key, value in op.attrs.items() if key not in _SEEDS),
                    sorted((key, _stable(value)) for key, value in op.static.items()),
                    sorted(op.control_inputs),
                    op.handles,
                ]
            )
            digest.update(line.encode())
        digest.update(json.dumps(sorted(self.training)).encode())
        if self.samples is not None:
            digest.update(str(self.samples).encode())
        return digest.hexdigest()[:32]


def _stable(value: Any) -> str:
    """A text of an attribute that is the same in every process."""
    if isinstance(value, np.ndarray) and value.dtype == object:  # texts, which an array has by their address
        return repr(value.tolist())
    if isinstance(value, np.ndarray):
        return f"{value.dtype}{value.shape}{hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()}"
    if isinstance(value, list | tuple):
        return "(" + ",".join(_stable(item) for item in value) + ")"
    return repr(value)
