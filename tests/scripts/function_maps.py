"""Tapes in vectorized maps, and Jacobians, which are made of these, in steps of ``tensoropt.function``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.scripts.cases import case, core_case
from tests.scripts.function_steps import compare, descend, loss_of_layers, loss_of_logits, new_variables


@core_case
def gradients_of_each_sample_are_clipped() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        weights = new_variables((6, 8), (8, 4))

        def step(x: Any, y: Any) -> Any:
            def clipped(sample: Any) -> Any:
                with tf.GradientTape() as tape:
                    loss = loss_of_layers(weights[0], weights[1], sample[0][None], sample[1][None])
                gradients = tape.gradient(loss, weights)
                return loss, [each / tf.maximum(1.0, tf.linalg.global_norm(gradients)) for each in gradients]

            losses, gradients = tf.vectorized_map(clipped, (x, y))
            for weight, each in zip(weights, gradients, strict=True):
                weight.assign_sub(0.1 * tf.reduce_mean(each, 0))
            return tf.reduce_mean(losses)

        return step, weights

    compare(make)


@case
def gradients_of_what_each_task_learned() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        w, v = new_variables((6, 8), (8, 4))

        def step(x: Any, y: Any) -> Any:
            def after_learning(task: Any) -> Any:
                x, y = (each[None] for each in task)
                with tf.GradientTape() as tape:
                    loss = loss_of_layers(w, v, x, y)
                of_w, of_v = tape.gradient(loss, [w, v])
                return loss_of_layers(w - 0.1 * of_w, v - 0.1 * of_v, x * 1.1, y)

            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.vectorized_map(after_learning, (x, y)))
            descend(tape, loss, [w, v])
            return loss

        return step, [w, v]

    compare(make)


@case
def second_derivatives_in_a_map() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        w, v = new_variables((6, 8), (8, 1))

        def step(x: Any, y: Any) -> Any:
            def laplacian(point: Any) -> Any:
                with tf.GradientTape() as outer:
                    outer.watch(point)
                    with tf.GradientTape() as inner:
                        inner.watch(point)
                        value = tf.reduce_sum(tf.sin(point[None] @ w) @ v)
                    slope = inner.gradient(value, point)
                return tf.linalg.trace(outer.jacobian(slope, point))

            with tf.GradientTape() as tape:
                rest = tf.vectorized_map(laplacian, x) - tf.cast(y, tf.float32)
                loss = tf.reduce_mean(0.01 * rest**2)
            descend(tape, loss, [w, v])
            return loss

        return step, [w, v]

    compare(make)


@case
def jacobians_of_gradients() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        (w,) = new_variables((6, 4))

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    loss = loss_of_logits(x @ w, y) + 0.1 * tf.reduce_sum(w**2)
                gradient = inner.gradient(loss, w)
            second = tf.reshape(outer.jacobian(gradient, w), [24, 24])
            w.assign_sub(tf.reshape(tf.linalg.solve(second, tf.reshape(gradient, [24, 1])), [6, 4]))
            return loss, second

        return step, [w]

    compare(make)


@case
def jacobians_of_samples_under_a_tape() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        w, v = new_variables((6, 8), (8, 6))

        def step(x: Any, y: Any) -> Any:
            with tf.GradientTape() as outer:
                with tf.GradientTape() as inner:
                    inner.watch(x)
                    moved = x + 0.1 * tf.tanh(x @ w) @ v
                volume = tf.linalg.det(inner.batch_jacobian(moved, x))
                loss = tf.reduce_mean(moved**2) - tf.reduce_mean(volume)
            descend(outer, loss, [w, v])
            return loss, volume

        return step, [w, v]

    compare(make)


@case
def loops_in_maps_read_variables() -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        w, v = new_variables((4, 6), (4, 4))

        def step(x: Any, y: Any) -> Any:
            def of_one(sample: Any) -> Any:
                with tf.GradientTape() as tape:

                    def turn(i: Any, state: Any) -> Any:
                        return i + 1, tf.tanh(
                            tf.linalg.matvec(w, sample) + tf.linalg.matvec(v, state, transpose_a=True)
                        )

                    state = tf.while_loop(lambda i, _: i < 3, turn, (0, tf.zeros([4])))[1]
                    loss = tf.reduce_sum(state**2)
                return loss, tape.gradient(loss, [w, v])

            losses, gradients = tf.vectorized_map(of_one, x)
            for weight, each in zip((w, v), gradients, strict=True):
                weight.assign_sub(0.1 * tf.reduce_mean(tf.tanh(each), 0))
            return losses

        return step, [w, v]

    compare(make)
