"""Splits of an op that would be right but that its rule has not, found by trying all."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

from tensoropt.graph import registry
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import declaration
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Operand, Sample, floats
from tensoropt.graph.spec import TensorSpec
from tests.op_harness import SampleGraph, draw, lowered_types

pytestmark = pytest.mark.tf

Arrays = Sequence[np.ndarray]
Split = Mapping[int, int]  # per input that is split, the dimension that is
_SUM = "sum"


@dataclass(frozen=True)
class Found:
    """A split of inputs whose parts together are the whole op.

    Attributes:
        inputs: the dimension of each input that is split.
        outputs: per output how its parts are put together: by dimensions, or ``_SUM``; there may be several ways.
    """

    inputs: tuple[tuple[int, int], ...]
    outputs: tuple[tuple[int | str, ...], ...]

    def __str__(self) -> str:
        inputs = ", ".join(f"{position}:{dim}" for position, dim in self.inputs)
        return f"{inputs} -> {', '.join(str(ways[0]) for ways in self.outputs)}"


class Op:
    """A sample's op, run on any inputs."""

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        built = SampleGraph(sample)
        self.rule: OpRule = built.rule
        self.operator, self.specs = built.op, built.input_specs
        self.inputs: list[np.ndarray] = built.inputs
        self._counts = [
            len(o) if isinstance(o, list) and _is_listed(sample, i) else 1 for i, o in enumerate(sample.operands)
        ]
        total = sum(self._counts)
        fixed = {position % total for position in declaration(sample.type).static} if total else set()
        self._places = [place for place in range(total) if place not in fixed]
        operands = [one for o, n in zip(sample.operands, self._counts, strict=True) for one in (o if n > 1 else [o])]
        moving = [operands[place] for place in self._places]
        random = np.random.default_rng(5)
        # What holds for numbers of one draw may do so by chance.
        self.draws = [
            self.inputs,
            *(
                [
                    draw(o, 3 * i, random) if isinstance(o, Operand) else x
                    for i, (o, x) in enumerate(zip(moving, self.inputs, strict=True))
                ]
                for _ in range(3)
            ),
        ]

    def run(self, inputs: Arrays) -> list[np.ndarray] | None:
        """Its outputs; None if it cannot be run on such inputs."""
        definition = op_def_registry.get(self._sample.type)
        function = getattr(tf.raw_ops, self._sample.type)
        given = dict(zip(self._places, inputs, strict=True))
        arguments: dict[str, Any] = {}
        names = _parameters(function, definition, self._sample.attrs)
        first = 0
        for argument, operand, count in zip(definition.input_arg, self._sample.operands, self._counts, strict=True):
            values = [given.get(first + i, operand) for i in range(count)]
            arguments[names[argument.name]] = values if _is_list(argument) else values[0]
            first += count
        try:
            made = function(**arguments, **{names[name]: value for name, value in self._sample.attrs.items()})
        except (tf.errors.OpError, ValueError, TypeError):
            return None
        outputs = made if isinstance(made, list | tuple) else [made]
        return [np.asarray(output) for output in outputs]


def _parameters(function: Any, definition: Any, attrs: Iterable[str]) -> dict[str, str]:
    """What Python calls the operands and attributes of an op; some have other names than in its definition."""
    called = inspect.signature(function).parameters
    operands = [argument.name for argument in definition.input_arg]
    attributes = {attr.name for attr in definition.attr}
    renamed = iter([name for name in called if name not in {*operands, *attributes, "name"}])
    return {name: name if name in called else next(renamed) for name in (*operands, *attrs)}


def _is_list(argument: Any) -> bool:
    return bool(argument.number_attr or argument.type_list_attr)


def _is_listed(sample: Sample, position: int) -> bool:
    return _is_list(op_def_registry.get(sample.type).input_arg[position])


def _splits(inputs: Arrays) -> Iterator[Split]:
    """All ways to split at most one dimension of each input, and at least one input."""
    choices = [[None, *(dim for dim, extent in enumerate(x.shape) if extent > 1)] for x in inputs]
    for chosen in itertools.product(*choices):
        split = {position: dim for position, dim in enumerate(chosen) if dim is not None}
        if split:
            yield split


def _ways(whole: np.ndarray, parts: Arrays) -> Iterator[int | str]:
    """How parts of an output make the whole."""
    rtol, atol = (1e-2, 1e-3) if whole.dtype.itemsize == 2 else (1e-4, 1e-5)
    for dim, _ in enumerate(whole.shape):
        if all(part.ndim == whole.ndim for part in parts):
            try:
                joined = np.concatenate(parts, dim)
            except ValueError:
                continue
            if joined.shape == whole.shape and np.allclose(joined, whole, rtol, atol, equal_nan=True):
                yield dim
    # An output that an op leaves unset (Svd's bases where only values are asked for) may be NaN: no sum.
    is_number = whole.dtype.kind in "iufc" and np.all(np.isfinite(whole)) and np.any(whole)
    if is_number and all(part.shape == whole.shape for part in parts):
        total = np.sum([part.astype(np.complex128) for part in parts], axis=0)
        if np.allclose(total, whole, rtol, atol):
            yield _SUM


def found_splits(op: Op) -> Iterator[Found]:
    """The splits of one input dimension each whose parts, computed apart, are the whole."""
    wholes = [op.run(inputs) for inputs in op.draws]
    assert wholes[0] is not None, "the whole op does not run"
    for split in _splits(op.inputs):
        ways: list[set[int | str]] | None = None
        for inputs, whole in zip(op.draws, wholes, strict=True):
            made = None if whole is None else _ways_of(op, inputs, whole, split)
            ways = made if ways is None or made is None else [a & b for a, b in zip(ways, made, strict=True)]
            if not ways or not all(ways):
                break
        else:
            yield Found(tuple(split.items()), tuple(tuple(sorted(way, key=str)) for way in ways or ()))


def _ways_of(op: Op, inputs: Arrays, whole: Arrays, split: Split) -> list[set[int | str]] | None:
    """How the parts under a split make each output; None if there are none."""
    extents = [inputs[position].shape[dim] for position, dim in split.items()]
    pieces = next((n for n in (2, 3, 5, 7) if not any(extent % n for extent in extents)), 0)
    cut = {position: np.split(inputs[position], max(pieces, 1), dim) for position, dim in split.items()}
    parts = []
    for piece in range(pieces):
        part = op.run([cut[i][piece] if i in cut else x for i, x in enumerate(inputs)])
        if part is None:
            return None
        parts.append(part)
    return [{*_ways(output, [part[i] for part in parts])} for i, output in enumerate(whole)] if parts else None


def has_split(op: Op, found: Found) -> bool:
    """Whether an axis of an op's rule splits just these dimensions."""
    split, rule = dict(found.inputs), op.rule

    def fits(axis: str) -> bool:
        for position, (dims, x) in enumerate(zip(rule.inputs, op.inputs, strict=True)):
            places = [dim for dim, names in enumerate(dims) if axis in names and x.shape[dim]]
            if places != ([split[position]] if position in split else []):
                return False
        for ways, dims in zip(found.outputs, rule.outputs, strict=True):
            places = [dim for dim, names in enumerate(dims) if axis in names]
            if places and not set(places) & set(ways):
                return False
            if not places and axis not in rule.internal and (axis not in rule.reduced or _SUM not in ways):
                return False
        return True

    return any(map(fits, rule.split))


def missing_splits(sample: Sample) -> list[Found]:
    """What a rule lacks; what an op does not read may be split as well."""
    op = Op(sample)
    every = [*found_splits(op)]
    declared = [{*found.inputs} for found in every if has_split(op, found)]
    return [found for found in every if not any({*found.inputs} <= inputs for inputs in declared)]


def _is_tried(op_type: str) -> bool:
    """Whether it can be run apart: on values, not on a variable itself."""
    definition = op_def_registry.get(op_type)
    return bool(definition.input_arg) and all(
        argument.type != tf.resource.as_datatype_enum for argument in definition.input_arg
    )


TRIED = [op_type for op_type in lowered_types() if _is_tried(op_type)]


@pytest.mark.parametrize("op_type", [op_type for op_type in TRIED if declaration(op_type).types[0] == op_type])
def test_every_split_that_is_right_is_in_the_rule_or_left_out_with_a_reason(op_type: str) -> None:
    declared = declaration(op_type)
    samples = [sample for sample in declared.samples if sample.type in TRIED]
    assert {str(found) for sample in samples for found in missing_splits(sample)} == set(declared.unsplit)
    assert all(declared.unsplit.values()), "say why"


def test_a_split_that_a_rule_lacks_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = declaration("MatMul")

    def by_rows(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
        return replace(whole.rule(op, inputs), split=("m",), reduced=frozenset())

    monkeypatch.setitem(registry._REGISTRY, "MatMul", replace(whole, rule=by_rows))
    found = {str(found) for found in missing_splits(Sample("MatMul", (floats(8, 6), floats(6, 12))))}
    assert found == {"0:1, 1:0 -> sum", "1:1 -> 1"}
