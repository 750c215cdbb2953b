"""What ``fit`` says with several optimizers and in mixed precision, of five models, beside Keras alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np

from tests.scripts.cases import case
from tests.scripts.keras_models import Made, cnn, lstm, mlp, recommender, trained, transformer

# Each with an option that splits something else of it.
_MODELS: Mapping[str, tuple[Callable[[], Made], str]] = {
    "mlp": (mlp, "data_parallel"),
    "cnn": (cnn, "mini_memory"),
    "transformer": (transformer, "mini_memory"),
    "lstm": (lstm, "mini_memory"),
    "recommender": (recommender, "mini_time"),
}
_BFLOAT16_ROUNDING = 2.0**-9  # the most, relative, by which rounding moves a number


def _with(make: Callable[[], Made], optimizer: Callable[[], Any], scale: float = 1.0) -> Callable[[], Made]:
    """A model with another optimizer, whose weights are scaled."""

    def made() -> Made:
        model, x, y = make()
        model.compile(optimizer(), model.loss, metrics=["mae" if model.loss == "mse" else "accuracy"])
        if scale != 1.0:
            model.set_weights([value * np.float32(scale) for value in model.get_weights()])
        return model, x, y

    return made


def _same(optimizer: Callable[[], Any]) -> None:
    for name, (make, option) in _MODELS.items():
        expected, found = trained(_with(make, optimizer), None), trained(_with(make, optimizer), option)
        assert found.keys() == expected.keys()
        for key, value in expected.items():
            np.testing.assert_allclose(found[key], value, rtol=5e-5, atol=5e-5, err_msg=f"{name} by {option}: {key}")


def _adam() -> Any:
    return keras.optimizers.Adam(0.01)


@case
def adam_has_the_history_of_keras_alone() -> None:
    _same(_adam)


@case
def adamw_that_clips_has_the_history_of_keras_alone() -> None:
    _same(lambda: keras.optimizers.AdamW(0.01, global_clipnorm=0.5))


@case
def mixed_bfloat16_differs_no_more_than_keras_itself_by_one_rounding() -> None:
    """Sums of pieces are rounded one by one: so much as if weights were other ones by a rounding."""
    with _policy("mixed_bfloat16"):
        for name, (make, option) in _MODELS.items():
            expected, found = trained(_with(make, _adam), None), trained(_with(make, _adam), option)
            moved = [trained(_with(make, _adam, 1 + sign * _BFLOAT16_ROUNDING), None) for sign in (1, -1)]
            for key in ("loss", "val_loss", "evaluated"):
                spread = max(float(np.abs(other[key] - expected[key]).max()) for other in moved)
                apart = float(np.abs(found[key] - expected[key]).max())
                print(f"bfloat16 {name} {key}: differs by {apart:.2e}, spread {spread:.2e}", flush=True)
                assert apart <= spread, (name, option, key, apart, spread)


@contextmanager
def _policy(name: str) -> Iterator[None]:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(name)
    try:
        yield
    finally:
        keras.config.set_dtype_policy(before)
