"""One device's part of a plan, on ranks that are threads: what it builds, when, and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tf

RANKS = 2


def gradient_of(graph: Any, variable: str) -> str:
    """The operator that is the only gradient of a variable."""
    (found,) = [op.name for op in graph.of_type("Gradient") if op.inputs[0].op == variable]
    return str(found)


def on_every_rank(check: Callable[[Any, int], Any], option: str = "data_parallel", devices: int = RANKS) -> list[Any]:
    """Builds ``x @ w + 1`` (x of 4×3, w of 3×2, of ones) on every rank and calls ``check(executor, rank)``."""
    import tensoropt
    from tensoropt.api.frontend.imported_model import import_model
    from tensoropt.api.mirror.model import current_model
    from tensoropt.cluster.presets import cpu
    from tensoropt.exec.program.device_state import DeviceState
    from tensoropt.exec.program.executor import Executor
    from tests.thread_world import run_threads, session_config

    x = tensoropt.placeholder(tensoropt.float32, [4, 3], name="x")
    w = tensoropt.get_variable("w", [3, 2])
    y = tensoropt.add(tensoropt.matmul(x, w), 1.0, name="y")
    loss = tensoropt.reduce_mean(tensoropt.square(y), name="loss")
    tensoropt.train.GradientDescentOptimizer(0.5).minimize(loss, name="train")
    plan = tensoropt.find_strategy(option, topology=cpu(devices))
    imported = import_model(current_model())

    def run(engine: Any) -> Any:
        executor = Executor(DeviceState(imported.graph, plan, engine, config=session_config()))
        try:
            executor.state.set_variables(lambda name: np.ones((3, 2), np.float32))
            return check(executor, engine.rank)
        finally:
            executor.state.close()

    return run_threads(RANKS, (RANKS,), run)


def test_shares_and_whole_batches_give_the_same_whole_values() -> None:
    from tensoropt.graph.spec import TensorId

    x = np.arange(12, dtype=np.float32).reshape(4, 3)

    def check(executor: Any, rank: int) -> list[Any]:
        (whole,) = executor.run([TensorId("y")], {"x": x})
        (shares,) = executor.run([TensorId("y")], {"x": x[2 * rank : 2 * rank + 2]})
        return [whole, shares]

    for values in on_every_rank(check):
        for value in values:
            np.testing.assert_allclose(value, x @ np.ones((3, 2)) + 1)


def test_a_variable_is_held_in_pieces_and_fetched_whole() -> None:
    from tensoropt.graph.spec import TensorId

    def check(executor: Any, rank: int) -> Any:
        executor.state.set_variables(lambda name: np.arange(6, dtype=np.float32).reshape(3, 2))
        layout = executor.layout_of(TensorId("w"))
        assert executor.state.variables["w"].shape == layout.local_shape((3, 2), executor.plan.mesh)
        assert executor.state.variables["w"].graph is executor.state.session.graph
        return executor.run([TensorId("w")], {})[0]

    for value in on_every_rank(check, "mini_memory"):
        np.testing.assert_array_equal(value, np.arange(6).reshape(3, 2))


@pytest.mark.parametrize("host", ["ResourceApplyGradientDescent", "ResourceApplyAdagradDA"])
def test_variables_of_an_op_without_a_kernel_for_cards_are_on_the_host(
    host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    from tensoropt.exec.program import device_state

    monkeypatch.setattr(device_state, "_is_of_the_host", lambda op_type, dtype: op_type == host)
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind: [kind])
    found = on_every_rank(lambda executor, rank: executor.state.variables["w"].device)
    assert all("CPU" in device if host == "ResourceApplyGradientDescent" else not device for device in found)


def test_kernels_of_cards_are_for_some_dtypes_only() -> None:
    from tensoropt.exec.program.device_state import _is_of_the_host

    found = {
        (op_type, dtype): _is_of_the_host(op_type, dtype)
        for op_type in ("ResourceApplyAdam", "ResourceGather", "ResourceApplyAdagradDA", "AssignVariableOp")
        for dtype in ("float32", "bfloat16", "int32")
    }
    assert {pair for pair, is_of_host in found.items() if is_of_host} == {
        ("ResourceApplyAdam", "bfloat16"),
        ("ResourceGather", "int32"),
        ("ResourceApplyAdagradDA", "float32"),
    }


def test_copies_that_have_come_apart_are_made_equal_after_so_many_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    from tensoropt.exec.program import device_state

    monkeypatch.setattr(device_state, "LEVEL_STEPS", 2)
    feeds = {"x": np.ones((4, 3), np.float32)}

    def check(executor: Any, rank: int) -> list[np.ndarray]:
        executor.state.set_variables(lambda name: np.full((3, 2), 1 + 1e-6 * rank, np.float32))
        found = []
        for _ in range(3):
            executor.run(["train"], feeds)
            found.append(executor.state.stored()["w"][0])
        return found

    apart, *equal = zip(*on_every_rank(check), strict=True)
    assert np.any(apart[0] != apart[1])
    for one, other in equal:
        np.testing.assert_array_equal(one, other)
    assert np.all(equal[1][0] != equal[0][0])


def test_the_whole_initial_value_is_let_go() -> None:
    import ctypes
    import gc
    import weakref

    import tensoropt
    from tensoropt.graph.spec import TensorId

    w = tensoropt.get_variable("w", [64])
    tensoropt.train.GradientDescentOptimizer(0.5).minimize(tensoropt.reduce_sum(tensoropt.square(w)), name="train")

    def check(executor: Any, rank: int) -> Any:
        assert executor.state.variables["w"].shape == (32,)
        memory = (ctypes.c_float * 80)()
        alive = weakref.ref(memory)
        start = -ctypes.addressof(memory) % 64 // 4  # TensorFlow takes memory as it is only where it is aligned
        values = [np.frombuffer(memoryview(memory), np.float32)[start : start + 64]]
        values[0][:] = np.arange(64)
        del memory
        executor.state.set_variables(lambda name: values.pop())
        gc.collect()
        assert alive() is None
        return executor.run([TensorId("w")])[0]

    for found in on_the_model(check, {"w": np.ones(64, np.float32)}, "mini_memory"):
        np.testing.assert_array_equal(found, np.arange(64))


def test_a_program_is_built_once_and_holds_only_what_it_needs() -> None:
    from tensoropt.graph.spec import TensorId

    x = np.ones((4, 3), np.float32)

    def check(executor: Any, rank: int) -> list[int]:
        sizes = []
        for fetches in ([TensorId("w")], [TensorId("w")], [TensorId("y")], ["train"], ["train"]):
            executor.run(fetches, {"x": x})
            sizes.append(len(executor.state.tf_graph.get_operations()))
        return sizes

    for sizes in on_every_rank(check):
        assert sizes[0] == sizes[1] < sizes[2] < sizes[3] == sizes[4]


def test_the_gradient_of_a_step_is_fetched_whole() -> None:
    from tensoropt.graph.spec import TensorId

    x = np.arange(12, dtype=np.float32).reshape(4, 3) / 12

    def check(executor: Any, rank: int) -> list[Any]:
        gradient, _ = executor.run([TensorId(gradient_of(executor.graph, "w")), "train"], {"x": x})
        return [gradient, executor.run([TensorId("w")], {})[0]]

    wanted = x.T @ (x @ np.ones((3, 2)) + 1) * 2 / 8
    for gradient, after in on_every_rank(check):
        np.testing.assert_allclose(gradient, wanted, rtol=1e-5)
        np.testing.assert_allclose(after, 1 - 0.5 * wanted, rtol=1e-5)


def test_a_value_of_another_shape_is_refused() -> None:
    from tensoropt.errors import SessionError

    def check(executor: Any, rank: int) -> None:
        with pytest.raises(SessionError, match=r"^Variable 'w': its value has shape \(2, 2\), it is float32\[3, 2\]"):
            executor.state.set_variables(lambda name: np.ones((2, 2)))

    on_every_rank(check)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.ones((4, 2)), r"'x'.*wants the whole batch \(4, 3\) or this rank's share \(2, 3\), got shape \(4, 2\)"),
        (np.ones((4, 3), np.complex64), r"'x'.*wants float32, got an array of complex64"),
        ("text", r"'x'.*wants float32, got an array of <U4"),
        ([[1.0], [2.0, 3.0]], r"'x'.*wants an array of float32\[4, 3\], got list"),
    ],
)
def test_a_wrong_feed_is_refused(value: Any, message: str) -> None:
    from tensoropt.errors import FeedError
    from tensoropt.graph.spec import TensorId

    def check(executor: Any, rank: int) -> None:
        with pytest.raises(FeedError, match=message):
            executor.run([TensorId("y")], {"x": value})

    on_every_rank(check)


@pytest.mark.parametrize("dtype", [np.float64, np.float16, np.int64, np.uint8, np.bool_])
def test_a_feed_that_loses_only_precision_is_taken(dtype: type) -> None:
    from tensoropt.graph.spec import TensorId

    def check(executor: Any, rank: int) -> Any:
        return executor.run([TensorId("y")], {"x": np.ones((4, 3), dtype)})[0]

    np.testing.assert_array_equal(on_every_rank(check)[0], np.full((4, 2), 4.0))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_whole_floats_are_taken_where_integers_are_wanted(dtype: type) -> None:
    from tensoropt.errors import FeedError
    from tensoropt.exec.program.feeding import checked_array

    largest = np.finfo(dtype).max  # of a half still an integer of 32 bits
    assert checked_array("y", "int32[2]", "int32", np.array([-3.0, 7.0], dtype)).tolist() == [-3, 7]
    for wrong in (0.5, np.nan, np.inf, *([largest] if dtype is not np.float16 else [])):
        with pytest.raises(FeedError, match=r"^y: wants int32, got an array of float\d\d"):
            checked_array("y", "int32[2]", "int32", np.array([1.0, wrong], dtype))


def test_a_missing_and_an_unknown_feed_and_an_unknown_fetch_are_refused() -> None:
    from tensoropt.errors import FeedError, SessionError
    from tensoropt.graph.spec import TensorId

    def check(executor: Any, rank: int) -> None:
        with pytest.raises(FeedError, match=r"'x'.*is needed for y:0 and was not fed\. Add it"):
            executor.run([TensorId("y")])
        with pytest.raises(FeedError, match=r"^Feed 'w': is not a placeholder"):
            executor.run([TensorId("y")], {"x": np.ones((4, 3)), "w": np.ones((3, 2))})
        with pytest.raises(SessionError, match=r"^Fetch 'z': is not in the graph that was planned"):
            executor.run([TensorId("z")])

    on_every_rank(check)


def test_a_plan_for_another_number_of_devices_is_refused() -> None:
    from tensoropt.errors import PlanError

    with pytest.raises(PlanError, match=r"is for 4 devices, this job has 2\. Run it with mpirun -n 4"):
        on_every_rank(lambda executor, rank: None, devices=4)


def on_the_model(runs: Callable[[Any, int], Any], values: dict[str, np.ndarray], option: str = "data_parallel") -> Any:
    """Plans the current model, fills its variables on every rank and calls ``runs(executor, rank)`` there."""
    import tensoropt
    from tensoropt.api.frontend.imported_model import import_model
    from tensoropt.api.mirror.model import current_model
    from tensoropt.cluster.presets import cpu
    from tensoropt.exec.program.device_state import DeviceState
    from tensoropt.exec.program.executor import Executor
    from tests.thread_world import run_threads, session_config

    plan = tensoropt.find_strategy(option, topology=cpu(RANKS))
    imported = import_model(current_model())

    def run(engine: Any) -> Any:
        executor = Executor(DeviceState(imported.graph, plan, engine, config=session_config()))
        try:
            executor.state.set_variables(lambda name: values[name])
            return runs(executor, engine.rank)
        finally:
            executor.state.close()

    return run_threads(RANKS, (RANKS,), run)


def test_a_step_waits_for_what_waits_for_another_step() -> None:
    import tensoropt
    from tensoropt.graph.spec import TensorId

    x = tensoropt.placeholder(tensoropt.float32, [4], name="x")
    w = tensoropt.get_variable("w", [])
    u = tensoropt.get_variable("u", [])
    average = tensoropt.get_variable("average", [], trainable=False)
    optimizer = tensoropt.train.GradientDescentOptimizer(0.5)
    first = optimizer.minimize(tensoropt.reduce_mean(x * w), var_list=[w], name="first")
    with tensoropt.control_dependencies([first]):
        moved = tensoropt.group(average.assign(average * 0.5 + w.read_value() * 0.5))
    with tensoropt.control_dependencies([moved]):
        # The loss, too, is of the variable that the first step has trained.
        loss = tensoropt.reduce_mean(x * u * w.read_value())
        optimizer.minimize(loss, var_list=[u], name="second")

    def check(executor: Any, rank: int) -> list[Any]:
        executor.run(["second"], {"x": np.full(4, 2.0, np.float32)})
        return list(executor.run([TensorId(name) for name in ("w", "average", "u")]))

    values = {"w": np.float32(5), "average": np.float32(1), "u": np.float32(3)}
    for found in on_the_model(check, values):
        # w - 0.5 * 2, half of 1 and 4, u - 0.5 * 2 * 4
        np.testing.assert_allclose(found, [4.0, 2.5, -1.0])


def test_an_assignment_is_waited_for_through_what_is_made_of_it() -> None:
    import tensoropt
    from tensoropt.graph.spec import TensorId

    v = tensoropt.get_variable("v", [4])
    changed = v.assign_add(v * 2.0)
    with tensoropt.control_dependencies([tensoropt.identity(changed)]):
        tensoropt.identity(v.read_value(), name="y")

    def check(executor: Any, rank: int) -> list[Any]:
        return [executor.run([TensorId("y")])[0] for _ in range(2)]

    for found in on_the_model(check, {"v": np.ones(4, np.float32)}):
        np.testing.assert_allclose(found, [[3.0] * 4, [9.0] * 4])


def test_a_random_operator_that_reads_feeds_goes_on_in_a_second_program() -> None:
    import tensorflow as tf

    import tensoropt
    from tensoropt.graph.spec import TensorId

    x = tensoropt.placeholder(tensoropt.float32, [4], name="x")
    shuffled = tensoropt.random.shuffle(x, seed=3, name="shuffled")
    tensoropt.add(shuffled, 1.0, name="more")
    noise = tensoropt.random.uniform([4], seed=3, name="noise")
    tensoropt.add(noise, x, name="noisy")
    fed = {"x": np.arange(4, dtype=np.float32)}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        plain = tf.random.shuffle(fed["x"], seed=3)
        drawn = [session.run(plain) for _ in range(8)]

    def check(executor: Any, rank: int) -> None:
        found = [executor.run([TensorId(name)], fed)[0] for name in ("shuffled", "more", "shuffled", "more") * 2]
        np.testing.assert_array_equal(found, [numbers + number % 2 for number, numbers in enumerate(drawn)])
        executor.run([TensorId("noisy")], fed)
        executor.run([TensorId("noisy"), TensorId("noise/RandomUniform")], fed)

    on_the_model(check, {})


def test_steps_of_one_optimizer_have_hyperparameters_of_their_own_and_share_slots() -> None:
    import tensoropt
    from tensoropt.graph.spec import TensorId

    w = tensoropt.get_variable("w", [])
    rates = iter([1.0, 10.0])
    optimizer = tensoropt.train.MomentumOptimizer(lambda: next(rates), 0.5)
    for name in ("slow", "fast"):
        optimizer.minimize(w * 2.0, name=name)

    def check(executor: Any, rank: int) -> list[float]:
        found = []
        for step in ("fast", "slow"):
            executor.run([step])
            found.append(float(executor.run([TensorId("w")])[0]))
        return found

    for found in on_the_model(check, {"w": np.float32(50), "w/Momentum": np.float32(0)}):
        assert found == [30.0, 27.0]  # 50 - 10 * 2, then less 1 * (2 + 0.5 * 2)


def test_programs_give_the_same_with_and_without_callables_from_options() -> None:
    import tensorflow as tf

    from tensoropt.exec.program.calling import callable_of

    class Older:
        """A session that has not TensorFlow's faster way."""

        def __init__(self, session: Any) -> None:
            self.make_callable = session.make_callable

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        one, other = (tf.compat.v1.placeholder(tf.float32, shape) for shape in ([], [2]))
        nothing = tf.no_op()
        fetches = [nothing, one + other, tf.identity(one), tf.constant("text"), nothing]
        fed = (np.float32(3), np.array([1, 2], np.float32))
        fast, slow = (callable_of(each, fetches, [one, other])(*fed) for each in (session, Older(session)))
    assert [type(value) for value in fast] == [type(value) for value in slow]
    assert fast[0] is None and fast[2:] == [3.0, b"text", None]
    np.testing.assert_array_equal(fast[1], [4, 5])
    np.testing.assert_array_equal(slow[1], [4, 5])


def test_gradients_that_are_fetched_alone_update_nothing() -> None:
    import tensoropt
    from tensoropt.api.frontend.imported_model import import_model
    from tensoropt.api.mirror.model import current_model
    from tensoropt.cluster.presets import cpu
    from tensoropt.exec.program.device_state import DeviceState
    from tensoropt.exec.program.executor import Executor
    from tensoropt.graph.spec import TensorId
    from tests.thread_world import run_threads, session_config

    hidden = tensoropt.placeholder(tensoropt.float32, [4, 6], name="x")
    for layer in range(3):
        hidden = tensoropt.tanh(tensoropt.matmul(hidden, tensoropt.get_variable(f"w{layer}", [6, 6])))
    loss = tensoropt.reduce_mean(tensoropt.square(hidden), name="loss")
    tensoropt.train.MomentumOptimizer(0.5, 0.9).minimize(loss, name="train")
    plan = tensoropt.find_strategy("data_parallel", topology=cpu(1))
    imported = import_model(current_model())
    x = np.random.default_rng(0).normal(size=(4, 6)).astype(np.float32)

    def run(engine: Any) -> list[Any]:
        executor = Executor(DeviceState(imported.graph, plan, engine, config=session_config()))
        try:
            executor.state.set_variables(lambda name: np.eye(6, dtype=np.float32))
            first, second = (executor.run([TensorId(gradient_of(executor.graph, "w0"))], {"x": x})[0] for _ in range(2))
            np.testing.assert_array_equal(first, second)
            return executor.run([TensorId(f"w{layer}") for layer in range(3)], {})
        finally:
            executor.state.close()

    for value in run_threads(1, (1,), run)[0]:
        np.testing.assert_array_equal(value, np.eye(6))
