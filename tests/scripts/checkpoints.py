"""What ``tensoropt.train.Saver`` does, case by case in one job; the first argument is a folder for files."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

import tensoropt
from tensoropt.api.session import checkpoint_files
from tensoropt.api.session.job import current_job
from tensoropt.errors import CheckpointError, CollectiveError, TensorOptError
from tests.scripts.cases import Distributed, Model, batch, case, classifier, main, picked

FOLDER = Path(sys.argv[1])
VARIABLES = ["w1", "b1", "w2", "step"]


def make(m: Any) -> Model:
    """The classifier with dropout that has no seed, and a step."""
    made = classifier(m)
    step = m.train.get_or_create_global_step()
    loss = made["loss"] + 0.1 * m.reduce_mean(m.nn.dropout(m.square(made["hidden"]), rate=0.5))
    train = m.train.GradientDescentOptimizer(0.3).minimize(loss, global_step=step)
    return {**made, "step": step, "noisy": loss, "train": train}


def folder(name: str) -> Path:
    """An empty folder of a case, the same on all ranks."""
    path = FOLDER / name
    if tensoropt.world_rank() == 0:
        path.mkdir()
    meet()
    return path


def meet() -> None:
    """Waits for all ranks."""
    current_job().world.comm.barrier()


def steps(job: Distributed, first: int, count: int) -> list[Any]:
    """The losses of some steps."""
    return [job.run(["noisy", "train"], batch(number))[0] for number in range(first, first + count)]


def values(job: Distributed) -> dict[str, bytes]:
    """All variables, to the last bit."""
    return {name: job.run(name, {}).tobytes() for name in VARIABLES}


def error_of(call: Callable[[], Any]) -> Exception:
    """What a call raises."""
    try:
        call()
    except (TensorOptError, TypeError, ValueError, RuntimeError) as error:
        return error
    raise AssertionError("nothing was raised")


def wanted(error: Exception, kind: type[Exception], *words: str) -> None:
    """Fails unless an error is of a kind and has all words."""
    assert isinstance(error, kind), repr(error)
    for word in words:
        assert word in str(error), f"{word!r} is not in: {error}"


@case
def of_paths_that_differ_rank_0s_counts() -> None:
    path = folder("by_time")
    job = Distributed(make, 1)
    saver = tensoropt.train.Saver()
    prefix = saver.save(None, f"{path}/{tensoropt.world_rank()}")
    assert prefix == f"{path}/0" == tensoropt.train.latest_checkpoint(str(path))
    before = values(job)
    steps(job, 0, 1)
    saver.restore(None, prefix)
    assert values(job) == before


@case
def what_one_plan_saves_another_restores() -> None:
    path = folder("plans")
    job = Distributed(make, 1)
    saver = tensoropt.train.Saver()
    steps(job, 0, 3)
    before = values(job)
    prefix = saver.save(None, f"{path}/m", global_step=job.model["step"])
    assert prefix == f"{path}/m-3" == tensoropt.train.latest_checkpoint(str(path))
    for plan in (2, "data_parallel", "mini_memory"):
        job.build(plan)
        assert values(job) != before
        saver.restore(tensoropt.Session(), prefix)
        assert values(job) == before, plan
    # Plain TensorFlow, by the variables' names, and by the graph that was saved.
    if tensoropt.world_rank() == 0:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            plain = make(tf.compat.v1)
            tf.compat.v1.train.Saver().restore(session, prefix)
            assert {name: session.run(plain[name]).tobytes() for name in VARIABLES} == before
            alone = session.run(plain["logits"], {plain["x"]: batch(0)["x"]})
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tf.compat.v1.train.import_meta_graph(f"{prefix}.meta").restore(session, prefix)
            np.testing.assert_array_equal(session.run("logits:0", {"x:0": batch(0)["x"]}), alone)
    meet()


@case
def a_graph_is_saved_though_tensorflow_cannot_write_its_collection_of_variables() -> None:
    path = folder("collection")

    def built(m: Any) -> Model:
        made = make(m)
        step = m.Variable(1.0, "adam_t")  # its second argument is whether to train it, which cannot be written
        return {**made, "count": step, "train": m.group(made["train"], m.assign_add(step, 1.0))}

    job = Distributed(built, 2)
    job.run(["loss", "train"], batch(0))
    saver = tensoropt.train.Saver()
    prefix = saver.save(None, f"{path}/m")
    before = job.run("count", {})
    job.run(["loss", "train"], batch(1))
    assert job.run("count", {}) != before
    saver.restore(None, prefix)
    assert job.run("count", {}) == before
    if tensoropt.world_rank() == 0:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tf.compat.v1.train.import_meta_graph(f"{prefix}.meta").restore(session, prefix)
            assert session.run("Variable/Read/ReadVariableOp:0") == before
    meet()


@case
def training_goes_on_as_if_it_had_not_ended() -> None:
    path = folder("resumed")
    job = Distributed(make, 4)
    saver = tensoropt.train.Saver()
    steps(job, 0, 3)
    prefix = saver.save(None, f"{path}/m")
    expected, after = steps(job, 3, 4), values(job)
    # Dropout without a seed draws other numbers in a job that begins, and the saved ones once it has restored.
    job.build(4)
    # A part of the variables leaves random numbers alone.
    tensoropt.train.Saver(tensoropt.trainable_variables()).restore(None, prefix)
    assert steps(job, 3, 4) != expected
    saver.restore(None, prefix)
    assert steps(job, 3, 4) == expected
    assert values(job) == after


@case
def checkpoints_of_plain_tensorflow_are_restored_by_names_and_in_part() -> None:
    path = folder("plain")
    if tensoropt.world_rank() == 0:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            plain = make(tf.compat.v1)
            session.run(tf.compat.v1.global_variables_initializer())
            session.run(plain["w1"].assign(tf.ones([6, 8])))
            tf.compat.v1.train.Saver({"first": plain["w1"], "w2": plain["w2"]}).save(session, f"{path}/m")
            theirs = session.run(plain["w2"])
    meet()
    theirs = current_job().world.comm.bcast(theirs if tensoropt.world_rank() == 0 else None, root=0)
    job = Distributed(make, 5)
    before = values(job)
    tensoropt.train.Saver({"first": job.model["w1"], "w2": job.model["w2"]}).restore(None, f"{path}/m")
    after = values(job)
    assert after["w1"] == np.ones([6, 8], np.float32).tobytes() and after["w2"] == theirs.tobytes()
    assert {name: after[name] for name in ("b1", "step")} == {name: before[name] for name in ("b1", "step")}
    # The same as initial values.
    tensoropt.reset_default_graph()
    tensoropt.random.set_seed(1)
    job.model = make(tensoropt)
    tensoropt.train.init_from_checkpoint(f"{path}/m", {"first": job.model["w1"], "w2": "w2"})
    job.build(6)
    assert values(job) == after
    tensoropt.run(tensoropt.global_variables_initializer())
    assert values(job) == after
    # Another shape, of as many elements.
    tensoropt.reset_default_graph()
    w = tensoropt.get_variable("first", [4, 12])
    found = {"x": tensoropt.placeholder(tensoropt.float32, [8, 4]), "w": w}
    found["y"] = tensoropt.matmul(found["x"], w)
    job.model = found
    job.build(7)
    wanted(error_of(lambda: tensoropt.train.Saver().restore(None, f"{path}/m")), CheckpointError, "reshape=True")
    tensoropt.train.Saver(reshape=True).restore(None, f"{path}/m")
    np.testing.assert_array_equal(job.run("w", {}), np.ones([4, 12]))


@case
def so_many_checkpoints_are_kept() -> None:
    path = folder("kept")
    job = Distributed(make)
    saver = tensoropt.train.Saver(max_to_keep=2, save_relative_paths=True)
    for number in (1, 2, 3, 3):
        saver.save(tensoropt.Session(), f"{path}/m", global_step=number)
    assert saver.last_checkpoints == [f"{path}/m-2", f"{path}/m-3"]
    names = {name.name.split(".")[0] for name in path.iterdir()}
    assert names == {"checkpoint", "m-2", "m-3"}, names
    state = tensoropt.train.get_checkpoint_state(str(path))
    assert list(state.all_model_checkpoint_paths) == saver.last_checkpoints
    assert 'model_checkpoint_path: "m-3"' in (path / "checkpoint").read_text()
    # Another job goes on with those that there are.
    again = tensoropt.train.Saver(max_to_keep=2, pad_step_number=True)
    again.recover_last_checkpoints([f"{path}/m-1", *state.all_model_checkpoint_paths])
    assert again.last_checkpoints == saver.last_checkpoints
    again.save(None, f"{path}/m", global_step=4, write_meta_graph=False)
    meet()
    assert again.last_checkpoints == [f"{path}/m-3", f"{path}/m-00000004"]
    assert not (path / "m-2.index").exists() and not (path / "m-00000004.meta").exists()
    # One for so many hours stays, and without a state nothing is counted.
    hourly = tensoropt.train.Saver(max_to_keep=1, keep_checkpoint_every_n_hours=-1.0)
    for number in (5, 6):
        hourly.save(None, f"{path}/m", global_step=number)
    meet()
    assert hourly.last_checkpoints == [f"{path}/m-6"] and (path / "m-5.index").exists()
    hourly.save(None, f"{path}/m", global_step=7, write_state=False)
    assert hourly.last_checkpoints == [f"{path}/m-6"] and tensoropt.train.latest_checkpoint(str(path)) == f"{path}/m-6"
    # The same name again: the new numbers take the place of the old ones.
    for number in range(3):
        job.run("train", batch(number))
        hourly.save(None, f"{path}/last")
    before = values(job)
    job.run("train", batch(4))
    hourly.restore(None, f"{path}/last")
    assert values(job) == before
    # A file may name anything as a checkpoint: what is elsewhere is not removed.
    elsewhere = folder("elsewhere")
    hourly.save(None, f"{elsewhere}/m", write_state=False)
    trusting = tensoropt.train.Saver(max_to_keep=1)
    trusting.recover_last_checkpoints([f"{elsewhere}/m"])
    for number in (8, 9):
        trusting.save(None, f"{path}/m", global_step=number)
    meet()
    assert trusting.last_checkpoints == [f"{path}/m-9"] and not (path / "m-8.index").exists()
    assert (elsewhere / "m.index").exists()
    # What somebody has put in the folder is neither followed nor removed.
    planted = f"{path}/.m.0123456789abcdef.part"
    for plant in (lambda: os.symlink(elsewhere, planted), lambda: os.rename(elsewhere, planted)):
        if tensoropt.world_rank() == 0:
            plant()
            for name in ("m-10.meta", "m-10.meta.part", "m-10.index"):
                Path(path, name).unlink(missing_ok=True)
                Path(path, name).symlink_to(path / "last.index")
        trusting.save(None, f"{path}/m", global_step=10)
        assert os.path.exists(f"{elsewhere}/m.index" if os.path.exists(elsewhere) else f"{planted}/m.index")
        meet()
    tensoropt.train.load_checkpoint(f"{path}/last")
    # A folder that there is not is made.
    made = hourly.save(None, f"{path}/new/folder/m")
    assert tensoropt.train.latest_checkpoint(f"{path}/new/folder") == made == f"{path}/new/folder/m"


@case
def what_a_saver_cannot_take_is_refused() -> None:
    path = folder("refused")
    tensoropt.reset_default_graph()
    wanted(error_of(lambda: tensoropt.train.Saver()), ValueError, "No variables to save")
    assert tensoropt.train.Saver(allow_empty=True).save(None, f"{path}/none", write_meta_graph=False) is None
    job = Distributed(make)
    model = job.model
    for given, kind, words in (
        ([model["w1"], model["w1"]], ValueError, "same name: w1"),
        ([model["x"]], TypeError, "whole resource variables"),
        ("w1", TypeError, "in a list or a dict"),
    ):
        wanted(error_of(functools.partial(tensoropt.train.Saver, given)), kind, words)
    wanted(error_of(lambda: tensoropt.train.Saver(write_version=1)), ValueError, "version 2")
    saver = tensoropt.train.Saver()
    wanted(error_of(lambda: saver.save(None, f"{__file__}/a/m")), CheckpointError, "/a' cannot be written to")
    wanted(error_of(lambda: saver.save(None, f"{path}/checkpoint")), ValueError, "collides")
    wanted(error_of(lambda: saver.save(None, f"{path}/m", latest_filename="a/b")), ValueError, "path components")
    with tf.compat.v1.Session(graph=tf.Graph()) as session:
        wanted(error_of(lambda: saver.save(session, f"{path}/m")), TypeError, "tensoropt.Session")
    deferred = tensoropt.train.Saver(defer_build=True)
    wanted(error_of(lambda: deferred.save(None, f"{path}/m")), RuntimeError, "build()")
    late = tensoropt.get_variable("late", [3])
    wanted(
        error_of(lambda: tensoropt.train.Saver([late]).save(None, f"{path}/m")), CheckpointError, "'late'", "planned"
    )
    # World that save something else than others.
    rank = tensoropt.world_rank()
    wanted(error_of(lambda: saver.save(None, f"{path}/m", global_step=rank)), CollectiveError, "must")
    assert [each.name for each in path.iterdir()] == []


@case
def what_a_checkpoint_has_not_or_has_otherwise_is_named() -> None:
    path = folder("missing")
    job = Distributed(make)
    before = values(job)
    saver = tensoropt.train.Saver()
    if tensoropt.world_rank() == 0:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            names = {"w1": [6, 8], "b1": [9], "w3": [8, 4], "global_step": []}
            dtypes = {"w1": tf.float64}
            made = {name: tf.compat.v1.Variable(tf.ones(s, dtypes.get(name, tf.float32))) for name, s in names.items()}
            session.run(tf.compat.v1.global_variables_initializer())
            tf.compat.v1.train.Saver(made).save(session, f"{path}/m")
    meet()
    only_b1, only_w1 = (tensoropt.train.Saver([job.model[name]]) for name in ("b1", "w1"))
    wanted(error_of(lambda: saver.restore(None, None)), ValueError, "None")
    wanted(error_of(lambda: saver.restore(None, f"{path}/n")), CheckpointError, "is not a valid checkpoint", "rank")
    wanted(error_of(lambda: saver.restore(None, f"{path}/m")), CheckpointError, "no variable 'w2'", "'w3'", "var_list=")
    wanted(error_of(lambda: only_b1.restore(None, f"{path}/m")), CheckpointError, "float32[9]", "'b1'", "[8]")
    wanted(error_of(lambda: only_w1.restore(None, f"{path}/m")), CheckpointError, "float64[6, 8]", "cases.py:")
    rank = tensoropt.world_rank()
    wanted(error_of(lambda: saver.restore(None, f"{path}/m{rank}")), TensorOptError, "m")
    assert values(job) == before


@contextlib.contextmanager
def on_the_last_rank(what: contextlib.AbstractContextManager[Any]) -> Iterator[bool]:
    """Does something on the last rank alone."""
    is_last = tensoropt.world_rank() == tensoropt.world_size() - 1
    with what if is_last else contextlib.nullcontext():
        yield is_last


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Lets no file become larger than a few bytes."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (8, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


@contextlib.contextmanager
def another_host() -> Iterator[None]:
    """Does not see what other ranks write."""
    real = checkpoint_files.is_visible
    checkpoint_files.is_visible = lambda path: False
    try:
        yield
    finally:
        checkpoint_files.is_visible = real


@case
def a_save_that_fails_anywhere_leaves_the_last_one() -> None:
    path = folder("failing")
    job = Distributed(make, "mini_memory")  # all ranks write
    saver = tensoropt.train.Saver()
    steps(job, 0, 2)
    good = saver.save(None, f"{path}/m", global_step=1)
    before, there = values(job), sorted(os.listdir(path))
    steps(job, 2, 1)
    for name in (f"{path}/n", f"{path}/m-1"):
        with on_the_last_rank(full_disk()) as is_last:
            error = error_of(functools.partial(saver.save, None, name))
        kind = CheckpointError if is_last else CollectiveError
        wanted(error, kind, f"'{name}' cannot be written", "arge")
        if name != good:
            wanted(error, kind, f"The last good checkpoint is '{good}'")
    with on_the_last_rank(another_host()) as is_last:
        error = error_of(lambda: saver.save(None, f"{path}/n"))
    wanted(error, CheckpointError if is_last else CollectiveError, "does not see", "that all hosts share")
    if tensoropt.world_rank() == 0:
        with full_disk():
            error = error_of(lambda: saver.save(None, f"{path}/n"))
    else:
        error = error_of(lambda: saver.save(None, f"{path}/n"))
    wanted(error, TensorOptError, "cannot be written")
    meet()
    assert sorted(os.listdir(path)) == there, os.listdir(path)
    assert saver.last_checkpoints == [good]
    saver.restore(None, good)
    assert values(job) == before


@case
def damaged_files_are_named_and_the_last_good_checkpoint() -> None:
    path = folder("damaged")
    job = Distributed(make, "mini_memory")
    saver = tensoropt.train.Saver()
    good = saver.save(None, f"{path}/m", global_step=1)
    steps(job, 0, 1)
    bad = saver.save(None, f"{path}/m", global_step=2)
    before = values(job)
    assert good is not None and bad is not None
    last = sorted(each.name for each in path.glob("m-2.data*"))[0]
    for name, change, words in (
        (f"{path}/{last}", lambda content: content[:-3], "bytes and must have"),
        (f"{path}/{last}", lambda content: bytes(byte ^ 85 for byte in content), "hecksum"),
        (f"{bad}.index", lambda content: content[:-3], "no index of a checkpoint"),
        (f"{bad}.index", lambda content: b"", "no index of a checkpoint"),
    ):
        content = Path(name).read_bytes()
        meet()
        if tensoropt.world_rank() == 0:
            Path(name).write_bytes(change(content))
        meet()
        error = error_of(lambda: saver.restore(None, bad))
        # A rank that needs nothing of a damaged part hears of it from another one.
        wanted(error, TensorOptError, words, f"The last good checkpoint is '{good}'", bad)
        assert values(job) == before
        meet()
        if tensoropt.world_rank() == 0:
            Path(name).write_bytes(content)
        meet()
    saver.restore(None, bad)


@case
def what_cannot_be_saved_begins_anew_with_a_warning() -> None:
    path = folder("anew")

    def shuffled(m: Any) -> Model:
        w = m.get_variable("w", [6, 4])
        return {"y": m.random_shuffle(w, seed=3), "z": m.nn.dropout(w, rate=0.5), "loss": m.reduce_sum(w)}

    job = Distributed(shuffled)
    saver = tensoropt.train.Saver()
    prefix = saver.save(None, f"{path}/m")
    warned: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            warned.append(record.getMessage())

    handler = Handler()
    logging.getLogger("tensoropt").addHandler(handler)
    saver.restore(None, prefix)
    logging.getLogger("tensoropt").removeHandler(handler)
    if tensoropt.world_rank() == 0:
        assert any("RandomShuffle" in text and "anew" in text for text in warned), warned
    assert job.run("y", {}).shape == (6, 4)
    assert picked(job.model, "z").name


if __name__ == "__main__":
    main()
