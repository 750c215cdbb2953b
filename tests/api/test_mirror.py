"""The mirror against TensorFlow: every name, every signature, and where a mirrored call builds."""

from __future__ import annotations

import functools
import importlib
import inspect
import operator
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt
from tensoropt.api.mirror.lookup import MirrorNamespace, UnsupportedError
from tensoropt.api.mirror.model import Model, current_model, leave_graph, reset_default_graph
from tensoropt.api.mirror.namespaces import (
    CONTEXT_CLASSES,
    NAMESPACES,
    OWN,
    PLAIN,
    PLAIN_NAMESPACES,
    UNSUPPORTED,
    VERSION_1_ONLY,
)
from tensoropt.errors import GraphError, SessionError
from tests.control_flow import control_flow_v2

pytestmark = pytest.mark.tf

v1 = tf.compat.v1

# The mirrored names whose signature differs from TensorFlow's, each with its reason.
EXCEPTIONS = {
    "GradientDescentOptimizer": "learning_rate has a default, so that the paper's Listing 1 runs as printed",
    "train.GradientDescentOptimizer": "the same",
    "function": "it plans what it traces",
    "ReaderBase": "it reads a dataset, and so has no TensorFlow reader",
    "lookup.StaticHashTable": "TensorFlow's takes any arguments, of which these are the ones that it has",
    "lookup.StaticVocabularyTable": "the same",
}
# Names of TensorFlow that the steps of a job take over, tested with those.
OURS = {name for name, (module, _) in OWN.items() if module.endswith(".runtime")}


def _twin(dotted: str) -> Any:
    """TensorFlow's object of this name, found without the mirror's help; None if there is none."""
    roots = [v1] if dotted.partition(".")[0] in VERSION_1_ONLY else [v1, tf]
    for root in roots:
        try:
            return functools.reduce(getattr, dotted.split("."), root)
        except (AttributeError, ImportError):
            continue
    return None


def _walk(path: str = "") -> Iterator[tuple[str, Any]]:
    """Every mirrored name with its object, namespaces inside namespaces included."""
    module = functools.reduce(getattr, path.split(".") if path else [], tensoropt)
    for name in dir(module):
        dotted = f"{path}.{name}" if path else name
        if dotted in OURS:
            continue
        value = getattr(module, name)
        if isinstance(value, types.ModuleType):
            is_mirrored = isinstance(value, MirrorNamespace) or dotted == "contrib"
            if is_mirrored and dotted != "compat.v1":  # the package itself by another name
                yield from _walk(dotted)
        else:
            yield dotted, value


def _signature(function: Any) -> inspect.Signature:
    """The signature without annotations, which TensorFlow mostly lacks."""
    signature = inspect.signature(function)
    bare = [p.replace(annotation=inspect.Parameter.empty) for p in signature.parameters.values()]
    return signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)


@pytest.fixture(scope="module")
def mirrored() -> dict[str, Any]:
    return dict(_walk())


def test_every_mirrored_callable_has_tensorflows_signature(mirrored: dict[str, Any]) -> None:
    different = []
    compared = 0
    for dotted, value in mirrored.items():
        twin = _twin(dotted) or _twin(f"train.{dotted}")
        if not callable(value) or twin is None or dotted in EXCEPTIONS:
            continue
        compared += 1
        try:
            expected = _signature(twin)
        except ValueError:  # Written in C without a signature; then it is handed out as it is.
            assert value is twin, dotted
            continue
        if _signature(value) != expected:
            different.append(f"{dotted}: {_signature(value)} is not {expected}")
    assert different == []
    assert compared > 2500


def test_mirror_has_every_public_name_of_tensorflow_or_says_why_not(mirrored: dict[str, Any]) -> None:
    missing = []
    for path in ("", *NAMESPACES):
        roots = [v1] if path in VERSION_1_ONLY else [v1, tf]
        for root in roots:
            module = getattr(root, path, None) if path else root
            for name in () if path == "layers" or module is None else dir(module):
                dotted = f"{path}.{name}" if path else name
                known = dotted in mirrored or dotted in UNSUPPORTED or dotted in OURS
                if name.startswith("_") or known:
                    continue
                value = getattr(module, name, None)
                is_mirrored_module = isinstance(value, types.ModuleType) and dotted in {
                    *NAMESPACES,
                    *PLAIN_NAMESPACES,
                }
                is_inner_module = isinstance(value, types.ModuleType) and bool(path)
                # Ours, by that name, are errors and keras.
                if not is_mirrored_module and not is_inner_module and dotted not in ("errors", "keras"):
                    missing.append(dotted)
    assert missing == []


def test_functions_are_wrapped_and_values_are_tensorflows_own(mirrored: dict[str, Any]) -> None:
    for dotted, value in mirrored.items():
        twin = _twin(dotted)
        if twin is None or dotted in OWN:
            continue
        if inspect.isclass(twin):
            assert (value is twin) != (dotted in CONTEXT_CLASSES), dotted
        elif callable(twin):
            assert (value is twin) == (dotted in PLAIN), dotted
        else:
            assert value is twin or value == twin, dotted


@pytest.mark.parametrize("dotted", sorted(OWN))
def test_own_name_is_the_object_its_module_declares(dotted: str) -> None:
    module, name = OWN[dotted]
    declared = importlib.import_module(module)
    assert name in declared.__all__ or name not in vars(declared)  # some are made of TensorFlow's when asked for
    value: Any = functools.reduce(getattr, dotted.split("."), tensoropt)
    assert value is getattr(declared, name)


def test_every_step_of_a_job_is_a_name_of_the_package() -> None:
    assert OURS == set(importlib.import_module("tensoropt.api.session.runtime").__all__)


@pytest.mark.parametrize("dotted", sorted(EXCEPTIONS))
def test_exceptions_table_lists_only_real_differences(dotted: str) -> None:
    value = functools.reduce(getattr, dotted.split("."), tensoropt)
    twin = _twin(dotted) or _twin(f"train.{dotted}")
    assert _signature(value) != _signature(twin)


@pytest.mark.parametrize("table", [PLAIN, CONTEXT_CLASSES, UNSUPPORTED])
def test_tables_name_what_tensorflow_has(table: Any) -> None:
    gone = ("contrib.", "estimator.", "keras")  # TensorFlow 1 had the former, and Keras 3 is another package
    unknown = [dotted for dotted in sorted(table) if _twin(dotted) is None and not dotted.startswith(gone)]
    assert unknown == []


@pytest.mark.parametrize("dotted", sorted(UNSUPPORTED))
def test_unsupported_name_raises_with_its_remedy(dotted: str) -> None:
    parent = functools.reduce(getattr, dotted.split(".")[:-1], tensoropt)
    with pytest.raises(UnsupportedError, match=f"tf.{dotted} is not supported by tensoropt. .{{20}}"):
        getattr(parent, dotted.split(".")[-1])


def test_unknown_name_suggests_close_ones() -> None:
    with pytest.raises(AttributeError, match=r"'tensoropt.nn' has no attribute 'reluu'.*Did you mean 'relu'"):
        tensoropt.nn.reluu  # noqa: B018


def test_name_gives_the_same_object_every_time() -> None:
    assert tensoropt.nn.relu is tensoropt.nn.relu
    assert tensoropt.train.AdamOptimizer is tensoropt.AdamOptimizer


def test_calls_and_operators_build_in_the_private_graph(model: Model) -> None:
    x = tensoropt.placeholder(tensoropt.float32, [None, 4], name="x")
    w = tensoropt.get_variable("w", [4, 3])
    y = tensoropt.nn.relu(tensoropt.matmul(x, w) + 1.0, name="y")
    z = tf.exp(y) * 2  # plain TensorFlow on the mirror's tensors
    assert {tensor.graph for tensor in (x, w, y, z)} == {model.graph}
    assert y.name == "y:0"
    assert z.shape.as_list() == [None, 3]
    with v1.Session(graph=model.graph) as session:
        session.run(v1.global_variables_initializer())
        feed = np.arange(8, dtype=np.float32).reshape(2, 4)
        got, kernel = session.run([z, w], {x: feed})
    np.testing.assert_allclose(got, 2 * np.exp(np.maximum(feed @ kernel + 1, 0)), rtol=1e-5)


def test_96_gb_variable_is_built_without_memory(model: Model) -> None:
    w = tensoropt.get_variable("w", [3_000_000, 8_000])
    loss = tensoropt.reduce_mean(tensoropt.matmul(tensoropt.ones([2, 3_000_000]), w))
    tensoropt.train.AdamOptimizer().minimize(loss)
    assert w.shape.num_elements() * 4 == 96_000_000_000
    assert len(model.graph.as_graph_def().SerializeToString()) < 100_000


def test_a_variable_that_something_is_added_to_in_python_is_a_new_tensor(model: Model) -> None:
    variable = tensoropt.get_variable("v", [2], initializer=tensoropt.ones_initializer())
    found = kept = variable
    for number, combine in enumerate((operator.iadd, operator.isub, operator.imul, operator.itruediv, operator.ipow)):
        made = combine(variable, 3.0)
        found = combine(found, 3.0)
        assert kept is variable and not isinstance(made, tf.Variable) and made.graph is model.graph, number
    with v1.Session(graph=model.graph) as session:
        session.run(variable.initializer)
        np.testing.assert_allclose(session.run(found), [1.0, 1.0])
        np.testing.assert_allclose(session.run(variable), [1.0, 1.0])

    @tf.function
    def step() -> Any:
        mine = eager
        mine += 1.0
        return mine

    leave_graph()
    eager = tf.Variable(1.0)
    with pytest.raises(RuntimeError, match=r"`variable \+= value` .* is not supported"):
        step()
    with pytest.raises(RuntimeError, match=r"`var \*= value` .* is not supported"):
        eager *= 2.0


@pytest.mark.parametrize("collections", [None, [v1.GraphKeys.LOCAL_VARIABLES]])
def test_a_variable_that_is_called_global_step_is_it(model: Model, collections: Any) -> None:
    step = tensoropt.Variable(0, trainable=False, name="global_step", collections=collections)
    with pytest.raises(ValueError, match='"global_step" already exists'):
        tensoropt.train.create_global_step()
    assert tensoropt.train.get_global_step(model.graph) is tensoropt.train.get_or_create_global_step() is step
    with tensoropt.Graph().as_default() as other:
        assert tensoropt.train.get_global_step() is None
        made = tensoropt.train.get_or_create_global_step()
        assert made.graph is other and tensoropt.contrib.framework.get_global_step() is made


def test_reset_starts_an_empty_model_that_is_the_default_graph(model: Model) -> None:
    old = tensoropt.constant(1.0)
    tensoropt.reset_default_graph()
    new = tensoropt.constant(1.0)
    assert old.graph is not new.graph
    assert new.name == "Const:0"
    assert new.graph is current_model().graph is v1.get_default_graph()
    assert current_model().gradient_calls == ()


def test_leave_returns_to_eager_mode_and_keeps_the_model(model: Model) -> None:
    a = tensoropt.constant(1.0)
    assert not tf.executing_eagerly()
    leave_graph()
    assert tf.executing_eagerly()
    assert tensoropt.constant(2.0).graph is a.graph
    assert not tf.executing_eagerly()


def test_call_inside_another_graphs_block_nests(model: Model) -> None:
    leave_graph()
    with tf.Graph().as_default() as other:
        a = tensoropt.constant(1.0)
        assert v1.get_default_graph() is other
    assert a.graph is model.graph
    assert tf.executing_eagerly()


def test_reset_inside_another_graphs_block_is_an_error(model: Model) -> None:
    tensoropt.constant(1.0)
    with (
        tf.Graph().as_default(),
        pytest.raises(SessionError, match=r"2 are entered here. Call this outside"),
    ):
        reset_default_graph()


def test_call_inside_init_scope_builds_in_the_private_graph(model: Model) -> None:
    with tf.init_scope():
        a = tensoropt.constant(1.0)
    assert a.graph is model.graph


def test_threads_share_the_model_and_notice_a_reset(model: Model) -> None:
    graphs = []
    ready, go = threading.Event(), threading.Event()

    def work() -> None:
        graphs.append(tensoropt.constant(1.0).graph)
        ready.set()
        go.wait(60)
        graphs.append(tensoropt.constant(1.0).graph)
        leave_graph()

    thread = threading.Thread(target=work)
    thread.start()
    ready.wait(60)
    reset_default_graph()
    go.set()
    thread.join(60)
    assert graphs == [model.graph, current_model().graph]
    assert graphs[0] is not graphs[1]


def test_call_inside_a_traced_function_builds_there(model: Model) -> None:
    leave_graph()

    @tf.function
    def double(x: Any) -> Any:
        return tensoropt.multiply(x, 2.0)

    assert double(tf.constant(3.0)).numpy() == 6.0


def test_loop_body_of_mirrored_calls(model: Model) -> None:
    total = tensoropt.while_loop(
        lambda i, _: tensoropt.less(i, 4), lambda i, s: (i + 1, tensoropt.add(s, 2.5)), (0, 0.0)
    )[1]
    with v1.Session(graph=model.graph) as session:
        assert session.run(total) == 10.0


def test_variable_scope_reuses_and_names_as_tensorflow_does(model: Model) -> None:
    with tensoropt.variable_scope("tower"):
        a = tensoropt.get_variable("w", [2])
    with tensoropt.variable_scope("tower", reuse=True):
        b = tensoropt.get_variable("w", [2])
    with tensoropt.variable_scope("tower", reuse=tensoropt.AUTO_REUSE):
        c = tensoropt.get_variable("v", [2])
    assert a is b
    assert c.name == "tower/v:0"
    with tensoropt.name_scope("scope"):
        assert tensoropt.constant(1).name == "scope/Const:0"


def test_control_dependencies_hold_in_the_private_graph(model: Model) -> None:
    first = tensoropt.no_op(name="first")
    with tensoropt.control_dependencies([first]):
        second = tensoropt.no_op(name="second")
    assert second.control_inputs == [first]


def test_variables_are_resources_even_where_tensorflow_is_set_otherwise(model: Model) -> None:
    v1.disable_resource_variables()
    try:
        reset_default_graph()
        made = [
            tensoropt.get_variable("w", [2]),
            tensoropt.Variable([1.0, 2.0]),
            tensoropt.train.get_or_create_global_step(),
        ]
    finally:
        v1.enable_resource_variables()
    assert [variable.handle.dtype for variable in made] == [tf.resource] * 3


@pytest.mark.parametrize(
    "make",
    [
        lambda: tensoropt.get_variable("w", [2], use_resource=False),
        lambda: tensoropt.Variable([1.0], use_resource=False),
        lambda: tensoropt.get_variable("w", [4], partitioner=v1.fixed_size_partitioner(2)),
    ],
)
def test_reference_and_partitioned_variables_are_refused(model: Model, make: Any) -> None:
    with pytest.raises(UnsupportedError, match=r"must be one whole resource variable.*find_strategy decides"):
        make()


def test_a_custom_getter_may_give_a_tensor(model: Model) -> None:
    def normalized(getter: Any, *args: Any, **kwargs: Any) -> Any:
        return tensoropt.nn.l2_normalize(getter(*args, **kwargs), 0)

    with tensoropt.variable_scope("scope", custom_getter=normalized):
        inside = tensoropt.get_variable("w", [4, 2])
    given = tensoropt.get_variable("v", [4, 2], custom_getter=normalized)
    assert [x.op.type for x in (inside, given)] == ["Mul", "Mul"]
    assert [v.op.name for v in v1.trainable_variables()] == ["scope/w", "v"]


def test_context_class_answers_for_tensorflows_class(model: Model) -> None:
    variable = tensoropt.Variable([1.0, 2.0])
    assert isinstance(variable, tensoropt.Variable)
    assert not isinstance(1.0, tensoropt.Variable)
    assert issubclass(type(variable), tensoropt.Variable)
    assert "from_row_splits" in dir(tensoropt.RaggedTensor)
    leave_graph()
    ragged = tensoropt.RaggedTensor.from_row_splits([1.0, 2.0], [0, 1, 2])
    assert ragged.values.graph is model.graph


def test_initializers_come_from_tensorflow_and_work(model: Model) -> None:
    w = tensoropt.get_variable("w", [3], initializer=tensoropt.constant_initializer(2.0))
    u = tensoropt.get_variable("u", [2, 2], initializer=tensoropt.initializers.he_normal(seed=1))
    with v1.Session(graph=model.graph) as session:
        session.run(tensoropt.global_variables_initializer())
        assert session.run(w).tolist() == [2.0, 2.0, 2.0]
        assert np.abs(session.run(u)).max() > 0


def _with_random_ops_in_branches_and_loops(to: Any) -> Any:
    """The seeds of random ops between and after those, in a new graph of a seed."""
    x, taken = to.placeholder(tf.float32, [4]), to.placeholder(tf.bool, [])

    def noisy() -> Any:
        return x + to.cond(taken, lambda: to.random_normal([4]), lambda: to.random_uniform([4]))

    @tf.function
    def traced(given: Any) -> Any:
        return to.cond(taken, lambda: given + to.random_normal([4]), lambda: given)

    between = [to.random_normal([])]
    parts = [
        lambda: to.cond(taken, noisy, lambda: x),
        lambda: to.while_loop(lambda y: to.reduce_sum(y) < 3.0, lambda y: [y + to.random_uniform([4])], [x]),
        lambda: to.map_fn(lambda y: y + to.random_normal([]), x),
        lambda: to.switch_case(to.placeholder(tf.int32, []), [lambda: x + to.random_normal([4]), lambda: x]),
        lambda: to.case([(taken, noisy)], default=noisy),
        lambda: traced(x),
    ]
    for part in parts:
        part()
        between.append(to.random_normal([]))
    return [(draw.op.get_attr("seed"), draw.op.get_attr("seed2")) for draw in _ops_that_draw(between)]


def _ops_that_draw(tensors: Any) -> Iterator[Any]:
    for tensor in tensors:
        while tensor.op.type != "RandomStandardNormal":
            tensor = tensor.op.inputs[0]
        yield tensor


@pytest.mark.parametrize("apart", [False, True])
def test_random_ops_in_branches_and_loops_count_as_the_script_says(model: Model, apart: bool) -> None:
    with control_flow_v2(apart), tf.Graph().as_default():
        v1.set_random_seed(7)
        expected = _with_random_ops_in_branches_and_loops(v1)
    if apart:
        tensoropt.disable_eager_execution()
    try:
        tensoropt.set_random_seed(7)
        assert _with_random_ops_in_branches_and_loops(tensoropt) == expected
    finally:
        tensoropt.disable_control_flow_v2()
    assert (expected[-1][1] == len(expected) - 1) == apart


@pytest.mark.parametrize("set_seed", ["set_random_seed", "random.set_random_seed", "random.set_seed"])
def test_seed_decides_random_ops(model: Model, set_seed: str) -> None:
    drawn = []
    for _ in range(2):
        reset_default_graph()
        assert current_model().seed is None
        setter: Any = functools.reduce(getattr, set_seed.split("."), tensoropt)
        setter(7)
        assert current_model().seed == 7
        x = tensoropt.random.normal([4])
        with v1.Session(graph=current_model().graph) as session:
            drawn.append(session.run(x))
    np.testing.assert_array_equal(drawn[0], drawn[1])


class TestSoftmaxCrossEntropy:
    logits = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(np.float32)
    ids = np.array([[0, 2, 1, 1, 0], [2, 2, 0, 1, 2]])

    def expected(self, logits: Any) -> float:
        log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        return float(-np.take_along_axis(log_p, self.ids.reshape(*logits.shape[:-1], 1), -1).mean())

    @pytest.mark.parametrize("rank", [2, 3])
    @pytest.mark.parametrize("dtype", ["int32", "int64", "uint8"])
    def test_class_ids(self, model: Model, rank: int, dtype: str) -> None:
        logits = self.logits.reshape((10, 3) if rank == 2 else (2, 5, 3))
        ids = self.ids.reshape(logits.shape[:-1]).astype(dtype)
        loss = tensoropt.softmax_cross_entropy(ids, logits)
        assert loss.shape.rank == 0
        with v1.Session(graph=model.graph) as session:
            assert session.run(loss) == pytest.approx(self.expected(logits), rel=1e-5)

    @pytest.mark.parametrize("rank", [2, 3])
    @pytest.mark.parametrize("dtype", ["float32", "int32"])
    def test_one_hot(self, model: Model, rank: int, dtype: str) -> None:
        logits = self.logits.reshape((10, 3) if rank == 2 else (2, 5, 3))
        one_hot = np.eye(3, dtype=dtype)[self.ids].reshape(logits.shape)
        loss = tensoropt.softmax_cross_entropy(one_hot, logits)
        with v1.Session(graph=model.graph) as session:
            assert session.run(loss) == pytest.approx(self.expected(logits), rel=1e-5)

    def test_16_bit_logits_are_computed_in_32_bits(self, model: Model) -> None:
        loss = tensoropt.softmax_cross_entropy(self.ids, tensoropt.constant(self.logits, tensoropt.bfloat16))
        assert loss.dtype == tf.bfloat16
        with v1.Session(graph=model.graph) as session:
            assert float(session.run(loss)) == pytest.approx(self.expected(self.logits), rel=2e-2)

    def test_no_gradient_flows_into_labels(self, model: Model) -> None:
        labels = tensoropt.placeholder(tensoropt.float32, [2, 3])
        logits = tensoropt.placeholder(tensoropt.float32, [2, 3])
        loss = tensoropt.softmax_cross_entropy(labels, logits, name="loss")
        assert loss.name.startswith("loss/")
        gradients = v1.gradients(loss, [labels, logits])
        assert gradients[0] is None
        assert gradients[1] is not None

    @pytest.mark.parametrize(
        ("labels", "logits", "match"),
        [
            (([2], "int32"), ([2, 3], "int32"), "logits must be floating point"),
            (([], "int32"), ([3], "float32"), "logits need 2 or more dimensions"),
            (([2], "int32"), ([2, None], "float32"), "a known number of classes"),
            (([2, 4], "float32"), ([2, 3], "float32"), "must have the logits' shape"),
            (([3], "int32"), ([2, 3], "float32"), "without its last dimension"),
            (
                ([2], "float32"),
                ([2, 3], "float32"),
                "or integer class ids of one dimension less. Got labels float32",
            ),
            (([2, 1, 1], "int32"), ([2, 3], "float32"), "or integer class ids of one dimension less"),
        ],
    )
    def test_shapes_and_dtypes_that_do_not_fit(self, model: Model, labels: Any, logits: Any, match: str) -> None:
        with pytest.raises(GraphError, match=match):
            tensoropt.softmax_cross_entropy(
                tensoropt.placeholder(labels[1], labels[0]), tensoropt.placeholder(logits[1], logits[0])
            )
