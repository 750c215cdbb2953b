"""Faults planted into each kind of collective, on each rank, over several models: ``verify`` must find all of them.

Prints one line per fault and, at the end, ``N faults, M missed``.
"""

from __future__ import annotations

import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import tensorflow as tf

import tensoropt
from tensoropt.api.session import job as jobs
from tensoropt.errors import VerificationError
from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.program.building import Builder
from tensoropt.plan.plan import Plan, row_edges, rules_of
from tests.scripts.cases import BATCH, classifier, normal, random_plans

_KINDS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "permute", "rows", "shift", "move")
_SEEDS = 12


# --------------------------------------------------------------------------------------------------------- models


def mlp(m: Any) -> None:
    """Dense layers and Adam."""
    m.train.AdamOptimizer(0.01).minimize(classifier(m)["loss"])


def cnn(m: Any) -> None:
    """A convolution with its bias, a pool, a dense layer and Momentum."""
    x = m.placeholder(m.float32, [BATCH, 8, 8, 4], name="x")
    hidden = m.layers.conv2d(x, 8, 3, padding="same", name="conv", activation=m.nn.relu)
    hidden = m.reshape(m.nn.max_pool(hidden, 2, 2, "VALID"), [BATCH, 128])
    loss = m.reduce_mean(m.square(m.layers.dense(hidden, 4, name="dense")))
    m.train.MomentumOptimizer(0.05, 0.9).minimize(loss)


def attention(m: Any) -> None:
    """Self-attention with heads, a bias on the keys that changes nothing, a residual, and Adam."""
    x = m.placeholder(m.float32, [BATCH, 4, 8], name="x")

    def heads(name: str) -> Any:
        return m.transpose(m.reshape(m.layers.dense(x, 8, name=name), [BATCH, 4, 2, 4]), [0, 2, 1, 3])

    weights = m.nn.softmax(m.matmul(heads("query"), heads("key"), transpose_b=True) * 0.5)
    mixed = m.reshape(m.transpose(m.matmul(weights, heads("value")), [0, 2, 1, 3]), [BATCH, 4, 8])
    out = m.layers.dense(x + mixed, 8, name="out")
    m.train.AdamOptimizer(0.01).minimize(m.reduce_mean(m.square(out - x)))


def embedding(m: Any) -> None:
    """Rows of a table, whose gradient is sparse, and Momentum."""
    words = m.placeholder(m.int32, [BATCH, 4], name="words")
    table = m.get_variable("table", [16, 8], initializer=normal(m, 3))
    w = m.get_variable("w", [8, 4], initializer=normal(m, 4))
    loss = m.reduce_mean(m.square(m.matmul(m.reduce_sum(m.nn.embedding_lookup(table, words), 1), w)))
    m.train.MomentumOptimizer(0.1, 0.9).minimize(loss)


_MODELS: Mapping[str, Callable[[Any], None]] = {
    "mlp": mlp,
    "cnn": cnn,
    "attention": attention,
    "embedding": embedding,
}


# --------------------------------------------------------------------------------------------------------- faults


def one_percent(kind: str, x: Any, y: Any) -> Any:
    """All of the result is too large."""
    return y * tf.constant(1.01, y.dtype)


def one_element(kind: str, x: Any, y: Any) -> Any:
    """The largest number of the result is off by a hundredth, all others are right; of rows, every other number.

    A device drops the rows and the columns that belong to others, so a fault in one number may be none.
    """
    if kind == "rows":
        return y * tf.constant([1.01, 1.0] * (y.shape[-1] // 2) + [1.01] * (y.shape[-1] % 2), y.dtype)
    flat = tf.reshape(y, [-1])
    one = tf.one_hot(tf.argmax(tf.abs(flat)), tf.size(flat), dtype=y.dtype)
    return tf.reshape(flat * (1 + tf.constant(0.01, y.dtype) * one), tf.shape(y))


def dropped(kind: str, x: Any, y: Any) -> Any:
    """The part of one member is missing, or those of all others where they are added up."""
    if kind == "all_reduce":
        return x
    if kind == "reduce_scatter":
        return x[0]
    return tf.zeros_like(y) if kind in ("permute", "shift", "move") else tf.concat([y[:-1], tf.zeros_like(y[-1:])], 0)


_FAULTS = (one_percent, one_element, dropped)


class Fault:
    """What to do to which collectives of this rank. What gathers a value that is fetched is left alone."""

    def __init__(self) -> None:
        self.kind = ""
        self.change: Callable[[str, Any, Any], Any] | None = None
        self.guilty = self.rows = self.fetching = False
        self.planted = 0

    def plant(self, engine: CollectiveEngine) -> CollectiveEngine:
        """Wraps the engine's collectives."""
        for kind in set(_KINDS) - {"rows"}:  # those are gathers
            setattr(engine, kind, self._wrapped(kind, getattr(engine, kind)))
        return engine

    def _wrapped(self, kind: str, right: Callable[..., Any]) -> Callable[..., Any]:
        def collective(x: Any, *arguments: Any, **options: Any) -> Any:
            y = right(x, *arguments, **options)
            wanted = "rows" if self.rows and kind == "all_gather" else kind
            if self.fetching or wanted != self.kind or self.change is None or not x.dtype.is_floating or y is None:
                return y
            self.planted += 1
            # The same ops on every rank: the order of gradients, and so of their collectives, follows them.
            wrong = tf.where(tf.constant(self.guilty), self.change(wanted, x, y), y)
            wrong.set_shape(y.shape)
            return wrong

        return collective


@contextmanager
def faulty() -> Iterator[Fault]:
    """Lets every engine that is made have the fault."""
    from tensoropt.exec.program import resharding

    fault = Fault()
    make, whole, rows = jobs.make_engine, Builder._whole, resharding.reshard_rows

    def fetched(self: Builder, *arguments: Any) -> Any:
        fault.fetching = True
        try:
            return whole(self, *arguments)
        finally:
            fault.fetching = False

    def moved(*arguments: Any) -> Any:
        fault.rows = True
        try:
            return rows(*arguments)
        finally:
            fault.rows = False

    jobs.make_engine = lambda *arguments, **options: fault.plant(make(*arguments, **options))
    Builder._whole = fetched  # type: ignore[method-assign, assignment]
    resharding.reshard_rows = moved  # type: ignore[assignment]
    try:
        yield fault
    finally:
        jobs.make_engine, Builder._whole, resharding.reshard_rows = make, whole, rows  # type: ignore[method-assign]


# ------------------------------------------------------------------------------------------------------- planting


def kinds_of(plan: Plan) -> set[str]:
    """The kinds of collectives of a plan's training step."""
    graph = jobs.current_job().imported_model().graph
    rules = rules_of(graph)
    rows = set(row_edges(graph, rules))
    kinds = {
        step.kind.name.lower()
        for edge, entry in plan.edges.items()
        if edge.consumer in graph.training
        for step in (*entry.forward, *(() if edge in rows else entry.backward))
    }
    for edge in rows:  # a sparse gradient goes its own way, which gathers rows that are partial
        made = plan.configuration(edge.consumer).input_layouts(rules[edge.consumer], edge.position).gradient
        needed = plan.configuration(edge.tensor.op).output_layouts(rules[edge.tensor.op], edge.tensor.index).gradient
        if set(made.partial) - set(needed.partial):
            kinds.add("rows")
    if any(rules[name].halo_axes & {*plan.configuration(name).actions} for name in graph.training):
        kinds.add("shift")
    return kinds & set(_KINDS)


def plans() -> dict[str, Plan]:
    """A plan of the current model for each kind of collective that any has: a pipeline, which moves, or random ones."""
    pipeline = tensoropt.find_strategy(search="pipeline", micro_batches=2, costs="analytic")
    found: dict[str, Plan] = {"move": pipeline}
    for plan in random_plans(range(_SEEDS)):
        fresh = kinds_of(plan) - set(found)
        found |= dict.fromkeys(sorted(fresh), plan)
    return found


def main(each: int, models: Sequence[str]) -> None:
    """Plants so many of each kind of collective in each model."""
    from mpi4py import MPI

    tensoropt.init("cpu")
    ranks, mine = tensoropt.world_size(), tensoropt.world_rank()
    turns = itertools.count()
    planted, missed, seen = 0, [], set()
    with faulty() as fault:
        for name, make in ((name, _MODELS[name]) for name in models or _MODELS):
            tensoropt.reset_default_graph()
            tensoropt.random.set_seed(1)
            make(tensoropt)
            chosen = plans()
            for plan in {id(plan): plan for plan in chosen.values()}.values():
                tensoropt.verify(plan, steps=1)
            for kind, plan in chosen.items():
                # Each kind meets every rank, over the models; and each kind of fault.
                for _ in range(each):
                    turn = next(turns)
                    rank, change = turn % ranks, _FAULTS[turn % len(_FAULTS)]
                    fault.kind, fault.planted = kind, 0
                    fault.change, fault.guilty = change, mine == rank
                    message = ""
                    try:
                        tensoropt.verify(plan, steps=1)
                    except VerificationError as error:
                        message = str(error).split(" differs from")[0]
                    fault.change = None
                    if not MPI.COMM_WORLD.bcast(fault.planted, root=rank):  # stages differ in what they are sent
                        continue
                    planted += 1
                    seen.add((kind, rank))
                    if not re.match(r"^\w+ '[^']+'( \(.*\))?: its (value|gradient)", message):
                        missed.append(f"{name} {kind} {rank} {change.__name__}")
                    if mine == rank:
                        print(
                            f"{name}: {kind} on rank {rank}, {change.__name__}, {fault.planted} times: {message}",
                            flush=True,
                        )
    if mine == 0:
        print(f"{planted} faults, {len(missed)} missed {missed}; {len(seen)} of {len(_KINDS) * ranks} kinds and ranks")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
