"""Measuring operators in this process: what is run, what is counted, and what cannot be."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import pytest
import tensorflow as tf

from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import rule_of
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Mesh
from tensoropt.measure import probe_batch
from tensoropt.measure.probe_batch import BatchTimes, measure_batch
from tensoropt.measure.probes import FunctionProbe, OperatorProbe, Probe
from tensoropt.plan.configuration import Configuration
from tests.op_harness import SampleGraph, samples_of

pytestmark = pytest.mark.tf

MESH = Mesh((2,))


def _probe(op_type: str, inputs: dict[str, tuple[int, ...]], out: tuple[int, ...], action: str | None) -> OperatorProbe:
    """An operator as the importer would make it, under a configuration."""
    with tf.Graph().as_default():
        operands = [tf.compat.v1.placeholder(tf.float32, shape) for shape in inputs.values()]
        made = {
            "MatMul": lambda: tf.linalg.matmul(*operands),
            "Softmax": lambda: tf.nn.softmax(*operands),
            "Relu": lambda: tf.nn.relu(*operands),
        }[op_type]()
        node = dict(made.op.node_def.attr)
    plain = {key: value.b for key, value in node.items() if value.WhichOneof("value") == "b"}
    op = Operator(
        op_type.lower(),
        op_type,
        tuple(TensorId(name) for name in inputs),
        (TensorSpec(out, "float32"),),
        MappingProxyType(plain),
        node=node,
    )
    specs = tuple(TensorSpec(shape, "float32") for shape in inputs.values())
    rule = rule_of(op, specs)
    return OperatorProbe(op, rule, specs, Configuration((action,)), MESH, 0, tuple(range(len(inputs))), (0,))


def _measure(*probes: Probe) -> BatchTimes:
    return measure_batch(probes, turn=contextlib.nullcontext, spread=lambda mine: mine, runs=2)


def test_operators_are_measured_forward_and_backward_at_local_shapes() -> None:
    product = _probe("MatMul", {"x": (64, 32), "w": (32, 48)}, (64, 48), "m")
    assert [spec.shape for spec in product.local_inputs()] == [(32, 32), (32, 48)]
    batch = _measure(product)
    (times,) = batch.probes
    assert times is not None
    assert times.forward_s > 0 and times.backward_s > 0
    assert batch.passes_s.shape == (2, 2) and batch.passes_s.all()
    assert times.forward_reduced_bytes == times.backward_reduced_bytes == ()


@pytest.mark.parametrize("op_type", ["FloorMod", "FloorDiv", "TruncateDiv", "Mod", "Pow"])
def test_made_up_integers_are_legal_for_the_operator(op_type: str) -> None:
    node = {"T": tf.compat.v1.AttrValue(type=tf.int32.as_datatype_enum)}
    spec = TensorSpec((64,), "int32")
    op = Operator("op", op_type, (TensorId("x"), TensorId("y")), (spec,), node=node)
    probe = OperatorProbe(op, rule_of(op, (spec, spec)), (spec, spec), Configuration((None,)), MESH, 0, (), ())
    assert probe.integers(1) == (1, 2)
    batch = _measure(probe)
    assert not batch.failures and batch.probes[0] is not None


@pytest.mark.parametrize(
    "op_type",
    [
        "CropAndResize",
        "DynamicStitch",
        "LogMatrixDeterminant",
        "MatrixSolve",
        "ReverseSequence",
        "SparseSegmentMeanWithNumSegments",
        "StatelessRandomUniformV2",
        "StatelessRandomGammaV3",
        "UnsortedSegmentMin",
    ],
)
def test_what_is_made_up_is_legal_for_operators_that_refuse_most_values(op_type: str) -> None:
    """One operator whose kernel fails makes its whole batch be built again, and is priced by an estimate."""
    for sample in samples_of(op_type):
        graph = SampleGraph(sample)
        wanted = graph.wanted
        outgoing = tuple(place for place, value in enumerate(graph.incoming) if wanted and value is not None)
        probe = OperatorProbe(
            graph.op, graph.rule, tuple(graph.input_specs), Configuration(()), Mesh(()), 0, wanted, outgoing
        )
        batch = _measure(probe)
        assert not batch.failures and batch.probes[0] is not None


def test_small_operators_that_a_step_repeats_run_once_before() -> None:
    """Forward and backward, and neither where they are large nor where the step has but one of them."""
    runs: list[str] = []

    def noted(x: Any, name: str) -> Any:
        runs.append(name)
        return x

    def counted(of: str) -> Any:
        @tf.custom_gradient
        def kernel(given: Any) -> Any:
            def gradient(incoming: Any) -> Any:
                return tf.numpy_function(lambda x: noted(x, f"{of} back"), [incoming], tf.float32)

            return tf.numpy_function(lambda x: noted(x, of), [given], tf.float32), gradient

        def build(x: Any) -> list[Any]:
            y = kernel(x)
            y.set_shape(x.shape)
            return [y]

        return build

    small, large = (TensorSpec((8,), "float32"),), (TensorSpec((2**17,), "float32"),)
    probes = [
        FunctionProbe(small, counted("repeated"), (0,), (0,), is_repeated=True),
        FunctionProbe(small, counted("single"), (0,), (0,)),
        FunctionProbe(large, counted("large"), (0,), (0,), is_repeated=True),
    ]
    assert not _measure(*probes).failures
    times = {name: runs.count(name) for name in runs}
    once = times["single"]
    assert times == {
        "repeated": 2 * once, "repeated back": 2 * once, "single": once, "single back": once, "large": once,
        "large back": once,
    }  # fmt: skip


def test_a_clock_is_read_around_each_pass_while_all_ranks_run_at_once() -> None:
    entered = []

    @contextlib.contextmanager
    def entering(which: str) -> Iterator[None]:
        entered.append(which)
        yield

    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 1
        return now

    def busy(x: Any, seconds: float) -> Any:
        """A kernel that keeps the processor busy for so long, by that clock, forward and twice as long backward."""

        def advance(value: Any, times: int) -> Any:
            nonlocal now
            now += times * seconds
            return value

        @tf.custom_gradient
        def kernel(given: Any) -> Any:
            def gradient(incoming: Any) -> Any:
                return tf.numpy_function(lambda value: advance(value, 2), [incoming], tf.float32)

            return tf.numpy_function(lambda value: advance(value, 1), [given], tf.float32), gradient

        result = kernel(x)
        result.set_shape(x.shape)
        return result

    vector = (TensorSpec((8,), "float32"),)
    probes = [
        FunctionProbe(vector, lambda x: [busy(x, 5.0)], (0,), (0,)),
        FunctionProbe(vector, lambda x: [tf.negative(x)]),
        FunctionProbe(vector, lambda x: [busy(x, 7.0)]),
    ]
    times = measure_batch(
        probes,
        turn=lambda: entering("turn"),
        spread=lambda mine: mine,
        crowd=lambda: entering("crowd"),
        clock=clock,
        runs=3,
        traced_runs=1,
    )
    # A run in which what fails is found, a traced one, and one that is thrown away.
    assert entered == ["turn"] * 2 + ["crowd"] * 4
    # Less the second between two readings of the clock.
    assert times.passes_s.tolist() == [[5, 10, 0, 0, 7, 0]] * 3


def test_other_work_comes_between_the_inputs_of_a_cold_probe_and_itself() -> None:
    vector = (TensorSpec((64,), "float32"),)
    seen: list[int] = []

    def build(x: Any) -> list[Any]:
        y = tf.negative(x)
        (clock,) = y.op.control_inputs
        before = [op.outputs[0] for op in clock.control_inputs if op.type == "Fill"]
        seen.append(max((made.shape.num_elements() for made in before), default=0))
        return [y]

    warm, cold = _measure(FunctionProbe(vector, build), FunctionProbe(vector, build, is_cold=True)).probes
    assert warm is not None and cold is not None
    assert seen == [64, 2**21]  # elements of the largest buffer that was made before: the input, or another one


def test_what_an_operator_reduces_itself_is_noted_and_not_run() -> None:
    probe = _probe("Softmax", {"x": (16, 8)}, (16, 8), None)
    axis = next(iter(probe.rule.internal))
    split = _probe("Softmax", {"x": (16, 8)}, (16, 8), axis)
    whole, parts = _measure(probe, split).probes
    assert whole is not None and parts is not None
    assert whole.forward_reduced_bytes == ()
    # The largest value and the sum of each of 16 rows, then one sum backward.
    assert parts.forward_reduced_bytes == (64, 64) and parts.backward_reduced_bytes == (64,)


def test_operators_without_gradients_are_measured_forward_only() -> None:
    probe = _probe("Relu", {"x": (64, 64)}, (64, 64), None)
    alone = OperatorProbe(probe.op, probe.rule, probe.input_specs, probe.configuration, MESH, 0, (), ())
    (times,) = _measure(alone).probes
    assert times is not None and times.forward_s > 0
    assert times.backward_s == 0


def test_what_cannot_be_built_or_run_is_left_out_and_the_rest_is_measured() -> None:
    def unbuildable(x: Any) -> list[Any]:
        raise ValueError("no such thing")

    def refusing(x: Any) -> list[Any]:
        return [tf.debugging.assert_negative(x)]

    vector = (TensorSpec((8,), "float32"),)
    good = FunctionProbe(vector, lambda x: [tf.negative(x)])
    strings = FunctionProbe((TensorSpec((2,), "string"),), lambda x: [x])
    times = _measure(FunctionProbe(vector, unbuildable), good, FunctionProbe(vector, refusing), strings, good)
    assert [entry is not None for entry in times.probes] == [False, True, False, False, True]
    assert "no such thing" in times.failures[0]
    assert "InvalidArgumentError" in times.failures[2]
    assert "inputs of string[2] cannot be made up" in times.failures[3]


def test_a_batch_in_which_nobody_can_be_blamed_is_left_out_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(session: Any, batch: Any) -> Any:
        raise tf.errors.InternalError(None, None, "something is wrong")

    monkeypatch.setattr(probe_batch, "_trace", failing)
    good = FunctionProbe((TensorSpec((8,), "float32"),), lambda x: [tf.negative(x)])
    times = _measure(good, good)
    assert times.probes == (None, None)
    assert times.passes_s.tolist() == [[0.0] * 4] * 2
    assert times.failures[1] == "InternalError: something is wrong"


def test_what_failed_on_another_rank_is_left_out_here_too() -> None:
    good = FunctionProbe((TensorSpec((8,), "float32"),), lambda x: [tf.negative(x)])
    times = measure_batch([good, good], turn=contextlib.nullcontext, spread=lambda mine: {1}, runs=2)
    assert times.probes[0] is not None and times.probes[1] is None
    assert times.failures == {1: "failed on another rank"}


def test_what_kernels_hold_beside_outputs_and_gradients_is_measured() -> None:
    elements = 2**16
    size = 4 * elements

    def build(x: Any) -> list[Any]:
        # Two tensors at once to work with, one of which the gradient of the square reads.
        shifted = tf.concat([x[1:], x[:1]], 0)
        return [tf.reduce_sum(tf.square(shifted))]

    vector = (TensorSpec((elements,), "float32"),)
    (kept,) = _measure(FunctionProbe(vector, build, (0,), (0,))).probes
    (alone,) = _measure(FunctionProbe(vector, build)).probes
    assert kept is not None and alone is not None
    forward, held, backward = kept.scratch_bytes
    assert held == pytest.approx(size, rel=0.01) and forward >= 2 * size * 0.99
    assert 0 < backward <= 3 * size
    assert alone.scratch_bytes[1:] == (0, 0)
