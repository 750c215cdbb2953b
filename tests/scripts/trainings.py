"""What scripts do with gradients and optimizers, as functions of a module of TensorFlow's names."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tensorflow as tf

from tests.scripts.cases import BATCH, Model, batch, classifier, normal

__all__ = ["TRAININGS", "Training"]

# Each of TensorFlow's optimizers with arguments other than its defaults; a function of the global step.
OPTIMIZERS: Mapping[str, Callable[[Any], dict[str, Any]]] = {
    "AdadeltaOptimizer": lambda step: {"learning_rate": 0.5, "rho": 0.8, "epsilon": 1e-2},
    "AdagradDAOptimizer": lambda step: {"learning_rate": 0.3, "global_step": step, "l2_regularization_strength": 1e-2},
    "AdagradOptimizer": lambda step: {"learning_rate": 0.3, "initial_accumulator_value": 0.5},
    "AdamOptimizer": lambda step: {"learning_rate": 0.03, "beta1": 0.7, "beta2": 0.8, "epsilon": 1e-3},
    "FtrlOptimizer": lambda step: {"learning_rate": 0.3, "l1_regularization_strength": 1e-2},
    "GradientDescentOptimizer": lambda step: {"learning_rate": 0.3},
    "MomentumOptimizer": lambda step: {"learning_rate": 0.3, "momentum": 0.8, "use_nesterov": True},
    "ProximalAdagradOptimizer": lambda step: {"learning_rate": 0.3, "l1_regularization_strength": 1e-2},
    "ProximalGradientDescentOptimizer": lambda step: {"learning_rate": 0.3, "l2_regularization_strength": 1e-1},
    "RMSPropOptimizer": lambda step: {"learning_rate": 0.03, "decay": 0.7, "momentum": 0.5, "epsilon": 1e-3},
}


@dataclass(frozen=True)
class Training:
    """One thing that scripts do.

    Attributes:
        make: the model.
        fetches: what is compared after each run.
        turns: what is run, one after another.
        feeds: by number of the turn.
    """

    make: Callable[[Any], Model]
    fetches: Sequence[str]
    turns: Sequence[str] = ("train", "train", "train")
    feeds: Callable[[int], Mapping[str, Any]] = batch


def _words(number: int) -> dict[str, Any]:
    """Numbers of rows, many of them twice."""
    return {"words": np.random.default_rng(number).integers(0, 5, [BATCH, 3])}


def _of_rows_and_dense(m: Any, name: str, words: Any) -> tuple[Any, Any, Any]:
    """A loss, a table and a weight."""
    table = m.get_variable(f"{name}/table", [6, 4], initializer=normal(m, 3))
    w = m.get_variable(f"{name}/w", [4, 2], initializer=normal(m, 4))
    found = m.nn.embedding_lookup(table, words)
    return m.reduce_mean(m.square(m.matmul(m.reduce_sum(found, 1), w))), table, w


def _merged_rows(m: Any) -> Model:
    """Rows that come once each, and are clipped then."""
    words = m.placeholder(m.int32, [BATCH, 3], name="words")
    loss, table, w = _of_rows_and_dense(m, "merged", words)
    rows, by_w = m.gradients(loss, [table, w])
    places, positions = m.unique(rows.indices)
    summed = m.unsorted_segment_sum(rows.values, positions, m.shape(places)[0])
    merged = tf.IndexedSlices(summed, places, rows.dense_shape)
    (merged, by_w), norm = m.clip_by_global_norm([merged, by_w], 0.05)
    train = m.train.AdagradOptimizer(0.5).apply_gradients([(merged, table), (by_w, w)])
    return {"words": words, "norm": norm, "positions": positions, "table": table, "w": w, "train": train}


_PASSED = ("cast", "negative", "tiled", "above", "below", "left", "right", "segments")


def _every_optimizer(m: Any) -> Model:
    words = m.placeholder(m.int32, [BATCH, 3], name="words")
    step = m.train.get_or_create_global_step()
    made: dict[str, Any] = {"words": words, "step": step}
    updates, own = [], {**OPTIMIZERS, "RMSPropOptimizer centered": OPTIMIZERS["RMSPropOptimizer"]}
    for name, arguments in own.items():
        kind, *centered = name.split()
        loss, table, w = _of_rows_and_dense(m, name.replace(" ", "_"), words)
        optimizer = getattr(m.train, kind)(**arguments(step), **dict.fromkeys(centered, True))
        updates.append(optimizer.minimize(loss, var_list=[table, w]))
        made |= {f"{name} loss": loss, f"{name} table": table, f"{name} w": w}
        for slot in optimizer.get_slot_names():
            made |= {f"{name} {slot} {kind}": optimizer.get_slot(v, slot) for kind, v in (("table", table), ("w", w))}
    with m.control_dependencies(updates):
        return {**made, "train": m.assign_add(step, 1).op}


def _weight_decay(m: Any) -> type:
    """An optimizer as BERT has it."""

    class AdamWeightDecay(m.train.Optimizer):
        def __init__(self, rate: Any) -> None:
            super().__init__(False, "AdamWeightDecay")
            self.rate = rate

        def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: Any = None) -> Any:
            assignments = []
            for gradient, variable in grads_and_vars:
                if gradient is None:
                    continue
                first, second = (
                    m.get_variable(
                        f"{variable.op.name}/{kind}",
                        variable.shape.as_list(),
                        initializer=m.zeros_initializer(),
                        trainable=False,
                    )
                    for kind in ("adam_m", "adam_v")
                )
                next_first = m.multiply(0.9, first) + m.multiply(0.1, gradient)
                next_second = m.multiply(0.99, second) + m.multiply(0.01, m.square(gradient))
                update = next_first / (m.sqrt(next_second) + 1e-3)
                if variable.shape.ndims > 1:
                    update += 0.01 * variable
                assignments += [
                    variable.assign(variable - self.rate * update), first.assign(next_first), second.assign(next_second)
                ]  # fmt: skip
            return m.group(*assignments, name=name)

    return AdamWeightDecay


def _own_optimizer(m: Any) -> Model:
    made = classifier(m)
    step = m.train.get_or_create_global_step()
    rate = m.train.polynomial_decay(0.05, step, 10, 0.0) * m.minimum(1.0, m.cast(step + 1, m.float32) / 2.0)
    variables = m.trainable_variables()
    clipped, norm = m.clip_by_global_norm(m.gradients(made["loss"], variables), clip_norm=0.1)
    train = _weight_decay(m)(rate).apply_gradients(zip(clipped, variables, strict=True), global_step=step)
    first = next(v for v in m.global_variables() if v.op.name == "w1/adam_m")
    return {**made, "first": first, "norm": norm, "step": step, "train": m.group(train, step.assign(step + 1))}


def _clipped(m: Any) -> Model:
    made = classifier(m)
    optimizer = m.train.AdamOptimizer(0.05)
    pairs = [(m.clip_by_value(g, -0.02, 0.02), v) for g, v in optimizer.compute_gradients(made["loss"])]
    noted = {f"gradient of {v.op.name}": g for g, v in pairs}
    train = optimizer.apply_gradients(pairs)
    slots = {"m": optimizer.get_slot(made["w1"], "m"), "v": optimizer.get_slot(made["w1"], "v")}
    powers = {f"power {i}": variable for i, variable in enumerate(optimizer.variables()[-2:])}
    return {**made, **noted, **slots, **powers, "train": train}


def _accumulated(m: Any) -> Model:
    made = classifier(m)
    optimizer = m.train.MomentumOptimizer(0.1, 0.9)
    pairs = optimizer.compute_gradients(made["loss"])
    sums = [
        m.get_variable(f"sum/{v.op.name}", v.shape, initializer=m.zeros_initializer(), trainable=False)
        for _, v in pairs
    ]
    add = m.group(*(total.assign_add(g) for total, (g, _) in zip(sums, pairs, strict=True)))
    apply = optimizer.apply_gradients([(total / 2.0, v) for total, (_, v) in zip(sums, pairs, strict=True)])
    empty = m.group(*(total.assign(m.zeros_like(total)) for total in sums))
    return {**made, "sum": sums[0], "add": add, "apply": apply, "empty": empty}


def _rows(m: Any) -> Model:
    words = m.placeholder(m.int32, [BATCH, 3], name="words")
    made: dict[str, Any] = {"words": words}
    loss, table, w = _of_rows_and_dense(m, "clipped", words)
    clipped, norm = m.clip_by_global_norm(m.gradients(loss, [table, w]), 0.05)
    assert isinstance(clipped[0], tf.IndexedSlices)
    train = m.train.AdagradOptimizer(0.5).apply_gradients([(clipped[0], table), (clipped[1], w)])
    # Devices have the same rows in another order.
    made |= {"norm": norm, "clipped": m.convert_to_tensor(clipped[0]), "table": table, "w": w}
    loss, other, _ = _of_rows_and_dense(m, "by_hand", words)
    (rows,) = m.gradients(loss, [other])
    by_hand = m.scatter_sub(other, rows.indices, 0.1 * rows.values).op
    whole = m.convert_to_tensor(m.gradients(loss, other)[0])
    return {**made, "whole": whole, "other": other, "train": m.group(train, by_hand)}


def _passed_rows(m: Any) -> Model:
    """Rows that go through other operators before they come to their tables."""
    words = m.placeholder(m.int32, [BATCH, 3], name="words")

    def table(name: str, seed: int) -> Any:
        return m.get_variable(name, [6, 4], initializer=normal(m, seed))

    tables = {name: table(name, 3 + place) for place, name in enumerate(_PASSED)}
    ways = {
        "cast": (m.cast(tables["cast"], m.float64), words),
        "negative": (-m.identity(tables["negative"]), words),
        "tiled": (m.tile(tables["tiled"], [2, 1]), 2 * words),
        "above": (m.concat([tables["above"], tables["below"]], 0), 2 * words),
        "left": (m.concat([tables["left"], tables["right"]], 1), words),
    }
    found = [m.reduce_sum(m.square(m.gather(way, places))) for way, places in ways.values()]
    segments = m.constant(np.arange(3 * BATCH, dtype=np.int32) // 2)
    summed = m.raw_ops.SparseSegmentSumWithNumSegments(
        data=tables["segments"],
        indices=m.reshape(words, [-1]),
        segment_ids=segments,
        num_segments=(3 * BATCH + 1) // 2,
        sparse_gradient=True,
    )
    loss = m.add_n([m.cast(each, m.float32) for each in (*found, m.reduce_sum(m.square(summed)))])
    train = m.train.MomentumOptimizer(0.02, 0.9).minimize(loss)
    return {**tables, "words": words, "loss": loss, "train": train}


def _two_losses(m: Any) -> Model:
    """Two players with variables of their own, one of whom goes first."""
    made = classifier(m)
    fake = m.get_variable("fake", [BATCH, 6], initializer=normal(m, 5))
    hidden = m.nn.relu(m.matmul(fake, made["w1"]) + made["b1"])
    judged = m.reduce_mean(m.square(m.matmul(hidden, made["w2"])))
    player, judge = m.train.AdamOptimizer(0.01, name="player"), m.train.GradientDescentOptimizer(0.1, name="judge")
    of_judge = judge.compute_gradients(made["loss"] - judged, var_list=[made["w1"], made["b1"], made["w2"]])
    first = judge.apply_gradients(of_judge)
    second = player.minimize(judged, var_list=[fake])
    return {**made, "fake": fake, "judged": judged, "judge": first, "player": second}


def _of_tensors(m: Any) -> Model:
    """Gradients by tensors, weighed, stopped, and where there are none."""
    made = classifier(m)
    alone = m.get_variable("alone", [3])
    by_tensors = m.gradients(made["loss"], [made["hidden"], made["logits"], made["x"]])
    (weighed,) = m.gradients(made["logits"], made["w1"], grad_ys=m.ones([BATCH, 4]) * 0.25)
    (stopped,) = m.gradients(made["loss"], made["w2"], stop_gradients=[made["hidden"]])
    (past_stop,) = m.gradients(m.reduce_sum(made["hidden"]) + made["loss"], made["w1"], stop_gradients=[made["logits"]])
    (of_both,) = m.gradients([made["loss"], made["losses"]], made["w1"])
    assert m.gradients(made["loss"], [alone, made["w2"]])[0] is None
    zeros = m.gradients(made["loss"], [alone], unconnected_gradients=tf.UnconnectedGradients.ZERO)[0]
    # A step that is made of a gradient by a tensor.
    step = made["w2"].assign_sub(m.matmul(made["hidden"], by_tensors[1], transpose_a=True)).op
    found = {"weighed": weighed, "stopped": stopped, "past stop": past_stop, "of both": of_both, "zeros": zeros}
    names = ("by hidden", "by logits", "by x")
    return {**made, **found, **dict(zip(names, by_tensors, strict=True)), "train": step}


_EVERY = [f"{name} {kind}" for name in (*OPTIMIZERS, "RMSPropOptimizer centered") for kind in ("loss", "table", "w")]
_SLOTS = ["AdamOptimizer m table", "AdadeltaOptimizer accum_update w", "FtrlOptimizer linear table"]
TRAININGS: Mapping[str, Training] = {
    "every optimizer": Training(_every_optimizer, [*_EVERY, *_SLOTS, "step"], feeds=_words),
    "an optimizer of one's own": Training(_own_optimizer, ["loss", "norm", "w1", "b1", "w2", "first", "step"]),
    "clipped values and slots": Training(
        _clipped, ["loss", "w1", "b1", "w2", "m", "v", "power 0", "power 1", "gradient of b1"]
    ),
    "accumulation": Training(
        _accumulated, ["loss", "w1", "w2", "sum"], turns=("add", "add", "apply", "empty", "add", "apply")
    ),
    "rows": Training(_rows, ["norm", "clipped", "whole", "table", "w", "other"], feeds=_words),
    "merged rows": Training(_merged_rows, ["norm", "table", "w"], feeds=_words),
    "passed rows": Training(_passed_rows, ["loss", *_PASSED], feeds=_words),
    "two losses": Training(_two_losses, ["loss", "judged", "w1", "w2", "fake"], turns=("judge", "player", "judge")),
    "gradients by tensors": Training(
        _of_tensors,
        [
            "by hidden", "by logits", "by x", "weighed", "stopped", "past stop", "of both", "zeros", "w2",
        ],
    ),
}  # fmt: skip
