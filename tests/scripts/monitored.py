"""Monitored sessions, hooks, scaffolds, metrics and nested fetches of TensorFlow 1 scripts, case by case in one job."""

from __future__ import annotations

import collections
import contextlib
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from unittest import mock

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework.indexed_slices import IndexedSlicesValue
from tensorflow.python.training import basic_session_run_hooks

import tensoropt
from tensoropt.api.session.job import current_job
from tensoropt.errors import CollectiveError, SessionError
from tests.scripts.cases import Model, batch, case, classifier, close, core_case, main, random_plan, some_plans

FOLDER = Path(sys.argv[1]) / "monitored"


def stepping(m: Any) -> Model:
    """The classifier with a training step that counts, and summaries."""
    made = classifier(m)
    m.summary.scalar("loss", made["loss"])
    m.summary.histogram("weights", made["w1"])
    step = m.train.get_or_create_global_step()
    norm = m.reduce_sum(m.square(made["w1"]))
    with m.control_dependencies([norm]):  # plain TensorFlow leaves open whether it is that of before the step
        train = m.train.MomentumOptimizer(0.5, 0.9).minimize(made["loss"], global_step=step)
    return {**made, "step": step, "norm": norm, "train": train}


@contextlib.contextmanager
def plain_model(make: Callable[[Any], Model]) -> Iterator[Model]:
    with tf.Graph().as_default():
        tf.compat.v1.set_random_seed(1)
        tf.compat.v1.get_variable_scope().set_use_resource(True)
        yield make(tf.compat.v1)


def job_model(make: Callable[[Any], Model], plan: str | int = 1) -> Model:
    tensoropt.reset_default_graph()
    tensoropt.set_random_seed(1)
    made = make(tensoropt)
    found = random_plan(plan) if isinstance(plan, int) else tensoropt.find_strategy(plan)
    tensoropt.build_execution_graph(plan=found)
    return made


def fed(made: Model, number: int) -> dict[Any, Any]:
    return {made[key]: value for key, value in batch(number).items()}


def same(mine: Mapping[str, Any], theirs: Mapping[str, Any], what: str) -> None:
    """Fails unless a script gets the same as in one process."""
    assert mine.keys() == theirs.keys()
    for key, value in mine.items():
        if np.asarray(value).dtype.kind in "SUOb":
            assert value == theirs[key], f"{what}: {key}: {value!r} is not {theirs[key]!r}"
        else:
            close(value, theirs[key], f"{what}: {key}")


def compare(make: Callable[[Any], Model], script: Callable[[Any, Model, str], Mapping[str, Any]], name: str) -> None:
    """Runs a script, which gets a folder of its own, in one process and by two plans, by default by one of them."""
    with plain_model(make) as made:
        wanted = script(tf.compat.v1, made, str(FOLDER / f"{name} alone {tensoropt.world_rank()}"))
    for plan in some_plans(("data_parallel", 1)):
        same(script(tensoropt, job_model(make, plan), str(FOLDER / f"{name} {plan}")), wanted, f"plan {plan}")


class Recorder(tf.compat.v1.train.SessionRunHook):
    """Fetches and feeds on its own in every step, and takes down what is called."""

    def __init__(self, m: Any, made: Model) -> None:
        self.m, self.made = m, made
        self.called: list[str] = []
        self.losses: list[Any] = []
        self.norms: list[Any] = []

    def begin(self) -> None:
        self.called.append("begin")
        self.norm = self.m.identity(self.made["norm"])

    def after_create_session(self, session: Any, coord: Any) -> None:
        self.called.append(f"created at {session.run(self.made['step'])}, {coord.should_stop()}")

    def before_run(self, run_context: Any) -> Any:
        assert run_context.original_args.fetches is not None
        number = len(self.losses)
        fetches = {"losses": [self.made["loss"], (self.made["losses"],)], "norm": {"of": self.norm}}
        return self.m.train.SessionRunArgs(fetches, feed_dict={self.made["x"]: batch(number)["x"]})

    def after_run(self, run_context: Any, run_values: Any) -> None:
        loss, (losses,) = run_values.results["losses"]
        close(loss, np.mean(losses), "the mean")
        self.losses.append(loss)
        self.norms.append(run_values.results["norm"]["of"])

    def end(self, session: Any) -> None:
        self.called.append(f"end at {session.run(self.made['step'])}")


def events(folder: str) -> list[tuple[int, str]]:
    """What the event files of a folder have, but what only says how fast it was, by step."""
    found = []
    for file in sorted(Path(folder).glob("events.*")):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            kind = event.WhichOneof("what")
            tags = {value.tag for value in event.summary.value}
            found.append((event.step, f"{kind} {sorted(tags) or event.session_log.status}"))
    return found


def checkpoints(folder: str) -> list[str]:
    return sorted(path.name for path in Path(folder).glob("*.index"))


@core_case
def a_monitored_session_trains_saves_and_goes_on() -> None:
    def script(m: Any, made: Model, folder: str) -> Mapping[str, Any]:
        got: dict[str, Any] = {}
        final = m.train.FinalOpsHook({"w2": made["w2"]})
        for last in (5, 9):
            mine = Recorder(m, made)
            hooks = [m.train.StopAtStepHook(last_step=last), mine, m.train.NanTensorHook(made["loss"]), final]
            options = {"save_checkpoint_steps": 3, "save_summaries_steps": 2, "log_step_count_steps": 2}
            session = m.train.MonitoredTrainingSession(checkpoint_dir=folder, hooks=hooks, **options)
            with session:
                while not session.should_stop():
                    labels = batch(len(mine.losses))["y"]
                    nothing, also = session.run([made["train"], made["step"]], {made["y"]: labels})
                    assert nothing is None and also.dtype == np.int64
            assert session.should_stop()
            got |= {f"{last} called": mine.called, f"{last} losses": mine.losses, f"{last} norms": mine.norms}
            got[f"{last} w2"] = final.final_ops_values["w2"]
        if tensoropt.world_rank() == 0 or m is not tensoropt:
            written.append((events(folder), checkpoints(folder)))
            m.summary.FileWriterCache.clear()
        return got

    written: list[Any] = []
    compare(stepping, script, "trains")
    for each in written[1:]:
        assert each == written[0], f"written: {each} is not {written[0]}"


@case
def checkpoints_of_plain_tensorflow_are_gone_on_with() -> None:
    def script(m: Any, made: Model, folder: str, last: int) -> Any:
        with m.train.SingularMonitoredSession(
            [
                m.train.StopAtStepHook(num_steps=last),
                m.train.CheckpointSaverHook(folder, save_steps=2, listeners=[m.train.CheckpointSaverListener()]),
            ],
            checkpoint_dir=folder,
        ) as session:
            assert session.graph is made["w1"].graph and session.raw_session().run(made["step"]) >= 0
            number = session.run(made["step"])
            while not session.should_stop():
                session.run(made["train"], fed(made, number))
                number += 1
            return session.raw_session().run([made["step"], made["w1"]])

    def of_tensorflow(last: int, folder: str) -> Any:
        with plain_model(stepping) as made:
            return script(tf.compat.v1, made, folder, last)

    own, shared = str(FOLDER / f"own {tensoropt.world_rank()}"), str(FOLDER / "shared")
    of_tensorflow(3, own)
    wanted = of_tensorflow(2, own)
    if tensoropt.world_rank() == 0:
        of_tensorflow(3, shared)
    current_job().world.comm.barrier()
    got = script(tensoropt, job_model(stepping), shared, 2)
    assert got[0] == wanted[0] == 5, (got[0], wanted[0])  # reading the step is a run, after which hooks look, too
    close(got[1], wanted[1], "w1")


@case
def what_one_rank_wants_all_do() -> None:
    made = job_model(stepping)
    rank = tensoropt.world_rank()

    class Asks(tensoropt.train.SessionRunHook):
        count = 0

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self.count += 1
            if rank == 1 and self.count == 3:
                run_context.request_stop()

    class Waits(tensoropt.train.SessionRunHook):
        def after_create_session(self, session: Any, coord: Any) -> None:
            self.coord = coord

        def after_run(self, run_context: Any, run_values: Any) -> None:
            if rank == 0:
                self.coord.request_stop()

    for hook, expected in ((Asks(), 3), (Waits(), 1)):
        count = 0
        with tensoropt.train.MonitoredSession(hooks=[hook]) as session:
            while not session.should_stop():
                session.run(made["train"], fed(made, count))
                count += 1
            with pytest.raises(RuntimeError, match=r"after should_stop|[Cc]losed|stop"):
                session.run(made["train"], fed(made, 0))
        assert count == expected, (hook, count)


@case
def time_is_that_of_rank_0() -> None:
    made = job_model(stepping)
    folder = FOLDER / "time"
    hours = iter(range(10**6))
    here = tensoropt.world_rank() == 0

    class Clock:  # an hour passes whenever rank 0 looks; on others it stands still
        @staticmethod
        def time() -> float:
            return next(hours) * 3600.0 if here else 0.0

    logged: list[Any] = []
    logs = tensoropt.train.LoggingTensorHook({"loss": made["loss"]}, every_n_secs=60, formatter=logged.append)
    trace = tensoropt.train.ProfilerHook(save_secs=60, output_dir=str(folder))
    options = {"save_checkpoint_secs": 1800, "save_summaries_secs": 1800, "summary_dir": str(folder / "summaries")}
    with mock.patch.object(basic_session_run_hooks, "time", Clock):
        with tensoropt.train.MonitoredTrainingSession(
            checkpoint_dir=str(folder), hooks=[logs, trace], **options
        ) as session:
            for number in range(3):
                session.run(made["train"], fed(made, number))
    assert len(logged) == 3
    current_job().world.comm.barrier()
    assert checkpoints(str(folder)) == [f"model.ckpt-{step}.index" for step in range(4)]
    assert len(list((folder / "summaries").iterdir())) == 1
    timelines = [json.loads((folder / f"timeline-{step}.json").read_text()) for step in (2, 3)]
    assert all(each["traceEvents"] for each in timelines)


@core_case
def an_error_of_one_rank_ends_the_step_on_all() -> None:
    made = job_model(stepping)
    rank = tensoropt.world_rank()

    class Fails(tensoropt.train.SessionRunHook):
        def __init__(self, error: Exception, where: str) -> None:
            self.error, self.where, self.count, self.ended = error, where, 0, False

        def before_run(self, run_context: Any) -> None:
            self.count += 1
            self._fail("before")

        def after_run(self, run_context: Any, run_values: Any) -> None:
            self._fail("after")

        def end(self, session: Any) -> None:
            self.ended = True

        def _fail(self, where: str) -> None:
            if rank == 1 and self.count == 2 and where == self.where:
                raise self.error

    def train(hook: Any) -> None:
        timed = tensoropt.train.LoggingTensorHook([made["loss"]], every_n_secs=600)
        with tensoropt.train.MonitoredSession(hooks=[hook, timed]) as session:
            while not session.should_stop():
                session.run(made["train"], fed(made, 0))

    for where in ("before", "after"):
        broken = Fails(ValueError("broken"), where)
        with pytest.raises(ValueError if rank == 1 else CollectiveError, match=r"broken"):
            train(broken)
        assert broken.count == 2 and not broken.ended
        for end in (StopIteration(), tf.errors.OutOfRangeError(None, None, "no more")):
            over = Fails(end, where)
            train(over)
            assert over.count == 2 and over.ended
    losses = [float("nan")]
    with pytest.raises(tensoropt.train.NanLossDuringTrainingError):
        nan = tensoropt.train.NanTensorHook(made["loss"])
        with tensoropt.train.MonitoredSession(hooks=[nan]) as session:
            session.run(made["train"], {made["x"]: np.full([8, 6], losses[0]), made["y"]: batch(0)["y"]})


@case
def the_end_of_the_data_ends_the_session() -> None:
    def make(m: Any) -> Model:
        data = [batch(number) for number in range(5)]
        dataset = m.data.Dataset.from_tensor_slices({key: np.stack([each[key] for each in data]) for key in data[0]})
        read = m.data.make_one_shot_iterator(dataset.repeat(2)).get_next()
        w = m.get_variable("w", [6, 4], initializer=m.zeros_initializer())
        logits = m.matmul(m.cast(m.reshape(read["x"], [8, 6]), m.float32), w)
        labels = m.reshape(read["y"], [8])
        loss = m.reduce_mean(m.nn.sparse_softmax_cross_entropy_with_logits(labels=labels, logits=logits))
        step = m.train.get_or_create_global_step()
        train = m.train.GradientDescentOptimizer(0.5).minimize(loss, global_step=step)
        return {"w": w, "loss": loss, "train": train, "step": step}

    def script(m: Any, made: Model, folder: str) -> Mapping[str, Any]:
        final = m.train.FinalOpsHook([made["w"], made["step"]])
        losses = []
        with m.train.MonitoredTrainingSession(hooks=[final]) as session:
            while not session.should_stop():
                losses.append(session.run((made["train"], made["loss"]))[1])
        assert len(losses) == 10
        return {"losses": losses, "w": final.final_ops_values[0], "step": final.final_ops_values[1]}

    compare(make, script, "data")


@case
def a_scaffold_says_how_to_begin() -> None:
    def make(m: Any) -> Model:
        made = stepping(m)
        given = m.placeholder(m.float32, [3], name="given")
        kept = m.Variable(given, trainable=False, name="kept")
        mean, update = m.metrics.mean(made["loss"])
        with m.variable_scope("", reuse=True):
            assert m.local_variables()
        return {**made, "given": given, "kept": kept, "mean": mean, "update": update}

    def script(m: Any, made: Model, folder: str) -> Mapping[str, Any]:
        def init_fn(scaffold: Any, session: Any) -> None:
            assert scaffold.saver is saver
            called.append(True)
            made["b1"].load(np.ones(8, np.float32), session)

        got: dict[str, Any] = {}
        for turn in range(2):  # first initialized, then restored
            called: list[Any] = []
            saver = m.train.Saver(m.global_variables(), max_to_keep=2)
            scaffold = m.train.Scaffold(
                init_op=m.global_variables_initializer(),
                init_feed_dict={made["given"]: [1.0, 2.0, 3.0]},
                init_fn=init_fn,
                local_init_op=m.group(m.local_variables_initializer(), m.tables_initializer()),
                saver=saver,
            )
            creator = m.train.ChiefSessionCreator(scaffold, checkpoint_dir=folder)
            saves = m.train.CheckpointSaverHook(folder, save_steps=1, scaffold=scaffold)
            counts = m.train.StepCounterHook(every_n_steps=1, output_dir=folder)
            with m.train.MonitoredSession(creator, hooks=[saves, counts]) as session:
                for number in range(3):
                    update = session.run([made["update"], made["train"]], fed(made, number))[0]
                found = session.run({key: made[key] for key in ("kept", "b1", "mean", "step")})
            assert bool(called) == (turn == 0)
            got |= {f"{key} {turn}": value for key, value in {**found, "update": update}.items()}
            got[f"last {turn}"] = [Path(path).name for path in saver.last_checkpoints]
        m.summary.FileWriterCache.clear()
        return got

    compare(make, script, "scaffold")


@case
def a_step_function_runs_with_and_without_hooks() -> None:
    def script(m: Any, made: Model, folder: str) -> Mapping[str, Any]:
        mine = Recorder(m, made)
        steps = []

        def step_fn(step_context: Any) -> Any:
            steps.append(step_context.session.run(made["step"]))
            if steps[-1] == 3:
                step_context.request_stop()
            return step_context.run_with_hooks(made["train"], {made["y"]: batch(len(mine.losses))["y"]})

        with m.train.MonitoredTrainingSession(hooks=[mine]) as session:
            while not session.should_stop():
                session.run_step_fn(step_fn)
        return {"steps": steps, "losses": mine.losses, "called": mine.called}

    compare(stepping, script, "step function")


@case
def metrics_are_those_of_one_process() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        m_ = m.metrics
        labels, scores = made["y"], made["logits"]
        chosen = m.argmax(scores, 1)
        weights = m.cast(m.range(1, 9), m.float32)
        yes, likely = m.equal(labels, 1), m.nn.softmax(scores)[:, 1]
        made |= {
            "accuracy": m_.accuracy(labels, chosen),
            "weighted": m_.accuracy(labels, chosen, weights=weights),
            "auc": m_.auc(yes, likely, num_thresholds=20),
            "pr": m_.auc(yes, likely, num_thresholds=20, curve="PR", summation_method="careful_interpolation"),
            "classes": m_.mean_per_class_accuracy(labels, chosen, 4),
            "cosine": m_.mean_cosine_distance(m.nn.l2_normalize(scores, 1), m.nn.l2_normalize(scores + 1, 1), 1),
            "false_negatives": m_.false_negatives(yes, m.equal(chosen, 1)),
            "false_positives": m_.false_positives(yes, m.equal(chosen, 1)),
            "in_top": m_.mean(m.cast(m.nn.in_top_k(scores, labels, 2), m.float32)),
            "iou": m_.mean_iou(labels, chosen, 4),
            "less": m_.percentage_below(scores, 0.1),
            "mae": m_.mean_absolute_error(m.one_hot(labels, 4), scores),
            "mean": m_.mean(made["losses"], weights=weights, name="loss"),
            "mse": m_.mean_squared_error(m.one_hot(labels, 4), scores),
            "precision": m_.precision(yes, m.equal(chosen, 1)),
            "precision_at": m_.precision_at_thresholds(yes, likely, [0.2, 0.5]),
            "precision_at_k": m_.precision_at_k(m.cast(labels, m.int64), scores, 2),
            "recall": m_.recall(yes, m.equal(chosen, 1)),
            "recall_at": m_.recall_at_thresholds(yes, likely, [0.2, 0.5]),
            "recall_at_k": m_.recall_at_k(m.cast(labels, m.int64), scores, 2),
            "rmse": m_.root_mean_squared_error(m.one_hot(labels, 4), scores),
            "tensor": m_.mean_tensor(scores),
            "true_negatives": m_.true_negatives(yes, m.equal(chosen, 1)),
            "true_positives": m_.true_positives(yes, m.equal(chosen, 1)),
        }
        return {**made, "train": m.train.GradientDescentOptimizer(0.5).minimize(made["loss"])}

    def script(m: Any, made: Model, folder: str) -> Mapping[str, Any]:
        pairs = {key: value for key, value in made.items() if isinstance(value, tuple)}
        names = sorted(variable.op.name for variable in m.local_variables())
        assert {variable.op.name for variable in m.get_collection(m.GraphKeys.METRIC_VARIABLES)} == {*names}
        got: dict[str, Any] = {"names": names}
        with m.Session() as session:
            session.run([m.global_variables_initializer(), m.local_variables_initializer()])
            for number in range(3):
                updates, _ = session.run(
                    [{key: pair[1] for key, pair in pairs.items()}, made["train"]], fed(made, number)
                )
                values = session.run({key: pair[0] for key, pair in pairs.items()})
                got |= {f"{key} updated {number}": value for key, value in updates.items()}
                got |= {f"{key} {number}": value for key, value in values.items()}
            session.run(m.variables_initializer(m.local_variables("loss")))
            return {**got, "begun anew": session.run(made["mean"][0]), "not": session.run(made["accuracy"][0])}

    compare(make, script, "metrics")


class Pair(NamedTuple):
    first: Any
    second: Any


@case
def fetches_come_in_their_nests() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        sparse = m.SparseTensor([[0, 1], [2, 3]], m.add(made["b1"][:2], [1.0, 2.0]), [3, 4])
        rows = m.IndexedSlices(made["b1"], m.range(8))
        return {
            **made,
            "sparse": sparse,
            "rows": rows,
            "operation": m.group(made["loss"]),
        }

    def script(m: Any, made: Model, folder: str) -> Mapping[str, Any]:
        with m.Session() as session:
            session.run(m.global_variables_initializer())
            b1, w2, operation, loss = (made[key] for key in ("b1", "w2", "operation", "loss"))
            marker = object()
            fetches = {
                "pair": Pair(b1, [w2, (loss, "w1:0")]),
                "default": collections.defaultdict(list, a=b1, z=operation),
                "ordered": collections.OrderedDict([("z", b1), ("a", {3: w2, marker: operation})]),
                "empty": [[], (), {}],
                "twice": [loss, loss],
                "sparse": made["sparse"],
                "rows": made["rows"],
            }
            got = session.run(fetches, fed(made, 0))
            assert list(got) == list(fetches) and list(got["ordered"]) == ["z", "a"] and got["empty"] == [[], (), {}]
            assert type(got["pair"]) is Pair and type(got["pair"].second) is list
            assert type(got["default"]) is collections.defaultdict and got["default"].default_factory is list
            assert type(got["ordered"]) is collections.OrderedDict and got["ordered"]["a"][marker] is None
            assert isinstance(got["sparse"], tf.compat.v1.SparseTensorValue)
            assert isinstance(got["rows"], IndexedSlicesValue)
            for bad in (None, [loss, None], {"a": [operation, (None,)]}):
                with pytest.raises((TypeError, SessionError), match=r"None has invalid type|^Fetch None: must be"):
                    session.run(bad, fed(made, 0))
            assert session.run([]) == []
            call = session.make_callable({"of": [loss]}, [made["x"], made["y"]])
            return {
                "pair": got["pair"].second[1][0],
                "sparse": got["sparse"].values,
                "rows": got["rows"].values,
                "called": call(*batch(0).values())["of"][0],
            }

    compare(make, script, "nests")


@case
def a_folder_that_one_rank_names_is_that_of_all() -> None:
    def make(m: Any) -> Model:
        made = classifier(m)
        step = m.Variable(0, trainable=False, name="global_step")
        assert m.train.get_global_step() is step
        train = m.train.MomentumOptimizer(0.5, 0.9).minimize(made["loss"], global_step=step)
        return {**made, "step": step, "train": train}

    m, folder, other = tensoropt, str(FOLDER / "of one"), str(FOLDER / "of another")
    first, last = m.world_rank() == 0, m.world_rank() == m.world_size() - 1
    made = job_model(make, "data_parallel")
    stop = m.train.StopAtStepHook(last_step=5)
    named = folder if first else None
    with m.train.MonitoredTrainingSession(checkpoint_dir=named, hooks=[stop], save_checkpoint_steps=2) as session:
        while not session.should_stop():
            session.run(made["train"], fed(made, 0))
    saving = m.train.CheckpointSaverHook(other if first else None, save_steps=1)
    with m.train.SingularMonitoredSession([saving], checkpoint_dir=folder if last else None) as session:
        assert session.run(made["step"]) == 5
        session.run(made["train"], fed(made, 0))
    creator = m.train.ChiefSessionCreator(checkpoint_dir=Path(other) if last else None)
    with m.train.MonitoredSession(creator) as session:
        assert session.run(made["step"]) == 6
    assert checkpoints(folder)[-1] == "model.ckpt-5.index"
    assert [name for name, _ in tf.train.list_variables(folder) if name == "global_step"]


@case
def what_is_not_there_is_said() -> None:
    tensoropt.reset_default_graph()
    made = stepping(tensoropt)
    with pytest.raises(SessionError, match=r"MonitoredSession: is of another graph|no execution graph|another"):
        with tensoropt.train.MonitoredTrainingSession() as session:
            session.run(made["train"], fed(made, 0))
    job_model(stepping)
    with pytest.raises(CollectiveError, match=re.escape(f"checkpoint_dir='{FOLDER}/of 1'")):
        tensoropt.train.MonitoredTrainingSession(checkpoint_dir=f"{FOLDER}/of {tensoropt.world_rank()}")
    with pytest.raises(SessionError, match=r"target must be ''"):
        tensoropt.train.MonitoredTrainingSession(master="grpc://localhost:1")
    coord = tensoropt.train.Coordinator()
    assert tensoropt.train.start_queue_runners(coord=coord) == []
    coord.request_stop()
    coord.join()


if __name__ == "__main__":
    main()
