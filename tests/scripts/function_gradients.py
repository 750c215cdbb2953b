"""Gradients in steps of ``tensoropt.function``: of tapes, and of the script's own functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

import tensoropt
from tensoropt.errors import GraphError
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


@case
def what_a_tape_does_not_record_is_constant() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        w, v = new_variables((6, 8), (8, 4))

        def step(x: Any, y: Any) -> Any:
            scale = tf.reduce_mean(w)  # made before the tape
            with tf.GradientTape(persistent=True) as tape:
                hidden = tf.matmul(x, w) * scale
                with tape.stop_recording():
                    norm = tf.reduce_sum(hidden**2)
                loss = loss_of_layers(w, v, x, y) + tf.reduce_sum(hidden**2) / norm + tf.reduce_mean(hidden)
            first = tape.gradient(loss, [w, v])
            inner = tape.gradient(loss, hidden)
            late = tape.gradient(tf.reduce_sum(loss * 2.0), w)
            for variable, gradient in zip((w, v), first, strict=True):
                variable.assign_sub(0.1 * gradient)
            return loss, inner, late is None, tape.gradient(norm, w) is None

        return step, [w, v]

    compare(make)


@case
def what_is_made_of_stopped_tensors_is_constant() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        (w,) = new_variables((6, 8))

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                images = tf.reshape(tf.matmul(x, w), [-1, 4, 2, 1])
                stopped = tf.stop_gradient(images)
                small = tf.image.resize(stopped, [2, 1], "area")  # an op without a gradient
                loss = tf.reduce_mean((tf.nn.avg_pool2d(images, 2, 2, "VALID") - 0.5 * small) ** 2)
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss, [tape.gradient(loss, each) is None for each in (stopped, small)]

        return step, [w]

    compare(make)


@case
def watched_variables_alone_have_gradients_where_a_tape_is_told() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        w, v = new_variables((6, 8), (8, 4))

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(v)
                loss = loss_of_layers(w, v, x, y)
            of_w, of_v = tape.gradient(loss, [w, v])
            v.assign_sub(0.1 * of_v)
            return loss, of_w is None

        return step, [w, v]

    compare(make)


@case
def tapes_in_tapes_give_gradients_of_gradients() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        w, v = new_variables((6, 8), (8, 4))

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as outer:
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    score = tf.reduce_sum(tf.tanh(tf.matmul(tf.tanh(tf.matmul(x, w)), v)))
                slope = tape.gradient(score, x)
                loss = tf.reduce_mean((tf.norm(slope, axis=1) - 1.0) ** 2)
            descend(outer, loss, [w, v])
            return loss

        return step, [w, v]

    compare(make)


@case
def tapes_give_gradients_of_what_they_have_recorded_alone() -> None:
    def asked(function: Callable[..., Any]) -> list[bool]:
        (w,) = new_variables((6, 6))
        kinds: list[bool] = []

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                outside = x * 2.0
                tape.watch(x)
                inside = x * 3.0
                seen = tf.reduce_sum(x @ w)
                loss = tf.reduce_sum(outside**2) + seen + tf.reduce_sum(inside)
            pairs = ((loss, outside), (loss, inside), (loss, seen), (w, w), (loss + 0.0, w), (loss, w))
            with tf.GradientTape(persistent=True) as open_tape:
                early = open_tape.gradient(tf.reduce_sum(x @ w), w)
            found = [early, open_tape.gradient(tf.reduce_sum(x @ w), w)]
            found += [tape.gradient(target, source) for target, source in pairs]
            kinds[:] = [each is not None for each in found]
            w.assign_sub(0.1 * tape.gradient(loss, w))
            return loss

        function(step)(*batches(8)[0])
        return kinds

    found = asked(tensoropt.function)
    assert found == asked(tf.function) == [True, False, False, True, True, True, False, True], found


@case
def what_is_watched_late_is_constant_before_and_what_is_watched_may_be_a_target() -> None:
    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            before = tf.sin(x)
            tape.watch(x)
            cubes = x**3
            late = tf.reduce_sum(before * cubes)
            tape.watch(before)
            both = tf.reduce_sum(before * cubes)
        pairs = ((late, x), (both, x), (both, before), (before, before), (x, x), ([cubes, x], x))
        return [tape.gradient(target, source) for target, source in pairs]

    alone, ours = tf.function(step), tensoropt.function(step)
    for x, y in batches(8):
        check_same(ours(x, y), alone(x, y))


def _trained_by_two_tapes(slope_of: Callable[..., Any]) -> Made:
    """A step whose loss has gradients in it: ``slope_of(x, w, v)``."""

    def made() -> tuple[Callable[..., Any], list[Any]]:
        w, v = new_variables((6, 8), (8, 4))

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as outer:
                loss = tf.reduce_mean(slope_of(x, w, v) ** 2)
            descend(outer, loss, [w, v])
            return loss

        return step, [w, v]

    return made


@case
def gradients_of_one_s_own_are_differentiated_again() -> None:
    @tf.custom_gradient
    def square(x: Any) -> Any:
        e = x * x
        return tf.identity(e), lambda dy: dy * 2.0 * x + 0.01 * e

    for function in (tf.nn.silu, square):

        def slope(x: Any, w: Any, v: Any, function: Any = function) -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                score = tf.reduce_sum(function(function(x @ w) @ v))
            return tape.gradient(score, x)

        compare(_trained_by_two_tapes(slope))

    def curvature(x: Any, w: Any, v: Any) -> Any:
        with tf.GradientTape() as outer:
            outer.watch(x)
            with tf.GradientTape() as inner:
                inner.watch(x)
                score = tf.reduce_sum(tf.nn.silu(x @ w) @ v)
            slope = inner.gradient(score, x)
        return outer.gradient(slope, x)

    compare(_trained_by_two_tapes(curvature))


@case
def what_gradients_are_weighed_by_is_differentiated_again() -> None:
    def in_two_parts(x: Any, w: Any, v: Any) -> Any:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            h = tf.tanh(x @ w)
            tape.watch(h)
            score = tf.reduce_sum((h @ v) ** 3)
        return tape.gradient(h, x, output_gradients=tape.gradient(score, h))

    def forward_by_two_tapes(x: Any, w: Any, v: Any) -> Any:
        with tf.GradientTape() as second:
            weights = tf.ones_like(x @ w)
            second.watch(weights)
            with tf.GradientTape() as first:
                first.watch(x)
                h = tf.tanh(x @ w)
            back = first.gradient(h, x, output_gradients=weights)
        return second.gradient(back, weights, output_gradients=x) @ v

    compare(_trained_by_two_tapes(in_two_parts))
    compare(_trained_by_two_tapes(forward_by_two_tapes))


@case
def a_reading_that_is_watched_is_a_tensor_of_its_own() -> None:
    def adapted(x: Any, w: Any, v: Any) -> Any:
        fast = [tf.convert_to_tensor(w), v.value()]
        with tf.GradientTape() as tape:
            tape.watch(fast)
            score = tf.reduce_mean((tf.tanh(x @ fast[0]) @ fast[1]) ** 2)
        slow, last = (each - 0.5 * slope for each, slope in zip(fast, tape.gradient(score, fast), strict=True))
        return tf.tanh(x @ slow) @ last

    compare(_trained_by_two_tapes(adapted))


@case
def tensors_of_eager_code_that_are_watched_have_gradients() -> None:
    """Small ones, which TensorFlow makes constants of the function, and large ones, which the function is given."""
    small, large = tf.constant([[1.0, -2.0, 0.5, 1.0]]), tf.reshape(tf.sin(tf.range(48.0 * 6)), [48, 6])

    def make() -> tuple[Callable[..., Any], list[Any]]:
        (w,) = new_variables((6, 4))

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                tape.watch([small, large])
                loss = tf.reduce_mean((tf.matmul(x, w) + small) ** 2) + tf.reduce_mean(tf.tanh(large @ w) * small)
                whole = loss + tf.reduce_sum(small * small)
            found = tape.gradient(whole, [small, large]), tape.gradient(small, small)
            w.assign_sub(0.1 * tape.gradient([loss, loss], w))  # of which each counts
            return loss, found

        return step, [w]

    compare(make)


@case
def targets_may_be_complex() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        (w,) = new_variables((6, 4))

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                real = tf.matmul(x, w)
                wave = tf.complex(real, tf.sin(real))
                made = wave * wave * tf.complex(1.0, 2.0)
            weights = tf.complex(tf.cos(x[:, :4]), x[:, 2:])
            found = tape.gradient(made, wave), tape.gradient(made, [w, wave], output_gradients=weights)
            w.assign_sub(0.001 * found[1][0])
            return found

        return step, [w]

    compare(make)


@case
def sums_of_16_bits_are_read_in_micro_batches() -> None:
    for dtype in (tf.float16, tf.bfloat16):

        def loss_of(x: Any, w: Any, dtype: Any = dtype) -> Any:
            hidden = tf.cast(tf.matmul(x, w), dtype)
            sums = tf.stack([tf.reduce_sum(hidden * hidden), -tf.reduce_mean(hidden)])
            return tf.reduce_sum(tf.cast(sums, tf.float32)) + tf.cast(tf.reduce_mean(hidden) / 4, tf.float32)

        (w,) = new_variables((6, 4))

        def step(x: Any, w: Any = w, loss_of: Callable[..., Any] = loss_of) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of(x, w)
            gradient = tape.gradient(loss, w)
            w.assign_sub(0.001 * gradient)
            return loss, gradient

        ((x, _),) = batches(8)
        with tf.GradientTape() as tape:
            expected = loss_of(x, w)
        slope = tape.gradient(expected, w)
        ours = tensoropt.function(step)
        ours.plan(micro_batches=2)
        made, gradient = ours(x)
        assert abs(float(made) - float(expected)) < 0.02 * abs(float(expected)), (made, expected)
        apart = float(tf.norm(gradient - slope) / tf.norm(slope))
        assert apart < 0.02, (apart, gradient, slope)


@case
def gradient_functions_may_have_tapes_of_their_own() -> None:
    def make(checkpointed: Callable[..., Any]) -> Made:
        def made() -> tuple[Callable[..., Any], list[Any]]:
            w, v = new_variables((6, 6), (6, 4))
            block = checkpointed(lambda x: tf.nn.relu(x @ w))

            def step(x: Any, y: Any) -> Any:
                with tf.GradientTape() as tape:
                    logits = block(x) @ v
                    loss = loss_of_logits(logits, y)
                descend(tape, loss, [w, v])
                return loss

            return step, [w, v]

        return made

    def by_hand(block: Callable[..., Any]) -> Callable[..., Any]:
        @tf.custom_gradient
        def checkpointed(x: Any) -> Any:
            def gradient(dy: Any, variables: Any = None) -> Any:
                with tf.GradientTape() as tape:
                    tape.watch(x)
                    y = block(x)
                found = tape.gradient(y, [x, *variables], dy)
                return found[0], found[1:]

            return block(x), gradient

        return checkpointed

    compare(make(tf.recompute_grad))
    compare(make(by_hand))


@case
def what_a_block_s_closure_holds_is_constant_where_the_block_is_computed_again() -> None:
    def make(of: Callable[[Any, Any], Any]) -> Made:
        def made() -> tuple[Callable[..., Any], list[Any]]:
            w, v, u = new_variables((6, 6), (6, 4), (6, 6))

            def step(x: Any, y: Any) -> Any:
                with tf.GradientTape() as tape:
                    h = tf.nn.relu(x @ u)
                    outside = of(h, w)
                    logits = tf.recompute_grad(lambda given: tf.nn.tanh(given @ w) + outside)(h) @ v
                    loss = loss_of_logits(logits, y)
                descend(tape, loss, [w, v, u])
                return loss

            return step, [w, v, u]

        return made

    compare(make(lambda h, w: h))
    compare(make(lambda h, w: tf.nn.tanh(h @ w)))


@case
def gradient_functions_may_read_variables_of_their_own_and_may_not_write() -> None:
    def made() -> tuple[Callable[..., Any], list[Any]]:
        w, v = new_variables((6, 8), (8, 4))
        scale = tf.Variable(2.0)

        @tf.custom_gradient
        def scaled(x: Any) -> Any:
            return tf.identity(x), lambda dy: -scale * dy

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                loss = loss_of_layers(w, v, scaled(x * tf.reduce_sum(w)), y)
            descend(tape, loss, [w, v])
            return loss

        return step, [w, v, scale]

    compare(made)
    total = tf.Variable(0.0)

    @tf.custom_gradient
    def counted(x: Any) -> Any:
        def gradient(dy: Any) -> Any:
            total.assign_add(tf.reduce_sum(dy))
            return dy

        return tf.identity(x), gradient

    w, v = new_variables((6, 8), (8, 4))

    def step(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of_layers(w, v, counted(x * tf.reduce_sum(w)), y)
        w.assign_sub(0.1 * tape.gradient(loss, w))
        return loss

    raises(
        lambda: tensoropt.function(step)(*batches(8)[0]), "writes a variable", "AssignAddVariableOp", kind=GraphError
    )


@core_case
def a_gradient_in_an_inner_function_is_an_error_that_says_where() -> None:
    w, v = new_variables((6, 8), (8, 4))

    @tf.function
    def inner(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of_layers(w, v, x, y)
        return tape.gradient(loss, w)

    ours = tensoropt.function(lambda x, y: inner(x, y))
    raises(lambda: ours(*batches(8)[0]), "leave @tf.function out", kind=GraphError)

    def forward(x: Any, y: Any) -> Any:
        with tf.autodiff.ForwardAccumulator(x, tf.ones_like(x)) as accumulator:
            found = tf.tanh(x)
        return accumulator.jvp(found)

    raises(lambda: tensoropt.function(forward)(*batches(8)[0]), "ForwardAccumulator", "two tapes", kind=GraphError)


@case
def a_gradient_is_differentiated_as_it_is() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        (w,) = new_variables((6, 4))

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as outer:
                with tf.GradientTape() as tape:
                    loss = tf.reduce_sum(tf.sin(tf.matmul(x, w)))
                slope = tape.gradient(loss, w)
            second = outer.gradient(slope, w)
            w.assign_sub(0.01 * second)
            return slope, second

        return step, [w]

    compare(make)


@case
def constants_of_a_tape_amid_tensors_of_unknown_shapes_are_constants() -> None:
    def make(weigh: bool) -> Made:
        def made() -> tuple[Callable[..., Any], list[Any]]:
            w, v = new_variables((6, 8), (8, 4))

            def step(x: Any, y: Any) -> Any:
                with tf.GradientTape(persistent=True) as tape:
                    kept = tf.boolean_mask(tf.tanh(x @ w), x[:, 0] > -1.0)
                    with tape.stop_recording():
                        beside = kept * 3.0
                    loss = tf.reduce_sum(tf.tanh(kept * beside) @ v)
                target, weights = (kept, kept * 2.0) if weigh else (loss, None)
                w.assign_sub(0.1 * tape.gradient(target, w, output_gradients=weights))
                return loss

            return step, [w]

        return made

    compare(make(weigh=False))
    compare(make(weigh=True))


@case
def gradients_amid_tensors_of_unknown_shapes_are_errors() -> None:
    (w,) = new_variables((6, 4))

    def step(x: Any) -> Any:
        with tf.GradientTape() as tape:
            kept = tf.boolean_mask(tf.matmul(x, w), x[:, 0] > 0.0)
            loss = tf.reduce_mean(kept**2)
        w.assign_sub(w * tf.reduce_sum(tape.gradient(loss, kept)))
        return loss

    ours = tensoropt.function(step)
    raises(lambda: ours(batches(8)[0][0]), "has a gradient of its own", kind=GraphError)


@case
def gradient_functions_in_control_flow_read_what_they_hold_from_outside() -> None:
    def cond(apply: Callable[..., Any], z: Any, count: Any) -> Any:
        return tf.cond(count > 0, lambda: apply(z), lambda: z)

    def switch(apply: Callable[..., Any], z: Any, count: Any) -> Any:
        return tf.switch_case(count, [lambda: z, lambda: 2.0 * apply(z), lambda: apply(z), lambda: 0.5 * z])

    def loop(apply: Callable[..., Any], z: Any, count: Any) -> Any:
        return tf.while_loop(lambda i, _: i < count, lambda i, z: (i + 1, apply(z)), (0, z))[1]

    def loop_in_cond(apply: Callable[..., Any], z: Any, count: Any) -> Any:
        return tf.cond(count > 0, lambda: loop(apply, z, count), lambda: z)

    def made_by(flow: Callable[..., Any]) -> Made:
        def make() -> tuple[Callable[..., Any], list[Any]]:
            w, v = new_variables((6, 8), (8, 4))
            scale = tf.Variable(2.0)

            def step(x: Any, y: Any) -> Any:
                noise = tf.random.uniform([6, 8]) + scale

                @tf.custom_gradient
                def noisy(z: Any) -> Any:
                    return z + 0.0, lambda dy: dy * (noise + tf.reduce_mean(x))

                times = tf.reduce_max(y) - 1
                with tf.GradientTape() as tape:
                    kept = flow(noisy, w + 0.0, times)
                    total = tf.reduce_sum(kept)
                ratio = tape.gradient(total, w) / (noise + tf.reduce_mean(x))
                if flow not in (cond, switch):
                    ratio /= (noise + tf.reduce_mean(x)) ** tf.cast(times - 1, tf.float32)
                with tf.GradientTape() as tape:
                    loss = loss_of_layers(w, v, x, y)
                descend(tape, loss, [v])
                return loss, ratio

            return step, [w, v, scale]

        return make

    for flow in (cond, switch, loop, loop_in_cond):
        compare(made_by(flow))


@case
def gradients_by_sums_of_parts_take_batches_of_other_sizes() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        w, v = new_variables((6, 8), (8, 4))

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape(persistent=True) as tape:
                logits = tf.tanh(x @ w) @ v  # devices have parts of the sum, where memory decides
                loss = loss_of_logits(tf.tanh(logits), y)
            of_logits = tape.gradient(loss, logits)
            descend(tape, loss, [w, v])
            return loss, of_logits, tf.reduce_sum(of_logits**2)

        return step, [w, v]

    for option in ("mini_memory", "mini_time"):
        plain, expected = make()
        step, found = make()
        alone, ours = tf.function(plain), tensoropt.function(step)
        ours.plan(option)
        for x, y in batches(8, 7, 4, 8):
            check_same(ours(x, y), alone(x, y))
        check_same(found, expected)


@case
def gradients_go_through_loops_of_unknown_length_that_wait_for_operations() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        w, v = new_variables((6, 4), (4, 4))

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as tape:
                rows = tf.boolean_mask(x @ w, x[:, 0] > -99.0)
                pairs = tf.transpose(tf.reshape(rows, [-1, 2, 4]), [1, 0, 2])
                states = tf.scan(lambda state, each: tf.tanh(state @ v + each), pairs)
                grown = tf.while_loop(
                    lambda h, i: tf.logical_and(tf.reduce_max(tf.abs(h)) < 2.0, i < 4),
                    lambda h, i: (h * 1.5 + tf.tanh(pairs[0]), i + 1),
                    (tf.zeros_like(pairs[0]), 0),
                )[0]
                loss = tf.reduce_mean(states[-1] ** 2) + tf.reduce_mean(grown**2)
            descend(tape, loss, [w, v])
            return loss

        return step, [w, v]

    compare(make)
