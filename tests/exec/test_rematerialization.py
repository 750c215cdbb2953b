"""Copies that are made again in the backward pass: the gradients are right, and the first copy is let go."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt as to
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.mirror.model import current_model
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.errors import PlanError
from tensoropt.exec.program.device_state import DeviceState
from tensoropt.exec.program.executor import Executor
from tensoropt.exec.program.gradient import late
from tensoropt.exec.program.lowering import OpLowering, lower_operator
from tensoropt.exec.program.rematerialization import with_output_again, with_second_copy
from tensoropt.graph.graph import Graph
from tensoropt.graph.registry import declaration, registered_types
from tensoropt.graph.spec import TensorId
from tensoropt.layout import Mesh
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import Plan, rules_of
from tensoropt.plan.recomputation import why_not_again
from tensoropt.plan.tensor_reuse import keep_choices
from tensoropt.space.space import SearchSpace
from tests import op_harness
from tests.effort import EVERY_CASE
from tests.exec.random_runs import as_stored
from tests.thread_world import run_threads, session_config

pytestmark = pytest.mark.tf

_SPLITS = {"Variable": "d0", "MatMul": "m", "Tanh": "d0", "Square": "d0", "Placeholder": "d0"}


# ------------------------------------------------------------------------------------------- gradients of single ops


_FROM_OUTPUT = [each for each in registered_types() if declaration(each).traits.gradient_from_output is not None]


@pytest.mark.parametrize("op_type", _FROM_OUTPUT)
def test_a_gradient_from_the_output_is_tensorflows(op_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lower(ctx: OpLowering, inputs: Sequence[Any]) -> list[Any]:
        made = lower_operator(ctx, inputs)
        if not made[0].dtype.is_floating:
            return made
        return with_output_again(ctx, inputs, made, lambda dy: tf.identity(made[0]))

    monkeypatch.setattr(op_harness, "lower_operator", lower)
    _check(op_type)


# Of each way of lowering: one op, several ops, collectives or gradients of its own, rows, outputs that it reads.
_KINDS = (
    "BatchMatMulV2 BiasAdd Conv2D Einsum FusedBatchNormV3 GatherV2 L2Loss MatMul Max MaxPool Mul Pow Prod RealDiv "
    "Select SoftmaxCrossEntropyWithLogits SparseSoftmaxCrossEntropyWithLogits"
).split()
_EVERY = [each for each in op_harness.lowered_types() if not declaration(each).shared]
_BUILT_TWICE = _EVERY if EVERY_CASE else _KINDS


@pytest.mark.parametrize("op_type", _BUILT_TWICE)
def test_the_gradient_of_a_second_copy_is_tensorflows(op_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def lower(ctx: OpLowering, inputs: Sequence[Any]) -> list[Any]:
        made = lower_operator(ctx, inputs)
        wants = [tensor.dtype.is_floating or tensor.dtype.is_complex for tensor in inputs]

        def second_copy(after: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
            again = [late(tensor, after) for tensor in inputs]
            return again, lower_operator(ctx, again)

        return with_second_copy(inputs, made, second_copy, wants)

    monkeypatch.setattr(op_harness, "lower_operator", lower)
    _check(op_type)


def _check(op_type: str) -> None:
    samples = [sample for sample in declaration(op_type).samples if sample.type == op_type]
    assert samples
    for sample in samples[:1]:
        report = op_harness.check_sample(sample, (Mesh((2, 2)),))
        assert not report.failures, f"{sample}: {report.failures[:3]}"
        assert report.splits or not report.splittable


# ------------------------------------------------------------------------------------------------- what is let go


class Recorded:
    """A training step on one rank, before and after TensorFlow's optimizer has been at it."""

    def __init__(self, executor: Executor, feeds: dict[str, np.ndarray]) -> None:
        graph = executor.state.tf_graph
        executor.run(["train"], feeds)
        step = [op for op in graph.get_operations() if op.type == "NoOp"][-1]
        placeholders = [op for op in graph.get_operations() if op.type == "Placeholder" and "program" in op.name]
        metadata = tf.compat.v1.RunMetadata()
        executor.state.session.run(
            step,
            {op.outputs[0]: feeds[op.name.split("/")[-1]] for op in placeholders},
            options=tf.compat.v1.RunOptions(output_partition_graphs=True),
            run_metadata=metadata,
        )
        self.built = {op.name: [tensor.op.name for tensor in op.inputs] for op in graph.get_operations()}
        self.optimized = {
            node.name: [name.split(":")[0] for name in node.input if not name.startswith("^")]
            for part in metadata.partition_graphs
            for node in part.node
        }
        self.types = {node.name: node.op for part in metadata.partition_graphs for node in part.node}

    def read_backwards(self, nodes: dict[str, list[str]]) -> set[str]:
        """What the backward pass reads of the forward pass, constants aside."""
        return {
            name
            for reader, names in nodes.items()
            if "/gradients/" in reader
            for name in names
            if "/gradients/" not in name and name.startswith("program_0/") and self.types.get(name) != "Const"
        }


def _three_layers() -> tuple[Graph, Plan]:
    """Three dense layers: variables in pieces, activations by rows, then columns, then rows again."""
    h = to.placeholder(to.float32, [8, 16], name="x")
    for layer in range(3):
        w = to.get_variable(f"w{layer}", [16, 16])
        h = to.tanh(to.matmul(h, w, name=f"product{layer}"), name=f"tanh{layer}")
    loss = to.reduce_mean(to.square(h), name="loss")
    to.train.GradientDescentOptimizer(0.5).minimize(loss, name="train")
    return _planned(_SPLITS | {"product1": "n", "tanh1": "d1"})


def _planned(splits: Mapping[str, Any], ranks: int = 2) -> tuple[Graph, Plan]:
    """The current model, planned for some ranks: what each operator splits, by name or by type, or else nothing.

    What takes a variable where it is stored is split as that is.
    """
    imported = import_model(current_model())
    space = SearchSpace(imported.graph, AnalyticCost(cpu(ranks)))
    chosen: dict[str, Configuration] = {}
    for op in space.operators:
        wanted = splits.get(op.name, splits.get(op.type))
        wanted = Configuration(wanted if isinstance(wanted, tuple) else (wanted,))
        choices = space.choices(op.name)
        stored = as_stored(space, op, chosen)
        chosen[op.name] = stored or (wanted if wanted in choices else choices[-1])
    return imported.graph, space.plan(space.assignment(chosen), "hand")


def _keeping(plan: Plan, graph: Graph, keep: str) -> Plan:
    """The plan with ``keep`` on all edges that can have it."""
    rules = rules_of(graph)
    edges = {
        edge: dataclasses.replace(entry, keep=keep)
        if entry.forward and keep in keep_choices(graph, rules, edge)
        else entry
        for edge, entry in plan.edges.items()
    }
    return dataclasses.replace(plan, edges=edges)


def _train(plan: Plan, check: Callable[[Executor, dict[str, np.ndarray]], Any]) -> list[Any]:
    imported = import_model(current_model())
    random = np.random.default_rng(0)
    values = {op.name: random.normal(size=op.outputs[0].shape) for op in imported.graph.of_type("Variable")}
    x = random.normal(size=(8, 16)).astype(np.float32)

    def run(engine: Any) -> Any:
        executor = Executor(DeviceState(imported.graph, plan, engine, config=session_config()))
        try:
            executor.state.set_variables(lambda name: values[name])
            return check(executor, {"x": np.split(x, engine.size)[engine.rank]})
        finally:
            executor.state.close()

    return run_threads(plan.mesh.size, plan.mesh.shape, run)


def test_the_backward_pass_reads_the_copies_before_the_moves_only() -> None:
    graph, plan = _three_layers()
    both, before = (_train(_keeping(plan, graph, keep), Recorded)[0] for keep in ("both", "before"))
    for recorded, nodes in ((both, both.optimized), (before, before.optimized)):
        found = {name for name in recorded.read_backwards(nodes)}
        moved = {name for name in found if recorded.types[name] not in ("Tanh", "ReadVariableOp", "Identity")}
        # Both activations that move and the variables of the second and third product; the first's gradient is not
        # wanted by what is fed, so its variable is not read again.
        assert len(moved) == (4 if recorded is both else 0), moved
    # Nothing of the second copies runs but what makes inputs again.
    assert sum(op_type == "_MklMatMul" or op_type == "MatMul" for op_type in before.types.values()) == 3 + 5


def test_the_backward_pass_reads_the_copies_after_the_moves_only() -> None:
    graph, plan = _three_layers()
    both, after = (_train(_keeping(plan, graph, keep), Recorded)[0] for keep in ("both", "after"))
    assert {"program_0/tanh0", "program_0/tanh1"} <= both.read_backwards(both.optimized)
    assert not {"program_0/tanh0", "program_0/tanh1"} & after.read_backwards(after.optimized)
    assert not {"program_0/tanh0", "program_0/tanh1"} & after.read_backwards(after.built)


@pytest.mark.parametrize("keep", ["before", "after"])
def test_what_is_kept_does_not_change_the_numbers(keep: str) -> None:
    graph, plan = _three_layers()

    def check(executor: Executor, feeds: dict[str, np.ndarray]) -> list[Any]:
        losses = [float(executor.run([TensorId("loss"), "train"], feeds)[0]) for _ in range(4)]
        return [losses, *executor.run([TensorId(f"w{layer}") for layer in range(3)])]

    kept = _keeping(plan, graph, keep)
    assert sum(entry.keep == keep for entry in kept.edges.values()) >= 2
    for one, other in zip(_train(plan, check), _train(kept, check), strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_a_copy_that_is_not_kept_is_not_made_before_the_other_inputs_are_there() -> None:
    graph, plan = _three_layers()
    for keep in ("both", "before"):

        def check(executor: Executor, feeds: dict[str, np.ndarray]) -> bool:
            executor.run(["train"], feeds)
            by_name = {op.name: op for op in executor.state.tf_graph.get_operations()}
            gathers = [op for name, op in by_name.items() if "all_gather" in name and "/gradients/" not in name]
            last = next(op for op in reversed(gathers) if any(t.shape == (8, 16) for t in op.inputs))
            return _depends_on(last.inputs[0].op, by_name["program_0/tanh1"])

        assert _train(_keeping(plan, graph, keep), check) == [keep == "before"] * 2


def _depends_on(op: Any, other: Any) -> bool:
    pending, seen = [op], {op}
    while pending:
        current = pending.pop()
        if current is other:
            return True
        fresh = {*(tensor.op for tensor in current.inputs), *current.control_inputs} - seen
        seen |= fresh
        pending += fresh
    return False


def test_an_operator_that_reads_what_is_made_again_twice_gets_the_gradient_of_each_once() -> None:
    x = to.placeholder(to.float32, [8, 16], name="x")
    w = to.get_variable("w", [16, 16])
    h = to.matmul(x, w, name="h")
    loss = to.reduce_mean(h * h, name="loss")
    to.train.GradientDescentOptimizer(0.5).minimize(loss, name="train")
    graph, plan = _planned({"MatMul": "m", "Placeholder": "d0", "Fanout": None, "Mul": None})
    (gradient,) = [op.name for op in graph.of_type("Gradient")]
    fanout = next(edge for edge in plan.edges if edge.tensor == TensorId("h"))
    edges = dict(plan.edges) | {fanout: dataclasses.replace(plan.edge(fanout), keep="before")}
    assert graph[fanout.consumer].type == "Fanout"

    def check(executor: Executor, feeds: dict[str, np.ndarray]) -> Any:
        return executor.run([TensorId(gradient)], feeds)[0]

    for found, wanted in zip(_train(dataclasses.replace(plan, edges=edges), check), _train(plan, check), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5)


def test_readers_of_a_fan_out_share_what_is_made_again() -> None:
    x = to.placeholder(to.float32, [8, 16], name="x")
    w = to.get_variable("w", [16, 16])
    h = to.tanh(to.matmul(to.tanh(to.matmul(x, w)), w))
    loss = to.reduce_mean(to.square(to.matmul(h, w)), name="loss")
    to.train.GradientDescentOptimizer(0.5).minimize(loss, name="train")
    graph, plan = _planned(_SPLITS | {"Fanout": "~"})

    def check(executor: Executor, feeds: dict[str, np.ndarray]) -> tuple[int, float]:
        loss = [float(executor.run([TensorId("loss"), "train"], feeds)[0]) for _ in range(3)][-1]
        emitted = executor.state.engine.emitted(executor.state.tf_graph)
        return sum("all_gather" in line and "(8, 16)" in line for line in emitted), loss

    kept = _keeping(plan, graph, "before")
    (once, loss_once), (twice, loss_twice) = _train(plan, check)[0], _train(kept, check)[0]
    assert (once, twice) == (1, 2)
    np.testing.assert_allclose(loss_twice, loss_once, rtol=1e-5)


def test_a_convolution_whose_input_is_made_again_after_the_gradient_of_its_bias_trains() -> None:
    x = to.placeholder(to.float32, [8, 16], name="x")
    images = to.tanh(to.reshape(to.matmul(x, to.get_variable("w", [16, 16])), [8, 2, 2, 4]), name="images")
    y = to.nn.conv2d(images, to.get_variable("filter", [3, 3, 4, 4]), 1, "SAME")
    y = to.nn.bias_add(y, to.get_variable("bias", [4]))
    loss = to.reduce_mean(to.square(y), name="loss")
    to.train.GradientDescentOptimizer(0.5).minimize(loss, name="train")
    splits = {"Conv2D": ("n", "c"), "BiasAdd": ("d0", None), "filter": ("d3", None), "images": ("d0", "d3")}
    graph, plan = _planned(splits, ranks=4)

    def check(executor: Executor, feeds: dict[str, np.ndarray]) -> list[Any]:
        for _ in range(2):
            executor.run(["train"], feeds)
        return executor.run([TensorId(name) for name in ("w", "filter", "bias")])

    kept = _keeping(plan, graph, "before")
    assert any(entry.keep == "before" and edge.tensor.op == "filter" for edge, entry in kept.edges.items())
    for found, wanted in zip(_train(kept, check)[0], _train(plan, check)[0], strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-6)


# ------------------------------------------------------------------------------------- operators that are made again


def _again(plan: Plan, graph: Graph, *names: str) -> Plan:
    """The plan by which some operators are made again, by default all that can be; no copies are let go beside."""
    operators = {
        name: dataclasses.replace(
            entry, configuration=dataclasses.replace(entry.configuration, again=not names or name in names)
        )
        if why_not_again(graph, graph[name]) is None
        else entry
        for name, entry in plan.operators.items()
    }
    return dataclasses.replace(plan, operators=operators)


def _attention() -> tuple[Graph, Plan]:
    """A block with a residual stream, whose scores are split over heads and whose rows are split elsewhere."""
    x = to.placeholder(to.float32, [8, 16], name="x")
    h = to.tanh(to.matmul(x, to.get_variable("w0", [16, 16])), name="h")
    parts = [
        to.transpose(to.reshape(to.matmul(h, to.get_variable(name, [16, 16])), [8, 2, 8]), [1, 0, 2])
        for name in ("q", "k", "v")
    ]
    scores = to.matmul(parts[0], parts[1], transpose_b=True, name="scores")
    mixed = to.matmul(to.nn.softmax(scores, name="softmax"), parts[2], name="mixed")
    y = h + to.matmul(to.reshape(to.transpose(mixed, [1, 0, 2]), [8, 16]), to.get_variable("w1", [16, 16]))
    loss = to.reduce_mean(to.square(y) * to.reduce_max(y, axis=1, keepdims=True), name="loss")
    to.train.GradientDescentOptimizer(0.5).minimize(loss, name="train")
    return _planned(_SPLITS | {"BatchMatMulV2": "b0", "Softmax": "d0", "Transpose": "d0", "Reshape": "d0"})


@pytest.mark.parametrize("model", [_three_layers, _attention])
def test_what_is_made_again_does_not_change_the_numbers(model: Callable[[], tuple[Graph, Plan]]) -> None:
    graph, plan = model()
    variables = [TensorId(op.name) for op in graph.of_type("Variable")]

    def check(executor: Executor, feeds: dict[str, np.ndarray]) -> list[Any]:
        losses = [executor.run([TensorId("loss"), "train"], feeds)[0] for _ in range(4)]
        return [*losses, *executor.run(variables)]

    again = _again(plan, graph)
    assert len(again.again) >= 7
    again.check(graph)
    assert Plan.from_json(again.to_json()) == again
    for one, other in zip(_train(plan, check), _train(again, check), strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)


def test_the_backward_pass_reads_nothing_of_what_is_made_again() -> None:
    graph, plan = _attention()
    again = _again(plan, graph)
    plain, remade = (_train(each, Recorded)[0] for each in (plan, again))
    names = {f"program_0/{name}" for name in ("h", "scores", "softmax", "mixed")}
    for nodes in ("built", "optimized"):
        assert names & plain.read_backwards(getattr(plain, nodes))
        assert not names & remade.read_backwards(getattr(remade, nodes)), nodes


@pytest.mark.parametrize("name", ["softmax", "scores", "mixed", "h"])
def test_one_operator_is_made_again_once(name: str) -> None:
    graph, plan = _attention()
    again = _again(plan, graph, name)
    assert again.again == {name}
    remade = _train(again, Recorded)[0]
    assert f"program_0/{name}" not in remade.read_backwards(remade.built)
    copies = [op for op in remade.built if op.rsplit("/", 1)[-1].rstrip("_0123456789") == name]
    assert len([op for op in copies if "/gradients/" in op]) == 1, copies


def test_what_cannot_be_made_again_is_refused() -> None:
    x = to.placeholder(to.float32, [8, 16], name="x")
    h = to.matmul(x, to.get_variable("w", [16, 16])) + to.random.normal([8, 16], name="noise")
    to.train.GradientDescentOptimizer(0.5).minimize(to.reduce_mean(to.square(h), name="loss"), name="train")
    graph, plan = _planned(_SPLITS)
    for op in graph.operators:
        entry = plan.operators[op.name]
        wanted = dataclasses.replace(entry, configuration=dataclasses.replace(entry.configuration, again=True))
        changed = dataclasses.replace(plan, operators={**plan.operators, op.name: wanted})
        if op.type in ("MatMul", "AddV2", "Square", "Mean"):
            changed.check(graph)
        elif op.type in ("Variable", "Placeholder", "Sink", "Gradient", "RandomStandardNormal"):
            with pytest.raises(PlanError, match="made again"):
                changed.check(graph)
