"""The pass that finds lookups in which each sample looks up in its own rows only.

Scripts that flatten a batch of sequences add to the places within a sequence where the sequence begins: BERT does to
find masked words, others to take the last word of each sequence. Or they put a sample's number before its place
(``gather_nd``). Without the mark, each device would need the rows of all samples, and no batch could run in parts.

What a run decides may be anything: so the numbers of samples must be constants, and nothing but added to it or put
beside it. Operators that do more than add or move elements are not looked behind. Of indices that are constants, as
``vectorized_map`` makes them to take each sample, all is known.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tensoropt.api.frontend.source import Source
from tensoropt.api.frontend.static_values import keep_static, value_with
from tensoropt.graph.operator import Operator
from tensoropt.graph.ops.gather import SAMPLES
from tensoropt.graph.registry import declaration, has_rule, traits
from tensoropt.graph.spec import TensorId, TensorSpec

__all__ = ["mark_own_rows"]

# So many operators are looked behind, and so many indices looked at.
_MOST_OPERATORS = 64
_MOST_INDICES = 10**7


def mark_own_rows(source: Source) -> Source:
    """Marks lookups with their number of samples, where each looks up in rows of its own.

    That a sample's places in flattened rows stay within it is taken on trust, since only runs know them: where they
    reach into rows of another device, the lookup is an error.
    """
    by_name = {op.name: op for op in source.operators}
    constants: set[str] = set()
    operators = []
    for op in source.operators:
        if _is_constant(op, constants):
            constants.add(op.name)
        samples = _samples(op, by_name, constants, source.graph)
        operators.append(op if samples is None else replace(op, attrs=MappingProxyType({**op.attrs, SAMPLES: samples})))
    return replace(source, operators=tuple(operators))


def _samples(op: Operator, by_name: Mapping[str, Operator], constants: Collection[str], graph: Any) -> int | None:
    """The number of samples with rows of their own; None for all other operators."""
    counts = traits(op).counts_samples
    if counts is None or _is_of_variable(op.inputs[0], by_name):
        return None
    rows, indices = (_spec(tensor, by_name) for tensor in op.inputs)
    by_coordinates = counts(op, (rows, indices))
    if by_coordinates is None or not 0 < indices.elements < _MOST_INDICES:
        return None
    if op.inputs[1].op in constants and not by_coordinates:
        tensor = graph.get_tensor_by_name(str(op.inputs[1]))
        known = None if op.inputs[0].op in constants else value_with(tensor, {})
        return None if known is None else _apart(np.ravel(known), rows.shape[0])
    decided = _decided(op.inputs[1], by_name, constants, sums=not by_coordinates)
    if not decided:
        return None
    tensor = graph.get_tensor_by_name(str(op.inputs[1]))
    specs = {str(each): _spec(each, by_name) for each in decided}

    def value_at(decided: int) -> Any:
        found = value_with(tensor, {name: _filled(spec, decided) for name, spec in specs.items()})
        return None if found is None else np.ravel(found[..., 0] if by_coordinates else found)

    numbers = value_at(0)
    samples = None if numbers is None else _counted(numbers, rows.shape[0])
    if samples is None or indices.shape[0] % samples:
        return None
    if not by_coordinates:
        # A sample of one row has no places: what is added then leads to other samples.
        return None if samples == rows.shape[0] else samples
    # Elements were only moved, so those that are equal whatever is decided are constants.
    if samples != rows.shape[0] or numbers[0] or not np.array_equal(numbers, value_at(1)):
        return None
    keep_static(tensor, specs)
    return samples


def _apart(indices: NDArray[Any], rows: int) -> int | None:
    """The largest number of samples, of as many places and rows each, that look up rows of their own; else None."""
    most = math.gcd(indices.size, rows)
    for samples in (each for each in range(most, 1, -1) if most % each == 0):
        if np.array_equal(indices // (rows // samples), np.arange(samples).repeat(indices.size // samples)):
            return samples
    return None


def _counted(begun: NDArray[Any], rows: int) -> int | None:
    """The number of samples, if each has as many places and rows as any other, in their order.

    Args:
        begun: by place, where its sample begins, and a number that is alike for all.
        rows: of all samples.
    """
    places = int(np.argmax(begun != begun[0]))
    step = int(begun[places] - begun[0])
    if step <= 0 or abs(int(begun[0])) >= step or begun.size % places or rows * places != begun.size * step:
        return None
    samples = begun.size // places
    return samples if np.array_equal(begun - begun[0], np.arange(samples).repeat(places) * step) else None


def _decided(
    tensor: TensorId, by_name: Mapping[str, Operator], constants: Collection[str], *, sums: bool
) -> list[TensorId]:
    """What a run decides of an index tensor; nothing if that is all of it, or too much to look at.

    Args:
        tensor: the indices.
        by_name: all operators.
        constants: the names of those whose values are known.
        sums: whether to look behind sums, and not only behind what moves elements.
    """
    decided: list[TensorId] = []
    pending, seen = [tensor], {tensor}
    while pending:
        at = pending.pop()
        op = by_name[at.op]
        if op.name in constants:
            continue
        if not _is_of_elements(op, by_name, sums=sums):
            decided.append(at)
            continue
        pending += [x for x in op.inputs if x not in seen]
        seen.update(op.inputs)
    if tensor in decided or len(seen) > _MOST_OPERATORS:
        return []
    return [] if any(_spec(each, by_name).elements > _MOST_INDICES for each in decided) else decided


def _is_of_elements(op: Operator, by_name: Mapping[str, Operator], *, sums: bool) -> bool:
    """Tells whether an operator gives integers of its inputs, at places that are known, or sums of such ones."""
    own = traits(op)
    specs = [*op.outputs, *(_spec(tensor, by_name) for tensor in op.inputs)]
    if own.has_effect or own.is_variable or any(not np.issubdtype(spec.dtype, np.integer) for spec in specs):
        return False
    # An operator of one input or of a list, which reads no shifts or lengths.
    moves = (own.moves or own.alias or own.converts) and (len(op.inputs) == 1 or "N" in op.attrs)
    return moves or (sums and own.passes_gradient)


def _is_constant(op: Operator, constants: Collection[str]) -> bool:
    """Tells whether the value of an operator is known: it draws nothing, and reads constants alone."""
    own = traits(op)
    if not has_rule(op.type) or declaration(op.type).shared or op.handles or op.body is not None:
        return False
    if own.has_effect or own.is_input:  # an input may be fed, though it has a default
        return False
    if own.gives_shape:  # which all tensors have by now
        return True
    if not op.inputs:
        return own.is_constant or bool(op.static)
    return all(tensor.op in constants for tensor in op.inputs)


def _is_of_variable(tensor: TensorId, by_name: Mapping[str, Operator]) -> bool:
    """Tells whether rows are a variable's, whose gradient is rows, too."""
    op = by_name[tensor.op]
    while (traits(op).alias or traits(op).converts) and op.inputs:
        op = by_name[op.inputs[0].op]
    return traits(op).is_variable or bool(op.handles)


def _filled(spec: TensorSpec, value: int) -> NDArray[Any]:
    return np.full(spec.shape, value, tf.as_dtype(spec.dtype).as_numpy_dtype)


def _spec(tensor: TensorId, by_name: Mapping[str, Operator]) -> TensorSpec:
    return by_name[tensor.op].outputs[tensor.index]
