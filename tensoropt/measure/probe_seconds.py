"""Seconds of probes, of all ranks together."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
import tensorflow as tf
from numpy.typing import NDArray

from tensoropt.measure.machine import Machine
from tensoropt.measure.probe_batch import RUNS, Measured, measure_batch
from tensoropt.measure.probes import Probe

__all__ = ["run_probes"]

_log = logging.getLogger("tensoropt")
# By how much less or more a batch may take without a trace, lest a disturbance decide on all of its operators.
_LEAST_PACE, _MOST_PACE = 0.8, 1.5


def run_probes(
    machine: Machine, probes: Sequence[Probe], runs: int = RUNS
) -> list[tuple[float, float, Measured] | None]:
    """Seconds forward and backward of each probe, of all ranks together. Collective.

    They are what kernels take, traced, on average over ranks, times how much longer all passes of the batch take by the
    clock the slowest rank, each time another one: ranks meet in collectives, many times in a step. A single pass is too
    short for a clock. Where ranks share cores, others work while one waits, and traces in turns do not show how they
    take a core's caches from one another, each kernel in its own way: there each pass takes the mean of the ranks'
    processor time, times how many share a core.

    Args:
        machine: with all ranks.
        probes: the same ones on every rank.
        runs: how often each runs; medians count.

    Returns:
        With what this rank measured; None for a probe that cannot be measured.
    """
    comm, is_crowded = machine.comm, machine.crowding > 1
    clock = time.process_time if is_crowded else time.perf_counter
    # No clock of the host's tells what GPUs do. Ranks agree, or they would wait for one another.
    has_gpus = any(comm.allgather(bool(tf.config.list_physical_devices("GPU"))))
    times = measure_batch(
        probes,
        turn=machine.in_turn,
        spread=lambda mine: set().union(*comm.allgather(mine)),
        crowd=machine.at_once,
        clock=None if has_gpus else clock,
        runs=runs,
        traced_runs=1 if is_crowded and not has_gpus else runs,
    )
    for number, reason in sorted(times.failures.items()):
        _log.debug("profile: probe %d cannot be measured: %s", number, reason)
    mine = [(0.0, 0.0) if entry is None else (entry.forward_s, entry.backward_s) for entry in times.probes]
    kernels_s = np.mean(comm.allgather(mine), axis=0).reshape(-1)
    every = comm.allgather((times.traced_s, times.plain_s, times.passes_s))
    passes_s = np.array([of_rank for *_, of_rank in every])
    if has_gpus:
        seconds = kernels_s * machine.crowding * _pace(every)
    elif is_crowded:
        seconds = np.median(passes_s, axis=1).mean(axis=0) * machine.crowding
    else:
        slowest_s = np.median(passes_s.max(axis=0), axis=0)
        seconds = kernels_s * _bounded_pace(float(slowest_s.sum()), float(kernels_s.sum()))
    return [
        None if entry is None else (float(forward), float(backward), entry)
        for entry, (forward, backward) in zip(times.probes, seconds.reshape(-1, 2), strict=True)
    ]


def _pace(ranks: Sequence[tuple[float, tuple[float, ...], NDArray[np.float64]]]) -> float:
    """Returns the ratio of untraced run time to traced kernel time, on average over ranks.

    Without a trace kernels take less, but there is what TensorFlow takes between them; and the slowest rank sets the
    pace, as if ranks met after every operator.

    Args:
        ranks: of each what was measured of a batch: traced seconds, seconds of runs without a trace, and seconds of
            every pass of a probe in traced runs.
    """
    traced_s = float(np.mean([rank[0] for rank in ranks]))
    plain_s = np.array([rank[1] for rank in ranks])
    passes_s = np.array([rank[2] for rank in ranks])
    if not plain_s.size or not passes_s.any():
        return 1.0
    slowest_s = float(np.median(plain_s.max(axis=0)))
    waiting = float(np.median(passes_s.max(axis=0).sum(axis=1)) / np.median(passes_s.sum(axis=2).max(axis=0)))
    return _bounded_pace(slowest_s * waiting, traced_s)


def _bounded_pace(took_s: float, traced_s: float) -> float:
    return float(np.clip(took_s / traced_s, _LEAST_PACE, _MOST_PACE)) if traced_s > 0 else 1.0
