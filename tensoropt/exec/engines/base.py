"""The interface that every collectives engine fills, and what is the same in all of them."""

from __future__ import annotations

import abc
import contextlib
import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import tensorflow as tf

from tensoropt.errors import CollectiveError, EngineError
from tensoropt.exec.engines.process_group import Group

__all__ = ["CollectiveEngine", "Program"]

# Graph collections of lines, which a MetaGraph can carry: of each collective what it is, and the ranks that take part.
_EMITTED, _MEMBERS = "tensoropt_collectives", "tensoropt_members"

_FLOATS = (tf.float16, tf.bfloat16, tf.float32, tf.float64)
_INTEGERS = (tf.int8, tf.int16, tf.int32, tf.int64, tf.uint8, tf.uint16, tf.uint32, tf.uint64)
_COMPLEX = (tf.complex64, tf.complex128)
_MOVED = (*_FLOATS, *_INTEGERS, tf.bool, *_COMPLEX)
_REDUCED = {
    "sum": (*_FLOATS, *_INTEGERS, *_COMPLEX),
    "max": (*_FLOATS, *_INTEGERS, tf.bool),
    "min": (*_FLOATS, *_INTEGERS, tf.bool),
}


@dataclass(slots=True)
class Program:
    """A chain of collectives that one ``Session.run`` executes in the order of their emission.

    Attributes:
        number: Counts the programs of an engine, in the order of their making.
        graph: The TensorFlow graph that the chain lives in, known from its first collective on.
        last: The collective emitted last, after which the next one is chained.
        names: Of the operations that are its collectives.
    """

    number: int
    graph: tf.Graph | None = None
    last: tf.Operation | None = None
    names: set[str] = field(default_factory=set)


class CollectiveEngine(abc.ABC):
    """Emits collectives into a TensorFlow v1 graph.

    Every rank builds its own graph with the same collectives in the same order. Members of a group are the
    ranks that differ only along the mesh axes of the group, row-major in the order in which the axes are
    given.

    MPI has no means of telling two collectives apart but their order, and TensorFlow runs independent ops in
    any order. Therefore each collective of a program is chained after the one before by a control dependency:
    all ranks run them in the order of emission. Programs are not chained with each other, so that only one of
    them may be run in one ``Session.run``.

    A collective has no gradient of its own: who emits it defines one (``tf.custom_gradient``).

    Attributes:
        name: What the engine is called in arguments and logs.
        device: Where its ops are placed; None leaves that to TensorFlow.

    Invariants:
        ``size`` is the product of ``mesh_shape``. A group of one member emits no collective.
    """

    name: ClassVar[str]
    device: ClassVar[str | None] = "/cpu:0"

    def __init__(self, mesh_shape: Sequence[int], rank: int, size: int) -> None:
        """Check the mesh against the world.

        Args:
            mesh_shape: Sizes of the axes of the factor mesh.
            rank: This process's rank, from 0.
            size: Number of ranks in the world.

        Raises:
            EngineError: The mesh has another number of ranks than the world.
        """
        self.mesh_shape = tuple(int(axis_size) for axis_size in mesh_shape)
        if any(axis_size < 1 for axis_size in self.mesh_shape) or math.prod(self.mesh_shape) != size:
            raise EngineError(
                f"Engine '{self.name}': the mesh {self.mesh_shape} holds {math.prod(self.mesh_shape)} ranks, "
                f"but the job was started with {size}. Start it with mpirun -n {math.prod(self.mesh_shape)}, "
                f"or plan for {size} devices."
            )
        self.rank = rank
        self.size = size
        self._groups: dict[tuple[int, ...], Group] = {}
        self._program: Program | None = None
        self._programs = 0

    # ----------------------------------------------------------------------------------------------- programs

    @contextlib.contextmanager
    def program(self, after: tf.Operation | None = None) -> Iterator[Program]:
        """Start a chain of collectives; those emitted inside the ``with`` block belong to it.

        Args:
            after: An operation after which the first collective is to run, such as another program's ``last``
                where both run in the same ``Session.run``.

        Raises:
            CollectiveError: Another program is open.
        """
        if self._program is not None:
            raise CollectiveError(
                f"Program {self._program.number} is still open: its collectives form one chain, which "
                "another program would break. Got a second 'with engine.program()' inside it. Leave the "
                "first block, or emit into it."
            )
        program = Program(self._programs, after.graph if after is not None else None, after)
        self._programs += 1
        self._program = program
        try:
            yield program
        finally:
            self._program = None

    def emitted(self, graph: tf.Graph) -> tuple[str, ...]:
        """Return a line for each collective emitted into ``graph``: program, kind, axes, dtype and shape.

        Ranks whose lines are equal run matching collectives.
        """
        return tuple(graph.get_collection(_EMITTED))

    def members(self, graph: tf.Graph) -> tuple[tuple[int, ...], ...]:
        """Return the ranks that take part in each collective emitted into ``graph``, ascending by group index."""
        return tuple(tuple(map(int, line.split(","))) for line in graph.get_collection(_MEMBERS))

    # -------------------------------------------------------------------------------------------- collectives

    def all_reduce(self, x: tf.Tensor, axes: Sequence[int], *, op: str = "sum") -> tf.Tensor:
        """Reduce ``x`` over the group, elementwise.

        Args:
            x: Any shape, the same on all members.
            axes: Mesh axes of the group.
            op: ``"sum"``, ``"max"`` or ``"min"``; for bool, max is *or* and min is *and*.

        Returns:
            The shape of ``x``; the same values on all members.

        Raises:
            CollectiveError: An argument breaks a rule, or no program is open.
        """
        if op not in _REDUCED:
            raise CollectiveError(
                f"all_reduce '{x.name}': op must be one of {', '.join(sorted(_REDUCED))}. Got {op!r}."
            )
        x = self._checked("all_reduce", x, _REDUCED[op], f" with op={op!r}")
        group = self._group(axes)
        if group.size == 1:
            return x
        return self._chained(
            f"all_reduce[{op}]", x, group.members, group.axes, lambda: self._emit_all_reduce(x, group, op), x.shape
        )

    def all_gather(self, x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
        """Stack the members' tensors: ``[...]`` → ``[n, ...]``, in member order.

        Raises:
            CollectiveError: An argument breaks a rule, or no program is open.
        """
        x = self._checked("all_gather", x, _MOVED)
        group = self._group(axes)
        if group.size == 1:
            return tf.expand_dims(x, 0)
        shape = tf.TensorShape([group.size]).concatenate(x.shape)
        return self._chained("all_gather", x, group.members, group.axes, lambda: self._emit_all_gather(x, group), shape)

    def reduce_scatter(self, x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
        """Sum over the members, each keeping its slice: ``[n, ...]`` → ``[...]``.

        Raises:
            CollectiveError: An argument breaks a rule, such as a leading dimension other than n, or no
                program is open.
        """
        x = self._checked("reduce_scatter", x, _REDUCED["sum"])
        group = self._group(axes)
        self._check_stacked("reduce_scatter", x, group)
        if group.size == 1:
            return tf.squeeze(x, [0])
        return self._chained(
            "reduce_scatter", x, group.members, group.axes, lambda: self._emit_reduce_scatter(x, group), x.shape[1:]
        )

    def all_to_all(self, x: tf.Tensor, axes: Sequence[int]) -> tf.Tensor:
        """Exchange slices: ``[n, ...]`` → ``[n, ...]``, where slice j is the one that member j held for us.

        Raises:
            CollectiveError: An argument breaks a rule, such as a leading dimension other than n, or no
                program is open.
        """
        x = self._checked("all_to_all", x, _MOVED)
        group = self._group(axes)
        self._check_stacked("all_to_all", x, group)
        if group.size == 1:
            return x
        return self._chained(
            "all_to_all", x, group.members, group.axes, lambda: self._emit_all_to_all(x, group), x.shape
        )

    def broadcast(self, x: tf.Tensor, axes: Sequence[int], root: int = 0) -> tf.Tensor:
        """Return the tensor of the member number ``root`` of the group.

        Args:
            x: The same shape on all members; the values matter on the root only.
            axes: Mesh axes of the group.
            root: Index of a member in its group, not a rank of the world.

        Raises:
            CollectiveError: An argument breaks a rule, or no program is open.
        """
        x = self._checked("broadcast", x, _MOVED)
        group = self._group(axes)
        if not 0 <= root < group.size:
            raise CollectiveError(
                f"broadcast '{x.name}': root must be the index of a member of its group, 0 to "
                f"{group.size - 1}. Got root={root} for axes={group.axes} of the mesh {self.mesh_shape}."
            )
        if group.size == 1:
            return x
        return self._chained(
            f"broadcast[{root}]", x, group.members, group.axes, lambda: self._emit_broadcast(x, group, root), x.shape
        )

    def permute(self, x: tf.Tensor, sources: Sequence[int]) -> tf.Tensor:
        """Move tensors between ranks of the whole world: rank r gets the one of rank ``sources[r]``.

        Args:
            x: The same shape on all ranks.
            sources: A permutation of the ranks, the same on all of them.

        Raises:
            CollectiveError: ``sources`` is not a permutation of the ranks, or no program is open.
        """
        x = self._checked("permute", x, _MOVED)
        sources = tuple(int(source) for source in sources)
        if sorted(sources) != list(range(self.size)):
            raise CollectiveError(
                f"permute '{x.name}': sources must be a permutation of the ranks 0 to {self.size - 1}. "
                f"Got {sources}. Give the rank to receive from, for each rank, each once."
            )
        if sources == tuple(range(self.size)):
            return x
        everyone = tuple(range(self.size))
        return self._chained(
            f"permute{list(sources)}", x, everyone, None, lambda: self._emit_permute(x, sources), x.shape
        )

    def shift(self, x: tf.Tensor, axes: Sequence[int], by: int) -> tf.Tensor:
        """Move tensors along mesh axes, in a circle: of each group, member ``i`` gets the one of member ``i - by``.

        Args:
            x: The same static shape on all members of a group.
            axes: As of :meth:`all_reduce`; their order is that of the members.
            by: How far.

        Raises:
            CollectiveError: No program is open.
        """
        x, group = self._checked("shift", x, _MOVED), self._group(axes)
        if by % group.size == 0:
            return x
        source, target = (group.members[(group.index + step) % group.size] for step in (-by, by))
        emit = functools.partial(self._emit_move, x, source, target, tuple(x.shape.as_list()))
        return self._chained(f"shift[{by}]", x, group.members, group.axes, emit, x.shape)

    def move(self, x: tf.Tensor, moves: Mapping[int, int], shape: Sequence[int]) -> tf.Tensor | None:
        """Move tensors between some ranks: rank ``to`` gets the one of rank ``moves[to]``.

        Args:
            x: What this rank sends; of a rank that sends nothing any tensor of the same dtype.
            moves: By each rank that gets a tensor another one that sends it; a rank may send one tensor and get one.
                The same on all ranks that take part; others need not call this.
            shape: Of the tensors.

        Returns:
            The tensor that came; None if none does.

        Raises:
            CollectiveError: Two ranks get the tensor of one, or a rank its own; or no program is open.
        """
        x = self._checked("move", x, _MOVED)
        senders = set(moves.values())
        if len(senders) < len(moves) or any(to == source for to, source in moves.items()):
            raise CollectiveError(
                f"move '{x.name}': each rank sends one tensor at most, to another rank. Got {dict(moves)}, by "
                "receiver. Move one after the other."
            )
        if self.rank not in moves and self.rank not in senders:
            return None
        source = moves.get(self.rank)
        target = next((to for to, sender in moves.items() if sender == self.rank), None)
        reached = tf.TensorShape([0]) if source is None else tf.TensorShape(shape)
        members = tuple(sorted({*moves, *senders}))
        y = self._chained(
            f"move{sorted(moves.items())} {tuple(shape)}",
            x,
            members,
            None,
            lambda: self._emit_move(x, source, target, tuple(shape)),
            reached,
        )
        return None if source is None else y

    # ------------------------------------------------------------------------------------------- measurements

    @abc.abstractmethod
    def counted_bytes(self) -> dict[str, int]:
        """Return the bytes sent from this rank since the last reset, by kind (see ``payload_bytes``)."""

    @abc.abstractmethod
    def reset_counts(self) -> None:
        """Set all counts to zero."""

    @abc.abstractmethod
    def close(self) -> None:
        """Give back communicators and the like. Graphs made with this engine cannot run any more."""

    # ----------------------------------------------------------------------------------------- the subclass's

    @abc.abstractmethod
    def _emit_all_reduce(self, x: tf.Tensor, group: Group, op: str) -> tf.Tensor: ...

    @abc.abstractmethod
    def _emit_all_gather(self, x: tf.Tensor, group: Group) -> tf.Tensor: ...

    @abc.abstractmethod
    def _emit_reduce_scatter(self, x: tf.Tensor, group: Group) -> tf.Tensor: ...

    @abc.abstractmethod
    def _emit_all_to_all(self, x: tf.Tensor, group: Group) -> tf.Tensor: ...

    @abc.abstractmethod
    def _emit_broadcast(self, x: tf.Tensor, group: Group, root: int) -> tf.Tensor: ...

    @abc.abstractmethod
    def _emit_permute(self, x: tf.Tensor, sources: tuple[int, ...]) -> tf.Tensor: ...

    def _emit_move(self, x: tf.Tensor, source: int | None, target: int | None, shape: tuple[int, ...]) -> tf.Tensor:
        raise EngineError(
            f"Engine '{self.name}': has no messages between two ranks (rank {self.rank} has one of {list(shape)} "
            f"from {source} and to {target}), which plans with operators on a part of the devices need. Use the engine "
            "'mpi'."
        )

    # ----------------------------------------------------------------------------------------------- checking

    def _group(self, axes: Sequence[int]) -> Group:
        key = tuple(int(axis) for axis in axes)
        if key not in self._groups:
            self._groups[key] = Group.of(self.mesh_shape, key, self.rank)
        return self._groups[key]

    def _checked(self, kind: str, x: tf.Tensor, dtypes: tuple[tf.DType, ...], purpose: str = "") -> tf.Tensor:
        graph = tf.compat.v1.get_default_graph()
        if not tf.is_symbolic_tensor(x) or x.graph is not graph:
            raise CollectiveError(
                f"{kind}: the tensor must be a symbolic one of the default graph. Got {x!r}. Build it inside "
                f"'with tf.Graph().as_default()', where the collective is emitted too."
            )
        if x.dtype.base_dtype not in dtypes:
            raise CollectiveError(
                f"{kind} '{x.name}': dtype {x.dtype.name} is not supported{purpose}. Supported are "
                f"{', '.join(dtype.name for dtype in dtypes)}. Cast the tensor to one of them."
            )
        return x

    def _check_stacked(self, kind: str, x: tf.Tensor, group: Group) -> None:
        if x.shape.rank is None or x.shape.rank == 0 or x.shape.as_list()[0] != group.size:
            raise CollectiveError(
                f"{kind} '{x.name}': the leading dimension must be static and equal the group's size "
                f"{group.size} (axes={group.axes} of the mesh {self.mesh_shape}). Got shape {x.shape}. Stack "
                "one slice for each member."
            )

    def _chained(
        self,
        kind: str,
        x: tf.Tensor,
        members: tuple[int, ...],
        axes: tuple[int, ...] | None,
        emit: Callable[[], tf.Tensor],
        shape: tf.TensorShape,
    ) -> tf.Tensor:
        program, graph = self._program, x.graph
        if program is None:
            raise CollectiveError(
                f"{kind} '{x.name}': a collective must belong to a program, which puts it in an agreed "
                "order. Got none open. Emit it inside 'with engine.program():'."
            )
        if program.graph is None:
            program.graph = graph
        # A branch or a loop may run on one rank and not on another, and no control edge leads into it.
        conditional = graph.building_function or graph._get_control_flow_context() is not None
        if program.graph is not graph or conditional:
            raise CollectiveError(
                f"{kind} '{x.name}': all collectives of program {program.number} must be in one graph and "
                "outside of control flow. Got one in "
                f"{'a branch, loop or function' if conditional else 'another graph'}. Unroll the loop, or "
                "compute both branches and select."
            )
        with (
            tf.device(self.device) if self.device else contextlib.nullcontext(),
            tf.control_dependencies([] if program.last is None else [program.last]),
        ):
            y = emit()
        y.set_shape(shape)
        program.last = y.op
        program.names.add(y.op.name)
        where = "world" if axes is None else f"axes={axes}"
        what = kind if kind.startswith("move") else f"{kind} {where} {x.dtype.base_dtype.name} {x.shape}"
        graph.add_to_collection(_EMITTED, f"{program.number}: {what}")
        graph.add_to_collection(_MEMBERS, ",".join(map(str, members)))
        return y
