"""Readers of files that ``string_input_producer`` names, which are datasets here."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from tensoropt.api.mirror.model import current_model
from tensoropt.api.mirror.producers import Queue, produced
from tensoropt.api.mirror.random_counters import counted_as
from tensoropt.errors import GraphError

__all__ = [
    "FixedLengthRecordReader",
    "IdentityReader",
    "ReaderBase",
    "TFRecordReader",
    "TextLineReader",
    "WholeFileReader",
]


class ReaderBase:
    """Reads records one after another."""

    def __init__(self, name: str | None = None) -> None:
        """Takes a name, without effect."""

    def _records(self, file: Any) -> Any:
        """The records of one file."""
        raise NotImplementedError

    def read(self, queue: Queue, name: str | None = None) -> tuple[Any, Any]:
        """The key and the value of the next record: the name of the file with a number, and what the record has.

        Args:
            queue: of ``string_input_producer``.
            name: without effect.

        Raises:
            GraphError: for another queue.
        """
        del name
        if not isinstance(queue, Queue):
            raise GraphError(
                f"{type(self).__name__}.read: needs the queue of string_input_producer. Got {type(queue).__name__}."
            )
        with current_model().enter(), counted_as(0):
            key, value = produced(queue.take().flat_map(self._keyed))
            return key, value

    def _keyed(self, file: Any) -> Any:
        records = self._records(file).enumerate()
        return records.map(lambda number, value: (tf.strings.join([file, ":", tf.as_string(number)]), value))


class IdentityReader(ReaderBase):
    """``tf.IdentityReader``: what is in the queue."""

    def _keyed(self, file: Any) -> Any:
        return tf.data.Dataset.from_tensors((file, file))


class WholeFileReader(ReaderBase):
    """``tf.WholeFileReader``: a file is one record."""

    def _keyed(self, file: Any) -> Any:
        return tf.data.Dataset.from_tensors((file, tf.io.read_file(file)))


class TextLineReader(ReaderBase):
    """``tf.TextLineReader``: a line is a record."""

    def __init__(self, skip_header_lines: int | None = None, name: str | None = None) -> None:
        """Takes how many lines each file begins with that are no records."""
        self._skipped = skip_header_lines or 0

    def _records(self, file: Any) -> Any:
        return tf.data.TextLineDataset(file).skip(self._skipped)


class TFRecordReader(ReaderBase):
    """``tf.TFRecordReader``."""

    def __init__(self, name: str | None = None, options: Any = None) -> None:
        """Takes ``TFRecordOptions``, or the name of a compression."""
        kind = getattr(options, "compression_type", options)
        self._compression = {0: "", 1: "ZLIB", 2: "GZIP", None: ""}.get(kind, kind)

    def _records(self, file: Any) -> Any:
        return tf.data.TFRecordDataset(file, self._compression)


class FixedLengthRecordReader(ReaderBase):
    """``tf.FixedLengthRecordReader``: so many bytes are a record."""

    def __init__(
        self,
        record_bytes: int,
        header_bytes: int | None = None,
        footer_bytes: int | None = None,
        hop_bytes: int | None = None,
        name: str | None = None,
        encoding: str | None = None,
    ) -> None:
        """Takes the bytes of a record, and of what each file begins and ends with.

        Raises:
            GraphError: records overlap, or are encoded.
        """
        if hop_bytes or encoding:
            raise GraphError("FixedLengthRecordReader: hop_bytes and encoding are not supported. Leave them out.")
        self._bytes = record_bytes, header_bytes, footer_bytes

    def _records(self, file: Any) -> Any:
        return tf.data.FixedLengthRecordDataset(file, *self._bytes)
