"""Monitored sessions as TensorFlow 1 scripts have them: TensorFlow's own, over sessions of the job.

World take all steps together, so what one of them decides by itself all must hear of: that a hook asks for the end, or
fails, or has no more data. What depends on files is rank 0's decision.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import tensorflow as tf
from tensorflow.python.training.monitored_session import USE_DEFAULT

from tensoropt.api.mirror.model import current_model
from tensoropt.api.session.hooks import (
    CheckpointSaverHook,
    StepCounterHook,
    SummarySaverHook,
    logs_on_rank_0,
    prepare_global_step,
)
from tensoropt.api.session.job import current_job
from tensoropt.api.session.scaffold import Scaffold
from tensoropt.api.session.tf1_session import Session
from tensoropt.exec.engines.guard import DifferenceError, EndedError, is_told

__all__ = ["ChiefSessionCreator", "MonitoredSession", "MonitoredTrainingSession", "SingularMonitoredSession"]

_Value = TypeVar("_Value")
_SUMMARY_STEPS, _CHECKPOINT_S = 100, 600.0  # TensorFlow's


class ChiefSessionCreator(tf.compat.v1.train.SessionCreator):
    """``tf.compat.v1.train.ChiefSessionCreator``: all ranks make their sessions together, each is a chief."""

    def __init__(
        self,
        scaffold: Any = None,
        master: str = "",
        config: Any = None,
        checkpoint_dir: str | None = None,
        checkpoint_filename_with_path: str | None = None,
    ) -> None:
        """Takes TensorFlow's arguments.

        Args:
            scaffold: a ``tensoropt.train.Scaffold``.
            master: empty.
            config: see ``tensoropt.Session``.
            checkpoint_dir: a folder whose last checkpoint is restored, if there is one.
            checkpoint_filename_with_path: a checkpoint that is restored instead.
        """
        self._scaffold = scaffold or Scaffold()
        self._master, self._config = master, config
        self._folder, self._path = checkpoint_dir, checkpoint_filename_with_path

    def create_session(self) -> Session:
        """A session whose variables are restored or else initialized; all ranks call it together.

        Raises:
            SessionError: before ``build_execution_graph``.
            CheckpointError: a checkpoint cannot be restored.
            CollectiveError: ranks give other folders.
        """
        job, scaffold = current_job(), self._scaffold
        self._folder = _folder("MonitoredSession: checkpoint_dir", self._folder)
        self._path = _folder("MonitoredSession: checkpoint_filename_with_path", self._path)
        with job.world.step(f"MonitoredSession (checkpoint_dir={self._folder!r}, checkpoint={self._path!r})"):
            job.require_built("MonitoredSession")
            scaffold.finalize()
            session = Session(self._master, current_model().graph, self._config)
        path, kept = job.world.on_rank_0("looking for a checkpoint", self._last_checkpoint)
        if path is not None:
            with logs_on_rank_0():
                tf.compat.v1.logging.info("Restoring parameters from %s", path)
            scaffold.saver.restore(session, path)
            scaffold.saver.recover_last_checkpoints(kept)
        else:
            session.run(scaffold.init_op, scaffold.init_feed_dict)
            if scaffold.init_fn is not None:
                scaffold.init_fn(session)
        if scaffold.local_init_op is not None:
            session.run(scaffold.local_init_op, scaffold.local_init_feed_dict)
        return session

    def _last_checkpoint(self) -> tuple[str | None, list[str]]:
        """Returns the checkpoint to restore, or None, and the checkpoints that are kept."""
        if self._path:
            return self._path, [self._path]
        state = tf.compat.v1.train.get_checkpoint_state(self._folder) if self._folder else None
        if state is None or not state.model_checkpoint_path:
            return None, []
        return state.model_checkpoint_path, list(state.all_model_checkpoint_paths)


class _Telling(tf.compat.v1.train.SessionRunHook):
    """A hook whose errors the other ranks hear of, which would wait for this one."""

    def __init__(self, hook: Any) -> None:
        self._hook = hook

    def begin(self) -> None:
        self._call("begin", self._hook.begin)

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._call("after_create_session", self._hook.after_create_session, session, coord)

    def before_run(self, run_context: Any) -> Any:
        return self._call("before_run", self._hook.before_run, run_context)

    def after_run(self, run_context: Any, run_values: Any) -> None:
        self._call("after_run", self._hook.after_run, run_context, run_values)

    def end(self, session: Any) -> None:
        self._call("end", self._hook.end, session)

    def _call(self, name: str, method: Callable[..., _Value], *args: Any) -> _Value:
        world = current_job().world
        try:
            return method(*args)
        except EndedError as error:
            raise tf.errors.OutOfRangeError(None, None, str(error)) from error
        except Exception as error:
            if not is_told(error):
                ended = isinstance(error, tf.errors.OutOfRangeError | StopIteration)
                world.meet(f"{type(self._hook).__name__}.{name}", error, ended=ended)
            raise


class _Agreement(tf.compat.v1.train.SessionRunHook):
    """The last hook: if one rank asks for the end after a run, all do."""

    def __init__(self) -> None:
        self.is_over = False
        self._coord: Any = None

    def after_create_session(self, session: Any, coord: Any) -> None:
        self._coord = coord

    def after_run(self, run_context: Any, run_values: Any) -> None:
        over = bool(run_context.stop_requested or self._coord.should_stop())
        try:
            current_job().world.meet("MonitoredSession: whether to go on", shared={"is over": over})
        except DifferenceError:  # of a yes and a no
            over = True
        if over:
            run_context.request_stop()
            self.is_over = True


class _Monitored:
    """The part that monitored sessions of both kinds share."""

    _sess: Any
    _agreement: _Agreement

    def _ready(self, hooks: Iterable[Any] | None) -> list[Any]:
        """The hooks as TensorFlow's session is to call them."""
        prepare_global_step()
        self._agreement = _Agreement()
        return [_Telling(hook) for hook in (*(hooks or ()), self._agreement)]

    def should_stop(self) -> bool:
        """Tells, alike on all ranks, whether a hook of any rank has asked for the end, or the session is closed."""
        return self._sess is None or self._agreement.is_over


class MonitoredSession(_Monitored, tf.compat.v1.train.MonitoredSession):
    """``tf.compat.v1.train.MonitoredSession`` of a job; opened after ``build_execution_graph``, by all ranks."""

    def __init__(
        self, session_creator: Any = None, hooks: Iterable[Any] | None = None, stop_grace_period_secs: int = 120
    ) -> None:
        """Initializes or restores variables, and calls the hooks.

        Args:
            session_creator: by default a :class:`ChiefSessionCreator` without a checkpoint.
            hooks: ``tensoropt.train.SessionRunHook``, the same on all ranks.
            stop_grace_period_secs: how long threads of a coordinator are waited for.

        Raises:
            SessionError: before ``build_execution_graph``.
        """
        with current_model().enter():
            super().__init__(session_creator or ChiefSessionCreator(), self._ready(hooks), stop_grace_period_secs)


class SingularMonitoredSession(_Monitored, tf.compat.v1.train.SingularMonitoredSession):
    """``tf.compat.v1.train.SingularMonitoredSession`` of a job; see :class:`MonitoredSession`."""

    def __init__(
        self,
        hooks: Iterable[Any] | None = None,
        scaffold: Any = None,
        master: str = "",
        config: Any = None,
        checkpoint_dir: str | None = None,
        stop_grace_period_secs: int = 120,
        checkpoint_filename_with_path: str | None = None,
    ) -> None:
        """Initializes or restores variables, and calls the hooks; see :class:`ChiefSessionCreator`."""
        creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir, checkpoint_filename_with_path)
        with current_model().enter():
            # TensorFlow's own constructor would make a creator of its own.
            super(tf.compat.v1.train.SingularMonitoredSession, self).__init__(
                creator, self._ready(hooks), should_recover=False, stop_grace_period_secs=stop_grace_period_secs
            )


def MonitoredTrainingSession(
    master: str = "",
    is_chief: bool = True,
    checkpoint_dir: str | None = None,
    scaffold: Any = None,
    hooks: Iterable[Any] | None = None,
    chief_only_hooks: Iterable[Any] | None = None,
    save_checkpoint_secs: float | None = USE_DEFAULT,
    save_summaries_steps: int | None = USE_DEFAULT,
    save_summaries_secs: float | None = USE_DEFAULT,
    config: Any = None,
    stop_grace_period_secs: int = 120,
    log_step_count_steps: int | None = 100,
    max_wait_secs: int = 7200,
    save_checkpoint_steps: int | None = USE_DEFAULT,
    summary_dir: str | None = None,
    save_graph_def: bool = True,
) -> MonitoredSession:
    """``tf.compat.v1.train.MonitoredTrainingSession`` of a job; opened after ``build_execution_graph``, by all ranks.

    Args:
        master: empty.
        is_chief: has no meaning: all ranks train and save together.
        checkpoint_dir: where checkpoints are, and are saved; on a file system that all hosts share. It may be given on
            rank 0 alone.
        scaffold: a ``tensoropt.train.Scaffold``.
        hooks: ``tensoropt.train.SessionRunHook``, the same on all ranks.
        chief_only_hooks: more hooks, called before these, on all ranks.
        save_checkpoint_secs: seconds between checkpoints; 600 if nothing is said of them.
        save_summaries_steps: steps between summaries; 100 if nothing is said of them.
        save_summaries_secs: seconds between summaries.
        config: see ``tensoropt.Session``.
        stop_grace_period_secs: how long threads of a coordinator are waited for.
        log_step_count_steps: steps between two records of steps per second.
        max_wait_secs: has no meaning.
        save_checkpoint_steps: steps between checkpoints.
        summary_dir: where summaries are written; by default with the checkpoints.
        save_graph_def: whether the graph is written with the checkpoints.

    Raises:
        SessionError: before ``build_execution_graph``.
        CheckpointError: the last checkpoint cannot be restored.
    """
    del is_chief, max_wait_secs
    scaffold = scaffold or Scaffold()
    checkpoint_dir = _folder("MonitoredTrainingSession: checkpoint_dir", checkpoint_dir)
    summary_dir = _folder("MonitoredTrainingSession: summary_dir", summary_dir)
    summaries = _schedule(save_summaries_steps, save_summaries_secs, {"save_steps": _SUMMARY_STEPS})
    checkpoints = _schedule(save_checkpoint_steps, save_checkpoint_secs, {"save_secs": _CHECKPOINT_S})
    own: list[Any] = [*(chief_only_hooks or ())]
    folder = summary_dir or checkpoint_dir
    if folder and log_step_count_steps and log_step_count_steps > 0:
        own.append(StepCounterHook(output_dir=folder, every_n_steps=log_step_count_steps))
    if folder and summaries:
        own.append(SummarySaverHook(scaffold=scaffold, output_dir=folder, **summaries))
    if checkpoint_dir and checkpoints:
        own.append(CheckpointSaverHook(checkpoint_dir, scaffold=scaffold, save_graph_def=save_graph_def, **checkpoints))
    creator = ChiefSessionCreator(scaffold, master, config, checkpoint_dir)
    return MonitoredSession(creator, [*own, *(hooks or ())], stop_grace_period_secs)


def _folder(what: str, given: Any) -> str | None:
    """A folder or a file that all ranks are to use: the one that there is, where some are given none."""
    return current_job().world.given_somewhere(what, os.fspath(given) if given else None)


def _schedule(steps: Any, seconds: Any, default: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a hook that saves every so many steps or seconds; none if it is not to save."""
    if steps is USE_DEFAULT and seconds is USE_DEFAULT:
        return dict(default)
    given = {"save_steps": steps, "save_secs": seconds}
    said = {key: value for key, value in given.items() if value is not USE_DEFAULT and value is not None}
    return said if any(value > 0 for value in said.values()) else {}
