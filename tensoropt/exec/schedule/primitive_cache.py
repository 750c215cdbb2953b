"""oneDNN's cache of primitives, off where a job's matrix products are not safe with it."""

from __future__ import annotations

import os

from tensoropt.graph.graph import Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.graph.traits import Work

__all__ = ["uncache_products"]

_VARIABLE = "ONEDNN_PRIMITIVE_CACHE_CAPACITY"


def uncache_products(graph: Graph, devices: int) -> None:
    """Turns the cache off, in this process, if a product of matrices may have an extent of 1 on one of the devices.

    To the oneDNN of TensorFlow 2.21 two such products are one if they differ only in whether an operand is transposed,
    which moves no number where one of its extents is 1. The primitives that it makes for them differ in how much memory
    they work with, though. Where two threads make them at once, one of the threads gets the other's primitive and
    gives it less memory than it writes to (uxlfoundation/oneDNN#5043), and the step crashes later, if at all.

    Without that cache, TensorFlow's own one still keeps the primitives of products, but not those of convolutions'
    gradients, so it is left alone where it does no harm. oneDNN reads its size once, from the environment, when the
    process first needs a primitive. What the user's environment says of it stays.

    Args:
        graph: what will run.
        devices: on how many at most.
    """
    if any(_may_be_mistaken(graph, op, devices) for op in graph.operators):
        os.environ.setdefault(_VARIABLE, "0")


def _may_be_mistaken(graph: Graph, op: Operator, devices: int) -> bool:
    work = traits(op).work
    if work is Work.TENSOR_PRODUCT:
        return True  # where an operand has no labels of its own, the product has an extent of 1, however it is split
    operands = [graph.spec(tensor) for tensor in op.inputs]
    # A product of two matrices needs no primitive, save in bfloat16. Splits make 1 of no extent above the devices.
    if work is Work.BATCHED_PRODUCT or (work is Work.MATRIX_PRODUCT and operands[0].dtype == "bfloat16"):
        return any(extent <= devices for spec in operands for extent in spec.shape[-2:])
    return False
