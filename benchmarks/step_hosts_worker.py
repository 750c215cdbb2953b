"""One model of :mod:`benchmarks.step_hosts` on one link: all ways to train it, in turns, in one job.

Rank 0 writes a file of JSON. A turn begins with initial values, and with two steps that do not count.
"""

from __future__ import annotations

import argparse
import functools
import json
import logging
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

import tensoropt
from benchmarks.models import OPTIMIZERS, Model
from benchmarks.step_hosts import steps_of_turn
from benchmarks.step_worker import Planned, Step, models, one_process, trainer
from tensoropt.errors import TensorOptError
from tensoropt.exec.engines.launch import start_mpi
from tensoropt.plan.plan import Plan

# By find_strategy, in this order.
_ASKED: Mapping[str, Mapping[str, Any]] = {
    "data_parallel": {"option": "data_parallel"},
    "mini_time": {"micro_batches": "auto"},
    "pipeline": {"search": "pipeline", "micro_batches": "auto"},
}
_LINK_BYTES, _LINK_TIMES = 2**23, 5
_POLL_S = 1e-3


class _Way:
    """A way to train."""

    def __init__(self, model: Model, begin: Callable[[], Step], *, whole: bool = False, one: bool = False) -> None:
        """Takes how to train.

        Args:
            model: which.
            begin: makes a step with initial values.
            whole: each rank has whole batches of its own.
            one: only rank 0 trains, and the other host rests.
        """
        self._model, self._begin, self._whole, self._one = model, begin, whole, one
        self.turns_s: list[list[float]] = []
        self.losses: list[float] = []

    def turn(self, steps: int) -> None:
        """Trains for so many steps, or fewer long ones. Collective."""
        world = start_mpi()
        from mpi4py import MPI  # to import it starts MPI

        if not self._one or world.rank == 0:
            self._train(steps, MPI.COMM_SELF if self._one else world)
        request = world.Ibarrier()
        while not request.Test():
            time.sleep(_POLL_S)

    def _train(self, steps: int, comm: Any) -> None:
        rank, size = (0, 1) if self._whole else (comm.rank, comm.size)
        train = trainer(self._model, rank, size, self._begin())
        losses = train(1)["losses"]
        comm.Barrier()
        probe = train(1)
        found = train(comm.bcast(steps_of_turn(probe["seconds"][0], steps)))
        self.turns_s.append(np.max(comm.allgather(found["seconds"]), axis=0).tolist())
        self.losses = max(self.losses, losses + probe["losses"] + found["losses"], key=len)


class _Said(logging.Handler):
    """Keeps the last line that tensoropt has said."""

    line = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Takes a line."""
        self.line = record.getMessage()


def main() -> None:
    """Measures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--short", action="store_true")
    parser.add_argument("--optimizer", choices=sorted(OPTIMIZERS), default="sgd")
    parser.add_argument("--turns", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    flags = parser.parse_args()
    model = models(flags.short)[flags.model]
    tensoropt.init(refresh=True)
    link_bytes_per_s = _link_bytes_per_s(start_mpi())
    planned = Planned(model, flags.optimizer)
    alone = functools.partial(one_process, model, flags.optimizer)
    ways = {"one_process": _Way(model, alone, whole=True, one=True), "each_alone": _Way(model, alone, whole=True)}
    about: dict[str, Mapping[str, Any]] = {name: {} for name in ways}
    plans, refused = _plans()
    by_time: dict[float, _Way] = {}  # of equal plans
    for name, (plan, said) in plans.items():
        about[name] = {"predicted_s": plan.time_s, "pipeline": plan.notes.get("pipeline"), "said": said}
        way = _Way(model, functools.partial(planned.step, plan))
        ways[name] = by_time.setdefault(plan.time_s, way)
    for _ in range(flags.turns):
        for way in dict.fromkeys(ways.values()):
            way.turn(flags.steps)
    if tensoropt.world_rank() == 0:
        found = {name: (way.turns_s, way.losses, about[name]) for name, way in ways.items()}
        report = {"link_bytes_per_s": link_bytes_per_s, "variants": found, "failed": refused}
        flags.out.write_text(json.dumps(report) + "\n", encoding="utf-8")


def _link_bytes_per_s(comm: Any) -> float:
    """What the link carries in one direction while nothing comes back; on all ranks.

    Open MPI often sends two large messages of opposite directions one after the other, at half of that each.
    """
    data = np.zeros(_LINK_BYTES, np.uint8)
    seconds = []
    for _ in range(_LINK_TIMES):
        comm.Barrier()
        started = time.perf_counter()
        if comm.rank == 0:
            comm.Send(data, dest=1)
        else:
            comm.Recv(data, source=0)
        comm.Barrier()  # what is sent may still be on its way
        seconds.append(time.perf_counter() - started)
    return float(_LINK_BYTES / np.median(comm.allgather(seconds)))


def _plans() -> tuple[dict[str, tuple[Plan, str]], dict[str, str]]:
    """Plans with what searches have said of them, and why there is none, by name."""
    plans: dict[str, tuple[Plan, str]] = {}
    refused: dict[str, str] = {}
    said = _Said(logging.INFO)
    logging.getLogger("tensoropt").addHandler(said)
    for name, asked in _ASKED.items():
        try:
            # A pipeline that mini_time takes is the one that would be found again.
            known = plans.get("mini_time") if name == "pipeline" else None
            if known is None or known[0].option != name:
                known = tensoropt.find_strategy(**asked), said.line
            plans[name] = known
        except TensorOptError as error:
            refused[name] = str(error)
    logging.getLogger("tensoropt").removeHandler(said)
    return plans, refused


if __name__ == "__main__":
    main()
