"""What every engine has to do, checked against NumPy on every rank; started by ``test_contract.py`` with
mpirun.

Each argument, such as ``4:mpi,mpi4py``, is a number of ranks and the engines that so many try. The numbers fall, from
that of the job's ranks on: those that are surplus end. Each rank knows the inputs of all ranks, since they follow from
a seed, and so computes for itself what it must get. Prints ``rank r of n: ENGINE checked N`` for each engine and ends
with status 0, or raises.
"""

from __future__ import annotations

import itertools
import math
import sys
import time
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tensoropt.errors import CollectiveError, EngineError
from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.engines.launch import agree, install_abort_hook, keep_first_ranks, start_mpi
from tensoropt.exec.engines.mpi_engine import MpiEngine
from tensoropt.exec.engines.process_group import Group
from tensoropt.exec.engines.select import ENGINES, make_engine
from tensoropt.measure.collective_seconds import EngineMeasurement

MESHES = {
    1: ((), (1,)),
    2: ((2,), (1, 2)),
    3: ((3,),),
    4: ((2, 2), (4,)),
    6: ((2, 3),),
    8: ((2, 2, 2),),
}
FLOATS = ("float16", "bfloat16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
COMPLEX = ("complex64", "complex128")
REDUCED = {
    "sum": (*FLOATS, *INTEGERS, *COMPLEX),
    "max": (*FLOATS, *INTEGERS, "bool"),
    "min": (*FLOATS, *INTEGERS, "bool"),
}
MOVED = (*FLOATS, *INTEGERS, "bool", *COMPLEX)
REDUCERS = {"sum": np.add, "max": np.maximum, "min": np.minimum}
TAIL = (2, 3)  # 6 elements: what a member of a group holds
LARGE = 100_003  # elements: beyond what MPI sends without asking the receiver first

Inputs = Callable[[int], np.ndarray]


def values(rank: int, dtype: str, shape: Sequence[int], salt: str) -> np.ndarray:
    """Return a rank's input. Sums of its floats are exact in every float dtype; its integers overflow."""
    random = np.random.default_rng([rank, zlib.crc32(salt.encode())])
    kind = tf.as_dtype(dtype)
    if kind.is_bool:
        return random.random(tuple(shape)) < 0.5
    if kind.is_integer:
        limits = np.iinfo(kind.as_numpy_dtype)
        return random.integers(limits.min, limits.max, tuple(shape), kind.as_numpy_dtype, endpoint=True)
    whole = random.integers(-8, 9, tuple(shape))
    if kind.is_complex:
        return (whole + 1j * random.integers(-8, 9, tuple(shape))).astype(kind.as_numpy_dtype)
    return whole.astype(kind.as_numpy_dtype)


def reduced(arrays: Sequence[np.ndarray], op: str) -> np.ndarray:
    """Return the reduction in the arrays' own dtype; 16-bit floats by way of float32."""
    dtype = arrays[0].dtype
    short = dtype.itemsize == 2 and dtype.kind not in "iu"
    result = np.asarray(arrays[0], np.float32 if short else dtype)
    for array in arrays[1:]:
        result = REDUCERS[op](result, np.asarray(array, result.dtype))
    return np.asarray(result).astype(dtype)


@dataclass
class Case:
    """A collective, what it must return on this rank, and the bytes it must count."""

    name: str
    result: tf.Tensor
    expected: np.ndarray
    kind: str
    sent_bytes: int


class Contract:
    """Builds cases for one engine in one graph, and runs them in one session."""

    def __init__(self, engine: CollectiveEngine) -> None:
        self.engine = engine
        self.cases: list[Case] = []

    def add(self, kind: str, axes: Sequence[int], dtype: str, tail: Sequence[int] = TAIL, **arguments: object) -> None:
        """Emit one collective over a group of mesh axes."""
        engine = self.engine
        group = Group.of(engine.mesh_shape, axes, engine.rank)
        n, me = group.size, group.index
        name = f"{kind} {tuple(axes)} of {engine.mesh_shape} {dtype} {tuple(tail)} {arguments}"
        stacked = kind in ("reduce_scatter", "all_to_all")
        shape = (n, *tail) if stacked else tuple(tail)
        inputs = [values(rank, dtype, shape, name) for rank in group.members]
        result = getattr(engine, kind)(tf.constant(inputs[me]), axes, **arguments)
        in_bytes = inputs[me].nbytes
        if kind == "all_reduce":
            expected, sent = reduced(inputs, str(arguments.get("op", "sum"))), 2 * (n - 1) * in_bytes // n
        elif kind == "all_gather":
            expected, sent = np.stack(inputs), (n - 1) * in_bytes
        elif kind == "reduce_scatter":
            expected, sent = reduced([array[me] for array in inputs], "sum"), (n - 1) * in_bytes // n
        elif kind == "all_to_all":
            expected, sent = np.stack([array[me] for array in inputs]), (n - 1) * in_bytes // n
        else:
            root = arguments.get("root", 0)
            expected, sent = inputs[int(str(root))], (n - 1) * in_bytes // n
        self.cases.append(Case(name, result, expected, kind, sent))

    def add_permute(self, sources: tuple[int, ...], dtype: str) -> None:
        """Emit one permutation of the world."""
        name, rank = f"permute {sources} {dtype}", self.engine.rank
        mine = values(rank, dtype, TAIL, name)
        result = self.engine.permute(tf.constant(mine), sources)
        sent = 0 if sources[rank] == rank else mine.nbytes
        self.cases.append(Case(name, result, values(sources[rank], dtype, TAIL, name), "permute", sent))

    def add_shift(self, axes: tuple[int, ...], by: int, dtype: str) -> None:
        """Emit messages along mesh axes, in a circle."""
        name, group = f"shift {axes} {by} {dtype}", Group.of(self.engine.mesh_shape, axes, self.engine.rank)
        mine = values(self.engine.rank, dtype, TAIL, name)
        result = self.engine.shift(tf.constant(mine), axes, by)
        source = group.members[(group.index - by) % group.size]
        kind = "permute" if self.engine.name == "horovod" else "move"
        sent = 0 if by % group.size == 0 else mine.nbytes
        self.cases.append(Case(name, result, values(source, dtype, TAIL, name), kind, sent))

    def add_move(self, dtype: str) -> None:
        """Emit messages from each rank but the last to the next one; the first gets none."""
        name, rank, size = f"move {dtype}", self.engine.rank, self.engine.size
        mine = values(rank, dtype, TAIL, name)
        came = self.engine.move(tf.constant(mine), {to: to - 1 for to in range(1, size)}, mine.shape)
        if (came is None) != (rank == 0):
            raise AssertionError(f"{name}: rank {rank} got {came}")
        # What the first rank sends has no result of its own: the case after it waits for it.
        result = tf.constant(mine) if came is None else came
        expected = values(max(0, rank - 1), dtype, TAIL, name)
        self.cases.append(Case(name, result, expected, "move", mine.nbytes if rank < size - 1 else 0))

    def run(self) -> int:
        """Run all cases, and compare values, static shapes and counted bytes."""
        self.engine.reset_counts()
        if any(self.engine.counted_bytes().values()):
            raise AssertionError(f"counts are not zero after a reset: {self.engine.counted_bytes()}")
        with self.cases[0].result.graph.as_default(), session() as running:
            results = running.run([case.result for case in self.cases])
        for case, result in zip(self.cases, results, strict=True):
            if case.result.shape != case.expected.shape:
                raise AssertionError(f"{case.name}: static shape {case.result.shape}, not {case.expected.shape}")
            if result.dtype != case.expected.dtype or not np.array_equal(result, case.expected):
                raise AssertionError(f"{case.name}:\n{result!r}\n, not\n{case.expected!r}")
        expected_bytes = {
            kind: sum(case.sent_bytes for case in self.cases if case.kind == kind)
            for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "permute", "move")
        }
        if self.engine.counted_bytes() != expected_bytes:
            raise AssertionError(f"counted {self.engine.counted_bytes()}, not {expected_bytes}")
        return len(self.cases)


def session(threads: int = 2) -> tf.compat.v1.Session:
    return tf.compat.v1.Session(
        config=tf.compat.v1.ConfigProto(
            inter_op_parallelism_threads=threads,
            intra_op_parallelism_threads=1,
            use_per_session_threads=True,  # ranks may be threads of one process
        )
    )


def ordered_axes(mesh_shape: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return every ordered choice of mesh axes, the empty one too."""
    numbers = range(len(mesh_shape))
    return [axes for count in range(len(mesh_shape) + 1) for axes in itertools.permutations(numbers, count)]


def check_every_kind_axes_and_dtype(engine: CollectiveEngine, comm: Any) -> int:
    """Every kind over every ordered group; every dtype over the last of them."""
    choices = ordered_axes(engine.mesh_shape)
    contract = Contract(engine)
    with tf.Graph().as_default() as graph, engine.program():
        for axes in choices:
            n = Group.of(engine.mesh_shape, axes, engine.rank).size
            full = axes == choices[-1]
            for op, dtypes in REDUCED.items():
                for dtype in dtypes if full else ("float32",):
                    contract.add("all_reduce", axes, dtype, op=op)
            for dtype in REDUCED["sum"] if full else ("float32",):
                contract.add("reduce_scatter", axes, dtype)
            for dtype in MOVED if full else ("float32",):
                contract.add("all_gather", axes, dtype)
                contract.add("all_to_all", axes, dtype)
                contract.add("broadcast", axes, dtype, root=n - 1)
            # A scalar, a tensor without elements, and one that is large.
            for tail in ((), (0, 3), (LARGE,)) if full else ():
                contract.add("all_reduce", axes, "float32", tail)
                contract.add("all_gather", axes, "float64", tail)
                contract.add("reduce_scatter", axes, "int32", tail)
                contract.add("all_to_all", axes, "bfloat16", tail)
                contract.add("broadcast", axes, "float16", tail)
        ranks = tuple(range(engine.size))
        for dtype in MOVED:
            contract.add_permute(ranks[1:] + ranks[:1], dtype)
        for axes in ((axis,) for axis in range(len(engine.mesh_shape))):
            contract.add_shift(axes, 1, "float32")
            contract.add_shift(axes, -1, "bfloat16")
        contract.add_shift(tuple(range(len(engine.mesh_shape))), 2, "float64")
        contract.add_permute(ranks[::-1], "float32")  # with a fixed rank in the middle, if the number is odd
        contract.add_permute(ranks[:-2] + ranks[-2:][::-1], "float32")  # most ranks keep theirs
        contract.add_permute(ranks, "float32")
        if engine.name != "horovod" and engine.size > 1:
            contract.add_move("float32")
            contract.add_permute(ranks[::-1], "int32")
    checked = contract.run()
    agree(comm, "emitted collectives", "\n".join(engine.emitted(graph)))
    alone = all(size == 1 for size in engine.mesh_shape)
    if bool(engine.emitted(graph)) == alone:
        raise AssertionError(f"{len(engine.emitted(graph))} collectives were emitted on {engine.size} ranks")
    return checked


def check_short_floats_are_summed_in_float32(engine: CollectiveEngine) -> int:
    """Rounding once per pair of members, where float16 addition of big and small would lose the small."""
    axes = tuple(range(len(engine.mesh_shape)))
    for dtype, tolerance in (("float16", 2**-10), ("bfloat16", 2**-7)):
        arrays = [np.random.default_rng(rank).random(1000, np.float32) for rank in range(engine.size)]
        kind = tf.as_dtype(dtype).as_numpy_dtype
        with tf.Graph().as_default(), engine.program():
            y = engine.all_reduce(tf.constant(arrays[engine.rank].astype(kind)), axes)
            with session() as running:
                result = running.run(y).astype(np.float64)
        exact = np.sum([array.astype(kind).astype(np.float64) for array in arrays], axis=0)
        if np.max(np.abs(result - exact) / exact) > tolerance * engine.size:
            raise AssertionError(f"all_reduce of {dtype} is off by {np.max(np.abs(result - exact) / exact)}")
    return 2


def check_all_members_get_the_same_bits(engine: CollectiveEngine) -> int:
    """Replicas stay replicas: whichever way a sum goes around, it is one and the same on all members."""
    axes = tuple(range(len(engine.mesh_shape)))
    sizes = (1, 7, 1000, 5001, 100_003)  # MPI takes other ways for other sizes
    for size in sizes:
        array = np.random.default_rng(engine.rank).normal(size=size)
        with tf.Graph().as_default(), engine.program():
            y = engine.all_gather(engine.all_reduce(tf.constant(array), axes), axes)
            with session() as running:
                copies = running.run(y)
        if {copy.tobytes() for copy in copies} != {copies[0].tobytes()}:
            raise AssertionError(f"members have other bits of a sum of {size} numbers")
    return len(sizes)


def check_order_of_independent_collectives(engine: CollectiveEngine) -> int:
    """Two collectives of one size, whose inputs are ready in another order on another rank."""
    axes = tuple(range(len(engine.mesh_shape)))

    def late(x: np.ndarray) -> np.ndarray:
        time.sleep(0.2)
        return x

    with tf.Graph().as_default(), engine.program():
        first = second = tf.constant(np.full(1000, engine.rank + 1, np.float32))
        second = second * 100
        if engine.rank % 2:
            second = tf.ensure_shape(tf.numpy_function(late, [second], tf.float32), [1000])
        else:
            first = tf.ensure_shape(tf.numpy_function(late, [first], tf.float32), [1000])
        y, z = engine.all_reduce(first, axes), engine.all_reduce(second, axes)
        with session(threads=4) as running:
            for _ in range(3):
                got = running.run([y, z])
                total = engine.size * (engine.size + 1) // 2
                if not (np.all(got[0] == total) and np.all(got[1] == 100 * total)):
                    raise AssertionError(f"independent collectives were mixed up: {got[0][0]}, {got[1][0]}")
    return 2


def check_shape_known_at_run_time_only(engine: CollectiveEngine) -> int:
    """A placeholder with an open dimension, fed with two sizes."""
    axes = tuple(range(len(engine.mesh_shape)))
    with tf.Graph().as_default(), engine.program(), session() as running:
        x = tf.compat.v1.placeholder(tf.float32, [None, 2])
        gathered, summed = engine.all_gather(x, axes), engine.all_reduce(x, axes)
        if gathered.shape.as_list() != [engine.size, None, 2] or summed.shape.as_list() != [None, 2]:
            raise AssertionError(f"static shapes are {gathered.shape} and {summed.shape}")
        for rows in (1, 5):
            inputs = [values(rank, "float32", (rows, 2), str(rows)) for rank in range(engine.size)]
            got = running.run([gathered, summed], {x: inputs[engine.rank]})
            if not (np.array_equal(got[0], np.stack(inputs)) and np.array_equal(got[1], sum(inputs))):
                raise AssertionError(f"with {rows} rows: {got}")
    return 4


def check_in_place_keeps_other_readers(engine: CollectiveEngine) -> int:
    """The input is read by others too, so its buffer must not be written to."""
    axes = tuple(range(len(engine.mesh_shape)))
    with tf.Graph().as_default(), engine.program(), session() as running:
        x = tf.compat.v1.placeholder(tf.float32, [4]) + 0.0
        y, z = engine.all_reduce(x, axes), engine.broadcast(x, axes, root=engine.size - 1)
        fed = np.full(4, engine.rank + 1, np.float32)
        got = running.run([x, y, z, x * 2], {x.op.inputs[0]: fed})
        expected = [fed, fed * 0 + engine.size * (engine.size + 1) / 2, fed * 0 + engine.size, fed * 2]
        if not all(np.array_equal(a, b) for a, b in zip(got, expected, strict=True)):
            raise AssertionError(f"got {got}, not {expected}")
    return 2


def check_no_gradient_through(engine: CollectiveEngine) -> int:
    """Who emits a collective defines its gradient; there is none by default."""
    axes = tuple(range(len(engine.mesh_shape)))
    with tf.Graph().as_default(), engine.program():
        x = tf.constant([1.0])
        if tf.gradients(engine.permute(x, tuple(reversed(range(engine.size)))), x) != [None]:
            raise AssertionError("permute has a gradient")
        if tf.gradients(engine.all_reduce(x, axes), x) != [None]:
            raise AssertionError("all_reduce has a gradient")
    return 2


def check_parts_of_large_tensors(engine: MpiEngine) -> int:
    """Counts beyond the range of int go in parts; here with a range of 7."""
    contract = Contract(engine)
    axes = tuple(range(len(engine.mesh_shape)))
    engine._library.set_max_count(7)
    try:
        with tf.Graph().as_default(), engine.program():
            for dtype in ("float32", "bfloat16", "int64"):
                for tail in ((23,), (7,), (8,), (14,)):
                    contract.add("all_reduce", axes, dtype, tail)
                    contract.add("all_gather", axes, dtype, tail)
                    contract.add("reduce_scatter", axes, dtype, tail)
                    contract.add("all_to_all", axes, dtype, tail)
                    contract.add("broadcast", axes, dtype, tail, root=1)
            contract.add_permute(tuple(reversed(range(engine.size))), "float64")
        return contract.run()
    finally:
        engine._library.set_max_count(2**31 - 1)


# Two clocks of one host need not agree on a moment.
_CLOCK_STEP_NS = 10_000


def check_journal(engine: MpiEngine) -> int:
    """Begin, end and processor time of as many collectives as were asked for, in the order in which they ran."""
    with tf.Graph().as_default(), engine.program(), session() as running:
        x = tf.zeros([4])
        for _ in range(3):
            x = engine.all_reduce(x, tuple(range(len(engine.mesh_shape))))
        lengths = []
        for count in (0, 2, 5):
            engine.start_journal(count)
            running.run(x)
            journal = engine.read_journal()
            times = [time_ns for entry in journal for time_ns in entry[:2]]
            if any(not 0 < busy <= end - begin + _CLOCK_STEP_NS for begin, end, busy in journal):
                raise AssertionError(f"processor times do not fit into their collectives: {journal}")
            if times != sorted(times):
                raise AssertionError(f"collectives do not follow one another: {journal}")
            lengths.append(len(journal))
    if lengths != [0, 2, 3]:
        raise AssertionError(f"journals of {lengths} collectives")
    return 3


def check_measurement(engine: CollectiveEngine, world: Any) -> int:
    """Of a collective the rank counts that comes last, for both; where ranks share cores, their mean."""
    for crowded in (False, True):
        measurement = EngineMeasurement(engine, crowded=crowded)
        for kind in ("all_reduce", "all_to_all", "broadcast", "permute"):
            seconds = measurement(kind, tuple(range(len(engine.mesh_shape))), 2**12, 4)
            every = world.allgather(seconds)
            if every[0] != every[1] or not (seconds > 0 or crowded):
                raise AssertionError(f"{kind}: ranks measured {every}")
    return 8


def check_mpi_error_is_a_tensorflow_error(engine: MpiEngine) -> int:
    """Rank 0 sends more to rank 1 than it can hold."""
    sources = (1, 0, *range(2, engine.size))
    with tf.Graph().as_default(), engine.program(), session() as running:
        y = engine.permute(tf.zeros([8 if engine.rank == 0 else 4]), sources)
        try:
            running.run(y)
        except tf.errors.InternalError as error:
            parts = ("MPI_Sendrecv failed", "MPI_ERR_TRUNCATE", f"collective '{y.op.name}' on member 1")
            if engine.rank != 1 or not all(part in str(error) for part in parts):
                raise
        else:
            if engine.rank == 1:
                raise AssertionError("a message that is too long was received without an error")
    activity = engine._library.activity(engine._meter)
    if (activity.name, activity.waiting_s) != ("permute", None) and engine.rank < 2:
        raise AssertionError(f"the meter says {activity}")
    return 1


def check_wrong_mesh(name: str, size: int) -> int:
    """The mesh must hold as many ranks as there are."""
    try:
        ENGINES[name]((size + 1,))
    except EngineError as error:
        if f"holds {size + 1} ranks, but the job was started with {size}" not in str(error):
            raise
        return 1
    raise AssertionError("a mesh of the wrong size was accepted")


def check_disagreement_is_seen_on_all_ranks(engine: CollectiveEngine) -> int:
    """The last rank has another value; all of them get the error."""
    try:
        agree(start_mpi(), "test value", str(engine.rank == engine.size - 1))
    except CollectiveError as error:
        if f"on rank {engine.size - 1}" not in str(error):
            raise
        return 1
    raise AssertionError("ranks that differ were taken for equal")


def check_engine(name: str, world: Any) -> int:
    """Check the engine called ``name`` on all meshes of as many ranks as there are."""
    checked = 0
    for mesh_shape in MESHES[world.size][: None if name == MpiEngine.name else 1]:
        engine = make_engine(name, mesh_shape)
        if engine.name != name or (engine.rank, engine.size) != (world.rank, math.prod(mesh_shape)):
            raise AssertionError(f"{engine.name} on {engine.rank} of {engine.size}")
        checked += check_every_kind_axes_and_dtype(engine, world)
        checked += check_short_floats_are_summed_in_float32(engine)
        checked += check_all_members_get_the_same_bits(engine)
        checked += check_order_of_independent_collectives(engine)
        checked += check_shape_known_at_run_time_only(engine)
        checked += check_in_place_keeps_other_readers(engine)
        if world.size > 1:
            checked += check_no_gradient_through(engine)
            checked += check_disagreement_is_seen_on_all_ranks(engine)
            if isinstance(engine, MpiEngine):
                checked += check_parts_of_large_tensors(engine)
                checked += check_journal(engine)
                checked += check_mpi_error_is_a_tensorflow_error(engine)
            if world.size == 2:
                checked += check_measurement(engine, world)
        engine.close()
    return checked + check_wrong_mesh(name, world.size)


def main(runs: Sequence[str]) -> None:
    """Check one engine after another, on fewer and fewer ranks."""
    install_abort_hook(start_mpi())
    for run in runs:
        size, names = run.split(":")
        if not keep_first_ranks(int(size)):
            return
        world = start_mpi()
        for name in names.split(","):
            print(f"rank {world.rank} of {world.size}: {name} checked {check_engine(name, world)}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
