"""Writers of summaries, of which a job has one: that of rank 0, as what is fetched is the same on all ranks."""

from __future__ import annotations

import threading
from typing import Any, ClassVar

import tensorflow as tf

from tensoropt.api.mirror.model import current_model
from tensoropt.api.session.job import current_job
from tensoropt.errors import SessionError

__all__ = ["FileWriter", "FileWriterCache"]


class _Events:
    """Writes events to a file on rank 0, and drops them on others. Before ``init``, ranks are unknown, and it waits."""

    def __init__(self, logdir: str, **arguments: Any) -> None:
        self._logdir = logdir
        self._arguments = arguments
        self._waiting: list[Any] = []
        self._file: Any = None

    def get_logdir(self) -> str:
        return self._logdir

    def add_event(self, event: Any) -> None:
        self._waiting.append(event)
        if current_job().world.comm is not None:
            self._write()

    def flush(self) -> None:
        self._write()
        if self._file is not None:
            self._file.flush()

    def close(self) -> None:
        self._write()
        if self._file is not None:
            self._file.close()

    def reopen(self) -> None:
        if self._file is not None:
            self._file.reopen()

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        if current_job().world.rank != 0:
            return
        if self._file is None:
            with tf.Graph().as_default():  # it cannot be made in eager mode
                self._file = tf.compat.v1.summary.FileWriter(self._logdir, **self._arguments)
        for event in waiting:
            self._file.add_event(event)


class FileWriter(tf.compat.v1.summary.FileWriter):
    """``tf.compat.v1.summary.FileWriter`` that writes on rank 0 only; its file begins with the first event."""

    def __init__(
        self,
        logdir: str,
        graph: Any = None,
        max_queue: int = 10,
        flush_secs: float = 120,
        graph_def: Any = None,
        filename_suffix: str | None = None,
        session: Any = None,
    ) -> None:
        """Takes TensorFlow's arguments.

        Raises:
            SessionError: for a session, by which TensorFlow would write by operations of the graph.
        """
        if session is not None:
            raise SessionError(
                "FileWriter: session= makes it write by operations of the graph, which every rank runs. Leave it out, "
                "and give what is fetched of a summary to add_summary."
            )
        events = _Events(logdir, max_queue=max_queue, flush_secs=flush_secs, filename_suffix=filename_suffix)
        # What turns summaries into events is the class above TensorFlow's writer, which opens a file at once.
        self._closed = False
        super(tf.compat.v1.summary.FileWriter, self).__init__(events, graph, graph_def)


class FileWriterCache:
    """``tf.compat.v1.summary.FileWriterCache``: one writer per folder."""

    _cache: ClassVar[dict[str, FileWriter]] = {}
    _lock = threading.RLock()

    @staticmethod
    def clear() -> None:
        """Closes all writers, and forgets them."""
        with FileWriterCache._lock:
            for writer in FileWriterCache._cache.values():
                writer.close()
            FileWriterCache._cache.clear()

    @staticmethod
    def get(logdir: str) -> FileWriter:
        """The writer of a folder."""
        with FileWriterCache._lock:
            if logdir not in FileWriterCache._cache:
                FileWriterCache._cache[logdir] = FileWriter(logdir, graph=current_model().graph)
            return FileWriterCache._cache[logdir]
