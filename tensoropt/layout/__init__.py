"""Meshes, layouts of tensors on them, and the steps that turn one layout into another. Data only."""

from tensoropt.layout.axis_state import AT, PARTIAL, REPLICATED, at_state, is_placed
from tensoropt.layout.coarsening import Coarsening
from tensoropt.layout.layout import Layout, common_prefix
from tensoropt.layout.mesh import Mesh
from tensoropt.layout.reshard import PackingCost, Resharder, ReshardTable, canonical_path, reshard_table
from tensoropt.layout.reshard_step import Step, StepKind
from tensoropt.layout.tensor_map import coarsen, tensor_map

__all__ = [
    "AT",
    "PARTIAL",
    "REPLICATED",
    "Coarsening",
    "Layout",
    "Mesh",
    "PackingCost",
    "ReshardTable",
    "Resharder",
    "Step",
    "StepKind",
    "at_state",
    "canonical_path",
    "coarsen",
    "common_prefix",
    "is_placed",
    "reshard_table",
    "tensor_map",
]
