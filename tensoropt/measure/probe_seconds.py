"""Seconds of probes, of all ranks together."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np

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
    processor time, times how many share a core. Of a card a trace says only how long the host takes to start its
    kernels: there each pass takes what it takes the slowest rank by the clock, for which the host waits until the card
    is done, times how many share the card. They take turns, since cards change from process to process now and then.

    Args:
        machine: with all ranks.
        probes: the same ones on every rank.
        runs: how often each runs; medians count.

    Returns:
        With what this rank measured; None for a probe that cannot be measured.
    """
    comm, is_crowded = machine.comm, machine.crowding > 1
    has_cards = any(rank.card for rank in machine.ranks)
    times = measure_batch(
        probes,
        turn=machine.in_turn,
        spread=lambda mine: set().union(*comm.allgather(mine)),
        crowd=machine.in_turn if has_cards else machine.at_once,
        clock=time.process_time if is_crowded and not has_cards else time.perf_counter,
        runs=runs,
        traced_runs=1 if is_crowded or has_cards else runs,
    )
    for number, reason in sorted(times.failures.items()):
        _log.debug("profile: probe %d cannot be measured: %s", number, reason)
    mine = [(0.0, 0.0) if entry is None else (entry.forward_s, entry.backward_s) for entry in times.probes]
    kernels_s = np.mean(comm.allgather(mine), axis=0).reshape(-1)
    passes_s = np.array(comm.allgather(times.passes_s))
    slowest_s = np.median(passes_s.max(axis=0), axis=0)
    if has_cards:
        seconds = slowest_s * machine.crowding
    elif is_crowded:
        seconds = np.median(passes_s, axis=1).mean(axis=0) * machine.crowding
    else:
        seconds = kernels_s * _bounded_pace(float(slowest_s.sum()), float(kernels_s.sum()))
    return [
        None if entry is None else (float(forward), float(backward), entry)
        for entry, (forward, backward) in zip(times.probes, seconds.reshape(-1, 2), strict=True)
    ]


def _bounded_pace(took_s: float, traced_s: float) -> float:
    return float(np.clip(took_s / traced_s, _LEAST_PACE, _MOST_PACE)) if traced_s > 0 else 1.0
