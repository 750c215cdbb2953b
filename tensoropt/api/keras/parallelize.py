"""``tensoropt.keras.parallelize``: the same Keras model, trained by a plan on all ranks."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tensoropt.api.arguments import JobArguments, check_names
from tensoropt.errors import SessionError
from tensoropt.logs import is_launched
from tensoropt.stages import announce

if TYPE_CHECKING:
    from typing_extensions import Unpack

__all__ = ["checked", "parallelize"]

_BUILT_IN = "tensoropt_parallel"


def parallelize(
    model: Any,
    option: Any = "mini_time",
    *,
    layout_map: Mapping[str, Any] | None = None,
    mesh: Mapping[str, int] | None = None,
    shard: bool = True,
    **find_strategy_arguments: Unpack[JobArguments],
) -> Any:
    """Makes ``fit``, ``evaluate``, ``predict`` and ``…_on_batch`` of a compiled Keras model run on all ranks by a plan.

    Every rank calls them alike, with the same data: batches are whole, and each rank computes its share of the work by
    the plan, which is searched when the first batch comes. Losses, metrics, callbacks, ``History``, validation,
    learning rates and weights are Keras's own, and mean what they mean in one process. The model begins with rank 0's
    weights.

    Args:
        model: of Keras 3 on TensorFlow, after ``compile``. It may be compiled again.
        option: see :func:`tensoropt.find_strategy`; not ``profiling`` nor ``mini_parallelism``.
        layout_map: how some variables are stored, in the form of ``keras.distribution.LayoutMap`` (or one): regular
            expressions of variables' paths, each with a tuple of the name of a mesh axis or None for every dimension.
                The
            layouts of all other variables are searched.
        mesh: devices along each axis that ``layout_map`` names, the outermost first, such as
            ``{"data": 2, "model": 4}``. By default its only name stands for all devices.
        shard: whether every rank is given the whole batch and takes its share of it. If not, each rank is given its
            share:
            the batch is the shares of all ranks, one after another.
        find_strategy_arguments: others of ``find_strategy`` (``memory_bytes``, ``search``, ``costs``), and
            ``collectives`` and ``config`` of ``build_execution_graph``.

    Returns:
        The same model. Its ``tensoropt_plan`` is the plan, and None before the first batch.

    Raises:
        SessionError: the model is no such model, or was not compiled to run as a graph; or an argument is unknown.
        PlanError: the option, search or costs are unknown; the layout map is none, or the option does not search, so
            that the map could not constrain anything.
        TensorOptError: in the first run, the errors of planning and building.
    """
    checked("parallelize", model)
    from tensoropt.api.functions.program import check_asked
    from tensoropt.api.keras import keras_internals
    from tensoropt.api.keras.callbacks import callbacks_on
    from tensoropt.api.keras.layout_pins import layout_pins
    from tensoropt.api.keras.parallel_programs import Parallel

    if "feed" in find_strategy_arguments:
        raise SessionError(
            "parallelize: feed is not among its arguments. Leave it out: every rank has the whole batch, or "
            "with shard=False its share."
        )
    check_names("parallelize", find_strategy_arguments, JobArguments)
    if getattr(model, _BUILT_IN, None) is not None:
        raise SessionError(
            f"parallelize: the model '{model.name}' is parallel already. Call it once for each model: it stays so "
            "when it is compiled again, and is planned again then."
        )
    check_asked("parallelize", option, find_strategy_arguments)
    pins = layout_pins(layout_map, mesh, option)
    parallel = Parallel(model, option, find_strategy_arguments, pins, shard)
    if parallel.size == 1:
        remedy = "" if is_launched() else ": start it with mpirun -n 2, or more"
        announce(f"'{model.name}' trains on one process{remedy}")
    keras_internals.replace_steps(model, parallel.begin, parallel.step, parallel.end)
    keras_internals.replace_trainer(model, parallel, functools.partial(callbacks_on, parallel))
    setattr(model, _BUILT_IN, True)
    model.tensoropt_plan = None
    return model


def checked(caller: str, model: Any) -> None:
    """Checks that ``model`` is a compiled model of Keras 3 on TensorFlow.

    Raises:
        SessionError: it is anything else.
    """
    advice = _advice(model)
    if advice is not None:
        raise SessionError(f"{caller}: takes a compiled Keras model, {advice}")
    from tensoropt.api.keras import keras_internals

    if not keras_internals.model_of_keras(model):
        remedy = "Leave TF_USE_LEGACY_KERAS unset, and set KERAS_BACKEND=tensorflow."
        if any(each.__module__.startswith("tf_keras.") for each in type(model).__mro__):
            remedy = "It is one of Keras 2 (tf_keras): train it by a step of your own in tensoropt.function."
        raise SessionError(
            f"{caller}: takes a model of Keras 3 whose backend is TensorFlow, got {type(model).__name__}. {remedy}"
        )
    wrong = keras_internals.check_model(model)
    if wrong is not None:
        raise SessionError(f"{caller}: the model '{model.name}' cannot be parallelized: {wrong}.")


def _advice(given: Any) -> str | None:
    """Returns the advice for an argument that surely is no model; None for one that may be a model."""
    if inspect.isroutine(given) or isinstance(given, functools.partial):
        name = getattr(given, "__name__", "partial")
        said = "a lambda" if name == "<lambda>" else f"the function '{name}'"
        return (
            f"got {said}. If it makes the model, call it, compile the model and give that; if it is the step of a loop "
            "of your own, use tensoropt.function."
        )
    if inspect.isclass(given):
        return f"got the class '{given.__name__}'. Make a model of it, '{given.__name__}(…)', compile it and give that."
    if isinstance(given, str | os.PathLike):
        return f"got {os.fspath(given)!r}. If that is the file of a model, give keras.saving.load_model of it."
    if isinstance(given, list | tuple):
        return f"got a {type(given).__name__} of {len(given)}. Give each model by itself; of layers make a model first."
    if given is None:
        return "got None. A function that makes the model has to return it; model.compile returns nothing."
    return None
