"""Table 1: parameters, and the memory of training on a single device."""

from __future__ import annotations

from pathlib import Path

from benchmarks.paper.published import TABLE_1_MEMORY_GIB
from benchmarks.paper.setting import GIB, Options, Report, planner
from examples.models import PAPER_PARAMETER_GIB
from tensoropt.cluster.presets import v100
from tensoropt.cluster.scaling import scaled

__all__ = ["run"]


def run(options: Options, plot: Path | None = None) -> Report:
    """Counts. On one device there is one strategy. There is nothing to draw."""
    rows: Report = {}
    for model in options.models or tuple(PAPER_PARAMETER_GIB):
        plans = planner(model, options)
        graph = plans.imported.graph
        problem = plans.space(scaled(v100(), 1)).problem
        _, memory_bytes = problem.costs([0] * problem.nodes)
        variables = [op for op in graph.of_type("Variable") if op.name in graph.training]
        parameter_gib = sum(op.outputs[0].size_bytes for op in variables) / GIB
        rows[model] = {
            "parameter_gib": parameter_gib,
            "paper_parameter_gib": PAPER_PARAMETER_GIB.get(model),
            "memory_gib": float(memory_bytes[0]) / GIB,
            # The paper's figures have no room for gradients; ours count them.
            "memory_without_gradients_gib": float(memory_bytes[0]) / GIB - parameter_gib,
            "paper_memory_gib": TABLE_1_MEMORY_GIB.get(model),
            "operators": problem.nodes,
        }
    return {"table": 1, "models": rows}
