"""Several Markov chains, one after the other or on processes side by side; Ctrl-C ends them all with their best."""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator, MutableSequence, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple

import numpy as np

from tensoropt.errors import InfeasibleError, ProblemError
from tensoropt.mcmc.additive_cost import AdditiveCost
from tensoropt.mcmc.chain import AdditiveChain, Chain, ChainResult, MarkovChain, Stop
from tensoropt.mcmc.memory_limit import Memory
from tensoropt.mcmc.moves import Moves
from tensoropt.simulate.network import Network

__all__ = ["Board", "Shared", "Start", "progress_bar", "run_chains"]

# How often the processes' state is looked at, for the bar and for Ctrl-C.
_LOOK_S = 0.1

Board = MutableSequence[float]
"""The board by which chains on several processes communicate: a sequence of numbers.

The first says whether to end; then follow, for each chain, its numbers of proposals and of accepted proposals, and the
seconds of its best strategy.
"""

Start = tuple[tuple[int, ...], np.random.SeedSequence]
"""A chain's first strategy, and the seed of its proposals."""

_Outcome = ChainResult | InfeasibleError | None


class Shared(NamedTuple):
    """The data that all chains share; for the fields see :class:`tensoropt.mcmc.chain.Chain`.

    ``cost`` is the cost that chains minimize; ``scale`` is the number of its seconds in one second, the unit of
    ``beta`` and of what is shown.
    """

    cost: Network | AdditiveCost
    moves: Moves
    memory: Memory
    stop: Stop
    beta: float | None
    scale: float = 1.0


def run_chains(
    shared: Shared, starts: Sequence[Start], *, processes: int = 1, progress: bool = False
) -> list[ChainResult]:
    """Runs the chains and returns their results in order; chains that found no strategy that fits are left out.

    After Ctrl-C, running chains end with their best strategies, and no further chains begin.

    Args:
        shared: the data that all chains share.
        starts: for each chain how it begins.
        processes: how many chains run at once.
        progress: whether to show a bar with the best so far and the acceptance rate.

    Raises:
        InfeasibleError: no chain found a strategy that fits.
        ProblemError: a process could not be started, or died.
        KeyboardInterrupt: Ctrl-C, before there was any result.
    """
    with progress_bar(shared.stop, len(starts)) if progress else contextlib.nullcontext(_show_nothing) as show:
        run = _in_turn if processes == 1 or len(starts) == 1 else _side_by_side
        outcomes = run(shared, starts, processes, show)
    results = [outcome for outcome in outcomes if isinstance(outcome, ChainResult)]
    failures = [outcome for outcome in outcomes if isinstance(outcome, InfeasibleError)]
    if not results and failures:
        raise failures[0]
    if not results:
        raise KeyboardInterrupt
    return results


def _in_turn(
    shared: Shared, starts: Sequence[Start], processes: int, show: Callable[[Board], None]
) -> Sequence[_Outcome]:
    outcomes: list[_Outcome] = []
    board: Board = [0.0] * (1 + 3 * len(starts))
    for number, start in enumerate(starts):
        try:
            outcomes.append(_alone(shared, start, number, board, show))
        except KeyboardInterrupt:
            break
        if isinstance(last := outcomes[-1], ChainResult) and last.stopped_by == "interrupt":
            break
    return outcomes


def _alone(
    shared: Shared, start: Start, number: int, board: Board, show: Callable[[Board], None]
) -> ChainResult | InfeasibleError:
    """One chain, which notes on the board how it does."""

    def report(made: int, taken: int, best_s: float) -> None:
        board[1 + 3 * number : 4 + 3 * number] = [made, taken, best_s / shared.scale]
        show(board)
        if board[0]:
            raise KeyboardInterrupt

    first, seed = start
    beta = None if shared.beta is None else shared.beta / shared.scale
    cost, moves, memory = shared.cost, shared.moves, shared.memory
    try:
        chain: MarkovChain
        if isinstance(cost, Network):
            chain = Chain(cost, first, beta=beta, seed=seed, moves=moves, memory=memory)
        else:
            chain = AdditiveChain(cost, first, beta=beta, seed=seed, moves=moves, memory=memory)
        return chain.run(shared.stop, report)
    except InfeasibleError as error:
        return error


def _side_by_side(
    shared: Shared, starts: Sequence[Start], processes: int, show: Callable[[Board], None]
) -> Sequence[_Outcome]:
    context = multiprocessing.get_context("spawn")
    board: Board = context.RawArray("d", 1 + 3 * len(starts))
    whole = shared._replace(cost=shared.cost.detached()) if isinstance(shared.cost, Network) else shared
    futures: list[Future[_Outcome]] = []
    try:
        with ProcessPoolExecutor(min(processes, len(starts)), context, _begin, (whole, board)) as pool:
            try:
                with _without_interrupts():  # processes keep it so: Ctrl-C at a terminal reaches this one only
                    futures += [pool.submit(_work, start, number) for number, start in enumerate(starts)]
            except KeyboardInterrupt:
                board[0] = 1.0
            waiting = {*futures}
            while waiting:
                try:
                    _, waiting = wait(waiting, timeout=_LOOK_S)
                    show(board)
                except KeyboardInterrupt:
                    board[0] = 1.0
        return [future.result() for future in futures]
    except (BrokenProcessPool, BrokenPipeError) as error:
        raise ProblemError(
            f"MCMC: each of {processes} processes must import the script that started it, and one ended before its "
            'chain did. Call the search under `if __name__ == "__main__":` in a file, not in what is read from '
            "standard input, or use processes=1."
        ) from error


@contextlib.contextmanager
def _without_interrupts() -> Iterator[None]:
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


# Of a process that runs chains: what they share, and the board, neither of which is sent with each.
_here: list[tuple[Shared, Board]] = []


def _begin(shared: Shared, board: Board) -> None:
    _here[:] = [(shared, board)]


def _work(start: Start, number: int) -> _Outcome:
    shared, board = _here[0]
    if board[0]:
        return None
    try:
        return _alone(shared, start, number, board, _show_nothing)
    except KeyboardInterrupt:
        return None


def _show_nothing(board: Board) -> None:
    pass


@contextlib.contextmanager
def progress_bar(stop: Stop, chains: int) -> Iterator[Callable[[Board], None]]:
    """A bar of all chains, and what brings it up to date."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("MCMC"), BarColumn(), TextColumn("{task.fields[figures]}"), TimeElapsedColumn())
    with Progress(*columns, transient=True) as bar:
        task = bar.add_task("", total=None if stop.iterations is None else chains * stop.iterations, figures="")

        def show(board: Board) -> None:
            made, taken = (int(sum(board[first::3])) for first in (1, 2))
            if made:
                best_s = min(best for best, some in zip(board[3::3], board[1::3], strict=True) if some)
                figures = f"best {best_s * 1e3:.4g} ms, {made} proposals, {100 * taken / made:.0f} % taken"
                bar.update(task, completed=made if stop.iterations else None, figures=figures)

        yield show
