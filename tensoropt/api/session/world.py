"""The ranks of the job: which of them this process is, and how all of them take one step, agree or fail together."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

from tensoropt.api.frontend.imported_model import ImportedModel
from tensoropt.api.session.agreement import agree_on_nodes
from tensoropt.errors import CollectiveError, SessionError, TensorOptError
from tensoropt.exec.engines.guard import Guard, note_told
from tensoropt.exec.engines.launch import agree, install_abort_hook, keep_first_ranks, start_mpi
from tensoropt.exec.engines.watch import current_watch
from tensoropt.logs import launched_rank, set_up_logging
from tensoropt.stages import working

__all__ = ["World"]

_Value = TypeVar("_Value")


@dataclass
class World:
    """All processes of the job, before and after MPI has started. Jobs beside the script's own share one.

    Attributes:
        comm: the communicator; None before MPI has started.
        guard: compares steps; None before MPI has started, and in a rehearsal, which has no other ranks.
        base_seed: a seed drawn at random, the same on all ranks once MPI has started.
        left: True if the plan needs fewer ranks than the job had, and not this one.
    """

    comm: Any = None
    guard: Guard | None = None
    base_seed: int = 1
    left: bool = False

    @property
    def rank(self) -> int:
        """This process's rank; before MPI has started, that by which a launcher started the process, or 0."""
        return launched_rank() if self.comm is None else int(self.comm.rank)

    @property
    def size(self) -> int:
        """The number of ranks; 1 before MPI has started."""
        return 1 if self.comm is None else int(self.comm.size)

    @property
    def are_several(self) -> bool:
        """True if there are other ranks, with which steps are compared."""
        return self.guard is not None and self.size > 1

    def start(self) -> None:
        """Starts MPI, once."""
        if self.comm is not None:
            return
        comm = start_mpi()
        set_up_logging(comm.rank)
        install_abort_hook(comm)
        self.guard = Guard(comm)
        self.comm = comm
        self.base_seed = self.draw_seed()

    def keep_first(self, count: int) -> bool:
        """Goes on with the first ranks alone; tells whether this rank is among them. Collective.

        Another rank has left the job afterwards, and its program is to end.
        """
        if self.guard is not None:
            self.guard.close()
            self.guard = None
        self.left = not keep_first_ranks(count)
        if not self.left:
            self.comm = start_mpi()
            self.guard = Guard(self.comm)
        return not self.left

    def require_member(self, what: str) -> None:
        """Checks that this rank has not left the job.

        Raises:
            SessionError: it has.
        """
        if self.left:
            raise SessionError(
                f"{what}: rank {self.rank} is not needed for the plan and has left the job. Let its program end, as "
                "build_execution_graph asked it to by SystemExit."
            )

    def meet(self, what: str, error: BaseException | None = None, **more: Any) -> None:
        """Compares the step that each rank is about to take; see :meth:`Guard.meet`."""
        if self.guard is not None:
            self.guard.meet(what, error, **more)

    @contextlib.contextmanager
    def step(self, what: str) -> Iterator[None]:
        """Surrounds the part of a step that needs no other rank; an error in that part ends the step on all ranks.

        Raises:
            CollectiveError: another rank failed, or takes another step.
        """
        self.require_member(what)
        if self.guard is None:
            yield
            return
        with self.guard.step(what):
            yield

    def agree(self, what: str, value: str) -> None:
        """Checks that all ranks have the same value.

        Raises:
            CollectiveError: on every rank, if they have not.
        """
        if self.are_several:
            with current_watch().waiting(f"comparing the {what}"):
                agree(self.comm, what, value)

    def gather(self, value: _Value) -> list[_Value]:
        """The values of all ranks."""
        if not self.are_several:
            return [value]
        with current_watch().waiting("comparing what ranks are about to run"):
            return list(self.comm.allgather(value))

    def agree_on_model(self, imported: ImportedModel) -> None:
        """Checks that all ranks have built the same model, with the same constants and seeds.

        Raises:
            CollectiveError: on every rank, if they have not.
        """
        if self.are_several and imported.tf_graph is not None:
            with working("comparing the model"):
                agree_on_nodes(self.comm, imported)
        self.agree("model", imported.graph.fingerprint())

    def on_rank_0(self, what: str, make: Callable[[], _Value]) -> _Value:
        """Returns on every rank what ``make`` returns on rank 0, or raises its error there.

        Raises:
            TensorOptError: what ``make`` raised on rank 0; other exceptions are a CollectiveError on other ranks.
        """
        if not self.are_several:
            return make()
        self.meet(what)
        outcome: tuple[Any, TensorOptError | None] = (None, None)
        failure: Exception | None = None
        if self.rank == 0:
            try:
                with working(what):
                    outcome = (make(), None)
            except Exception as error:  # whatever it is, the other ranks must hear of it instead of waiting
                failure = error
                described = f"{what}: failed on rank 0: {type(error).__name__}: {error}"
                outcome = (None, error if isinstance(error, TensorOptError) else CollectiveError(described))
        with current_watch().waiting(what):
            value, error_of_0 = self.comm.bcast(outcome, root=0)
        if failure is not None:
            note_told(failure)
            raise failure
        if error_of_0 is not None:
            error_of_0.failed_rank = 0
            raise error_of_0
        return value

    def given_somewhere(self, what: str, value: _Value | None) -> _Value | None:
        """Returns this rank's value, or if it has none, the value of the ranks that have one, if these agree.

        All ranks call it together. Scripts say what is written to where on rank 0 alone.

        Raises:
            CollectiveError: another rank takes another step.
        """
        if not self.are_several:
            return value
        self.require_member(what)
        self.meet(what)
        with current_watch().waiting(what):
            found = self.comm.allgather(value)
        others = {each for each in found if each is not None}
        return others.pop() if value is None and len(others) == 1 else value

    def draw_seed(self) -> int:
        """Draws a random seed, the same on all ranks; collective."""
        return self.on_rank_0("drawing a seed", lambda: int.from_bytes(os.urandom(3), "big") + 1)
