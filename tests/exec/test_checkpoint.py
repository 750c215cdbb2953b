"""Checkpoints of one number of ranks and one plan, read by another number and another plan, and by plain TensorFlow."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytestmark = pytest.mark.tf

RANKS = (1, 2, 3, 4, 6)
NAMES = {"w": "w", "b": "b", "renamed": "v", "half": "half", "none": "none", "count": "count"}


def _built() -> Any:
    import tensoropt
    from tensoropt.api.frontend.imported_model import import_model
    from tensoropt.api.mirror.model import current_model

    x = tensoropt.placeholder(tensoropt.float32, [12, 24], name="x")
    w = tensoropt.get_variable("w", [24, 36])
    b = tensoropt.get_variable("b", [36], dtype=tensoropt.float32)
    v = tensoropt.get_variable("v", [36, 12], dtype=tensoropt.bfloat16)
    half = tensoropt.get_variable("half", [36, 12], dtype=tensoropt.float16)
    none = tensoropt.get_variable("none", [0, 12])
    tensoropt.get_variable("count", [], dtype=tensoropt.int64, initializer=tensoropt.initializers.zeros())
    hidden = tensoropt.nn.relu(tensoropt.matmul(x, w) + b)
    y = tensoropt.matmul(hidden, tensoropt.cast(v, tensoropt.float32) + tensoropt.cast(half, tensoropt.float32))
    y += tensoropt.reduce_sum(none, axis=0)
    loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.nn.dropout(y, rate=0.5, seed=3)))
    tensoropt.train.GradientDescentOptimizer(0.5).minimize(loss, name="train")
    return import_model(current_model())


def _values() -> dict[str, np.ndarray]:
    import tensorflow as tf

    random = np.random.default_rng(5)
    v = random.normal(size=(36, 12)).astype(tf.bfloat16.as_numpy_dtype)
    w, b = random.normal(size=(24, 36)).astype(np.float32), random.normal(size=36).astype(np.float32)
    half, none = random.normal(size=(36, 12)).astype(np.float16), np.zeros((0, 12), np.float32)
    return {"w": w, "b": b, "v": v, "half": half, "none": none, "count": np.int64(7) * 10**12}


def _in_world(imported: Any, ranks: int, seed: int, work: Any) -> list[Any]:
    """``work(executor, checkpointing)`` of all ranks of a random plan."""
    from tensoropt.exec.program.checkpoint import Checkpointing
    from tensoropt.exec.program.device_state import DeviceState
    from tensoropt.exec.program.executor import Executor
    from tests.exec.random_runs import random_plan, small_session
    from tests.thread_world import run_threads

    plan = random_plan(imported, seed, ranks)

    def run(engine: Any) -> Any:
        executor = Executor(DeviceState(imported.graph, plan, engine, config=small_session()))
        try:
            return work(executor, Checkpointing(executor, NAMES))
        finally:
            executor.state.close()

    return run_threads(ranks, plan.mesh.shape, run)


def _save(
    imported: Any, ranks: int, seed: int, prefix: str, values: Mapping[str, np.ndarray], in_pieces: dict[str, Any]
) -> list[int]:
    """Saves as all ranks of a plan; gives the ranks that wrote, and what was in pieces and saved whole."""
    from tensoropt.api.session import checkpoint_files as files
    from tensoropt.exec.program.checkpoint import state_of, write_tensors

    folder = files.begin(prefix, prefix)

    def work(executor: Any, checkpointing: Any) -> list[int]:
        executor.state.set_variables(values.__getitem__)
        executor.state.trained = 17
        whole = checkpointing.whole()
        in_pieces.update(whole)
        if executor.state.engine.rank in checkpointing.writers:
            checkpointing.write(files.part_of(folder, executor.state.engine.rank))
        if executor.state.engine.rank == 0:
            write_tensors(os.path.join(folder, "beside"), {**whole, **state_of(executor)})
        assert checkpointing.is_whole
        return list(checkpointing.writers)

    (writers, *others) = _in_world(imported, ranks, seed, work)
    assert all(other == writers for other in others)
    files.publish(folder, [*(files.part_of(folder, rank) for rank in writers), os.path.join(folder, "beside")], prefix)
    return writers


def test_what_any_number_of_ranks_saves_any_other_restores_and_plain_tensorflow_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import tensorflow as tf

    from tensoropt.api.session import checkpoint_files as files
    from tensoropt.exec.program import checkpoint
    from tensoropt.exec.program.checkpoint import read_state
    from tensoropt.graph.spec import TensorId

    imported, values = _built(), _values()
    writers: set[int] = set()
    in_pieces: dict[str, Any] = {}
    for ranks in RANKS:
        monkeypatch.setattr(checkpoint, "SLICE_BYTES", 1 << 26 if ranks % 2 else 200)  # a few rows
        writers |= set(_save(imported, ranks, ranks, str(tmp_path / f"of-{ranks}"), values, in_pieces))
        reader = tf.train.load_checkpoint(str(tmp_path / f"of-{ranks}"))
        for name, own in NAMES.items():
            assert reader.get_tensor(name).tobytes() == values[own].tobytes()
            assert reader.get_variable_to_dtype_map()[name].as_numpy_dtype == values[own].dtype
        assert files.damage(str(tmp_path / f"of-{ranks}")) == ""
    assert max(writers) > 1, "no plan has stored a variable in pieces"
    assert in_pieces.keys() == {"half", "none"}
    # TensorFlow itself saves what it holds whole, here without any state of ours.
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = {name: tf.compat.v1.Variable(values[own], use_resource=True) for name, own in NAMES.items()}
        session.run([variable.initializer for variable in variables.values()])
        tf.compat.v1.train.Saver(variables).save(session, str(tmp_path / "of-plain"))

    def restore(executor: Any, checkpointing: Any) -> None:
        for source in (*RANKS, "plain"):
            prefix = str(tmp_path / f"of-{source}")
            executor.state.set_variables(lambda name: np.zeros_like(values[name]))
            shapes = dict(tf.train.list_variables(prefix))
            executor.state.set_pieces(checkpointing.read(prefix, {name: tuple(shapes[name]) for name in NAMES}))
            for name, piece in executor.state.session.run(dict(executor.state.variables)).items():
                layout = executor.layout_of(TensorId(name))
                part = layout.slices(values[name].shape, executor.plan.mesh, executor.state.engine.rank)
                assert piece.tobytes() == np.asarray(values[name][part]).tobytes(), (source, name)
            state = read_state(prefix, shapes)
            assert ("_tensoropt/trained" in state) is (source != "plain")
            assert len(state) == (0 if source == "plain" else 2)

    for ranks in RANKS:
        _in_world(imported, ranks, 10 + ranks, restore)


def test_whatever_moment_a_save_ends_at_the_checkpoint_before_it_is_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import shutil

    import tensorflow as tf

    from tensoropt.api.session import checkpoint_files as files
    from tensoropt.exec.program.checkpoint import write_tensors

    model = tmp_path / "model"
    model.mkdir()
    prefix = str(model / "m")
    moments: list[Path] = []

    class Watched:
        """TensorFlow's file operations, with a copy of the folder after each that changes anything."""

        def __getattr__(self, name: str) -> Any:
            real = getattr(tf.io.gfile, name)

            def call(*args: Any, **kwargs: Any) -> Any:
                result = real(*args, **kwargs)
                if name in ("mkdir", "rename", "remove", "rmtree"):
                    moments.append(tmp_path / f"moment-{len(moments)}")
                    shutil.copytree(model, moments[-1])
                return result

            return call

    monkeypatch.setattr(files, "_files", Watched())
    first_of: list[int] = []
    for value in range(5):
        first_of.append(len(moments))
        folder = files.begin(prefix, prefix)
        parts = [files.part_of(folder, rank) for rank in range(3)]
        for rank, part in enumerate(parts):
            write_tensors(part, {f"v{rank}": np.full(100 + rank, value)})
        files.publish(folder, parts, prefix)
        files.name_last(str(model / "checkpoint"), prefix, [prefix], False)
    assert len(moments) > 30
    for number, moment in enumerate(moments):
        newest = max(value for value, first in enumerate(first_of) if number >= first)
        assert files.damage(str(moment / "m")) == "" or newest == 0
        if newest == 0:
            continue
        reader = tf.train.load_checkpoint(str(moment / "m"))
        found = {int(each) for rank in range(3) for each in reader.get_tensor(f"v{rank}")}
        assert found in ({newest - 1}, {newest}), moment
        # Going on after such an end is as after any other.
        monkeypatch.setattr(files, "_files", tf.io.gfile)
        folder = files.begin(str(moment / "m"), str(moment / "m"))
        write_tensors(files.part_of(folder, 0), {"v0": np.full(3, 9)})
        files.publish(folder, [files.part_of(folder, 0)], str(moment / "m"))
        assert tf.train.load_checkpoint(str(moment / "m")).get_tensor("v0").tolist() == [9, 9, 9]
        left = sorted(path.name for path in moment.iterdir() if path.name != "checkpoint")
        assert len(left) in (2, 3) and left[-1] == "m.index", left
    assert sorted(path.name for path in model.iterdir() if not path.name.startswith("m.data")) == [
        "checkpoint",
        "m.index",
    ]


@pytest.mark.parametrize("cut", [0, 1, 20, 60, 100])
def test_files_that_end_early_are_named(tmp_path: Path, cut: int) -> None:
    from tensoropt.api.session import checkpoint_files as files
    from tensoropt.exec.program.checkpoint import write_tensors

    prefix = tmp_path / "m"
    write_tensors(str(prefix), {f"v{number}": np.zeros(10) for number in range(2000)})  # an index of several blocks
    assert files.damage(str(prefix)) == ""
    for name in ("m.index", "m.data-00000-of-00001"):
        whole = (tmp_path / name).read_bytes()
        (tmp_path / name).write_bytes(whole[: len(whole) * cut // 101])
        assert f"'{tmp_path / name}'" in files.damage(str(prefix))
        (tmp_path / name).unlink()
        assert f"there is no file '{tmp_path / name}'" in files.damage(str(prefix))
        (tmp_path / name).write_bytes(whole)
    assert files.damage(str(prefix)) == ""


@pytest.mark.parametrize("kind", ["random_uniform", "random_normal", "truncated_normal", "random_int"])
@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16"])
def test_random_operators_draw_what_tensorflow_draws_and_go_on_where_they_are_set(kind: str, dtype: str) -> None:
    import tensorflow as tf

    import tensoropt
    from tensoropt.api.frontend.imported_model import import_model
    from tensoropt.api.mirror.model import current_model
    from tensoropt.exec.program.checkpoint import set_state, state_of
    from tensoropt.exec.program.device_state import DeviceState
    from tensoropt.exec.program.executor import Executor
    from tensoropt.graph.spec import TensorId
    from tests.exec.random_runs import random_plan, small_session
    from tests.thread_world import run_threads

    def make(m: Any) -> Any:
        if kind == "random_int":
            return m.random_uniform([6, 7], 3, 1000, dtype={"bfloat16": "int32"}.get(dtype, "int64"), seed=5)
        return getattr(m, kind)([6, 7], dtype=dtype, seed=5)

    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        tf.compat.v1.set_random_seed(3)
        theirs = make(tf.compat.v1)
        wanted = [session.run(theirs) for _ in range(5)]
    tensoropt.set_random_seed(3)
    tensor = TensorId(make(tensoropt).op.name)
    imported = import_model(current_model())

    def run(engine: Any) -> list[Any]:
        executor = Executor(DeviceState(imported.graph, plan, engine, config=small_session()))
        other = Executor(DeviceState(imported.graph, plan, engine, config=small_session()))
        drawn = [executor.run([tensor])[0] for _ in range(2)]
        state = state_of(executor)
        drawn += [executor.run([tensor])[0] for _ in range(3)]
        set_state(other, state)  # before it has built anything
        drawn += [other.run([tensor])[0] for _ in range(3)]
        set_state(executor, state)
        drawn += [executor.run([tensor])[0] for _ in range(3)]
        return drawn

    plan = random_plan(imported, 3, 2)
    for drawn in run_threads(2, (2,), run):
        for mine, expected in zip(drawn, [*wanted, *wanted[2:], *wanted[2:]], strict=True):
            assert mine.tobytes() == expected.tobytes()


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of somebody's with a file in it."""
    (tmp_path / "victim").mkdir()
    (tmp_path / "victim" / "precious").write_text("precious")
    return tmp_path / "victim"


def _save_number(prefix: str, value: int) -> None:
    from tensoropt.api.session import checkpoint_files as files
    from tensoropt.exec.program.checkpoint import write_tensors

    folder = files.begin(prefix, prefix)
    write_tensors(files.part_of(folder, 0), {"v": np.full(3, value)})
    files.publish(folder, [files.part_of(folder, 0)], prefix)
    files.name_last(os.path.join(os.path.dirname(prefix), "checkpoint"), prefix, [prefix], False)


@pytest.mark.parametrize("trap", ["link", "link to a file", "moved folder", "old moved folder"])
def test_a_save_removes_nothing_that_somebody_else_put_in_its_folder(trap: str, tmp_path: Path, victim: Path) -> None:
    import tensorflow as tf

    model = tmp_path / "model"
    model.mkdir()
    planted = model / ".m.0123456789abcdef.part"
    if trap.startswith("link"):
        planted.symlink_to(victim / "precious" if trap.endswith("file") else victim)
    else:
        victim.rename(planted)
        if trap.startswith("old"):
            os.utime(planted, (0, 0))
    _save_number(str(model / "m"), 1)
    kept = victim if trap.startswith("link") else planted
    assert (kept / "precious").read_text() == "precious" and not planted.is_symlink()
    assert tf.train.load_checkpoint(str(model / "m")).get_tensor("v").tolist() == [1, 1, 1]


def test_a_save_overwrites_nothing_that_its_files_names_lead_to(tmp_path: Path, victim: Path) -> None:
    """Of all files of a checkpoint: what is there by that name is replaced, be it a link or a pipe."""
    import tensorflow as tf

    from tensoropt.api.session import checkpoint_files as files

    model = tmp_path / "model"
    model.mkdir()
    for name in ("m.index", "m.data-00000-of-00001", "m.data-00000-of-00002", "checkpoint", "m.meta", "m.meta.part"):
        (model / name).symlink_to(victim / "precious")
    for value in (1, 2):
        _save_number(str(model / "m"), value)
        files.write_file(str(model / "m.meta"), b"graph")
    assert (victim / "precious").read_text() == "precious"
    assert (model / "m.meta").read_bytes() == b"graph" and not (model / "m.meta").is_symlink()
    assert tf.train.latest_checkpoint(str(model)) == str(model / "m")
    assert tf.train.load_checkpoint(str(model / "m")).get_tensor("v").tolist() == [2, 2, 2]
    (model / "m.meta").unlink()
    os.mkfifo(model / "m.meta")
    files.write_file(str(model / "m.meta"), b"graph")
    assert (model / "m.meta").read_bytes() == b"graph"
    for link in model.iterdir():
        if link.name != "m.meta.part":
            assert not link.is_symlink()
    files.remove(str(model / "m"), "meta")
    assert (victim / "precious").read_text() == "precious" and not (model / "m.index").exists()


def test_what_another_job_is_saving_stays_until_it_is_killed(tmp_path: Path) -> None:
    import signal
    import subprocess
    import sys

    from tests.storage.test_unfinished_files import PROGRAM

    command = [sys.executable, "-c", PROGRAM, str(tmp_path), "folder", "m-7"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        unfinished = Path(other.stdout.readline().strip())
        os.utime(unfinished, (0, 0))
        _save_number(str(tmp_path / "m"), 1)
        assert (unfinished / "part-00000.index").exists()
        other.send_signal(signal.SIGKILL)
    _save_number(str(tmp_path / "m"), 2)
    assert not unfinished.exists() and not list(tmp_path.glob(".*"))


def test_checkpoints_may_have_names_that_only_tensorflow_knows(tmp_path: Path) -> None:
    """``file://`` is a local file, with its locks; others, such as a cloud's, have none."""
    import tensorflow as tf

    from tensoropt.api.session import checkpoint_files as files

    for prefix in (f"file://{tmp_path}/m", "ram://checkpoints/m"):
        for value in (1, 2):
            _save_number(prefix, value)
        left = files.begin(prefix, prefix)
        with tf.io.gfile.GFile(files.part_of(left, 0), "w") as part:
            part.write("part")
        assert tf.io.gfile.exists(files.part_of(left, 0))
        files.discard(left)
        names = sorted(tf.io.gfile.listdir(os.path.dirname(prefix)))
        assert names == ["checkpoint", "m.data-00000-of-00002", "m.data-00001-of-00002", "m.index"]
