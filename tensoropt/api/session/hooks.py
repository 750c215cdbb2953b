"""TensorFlow's hooks of sessions for ranks that take all steps together.

What they do is TensorFlow's own. Of what depends on time rank 0 decides, and it alone writes files and logs.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Iterator
from typing import Any

import tensorflow as tf
from tensorflow.python.training import training_util

from tensoropt.api.mirror.global_step import get_global_step
from tensoropt.api.mirror.model import current_model
from tensoropt.api.session.job import current_job
from tensoropt.api.session.scaffold import default_saver
from tensoropt.api.session.summary_writer import FileWriterCache

__all__ = [
    "CheckpointSaverHook",
    "LoggingTensorHook",
    "NanTensorHook",
    "ProfilerHook",
    "SecondOrStepTimer",
    "StepCounterHook",
    "SummarySaverHook",
    "logs_on_rank_0",
    "prepare_global_step",
]


@contextlib.contextmanager
def logs_on_rank_0() -> Iterator[None]:
    """A context in which TensorFlow's logger is silent on all ranks but the first."""
    logger = logging.getLogger("tensorflow")
    before = logger.disabled
    logger.disabled = before or current_job().world.rank != 0
    try:
        yield
    finally:
        logger.disabled = before


def prepare_global_step() -> None:
    """Makes TensorFlow's hooks read the global step as a variable is read.

    Otherwise the hooks would add operations of their own for it, which no plan has.
    """
    graph = current_model().graph
    step = get_global_step(graph)
    reads = graph.get_collection_ref(training_util.GLOBAL_STEP_READ_KEY)
    if isinstance(step, tf.Variable) and not reads:
        with graph.as_default(), tf.control_dependencies(None):
            reads.append(step.value())


class SecondOrStepTimer(tf.compat.v1.train.SecondOrStepTimer):
    """``tf.compat.v1.train.SecondOrStepTimer`` that counts seconds on rank 0; ranks ask it together."""

    def should_trigger_for_step(self, step: int) -> bool:
        """Tells whether the timer is due, alike on all ranks."""
        here = bool(super().should_trigger_for_step(step))
        if self._every_secs is None:
            return here
        return current_job().world.on_rank_0(f"SecondOrStepTimer of {self._every_secs} s", lambda: here)


class _OnAllRanks(tf.compat.v1.train.SessionRunHook):
    """The base of TensorFlow's hooks here; it stands before TensorFlow's class among the bases."""

    _summary_writer: Any
    _saver: Any
    _agreed_timer: Any = None

    @property
    def _timer(self) -> Any:
        return self._agreed_timer

    @_timer.setter
    def _timer(self, timer: Any) -> None:  # TensorFlow's constructors set it
        if isinstance(timer, tf.compat.v1.train.SecondOrStepTimer):
            timer = SecondOrStepTimer(timer._every_secs, timer._every_steps)
        self._agreed_timer = timer

    def after_create_session(self, session: Any, coord: Any) -> None:
        with logs_on_rank_0():
            super().after_create_session(session, coord)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        with logs_on_rank_0():
            super().after_run(run_context, run_values)

    def end(self, session: Any) -> None:
        with logs_on_rank_0():
            super().end(session)


class LoggingTensorHook(_OnAllRanks, tf.compat.v1.train.LoggingTensorHook):
    """``tf.compat.v1.train.LoggingTensorHook``, which logs on rank 0."""


class NanTensorHook(_OnAllRanks, tf.compat.v1.train.NanTensorHook):
    """``tf.compat.v1.train.NanTensorHook``."""


class ProfilerHook(_OnAllRanks, tf.compat.v1.train.ProfilerHook):
    """``tf.compat.v1.train.ProfilerHook``: traces of rank 0's part of steps, written there."""

    def __init__(
        self,
        save_steps: int | None = None,
        save_secs: float | None = None,
        output_dir: str = "",
        show_dataflow: bool = True,
        show_memory: bool = False,
    ) -> None:
        """Takes TensorFlow's arguments."""
        # TensorFlow's constructor would begin a file on every rank.
        self._output_file = os.path.join(output_dir, "timeline-{}.json")
        self._file_writer = FileWriterCache.get(output_dir)
        self._show_dataflow, self._show_memory = show_dataflow, show_memory
        self._timer = tf.compat.v1.train.SecondOrStepTimer(save_secs, save_steps)

    def _save(self, step: int, save_path: str, step_stats: Any) -> None:
        save = super()._save
        current_job().world.on_rank_0(f"writing '{save_path}'", lambda: save(step, save_path, step_stats))


class _Writing(_OnAllRanks):
    """The base of hooks that write summaries to a folder."""

    _output_dir: str | None

    def begin(self) -> None:
        """As in TensorFlow."""
        if self._summary_writer is None and self._output_dir:
            self._summary_writer = FileWriterCache.get(self._output_dir)
        super().begin()


class StepCounterHook(_Writing, tf.compat.v1.train.StepCounterHook):
    """``tf.compat.v1.train.StepCounterHook``, which writes and logs on rank 0."""


class SummarySaverHook(_Writing, tf.compat.v1.train.SummarySaverHook):
    """``tf.compat.v1.train.SummarySaverHook``, which writes on rank 0."""

    def _get_summary_op(self) -> list[Any] | None:
        # What merges them is mostly made with the session, when the model is planned already; they themselves are not.
        given = super()._get_summary_op()
        return None if given is None else [part for each in given for part in _merged(each)]

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """As in TensorFlow."""
        found = run_values.results
        if "summary" in found:  # repeated fields: texts of protocol buffers one after the other are the merged one
            run_values = run_values._replace(results={**found, "summary": [b"".join(found["summary"])]})
        super().after_run(run_context, run_values)


def _merged(summary: Any) -> list[Any]:
    """The summaries that a tensor merges, as one does that is made of nothing else; itself if it merges none."""
    read = [] if isinstance(summary, str) else list(summary.op.inputs)
    known = {tensor.name for tensor in tf.compat.v1.get_collection(tf.compat.v1.GraphKeys.SUMMARIES)}
    return read if read and all(tensor.name in known for tensor in read) else [summary]


class CheckpointSaverHook(_OnAllRanks, tf.compat.v1.train.CheckpointSaverHook):
    """``tf.compat.v1.train.CheckpointSaverHook``: all ranks save, each its pieces, when it is time on rank 0.

    Its listeners are called on all ranks.
    """

    def __init__(
        self,
        checkpoint_dir: str | None,
        save_secs: float | None = None,
        save_steps: int | None = None,
        saver: Any = None,
        checkpoint_basename: str = "model.ckpt",
        scaffold: Any = None,
        listeners: Any = None,
        save_graph_def: bool = True,
    ) -> None:
        """Takes TensorFlow's arguments. Ranks may leave the folder to others (None)."""
        given = os.fspath(checkpoint_dir) if checkpoint_dir else None
        with logs_on_rank_0():
            super().__init__(
                current_job().world.given_somewhere("CheckpointSaverHook: checkpoint_dir", given) or checkpoint_dir,
                save_secs,
                save_steps,
                saver,
                checkpoint_basename,
                scaffold,
                listeners,
                save_graph_def,
            )

    def begin(self) -> None:
        """As in TensorFlow.

        Raises:
            RuntimeError: there is no global step.
        """
        self._summary_writer = FileWriterCache.get(self._checkpoint_dir)
        self._global_step_tensor = training_util._get_or_create_global_step_read()
        if self._global_step_tensor is None:
            raise RuntimeError("Global step should be created to use CheckpointSaverHook.")
        for listener in self._listeners:
            listener.begin()

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Saves for the first time, and writes the graph, as in TensorFlow."""
        step = session.run(self._global_step_tensor)
        with logs_on_rank_0():
            current_job().world.on_rank_0(f"writing the graph to '{self._checkpoint_dir}'", self._write_graph)
            self._save(session, step)
        self._timer.update_last_triggered_step(step)

    def _write_graph(self) -> None:
        graph = current_model().graph
        if self._save_graph_def:
            definition = graph.as_graph_def(add_shapes=True)
            tf.io.write_graph(definition, self._checkpoint_dir, "graph.pbtxt")
        self._summary_writer.add_graph(graph)
        self._summary_writer.add_meta_graph(self._get_saver().export_meta_graph())

    def _get_saver(self) -> Any:
        if self._saver is None and self._scaffold is None:
            self._saver = default_saver()
        return super()._get_saver()
