"""``tensoropt.keras.parallelize``: the same Keras model, trained by a plan on all ranks."""

from __future__ import annotations

import os
from typing import Any

from tensoropt.api.mirror.loading import load_tensorflow
from tensoropt.errors import SessionError
from tensoropt.stages import announce

__all__ = ["parallelize"]

_BUILT_IN = "tensoropt_parallel"


def parallelize(model: Any, option: Any = "mini_time", **find_strategy_arguments: Any) -> Any:
    """Has ``fit``, ``evaluate``, ``predict`` and ``…_on_batch`` of a compiled Keras model run on all ranks by a plan.

    Every rank calls them alike, with the same data: batches are whole, and each rank computes its share, as the plan,
    which is searched when the first batch comes, has it. Losses, metrics, callbacks, ``History``, validation, learning
    rates and weights are Keras's own, and mean what they mean in one process. The model begins with the weights that it
    has on rank 0.

    Args:
        model: of Keras 3 on TensorFlow, after ``compile``. It may be compiled again.
        option: see :func:`tensoropt.find_strategy`; not ``profiling`` nor ``mini_parallelism``.
        find_strategy_arguments: others of ``find_strategy`` (``memory_bytes``, ``search``, ``costs``), and
            ``collectives`` and ``config`` of ``build_execution_graph``.

    Returns:
        The same model. Its ``tensoropt_plan`` is the plan, and None before the first batch.

    Raises:
        SessionError: for what is no such model, or was not compiled to run as a graph.
        TensorOptError: when it first runs, what planning and building raise.
    """
    load_tensorflow()
    from tensoropt.api.keras import hooks
    from tensoropt.api.keras.trained import Parallel

    if not hooks.model_of_keras(model):
        raise SessionError(
            f"parallelize: takes a model of Keras 3 whose backend is TensorFlow, got {type(model).__name__}. Leave "
            "TF_USE_LEGACY_KERAS unset, and set KERAS_BACKEND=tensorflow."
        )
    wrong = hooks.check_model(model)
    if wrong is not None:
        raise SessionError(f"parallelize: the model '{model.name}' cannot be parallelized: {wrong}.")
    if "feed" in find_strategy_arguments:
        raise SessionError(
            "parallelize: feed is not among its arguments, as every rank has the whole batch. Leave it out."
        )
    if getattr(model, _BUILT_IN, None) is not None:
        raise SessionError(f"parallelize: the model '{model.name}' is parallel already. Call it once for each model.")
    parallel = Parallel(model, option, find_strategy_arguments)
    if parallel.size == 1:
        launched = "OMPI_COMM_WORLD_SIZE" in os.environ
        announce(f"'{model.name}' trains on one process" + ("" if launched else ": start it with mpirun -n 2, or more"))
    hooks.replace_steps(model, parallel.step)
    hooks.replace_trainer(model, parallel.rank, parallel.sync)
    setattr(model, _BUILT_IN, True)
    model.tensoropt_plan = None
    return model
