"""Gradients of their own as graphs: what a script's ``tf.custom_gradient`` computes, written down at import."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "COUNT",
    "GRADIENT",
    "GRADIENT_TYPE",
    "GRAPH",
    "POINTWISE",
    "RESULTS",
    "WRT",
    "traced_attrs",
    "traced_gradient",
]

GRADIENT_TYPE = "_gradient_op_type"
"""TensorFlow's attribute of an operation that says which registered gradient it has in place of its type's."""
GRADIENT = "TensoroptTraced"
"""The name under which TensorFlow knows the gradient of an ``IdentityN`` with these attributes."""
GRAPH = "_tensoropt_graph"
"""A serialized ``GraphDef`` with placeholders ``dy0``, … for incoming gradients and ``input0``, … for inputs."""
COUNT = "_tensoropt_count"
"""How many outputs are read: the first ones."""
WRT = "_tensoropt_wrt"
"""The inputs that have gradients."""
RESULTS = "_tensoropt_results"
"""The tensors of the graph that are these gradients."""
POINTWISE = "_tensoropt_pointwise"
"""True if the graph is pointwise: tensors of one shape, and scalars, and each point depends on the same point only."""


def traced_gradient(tf: Any, node: Mapping[str, Any], inputs: Sequence[Any], incoming: Sequence[Any]) -> list[Any]:
    """The gradients of all inputs of such an op, in the default graph; None for those that have none.

    Args:
        tf: TensorFlow.
        node: the op's attributes.
        inputs: its inputs.
        incoming: gradients of its outputs, None where none came; more than are read are left alone.
    """
    graph = tf.compat.v1.GraphDef.FromString(node[GRAPH].s)
    names = {each.name for each in graph.node}
    given = {f"input{place}": tensor for place, tensor in enumerate(inputs)}
    for place in range(node[COUNT].i):
        dy = incoming[place]
        given[f"dy{place}"] = tf.zeros_like(inputs[place]) if dy is None else tf.convert_to_tensor(dy)
    here = tf.compat.v1.get_default_graph()
    # In the backward pass of a loop, what its body has made is taken in by ops that read it.
    given = {name: x if x.graph is here else tf.identity(x) for name, x in given.items() if name in names}
    results = [name.decode() for name in node[RESULTS].list.s]
    found = tf.graph_util.import_graph_def(
        graph,
        input_map={f"{name}:0": tensor for name, tensor in given.items()},
        return_elements=results,
        name="traced",
    )
    gradients: list[Any] = [None] * len(inputs)
    for place, gradient in zip(node[WRT].list.i, found, strict=True):
        gradients[place] = gradient
    return gradients


def traced_attrs(node: Mapping[str, Any]) -> dict[str, Any]:
    """Such an op's attributes as Python values; of the graph, a hash."""
    return {
        GRAPH: hashlib.sha256(node[GRAPH].s).hexdigest()[:16],
        COUNT: node[COUNT].i,
        WRT: tuple(node[WRT].list.i),
    }
