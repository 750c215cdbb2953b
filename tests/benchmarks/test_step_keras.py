"""The benchmark of steps: models in Keras, which are equal to their twins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.models import MODELS, SHORT
from benchmarks.models_keras import in_keras
from benchmarks.step import _cause, _noting, alternatives, summary
from tests.effort import left_to_ci
from tests.mpi_support import run_mpi

_SEED, _STEPS = 7, 3


@pytest.mark.tf
@pytest.mark.parametrize("name", sorted(SHORT))
@left_to_ci("a benchmark, which users do not run")
def test_models_in_keras_have_the_losses_of_their_twins(name: str) -> None:
    twin, rng = SHORT[name], np.random.default_rng(1)
    batches = [twin.batch(rng, twin.batch_size) for _ in range(_STEPS)]
    # By momentum TensorFlow 1 leaves rows of embeddings alone that Keras moves.
    for optimizer in ("sgd", "clipped_adam", *(["momentum"] if name in ("mlp", "cnn") else [])):
        with tf.Graph().as_default():
            tf.compat.v1.set_random_seed(_SEED)
            built = twin.build(tf.compat.v1, twin.batch_size)
            train_op = twin.train(tf.compat.v1, optimizer, built.loss)
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                feeds = [{built.feeds[key]: array for key, array in batch.items()} for batch in batches]
                expected = [session.run([built.loss, train_op], each)[0] for each in feeds]
        model, rng = in_keras(twin), np.random.default_rng(1)
        compiled = model.compiled(optimizer, _SEED, jit_compile=False)
        compiled.run_eagerly = True  # nothing is traced for three steps
        losses = []
        for _ in range(_STEPS):
            compiled.reset_metrics()
            losses.append(float(compiled.train_on_batch(*model.batch(rng, twin.batch_size))))
        np.testing.assert_allclose(losses, expected, rtol=2e-5, err_msg=optimizer)


@pytest.mark.tf
@pytest.mark.parametrize("name", sorted(MODELS))
def test_models_in_keras_have_the_weights_of_what_is_measured(name: str) -> None:
    model = in_keras(MODELS[name])
    with tf.Graph().as_default():
        MODELS[name].build(tf.compat.v1, 2)
        shapes = {each.op.name: each.shape.num_elements() for each in tf.compat.v1.global_variables()}
    assert sorted(model.names) == sorted(shapes)
    assert [int(np.prod(each.shape)) for each in model.make().weights] == [shapes[each] for each in model.names]


def _fail_in(variant: str, printed: str, failed: dict[str, str]) -> None:
    with _noting(variant, failed):
        raise RuntimeError(printed)


@pytest.mark.pure
def test_keras_is_compared_with_the_mirror_and_a_strategy_may_not_run() -> None:
    times = {"one_process": 4.0, "mini_time": 2.0, "keras_mini_time": 2.1, "keras_one_process": 5.0}
    about: dict[str, Any] = {}
    variants = {name: ([[second] * 2], [1.0, 0.5, 0.25], about) for name, second in times.items()}
    failed: dict[str, str] = {}
    _fail_in("keras_mirrored", "python failed:\n  File\nValueError: no such strategy\nprterun has exited", failed)
    found = summary(variants, {}, "mini_time", failed)
    assert found["keras_over_tf1"] == {"keras_mini_time": pytest.approx(1.05)}
    assert found["failed"] == {"keras_mirrored": "ValueError: no such strategy prterun has exited"}
    with pytest.raises(RuntimeError, match="ours"):
        _fail_in("keras_mini_time", "ours", failed)
    assert _cause("no error is named\n") == "no error is named"
    assert alternatives(2, 2)["keras_one_process"][-1].keys() == {"defaults", "no XLA"}


@pytest.mark.mpi
@left_to_ci("a benchmark, which users do not run")
def test_two_ranks_fit_with_the_losses_of_the_twin_in_one_process(tmp_path: Path) -> None:
    found = {}
    for worker, variant, ranks in (("step_worker", "one_process", 1), ("step_keras_worker", "keras_data_parallel", 2)):
        folder = tmp_path / variant
        folder.mkdir()
        for turn, steps in enumerate((3, 1, 0)):
            (folder / f"turn-{turn}").write_text(str(steps), encoding="utf-8")
        arguments = ["--model", "mlp", "--short", "--variant", variant, "--optimizer", "adam", "--turns", str(folder)]
        run_mpi(f"benchmarks.{worker}", ranks, *arguments)
        done = [json.loads((folder / f"done-{turn}-{ranks - 1}").read_text(encoding="utf-8")) for turn in (0, 1)]
        found[variant] = [loss for turn in done for loss in turn["losses"]]
        assert [len(turn["seconds"]) for turn in done] == [3, 1]
    np.testing.assert_allclose(found["keras_data_parallel"], found["one_process"], rtol=1e-5)
