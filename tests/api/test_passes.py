"""Passes of the front end, from text to text: what each makes of a small model, as dumps have it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt as to
from tensoropt.api.frontend.draws import of_other_numbers
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.frontend.pipeline import PASSES
from tensoropt.api.frontend.rewriting import rewriter
from tensoropt.api.frontend.rewriting.rewriter import Rewriter
from tensoropt.api.frontend.source import Request, Source
from tensoropt.api.frontend.source_text import text_of
from tensoropt.api.mirror.model import Model, current_model
from tensoropt.errors import GraphError
from tensoropt.graph.graph import Graph

pytestmark = [pytest.mark.tf, pytest.mark.smoke]


def _source(last: str, request: Request | None = None) -> Source:
    """The current model's source after a pass."""
    source = Source(request or Request(), current_model())
    for each in PASSES:
        source = each(source)
        if each.__name__ == last:
            return source
    raise AssertionError(last)


def _after(last: str, request: Request | None = None) -> list[str]:
    """The lines of the current model's source after a pass, without attributes, digests and the script's lines."""
    lines = text_of(_source(last, request)).splitlines()
    return [re.sub(r" \{.*\}| @[0-9a-f]{12}|  # \S+$", "", line) for line in lines]


def _training(lines: list[str]) -> list[str]:
    return [line[2:] for line in lines if line.startswith("*")]


@pytest.fixture
def product(model: Model) -> Any:
    """The mean of the squares of a product, of a batch of open size."""
    x = to.placeholder(to.float32, [None, 4], name="x")
    y = to.matmul(x, to.get_variable("w", [4, 2]), name="y")
    loss = to.reduce_mean(y * y, name="loss")
    to.train.GradientDescentOptimizer(0.1).minimize(loss)
    return y


def test_the_order_of_passes() -> None:
    assert [each.__name__ for each in PASSES] == [
        "cut_pipelines", "choose_part", "fill_shapes", "to_static_shapes", "read_operators", "mark_own_rows",
        "mark_pointwise", "store_whole", "fan_out", "mark_differentiable",
    ]  # fmt: skip


def test_cut_pipelines(model: Model) -> None:
    dataset = to.data.Dataset.from_tensor_slices(np.zeros([8, 3], np.float32)).batch(4, drop_remainder=True)
    to.identity(to.data.make_one_shot_iterator(dataset).get_next(), name="read")
    lines = _after("cut_pipelines")
    assert lines == [
        "IteratorGetNext/element0 = Placeholder() -> float32[4, 3]",
        "read = Identity(IteratorGetNext/element0) -> float32[4, 3]",
    ]


def test_choose_part(product: Any) -> None:
    to.add(product, 1.0, name="more")
    lines = _after("choose_part", Request(only=frozenset(["y"])))
    assert [line.partition(" =")[0] for line in lines] == ["x", "w", "y/ReadVariableOp", "y"]
    everything = _after("choose_part")
    assert len(everything) > len(lines) and any(line.startswith("more = AddV2(y, more/y)") for line in everything)
    assert _after("cut_pipelines", Request(only=frozenset(["y"]))) == everything


def test_fill_shapes(product: Any) -> None:
    lines = _after("fill_shapes", Request(batch_size=8))
    assert lines[0] == "x = Placeholder() -> float32[?, 4]" and lines[-1] == "x: [8, 4]"
    with pytest.raises(GraphError, match="every size must be at least 1, got the shape"):
        _after("fill_shapes", Request(shapes={"x": [0, 4]}))


def test_to_static_shapes_cuts_gradients(product: Any) -> None:
    lines = _after("to_static_shapes", Request(batch_size=8))
    assert "x = Placeholder() -> float32[8, 4]" in lines and "y = MatMul(x, y/ReadVariableOp) -> float32[8, 2]" in lines
    assert "gradients/0/w = Placeholder() ^loss -> float32[4, 2]" in lines
    assert not any("_grad/" in line for line in lines if not line.startswith("gradient "))


def test_to_static_shapes_writes_branches_and_loops_out(model: Model) -> None:
    x = to.placeholder(to.float32, [2], name="x")
    to.cond(to.placeholder(to.bool, [], name="flag"), lambda: x + 1.0, lambda: x * 2.0)
    to.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y * 3.0), [to.constant(0), x])
    types = [line.split(" = ")[1].split("(")[0] for line in _after("to_static_shapes")]
    assert types.count("Select") == 1 and types.count("AddV2") >= 1  # both branches, and the choice
    assert types.count("Mul") == 3 and not {"If", "While", "StatelessIf", "StatelessWhile"} & set(types)


def test_to_static_shapes_writes_loops_out_that_data_end_and_gradients_flow_through(model: Model) -> None:
    x, ends = to.placeholder(to.float32, [3, 2], name="x"), to.placeholder(to.int32, [], name="ends")
    w = to.get_variable("w", [2], initializer=to.zeros_initializer())
    rows = to.TensorArray(to.float32, 3, element_shape=[2]).unstack(x)

    def turn(i: Any, y: Any, rows: Any) -> Any:
        return i + 1, y * w + rows.read(i), rows

    _, y, _ = to.while_loop(lambda i, *_: i < ends, turn, [0, to.zeros([2]), rows], maximum_iterations=3)
    to.train.GradientDescentOptimizer(0.1).minimize(to.reduce_sum(y))
    types = [line.split(" = ")[1].split("(")[0] for line in _after("to_static_shapes")]
    assert types.count("Mul") == 3 and "StatelessWhile" not in types
    # The rows are read from one list, and only what is read has a gate.
    assert types.count("Unpack") == 1 and types.count("IdentityN") <= 9


@pytest.mark.parametrize("learns", [False, True])
def test_to_static_shapes_keeps_loops_whose_lists_get_as_long_as_data_say(model: Model, learns: bool) -> None:
    x = to.placeholder(to.float32, [4], name="x")
    grown = to.TensorArray(to.float32, 0, dynamic_size=True, element_shape=[4])

    def turn(i: Any, y: Any, grown: Any) -> Any:
        return i + 1, 2.0 * y, grown.write(i, y)

    loop = to.while_loop(lambda i, y, _: to.reduce_sum(y) < 9.0, turn, [0, x, grown], maximum_iterations=5, name="loop")
    total = to.reduce_sum(loop[2].stack(), name="total")
    if learns:
        to.train.GradientDescentOptimizer(0.1).minimize(total * to.get_variable("w", []))
    types = {line.split(" = ")[1].split("(")[0] for line in _after("to_static_shapes")}
    assert "StatelessWhile" in types or "While" in types


def test_what_draws_other_numbers_than_one_process_is_said(model: Model) -> None:
    x, y = to.placeholder(to.float32, [4, 3], name="x"), to.placeholder(to.float32, [1, 6, 6, 2], name="y")

    def turn(i: Any, total: Any) -> Any:
        drawn = to.random.uniform([], seed=1) + to.reduce_mean(
            to.nn.fractional_max_pool(y, [1, 1.4, 1.4, 1], seed=2)[0]
        )
        return i + 1, total + drawn + to.cast(to.random.categorical(x, 1, seed=3)[0, 0], to.float32)

    to.while_loop(lambda i, _: i < 2, turn, [to.constant(0), to.constant(0.0)])
    to.while_loop(
        lambda total: total < 9.0, lambda total: total + to.random.uniform([], seed=4), [to.reduce_sum(x)], name="open"
    )
    operators = _source("read_operators").operators
    apart, whole = of_other_numbers(Graph(operators))
    assert apart.startswith("2 random ops in branches and loops (first: Multinomial 'while/")
    assert whole.startswith("random ops in 1 loops or branches that are one operator (first: Subgraph 'open")
    seeds = {
        kind: {op.attrs["seed2"] for op in operators if op.type == kind}
        for kind in ("FractionalMaxPool", "Multinomial")
    }
    # They say which parts are pooled, the same in each turn.
    assert list(map(len, seeds.values())) == [1, 2]


def test_to_static_shapes_keeps_the_shapes_that_turns_of_a_loop_keep(model: Model) -> None:
    x = to.placeholder(to.float32, [None, 2], name="x")
    w = to.get_variable("w", [2, 2])

    def turn(size: Any, kept: Any, grown: Any) -> Any:
        return size + to.reduce_sum(kept), to.matmul(kept, w), to.concat([grown, kept], 0)

    open_rows = to.TensorShape([None, 2])
    to.while_loop(
        lambda size, kept, grown: size < 9.0,
        turn,
        [0.0, x, x],
        shape_invariants=[to.TensorShape([]), open_rows, open_rows],
        name="loop",
    )
    (loop,) = [line for line in _after("to_static_shapes", Request(batch_size=6)) if " = StatelessWhile(" in line]
    assert "float32[], float32[6, 2], float32[?, 2]" in loop.split(" -> ")[1]


def test_to_static_shapes_keeps_the_order_of_the_script(product: Any) -> None:
    names = [line.partition(" =")[0] for line in _after("to_static_shapes", Request(batch_size=8))]
    own = [op.name for op in current_model().graph.get_operations()]
    kept = [name for name in names if name in own]
    assert kept == [name for name in own if name in kept] and {"x", "w", "y", "loss"} <= set(kept)


def test_to_static_shapes_copies_runs_of_operations_as_it_copies_each(
    model: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = to.placeholder(to.float32, [None, 4], name="x")
    hidden = to.layers.dense(x, 4, activation=to.nn.relu)
    with to.control_dependencies([to.get_variable("count", [], to.float32).assign_add(1.0)]):
        hidden = to.get_variable("scale", []) * to.layers.dropout(hidden, 0.5, training=True)
    loss = to.reduce_mean(to.cond(to.reduce_sum(x) > 0.0, lambda: hidden, lambda: 2.0 * hidden))
    with to.control_dependencies([to.train.AdamOptimizer(0.1).minimize(loss)]):
        to.identity(to.reshape(x, [8, 4]) * 3.0, name="only_of_eight")
    copied: list[int] = []

    def counted(self: Rewriter, run: Any, scope: Any) -> bool:
        done = copy_run(self, run, scope)
        copied.append(len(run) if done else 0)
        return done

    copy_run = Rewriter._copy_run
    monkeypatch.setattr(Rewriter, "_copy_run", counted)
    found = {}
    for least in (1, 10**9):
        monkeypatch.setattr(rewriter, "_MANY", least)
        for batch in (8, 16):  # of which one has to be made again one by one, as something does not fit
            graph = _source("to_static_shapes", Request(batch_size=batch)).graph
            found[least, batch] = [
                (_of_graph(node), [tensor.shape.as_list() for tensor in graph.get_operation_by_name(node.name).outputs])
                for node in graph.as_graph_def().node
            ]
    assert sum(copied) > 100 and 0 in copied
    assert found[1, 8] == found[10**9, 8] and found[1, 16] == found[10**9, 16] != found[1, 8]


def _of_graph(node: Any) -> bytes:
    """A node whose control inputs, which TensorFlow has in any order, are sorted."""
    inputs = sorted(node.input, key=lambda name: name if name.startswith("^") else "")
    del node.input[:]
    node.input.extend(inputs)
    return bytes(node.SerializeToString(deterministic=True))


def test_to_static_shapes_refuses_what_does_not_fit_a_batch_of_training(product: Any) -> None:
    one = to.reshape(product, [1, 2], name="one")  # of an observation, not of a batch
    to.identity(one, name="after_one")
    source = _source("to_static_shapes", Request(batch_size=8))
    assert sorted(source.refused) == ["after_one", "one"] and "'loss'" not in str(source.refused)
    assert {"one", "after_one"}.isdisjoint(op.name for op in source.graph.get_operations())
    source = _source(PASSES[-1].__name__, Request(batch_size=8))
    assert {"one", "after_one"} <= source.refused.keys()  # what comes later does not forget it
    assert "one" not in import_model(current_model(), 8).graph
    assert "after_one" in import_model(current_model(), shapes={"x": [1, 4]}, only=["after_one"]).graph
    with pytest.raises(GraphError, match="its shapes do not go together with what is fed, 'x'"):
        import_model(current_model(), 8, only=["after_one"])


def test_to_static_shapes_refuses_nothing_that_trains(model: Model) -> None:
    x = to.placeholder(to.float32, [None, 4], name="x")
    one = to.reshape(to.matmul(x, to.get_variable("w", [4, 2])), [1, 2])
    to.train.GradientDescentOptimizer(0.1).minimize(to.reduce_mean(one))
    with pytest.raises(GraphError, match="its shapes do not go together with what is fed, 'x'"):
        import_model(model, 8)


def test_to_static_shapes_refuses_gradients_of_what_does_not_fit(product: Any) -> None:
    point = to.placeholder(to.float32, [None], name="point")  # is no batch
    (w,) = to.trainable_variables()
    (slope,) = to.gradients(to.square(product), w)
    along = to.reduce_sum(to.reshape(point, [4, 2]) * slope, name="along")
    to.gradients(along, w, name="second")
    source = _source(PASSES[-1].__name__, Request(batch_size=12))
    assert "along" in source.refused and not any(op.name == "second/0/w" for op in source.operators)
    assert any(op.name == "gradients/0/w" and op.name in source.training for op in source.operators)
    part = import_model(current_model(), shapes={"x": [12, 4], "point": [8]}, only=["second/0/w"])
    assert part.graph["second/0/w"].outputs[0].shape == (4, 2)


def test_what_may_be_fetched_is_in_one_group(model: Model) -> None:
    ids, _ = to.unique(to.placeholder(to.int32, [6], name="x"))
    for step in range(5):
        ids = ids + 1
        to.reduce_sum(ids, name=f"sum{step}")
    lines = _after("read_operators")
    (group,) = [line for line in lines if "Subgraph" in line]
    assert group.count("int32[]") == 5 and sum("IdentityN" in line for line in lines) == 5
    for fetched in (["sum3"], ["add_2", "sum4"]):
        (group,) = [line for line in _after("read_operators", Request(only=frozenset(fetched))) if "Subgraph" in line]
        assert group.count("int32[") == len(fetched)


def test_operations_called_as_inputs_of_subgraphs_are_none(model: Model) -> None:
    x = to.placeholder(to.int32, [6], name="x")
    distinct = [to.raw_ops.Unique(x=x + place, name=name)[0] for place, name in enumerate(("input1", "input0"))]
    to.reduce_sum(to.concat(distinct, 0), name="total")
    (group,) = [op for op in _source("read_operators").operators if op.type == "Subgraph"]
    names = [node.name for node in group.body.node]
    assert len(set(names)) == len(names) and {"input0", "input1"} < set(names)


def test_groups_that_end_in_one_operation_have_names_of_their_own(model: Model) -> None:
    x, text = to.placeholder(to.float32, [4], name="x"), to.placeholder(to.string, [1], name="text")
    kept = to.boolean_mask(x, x > 0.0)
    first, second = to.reduce_sum(kept, name="first"), to.reduce_max(kept, name="second")
    with to.control_dependencies([to.debugging.assert_positive(kept)]):
        to.no_op(name="last")
    to.concat([to.as_string(to.expand_dims(to.reduce_sum(kept), 0)), text], 0, name="refused")
    # What is refused has the others read by halves.
    graph = _source("read_operators", Request(only=frozenset(["first", "second", "last", "refused"])))
    operators = {op.name: op for op in graph.operators}
    groups = [name for name, op in operators.items() if op.type == "Subgraph"]
    assert list(graph.refused) == ["refused"] and len(groups) > 1
    for fetch in (first, second):
        ((tensor,),) = (operators[fetch.op.name].inputs,)
        assert operators[tensor.op].results[tensor.index] == fetch.name


def test_read_operators(product: Any) -> None:
    lines = _training(_after("read_operators", Request(batch_size=8)))
    assert lines == [
        "x = Placeholder() -> float32[8, 4]",
        "w = Variable() -> float32[4, 2]",
        "y = MatMul(x, w) -> float32[8, 2]",
        "mul = Mul(y, y) -> float32[8, 2]",
        "loss = Mean(mul) -> float32[]",
        "loss:0/sink = Sink(loss) -> float32[]",
        "gradients/0/w = Gradient(w!) ^loss:0/sink -> float32[4, 2]",
        "GradientDescent/learning_rate = Const() -> float32[]",
        "GradientDescent/update_w/ResourceApplyGradientDescent = ResourceApplyGradientDescent(w!, "
        "GradientDescent/learning_rate, gradients/0/w) -> ",
    ]


_Place = Callable[[Any, Any], Any]


def _of_lookups(places: Any, look_up: _Place) -> list[int | None]:
    """The numbers of samples with rows of their own, of lookups in six samples of four rows."""
    rows = to.reshape(to.placeholder(to.float32, [None, 4, 2], name="rows") * 2.0, [6, 4, 2])
    look_up(rows, places)
    operators = _source("mark_own_rows", Request(batch_size=6)).operators
    return [op.attrs.get("samples") for op in operators if "Gather" in op.type]


def _flat(rows: Any, places: Any) -> Any:
    return to.gather(to.reshape(rows, [24, 2]), places)


_LENGTH: tuple[_Place, ...] = (
    lambda rows, length: _flat(rows, to.range(6) * 4 + length - 1),
    lambda rows, length: _flat(rows, to.maximum(length - 1, 0) + to.range(0, 24, 4)),
    lambda rows, length: to.gather_nd(rows, to.stack([to.range(6), length], 1)),
    lambda rows, length: to.gather_nd(rows, to.concat([to.range(6)[:, None], length[:, None] - 1], 1)),
)
_MASKED: tuple[_Place, ...] = (
    lambda rows, masked: _flat(rows, to.reshape(masked + to.reshape(to.range(0, 6) * 4, [-1, 1]), [-1])),
    lambda rows, masked: _flat(rows, masked + to.range(6)[:, None] * 4),
    lambda rows, masked: to.gather_nd(rows, to.stack([to.tile(to.range(6)[:, None], [1, 3]), masked], -1)),
)
# As many indices, which may be of other samples. The last one is of a table, of which gradients are rows.
_OTHERS: tuple[_Place, ...] = (
    lambda rows, length: _flat(rows, length),
    lambda rows, length: _flat(rows, length[0] + to.range(6)),
    lambda rows, length: _flat(rows, to.math.floormod(to.range(6) * 4 + length[0], 24)),
    lambda rows, length: _flat(rows, to.reverse(to.range(6), [0]) * 4 + length),
    lambda rows, length: _flat(rows, to.range(6) * 4 * length),
    lambda rows, length: _flat(rows, to.where(length > 1, to.range(6) * 4, to.range(6))),
    lambda rows, length: _flat(rows, to.where(to.equal(length, to.roll(length, 1, 0)), to.range(6) * 4, length)),
    lambda rows, length: _flat(rows, to.cumsum(to.range(6)) * 4 + length),
    lambda rows, length: _flat(rows, to.range(24) + to.tile(length, [4])),
    lambda rows, length: _flat(rows, to.range(6) * 4 - 4 + length),
    lambda rows, length: _flat(rows, to.math.invert_permutation(length)),
    lambda rows, length: _flat(rows, to.clip_by_value(to.range(6) * 4 + length, 0, 23)),
    lambda rows, length: _flat(rows, to.placeholder_with_default(to.range(6) * 4, [6]) + length),
    lambda rows, length: to.gather(rows, to.range(6) + length),
    lambda rows, length: to.gather_nd(rows, to.stack([length, to.range(6) - 2], 1)),
    lambda rows, length: to.gather_nd(rows, to.stack([to.range(6) + length[0], length], 1)),
    lambda rows, length: to.gather_nd(rows, to.stack([to.range(6) + length - length, length], 1)),
    lambda rows, length: to.gather_nd(rows, to.stack([to.range(6) + to.minimum(length, 0), length], 1)),
    lambda rows, length: to.gather_nd(rows, to.stack([to.roll(to.range(6), length[0], 0), length], 1)),
    lambda rows, length: to.gather_nd(rows, to.stack([to.range(6) // 2, length], 1)),
    lambda rows, length: to.gather_nd(rows[:, :, 0], to.stack([to.range(3) * 2, length[:3]], 1)),
    lambda rows, length: to.gather(to.get_variable("table", [24, 2]), to.range(6) * 4 + length),
    lambda rows, length: to.gather(to.identity(to.get_variable("table", [24, 2])), to.range(6) * 4 + length),
)


@pytest.mark.parametrize(
    ("look_up", "samples"),
    [
        (lambda rows, _: to.gather(rows, to.range(6)), 6),
        (lambda rows, _: to.gather(rows, to.range(to.shape(rows)[0]) * 1), 6),
        (lambda rows, _: _flat(rows, to.range(0, 24, 4) + 3), 6),
        (lambda rows, _: _flat(rows, [1, 0, 3, 2, 5, 5, 6, 7, 8, 9, 10, 11]), None),
        (lambda rows, _: _flat(rows, [3, 0, 2, 7, 4, 6, 9, 9, 10, 12, 13, 12, 19, 16, 16, 20, 21, 22]), 6),
        (lambda rows, _: to.gather(rows, [0, 1]), None),
        (lambda rows, _: to.gather(rows, [5, 4, 3, 2, 1, 0]), None),
        (lambda rows, _: to.gather(to.zeros([6, 2]), to.range(6)), None),
    ],
)
def test_mark_own_rows_at_places_that_are_known(model: Model, look_up: _Place, samples: int | None) -> None:
    assert _of_lookups(to.placeholder(to.int32, [6], name="length"), look_up) == [samples]


@pytest.mark.parametrize("look_up", _LENGTH)
def test_mark_own_rows_of_one_place_of_each_sample(model: Model, look_up: _Place) -> None:
    assert _of_lookups(to.placeholder(to.int32, [6], name="length"), look_up) == [6]


@pytest.mark.parametrize("look_up", _MASKED)
def test_mark_own_rows_of_several_places_of_each_sample(model: Model, look_up: _Place) -> None:
    assert _of_lookups(to.placeholder(to.int32, [6, 3], name="masked"), look_up) == [6]


@pytest.mark.parametrize("look_up", _OTHERS)
def test_mark_own_rows_leaves_other_lookups(model: Model, look_up: _Place) -> None:
    assert _of_lookups(to.placeholder(to.int32, [6], name="length"), look_up) == [None]


def test_mark_own_rows_leaves_lookups_by_the_rows_of_a_gradient(model: Model) -> None:
    table, ids = to.get_variable("table", [6, 2]), to.placeholder(to.int32, [6], name="ids")
    (rows,) = to.gradients(to.reduce_sum(to.square(to.gather(table, ids))), [table])
    to.gather(to.placeholder(to.float32, [6, 2], name="moments"), rows.indices, name="found")
    operators = {op.name: op for op in _source("mark_own_rows", Request()).operators}
    assert "samples" not in operators["found"].attrs


def test_coordinates_that_are_known_are_not_fed(model: Model) -> None:
    length = to.placeholder(to.int32, [6], name="length")
    assert _of_lookups(
        length, lambda rows, length: to.gather_nd(rows, to.stack([to.range(6), length - 1], 1, name="places"))
    ) == [6]
    graph = _source("mark_own_rows", Request(batch_size=6)).graph
    assert not graph.is_feedable(graph.get_tensor_by_name("places:0"))
    assert graph.is_feedable(graph.get_tensor_by_name("length:0"))


@pytest.mark.parametrize(
    ("build", "decides"),
    [
        (lambda x, c: to.cond(c > 2, lambda: x * 2.0, lambda: x), True),
        (lambda x, c: to.cond(to.logical_and(c > 2, to.reduce_sum(x) > 0), lambda: x, lambda: x * 2.0), False),
        (lambda x, c: to.cond(to.logical_and(c < 2, to.reduce_sum(x) > 0), lambda: x, lambda: x * 2.0), True),
        (lambda x, c: to.switch_case(c - 2, [lambda: x, lambda: x * 2.0]), True),
        (lambda x, c: to.while_loop(lambda i, y: i < c - 1, lambda i, y: (i + 1, y * 2.0), [0, x])[1], True),
        (
            lambda x, c: to.while_loop(lambda i, y: i < 2, lambda i, y: (i + 1, y * to.cast(c, to.float32)), [0, x])[1],
            False,
        ),
        (lambda x, c: to.clip_by_value(x, -to.cast(c, to.float32), to.cast(c, to.float32)), False),
        (lambda x, c: to.reduce_sum(x) * to.cast(to.minimum(to.argmax(x, output_type=to.int32), c), to.float32), False),
        (lambda x, c: x * to.cast(10 // c, to.float32), False),
    ],
)
def test_what_is_decided_by_a_constant_does_not_take_another_value(
    model: Model, build: Callable[[Any, Any], Any], decides: bool
) -> None:
    c = to.constant(3, name="c")
    build(to.placeholder(to.float32, [4], name="x"), c)
    graph = _source("to_static_shapes", Request(batch_size=4)).graph
    assert graph.is_feedable(graph.get_tensor_by_name("c:0")) is not decides


def test_mark_pointwise(model: Model) -> None:
    @to.custom_gradient
    def clipped(x: Any) -> tuple[Any, Any]:
        return x * 1.0, lambda dy: to.clip_by_value(dy * x, -1.0, 1.0)

    @to.custom_gradient
    def normed(x: Any) -> tuple[Any, Any]:
        return x * 1.0, lambda dy: dy / to.norm(dy)

    x = to.get_variable("w", [4, 2])
    both = to.identity(clipped(x), name="a") + to.identity(normed(x), name="b")
    to.train.GradientDescentOptimizer(0.1).minimize(to.reduce_sum(both))
    by_name = {op.name: op for op in _source("mark_pointwise").operators}
    marks = [by_name[by_name[name].inputs[0].op].attrs["_tensoropt_pointwise"] for name in ("a", "b")]
    assert marks == [True, False]


def test_store_whole(model: Model) -> None:
    memory = to.get_variable("memory", [4, 2], trainable=False)
    to.scatter_nd_add(memory, [[1]], to.ones([1, 2]))
    source = _source("store_whole")
    whole = {op.name for op in source.operators if op.attrs.get("whole")}
    assert "memory" in whole and any(op.type == "ResourceScatterNdAdd" and op.name in whole for op in source.operators)


def test_fan_out_and_mark_differentiable(product: Any) -> None:
    lines = _training(_after("fan_out", Request(batch_size=8)))
    assert "y/fanout0 = Fanout(y) -> float32[8, 2]" in lines
    assert "mul = Mul(y/fanout0, y/fanout0) -> float32[8, 2]" in lines
    marked = _training(_after("mark_differentiable", Request(batch_size=8)))
    assert "y = MatMul(x, ~w) -> float32[8, 2]" in marked
    assert "mul = Mul(~y/fanout0, ~y/fanout0) -> float32[8, 2]" in marked
    assert [line.replace("~", "") for line in marked] == lines


def test_gradients_by_a_constant_are_those_of_all_readers(model: Model) -> None:
    constant = to.constant(np.ones([2], np.float32), name="constant")
    loss = to.reduce_sum(constant * to.get_variable("w", [2]) + constant, name="loss")
    lines = _training(_after("fan_out"))
    assert "add = AddV2(mul, constant/copy1) -> float32[2]" in lines
    to.gradients(loss, [constant])
    lines = _training(_after("fan_out"))
    assert "add = AddV2(mul, constant/fanout0) -> float32[2]" in lines and not any("/copy" in line for line in lines)


def test_what_gradients_are_taken_by_is_read_by_its_own_name(model: Model) -> None:
    """Where handlers give other tensors: a function what it takes, a list its rows; and where gradients stop."""
    x = to.placeholder(to.float32, [3, 2], name="x")
    y = to.multiply(x, to.get_variable("w", [2]), name="y")
    given, other = tf.function(lambda a: (a, 2.0 * a))(y)
    mapped = to.map_fn(lambda row: row, y)
    loss = to.reduce_sum(given * other * mapped * y)
    to.gradients(loss, [given, mapped])
    to.gradients(loss, [x], stop_gradients=[mapped])
    lines = _after("to_static_shapes")
    names = [f"{tensor.op.name}/crossed/Identity" for tensor in (given, mapped)]
    assert f"mul = Mul({names[0]}, PartitionedCall/Identity_1) -> float32[3, 2]" in lines
    assert f"mul_1 = Mul(mul, {names[1]}) -> float32[3, 2]" in lines
    assert sum(f"by {name}:0" in line for name in names for line in lines) == 2
    (call,) = [call for call in _source("to_static_shapes").part.gradients if call.stopped]
    assert call.stopped == (f"{names[1]}:0",)


def test_what_gradients_stop_at_and_what_they_begin_with_stays_apart(model: Model) -> None:
    w = to.get_variable("w", [2])
    reading, (one, _) = w.value(), tf.identity_n([to.reduce_sum(w) * 2.0, w])
    loss = to.reduce_sum(one * reading, name="loss")
    to.gradients(loss, [w], stop_gradients=[reading])
    to.gradients(one, [one])
    (made,) = [op for op in _source("read_operators").operators if op.attrs.get("stopped")]
    assert made.attrs["stopped"] == (reading.name,)
    assert any("= Sink(IdentityN)" in line for line in _after("read_operators"))


def test_names_of_the_script_may_be_those_of_operators_that_are_added(model: Model) -> None:
    x = to.placeholder(to.float32, [2], name="x")
    both = to.tanh(x, name="both")
    constant = to.constant([1.0, 2.0], name="constant")
    own = to.identity(both, name="both/fanout0") + to.constant([3.0, 4.0], name="constant/copy1")
    to.gradients(to.reduce_sum(both * constant + own * constant + to.sin(own, name="loss/sink")), [x])
    names = [line.partition(" = ")[0].removeprefix("* ") for line in _after("fan_out")]
    assert len(set(names)) == len(names)
    assert {"both/fanout0", "both/fanout0_1", "constant/copy1", "constant/copy2", "loss/sink"} <= {*names}


def test_gradients_by_gradients_of_which_others_are_made_are_refused(model: Model) -> None:
    x = to.placeholder(to.float32, [4, 2], name="x")
    w = to.get_variable("w", [2, 2])
    y = to.matmul(x, w)
    by_w, by_y = to.gradients(to.reduce_sum(to.sin(y) ** 2), [w, y])
    assert to.gradients(to.reduce_sum(by_y * by_y), [by_y])[0] is not None
    assert len(_after("to_static_shapes"))
    assert to.gradients(to.reduce_sum(by_w), [w], stop_gradients=[by_w]) == [None]  # whose ops nothing reads
    assert len(_after("to_static_shapes"))
    to.gradients(to.reduce_sum(by_w * by_w), [by_y])
    with pytest.raises(
        GraphError, match=r"is a gradient, of which TensorFlow makes '.*', and the loss depends on both"
    ):
        _after("to_static_shapes")


def test_random_numbers_of_gradient_functions_are_said(model: Model) -> None:
    @tf.custom_gradient
    def noisy(x: Any) -> Any:
        return tf.identity(x), lambda dy: dy * tf.random.uniform([2], seed=1)

    x = to.placeholder(to.float32, [2], name="x")
    to.gradients(to.reduce_sum(noisy(x)), [x])
    (said,) = of_other_numbers(Graph(_source("read_operators").operators))
    assert said.startswith("random ops in the gradient functions of 1 ops (first: IdentityN '")


def test_gradients_stop_at_operations_as_in_tensorflow(model: Model) -> None:
    """At all outputs of one, but not at a call of a function."""
    x = to.placeholder(to.float32, [4, 2], name="x")
    one, other = to.split(x, 2, name="split")
    called = tf.function(lambda a: 2.0 * a)(x)
    to.gradients(to.reduce_sum(one * other * called[:2]), [x], stop_gradients=[one, called])
    assert [call.stopped for call in model.gradient_calls] == [("split:0", "split:1")]


def test_passes_are_dumped_where_somebody_asks(product: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TENSOROPT_DUMP", str(tmp_path))
    graph = import_model(current_model(), 8).graph
    (folder,) = tmp_path.iterdir()
    files = sorted(path.name for path in folder.iterdir())
    assert files == [f"{number:02}_{each.__name__}.txt" for number, each in enumerate(PASSES, start=1)]
    assert len((folder / files[-1]).read_text(encoding="utf-8").splitlines()) == len(graph.operators)


def test_a_folder_that_cannot_be_made_is_refused(product: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("TENSOROPT_DUMP", str(tmp_path / "file"))
    with pytest.raises(GraphError, match=r"TENSOROPT_DUMP: '.*01_cut_pipelines.txt' cannot be written: "):
        import_model(current_model(), 8)


def test_a_pass_that_breaks_the_graph_is_named(product: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tensoropt.api.frontend import pipeline

    def doubled(source: Source) -> Source:
        from dataclasses import replace

        return replace(source, operators=(*source.operators, source.operators[0]))

    passes: tuple[Callable[[Source], Source], ...] = (*PASSES[:-1], doubled)
    monkeypatch.setattr(pipeline, "PASSES", passes)
    monkeypatch.setenv("TENSOROPT_DUMP", str(tmp_path))
    with pytest.raises(GraphError, match=r"After doubled: Graph: two operators are called 'x'\. Names must be unique"):
        import_model(current_model(), 8)


def test_a_part_has_the_sizes_that_are_asked_for(product: Any) -> None:
    part = import_model(current_model(), shapes={"x": [1, 4]}, only=["y"])
    assert part.graph["y"].outputs[0].shape == (1, 2) and tf.is_tensor(part.tf_graph.get_tensor_by_name("y:0"))


def test_a_subgraph_reads_a_variable_where_its_operations_do(model: Model) -> None:
    x = to.placeholder(to.int32, [6], name="x")
    table = to.get_variable("table", [8, 4])
    ids, _ = to.unique(x, name="ids")
    before = to.gather(table, ids, name="before")
    with to.control_dependencies([before]):
        first = to.assign_add(table, to.ones([8, 4]))
    with to.control_dependencies([first]):
        between = to.gather(table, ids, name="between")
    with to.control_dependencies([between]):
        second = to.assign_add(table, to.ones([8, 4]))
    with to.control_dependencies([second]):
        to.reduce_sum(to.concat([before, between], 0), name="total")
    lines = _after("read_operators", Request(only=frozenset(["total"])))
    touching = [line.lstrip("* ") for line in lines if "table" in line.partition("=")[2] or "group/read" in line]
    assert touching == [
        "AssignAddVariableOp = AssignAddVariableOp(table!, ones) -> ",
        "between/group/read2 = ReadVariableOp(table!) ^AssignAddVariableOp -> float32[8, 4]",
        # One value is that before both writes, the other that between them.
        "between/group = Subgraph(x, table, between/group/read2) ^AssignAddVariableOp -> float32[0, 4], float32[0, 4]",
        "AssignAddVariableOp_1 = AssignAddVariableOp(table!, ones_1) ^between/group/read2 -> ",
    ]


def test_writes_wait_for_no_reads_of_what_cannot_be_fetched(model: Model) -> None:
    x, text = to.placeholder(to.int32, [6], name="x"), to.placeholder(to.string, [1], name="text")
    table = to.get_variable("table", [8, 4])
    ids, _ = to.unique(x)
    with to.control_dependencies([to.assign_add(table, to.ones([8, 4]))]):
        rows = to.gather(table, ids)
    with to.control_dependencies([rows]):
        to.assign_add(table, to.ones([8, 4]))
    to.concat([to.as_string(to.expand_dims(to.reduce_sum(rows), 0)), text], 0, name="refused")
    source = _source("read_operators", Request(only=frozenset(["refused", "AssignAddVariableOp_1"])))
    assert "refused" in source.refused
    names = {op.name for op in source.operators}
    assert all(name in names for op in source.operators for name in op.control_inputs)
    assert any(op.name == "AssignAddVariableOp_1" for op in source.operators)
