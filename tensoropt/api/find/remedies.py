"""Remedies where nothing fits: other steps, more devices, or a smaller batch, found by searching for them."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

from tensoropt.api.find.planner import Planner
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.cluster import Topology
from tensoropt.cluster.scaling import scaled
from tensoropt.errors import TensorOptError
from tensoropt.graph.registry import traits
from tensoropt.search.options import MemoryLimit

__all__ = ["remedies"]

_log = logging.getLogger("tensoropt")
# Each doubling makes the search longer; a user who is off by more than this has another problem.
_DOUBLINGS = 3
_HALVINGS = 6
# No search for a remedy is begun after this: an error should not take longer than the planning that ends in it.
_BUDGET_S = 60.0


@dataclass(frozen=True, slots=True)
class _Outcome:
    """A remedy that was found, or what is known where there is none."""

    found: str | None
    otherwise: str = ""


def remedies(planner: Planner, topology: Topology, limit: MemoryLimit, *, data_parallel: bool = False) -> str:
    """Returns the sentences for the error that nothing fits: what would fit instead.

    The least memory is found by a search without time, whose frontier is a single point. Device counts that are known
    to be too small are not searched.

    Args:
        planner: for the model.
        topology: on which nothing fits.
        limit: in which nothing fits.
        data_parallel: whether only data parallelism is known not to fit; other strategies may.
    """
    deadline_s = time.monotonic() + _BUDGET_S
    count = topology.device_count
    least = None if planner.undivided(count) or planner.misfit(count) else planner.least_bytes(topology)
    if data_parallel and least is not None:
        if least <= limit.limit_bytes:
            return f"Use option='mini_time': strategies that take {least:,.0f} bytes or more fit."
        least_text = f"No strategy fits, the least that any takes is {least:,.0f} bytes. "
    else:
        least_text = ""
    batch = _smaller_batch(planner, topology, limit, deadline_s)  # first, as fewer devices are searched faster
    devices = _more_devices(planner, topology, limit, deadline_s)
    steps = _other_steps(planner, topology, limit, deadline_s)
    allow = None if least is None else f"allow {math.ceil(least)} bytes"
    ways = [way for way in (allow, *steps, devices.found, batch.found) if way]
    advice = ", or ".join(ways)
    first = f"{advice[:1].upper()}{advice[1:]}." if ways else ""
    return " ".join(filter(None, [least_text.strip(), first, devices.otherwise, batch.otherwise]))


def _other_steps(planner: Planner, topology: Topology, limit: MemoryLimit, deadline_s: float) -> list[str]:
    """The steps in which a strategy fits: the smallest number of micro-batches, and operators that are made again;
    both together where neither does alone.
    """
    if planner.undivided(topology.device_count) or planner.misfit(topology.device_count):
        return []
    again = [] if planner.recompute else [True]
    split = [] if planner.micro_batches > 1 else list(planner.numbers_of_micro_batches())
    ways = [_fitting_steps(planner, topology, limit, deadline_s, split, False)]
    ways += [_fitting_steps(planner, topology, limit, deadline_s, [1], each) for each in again]
    if not any(ways):
        ways = [_fitting_steps(planner, topology, limit, deadline_s, split, each) for each in again]
    return [way for way in ways if way]


def _fitting_steps(
    planner: Planner,
    topology: Topology,
    limit: MemoryLimit,
    deadline_s: float,
    numbers: Sequence[int],
    again: bool,
) -> str | None:
    """The first number of micro-batches in which a strategy fits, in words; None if there is none.

    Args:
        planner: for the model.
        topology: the devices.
        limit: of each.
        deadline_s: no search begins after it.
        numbers: of micro-batches, times those that the planner has.
        again: whether operators may be made again, too.
    """
    for times in numbers:
        if time.monotonic() > deadline_s:
            return None
        steps = planner.with_steps(times * planner.micro_batches, again or planner.recompute)
        try:
            if not steps.fits(topology, limit.limit_bytes):
                continue
            least = steps.least_bytes(topology)
        except TensorOptError as error:
            _log.debug("%d micro-batches cannot be planned: %s", times, error)
            continue
        what = [f"split each step into {times} micro-batches"] if times > 1 else []
        what += ["allow operators to be made again in the backward pass"] if again else []
        asked = [f"micro_batches={times}"] if times > 1 else []
        asked += ["recompute=True"] if again else []
        return f"{' and '.join(what)} ({', '.join(asked)}, the least is {least:,.0f} bytes)"
    return None


def _more_devices(planner: Planner, topology: Topology, limit: MemoryLimit, deadline_s: float) -> _Outcome:
    """The first of 2, 4 and 8 times the devices on which a strategy fits."""
    counts = [topology.device_count * 2**doubling for doubling in range(1, _DOUBLINGS + 1)]
    bound, why = planner.least_possible(counts[-1])
    if bound > limit.limit_bytes:
        return _Outcome(None, f"More devices do not help up to {counts[-1]}: there, {why}.")
    known = ""
    for count in counts:
        if planner.least_possible(count)[0] > limit.limit_bytes:
            continue
        undivided = planner.undivided(count)
        if undivided is not None:
            return _Outcome(None, f"{known}More devices need a larger batch, or feed='global': {undivided}.")
        misfit = planner.misfit(count)
        if misfit is not None:
            return _Outcome(None, f"{known}More devices need other pins: {misfit}.")
        if time.monotonic() > deadline_s:
            return _Outcome(None, f"{known}Whether {count} devices would do was not searched.")
        least = planner.least_bytes(scaled(topology, count))
        if least <= limit.limit_bytes:
            return _Outcome(f"use {count} devices of this kind (the least there is {least:,.0f} bytes)")
        known = f"More devices do not help up to {count}, on which the least is {least:,.0f} bytes. "
    return _Outcome(None, known.strip())


def _smaller_batch(planner: Planner, topology: Topology, limit: MemoryLimit, deadline_s: float) -> _Outcome:
    """The largest half, quarter, ... of the batch with which a strategy fits."""
    batch, devices = planner.batch(), topology.device_count
    bound, why = planner.least_possible(devices, any_batch=True)
    if bound > limit.limit_bytes:
        return _Outcome(None, f"No smaller batch helps: {why}.")
    if batch is None:
        return _Outcome(None)
    known = ""
    for halving in range(1, _HALVINGS + 1):
        smaller, rest = divmod(batch, 2**halving)
        if rest or smaller < 1 or (planner.feed == "data_parallel" and smaller % devices):
            break
        if time.monotonic() > deadline_s:
            return _Outcome(None, f"{known}Whether a batch of {smaller} would do was not searched.")
        try:
            least = _with_batch(planner, smaller).least_bytes(topology)
        except (TensorOptError, ValueError) as error:
            _log.debug("a batch of %d cannot be planned: %s", smaller, error)
            return _Outcome(
                None, f"Smaller batches were not searched: the model cannot be imported with {smaller} samples."
            )
        if least <= limit.limit_bytes:
            return _Outcome(
                f"make the batch smaller: with {smaller} samples instead of {batch} the least is {least:,.0f} bytes"
            )
        known = f"A batch of {smaller} does not help, with which the least is {least:,.0f} bytes. "
    return _Outcome(None, known.strip() or f"A batch of {batch} cannot be halved for {devices} devices.")


def _with_batch(planner: Planner, batch: int) -> Planner:
    """A planner for the same model with another first dimension of its inputs.

    Raises:
        ValueError: TensorFlow cannot infer the shapes: the old size is written into some operator.
        TensorOptError: the model cannot be imported so.
    """
    old = planner.batch()
    shapes = {}
    for op in planner.imported.tf_graph.get_operations():
        if traits(op).must_be_fed:
            shape = op.outputs[0].shape.as_list()
            shapes[op.name] = [batch, *shape[1:]] if shape and shape[0] == old else shape
    return Planner(import_model(planner.model, shapes=shapes), planner.feed, planner.model, recompute=planner.recompute)
