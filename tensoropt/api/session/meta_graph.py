"""The model's graph as a file that plain TensorFlow imports, with TensorFlow's own saver in it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from tensoropt.api.frontend.meta_graphs import exported
from tensoropt.api.mirror.model import Model
from tensoropt.api.session.checkpoint_files import write_file
from tensoropt.errors import CheckpointError
from tensoropt.graph.registry import traits

__all__ = ["MetaGraphs"]


class MetaGraphs:
    """Exports a model's graph; a graph that has not changed is copied once."""

    def __init__(self, model: Model, names: Mapping[str, str], max_to_keep: int, keep_hours: float) -> None:
        """Takes a model and what its saver saves: for each name in checkpoints the variable's own."""
        self._model = model
        self._names = dict(names)
        self._options = {"max_to_keep": max_to_keep, "keep_checkpoint_every_n_hours": keep_hours}
        self._copy: tuple[int, Any, Any] | None = None
        self._written: dict[bool, tuple[int, bytes]] = {}

    def _copied(self) -> tuple[Any, Any]:
        """A copy of the graph, and the saver in it."""
        version = self._model.graph.version
        if self._copy is None or self._copy[0] != version:
            # The private graph gets no saver: each rank would write the whole of every variable.
            meta = exported(self._model.graph)
            with tf.Graph().as_default() as graph:
                tf.compat.v1.train.import_meta_graph(meta)
                # Not by their collection, which TensorFlow leaves out if it cannot write one of its members.
                chosen = {name: _read_of(graph.get_tensor_by_name(own)) for name, own in self._names.items()}
                saver = tf.compat.v1.train.Saver(chosen, allow_empty=True, **self._options)
            self._copy = version, graph, saver
        return self._copy[1], self._copy[2]

    def export(self, filename: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """``tf.compat.v1.train.Saver.export_meta_graph``."""
        graph, saver = self._copied()
        with graph.as_default():
            return saver.export_meta_graph(filename, *args, **kwargs)

    def write(self, filename: str, strip_default_attrs: bool) -> None:
        """Writes the graph to a file, whole or not at all.

        Raises:
            CheckpointError: it cannot be written, or holds constants of more than 2 GB.
        """
        known = self._written.get(strip_default_attrs)
        try:
            if known is None or known[0] != self._model.graph.version:
                meta = self.export(strip_default_attrs=strip_default_attrs)
                known = self._written[strip_default_attrs] = self._model.graph.version, meta.SerializeToString()
            write_file(filename, known[1])
        except (tf.errors.OpError, OSError, ValueError) as error:
            raise CheckpointError(
                f"Saver.save: the checkpoint is saved, but its graph cannot be written to '{filename}': {error}. Leave "
                "it out with write_meta_graph=False."
            ) from error


def _read_of(handle: Any) -> Any:
    """The tensor by which a saver knows a variable: the first read of it, which its creation makes."""
    return next(op for op in handle.consumers() if traits(op).reads_variable).outputs[0]
