"""A device's pieces of what a checkpoint holds: TensorFlow's own format, in which a tensor may be stored in slices.

A piece is one block of the whole tensor, so it is one slice; large ones are several, since who reads a part of a slice
reads the whole slice first. Each distinct piece is written by the first device that has it.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.exec.program.executor import Executor
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.layout import Layout, Mesh

__all__ = [
    "SLICE_BYTES",
    "STATE_PREFIX",
    "Checkpointing",
    "Piece",
    "read_state",
    "set_state",
    "state_of",
    "write_tensors",
]

SLICE_BYTES = 1 << 26
"""The most that one slice of a checkpoint holds, where it can be cut."""

STATE_PREFIX = "_tensoropt/"
"""How names of tensors begin that are no variables, which TensorFlow's own Saver does not ask for."""

_SLICED = frozenset(
    ("bfloat16", "bool", "complex64", "complex128", "float32", "float64", "int16", "int32", "int64", "int8", "uint8")
)
"""The dtypes of which TensorFlow reads slices; of others it writes them, too."""
_GENERATOR = STATE_PREFIX + "generator/"
_TRAINED = STATE_PREFIX + "trained"


@dataclass(frozen=True, slots=True)
class Piece:
    """A block of a tensor of ``shape``, by its offsets and sizes."""

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def spec(self) -> str:
        """As TensorFlow writes it: ``"6 4 0,3:0,4"`` is the upper half of 6 rows; nothing for all of a tensor."""
        if self.sizes == self.shape:
            return ""
        blocks = ":".join(f"{offset},{size}" for offset, size in zip(self.offsets, self.sizes, strict=True))
        return f"{' '.join(map(str, self.shape))} {blocks}"

    def cut(self, item_bytes: int) -> Iterator[Piece]:
        """The piece in blocks of at most ``SLICE_BYTES``, along its first dimension that can be cut."""
        dim = next((index for index, size in enumerate(self.sizes) if size > 1), None)
        total = item_bytes * int(np.prod(self.sizes, dtype=np.int64))
        if dim is None or total <= SLICE_BYTES:
            yield self
            return
        rows = max(1, self.sizes[dim] * SLICE_BYTES // total)
        for start in range(0, self.sizes[dim], rows):
            offsets, sizes = list(self.offsets), list(self.sizes)
            offsets[dim] += start
            sizes[dim] = min(rows, self.sizes[dim] - start)
            yield Piece(self.shape, tuple(offsets), tuple(sizes))


def write_tensors(prefix: str, tensors: Mapping[str, np.ndarray]) -> None:
    """Writes a checkpoint of whole tensors.

    Raises:
        tf.errors.OpError: it cannot be written.
    """
    with tf.Graph().as_default() as graph:
        feeds = {tf.compat.v1.placeholder(value.dtype, value.shape): value for value in tensors.values()}
        specs = [""] * len(tensors)
        save = tf.raw_ops.SaveV2(prefix=prefix, tensor_names=list(tensors), shape_and_slices=specs, tensors=list(feeds))
    with _session(graph) as session:
        session.run(save, feeds)


def read_tensors(prefix: str, tensors: Mapping[str, tuple[str, Any]]) -> dict[str, np.ndarray]:
    """Reads blocks of tensors.

    Args:
        prefix: of a checkpoint that has them.
        tensors: for each its block (:attr:`Piece.spec`) and dtype.

    Raises:
        tf.errors.OpError: it cannot be read.
    """
    if not tensors:
        return {}
    specs, dtypes = zip(*tensors.values(), strict=True)
    with tf.Graph().as_default() as graph:
        read = tf.raw_ops.RestoreV2(prefix=prefix, tensor_names=list(tensors), shape_and_slices=specs, dtypes=dtypes)
    with _session(graph) as session:
        return dict(zip(tensors, session.run(read), strict=True))


def _session(graph: Any) -> Any:
    return tf.compat.v1.Session(graph=graph, config=tf.compat.v1.ConfigProto(device_count={"GPU": 0}))


class Checkpointing:
    """Writes and reads this device's pieces of variables."""

    def __init__(self, executor: Executor, names: Mapping[str, str]) -> None:
        """Takes variables; nothing is built yet.

        Args:
            executor: has the variables.
            names: for each name in the checkpoint, the variable's own.
        """
        self._executor = executor
        self._names = dict(sorted(names.items()))
        self._writing: tuple[Any, Any] | None = None

    @property
    def is_whole(self) -> bool:
        """True if the checkpoint has all variables of the program, hence also the other state that outlasts a step."""
        return set(self._executor.state.names) <= set(self._names.values())

    def whole(self) -> dict[str, np.ndarray]:
        """The values of variables that are stored in pieces and cannot be saved so; collective.

        TensorFlow reads slices of some dtypes only, and none without numbers.
        """
        names = [name for name, variable in self._names.items() if not self._in_slices(variable)]
        if not names:
            return {}
        return dict(zip(names, self._executor.run([TensorId(self._names[name]) for name in names]), strict=True))

    def _in_slices(self, variable: str) -> bool:
        """Tells whether devices save their pieces of a variable, or all of it."""
        return not self._layout(variable).used_axes or self._may_be_cut(variable)

    def _may_be_cut(self, variable: str) -> bool:
        spec = self._spec(variable)
        return spec.dtype in _SLICED and 0 not in spec.shape

    @property
    def writers(self) -> list[int]:
        """The ranks that have anything to write, ascending: of each piece the first that has it."""
        executor = self._executor
        layouts = {self._layout(variable) for variable in self._names.values() if self._in_slices(variable)}
        mesh = executor.plan.mesh
        return [rank for rank in range(mesh.size) if any(_is_first(layout, mesh, rank) for layout in layouts)]

    def _layout(self, variable: str) -> Layout:
        return self._executor.layout_of(TensorId(variable))

    def _piece(self, variable: str) -> Piece:
        layout, mesh, rank = self._layout(variable), self._executor.plan.mesh, self._executor.state.engine.rank
        shape = self._spec(variable).shape
        return Piece(shape, layout.offsets(shape, mesh, rank), layout.local_shape(shape, mesh))

    def _spec(self, variable: str) -> TensorSpec:
        return self._executor.graph[variable].outputs[0]

    def write(self, prefix: str) -> None:
        """Writes what this device, which is one of the writers, has to write: a part of a checkpoint.

        Raises:
            tf.errors.OpError: it cannot be written.
        """
        if self._writing is None:
            with self._executor.state.tf_graph.as_default(), tf.name_scope("save"):
                self._writing = self._build_write()
        path, save = self._writing
        self._executor.state.session.run(save, {path: prefix})

    def _build_write(self) -> tuple[Any, Any]:
        names, specs, tensors = [], [], []
        mesh, rank = self._executor.plan.mesh, self._executor.state.engine.rank
        path = tf.compat.v1.placeholder(tf.string, [])
        with tf.control_dependencies(None), tf.device("/CPU:0"):
            for name, variable in self._names.items():
                if not _is_first(self._layout(variable), mesh, rank) or not self._in_slices(variable):
                    continue
                value = self._executor.state.variables[variable].read_value()
                whole = self._piece(variable)
                slices = list(whole.cut(value.dtype.size)) if self._may_be_cut(variable) else [whole]
                for piece in slices:
                    begin = [offset - start for offset, start in zip(piece.offsets, whole.offsets, strict=True)]
                    names.append(name)
                    specs.append(piece.spec)
                    tensors.append(value if len(slices) == 1 else tf.slice(value, begin, piece.sizes))
            save = tf.raw_ops.SaveV2(prefix=path, tensor_names=names, shape_and_slices=specs, tensors=tensors)
        return path, save

    def read(self, prefix: str, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """This device's pieces, by the variables' own names; nothing is set yet.

        Args:
            prefix: of a checkpoint that has all the names, in the variables' dtypes.
            shapes: of each there. Where it is another one than the variable's, the whole is read, as is what TensorFlow
                does not read in slices.

        Raises:
            tf.errors.OpError: it cannot be read.
        """
        kept = {
            name: shapes[name] == self._spec(variable).shape and self._may_be_cut(variable)
            for name, variable in self._names.items()
        }
        wanted = {
            name: (self._piece(variable).spec if kept[name] else "", self._spec(variable).dtype)
            for name, variable in self._names.items()
        }
        result = {}
        for name, value in read_tensors(prefix, wanted).items():
            variable = self._names[name]
            if not kept[name]:
                piece = self._piece(variable)
                block = (slice(o, o + size) for o, size in zip(piece.offsets, piece.sizes, strict=True))
                value = np.array(np.reshape(value, piece.shape)[tuple(block)])
            result[variable] = value
        return result


def _is_first(layout: Layout, mesh: Mesh, rank: int) -> bool:
    """Tells whether a device is the first of those with its piece of a tensor."""
    used, coordinates = layout.used_axes, mesh.coordinates(rank)
    return layout.holds(mesh, rank) and all(axis in used or place == 0 for axis, place in enumerate(coordinates))


def state_of(executor: Executor) -> dict[str, np.ndarray]:
    """Returns the state that outlasts a step besides variables: random generators, and the number of training steps.

    This state is equal on all devices.
    """
    states = {_GENERATOR + name: state for name, state in executor.state.states.items()}
    return states | {_TRAINED: np.int64(executor.state.trained)}


def read_state(prefix: str, names: Collection[str]) -> dict[str, np.ndarray]:
    """Reads the state of :func:`state_of` from a checkpoint, as far as the checkpoint has it.

    Args:
        prefix: of the checkpoint.
        names: of all its tensors.

    Raises:
        tf.errors.OpError: the checkpoint cannot be read.
    """
    wanted = [name for name in sorted(names) if name == _TRAINED or name.startswith(_GENERATOR)]
    return read_tensors(prefix, {name: ("", "int64") for name in wanted})


def set_state(executor: Executor, state: Mapping[str, np.ndarray]) -> None:
    """Goes on from a state, where it says from where."""
    executor.state.trained = int(state.get(_TRAINED, executor.state.trained))
    generators = {name: value for name, value in state.items() if name.startswith(_GENERATOR)}
    executor.state.set_states({name.removeprefix(_GENERATOR): value for name, value in generators.items()})
