"""``tf.train.Supervisor`` as older scripts have it, over a session of the job."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import current_model
from tensoropt.api.session.job import current_job
from tensoropt.api.session.monitored_session import ChiefSessionCreator
from tensoropt.api.session.saver import Saver
from tensoropt.api.session.scaffold import Scaffold
from tensoropt.api.session.summary_writer import FileWriter
from tensoropt.errors import SessionError

__all__ = ["Supervisor"]

_DEFAULT = 0  # TensorFlow's USE_DEFAULT


class Supervisor:
    """Restores a folder's last checkpoint, saves and writes summaries now and then.

    All ranks make it with the same arguments, and each counts as the chief. TensorFlow's threads save at any time; here
    :meth:`should_stop` does, which loops call in each step, when rank 0's clock says so.

    Attributes:
        coord: a ``tf.train.Coordinator``.
        saver: of checkpoints, or None.
        save_path: what their names begin with, or None.
        summary_op: merged summaries, or None.
        summary_writer: of ``logdir``, or None.
        global_step: the variable, or None.
        is_chief: true.
    """

    USE_DEFAULT = _DEFAULT

    def __init__(
        self,
        graph: Any = None,
        ready_op: Any = _DEFAULT,
        ready_for_local_init_op: Any = _DEFAULT,
        is_chief: bool = True,
        init_op: Any = _DEFAULT,
        init_feed_dict: Any = None,
        local_init_op: Any = _DEFAULT,
        logdir: Any = None,
        summary_op: Any = _DEFAULT,
        saver: Any = _DEFAULT,
        global_step: Any = _DEFAULT,
        save_summaries_secs: float = 120,
        save_model_secs: float = 600,
        recovery_wait_secs: float = 30,
        stop_grace_secs: float = 120,
        checkpoint_basename: str = "model.ckpt",
        session_manager: Any = None,
        summary_writer: Any = _DEFAULT,
        init_fn: Any = None,
        local_init_run_options: Any = None,
    ) -> None:
        """Takes TensorFlow's arguments; those of other processes and of what is ready have no meaning.

        Args:
            graph: of a model, the current one by default.
            init_op: gives variables values where there is no checkpoint.
            init_feed_dict: what is fed to it.
            local_init_op: gives local variables values.
            logdir: the folder.
            summary_op: what is written now and then; None for nothing.
            saver: None for no checkpoints.
            global_step: of the names of checkpoints.
            save_summaries_secs: seconds between summaries; 0 for none.
            save_model_secs: seconds between checkpoints; 0 for none.
            checkpoint_basename: of the names of checkpoints.
            summary_writer: None for none.
            init_fn: is called with the session after ``init_op``.
        """
        for given in (ready_op, ready_for_local_init_op):  # else TensorFlow says that nobody used them
            getattr(given, "mark_used", lambda: None)()
        del is_chief, recovery_wait_secs, stop_grace_secs, session_manager
        del local_init_run_options
        self.graph = graph or current_model().graph
        self.is_chief, self.coord = True, tf.train.Coordinator()
        self._session: Any = None
        self._every = {"checkpoint": save_model_secs, "summary": save_summaries_secs}
        self._last: dict[str, float] = {}
        with self.graph.as_default():
            self.saver = Saver(allow_empty=True) if saver is _DEFAULT else saver
            self.save_path: Any = os.path.join(logdir, checkpoint_basename) if logdir else None
            self.summary_op = tf.compat.v1.summary.merge_all() if summary_op is _DEFAULT else summary_op
            self.global_step = tf.compat.v1.train.get_global_step() if global_step is _DEFAULT else global_step
            made = FileWriter(logdir) if logdir and summary_writer is _DEFAULT else None
            self.summary_writer: Any = made if summary_writer is _DEFAULT else summary_writer
            self._scaffold = Scaffold(
                init_op=_operation(init_op),
                init_feed_dict=init_feed_dict,
                init_fn=None if init_fn is None else lambda scaffold, session: init_fn(session),
                local_init_op=_operation(local_init_op),
                saver=self.saver,
            )
        self._folder = logdir

    @contextlib.contextmanager
    def managed_session(
        self,
        master: str = "",
        config: Any = None,
        start_standard_services: bool = True,
        close_summary_writer: bool = True,
    ) -> Iterator[Any]:
        """A session whose variables have values; the end of the data ends the block."""
        session = self.prepare_or_wait_for_session(master, config)
        try:
            with session:
                yield session
        except tf.errors.OutOfRangeError:  # TensorFlow's clean end
            pass
        finally:
            self.stop(close_summary_writer=close_summary_writer)

    def prepare_or_wait_for_session(
        self, master: str = "", config: Any = None, wait_for_checkpoint: bool = False, max_wait_secs: float = 7200,
        start_standard_services: bool = True,
    ) -> Any:  # fmt: skip
        """A session whose variables are restored or else initialized; all ranks call it together."""
        with self.graph.as_default():
            creator = ChiefSessionCreator(self._scaffold, master, config, self._folder)
            self._session = creator.create_session()
        self._last = dict.fromkeys(self._every, time.monotonic())
        return self._session

    PrepareSession = prepare_or_wait_for_session

    def start_standard_services(self, sess: Any) -> list[Any]:
        """Starts no threads: see :meth:`should_stop`."""
        return []

    def start_queue_runners(self, sess: Any, queue_runners: Any = None) -> list[Any]:
        """Starts no threads, as a model has no queues."""
        return []

    def should_stop(self) -> bool:
        """Saves and writes where that is due, then tells whether somebody asked for the end."""
        due, is_over = current_job().world.on_rank_0("Supervisor: what is due", self._due)
        step = None if self.global_step is None or not due else int(self._session.run(self.global_step))
        if "checkpoint" in due:
            self.saver.save(self._session, self.save_path, global_step=step)
        if "summary" in due:
            self.summary_writer.add_summary(self._session.run(self.summary_op), step)
        return is_over or self.coord.should_stop()

    def _due(self) -> tuple[list[str], bool]:
        """Returns the names of the actions that are due, and whether the end was asked for."""
        able = {
            "checkpoint": self.saver is not None and self.save_path is not None,
            "summary": self.summary_op is not None and self.summary_writer is not None,
        }
        now, due = time.monotonic(), []
        for what, every in self._every.items():
            if every and able[what] and self._session is not None and now - self._last[what] >= every:
                self._last[what] = now
                due.append(what)
        return due, bool(self.coord.should_stop())

    def request_stop(self, ex: Any = None) -> None:
        """Asks for the end."""
        self.coord.request_stop(ex)

    def stop(self, threads: Any = None, close_summary_writer: bool = True, ignore_live_threads: bool = False) -> None:
        """Ends."""
        self.coord.request_stop()
        if close_summary_writer and self.summary_writer is not None:
            self.summary_writer.close()

    def wait_for_stop(self) -> None:
        """Returns at once where the end was asked for.

        Raises:
            SessionError: nobody asked, and no thread could.
        """
        if not self.coord.should_stop():
            raise SessionError("Supervisor.wait_for_stop: no thread runs that could ask for the end. Leave it out.")

    def summary_computed(self, sess: Any, summary: Any, global_step: Any = None) -> None:
        """Writes a summary.

        Raises:
            SessionError: there is no writer.
        """
        if self.summary_writer is None:
            raise SessionError("Supervisor.summary_computed: there is no summary_writer. Give a logdir.")
        if global_step is None and self.global_step is not None:
            global_step = int(sess.run(self.global_step))
        self.summary_writer.add_summary(summary, global_step)


def _operation(given: Any) -> Any:
    """Returns the operation for a scaffold: None for its default, and an operation that does nothing for None."""
    if given is _DEFAULT:
        return None
    return tf.no_op() if given is None else given
