"""The arithmetic of a training step, and how much of the devices' it is."""

from __future__ import annotations

from collections import defaultdict

from tensoropt.space.space import SearchSpace

__all__ = ["peak_flops_per_s", "step_flops"]


def step_flops(space: SearchSpace) -> dict[str, float]:
    """Floating-point operations of a step of the whole model, forward and backward, by the dtype of what they read."""
    found: dict[str, float] = defaultdict(float)
    for op in space.operators:
        rule, inputs = space.rules[op.name], space.graph.input_specs(op)
        dtype = next((spec.dtype for spec in (*inputs, *op.outputs) if spec.is_differentiable), None)
        if dtype is not None:
            share = space.gradients(op) / max(1, len(rule.inputs))
            found[dtype] += space.repeats(op.name) * (rule.flops + share * rule.backward_flops)
    return dict(found)


def peak_flops_per_s(space: SearchSpace) -> float:
    """What all devices compute in a second at most, in the dtype in which a step does most of its arithmetic."""
    flops = space.kept(step_flops)
    dtype = max(sorted(flops), key=flops.__getitem__, default="float32")
    return space.mesh.size * space.cost.topology.device.flops(dtype)
