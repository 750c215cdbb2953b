"""``measuring``: steps of a real run beside what their plan predicts, for every operator and collective."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from typing import Any

from tensoropt.api.session.costs import settle_costs
from tensoropt.api.session.job import current_job, job_of, planned_as
from tensoropt.errors import ProblemError, SessionError
from tensoropt.exec.program.recording import record
from tensoropt.logs import is_speaker
from tensoropt.measure.operators import keep_operators
from tensoropt.plan.plan import Plan
from tensoropt.search.measurement import Measurement
from tensoropt.simulate.simulated_step import simulate
from tensoropt.stages import announce
from tensoropt.storage import write_whole
from tensoropt.storage.document import cause_of, refused

__all__ = ["Measuring", "measuring"]


class Measuring:
    """The recording of :func:`measuring`; its result exists once the block is over."""

    def __init__(self) -> None:
        self._result: Measurement | None = None

    @property
    def result(self) -> Measurement:
        """The measurement.

        Raises:
            SessionError: the block is not over, or ended with an error.
        """
        if self._result is None:
            raise SessionError(
                "measuring: there is a result after the block `with tensoropt.measuring() as found:` has ended, not "
                "inside of it. Use found.result below the block."
            )
        return self._result

    def show(self) -> None:
        """Prints the result, on rank 0."""
        self.result.show()

    def save_trace(self, path: str | os.PathLike[str]) -> None:
        """Writes the last traced step of all ranks for Perfetto or ``chrome://tracing``; rank 0 writes.

        Below ranks are devices of the step that the plan predicts, where its model was planned here.
        """
        if is_speaker():
            _write(path, self.result.chrome_trace(_predicted(self.result.plan)))

    def recalibrate(self) -> float:
        """Corrects the profile of this machine's operators by what they took in the steps; collective.

        Later searches of this job, and of later ones with as many ranks on each host, go by it, until
        ``init(refresh=True)`` measures anew. An operator that takes longer in a step than by itself is taken to do so
        however it is split, and collectives of one kind over the same devices are taken to do so at every size.

        Returns:
            The seconds that the measured plan is now predicted to take.

        Raises:
            SessionError: the plan's model is not here, or its costs are not measured ones.
        """
        result = self.result
        plan = result.plan
        with job_of("recalibrate", plan) as job:
            planner, topology = job.planner(str(plan.notes.get("feed", "data_parallel"))), job.topology
            if topology is not None and topology.fingerprint() == plan.notes.get("topology"):
                settle_costs(job, planner.of_plan(plan), topology, plan.notes.get("costs"))
            with job.world.step("recalibrate()"):
                profile = planner.profile
                if topology is None or profile is None:
                    raise SessionError(
                        "recalibrate: the plan goes by analytic costs, or is not for this job's devices as they were "
                        "measured last. Let find_strategy search for them with costs='measured', and train by that."
                    )
                planner = planner.of_plan(plan)
                profile = profile.scaled(result.factors(planner.space_with(topology, plan)))
                planner.calibrate(profile)
                space = planner.space_with(topology, plan)
                assignment, alternatives = space.strategy_of(plan)
                again = space.plan(assignment.tolist(), plan.option, alternatives=alternatives, peak=False)
            keep_operators(job.world.comm, profile)
        announce(
            f"recalibrate: {plan.option} is now predicted to take {again.time_s * 1e3:.4g} ms a step; predicted were "
            f"{plan.time_s * 1e3:.4g} ms, measured {result.step_s * 1e3:.4g}"
        )
        return again.time_s

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes all figures as JSON; rank 0 writes."""
        if is_speaker():
            _write(path, self.result.to_json() + "\n")


@contextlib.contextmanager
def measuring(steps: int = 5) -> Iterator[Measuring]:
    """Records training steps that run inside the block, of a loop, of ``fit`` or of a function, on all ranks.

    Every other step is traced, which slows it down, and the ones between are timed. All ranks have the block around the
    same steps. Where several models train in it, those of the first count.

    Args:
        steps: so many are traced at most; the first two or three of a job build programs, so train some before.

    Example::

        with tensoropt.measuring() as found:
            model.fit(data, steps_per_epoch=20)
        found.show()
        found.save_trace("step.json")

    Raises:
        ProblemError: less than two training steps ran, or others on each rank.
    """
    if isinstance(steps, bool) or not isinstance(steps, int) or steps < 1:
        raise ProblemError(
            f"measuring: steps must be a whole number of at least 1, got {steps!r}. Give 5, for example."
        )
    found = Measuring()
    with record(steps) as recording:
        yield found
    job = current_job()
    mine = recording.steps
    every = [mine] if job.world.comm is None or job.world.size == 1 else job.world.comm.allgather(mine)
    if recording.plan is None:
        raise ProblemError(
            "measuring: no training step ran in the block. Train some steps in it: by tensoropt.run, fit or a function."
        )
    found._result = Measurement.of(recording.plan, every)


def _write(path: str | os.PathLike[str], text: str) -> None:
    """Writes a file, whole or not at all.

    Raises:
        ProblemError: there can be no such file.
    """
    try:
        write_whole(path, text)
    except OSError as error:
        subject, remedy = f"measuring: '{os.fspath(path)}'", "Give a file in a directory that exists and has room."
        raise refused(ProblemError, subject, f"cannot be written: {cause_of(error)}.", remedy) from error


def _predicted(plan: Plan) -> dict[str, Any] | None:
    """The simulated step of a plan as a trace; None for steps of which there is no simulation, or where its model or
    its cluster is not here.
    """
    if planned_as("measuring", plan) is None:
        return None
    with job_of("measuring", plan) as job:
        topology = job.topology
        if topology is None or topology.fingerprint() != plan.notes.get("topology"):
            return None
        planner = job.planner(str(plan.notes.get("feed", "data_parallel"))).of_plan(plan)
        if not planner.is_simulated:
            return None
        space = planner.space(topology)
        assignment, _ = space.strategy_of(plan)
    found: dict[str, Any] = json.loads(simulate(space, assignment.tolist()).to_chrome_trace())
    return found
