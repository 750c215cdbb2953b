"""What Transformers are made of: attention, feed-forward, normalisation. Heads are a dimension of their own."""

from __future__ import annotations

from typing import Any

import tensoropt

__all__ = ["attention", "feed_forward", "layer_norm"]


def attention(x: Any, memory: Any, heads: int, mask: Any = None, *, bias: bool = False, name: str = "attention") -> Any:
    """Multi-head attention of ``x`` over ``memory`` (self-attention if they are the same).

    Args:
        x: ``[batch, length, width]``.
        memory: ``[batch, other length, width]``.
        heads: divides width.
        mask: added to the scores ``[batch, heads, length, other length]``, broadcast.
        bias: whether projections have one.
        name: of the variable scope.

    Returns:
        ``[batch, length, width]``.
    """
    width = x.shape[-1]
    depth = width // heads
    with tensoropt.variable_scope(name):
        query = _to_heads(x, heads, depth, bias, "query") * depth**-0.5
        key = _to_heads(memory, heads, depth, bias, "key")
        value = _to_heads(memory, heads, depth, bias, "value")
        scores = tensoropt.matmul(query, key, transpose_b=True)
        weights = tensoropt.nn.softmax(scores if mask is None else scores + mask)
        mixed = tensoropt.matmul(weights, value)
        projection = tensoropt.get_variable("output", [heads, depth, width])
        result = tensoropt.einsum("bhlk,hkd->bld", mixed, projection)
        return result + _zeros("output_bias", [width]) if bias else result


def feed_forward(x: Any, hidden: int, activation: Any) -> Any:
    """Two dense layers on every position."""
    wide = tensoropt.layers.dense(x, hidden, activation=activation, name="up")
    return tensoropt.layers.dense(wide, x.shape[-1], name="down")


def layer_norm(x: Any, name: str) -> Any:
    """Normalises the last dimension."""
    width = x.shape[-1]
    with tensoropt.variable_scope(name):
        scale = tensoropt.get_variable("scale", [width], initializer=tensoropt.initializers.ones())
        offset = _zeros("offset", [width])
    mean, variance = tensoropt.nn.moments(x, axes=[-1], keep_dims=True)
    return (x - mean) * tensoropt.math.rsqrt(variance + 1e-6) * scale + offset


def _to_heads(x: Any, heads: int, depth: int, bias: bool, name: str) -> Any:
    weights = tensoropt.get_variable(name, [x.shape[-1], heads, depth])
    projected = tensoropt.einsum("bld,dhk->bhlk", x, weights)
    return projected + _zeros(f"{name}_bias", [heads, 1, depth]) if bias else projected


def _zeros(name: str, shape: list[int]) -> Any:
    return tensoropt.get_variable(name, shape, initializer=tensoropt.initializers.zeros())
