"""The user's graph, with what its operations alone do not say: sizes, gradients, and what it is a copy of."""

from __future__ import annotations

import functools
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensoropt.api.frontend.stand_ins import Given
from tensoropt.api.frontend.walks import reached
from tensoropt.api.mirror.model import GradientCall, tensor_key
from tensoropt.errors import GraphError

__all__ = ["UserGraph"]


@dataclass(frozen=True)
class UserGraph:
    """A graph that is to be made again.

    Attributes:
        graph: TensorFlow's.
        shapes: of placeholders, by name.
        calls: the differentiations. Each may be of what the one before has given.
        inside: names of the operations that TensorFlow made for gradients, which are left out.
        given: the stand-ins for tensors that these make, by the tensors' names.
        merged: names of tensors that operations pass on, by the operations' names.
        origins: the operations that ``graph`` has copies of, by the copies' names.
        copies: by :func:`~tensoropt.api.mirror.model.tensor_key`, names of the copies of tensors.
        turns: of loops, with what is known of what they begin with, the turns; or why they have no end that is known.
    """

    graph: Any
    shapes: Mapping[str, Sequence[int]]
    calls: Sequence[GradientCall]
    inside: Container[str]
    given: Mapping[str, Given]
    merged: Mapping[str, str]
    origins: Mapping[str, Any]
    copies: Mapping[Any, str]
    turns: dict[Any, list[bool | None] | str] = field(default_factory=dict, init=False, compare=False)

    @functools.cached_property
    def given_rows(self) -> frozenset[str]:
        """Names of variables whose gradients are given as rows."""
        return frozenset(one.source for call in self.calls for one in call.outputs if one.indices is not None)

    @functools.cached_property
    def before_given(self) -> dict[Any, list[Any]]:
        """Operations that come before each that gives gradients, though that need not read them in the graph."""
        found: dict[Any, list[Any]] = {}
        for name, one in self.given.items():
            before = found.setdefault(self.graph.get_tensor_by_name(name).op, [])
            before += map(self.graph.get_operation_by_name, one.after)
            if one.like is not None:
                before.append(self.graph.get_tensor_by_name(one.like).op)
        return found

    @functools.cached_property
    def differentiated(self) -> frozenset[Any]:
        """The operations through which gradients may flow; functions that they call may all be differentiated."""
        return frozenset(self._before(name for call in self.calls for name in call.losses))

    def check_gradients_apart(self) -> None:
        """Checks that no gradient is differentiated by another one, of which TensorFlow makes the gradient.

        Raises:
            GraphError: one is, or gradients stop at such a one.
        """
        made: dict[str, GradientCall] = {}
        for call in self.calls:
            for name in call.crossed:
                if name not in made:
                    continue
                given, losses = (self._before(names) for names in ([name], call.losses))
                for other in made[name].outputs:
                    op = self.graph.get_tensor_by_name(other.values).op
                    if op in losses and op not in given and given.keys() <= self._before([other.values]).keys():
                        raise GraphError(
                            f"gradients: '{name}' is a gradient, of which TensorFlow makes '{other.values}', and the "
                            "loss depends on both. Devices compute each gradient from its loss, and know none of one "
                            "by the other. Differentiate by what the gradient is of, or use tensoropt.stop_gradient."
                        )
            made |= {one.values: call for one in call.outputs}

    def _before(self, names: Iterable[str]) -> dict[Any, None]:
        """The operations that tensors are computed by."""
        return reached((self.graph.get_tensor_by_name(name).op for name in names), lambda op: (x.op for x in op.inputs))

    @functools.cached_property
    def crossed(self) -> frozenset[str]:
        """The names of the tensors by which losses are differentiated, or at which gradients stop."""
        return frozenset(name for call in self.calls for name in call.crossed)

    @functools.cached_property
    def is_differentiated_twice(self) -> bool:
        """Tells whether a gradient is differentiated again."""
        return any(op.name in self.inside for op in self.differentiated)

    def origin(self, op: Any) -> Any:
        """The op that the user's code knows: what an op of a copied graph is a copy of."""
        return self.origins.get(op.name, op) if op.graph is self.graph else op

    def here(self, tensor: Any) -> Any:
        """The tensor of this graph that stands for a tensor of the user's code."""
        name = self.copies.get(tensor_key(tensor)) if self.copies else None
        return tensor if name is None else self.graph.get_tensor_by_name(name)

    def readers(self, tensor: Any) -> list[Any]:
        """The ops that read a tensor, but for those of gradients."""
        return [op for op in tensor.consumers() if op.name not in self.inside]
