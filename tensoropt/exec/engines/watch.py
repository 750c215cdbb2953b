"""The watch over all that ranks wait for: it says for whom, and ends the job when that has no end."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
import threading
import time
import traceback
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tensoropt.errors import EngineError
from tensoropt.exec.engines.ranks import written_ranks
from tensoropt.exec.engines.settings import MOST_S, number_setting
from tensoropt.stages import Work, listen

__all__ = [
    "Activity",
    "Doing",
    "Watch",
    "current_watch",
    "describe_stall",
    "describe_wait",
    "set_current_watch",
    "stall_limit_s",
]

_VARIABLE = "TENSOROPT_STALL_SECONDS"
_DEFAULT_LIMIT_S = 300.0
_SAY_AFTER_S = 30.0  # a wait of this length is said
# How long ranks may wait for the first meeting at least: programs start at different times, and import for long.
LEAST_START_S = 60.0
_POLL_S = 0.5
_ANSWER_S = 5.0  # for ranks to say what they do: several polls of theirs
# A rank that has left took part in all that it had to, so what it left behind arrives within moments; longer than
# that, and it is missed.
_GRACE_S = 3.0
_DRAIN_S = 0.2  # mpirun forwards what a rank printed; without a moment to do so, an abort may cut it off
_QUESTION, _ANSWER, _GOODBYE = 1, 2, 3  # message tags

# What a rank does, in the words of messages.
PROGRAM, WORK, STEP, WAIT = "in the program's own code", "at work", "in a step", "waiting"


@dataclass(frozen=True, slots=True)
class Activity:
    """The state of an engine of collectives.

    Attributes:
        entered: The number of collectives that the engine has entered.
        name: The collective entered last; empty before the first.
        waiting_s: The time since the engine entered that collective; None if it has left it.
    """

    entered: int
    name: str
    waiting_s: float | None


@dataclass(frozen=True, slots=True)
class Doing:
    """The activity of a rank.

    Attributes:
        kind: ``PROGRAM``, ``WORK`` (the rank's own part of tensoropt's work, however long), ``STEP`` (the local graph),
            or ``WAIT`` for other ranks.
        what: the work in words; in the program's own code, the last work before.
        for_s: seconds.
        collectives: how many collectives the engine has entered.
    """

    kind: str
    what: str
    for_s: float
    collectives: int = 0

    def __str__(self) -> str:
        counted = f"; it has entered {self.collectives} collectives" if self.collectives else ""
        if self.kind == PROGRAM:
            return f"has been {PROGRAM} for {self.for_s:.1f} s, after {self.what or 'its start'}{counted}"
        return f"has been {self.kind} for {self.for_s:.1f} s: {self.what}{counted}"


class _State(NamedTuple):
    """The main thread's activity and its start, how long it may take, and the reason for waiting if it is a failure."""

    kind: str
    what: str
    since_s: float
    patience_s: float | None = None
    failure: str | None = None


def stall_limit_s() -> float | None:
    """Return after how many seconds a wait has stalled: TENSOROPT_STALL_SECONDS, 300 by default; None for never.

    Raises:
        EngineError: The variable is not a number of seconds.
    """
    wanted = "a number of seconds, or 0 to wait for ever"
    return number_setting(_VARIABLE, _DEFAULT_LIMIT_S, MOST_S, EngineError, wanted) or None


def describe_wait(rank: int, size: int, wait: Doing, others: Mapping[int, Doing], limit_s: float | None) -> str:
    """Return the line that says for whom a rank waits.

    Args:
        rank: Who waits.
        size: Ranks in the world.
        wait: What it is in.
        others: What each other rank said that it does; one that is not in it did not answer.
        limit_s: After how long the job ends.
    """
    silent = [other for other in range(size) if other != rank and other not in others]
    late = silent or [other for other, doing in sorted(others.items()) if doing.kind != WAIT]
    line = f"rank {rank}: waiting for {written_ranks(late or sorted(others))}"
    if silent:
        line += f", which do{'es' * (len(silent) == 1)} not answer,"
    line += f" since {wait.for_s:.0f} s in {wait.what}"
    if late and not silent:
        line += "; " + "; ".join(f"rank {other} {others[other]}" for other in late[:4])
    elif not silent:
        line += "; all of them wait, too"
    is_at_work = not silent and any(doing.kind == WORK for doing in others.values())
    return line if limit_s is None or is_at_work else f"{line} (the job ends at {limit_s:g} s, {_VARIABLE})"


def describe_stall(
    rank: int, size: int, limit_s: float, wait: Doing, others: Mapping[int, Doing], silent: Sequence[int]
) -> str:
    """Return the report of a stall.

    Args:
        rank: Who reports; it waits.
        size: Ranks in the world.
        limit_s: The time that was allowed.
        wait: What the rank is in.
        others: What each other rank said last that it does.
        silent: Those that have not answered for so long.
    """
    lines = [f"rank {rank}: {wait.what} is not over after {limit_s:g} s. The job ends."]
    for other in range(size):
        if other == rank:
            lines.append(f"  rank {other} {wait}")
        elif other in silent or other not in others:
            lines.append(
                f"  rank {other} does not answer: it is frozen, keeps Python's lock, or its host is out of reach"
            )
        else:
            lines.append(f"  rank {other} {others[other]}")
    lines.append(
        f"  A rank that is not where the others are has failed, is late, or runs another program. {_VARIABLE} sets "
        "how long to wait."
    )
    return "\n".join(lines)


class _During:
    """A block in which a rank does something. It comes twice in every step, so it is no generator."""

    __slots__ = ("_before", "_state", "_watch")

    def __init__(self, watch: Watch, state: _State) -> None:
        self._watch, self._state = watch, state

    def __enter__(self) -> None:
        self._before, self._watch._state = self._watch._state, self._state

    def __exit__(self, *error: object) -> None:
        before = self._before
        self._watch._state = before if before[0] != PROGRAM else _State(PROGRAM, self._state[1], time.monotonic())


_NOTHING = contextlib.nullcontext()


class Watch:
    """A thread beside a rank's program that knows what the rank waits for, and asks the others what they do.

    - A wait that gets long is said on the lowest rank that waits, with the ranks that it waits for.
    - One that is over the limit ends the job, if a rank does not answer, or none is at work on what others wait for.
    - A rank whose program ends says so to the next rank (to one only: where some ranks have left and others wait,
      some waiting rank comes next after one that has left), which then does not wait for it.

    A blocking MPI call cannot be interrupted, so the job ends by MPI's abort, which frozen processes do not outlive
    either. Before the ranks' first meeting there is no means to ask; the watch then knows only how long it takes.

    The threads talk over a communicator of their own; they look up twice a second and cost nothing between.
    """

    def __init__(self, limit_s: float | None) -> None:
        """Only note what this rank does, until :meth:`start`.

        Args:
            limit_s: After how many seconds a wait has stalled; None for never.
        """
        self._state = _State(PROGRAM, "", time.monotonic())
        self._worked = ""  # on, the last time
        self._engines: list[weakref.WeakMethod[Callable[[], Activity]]] = []
        self._limit_s = limit_s
        self._rank = 0
        self._mpi: Any = None
        self._comm: Any = None
        self._main = threading.get_ident()
        self._process = os.getpid()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._pending: list[Any] = []  # requests of messages under way

    def start(self, mpi: Any, rank: int) -> None:
        """Start the thread.

        Args:
            mpi: mpi4py's module; MPI must have been started with MPI_THREAD_MULTIPLE.
            rank: This one.
        """
        self._mpi, self._rank = mpi, rank
        self._thread = threading.Thread(target=self._watch, name="tensoropt watch", daemon=True)
        self._thread.start()

    def meet(self, comm: Any, limit_s: float | None) -> None:
        """Have a means to ask the others, too.

        Args:
            comm: An mpi4py communicator that nobody else uses.
            limit_s: As agreed.
        """
        self._limit_s = limit_s
        self._comm = comm
        atexit.register(self._leave)  # before MPI is finalized

    def stop(self) -> None:
        """End the watch, and wait until the thread has left MPI."""
        atexit.unregister(self._leave)
        self._stop.set()
        if self._thread is not None and threading.current_thread() is not self._thread:
            self._thread.join()

    # ------------------------------------------------------------------------------------- what this rank is doing

    def note(self, work: Work | None) -> None:
        """This rank does its own part of something, for which others may have to wait long; of nothing, if None."""
        if work is not None:
            self._worked = work.what
            self._state = _State(WORK, str(work), work.began_s)
        else:
            self._state = _State(PROGRAM, self._worked, time.monotonic())

    def stepping(self, what: str) -> contextlib.AbstractContextManager[None]:
        """This rank runs its local graph inside the block."""
        return _During(self, _State(STEP, what, time.monotonic()))

    def waiting(
        self, what: str, patience_s: float | None = None, failure: str | None = None
    ) -> contextlib.AbstractContextManager[None]:
        """This rank waits for others inside the block.

        Args:
            what: for.
            patience_s: end the job if they do not come by then.
            failure: why it waits, if that is a failure; printed then.
        """
        return _During(self, _State(WAIT, what, time.monotonic(), patience_s, failure))

    def calling(self, function: str) -> contextlib.AbstractContextManager[None]:
        """This rank is in a call of MPI inside the block, as a part of what it works on."""
        state = self._state
        return (
            _NOTHING
            if state.kind == WAIT
            else self.waiting(f"MPI's {function}" if state.kind == PROGRAM else state.what)
        )

    def follow(self, activity: Callable[[], Activity]) -> None:
        """Look after an engine's collectives, too, as long as there is the engine.

        Args:
            activity: a method of the engine.
        """
        self._engines = [*(known for known in self._engines if known() is not None), weakref.WeakMethod(activity)]

    def unfollow(self, activity: Callable[[], Activity]) -> None:
        """Look no longer."""
        self._engines = [known for known in self._engines if known() not in (None, activity)]

    def doing(self) -> Doing:
        """Returns the present activity of this rank."""
        state, now_s = self._state, time.monotonic()
        entered = 0
        for engine in self._engines:
            ask = engine()
            if ask is None:
                continue
            activity = ask()
            entered += activity.entered
            if activity.waiting_s is not None:
                what = f"collective '{activity.name}' (number {activity.entered}) of {state.what}"
                return Doing(WAIT, what, activity.waiting_s, entered)
        return Doing(state.kind, state.what, now_s - state.since_s, entered)

    # -------------------------------------------------------------------------------------------------- the thread

    def _leave(self) -> None:
        """Tell the next rank that this one is about to end. Its own end then waits for all, in MPI_Finalize."""
        if os.getpid() != self._process:
            return
        if not self._mpi.Is_finalized():
            self._pending.append(self._comm.isend(None, (self._rank + 1) % self._comm.size, _GOODBYE))
        self.stop()

    def _watch(self) -> None:
        long = _Long()
        gone_since_s: float | None = None
        poll_s = _POLL_S if self._limit_s is None else min(_POLL_S, self._limit_s / 10)
        while not self._stop.wait(poll_s):
            wait, state, now_s = self.doing(), self._state, time.monotonic()
            is_short = wait.kind != WAIT or wait.for_s < poll_s
            if self._comm is None:
                if not is_short:
                    self._look_alone(wait, long)
                continue
            self._answer(long, now_s)
            if is_short:
                long.reset()
                continue
            if state.patience_s is not None and wait.for_s > state.patience_s:
                self._end(state, f"the other ranks did not come within {state.patience_s:g} s")
            previous = (self._rank - 1) % self._comm.size
            if gone_since_s is None and self._comm.Iprobe(previous, _GOODBYE):
                gone_since_s = now_s
            if gone_since_s is not None and min(now_s - gone_since_s, wait.for_s) > _GRACE_S:
                self._end(
                    state,
                    f"rank {previous} has ended its program. Let all ranks take the same steps, and end a rank that "
                    "cannot go on by an exception",
                )
            self._look(wait, long, now_s)

    def _look_alone(self, wait: Doing, long: _Long) -> None:
        """Say of a long wait for the first meeting that there is one; end it at the limit."""
        limit_s = None if self._limit_s is None else max(self._limit_s, LEAST_START_S)
        if wait.for_s > _say_after_s(limit_s) * 2**long.said and self._rank < 2:
            long.said += 1
            limit = "" if limit_s is None else f" (the job ends at {limit_s:g} s, {_VARIABLE})"
            _print(f"rank {self._rank}: waiting since {wait.for_s:.0f} s in {wait.what} for a rank that is late{limit}")
        if limit_s is not None and wait.for_s > limit_s:
            _print(
                f"rank {self._rank}: {wait.what} is not over after {limit_s:g} s: look for a process that "
                "started MPI, and hangs before its first call of tensoropt. The job ends."
            )
            time.sleep(_DRAIN_S)
            self._mpi.COMM_WORLD.Abort(1)

    def _answer(self, long: _Long, now_s: float) -> None:
        """Tell the ranks that asked what this one is doing, and note what others answered."""
        status = self._mpi.Status()
        self._pending = [request for request in self._pending if not request.Test()]
        while self._comm.Iprobe(tag=_QUESTION, status=status):
            source = status.Get_source()
            self._comm.recv(source=source, tag=_QUESTION)
            self._pending.append(self._comm.isend(self.doing(), dest=source, tag=_ANSWER))
        while self._comm.Iprobe(tag=_ANSWER, status=status):
            source = status.Get_source()
            doing = self._comm.recv(source=source, tag=_ANSWER)
            long.answers[source] = doing
            long.heard_s[source] = now_s
            long.asked.discard(source)
            if doing.kind == WORK:
                long.worked_s = now_s

    def _look(self, wait: Doing, long: _Long, now_s: float) -> None:
        """Ask the others during a long wait, say for whom it is, and end it at the limit."""
        limit_s, since_s = self._limit_s, now_s - wait.for_s
        if since_s > long.since_s + 2 * _POLL_S:  # another wait than the one before
            long.reset(since_s)
        say_after_s = _say_after_s(limit_s)
        if wait.for_s < say_after_s / 2:
            return
        rank, size = self._rank, self._comm.size
        # For ranks to be asked several times within the limit.
        ask_every_s = _SAY_AFTER_S if limit_s is None else min(_SAY_AFTER_S / 2, limit_s / 4)
        if now_s - long.asked_s >= ask_every_s:
            long.asked_s = now_s
            # One that has not answered has the question already.
            free = [other for other in range(size) if other != rank and other not in long.asked]
            long.asked.update(free)
            self._pending += [self._comm.isend(None, dest=other, tag=_QUESTION) for other in free]
        if long.asked and now_s - long.asked_s < min(_ANSWER_S, ask_every_s * 0.8):
            return
        fresh = {other: doing for other, doing in long.answers.items() if other not in long.asked}
        # One rank says it: the lowest of those that wait. The others end the job only if it does not.
        is_second = any(other < rank and doing.kind == WAIT for other, doing in fresh.items())
        is_over = False
        silent: list[int] = []
        if limit_s is not None:
            heard_s = {other: max(long.heard_s.get(other, since_s), since_s) for other in range(size) if other != rank}
            silent = [other for other, last_s in heard_s.items() if now_s - last_s > limit_s]
            is_over = bool(silent) or now_s - max(since_s, long.worked_s) > limit_s
        if not is_over and not is_second and wait.for_s >= say_after_s * 2**long.said:
            long.said += 1
            _print(describe_wait(rank, size, wait, fresh, limit_s))
        if limit_s is None or not is_over or (is_second and wait.for_s < limit_s + 3 * _ANSWER_S):
            return
        current = self.doing()
        if current.kind != WAIT or current.for_s < wait.for_s:
            return  # it has ended after all
        _print(describe_stall(rank, size, limit_s, current, long.answers, silent))
        time.sleep(_DRAIN_S)
        self._comm.Abort(1)

    def _end(self, state: _State, reason: str) -> None:
        """End the job, unless the wait was over just now."""
        if self._state is not state:
            return
        frame = sys._current_frames().get(self._main)
        text = state.failure or "Traceback (most recent call last):\n" + "".join(traceback.format_stack(frame))
        text += f"CollectiveError: {state.what}: rank {self._rank} waits for the others, but {reason}."
        _print("".join(f"rank {self._rank}: {line}\n" for line in text.splitlines()), end="")
        time.sleep(_DRAIN_S)
        self._comm.Abort(1)


class _Long:
    """The knowledge of other ranks during a wait that has become long."""

    def __init__(self) -> None:
        self.reset()

    def reset(self, since_s: float = 0.0) -> None:
        """Begin with a wait since then."""
        self.since_s = since_s
        self.said = 0
        self.asked_s = -float("inf")
        self.worked_s = -float("inf")  # when a rank last said that it is at work
        self.answers: dict[int, Doing] = {}
        self.heard_s: dict[int, float] = {}
        self.asked: set[int] = set()  # and have not answered


def _say_after_s(limit_s: float | None) -> float:
    return _SAY_AFTER_S if limit_s is None else min(_SAY_AFTER_S, limit_s / 2)


def _print(text: str, end: str = "\n") -> None:
    sys.stdout.flush()
    sys.stderr.write(text + end)
    sys.stderr.flush()


_current = Watch(None)


def current_watch() -> Watch:
    """The watch over this rank; one that only notes what it does before MPI is started, or where it is the only one."""
    return _current


def set_current_watch(watch: Watch) -> None:
    """Make a watch this rank's, which hears of the work that the rank does."""
    global _current
    _current = watch
    listen(watch.note)
