"""Every pair of layouts, on the code that runs, one device after the other."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import tensorflow as tf

from tensoropt.cluster import Topology
from tensoropt.cluster.presets import cpu
from tensoropt.cluster.topology import Level
from tensoropt.cost import AnalyticCost
from tensoropt.errors import LayoutError
from tensoropt.exec.program.resharding import reshard, reshard_edge, reshard_rows
from tensoropt.layout import Layout, Mesh, Step, StepKind, canonical_path, reshard_table
from tests.cost.odd_cost import OddCost
from tests.effort import EVERY_CASE, THOROUGH, left_to_ci
from tests.exec.layout_states import InTurns, mistake, pieces, row_mistake, row_pieces, whole_tensor

pytestmark = pytest.mark.tf

_ITEMSIZE = 8  # float64
_SMALL = [(Mesh((2, 3)), (6, 6, 6)), (Mesh((3, 2)), (6, 2, 3)), (Mesh((2,)), (2, 4))]
# On three axes, with the seed of odd costs or None.
_LARGE: list[tuple[tuple[int, ...], int | None]] = [((4, 2, 8), 1), ((4, 2, 8), None), ((8, 8, 8), None)]


def _topology(mesh: Mesh) -> Topology:
    device = cpu(2).device
    levels = tuple(Level(f"level{i}", extent, 1e-5 / (i + 1), 1e9 * (i + 1)) for i, extent in enumerate(mesh.shape))
    return Topology("test", levels, device)


class _State:
    """The ranks' pieces of a tensor; equal ones are known by their bytes."""

    def __init__(self, pieces: list[np.ndarray]) -> None:
        self.pieces = pieces
        self.key = b"".join(piece.tobytes() for piece in pieces)


class _Walker:
    """Runs steps from states, and remembers what a step made of a state: the same input gives the same output."""

    def __init__(self, mesh: Mesh, whole: np.ndarray) -> None:
        self.mesh, self.whole = mesh, whole
        self._world = InTurns(mesh)
        self._known: dict[tuple[Layout, Step, bytes], tuple[_State, np.ndarray]] = {}
        self._planned: dict[tuple[Layout, Step], np.ndarray] = {}
        self._mistakes: dict[tuple[Layout, bytes], str | None] = {}

    def start(self, layout: Layout) -> _State:
        """The whole tensor in a layout."""
        state = _State(pieces(self.whole, layout, self.mesh))
        assert self.mistake(state, layout) is None
        return state

    def walk(self, state: _State, layout: Layout, steps: Sequence[Step]) -> tuple[_State, list[int], list[int]]:
        """The ranks' pieces after ``steps``, the bytes that each rank sent, and those that it should have."""
        sent, planned = (np.zeros(self.mesh.size, np.int64) for _ in range(2))
        for step in steps:
            key = (layout, step, state.key)
            if key not in self._known:
                self._known[key] = self._step(state, layout, step)
            if (layout, step) not in self._planned:
                self._planned[layout, step] = self._bytes(layout, step)
            planned += self._planned[layout, step]
            state, more = self._known[key]
            sent += more
            layout = step.apply(layout)
        return state, sent.tolist(), planned.tolist()

    def mistake(self, state: _State, layout: Layout) -> str | None:
        """What is wrong if these are not the pieces of the whole tensor in ``layout``."""
        key = (layout, state.key)
        if key not in self._mistakes:
            self._mistakes[key] = mistake(state.pieces, self.whole, layout, self.mesh)
        return self._mistakes[key]

    def _step(self, state: _State, layout: Layout, step: Step) -> tuple[_State, np.ndarray]:
        made = self._world.run(
            lambda engine: np.asarray(
                reshard(tf.constant(state.pieces[engine.rank]), layout, [step], self.mesh, engine)
            )
        )
        return _State(made), np.array(self._world.sent_bytes)

    def _bytes(self, layout: Layout, step: Step) -> np.ndarray:
        ranks = range(self.mesh.size)
        return np.array([step.bytes_sent(layout, self.whole.shape, _ITEMSIZE, self.mesh, rank) for rank in ranks])


@pytest.mark.parametrize(
    ("mesh", "shape", "odd"),
    [
        *((mesh, shape, odd) for mesh, shape in _SMALL for odd in ((None, 1) if EVERY_CASE else (1,))),
        *((Mesh((2, 2, 2)), shape, odd) for shape, odd in (_LARGE if THOROUGH else _LARGE[: 1 if EVERY_CASE else 0])),
    ],
    ids=str,
)
def test_every_pair_of_layouts_reshards_and_sends_the_planned_bytes(
    mesh: Mesh, shape: tuple[int, ...], odd: int | None
) -> None:
    cost = AnalyticCost(_topology(mesh)) if odd is None else OddCost(_topology(mesh), odd)
    table = reshard_table(mesh, shape, _ITEMSIZE, cost.step_seconds)
    walker = _Walker(mesh, whole_tensor(shape))
    for source in table.layouts:
        start = walker.start(source)
        for target in table.layouts:
            steps = table.path(source, target)
            state, sent, planned = walker.walk(start, source, steps)
            problem = walker.mistake(state, target)
            assert problem is None, f"{source} -> {target} by {list(map(str, steps))}: {problem}"
            assert sent == planned, f"{source} -> {target}"


@pytest.mark.parametrize(("mesh", "shape"), [(Mesh((2, 3)), (6, 6, 6)), (Mesh((2, 2, 2)), (8, 8))], ids=str)
def test_canonical_path_reshards_every_pair_of_layouts(mesh: Mesh, shape: tuple[int, ...]) -> None:
    layouts = reshard_table(mesh, shape, _ITEMSIZE, AnalyticCost(_topology(mesh)).step_seconds).layouts
    walker = _Walker(mesh, whole_tensor(shape))
    for source in layouts:
        start = walker.start(source)
        for target in layouts:
            steps = canonical_path(source, target)
            state, _, _ = walker.walk(start, source, steps)
            problem = walker.mistake(state, target)
            assert problem is None, f"{source} -> {target} by {list(map(str, steps))}: {problem}"


def _row_layouts(mesh: Mesh, shape: tuple[int, ...]) -> tuple[Layout, ...]:
    return reshard_table(mesh, shape, _ITEMSIZE, AnalyticCost(_topology(mesh)).step_seconds).layouts


def _reshard_rows(world: InTurns, source: Layout, target: Layout, shape: tuple[int, ...], seed: int) -> str | None:
    mesh = world.mesh
    whole, held = row_pieces(source, shape, mesh, seed)
    assert row_mistake(held, whole, source, mesh) is None

    def move(engine: object) -> tuple[np.ndarray, np.ndarray]:
        values, indices = held[engine.rank]  # type: ignore[attr-defined]
        local = source.local_shape(shape, mesh)
        rows = tf.IndexedSlices(tf.constant(values), tf.constant(indices), tf.constant(local, tf.int64))
        moved = reshard_rows(rows, source, target, shape, mesh, engine)  # type: ignore[arg-type]
        assert tuple(np.asarray(moved.dense_shape)) == target.local_shape(shape, mesh)
        return np.asarray(moved.values), np.asarray(moved.indices)

    return row_mistake(world.run(move), whole, target, mesh)


@pytest.mark.parametrize(
    ("mesh", "shape"),
    [(Mesh((2, 3)), (12, 6)), (Mesh((2, 2)), (4, 4, 4)), (Mesh((2, 2)), (8, 4))][-3 if EVERY_CASE else -1 :],
    ids=str,
)
def test_every_pair_of_layouts_moves_rows(mesh: Mesh, shape: tuple[int, ...]) -> None:
    world = InTurns(mesh)
    for number, (source, target) in enumerate(itertools.product(_row_layouts(mesh, shape), repeat=2)):
        problem = _reshard_rows(world, source, target, shape, number)
        assert problem is None, f"{source} -> {target}: {problem}"


@pytest.mark.parametrize("shape", [(16, 8), (8, 8, 8)], ids=str)
@left_to_ci("more axes than those that are gone through pair by pair")
def test_random_pairs_of_layouts_move_rows_on_three_axes(shape: tuple[int, ...]) -> None:
    mesh = Mesh((2, 2, 2))
    random = np.random.default_rng(5)
    layouts = _row_layouts(mesh, shape)
    world = InTurns(mesh)
    for number in range(300 if THOROUGH else 100):
        source, target = (layouts[int(i)] for i in random.integers(len(layouts), size=2))
        problem = _reshard_rows(world, source, target, shape, number)
        assert problem is None, f"{source} -> {target}: {problem}"


def test_a_whole_gradient_where_rows_were_planned_is_an_error() -> None:
    mesh = Mesh((2,))
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, (4, 2))
        variable, rows = Layout(((), ())), Layout(((), ()), partial=(0,))
        moved = reshard_edge(x, variable, (), rows, (), variable, mesh, InTurns(mesh))  # type: ignore[arg-type]
        with pytest.raises(LayoutError, match=r"lead from \{\}\{\} partial\{0\} to .* but \{\}\{\} is needed"):
            tf.gradients(tf.reduce_sum(moved * 2.0), x)


def test_an_edge_without_steps_is_the_tensor_itself() -> None:
    mesh = Mesh((2,))
    layout = Layout(((0,),))
    with tf.Graph().as_default():
        x = tf.compat.v1.placeholder(tf.float32, (2,))
        assert reshard_edge(x, layout, (), layout, (), layout, mesh, InTurns(mesh)) is x  # type: ignore[arg-type]


def test_a_step_that_does_not_start_there_is_an_error() -> None:
    world = InTurns(Mesh((2,)))
    steps = [Step(StepKind.ALL_GATHER, (0,), 0)]
    with pytest.raises(LayoutError, match=r"Step all_gather\{0\} dim 0: cannot start from layout \{\}"):
        world.run(lambda engine: reshard(tf.constant([1.0, 2.0]), Layout(((),)), steps, world.mesh, engine))


def test_truth_values_survive_a_path_through_partial_sums() -> None:
    mesh, whole = Mesh((2, 2)), np.array([True, False, True, True])
    layout = Layout(((),))
    steps = [Step(StepKind.TO_PARTIAL, (0, 1)), Step(StepKind.REDUCE_SCATTER, (0,), 0), Step(StepKind.ALL_REDUCE, (1,))]
    made = InTurns(mesh).run(lambda engine: np.asarray(reshard(tf.constant(whole), layout, steps, mesh, engine)))
    assert [piece.tolist() for piece in made] == [[True, False], [True, False], [True, True], [True, True]]
    assert made[0].dtype == np.bool_
