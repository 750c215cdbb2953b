"""Large weights of Keras models, which no rank has whole that does not store them whole."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import tensoropt
import tensoropt.keras
from tensoropt.api.functions import lazy_variables, values
from tensoropt.errors import CollectiveError
from tensoropt.exec.program import fetch
from tests.effort import EVERY_CASE
from tests.scripts.cases import case, core_case

_ROWS, _WIDTH = 48, 640


@contextmanager
def _large_from(size: int) -> Iterator[None]:
    """Takes variables of more bytes for large ones."""
    before = lazy_variables.KEPT_BYTES, fetch.TOGETHER_BYTES
    lazy_variables.KEPT_BYTES = values.KEPT_BYTES = size
    fetch.TOGETHER_BYTES = size  # so each is brought by itself
    try:
        yield
    finally:
        lazy_variables.KEPT_BYTES, fetch.TOGETHER_BYTES = before
        values.KEPT_BYTES = lazy_variables.KEPT_BYTES


def _data() -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    return random.normal(size=(_ROWS, 16)).astype(np.float32), random.integers(0, 4, _ROWS)


def _model(*, scope: bool = False, seeded: bool = True) -> Any:
    keras.backend.clear_session()
    if seeded:
        keras.utils.set_random_seed(0)
    with tensoropt.keras.scope() if scope else nullcontext():
        model = keras.Sequential(
            [
                keras.Input((16,)),
                layers.Dense(_WIDTH, activation="relu"),
                layers.Dense(_WIDTH, activation="relu", kernel_initializer="orthogonal"),
                layers.Dense(4),
            ]
        )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, jit_compile=False)  # see keras_models.trained
    return model


def _stored(variable: Any) -> int:
    """How many numbers TensorFlow stores of a variable, without asking for them."""
    handle = variable.value.__dict__["_handle"]
    if not tf.raw_ops.VarIsInitializedOp(resource=handle):
        return 0
    return int(tf.size(tf.raw_ops.ReadVariableOp(resource=handle, dtype=tf.float32)))


def _trained(model: Any, epochs: int = 2, **arguments: Any) -> list[float]:
    history = model.fit(*_data(), batch_size=16, epochs=epochs, verbose=0, shuffle=False, **arguments)
    return [float(loss) for loss in history.history["loss"]]


def _same_weights(one: Any, other: Any) -> None:
    for a, b in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def _alike(value: Any) -> bool:
    from mpi4py import MPI

    return len(set(MPI.COMM_WORLD.allgather(value))) == 1


@core_case
def weights_built_in_a_scope_are_those_of_keras_and_never_whole() -> None:
    alone = _model()
    expected = _trained(alone)
    for scope in (True, False) if EVERY_CASE else (True,):
        model = _model(scope=scope)
        kernel = model.layers[1].kernel
        assert _stored(kernel) == (0 if scope else _WIDTH**2)
        tensoropt.keras.parallelize(model, "mini_memory")
        np.testing.assert_allclose(_trained(model), expected, rtol=2e-5)
        slots = [v for v in model.optimizer.variables if v.shape == kernel.shape]
        assert len(slots) == 2
        assert all(_stored(each) == 0 for each in (kernel, *slots))
        _same_weights(model, alone)
        assert _stored(kernel) == _WIDTH**2  # until the next step
        model.train_on_batch(*(array[:16] for array in _data()))
        assert _stored(kernel) == 0


@case
def scope_draws_alike_where_ranks_are_not_seeded() -> None:
    keras.utils.set_random_seed(tensoropt.world_rank())
    model = _model(scope=True, seeded=False)
    assert _stored(model.layers[1].kernel) == 0
    whole = model.layers[1].kernel.numpy()  # asked for, it is made
    assert whole.shape == (_WIDTH, _WIDTH) and _alike(float(np.abs(whole).sum()))
    assert not _alike(float(np.abs(keras.random.normal((4,))).sum()))


@case
def values_that_are_made_later_by_other_seeds_are_rank_0s() -> None:
    """Of a layer that its first step builds, by initializers that ranks have seeded differently."""
    keras.backend.clear_session()
    keras.utils.set_random_seed(tensoropt.world_rank())
    model = keras.Sequential([layers.Dense(40000), layers.Dense(4)])
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    keras.utils.set_random_seed(0)
    tensoropt.keras.parallelize(model, "mini_memory")
    assert _alike(tuple(_trained(model)))
    assert _alike(float(np.abs(model.layers[0].kernel.numpy()).sum()))


@case
def what_is_assigned_counts_and_goes_to_its_pieces() -> None:
    found = []
    for parallel in (False, True):
        model = _model(scope=parallel)
        with _large_from(1000) if parallel else nullcontext():  # many large ones
            if parallel:
                tensoropt.keras.parallelize(model, "mini_memory")
            losses = _trained(model)
            for variable in (*model.trainable_variables, *model.optimizer.variables):
                variable.assign(variable * 0.5 if variable.dtype == "float32" else variable)
            if parallel:
                assert _stored(model.layers[0].kernel) == 0  # freed again, as others were asked for
            found.append([*losses, *_trained(model), *model.evaluate(*_data(), verbose=0, return_dict=True).values()])
    np.testing.assert_allclose(found[1], found[0], rtol=5e-5)


@case
def files_are_written_by_rank_0_of_what_is_in_pieces() -> None:
    from mpi4py import MPI

    with tempfile.TemporaryDirectory() as own:
        folder = Path(MPI.COMM_WORLD.bcast(own))
        model = _model(scope=True)
        tensoropt.keras.parallelize(model, "mini_memory")
        keep = keras.callbacks.ModelCheckpoint(str(folder / "{epoch}.weights.h5"), save_weights_only=True)
        often = keras.callbacks.ModelCheckpoint(str(folder / "often.keras"), save_freq=2)
        _trained(model, callbacks=[keep, often, keras.callbacks.BackupAndRestore(str(folder / "backup"))])
        model.save(folder / "whole.keras")
        saved = tf.train.Checkpoint(model=model, optimizer=model.optimizer)
        path = MPI.COMM_WORLD.bcast(tensoropt.on_rank_0(lambda: saved.write(str(folder / "tf" / "all"))))
        names = {path.name for path in folder.iterdir()}
        assert names == {"1.weights.h5", "2.weights.h5", "often.keras", "whole.keras", "tf"}, names
        read = _model()
        tf.train.Checkpoint(model=read, optimizer=read.optimizer).restore(path)
        _same_weights(read, model)
        _same_weights(keras.models.load_model(folder / "whole.keras"), model)
        _same_weights(keras.models.load_model(folder / "often.keras"), model)
        other = _model()
        other.load_weights(folder / "2.weights.h5")
        _same_weights(other, model)
        again = keras.models.load_model(folder / "whole.keras")  # with its optimizer's slots
        tensoropt.keras.parallelize(again, "data_parallel")
        np.testing.assert_allclose(_trained(again), _trained(model), rtol=1e-5)
        MPI.COMM_WORLD.Barrier()


@case
def one_rank_that_reads_what_is_in_pieces_is_told() -> None:
    model = _model()
    tensoropt.keras.parallelize(model, "mini_memory")
    _trained(model)
    try:
        if tensoropt.world_rank():
            _trained(model)
        else:
            model.layers[1].kernel.numpy()
    except CollectiveError as error:
        assert "All 2 ranks must take the same step" in str(error), error
    else:
        raise AssertionError("it is no error")
    other = _model()
    tensoropt.keras.parallelize(other, "data_parallel")
    _trained(other)
    if tensoropt.world_rank() == 0:  # which has it whole
        assert other.layers[1].kernel.numpy().shape == (_WIDTH, _WIDTH)
    _trained(other)
