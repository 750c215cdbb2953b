"""Loops that data end, and that draw, in steps of ``tensoropt.function``: they give as many rows as data say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from tests.scripts.cases import case, core_case
from tests.scripts.function_steps import compare, new_variables

_SIGNATURE = [tf.TensorSpec([8, 6]), tf.TensorSpec([8], tf.int32)]


def _game(w: Any, x: Any) -> tuple[Any, Any]:
    """What each turn of a game was worth, and the last state; a draw decides how it goes on, and when it ends."""
    state, gains = x[0], tf.TensorArray(tf.float32, size=0, dynamic_size=True)
    for turn in tf.range(9):
        state = tf.sin(state + tf.random.uniform([], seed=3)) + 0.3
        gains = gains.write(turn, tf.reduce_sum(tf.tanh(tf.matmul(state[None], w))))
        if tf.reduce_max(state) > 1.2:
            break
    return gains.stack(), state


def _compare(results: Callable[[Any, Any, Any], Any]) -> None:
    def make() -> tuple[Callable[..., Any], list[Any]]:
        tf.random.set_seed(5)
        (w,) = new_variables((6, 4))
        return lambda x, y: results(w, x, y), [w]

    compare(make, input_signature=_SIGNATURE)


@core_case
def a_function_returns_what_a_loop_gave() -> None:
    _compare(lambda w, x, y: _game(w, x)[0])
    _compare(lambda w, x, y: _game(w, x))


@case
def a_function_returns_what_follows_from_what_a_loop_gave() -> None:
    def several(w: Any, x: Any, y: Any) -> Any:
        gains, state = _game(w, x)
        return gains * 2.0, tf.cumsum(gains), tf.size(gains), tf.reduce_sum(state)

    def of_each(w: Any, x: Any, y: Any) -> Any:
        gains, _ = _game(w, x)
        return gains, tf.map_fn(lambda gain: 0.5 * gain, gains), tf.scan(lambda a, gain: 0.9 * a + gain, gains, 0.0)

    _compare(several)
    _compare(of_each)


@case
def a_step_learns_and_returns_what_a_loop_gave() -> None:
    def of_gradient(w: Any, x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            gains, _ = _game(w, x)
            returns = tf.cumsum(gains[::-1])[::-1]
            loss = tf.reduce_mean(gains * tf.stop_gradient(returns))
        w.assign_sub(0.01 * tape.gradient(loss, w))
        return loss, returns, tf.shape(gains)[0]

    def of_update(w: Any, x: Any, y: Any) -> Any:
        gains, _ = _game(w, x)
        w.assign_sub(tf.fill([6, 4], 0.01 * tf.reduce_sum(gains)))
        return gains

    _compare(of_gradient)
    _compare(of_update)
