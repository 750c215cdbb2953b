"""One model of :mod:`benchmarks.coverage`: planned, or trained by Keras alone or on the ranks of a job."""

from __future__ import annotations

import argparse
import collections
import itertools
import json
import resource
import time
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.coverage_models import MODELS, SIZES, Build
from tensoropt.api.find.choosing import find_plan
from tensoropt.api.find.planner import Planner
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.functions.traced_model import Traceable, TracedModel
from tensoropt.cluster.presets import preset
from tensoropt.graph.registry import has_rule

__all__ = ["BATCH", "MARK", "SCALES"]

MARK = "RESULT "
SCALES = (1 + 1e-7, 1 - 1e-7)  # of inputs, to see how much a model amplifies rounding
BATCH = 8
_SEED = 0


def main() -> None:
    """Does what it is asked to, and prints one line of JSON on rank 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task", choices=("import", "plan", "alone", "ranks"))
    parser.add_argument("model", choices=sorted({*MODELS, *SIZES}))
    parser.add_argument("--devices", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--last", type=int, default=BATCH)
    parser.add_argument("--options", nargs="+", default=["mini_time"])
    flags = parser.parse_args()
    build = {**MODELS, **SIZES}[flags.model]
    sizes = [BATCH] * (flags.steps - 1) + [flags.last]
    if flags.task in ("import", "plan"):
        found = _planned(build, flags.devices if flags.task == "plan" else None)
    elif flags.task == "alone":
        found = {"logs": [_trained(build, sizes, None, scale)[0] for scale in (1.0, *SCALES)]}
    else:
        import tensoropt

        found = {"options": {option: _by_option(build, sizes, option) for option in flags.options}}
        if tensoropt.world_rank():
            return
    found["peak_rss_bytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(MARK + json.dumps(found), flush=True)


class _Clock:
    """Seconds since it was made: as they pass, and of this process's processors."""

    def __init__(self) -> None:
        self._began = time.perf_counter(), time.process_time()

    def read(self, name: str) -> dict[str, float]:
        return {
            f"{name}_s": time.perf_counter() - self._began[0],
            f"{name}_processor_s": time.process_time() - self._began[1],
        }


def _planned(build: Build, devices: int | None) -> dict[str, Any]:
    """A model's training step, imported and, for so many devices of a preset, planned."""
    keras.utils.set_random_seed(_SEED)
    model, data = build(devices or 16)
    flat = tf.nest.flatten(data)

    def step(*tensors: Any) -> Any:
        return model.train_step(tf.nest.pack_sequence_as(data, tensors))

    clock, traced = _Clock(), TracedModel()
    specs = [tf.TensorSpec(array.shape, array.dtype, name=f"input_{place}") for place, array in enumerate(flat)]
    traced.trace(Traceable(step, specs, "train", autograph=False))
    found = clock.read("trace")
    clock = _Clock()
    imported = import_model(traced.model)
    found |= clock.read("import")
    graph = imported.graph
    result: dict[str, Any] = {
        **found,
        "operators": len(graph.operators),
        "parameters": model.count_params() if model.built else None,
        "without_rule": collections.Counter(op.type for op in graph.operators if not has_rule(op.type)),
    }
    if devices is not None:
        clock = _Clock()
        plan = find_plan(
            Planner(imported, "global", traced.model), preset("v100", devices=devices), "mini_time", None, None
        )
        result |= clock.read("plan")
        result |= {"memory_bytes": plan.memory_bytes, "time_s": plan.time_s, "searched": plan.notes.get("searched")}
    return result


def _by_option(build: Build, sizes: Sequence[int], option: str) -> dict[str, Any]:
    """What a model says of each step on all ranks, and how much of it an option's plan splits; or what failed."""
    try:
        logs, plan = _trained(build, sizes, option, 1.0)
    except Exception as error:  # of any kind: it goes into the report, and the next option is tried
        return {"error": f"{type(error).__name__}: {error}"}
    configurations = [operator.configuration for operator in plan.operators.values()]
    split = sum(any(action is not None for action in each.actions) for each in configurations)
    return {"logs": logs, "split": split / len(configurations), "reshards": len(plan.edges)}


def _trained(
    build: Build, sizes: Sequence[int], option: str | None, scale: float
) -> tuple[list[Mapping[str, float]], Any]:
    """What a model says of each batch, of so many rows, by Keras alone or with an option on all ranks; and the plan."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(_SEED)
    model, data = build(sum(sizes))
    if scale != 1.0:
        data = _scaled(model, data, scale)
    if option is not None:
        import tensoropt.keras

        tensoropt.keras.parallelize(model, option)
    logs: list[Mapping[str, float]] = []
    for end, size in zip(itertools.accumulate(sizes), sizes, strict=True):
        rows = slice(end - size, end)
        batch = tf.nest.map_structure(lambda array, rows=rows: array[rows], data)
        said = model.train_on_batch(*batch, return_dict=True)
        logs.append({name: float(value) for name, value in said.items()})
    return logs, getattr(model, "tensoropt_plan", None)


def _scaled(model: Any, data: tuple[Any, ...], scale: float) -> tuple[Any, ...]:
    """Data with inputs that are scaled; where these are integers, the model's weights are instead."""
    inputs = tf.nest.flatten(data[0])
    if any(array.dtype.kind == "f" for array in inputs):
        scaled = [array * np.float32(scale) if array.dtype.kind == "f" else array for array in inputs]
        return (tf.nest.pack_sequence_as(data[0], scaled), *data[1:])
    for variable in model.trainable_variables:
        variable.assign(variable * scale)
    return data


if __name__ == "__main__":
    main()
