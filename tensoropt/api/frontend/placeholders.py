"""The pass that gives placeholders the sizes which they leave open; what placeholders are open, and for training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.api.frontend.input_pipelines import without_pipelines
from tensoropt.api.frontend.parts import needed_by_training
from tensoropt.api.frontend.source import Source
from tensoropt.api.mirror.model import Model
from tensoropt.errors import GraphError, PlanError
from tensoropt.graph.registry import traits

__all__ = ["example_shapes", "fill_shapes", "open_placeholders", "training_placeholders"]


def open_placeholders(model: Model, *, defaults: bool = False) -> dict[str, Any]:
    """The declared shapes (``tf.TensorShape``) of placeholders that leave a size open, by name.

    Args:
        model: the model, without pipelines.
        defaults: whether placeholders with a default are among them.
    """
    inputs = (op for op in model.graph.get_operations() if traits(op).is_input)
    found = {op.name: op.outputs[0].shape for op in inputs if defaults or traits(op).must_be_fed}
    return {name: shape for name, shape in found.items() if not shape.is_fully_defined()}


def training_placeholders(model: Model) -> dict[str, Any]:
    """The :func:`open_placeholders` that training needs; all of them, if nothing is trained.

    What is read of input pipelines counts as fed to placeholders.
    """
    model = without_pipelines(model)
    opened = open_placeholders(model)
    if not opened or not model.gradient_calls:
        return opened
    needed = needed_by_training(model)
    return {name: shape for name, shape in opened.items() if name in needed}


def fill_shapes(source: Source) -> Source:
    """Gives placeholders that leave sizes open the sizes of this import.

    Where some are given, or the batch size is, others follow: an open first dimension is the batch, and a placeholder
    of which nothing is known a single number. What cannot be known stays open if training does not need it.

    Raises:
        GraphError: a placeholder whose size is unknown or 0.
    """
    model, batch_size, shapes = source.model, source.request.batch_size, source.request.shapes
    found = {name: list(shape) for name, shape in (shapes or {}).items()}
    every = open_placeholders(model, defaults=True)
    must_be_fed = (name for name in every if traits(model.graph.get_operation_by_name(name)).must_be_fed)
    opened = {name: every[name] for name in must_be_fed}
    batches = {found[name][0] for name, shape in every.items() if found.get(name) and _opens_batch(shape)}
    batch = batch_size if batch_size is not None or len(batches) != 1 else batches.pop()
    needed = training_placeholders(model) if source.request.only is None else opened
    for name, shape in opened.items():
        if name in found or name not in source.part.operations:
            continue
        if shape.rank is None and (batch_size is not None or shapes is not None):
            found[name] = []
        elif batch is not None and shape.rank and None not in shape.as_list()[1:]:
            found[name] = [batch, *shape.as_list()[1:]]
        elif name in needed:
            raise GraphError(
                f"{model.terms.subject(name)}: its shape is {shape}, but planning needs every size. Give it a full "
                f"shape, or have the plan made by {model.terms.early}."
            )
    for op in filter(lambda op: traits(op).must_be_fed, model.graph.get_operations()):
        declared = op.outputs[0].shape.as_list() if op.outputs[0].shape.rank else []
        sizes = found.get(op.name, declared)
        if 0 in sizes:
            remedy = "Give it a batch that has samples" if sizes[0] == 0 else "Leave it out of the model"
            raise GraphError(
                f"{model.terms.subject(op.name)}: every size must be at least 1, got the shape "
                f"{tf.TensorShape(sizes)}. {remedy}."
            )
    return replace(source, shapes=found)


def example_shapes(caller: str, model: Model, example: Mapping[Any, Any] | None) -> dict[str, tuple[int, ...]] | None:
    """The shapes of a whole batch's arrays, by the names of their placeholders.

    Raises:
        PlanError: something is in it that is no placeholder of the model, or no array that can be fed to it.
    """
    if example is None:
        return None
    declared = {op.name: op.outputs[0].shape for op in model.graph.get_operations() if traits(op).is_input}
    found: dict[str, tuple[int, ...]] = {}
    for key, value in example.items():
        name = key.split(":")[0] if isinstance(key, str) else key.op.name if tf.is_symbolic_tensor(key) else repr(key)
        if name not in declared:
            raise PlanError(
                f"{caller}(example=…): takes arrays by placeholder, got {name!r}, which is no placeholder. "
                "Give {placeholder: batch}."
            )
        try:
            found[name] = np.shape(value)
        except ValueError as error:
            raise PlanError(f"{caller}(example=…): '{name}' must have an array, got {value!r}: {error}.") from error
        if not declared[name].is_compatible_with(found[name]):
            raise PlanError(
                f"{caller}(example=…): '{name}' has the shape {declared[name]}, got an array of {found[name]}. "
                "Give one as it will be fed, of the whole batch."
            )
    return found


def _opens_batch(shape: Any) -> bool:
    return shape.rank is None or (shape.rank > 0 and shape.as_list()[0] is None)
