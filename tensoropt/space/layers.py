"""Layers as a reader knows them: which operators belong to the same one, and what each is there for."""

from __future__ import annotations

import posixpath
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tensoropt.graph.graph import Edge
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.spec import TensorId
from tensoropt.space.around_variables import around_variables

if TYPE_CHECKING:
    from tensoropt.space.space import SearchSpace

__all__ = ["OPTIMIZER", "OTHER", "Layers", "layers_of"]

OPTIMIZER = "optimizer"
"""The layer of what belongs to the step's update as a whole: a learning rate, the norm of all gradients."""

OTHER = "other"
"""The layer of operators before and after which no variable is."""


@dataclass(frozen=True, slots=True)
class Layers:
    """Where operators of the training step belong.

    Attributes:
        layer: by operator, the name of its layer.
        role: by operator, one of :data:`tensoropt.plan.account.ROLES`.
    """

    layer: Mapping[str, str]
    role: Mapping[str, str]


def layers_of(space: SearchSpace) -> Layers:
    """Groups the operators of a training step.

    A layer begins with variables. Those in one scope (``dense_2/kernel``) are one layer, and so are those whose names
    differ in the last word (``up_weights``, ``up_bias``); another one by itself is a layer if it is the weights of a
    product, a convolution or a lookup, and otherwise goes to the layer whose values it is used with. An operator
    belongs to the layer of the trained variables that it reads, or in whose scope it is, else to the last layer that it
    reads from; a product of two layers of one scope (queries and keys) to that scope. Gradients, slots and updates go
    with their variable. What serves all of them is :data:`OPTIMIZER`'s.
    """
    return _Layers(space).result()


class _Layers:
    def __init__(self, space: SearchSpace) -> None:
        self._graph = space.graph
        self._operators = space.operators
        self._late = space.graph.after_gradients()
        self._beside = around_variables(space)
        self._trained = {op.inputs[0].op for op in self._operators if traits(op).is_gradient}
        self._outer = self._for_updates()
        self._root = self._roots()
        self._layer: dict[str, str] = {}
        self._order: dict[str, int] = {}
        self._alone: set[str] = set()
        self._scopes: dict[str, str] = {}

    def result(self) -> Layers:
        """The layers."""
        inner = [op for op in self._operators if op.name not in self._outer]
        self._name_variables([op.name for op in inner if traits(op).is_variable])
        self._find_scopes(inner)
        for op in inner:
            if op.name not in self._root and not traits(op).is_source:
                self._belong(op)
        for op in reversed(inner):  # what is before the first variables, and what is made of variables alone
            root = self._root.get(op.name)
            before = [self._layer[root]] if root else [self._layer.get(edge.consumer) for edge in self._readers(op)]
            found = next((layer for layer in before if layer is not None), None)
            if op.name not in self._layer and found is not None:
                self._layer[op.name] = found
        for op in self._operators:
            if op.name not in self._layer:
                self._layer[op.name] = self._served(op) if op.name in self._outer else OTHER
        return Layers(self._layer, {op.name: self._role(op) for op in self._operators})

    def _readers(self, op: Operator) -> list[Edge]:
        tensors = (TensorId(op.name, index) for index in range(len(op.outputs)))
        edges = (edge for tensor in tensors for edge in self._graph.consumers(tensor))
        return [edge for edge in edges if edge.consumer in self._graph.training]

    def _for_updates(self) -> set[str]:
        """Returns operators after gradients or beside variables, and those that only these read (step counts)."""
        found = {*self._late, *self._beside}
        for op in reversed(self._operators):
            readers = self._readers(op)
            is_served = all(edge.consumer in found for edge in readers)
            if op.name not in self._trained and readers and is_served:
                found.add(op.name)
            elif op.name not in self._late and not is_served:  # a moving copy of a variable that a layer reads
                found.discard(op.name)
        return found

    def _roots(self) -> dict[str, str]:
        """The first variable that is in what depends on no sample, "" if there is none."""
        found: dict[str, str] = {}
        for op in self._operators:
            if traits(op).is_variable:
                found[op.name] = op.name
            elif not traits(op).is_input and all(tensor.op in found for tensor in op.inputs):
                found[op.name] = next((found[tensor.op] for tensor in op.inputs if found[tensor.op]), "")
        return found

    def _name_variables(self, names: Sequence[str]) -> None:
        plain = {name for name in names if "/" not in name}
        families = Counter(map(_family, plain))
        for name in names:
            family = _family(name)
            if name not in plain:
                self._layer[name] = posixpath.dirname(name)
            elif family and (families[family] > 1 or family in plain):
                self._layer[name] = family
            else:
                self._layer[name] = name
                if not families[name]:
                    self._alone.add(name)

    def _find_scopes(self, inner: Sequence[Operator]) -> None:
        """The scopes of operators that have the names of layers, up to numbers, and what reads their variables."""
        around: dict[str, list[str]] = {}
        for op in inner:
            roots = [root for tensor in op.inputs if (root := self._root.get(tensor.op))]
            if roots and "/" in op.name and not traits(op).is_fanout:
                around.setdefault(self._layer[roots[0]], []).append(posixpath.dirname(op.name))
        for layer, scopes in around.items():
            common = posixpath.commonpath(scopes)
            while common and _unnumbered(common) != _unnumbered(layer):
                common = posixpath.dirname(common)
            if common:
                self._scopes[common] = layer

    def _scoped(self, name: str) -> str | None:
        """The layer in whose scope an operator is, by its name."""
        while "/" in name:
            name = posixpath.dirname(name)
            if name in self._scopes:
                return self._scopes[name]
        return None

    def _belong(self, op: Operator) -> None:
        """Finds the layer of an operator that depends on samples, if one before it is known."""
        heavy = traits(op).work is not None
        roots = [root for tensor in op.inputs if (root := self._root.get(tensor.op))]
        read = (self._layer.get(tensor.op) for tensor in op.inputs if tensor.op not in self._root)
        values = list(dict.fromkeys(layer for layer in read if layer is not None))
        if self._trained and values and not self._trained.intersection(roots):
            roots = []  # a state, such as that of a random generator
        if roots and roots[0] in self._alone and not heavy and values:
            self._layer[roots[0]] = values[0]  # a bias
        if roots:
            found = self._layer[roots[0]]
        elif (scoped := self._scoped(op.name)) is not None:
            found = scoped
        elif values:
            scope = _scope(values) if heavy else None
            found = scope or max(values, key=lambda layer: self._order[layer])
        else:
            return
        self._layer[op.name] = found
        self._order.setdefault(found, len(self._order))

    def _served(self, op: Operator) -> str:
        """The layer of the variable for which an operator of the update is."""
        name = op.name
        while name in self._beside:
            name = self._beside[name].leader
        if name == op.name and traits(op).is_gradient:
            name = op.inputs[0].op
        if name != op.name:
            return self._layer.get(name, OTHER)
        ends = [tensor.op for tensor in op.inputs] or [edge.consumer for edge in self._readers(op)]
        layers = {self._layer.get(end, OPTIMIZER) for end in ends} - {OPTIMIZER}
        return layers.pop() if len(layers) == 1 else OPTIMIZER

    def _role(self, op: Operator) -> str:
        own = traits(op)
        if own.is_variable:
            return "slot" if op.name in self._outer else "variable"
        if own.is_input:
            return "input"
        if own.is_constant:
            return "constant"
        if own.is_gradient:
            return "gradient"
        writes = own.on_variable and not own.reads_variable
        return "update" if op.name in self._outer or writes else "activation"


def _family(name: str) -> str:
    """Returns the stem that a scopeless name shares with its layer, all but the last word; "" if that is a number."""
    before, _, last = name.rpartition("_")
    return "" if last.isdigit() else before


def _unnumbered(scope: str) -> str:
    """The last part of a scope without the numbers that make it unique."""
    return re.sub(r"(_\d+)+$", "", posixpath.basename(scope))


def _scope(layers: Sequence[str]) -> str | None:
    """The scope in which several layers are, or which one of them is; None if they have none in common."""
    if len(layers) < 2:
        return None
    depth = max(layer.count("/") for layer in layers)
    common = posixpath.commonpath(layers)
    return common if common and common.count("/") >= depth - 1 else None
