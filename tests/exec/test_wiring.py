"""What a device's program is made of is what tests of its parts look at: order, waiting, random numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

pytestmark = [pytest.mark.tf, pytest.mark.smoke]

LAYERS = 3


def _on_ranks(ranks: int, check: Callable[[Any], Any], seeds: Mapping[str, tuple[int, int]] | None = None) -> list[Any]:
    """Builds the model by data parallelism on ranks that are threads, and calls ``check(executor)`` on each."""
    import tensoropt
    from tensoropt.api.frontend.imported_model import import_model
    from tensoropt.api.mirror.model import current_model
    from tensoropt.api.session.seeds import with_seeds
    from tensoropt.cluster.presets import cpu
    from tensoropt.exec.program.device_state import DeviceState
    from tensoropt.exec.program.executor import Executor
    from tests.thread_world import run_threads, session_config

    plan = tensoropt.find_strategy("data_parallel", topology=cpu(ranks))
    imported = import_model(current_model())

    def run(engine: Any) -> Any:
        executor = Executor(DeviceState(with_seeds(imported.graph, seeds or {}), plan, engine, config=session_config()))
        try:
            return check(executor)
        finally:
            executor.state.close()

    return run_threads(ranks, (ranks,), run)


def _layers() -> None:
    """Dense layers ``tanh(x @ w)``, trained."""
    import tensoropt

    hidden = tensoropt.placeholder(tensoropt.float32, [4, 6], name="x")
    for layer in range(LAYERS):
        hidden = tensoropt.tanh(tensoropt.matmul(hidden, tensoropt.get_variable(f"w{layer}", [6, 6])))
    tensoropt.train.GradientDescentOptimizer(0.5).minimize(tensoropt.reduce_mean(hidden, name="loss"), name="train")


def _ancestors(op: Any) -> set[Any]:
    """All ops that one waits for, itself included."""
    found, pending = {op}, [op]
    while pending:
        current = pending.pop()
        for other in (*(tensor.op for tensor in current.inputs), *current.control_inputs):
            if other not in found:
                found.add(other)
                pending.append(other)
    return found


class _Program:
    """The training step of one device, by its ops."""

    def __init__(self, executor: Any) -> None:
        executor.state.set_variables(lambda name: np.eye(6, dtype=np.float32))
        executor.run(["train"], {"x": np.ones((4, 6), np.float32)})
        self.ops = executor.state.tf_graph.get_operations()
        self.updates = [op for op in self.ops if op.type == "ResourceApplyGradientDescent"]
        handles = [executor.state.variables[f"w{layer}"].handle.op.name for layer in range(LAYERS)]
        self.updates.sort(key=lambda op: handles.index(op.inputs[0].op.name))

    def of_type(self, *types: str) -> list[Any]:
        """The ops of some types, in the order in which they were made."""
        return [op for op in self.ops if op.type in types]


@pytest.mark.parametrize("ranks", [1, 2])
def test_an_update_waits_for_all_reads_of_its_variable_and_for_the_loss(ranks: int) -> None:
    _layers()

    def check(executor: Any) -> None:
        program = _Program(executor)
        products = [op for op in program.of_type("MatMul") if "gradients" not in op.name]
        backward = [op for op in program.of_type("MatMul") if "gradients" in op.name]
        loss = program.of_type("Mean")
        reads = [op for op in program.of_type("ReadVariableOp") if op in _ancestors(loss[0])]
        assert (len(program.updates), len(products), len(loss)) == (LAYERS, LAYERS, 1)
        for layer, update in enumerate(program.updates):
            waits_for = _ancestors(update)
            assert waits_for >= {op for op in reads if op.inputs[0] is update.inputs[0]} != set()
            assert products[layer] in waits_for and loss[0] in waits_for
            # The gradient of a layer's input reads the weight, too; that of the first layer is not wanted.
            again = [op for op in backward if products[layer].inputs[1].op in {t.op for t in op.inputs}]
            assert len(again) >= (layer > 0)
            assert waits_for >= set(again[: int(layer > 0)])

    _on_ranks(ranks, check)


def test_the_backward_pass_of_a_layer_waits_for_the_gradient_and_the_update_of_the_next_one() -> None:
    _layers()

    def check(executor: Any) -> None:
        program = _Program(executor)
        backward = program.of_type("TanhGrad")  # of the last layer first
        assert len(backward) == LAYERS
        for layer in range(1, LAYERS):
            before = backward[LAYERS - layer]  # of the layer below
            assert program.updates[layer] in before.control_inputs
            of_weight = [op for op in before.control_inputs if op.type == "MatMul"]
            assert len(of_weight) == 1 and of_weight[0] in _ancestors(program.updates[layer])

    _on_ranks(1, check)


def test_on_several_devices_the_backward_pass_waits_for_gradients_too() -> None:
    _layers()

    def check(executor: Any) -> None:
        backward = _Program(executor).of_type("TanhGrad")
        assert sum(any(op.type == "MatMul" for op in each.control_inputs) for each in backward) == LAYERS - 1

    _on_ranks(2, check)


@pytest.mark.parametrize("with_job_seeds", [False, True])
def test_dropouts_without_seeds_differ_and_are_the_same_on_all_ranks(with_job_seeds: bool) -> None:
    import tensoropt
    from tensoropt.api.session.seeds import resolve_seeds
    from tensoropt.graph.spec import TensorId

    x = tensoropt.placeholder(tensoropt.float32, [40, 50], name="x")
    kept = [tensoropt.nn.dropout(x, rate=0.5, name=name) for name in ("one", "other")]
    # A job gives them seeds; without them lowering does.
    seeds = resolve_seeds(kept[0].graph, 5) if with_job_seeds else {}
    assert len(set(seeds.values())) == len(seeds) == (2 if with_job_seeds else 0)

    def check(executor: Any) -> Any:
        fetches = [TensorId(tensor.op.name) for tensor in kept]
        return executor.run(fetches, {"x": np.ones((40, 50), np.float32)})

    (one, other), again = _on_ranks(2, check, seeds)
    # Of 2,000 elements each half is kept, so half of them agree.
    assert 800 < np.count_nonzero(one) < 1200 and 800 < np.count_nonzero(other) < 1200
    assert 800 < np.count_nonzero((one > 0) == (other > 0)) < 1200
    np.testing.assert_array_equal([one, other], again)
