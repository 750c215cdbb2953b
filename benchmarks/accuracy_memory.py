"""What a step of training takes of a device's memory, from TensorFlow's trace.

Counted are the bytes that tensors and kernels ask for. The allocator's own rounding is not: TensorFlow's for CPUs hands
out chunks of up to twice the size, depending on what was free before, and counts small ones elsewhere.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensoropt.measure.trace import held_by

__all__ = ["memory_parts"]


def memory_parts(step_stats: Any, graph: Any) -> dict[str, float]:
    """Bytes by what they are; their sum is the peak.

    Args:
        step_stats: of a step that was traced.
        graph: the ``tf.Graph`` that ran.

    Returns:
        ``variables`` with slots, ``inputs`` that were fed and constants, and ``step``: the most that kernels held at
        once.
    """
    with graph.as_default():
        # Optimizers' slots are in this collection, the model's variables in one of the executor's.
        every = [*tf.compat.v1.global_variables(), *graph.get_collection("tensoropt_variables")]
    variables = {variable.name: variable.shape.num_elements() * variable.dtype.size for variable in every}
    inputs = 0
    for device in step_stats.dev_stats:
        for node in device.node_stats:
            if "= _Arg(" in node.timeline_label or "= Const(" in node.timeline_label:
                inputs += sum(out.tensor_description.allocation_description.requested_bytes for out in node.output)
    held = held_by(step_stats, lambda name: "step", lambda name: False).get("step")
    return {
        "variables": float(sum(variables.values())),
        "inputs": float(inputs),
        "step": 0.0 if held is None else float(held.peak_bytes),
    }
