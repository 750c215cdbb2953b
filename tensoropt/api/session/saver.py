"""Checkpoints: ``tf.compat.v1.train.Saver`` for a job, in TensorFlow's own format."""

from __future__ import annotations

import logging
import os
import socket
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.core.protobuf import saver_pb2

from tensoropt.api.mirror.model import Model, current_model
from tensoropt.api.session import checkpoint_files as files
from tensoropt.api.session.job import Job, current_job
from tensoropt.api.session.meta_graph import MetaGraphs
from tensoropt.api.session.runs import run, turn
from tensoropt.api.session.tf1_session import Session
from tensoropt.errors import CheckpointError, did_you_mean
from tensoropt.exec.program.checkpoint import (
    STATE_PREFIX,
    Checkpointing,
    read_state,
    set_state,
    state_of,
    write_tensors,
)
from tensoropt.exec.program.executor import Executor
from tensoropt.stages import working

__all__ = ["Saver"]

_log = logging.getLogger("tensoropt")
_SHOWN = 5
_BESIDE = "beside"  # the part of a checkpoint that has what is not in pieces


class Saver:
    """Saves variables, and restores them, as ``tf.compat.v1.train.Saver`` does; all ranks together.

    Each rank writes the pieces that it has, and reads those that it needs, so the folder must be one that all ranks
    share. What is saved does not depend on the plan or on the number of ranks: another job may restore it, and so may
    plain TensorFlow. A saver of all variables also saves where random operators go on, which TensorFlow leaves out.
    """

    def __init__(
        self,
        var_list: Any = None,
        reshape: bool = False,
        sharded: bool = False,
        max_to_keep: int | None = 5,
        keep_checkpoint_every_n_hours: float = 10000.0,
        name: str | None = None,
        restore_sequentially: bool = False,
        saver_def: Any = None,
        builder: Any = None,
        defer_build: bool = False,
        allow_empty: bool = False,
        write_version: int = saver_pb2.SaverDef.V2,
        pad_step_number: bool = False,
        save_relative_paths: bool = False,
        filename: str | None = None,
    ) -> None:
        """Takes ``tf.compat.v1.train.Saver``'s arguments.

        Args:
            var_list: variables, or variables by the names that they have in checkpoints; by default all global ones
                that there are by now.
            reshape: whether a variable may be restored from a shape of as many elements; each rank then reads the
                whole of it, one after the other.
            sharded: has no meaning: the ranks that write have a file each, always.
            max_to_keep: so many checkpoints are kept; all of them if it is 0 or None.
            keep_checkpoint_every_n_hours: of those that would go, one for so many hours is kept.
            name: has no meaning: no operations are made.
            restore_sequentially: has no meaning.
            saver_def: a ``SaverDef``, whose numbers count instead of the arguments.
            builder: must be left out.
            defer_build: whether variables are taken by ``build`` instead of now.
            allow_empty: whether there may be none; then ``save`` and ``restore`` do nothing.
            write_version: must be V2.
            pad_step_number: whether steps have eight digits in names.
            save_relative_paths: whether the state file has the paths of checkpoints relative to its folder.
            filename: has no meaning: ``save`` and ``restore`` take a path.

        Raises:
            ValueError: there are no variables, two have one name, or the format is another one.
            TypeError: what is given is no variable.
        """
        if builder is not None:
            raise ValueError("Saver: a builder makes operations of its own, which ranks would not share. Leave it out.")
        if saver_def is not None:
            max_to_keep, write_version = saver_def.max_to_keep, saver_def.version
            keep_checkpoint_every_n_hours = saver_def.keep_checkpoint_every_n_hours
        if write_version != saver_pb2.SaverDef.V2:
            raise ValueError(f"Saver: checkpoints are written in version 2, got write_version={write_version}.")
        self._var_list = var_list
        self._reshape = reshape
        self._max_to_keep = max_to_keep or 0
        self._keep_s = keep_checkpoint_every_n_hours * 3600
        self._next_kept = time.time() + self._keep_s
        self._allow_empty = allow_empty
        self._pad = pad_step_number
        self._relative = save_relative_paths
        self._model: Model | None = None
        self._variables: dict[str, Any] | None = None
        self._last: list[tuple[str, float]] = []
        self._leaving: list[tuple[str, float]] = []
        self._saved: set[str] = set()
        self._checkpointing: tuple[weakref.ref[Executor], Checkpointing] | None = None
        self._meta_graphs: MetaGraphs | None = None
        if not defer_build:
            self.build()

    # -------------------------------------------------------------------------------------------------- variables

    def build(self) -> None:
        """Takes the variables, which ``defer_build`` put off.

        Raises:
            ValueError: there are none, or two have one name.
            TypeError: what was given is no variable.
        """
        if self._variables is not None:
            return
        self._model = current_model()
        with self._model.enter():
            given = self._var_list
            if given is None:
                given = [*tf.compat.v1.global_variables(), *tf.compat.v1.get_collection("saveable_objects")]
        self._variables = _by_name(given)
        if not self._variables and not self._allow_empty:
            raise ValueError("No variables to save. Make the saver after the variables, or with allow_empty=True.")

    def _named(self) -> dict[str, Any]:
        if self._variables is None:
            raise RuntimeError("`build()` should be called before save if defer_build==True")
        return self._variables

    def _pieces(self, what: str, executor: Executor) -> Checkpointing:
        """This rank's pieces of the variables.

        Raises:
            CheckpointError: a variable is none of the execution graph's.
        """
        if self._checkpointing is not None and self._checkpointing[0]() is executor:
            return self._checkpointing[1]
        names = {name: variable.op.name for name, variable in self._named().items()}
        unknown = [name for name in names.values() if name not in executor.state.names]
        model = current_job().model
        if unknown or (model is not None and self._model is not model):
            raise CheckpointError(
                f"{what}: {_written(unknown or names.values())} must be of the model that build_execution_graph built, "
                "with the variables that it had when it was planned. Make variables before find_strategy, or leave "
                "them out with Saver(var_list=…)."
            )
        made = Checkpointing(executor, names)
        self._checkpointing = weakref.ref(executor), made
        return made

    # ----------------------------------------------------------------------------------------------------- saving

    def save(
        self,
        sess: Any,
        save_path: str,
        global_step: Any = None,
        latest_filename: str | None = None,
        meta_graph_suffix: str = "meta",
        write_meta_graph: bool = True,
        write_state: bool = True,
        strip_default_attrs: bool = False,
        save_debug_info: bool = False,
    ) -> str | None:
        """Saves the variables; all ranks call it together.

        A checkpoint is written whole or not at all: until all of it is on the disk, the one before it is the last one.

        Args:
            sess: a ``tensoropt.Session``, or None.
            save_path: how the checkpoint's files begin; rank 0's counts.
            global_step: a number that is appended to it, or a variable that has it.
            latest_filename: of the file that has the names of the last checkpoints.
            meta_graph_suffix: of the file of the graph.
            write_meta_graph: whether to write the graph too.
            write_state: whether to write that file, and to keep no more checkpoints than ``max_to_keep``.
            strip_default_attrs: of the graph.
            save_debug_info: must be left out.

        Returns:
            The checkpoint's path, for :meth:`restore`; None if there are no variables.

        Raises:
            CheckpointError: it cannot be written, on all ranks alike; the files are then as they were.
            CollectiveError: on the other ranks, or if ranks save something else.
        """
        job = current_job()
        with turn(job, "Saver.save"):
            save_path = _path_of_rank_0(job, save_path)
            # As text, since ranks compare what they are about to do.
            with job.world.step(f"Saver.save to '{save_path}' (latest_filename={latest_filename!r})"):
                executor = job.require_executor("Saver.save")
                _check_session(sess)
                state_file = _checked_state_file(latest_filename, save_path)
                if save_debug_info:
                    raise ValueError("Saver.save: debug information of the graph is not saved. Leave it out.")
                pieces = self._pieces("Saver.save", executor) if self._named() else None
        if global_step is not None and not isinstance(global_step, int | np.integer):
            global_step = int(run(job, global_step, None))
        path = os.fspath(save_path)
        if global_step is not None:
            path += f"-{int(global_step):08d}" if self._pad else f"-{int(global_step)}"
        with turn(job, "Saver.save"):
            if pieces is not None:
                job.world.agree(f"variables of Saver.save to '{path}'", repr(sorted(self._named())))
                # What goes on is then to the last bit what is restored: copies, of which one is saved.
                if job.world.size > 1:
                    executor.state.level()
                self._write(job, executor, pieces, path, os.fspath(save_path))
                if write_state:
                    self._record(job, path, state_file, meta_graph_suffix)
            if write_meta_graph:
                job.world.on_rank_0(
                    f"writing the graph of '{path}'",
                    lambda: self._graphs().write(f"{path}.{meta_graph_suffix}", strip_default_attrs),
                )
        return None if pieces is None else path

    def _write(self, job: Job, executor: Executor, pieces: Checkpointing, path: str, save_path: str) -> None:
        what = f"Saver.save to '{path}'"
        host = socket.gethostname()
        whole = pieces.whole()
        folder, first = job.world.on_rank_0(what, lambda: (files.begin(path, save_path), host))
        try:
            with job.world.step(what):
                if not files.is_visible(folder):
                    raise CheckpointError(
                        f"{what}: rank {job.world.rank} (on {host}) does not see '{folder}', which rank 0 (on {first}) "
                        "has made. Every rank writes its own pieces: save to a folder that all hosts share."
                    )
                try:
                    if job.world.rank in pieces.writers:
                        pieces.write(files.part_of(folder, job.world.rank))
                        files.keep_through_power_loss(files.part_of(folder, job.world.rank))
                    if job.world.rank == 0 and (whole or pieces.is_whole):
                        state = state_of(executor) if pieces.is_whole else {}
                        write_tensors(os.path.join(folder, _BESIDE), {**whole, **state})
                except (tf.errors.OpError, OSError) as error:
                    raise self._cannot_write(path, error) from error
            job.world.on_rank_0(what, lambda: self._publish(folder, pieces, path, bool(whole) or pieces.is_whole))
        except BaseException:
            if job.world.rank == 0:
                try:
                    files.discard(folder)
                except (tf.errors.OpError, OSError) as error:
                    _log.warning("'%s' is left behind: %s", folder, getattr(error, "message", None) or error)
            raise

    def _publish(self, folder: str, pieces: Checkpointing, path: str, has_beside: bool) -> None:
        parts = [files.part_of(folder, rank) for rank in pieces.writers]
        unseen = [
            rank for rank, part in zip(pieces.writers, parts, strict=True) if not files.is_visible(f"{part}.index")
        ]
        if unseen:
            raise CheckpointError(
                f"Saver.save to '{path}': rank 0 (on {socket.gethostname()}) does not see what rank {unseen[0]} has "
                f"written to '{folder}' ({len(unseen)} of {len(parts)} ranks). Save to a folder on a file system that "
                "all hosts share."
            )
        try:
            files.publish(folder, [*parts, *([os.path.join(folder, _BESIDE)] if has_beside else [])], path)
        except (tf.errors.OpError, OSError) as error:
            raise self._cannot_write(path, error) from error

    def _cannot_write(self, path: str, error: Exception) -> CheckpointError:
        said = getattr(error, "message", None) or str(error)
        return CheckpointError(
            f"Saver.save: '{path}' cannot be written: {said}. {_last_good(path, self.last_checkpoints)} Make room, or "
            "save elsewhere."
        )

    def _record(self, job: Job, path: str, state_file: str, meta_graph_suffix: str) -> None:
        """Names the checkpoint the last one, and then removes those that are too many."""
        last, leaving = list(self._last), list(self._leaving)
        if self._max_to_keep:
            last = [item for item in last if item[0] != path] + [(path, time.time())]
            if len(last) > self._max_to_keep:
                leaving.append(last.pop(0))

        state = os.path.join(os.path.dirname(path), state_file)

        def write() -> None:
            try:
                files.name_last(state, path, [name for name, _ in last], self._relative)
            except (tf.errors.OpError, OSError) as error:
                raise self._cannot_write(state, error) from error

        job.world.on_rank_0(f"naming '{path}' the last checkpoint", write)
        self._last, self._leaving = last, leaving
        self._saved.add(path)
        if self._leaving:
            name, saved = self._leaving.pop(0)
            if saved > self._next_kept:
                self._next_kept += self._keep_s
            elif job.world.rank == 0:
                # What was not saved here was read from a file, in which others may have named anything.
                if name in self._saved or _folder_of(name) == _folder_of(path):
                    _remove(name, meta_graph_suffix)
                else:
                    _log.warning("the old checkpoint '%s' stays: it is not in the folder of '%s'", name, path)

    # -------------------------------------------------------------------------------------------------- restoring

    def restore(self, sess: Any, save_path: str | None) -> None:
        """Gives variables what a checkpoint has for them; all ranks call it together.

        Either all of them get it on all ranks, or none does.

        Args:
            sess: a ``tensoropt.Session``, or None. With one of a graph beside the job's model each rank restores by
                itself.
            save_path: of a checkpoint: what :meth:`save` or ``latest_checkpoint`` returned, or one of plain TensorFlow.

        Raises:
            CheckpointError: it cannot be read, or has not what the variables need.
            CollectiveError: on ranks where it can be read, if there are others; or if ranks restore something else.
        """
        job = current_job()
        apart = sess.apart if isinstance(sess, Session) else None
        if apart is not None:  # of this rank alone
            with apart.session.graph.as_default():
                tf.compat.v1.train.Saver(self._named(), reshape=self._reshape).restore(apart.session, save_path)
            return
        with turn(job, "Saver.restore"):
            what = f"Saver.restore from '{save_path}'"
            with job.world.step(what):
                executor = job.require_executor("Saver.restore")
                _check_session(sess)
                if save_path is None:
                    raise ValueError("Can't load save_path when it is None.")
                path = os.fspath(save_path)
                if not self._named():
                    return
                pieces = self._pieces("Saver.restore", executor)
                read, state = self._read(job, executor, pieces, path)
            with working(what):
                executor.state.set_pieces(read)
                set_state(executor, state)
        if pieces.is_whole and executor.state.unsaved_generators and job.world.rank == 0:
            begun = ", ".join(map(str, executor.state.unsaved_generators[:_SHOWN]))
            _log.warning(
                "%s: TensorFlow keeps the state of %s to itself, so these begin their random numbers anew", what, begun
            )

    def _read(
        self, job: Job, executor: Executor, pieces: Checkpointing, path: str
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        what = f"Saver.restore: '{path}'"
        if not files.exists(path):
            raise CheckpointError(
                f"{what} is not a valid checkpoint: there are no files that begin so on {socket.gethostname()} (rank "
                f"{job.world.rank}). Give what save or latest_checkpoint returned, on a file system that all hosts "
                "share."
            )
        damage = files.damage(path)
        if damage:
            raise CheckpointError(f"{what} is damaged: {damage}. {_last_good(path, self.last_checkpoints)}")
        try:
            reader = tf.compat.v1.train.NewCheckpointReader(path)
            shapes = {name: tuple(shape) for name, shape in reader.get_variable_to_shape_map().items()}
            self._check(what, executor, shapes, reader.get_variable_to_dtype_map())
            read = pieces.read(path, shapes)
            return read, read_state(path, shapes) if pieces.is_whole else {}
        except tf.errors.OpError as error:
            raise CheckpointError(
                f"{what} cannot be read: {error.message}. {_last_good(path, self.last_checkpoints)}"
            ) from error

    def _check(
        self, what: str, executor: Executor, shapes: Mapping[str, tuple[int, ...]], dtypes: Mapping[str, Any]
    ) -> None:
        """Compares what a checkpoint has with the variables."""
        missing = [name for name in self._named() if name not in shapes]
        if missing:
            theirs = [name for name in shapes if not name.startswith(STATE_PREFIX) and name not in self._named()]
            hint = did_you_mean(missing[0], theirs) or (f" It has {_written(sorted(theirs))}, too." if theirs else "")
            raise CheckpointError(
                f"{what} has no {_written(missing)}.{hint} Give the variables that it has, Saver(var_list=[…]), or "
                "their names in it, Saver(var_list={'name in the checkpoint': variable})."
            )
        for name, variable in self._named().items():
            op = executor.graph[variable.op.name]
            spec = op.outputs[0]
            fits = int(np.prod(shapes[name])) == spec.elements if self._reshape else shapes[name] == spec.shape
            if not fits or dtypes[name].name != spec.dtype:
                remedy = "" if fits or self._reshape else ", or reshape=True where the elements are as many"
                raise CheckpointError(
                    f"{what} has '{name}' as {dtypes[name].name}{list(shapes[name])}, which {op} cannot take: it is "
                    f"{spec}. Leave it out with Saver(var_list=[…]){remedy}."
                )

    # ------------------------------------------------------------------------------------------------ checkpoints

    @property
    def last_checkpoints(self) -> list[str]:
        """The paths of checkpoints that are kept, from the oldest to the newest."""
        return [path for path, _ in self._last]

    def set_last_checkpoints(self, last_checkpoints: Sequence[str]) -> None:
        """Takes the paths of checkpoints that count for ``max_to_keep``, as if saved now."""
        self._last = [(path, np.inf) for path in last_checkpoints]

    def set_last_checkpoints_with_time(self, last_checkpoints_with_time: Sequence[tuple[str, float]]) -> None:
        """Takes paths of checkpoints with the seconds, since 1970, when they were saved."""
        self._last = list(last_checkpoints_with_time)

    def recover_last_checkpoints(self, checkpoint_paths: Sequence[str]) -> None:
        """Takes those of an earlier job that still exist, from the oldest to the newest."""
        there = [path for path in checkpoint_paths if files.exists(path)]
        self.set_last_checkpoints_with_time([(path, files.saved_at(path)) for path in there])

    # ------------------------------------------------------------------------------------------------------ graphs

    def _graphs(self) -> MetaGraphs:
        if self._meta_graphs is None:
            names = {name: variable.name for name, variable in self._named().items()}
            model = self._model or current_model()
            self._meta_graphs = MetaGraphs(model, names, self._max_to_keep, self._keep_s / 3600)
        return self._meta_graphs

    def export_meta_graph(self, filename: str | None = None, *args: Any, **kwargs: Any) -> Any:
        """The graph, as plain TensorFlow imports it, with a saver of its own; see ``tf.compat.v1.train.Saver``."""
        return self._graphs().export(filename, *args, **kwargs)

    def as_saver_def(self) -> Any:
        """The ``SaverDef`` of the saver that the exported graph has."""
        return self._graphs().export().saver_def

    def to_proto(self, export_scope: str | None = None) -> Any:
        """The ``SaverDef`` of the saver that the exported graph has."""
        return self.as_saver_def()


def _by_name(given: Any) -> dict[str, Any]:
    """Variables by their names in checkpoints.

    Raises:
        ValueError: two have one name.
        TypeError: one is no variable, or they come as what has no order of its own.
    """
    if isinstance(given, Mapping):
        pairs = [(str(name), variable) for name, variable in given.items()]
    elif isinstance(given, Iterable) and not isinstance(given, str | tf.Variable):
        pairs = [(getattr(getattr(variable, "op", None), "name", ""), variable) for variable in given]
    else:
        raise TypeError(f"Saver: var_list must be variables in a list or a dict, got {given!r}.")
    for name, variable in pairs:
        if not isinstance(variable, tf.Variable) or not hasattr(variable, "handle"):
            raise TypeError(f"Saver: variables to save must be whole resource variables, got {variable!r} ({name!r}).")
    names = [name for name, _ in pairs]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise ValueError(f"At least two variables have the same name: {twice[0]}")
    return dict(pairs)


def _path_of_rank_0(job: Job, path: Any) -> str:
    """The path that all ranks save to; scripts make folders that are named by the time."""
    chosen = job.world.on_rank_0("the path of Saver.save", lambda: os.fspath(path))
    if chosen != str(path):
        _log.warning(
            "Saver.save: rank %d was given '%s', and rank 0 '%s', which all save to", job.world.rank, path, chosen
        )
    return chosen


def _check_session(sess: Any) -> None:
    if isinstance(sess, tf.compat.v1.Session) or not (sess is None or hasattr(sess, "run")):
        raise TypeError(f"Saver: 'sess' must be a tensoropt.Session, or None, got {sess!r}.")


def _checked_state_file(latest_filename: str | None, save_path: Any) -> str:
    name = "checkpoint" if latest_filename is None else latest_filename
    if os.path.split(name)[0]:
        raise ValueError(f"Saver.save: 'latest_filename' must not contain path components, got {name!r}.")
    if os.path.basename(os.fspath(save_path)) == name:
        raise ValueError(f"Saver.save: 'latest_filename' collides with 'save_path': '{name}' and '{save_path}'.")
    return name


def _last_good(path: str, known: Sequence[str]) -> str:
    """Returns which other checkpoint may be restored, in words."""
    folder = os.path.dirname(path)
    state = tf.compat.v1.train.get_checkpoint_state(folder) if tf.io.gfile.isdir(folder or ".") else None
    listed = [] if state is None else list(state.all_model_checkpoint_paths)
    for other in dict.fromkeys(reversed([*listed, *known])):
        if other != path and files.exists(other) and not files.damage(other):
            return f"The last good checkpoint is '{other}'."
    return "There is no other checkpoint in its folder that is known to be good."


def _folder_of(path: str) -> str:
    return os.path.realpath(os.path.dirname(path))


def _remove(path: str, meta_graph_suffix: str) -> None:
    try:
        files.remove(path, meta_graph_suffix)
    except (tf.errors.OpError, OSError) as error:
        _log.warning("the old checkpoint '%s' cannot be removed: %s", path, error)


def _written(names: Iterable[str]) -> str:
    """Some names of variables, and how many more there are."""
    listed = [f"'{name}'" for name in names]
    more = f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    return f"variable{'s' * (len(listed) > 1)} {', '.join(listed[:_SHOWN])}{more}"
