"""Markov chains over FlexFlow's whole space: operators on parts of the mesh, images in pieces."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tensoropt.errors import InfeasibleError, PlanError
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.mcmc import Chain, Network, Simulator, Stop, moves_of, network_of
from tensoropt.mcmc.device_memory import DeviceMemory
from tensoropt.plan.configuration import Configuration, at, place_of
from tensoropt.simulate import NO_LIMIT
from tensoropt.space.around_variables import is_heavy
from tensoropt.space.propagation import Actions, Followed, Follower, parameter_side, placed
from tensoropt.space.space import SearchSpace
from tensoropt.space.work import TICKS_PER_S

__all__ = ["Mover", "WholeSpaceResult", "modules_of", "search_whole_space", "whole_space"]

Strategy = Mapping[str, Configuration]

# What is a thousandth slower is taken every seventh time: moves are few.
_BETA = 2000.0
_MOVES = 500
# The second chain looks at its first proposals, whatever time the first one took.
_LEAST_S = 1e-3
# Shares of moves of one operator, of a branch, and of all branches of a fan-out.
_KINDS = (0.5, 0.2, 0.3)


@dataclass(frozen=True, slots=True)
class WholeSpaceResult:
    """The result of the search.

    Attributes:
        configurations: of every operator of training.
        simulated_s: the simulated step time of the strategy.
        first_s: the simulated step time of the fastest strategy that the search began at.
        proposals: moves that both chains tried.
        taken: moves that were accepted.
        seconds: of wall-clock time.
        interrupted: whether Ctrl-C ended the search; this is the best so far.
    """

    configurations: Strategy
    simulated_s: float
    first_s: float
    proposals: int
    taken: int
    seconds: float
    interrupted: bool = False


def whole_space(space: SearchSpace) -> SearchSpace:
    """The strategies of a space, and those that place operators or split images; inputs come as they do there."""
    fed = {op.name: space.choices(op.name) for op in space.operators if traits(op).is_input}
    return SearchSpace(space.graph, space.cost, allowed=fed, placements=True)


def search_whole_space(
    space: SearchSpace,
    first: Sequence[Strategy],
    *,
    memory_bytes: float = math.inf,
    moves: int = _MOVES,
    stop: Stop = Stop(iterations=20_000),  # noqa: B008  # it is a value
    beta: float | None = None,
    seed: np.random.SeedSequence | int = 0,
    network: Network | None = None,
    overlap: bool = False,
) -> WholeSpaceResult:
    """The strategy of least simulated time that chains find (FlexFlow section 6).

    A chain that changes one operator at a time hardly ever places a layer: its activations would stay where they were,
    and be sent there and back. So a first chain moves an operator that decides (a product, a convolution, a lookup, or
    what joins several tensors), or all of those of a branch between a fan-out and the next join, with everything that
    follows them. Before that, the branches of each fan-out are tried side by side, in as equal shares as they come. A
    second chain (:class:`tensoropt.mcmc.Chain`) begins where the first was best. Both simulate what a move changes, and
    take nothing that does not fit; where the beginning does not, they go down in memory first. Ctrl-C ends them.

    Args:
        space: as :func:`whole_space` gives it.
        first: strategies, of which those that the space has count. The first chain begins at the fastest.
        memory_bytes: what the fullest device may hold; hard.
        moves: of the first chain, at random; as many as time allows if ``stop`` has seconds and no proposals.
        stop: of the second one. Of seconds the first one has half, and what it needs to try branches side by side.
        beta: of both, see :class:`tensoropt.mcmc.Chain`.
        seed: of both.
        network: of the space, if it is at hand.
        overlap: of simulated time, see :func:`tensoropt.mcmc.network_of`; a given network has its own.

    Raises:
        InfeasibleError: the space has none of the first strategies, or the chains came to none that fits.
    """
    began = time.perf_counter()
    mover = Mover(space, np.random.default_rng(seed))
    starts = [start for start in map(mover.lifted, first) if start is not None]
    if not starts:
        raise InfeasibleError(
            f"MCMC over the whole space: it must have one of the {len(first)} strategies to begin at, and has none. "
            "Give data parallelism."
        )
    network = network_of(space, overlap=overlap) if network is None else network
    memory = DeviceMemory(space, memory_bytes)
    simulator = Simulator(network, starts[0])
    known = []
    for start in starts:
        makespan, over = simulator.reset(start), max(0, memory.fullest(start) - memory.limit)
        known.append((over, makespan, start))
    over, first_ticks, current = min(known)
    simulator.reset(current)
    mover.take(current)
    tried, taken, interrupted = 0, 0, False
    chain_began = time.perf_counter()
    half_s = math.inf if stop.seconds is None else stop.seconds / 2
    pairs = [(module, axis) for module in modules_of(space) for axis in range(len(space.mesh.axes))]
    try:
        for number in itertools.count():
            at_random = number - len(pairs)
            if at_random >= moves and (stop.iterations is not None or stop.seconds is None):
                break
            if at_random >= 0 and time.perf_counter() - chain_began >= half_s:
                break
            tried = number + 1
            if at_random < 0:  # nothing that is slower is taken before the best of all modules is known
                drawn, slack = mover.moved(mover.side_by_side(*pairs[number])), 0.0
            else:
                per_tick = _BETA / known[0][1] if beta is None else beta / TICKS_PER_S
                drawn, slack = mover.propose(), -math.log1p(-mover.random.random()) / per_tick
            if drawn is None:
                continue
            # What does not fit goes down in memory first, whatever the time.
            makespan = simulator.try_strategy(drawn, NO_LIMIT if over else int(simulator.makespan + slack))
            left = max(0, memory.fullest(drawn) - memory.limit) if makespan >= 0 else 0
            if makespan < 0 or left > over or (over and left == over):
                simulator.reject()
                continue
            simulator.accept()
            mover.take(drawn)
            over, taken = left, taken + 1
            known.append((over, makespan, drawn))
    except KeyboardInterrupt:
        interrupted = True
    over, best_ticks, best = min(known)
    if not interrupted:
        moves_then = moves_of(space, network, variables=True)
        chain = Chain(network, best, beta=beta, seed=seed, moves=moves_then, memory=memory)
        left_s = None if stop.seconds is None else max(_LEAST_S, stop.seconds - (time.perf_counter() - chain_began))
        try:
            found = chain.run(dataclasses.replace(stop, seconds=left_s))
            tried, taken = tried + found.proposals, taken + found.accepted
            over, best_ticks, best = 0, found.cost_ticks, found.assignment
            interrupted = found.stopped_by == "interrupt"
        except InfeasibleError:  # it says nothing of what the first chain saw
            pass
    if over:
        raise InfeasibleError(
            f"MCMC over the whole space: none of the strategies that {tried} moves and a chain from there led to fits "
            f"{memory_bytes:,.0f} bytes per device; the smallest before takes {memory.limit + over:,}. "
            "Allow more memory, more moves, or give a strategy that fits to begin at."
        )
    return WholeSpaceResult(
        space.configurations(best),
        best_ticks / TICKS_PER_S,
        first_ticks / TICKS_PER_S,
        tried,
        taken,
        time.perf_counter() - began,
        interrupted,
    )


def modules_of(space: SearchSpace) -> tuple[tuple[tuple[str, ...], ...], ...]:
    """The operators that decide of every branch between a fan-out and the next join, fan-out by fan-out."""
    deciding, joins = {op.name for op in _deciding(space)}, {op.name for op in _joins(space)}
    readers: dict[str, list[str]] = {}
    for edge in space.edges:
        readers.setdefault(edge.tensor.op, []).append(edge.consumer)
    result = []
    for fan in space.operators:
        branches = []
        for reader in readers.get(fan.name, ()) if traits(fan).is_fanout else ():
            found, here = [], reader
            while here not in joins:
                if here in deciding:
                    found.append(here)
                if len(readers.get(here, ())) != 1:
                    break
                here = readers[here][0]
            if found:
                branches.append(tuple(found))
        if branches:
            result.append(tuple(branches))
    return tuple(result)


def _joins(space: SearchSpace) -> Iterator[Operator]:
    still = parameter_side(space)
    for op in space.operators:
        if op.name not in still and len({tensor.op for tensor in op.inputs if tensor.op not in still}) > 1:
            yield op


def _deciding(space: SearchSpace) -> Iterator[Operator]:
    """Products, convolutions and lookups: what has parameters and work of more than its elements."""
    still = parameter_side(space)
    for op in space.operators:
        if op.name not in still and is_heavy(space, op):
            yield op


class Mover:
    """Moves of operators that decide, with what follows them, from one current strategy.

    Attributes:
        space: of strategies.
        random: draws moves.
    """

    def __init__(self, space: SearchSpace, random: np.random.Generator) -> None:
        """Lists what can be moved; :meth:`take` a strategy to begin at."""
        self.space = space
        self.random = random
        still = parameter_side(space)
        self._place = {op.name: number for number, op in enumerate(space.operators)}
        self._single = [op.name for op in _deciding(space)]
        self._modules = modules_of(space)
        # Sinks and inputs are where they are; joins stay as they are when what they read moves.
        self._fixed = {op.name for op in (*_deciding(space), *_joins(space))}
        known = ((op.name, traits(op)) for op in space.operators)
        self._fixed |= {name for name, own in known if own.is_input or own.is_sink or own.is_fanout} - still
        self._current: tuple[int, ...] = ()
        self._decisions: dict[str, Actions] = {}
        self._follower = Follower(space)
        self._followed: Followed | None = None
        self._proposed: tuple[dict[str, Actions], Followed] | None = None

    def lifted(self, strategy: Strategy) -> tuple[int, ...] | None:
        """A strategy's indices; None if the space has it not."""
        try:
            return self.space.assignment(strategy)
        except PlanError:
            return None

    def take(self, assignment: Sequence[int]) -> None:
        """Makes a strategy the current one."""
        if not self._current:
            chosen = self.space.configurations(assignment)
            decisions = {name: chosen[name].actions for name in sorted(self._fixed)}
            self._proposed = decisions, self._follow(decisions, decisions)
        self._current = tuple(assignment)
        if self._proposed is not None:
            self._decisions, self._followed = self._proposed

    def propose(self) -> tuple[int, ...] | None:
        """The current strategy with one random move; None if the space has it not."""
        return self.moved(self._move()) if self._single else None

    def moved(self, decisions: Mapping[str, Actions]) -> tuple[int, ...] | None:
        """The current strategy with other decisions, and with what follows them; None if the space has it not.

        Args:
            decisions: what each mesh axis does to some of the operators that decide.
        """
        changed = {**self._decisions, **decisions}
        followed = self._follow(changed, decisions)
        assignment = list(self._current)
        for name in followed.changed:
            found, choices = followed.configurations[name], self.space.choices(name)
            if found not in choices:
                return None
            assignment[self._place[name]] = choices.index(found)
        self._proposed = changed, followed
        return tuple(assignment) if tuple(assignment) != self._current else None

    def _move(self) -> dict[str, Actions]:
        """New decisions: of one operator, of a branch, or of all branches of a fan-out."""
        kind = int(self.random.choice(3, p=_KINDS)) if self._modules else 0
        if kind == 0:
            name = self._single[self._one_of(self._single)]
            choices = self.space.choices(name)
            return {name: choices[self._one_of(choices)].actions}
        module = self._modules[self._one_of(self._modules)]
        if kind == 1:
            branch = module[self._one_of(module)]
            # What one splits another may not have; it then does what it can of it.
            choices = self.space.choices(branch[0])
            return dict.fromkeys(branch, choices[self._one_of(choices)].actions)
        # Each branch somewhere along one mesh axis, so that they run side by side.
        axis = int(self.random.integers(len(self.space.mesh.axes)))
        places = self.random.integers(self.space.mesh.shape[axis], size=len(module)).tolist()
        return {
            name: actions
            for branch, place in zip(module, places, strict=True)
            for name, actions in self.at(branch, axis, place).items()
        }

    def side_by_side(self, module: Sequence[Sequence[str]], axis: int) -> dict[str, Actions]:
        """Decisions by which the branches of a fan-out are at places along a mesh axis, all with the same work.

        Branches are dealt out one by one, the one of most work first, each to the place of least work.
        """
        loads = [0.0] * self.space.mesh.shape[axis]
        result: dict[str, Actions] = {}
        works = [sum(self._seconds(name) for name in branch) for branch in module]
        for number in sorted(range(len(module)), key=lambda number: (-works[number], number)):
            place = loads.index(min(loads))
            loads[place] += works[number]
            result |= self.at(module[number], axis, place)
        return result

    def _seconds(self, name: str) -> float:
        return self.space.node_costs(name, self._current[self._place[name]])[0]

    def at(self, names: Sequence[str], axis: int, place: int) -> dict[str, Actions]:
        """Decisions by which some operators do what they do, but at one place along a mesh axis."""
        return {name: placed(self._decisions[name], (axis,), at(place)) for name in names}

    def _one_of(self, among: Sequence[object]) -> int:
        return int(self.random.integers(len(among)))

    def _follow(self, decisions: Mapping[str, Actions], changed: Iterable[str]) -> Followed:
        """Returns the strategy that follows from decisions; ``changed`` names those unlike the current strategy's."""
        made = {} if self._followed is None else {name: wanted[0] for name, wanted in self._followed.wanted.items()}

        def decide(op: Operator, followed: Actions) -> Sequence[Actions]:
            source = next((made[tensor.op] for tensor in op.inputs if tensor.op in made), followed)
            # Whatever follows an operator does so on its devices.
            there = tuple(b if place_of(b) is not None else a for a, b in zip(followed, source, strict=True))
            made[op.name] = decisions.get(op.name, there)
            return (made[op.name], there)

        return self._follower.follow(decide, self._followed, changed)
