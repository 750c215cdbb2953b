"""Steps of custom loops by ``tensoropt.function``, beside ``tf.function`` in this process."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any
from unittest import mock

import keras
import numpy as np
import tensorflow as tf

import tensoropt
from tensoropt.errors import GraphError, SessionError
from tests.scripts.cases import case, core_case, raises
from tests.scripts.function_steps import (
    Made,
    batches,
    check_same,
    compare,
    descend,
    loss_of_layers,
    loss_of_logits,
    new_variables,
)


def _descent() -> tuple[Callable[..., Any], list[Any]]:
    w, v = new_variables((6, 8), (8, 4))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of_layers(w, v, x, y)
        gradients, norm = tf.clip_by_global_norm(tape.gradient(loss, [w, v]), 0.5)
        for variable, gradient in zip((w, v), gradients, strict=True):
            variable.assign_sub(0.1 * gradient)
        return {"loss": loss, "norm": norm}

    return step, [w, v]


@core_case
def step_trains_as_tensorflow_alone_on_batches_of_any_size() -> None:
    ours = compare(_descent, (8, 8, 5, 8, 1))
    assert ours.tensoropt_plan.mesh.size == tensoropt.world_size()


@case
def step_is_planned_before_it_is_called() -> None:
    step, _ = _descent()
    signature = [tf.TensorSpec([8, 6]), tf.TensorSpec([8], tf.int32)]
    ours = tensoropt.function(step, input_signature=signature)
    plan = ours.plan("mini_memory")
    assert plan is not None and ours.tensoropt_plan is plan
    expected, _ = _descent()
    for x, y in batches(8, 8):
        check_same(ours(x, y=y), tf.function(expected)(x, y))
    try:
        ours.plan()
    except SessionError as error:
        assert "planned already" in str(error)
    else:
        raise AssertionError("a second plan was taken")


@case
def shares_are_fed_as_whole_batches_are() -> None:
    step, found = _descent()
    plain, expected = _descent()
    ours = tensoropt.function(step)
    rank, size = tensoropt.world_rank(), tensoropt.world_size()
    for x, y in batches(8, 8):
        here = slice(rank * 8 // size, (rank + 1) * 8 // size)
        check_same(ours(x[here], y[here]), tf.function(plain)(x, y))
    check_same(found, expected)


@case
def what_ranks_give_is_what_shard_says_or_else_a_line_tells() -> None:
    rank, size = tensoropt.world_rank(), tensoropt.world_size()
    mine, alike = (np.full((4, 3), value, np.float32) for value in (rank, 7.0))

    def count(x: Any) -> Any:
        return tf.shape(x)[0], tf.reduce_sum(x)

    def sized(x: Any) -> Any:
        return x.shape[0] * tf.ones((), tf.int32), tf.reduce_sum(x)

    class Counter:
        @tensoropt.function(shard=False)
        def count(self, x: Any) -> Any:
            return count(x)

    total = 12.0 * sum(range(size))
    with mock.patch("tensoropt.api.functions.program.announce") as said:
        ours = tensoropt.function(count)
        for _ in range(3):
            check_same(ours(mine), (4 * size, total))
            check_same(ours(alike), (4, 84.0))
        lines = [call.args[0] for call in said.mock_calls]
    assert len(lines) == (size > 1), lines
    assert all(f"shares of one batch ({4 * size} rows)" in line and "shard=True" in line for line in lines), lines
    counter = Counter()
    # Shares may well be the same.
    for own in (tensoropt.function(count, shard=False), tensoropt.function(sized, shard=False), counter.count):
        for _ in range(2):
            check_same(own(alike), (4 * size, 84.0 * size))
            check_same(own(mine), (4 * size, total))
            # As large a share as the batch that was planned.
            check_same(own(np.tile(alike, (size, 1))), (4 * size * size, 84.0 * size * size))
    whole = tensoropt.function(shard=True)(count)
    check_same(whole(alike), (4, 84.0))
    for compared in (True, False) if size > 1 else ():
        with mock.patch("tensoropt.api.functions.program.is_compared", lambda runs, now=compared: now):
            raises(
                functools.partial(whole, mine), "must have the same whole batch" if compared else "must be the same on"
            )
            raises(functools.partial(whole, mine[:3]), "whole batch")
        check_same(whole(alike), (4, 84.0))


@case
def a_share_may_be_as_large_as_the_batch_that_was_planned() -> None:
    rank, size = tensoropt.world_rank(), tensoropt.world_size()
    for first_is_share in (True, False):
        step, found = _descent()
        plain, expected = _descent()
        ours = tensoropt.function(step)
        for number, (x, y) in enumerate(batches(8, 8 * size, 8 * size)):
            rows = len(x) // size
            here = slice(rank * rows, (rank + 1) * rows) if number or first_is_share else slice(None)
            check_same(ours(x[here], y[here]), plain(x, y))
        check_same(found, expected)


@case
def step_that_needs_the_size_of_a_batch_as_a_number_is_traced_for_each_size() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        step, variables = _descent()

        def sized(x: Any, y: Any) -> Any:
            mixed = tf.concat([x, tf.ones((x.shape[0], 6))], axis=0)
            return step(mixed, tf.concat([y, tf.zeros((x.shape[0],), tf.int32)], axis=0)), x.shape[0] / 2

        return sized, variables

    compare(make, (8, 8, 5, 8))
    compare(make, (5, 8))  # two ranks do not divide the first one, and are given the whole of it
    ours, alone = tensoropt.function(make()[0]), tf.function(make()[0])
    rank, size = tensoropt.world_rank(), tensoropt.world_size()
    here = slice(rank * 8 // size, (rank + 1) * 8 // size)
    for x, y in batches(8, 8):  # shares, then as many rows that are the whole, then shares again
        check_same(ours(x[here], y[here]), alone(x, y))
        check_same(ours(x[: 8 // size], y[: 8 // size]), alone(x[: 8 // size], y[: 8 // size]))


@case
def sizes_that_a_step_reads_are_numbers() -> None:
    def reading(read: Callable[[Any, Any, Any], Any]) -> Callable[[], tuple[Callable[..., Any], list[Any]]]:
        def make() -> tuple[Callable[..., Any], list[Any]]:
            w, table = new_variables((6, 4), (8, 4))

            def step(x: Any, y: Any) -> Any:
                with tf.GradientTape() as tape:
                    h = x @ w
                    loss = loss_of_logits(read(x, h, table), y)
                descend(tape, loss, [w, table])
                return loss

            return step, [w, table]

        return make

    def asserted(x: Any, h: Any, table: Any) -> Any:
        assert x.shape[0] in (1, 5, 8), x.shape
        return h + tf.reduce_mean(table)

    for read in (
        lambda x, h, table: h * (3.0 if x.shape[0] == 1 else 1.0) + tf.reduce_mean(table),
        lambda x, h, table: h + table[: x.shape[0]],
        lambda x, h, table: h + table[: (h.shape[0] or 3)],
        lambda x, h, table: h + tf.reduce_mean(table) * (2.0 if h.shape == table.shape else 1.0),
        lambda x, h, table: h + tf.reduce_mean(table) * sum(1.0 for size in h.shape if size == 8),
        lambda x, h, table: h + tf.reduce_mean(table) * {8: 1.0, 5: 2.0, 1: 3.0}[x.get_shape().as_list()[0]],
        asserted,
    ):
        compare(reading(read), (8, 5, 8, 1))
    ours = compare(
        reading(lambda x, h, table: h + tf.reduce_mean(table) * h.shape[1] * tf.cast(tf.shape(x)[0], tf.float32)),
        (8, 5),
    )
    assert not ours.reads_sizes


@case
def variables_that_a_step_makes_have_values_whatever_else_the_step_needs() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        found: list[Any] = []
        draws = np.random.default_rng(5)

        def step(x: Any, y: Any) -> Any:
            if not found:
                found.append(tf.Variable(tf.ones([6, 4]) * 0.3, name="given"))
                found.append(tf.Variable(lambda: draws.normal(size=4).astype(np.float32), name="drawn"))
                found.append(tf.Variable(lambda: draws.normal() * tf.ones([4]), dtype=tf.float32, name="scaled"))
            with tf.GradientTape() as tape:
                loss = loss_of_logits(x @ found[0] * found[2] + found[1], y) / x.shape[0]
            descend(tape, loss, found)
            return loss

        return step, found

    compare(make, (8, 5, 8))


@case
def gradients_that_need_sizes_are_traced_for_each_size() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        (w,) = new_variables((6, 4))

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                triangle = tf.linalg.qr(x @ w)[1]
                loss = tf.reduce_mean(tf.abs(triangle))
            descend(tape, loss, [w])
            return loss

        return step, [w]

    compare(make, (8, 6, 8))


@case
def rows_stay_rows() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        (table, w) = new_variables((4, 6), (6, 4))

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of_layers(w, tf.eye(4), x + tf.gather(table, y), y)
            rows, gradient = tape.gradient(loss, [table, w])
            table.scatter_sub(tf.IndexedSlices(0.1 * rows.values, rows.indices))
            w.assign_sub(0.1 * gradient)
            return loss

        return step, [table, w]

    compare(make)


@case
def python_branches_calls_and_custom_gradients_are_taken_in() -> None:
    @tf.function
    def squashed(x: Any) -> Any:
        return tf.nn.silu(x) * 2.0

    def make() -> tuple[Callable[..., Any], list[Any]]:
        w, v = new_variables((6, 8), (8, 4))
        count = tf.Variable(0)

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of_layers(w, v, squashed(x), y) + tf.reduce_mean(tf.nn.silu(tf.matmul(x, w)))
            gradients = tape.gradient(loss, [w, v])
            rate = tf.constant(0.1)
            if count > 1:
                rate = tf.constant(0.01)
            for variable, gradient in zip((w, v), gradients, strict=True):
                variable.assign_sub(rate * gradient)
            count.assign_add(1)
            return loss

        return step, [w, v, count]

    compare(make, (8, 8, 8, 8))


@core_case
def variables_are_read_and_assigned_between_calls() -> None:
    step, (w, v) = _descent()
    ours = tensoropt.function(step)
    plain, (a, b) = _descent()
    alone = tf.function(plain)
    for number, (x, y) in enumerate(batches(8, 8, 8, 8)):
        check_same(ours(x, y), alone(x, y))
        if number == 1:
            for one, other in ((w, a), (v, b)):
                one.assign(one * 0.5)
                other.assign(other * 0.5)
        check_same(tf.reduce_sum(w), tf.reduce_sum(a))
    check_same([w, v], [a, b])


@core_case
def functions_share_variables() -> None:
    step, (w, v) = _descent()
    plain, (a, b) = _descent()
    ours, alone = tensoropt.function(step), tf.function(plain)
    evaluate = tensoropt.function(lambda x, y: loss_of_layers(w, v, x, y))
    for x, y in batches(8, 8):
        ours(x, y), alone(x, y)
        check_same(evaluate(x, y), loss_of_layers(a, b, x, y))


@case
def a_variable_of_which_an_op_gets_the_handle_alone_is_a_variable() -> None:
    def made() -> tuple[Callable[..., Any], list[Any]]:
        w, v = new_variables((6, 8), (8, 4))
        slots = [tf.Variable(tf.zeros_like(each)) for each in (w, v)]

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of_layers(w, v, x, y)
            for variable, slot, gradient in zip((w, v), slots, tape.gradient(loss, [w, v]), strict=True):
                tf.raw_ops.ResourceApplyMomentum(
                    var=variable.handle, accum=slot.handle, lr=0.1, grad=gradient, momentum=0.9
                )
            return loss

        return step, [w, v, *slots]

    compare(made)


@case
def variables_are_named_by_the_scopes_that_read_them_first() -> None:
    """TensorFlow gives the readers of a variable in an order that differs from rank to rank."""
    rates = [tf.Variable(float(number), name="rate") for number in range(12)]

    def step(x: Any, y: Any) -> Any:
        total = tf.reduce_sum(x)
        for number, rate in enumerate(rates):
            with tf.name_scope(f"first{number}/in"):
                total = total * rate
            total = total + rate
        rates[0].assign(total)
        return total

    plan = tensoropt.function(step, input_signature=[tf.TensorSpec([8, 6]), tf.TensorSpec([8], tf.int64)]).plan()
    assert plan is not None and plan.graph is not None
    found = [op.name for op in plan.graph.variables()]
    assert found == [f"first{number}/in/rate" for number in range(12)], found


@case
def of_several_implementations_that_for_processors_runs() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        w, v = new_variables((6, 8), (8, 4))
        what = {"api_implements": "scaled_by_a_number"}
        anywhere = tf.function(lambda x: (x * 3.0, tf.constant(1.0)), experimental_attributes=what)
        here = {**what, "api_preferred_device": "CPU"}
        processors = tf.function(lambda x: (x * 2.0, tf.constant(2.0)), experimental_attributes=here)

        def scaled(x: Any) -> Any:
            processors.get_concrete_function(x).add_to_graph()
            return anywhere(x)

        nested = tf.function(scaled)

        def step(x: Any, y: Any) -> Any:
            (inner, one), (outer, other) = scaled(x), nested(x)
            with tf.GradientTape() as tape:
                loss = loss_of_layers(w, v, inner + outer, y)
            descend(tape, loss, [w, v])
            return loss, one, other

        return step, [w, v]

    ours = compare(make)
    x, y = batches(8)[0]
    assert [float(each) for each in ours(x, y)[1:]] == [2.0, 2.0]


@case
def generators_draw_what_they_draw_in_tensorflow() -> None:
    """As steps of diffusion draw times and noise; in a branch, too, and over the end of the counter's lower half."""

    def make() -> tuple[Callable[..., Any], list[Any]]:
        (w,) = new_variables((6, 6))
        one = tf.random.Generator.from_state([-(2**12), 7, 3], alg="philox")
        other = tf.random.Generator.from_seed(5)

        def step(x: Any, y: Any) -> Any:
            times = one.uniform(tf.shape(x)[:1], 0, 10, tf.int32)
            seeds = other.make_seeds(2)
            noise = one.normal(tf.shape(x)) + tf.random.stateless_normal([6], seeds[:, 0])
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean((x @ w + noise * tf.cast(times, tf.float32)[:, None] - x) ** 2)
            w.assign_sub(0.01 * tape.gradient(loss, w))
            even = tf.reduce_sum(times) % 2 == 0
            drawn = tf.cond(even, lambda: other.uniform([3]), lambda: one.normal([3]) + other.normal([3]))
            return loss, times, drawn, other.truncated_normal([2])

        return step, [w, one.state, other.state]

    compare(make, (8, 8, 8, 8))


@case
def a_generator_in_a_loop_of_unknown_length_is_an_error() -> None:
    generator = tf.random.Generator.from_seed(3)

    def step(x: Any, y: Any) -> Any:
        return tf.while_loop(lambda h: tf.reduce_sum(h) < 9.0, lambda h: h + generator.uniform([]), [tf.abs(x[0, 0])])

    raises(lambda: tensoropt.function(step)(*batches(8)[0]), "while", "tf.random.Generator", kind=GraphError)


@case
def rows_of_known_places_are_merged_as_others() -> None:
    """What an optimizer of tf_keras does with the rows of a table, also where their places are constants."""

    def make(places: Callable[[Any], Any]) -> Made:
        def made() -> tuple[Callable[..., Any], list[Any]]:
            table, w = new_variables((5, 4), (6, 4))

            def step(x: Any, y: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = loss_of_logits(tf.gather(table, places(x)) + x @ w, y)
                rows, gradient = tape.gradient(loss, [table, w])
                unique, of = tf.unique(rows.indices)
                merged = tf.math.unsorted_segment_sum(rows.values, of, tf.shape(unique)[0])
                table.scatter_sub(tf.IndexedSlices(0.1 * merged, unique))
                w.assign_sub(0.1 * gradient)
                return loss

            return step, [table, w]

        return made

    compare(make(lambda x: tf.zeros_like(x[:, 0], tf.int32)))
    compare(make(lambda x: tf.range(tf.shape(x)[0]) % 3))


@core_case
def lookups_by_ids_of_unknown_number_read_what_the_table_holds_then() -> None:
    def made_by(step_of: Callable[..., Any]) -> Made:
        def make() -> tuple[Callable[..., Any], list[Any]]:
            (table,) = new_variables((8, 4))
            found = tf.Variable(tf.zeros([4]))
            return lambda x, y: step_of(table, found, tf.unique(y)[0]), [table, found]

        return make

    def between_writes(table: Any, found: Any, ids: Any) -> Any:
        before = tf.gather(table, ids)
        table.assign_add(tf.ones([8, 4]))
        between = tf.gather(table, ids)
        table.assign(table * 2.0)
        after = tf.gather(table, ids)
        found.assign_add(tf.reduce_sum(tf.concat([before, between * 10.0, after * 100.0], 0), 0))
        return before, between, after

    def in_turn(table: Any, found: Any, ids: Any) -> Any:
        first = tf.gather(table, ids)
        table.scatter_add(tf.IndexedSlices(first, ids))
        second = tf.gather(table, ids)
        table.scatter_sub(tf.IndexedSlices(second * 0.5, ids))
        found.assign(tf.reduce_sum(second - first, 0))
        return tf.reduce_sum(tf.gather(table, ids))

    def trained(table: Any, found: Any, ids: Any) -> Any:
        with tf.GradientTape() as tape:
            rows = tf.gather(table, ids)
            loss = tf.reduce_sum(rows**2)
        gradient = tape.gradient(loss, table)
        table.scatter_sub(tf.IndexedSlices(0.1 * gradient.values, gradient.indices))
        return loss, rows

    def in_branches(table: Any, found: Any, ids: Any) -> Any:
        def summed() -> Any:
            total = tf.abs(tf.reduce_sum(table))
            size = tf.while_loop(lambda size: size < total + 10.0, lambda size: size + 1.0 + total, [total * 0.0])[0]
            return tf.cond(total > -1.0, lambda: size + tf.reduce_sum(table[0]), lambda: total)

        first = summed()
        table.assign(table * 2.0)
        second = summed()
        table.assign(table * 2.0)
        found.assign(tf.stack([first, second, summed(), first]))
        return first, second

    def in_several_dimensions(table: Any, found: Any, ids: Any) -> Any:
        places = tf.stack([ids, ids % 4], 1)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.gather_nd(table, places) ** 2)
        table.assign_sub(0.1 * tf.convert_to_tensor(tape.gradient(loss, table)))
        found.assign(tf.reduce_sum(tf.gather_nd(table, ids[:, None]), 0))
        return loss, tf.gather_nd(table, places)

    for step_of in (between_writes, in_turn, trained, in_branches, in_several_dimensions):
        compare(made_by(step_of))


@core_case
def places_of_each_sequence_are_counted_through_all() -> None:
    """As BERT finds masked words, and others the last word."""

    def make() -> tuple[Callable[..., Any], list[Any]]:
        w, head = new_variables((6, 12), (4, 4))

        def step(x: Any, y: Any) -> Any:
            size = tf.shape(x)[0]
            masked = tf.argsort(x[:, :3])[:, :2]
            with tf.GradientTape() as tape:
                words = tf.reshape(tf.tanh(x @ w), [size, 3, 4])
                places = tf.reshape(masked + tf.range(size)[:, None] * 3, [-1])
                found = tf.reshape(tf.gather(tf.reshape(words, [-1, 4]), places), [size, 2, 4])
                last = tf.gather_nd(words, tf.stack([tf.range(size), masked[:, 1]], 1))
                loss = loss_of_logits((found[:, 0] * found[:, 1] + last) @ head, y)
            for variable, gradient in zip((w, head), tape.gradient(loss, (w, head)), strict=True):
                variable.assign_sub(0.1 * gradient)
            return loss, found, last

        return step, [w, head]

    compare(make)


@case
def what_a_loop_of_unknown_length_gives_is_assigned() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        turns, state, last = tf.Variable(0), tf.Variable(tf.zeros([4])), tf.Variable(0)

        def step(x: Any, y: Any) -> Any:
            def turn(number: Any, reached: Any) -> Any:
                return number + 1, reached + tf.abs(x[0, :4]) + 1.0

            number, reached = tf.while_loop(lambda _, reached: tf.reduce_sum(reached) < 50.0, turn, (0, tf.zeros([4])))
            turns.assign_add(number)
            last.assign(number)
            state.assign_add(reached)
            return reached

        return step, [turns, state, last]

    compare(make)


@case
def rows_of_a_loop_of_unknown_length_keep_their_number() -> None:
    """A turn gives as many rows as it takes, so what reads them can be split, and may be assigned."""

    def make() -> tuple[Callable[..., Any], list[Any]]:
        w, head = new_variables((6, 6), (6, 4))
        seen = tf.Variable(tf.zeros([8, 6]))

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                rows, *_ = tf.while_loop(
                    lambda rows, grown: tf.reduce_mean(tf.abs(rows)) > 0.05,
                    lambda rows, grown: (0.5 * tf.tanh(rows @ w) * tf.abs(rows), tf.concat([grown, rows], 0)),
                    (x, x[:0]),
                    shape_invariants=(tf.TensorShape([None, 6]), tf.TensorShape([None, 6])),
                )
                loss = loss_of_logits(rows @ head, y)
            for variable, gradient in zip((w, head), tape.gradient(loss, (w, head)), strict=True):
                variable.assign_sub(0.1 * gradient)
            seen.assign_add(rows)
            return loss, rows

        return step, [w, head, seen]

    compare(make)


@case
def a_table_in_a_step_is_an_error_that_names_the_layer() -> None:
    lookup = keras.layers.StringLookup(vocabulary=["a", "b", "c"], name="words")
    ours = tensoropt.function(lambda x: lookup(x))
    raises(lambda: ours(np.asarray(["a", "d", "b", "c"])), "words", "dataset.map", kind=GraphError)


def _masked(y: Any) -> Any:
    return tf.reduce_sum(tf.boolean_mask(y, y[:, 0] > 0.0))


def _chosen(y: Any) -> Any:
    return tf.reduce_mean(tf.cond(tf.reduce_sum(y) > 0.0, lambda: y * 2.0, lambda: y**2))


def _doubled(y: Any) -> Any:
    total = tf.reduce_sum(y**2)
    while total < 100.0:
        total = total * 2.0
    return total


def _until(y: Any) -> Any:
    parts = tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    for turn in tf.range(10):
        y = tf.tanh(y) * 1.1
        parts = parts.write(turn, tf.reduce_sum(y))
        if tf.reduce_sum(y) > 3.0:
            break
    return tf.reduce_sum(parts.stack())


@case
def what_an_operator_of_unknown_shapes_gives_is_a_loss_itself() -> None:
    for loss_of in (_masked, _chosen, _doubled, _until):

        def make(loss_of: Any = loss_of) -> tuple[Callable[..., Any], list[Any]]:
            (w,) = new_variables((6, 4))

            def step(x: Any, y: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = loss_of(tf.matmul(x, w))
                w.assign_sub(0.01 * tape.gradient(loss, w))
                return tf.norm(w)  # of the loss there is nothing but the gradient

            return step, [w]

        compare(make)


class _Game:
    """What a step plays by Python: a number that grows until it is over."""

    def __init__(self) -> None:
        self.moves = 0

    def move(self, state: Any) -> tuple[np.ndarray, np.ndarray]:
        """The next state, and whether the game is over."""
        self.moves += 1
        return (state * 1.5).astype(np.float32), np.asarray(self.moves % 5 == 0)


@case
def what_a_loop_does_by_python_is_done_once() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        (w,) = new_variables((6, 4))
        game = _Game()

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                state, gains = x[0], tf.TensorArray(tf.float32, size=0, dynamic_size=True)
                for turn in tf.range(20):
                    gains = gains.write(turn, tf.reduce_sum(tf.tanh(tf.matmul(state[None], w))))
                    state, over = tf.numpy_function(game.move, [state], [tf.float32, tf.bool])
                    state.set_shape([6])
                    if over:
                        break
                gained = gains.stack()
                loss = tf.reduce_mean(gained)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss, tf.size(gained)

        return step, [w]

    compare(make, input_signature=[tf.TensorSpec([8, 6]), tf.TensorSpec([8], tf.int32)])


@case
def ranks_agree_on_a_step_whatever_else_one_of_them_has_traced() -> None:
    table = tf.constant(np.random.default_rng(2).normal(size=(6, 4)).astype(np.float32))  # is named by its number
    if tensoropt.world_rank() == 0:
        for _ in range(7):
            tf.function(lambda x: tf.cond(x > 0, lambda: x, lambda: -x))(tf.constant(1.0))
            tf.constant(0.0) + tf.constant(1.0)
            tf.numpy_function(np.negative, [tf.constant(1.0)], tf.float32)

    def make() -> tuple[Callable[..., Any], list[Any]]:
        def step(x: Any, y: Any) -> Any:
            total, turns = tf.reduce_sum(tf.matmul(x, table) ** 2), 0
            while total < 1000.0:
                if total < 100.0:
                    total = total * 2.0
                elif total < 500.0:
                    total = total + 10.0
                else:
                    total = total * 1.5
                turns += 1
            rows = tf.RaggedTensor.from_row_lengths(tf.reshape(x, [-1]), [30, 18])
            python = tf.reduce_sum(tf.numpy_function(np.square, [x], tf.float32))
            return turns, tf.reduce_sum(rows, 1), python

        return step, []

    compare(make)


@case
def a_step_may_be_a_method_and_each_object_has_its_own() -> None:
    class Layer(tf.Module):
        def __init__(self, factor: float) -> None:
            super().__init__()
            self.factor = tf.Variable(factor)

        @tensoropt.function
        def scaled(self, x: Any) -> Any:
            """Adds one to the factor, too."""
            self.factor.assign_add(1.0)
            return self.factor * x

    one, other = Layer(2.0), Layer(5.0)
    x = np.arange(8, dtype=np.float32)
    for turn in range(1, 3):
        check_same(one.scaled(x), (2.0 + turn) * x)
        check_same(other.scaled(x), (5.0 + turn) * x)
    assert one.scaled is one.scaled and one.scaled is not other.scaled
    check_same([one.factor, other.factor], [4.0, 7.0])


def _calling() -> tuple[Callable[..., Any], list[Any]]:
    """A step whose loss is a function that calls a function: under a tape both give what their gradients read, too."""
    w, v = new_variables((6, 8), (8, 4))
    layer = tf.function(lambda x: tf.matmul(tf.nn.relu(tf.matmul(x, w)), v))

    @tf.function
    def losses(x: Any, y: Any) -> Any:
        logits = layer(x)
        own = tf.nn.sparse_softmax_cross_entropy_with_logits(y, logits)
        dense = tf.nn.softmax_cross_entropy_with_logits(tf.one_hot(y, 4), logits)
        return tf.reduce_mean(own) + 0.5 * tf.reduce_mean(dense), tf.argmax(logits, 1)

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss, classes = losses(x, y)
        descend(tape, loss, [w, v])
        return loss, classes

    return step, [w, v]


def _adapting() -> tuple[Callable[..., Any], list[Any]]:
    """A step of weights from which each sample's own ones are made by a gradient: it differentiates a gradient."""
    w, v = new_variables((6, 8), (8, 4))

    def loss_after_a_step(sample: Any) -> Any:
        x, y = sample[0][None], sample[1][None]
        with tf.GradientTape() as tape:
            tape.watch(v)
            loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.tanh(x @ w) @ v))
        own = v - 0.5 * tape.gradient(loss, v)
        return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.tanh(x @ w) @ own))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = tf.vectorized_map(loss_after_a_step, (x, y))
            loss = tf.reduce_mean(losses)
        descend(tape, loss, [w, v])
        return loss, losses

    return step, [w, v]


@case
def losses_may_be_functions_of_functions_and_of_gradients_of_each_sample() -> None:
    plans: tuple[dict[str, Any], ...] = (
        {},
        {"option": "data_parallel"},
        {"option": "mini_memory"},
        {"micro_batches": 4},
    )
    for make, plan in itertools.product((_calling, _adapting), plans):
        plain, expected = make()
        made, found = make()
        alone, ours = tf.function(plain), tensoropt.function(made)
        if plan:
            ours.plan(**plan)
        for x, y in batches(16, 16):
            check_same(ours(x, y), alone(x, y))
        check_same(found, expected)


@case
def variables_may_be_arguments() -> None:
    def made(wrap: Any) -> list[Any]:
        weights = new_variables((6, 4), (6, 4))

        @wrap
        def step(x: Any, y: Any, w: Any, rate: float) -> Any:
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, tf.matmul(x, w)))
            w.assign_sub(rate * tape.gradient(loss, w))
            return loss

        losses = [step(*batches(8)[0], w, rate=0.1) for w in (weights[0], weights[1], weights[0])]
        return [*losses, *weights]

    check_same(made(tensoropt.function), made(tf.function))


@case
def a_tape_around_a_step_is_an_error() -> None:
    step, _ = _descent()
    ours = tensoropt.function(step)
    with tf.GradientTape():
        raises(lambda: ours(*batches(8)[0]), "Open the tape in the step", kind=SessionError)
    outer = tensoropt.function(lambda x, y: ours(x, y))
    raises(lambda: outer(*batches(8)[0]), "call the Python function", kind=GraphError)


@case
def an_output_that_training_does_not_read_is_there_for_who_does() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        (w,) = new_variables((6, 4))

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                rows = tf.matmul(x, w)
                values, places = tf.math.top_k(tf.boolean_mask(rows, rows[:, 0] > -9.0)[0], 2)
                loss = tf.reduce_sum(values**2)
            w.assign_sub(0.01 * tape.gradient(loss, w))
            return places

        return step, [w]

    compare(make)


@case
def a_check_in_a_branch_that_is_not_taken_is_none() -> None:
    def checked(x: Any) -> Any:
        tf.debugging.assert_greater(tf.reduce_sum(x), 1e12)
        return x * 2.0

    def make() -> tuple[Callable[..., Any], list[Any]]:
        (w,) = new_variables((6, 4))

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                rows = tf.matmul(x, w)
                loss = tf.reduce_mean(tf.cond(tf.reduce_sum(x) > 1e5, lambda: checked(rows), lambda: rows) ** 2)
            w.assign_sub(0.01 * tape.gradient(loss, w))
            return loss

        return step, [w]

    ours = compare(make)
    x, y = batches(8)[0]
    raises(
        lambda: ours(x + 1e5, y),
        "failed on rank",
        "functions.py",
        "assertion failed",
        kind=tf.errors.InvalidArgumentError,
    )


@case
def errors_speak_of_arguments() -> None:
    def make() -> Any:
        (w,) = new_variables((6, 4))
        return tensoropt.function(lambda x, rate: w.assign_sub(rate * tf.reduce_mean(x) * w))

    (x, _), rank = batches(8)[0], np.float32(tensoropt.world_rank())
    if tensoropt.world_size() > 1:
        raises(lambda: make()(x, rank), "Argument 'lambda/", "must be the same on all", "Pass the same")
    raises(lambda: make()(x[:0], np.float32(1.0)), "Argument 'lambda/", "Leave empty batches out")
    data = tf.data.Dataset.from_tensors(x).repeat()
    for given in (data, iter(data)):
        raises(lambda given=given: make()(given, np.float32(1.0)), type(given).__name__, "one batch after another")


@case
def metrics_behind_branches_are_those_of_the_batch_whatever_its_size() -> None:
    """Of results of several dtypes and shapes, chosen by data and by what a variable counts."""

    def make() -> tuple[Callable[..., Any], list[Any]]:
        w, v = new_variables((6, 4), (6, 4))
        calls = tf.Variable(0, name="calls")

        def deep(x: Any, even: Any) -> Any:
            return tf.cond(even, lambda: tf.cond(x[0, 0] > 0.0, lambda: tf.matmul(x, w), lambda: -x @ w), lambda: x @ v)

        def step(x: Any, y: Any) -> Any:
            even = calls.assign_add(1) % 2 == 0
            with tf.GradientTape() as tape:
                logits = deep(tf.debugging.check_numerics(x, "x"), even)
                pair = tf.switch_case(
                    calls % 3, [lambda: (logits, y), lambda: (2.0 * logits, y + 0), lambda: (tf.abs(logits), 3 - y)]
                )
                losses = tf.nn.sparse_softmax_cross_entropy_with_logits(pair[1], pair[0])
                loss = tf.reduce_mean(losses)
            gradients = tape.gradient(loss, [w, v])
            for variable, gradient in zip((w, v), gradients, strict=True):
                variable.assign_sub(0.1 * gradient)
            found = tf.argmax(pair[0], 1, tf.int32)
            hits = tf.equal(found, pair[1])
            top = tf.nn.top_k(pair[0], 2)
            return {
                "losses": losses,
                "hits": hits,
                "found": found,
                "top": top.values,
                "places": top.indices,
                "confused": tf.math.confusion_matrix(pair[1], found, 4),
                "even": even,
            }

        return step, [w, v, calls]

    compare(make, (8, 8, 5, 8, 3))


@case
def tensors_of_unknown_shapes_are_used_again_after_a_gradient() -> None:
    def of_all(w: Any, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            kept = tf.boolean_mask(tf.matmul(x, w), y > 0)
            loss = tf.reduce_mean(kept)
        gradient = tape.gradient(loss, w)
        scale = tf.reduce_sum(tf.abs(kept * tf.norm(gradient)))
        w.assign_sub(0.1 * gradient * scale)
        again = tf.boolean_mask(tf.matmul(x, w), y > 0) - kept  # of before and after a write
        return {"loss": loss, "scale": scale, "moved": tf.reduce_sum(again**2)}

    def of_a_sum(w: Any, x: Any, y: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            kept = tf.boolean_mask(tf.matmul(x, w), y > 0)
            total = tf.reduce_mean(kept)
            loss = total**3
        by_total, by_w = tape.gradient(loss, total), tape.gradient(loss, w)
        w.assign_sub(by_w * tf.reduce_sum(kept * by_total))
        return loss

    def of_rows(w: Any, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            kept = tf.boolean_mask(y, y > 0)
            loss = tf.reduce_mean(tf.square(tf.gather(w, kept))) + tf.reduce_mean(x)
        rows = tape.gradient(loss, w)
        w.scatter_sub(tf.IndexedSlices(rows.values * tf.norm(rows.values), rows.indices))
        return {"loss": loss, "first": tf.reduce_sum(tf.gather(w, kept))}

    for step in (of_all, of_a_sum, of_rows):

        def make(step: Callable[..., Any] = step) -> tuple[Callable[..., Any], list[Any]]:
            (w,) = new_variables((6, 4))
            return lambda x, y: step(w, x, y), [w]

        compare(make, (8, 8, 5))
