"""Which slots' tasks wait for which, whatever the strategy, and the chain along which a strategy takes longest."""

from __future__ import annotations

import itertools

import numpy as np
from numpy.typing import NDArray

from tensoropt.problem.problem import FloatArray
from tensoropt.simulate import Network

__all__ = ["longest_chain", "waiting_slots"]


def waiting_slots(network: Network) -> NDArray[np.bool_]:
    """``(slots, slots)``, whether tasks of one slot end before those of another begin, where all devices do the same.

    A tensor's way may be empty under a strategy; its ends then wait for one another directly.
    """
    graph = network.graph
    after = np.zeros((network.slots, network.slots), bool)
    for op in graph.operators[graph.operators["has_backward"] > 0]:
        after[op["forward_slot"], op["backward_slot"]] = True
    for edge in graph.edges:
        producer, consumer = graph.operators[edge["producer"]], graph.operators[edge["consumer"]]
        way, back = edge["way_slot"], edge["back_slot"]
        after[producer["forward_slot"], way] = after[way, consumer["forward_slot"]] = True
        if edge["returns"]:
            after[consumer["backward_slot"], back] = after[back, producer["backward_slot"]] = True
    # Slots are numbered so that tasks never wait for those of a later one.
    for slot in reversed(range(network.slots)):
        after[slot] |= after[after[slot]].any(axis=0)
    return after


def longest_chain(after: NDArray[np.bool_], busy: FloatArray, spent: FloatArray) -> tuple[FloatArray, float]:
    """Slots one after the other, between which a resource has the most to do.

    No schedule is shorter than what a resource does before the first of them, they themselves take, and it does
    between them and after the last: what lies between two of them waits for one and is waited for by the other.

    Args:
        after: see :func:`waiting_slots`.
        busy: ``(slots,)`` ticks that a slot's tasks keep the resource busy.
        spent: ``(slots,)`` ticks that they take on all resources.

    Returns:
        ``(slots,)``: 2 for those of the chain, 1 for those before, between and after; and the ticks.
    """
    count = len(busy)
    between = (after * busy[None, :]) @ after.astype(np.float64)
    best = (after * busy[:, None]).sum(axis=0) + spent  # what comes before, and the slot itself
    came = np.full(count, -1)
    for slot in range(count):
        earlier = np.flatnonzero(after[:, slot])
        if len(earlier):
            along = best[earlier] + between[earlier, slot] + spent[slot]
            if along.max() > best[slot]:
                best[slot], came[slot] = along.max(), earlier[along.argmax()]
    total = best + (after * busy[None, :]).sum(axis=1)
    last = int(total.argmax())
    chain = [last]
    while came[chain[-1]] >= 0:
        chain.append(int(came[chain[-1]]))
    chain.reverse()
    weight = np.zeros(count)
    weight[after[:, chain[0]] | after[chain[-1]]] = 1
    for one, other in itertools.pairwise(chain):
        weight[after[one] & after[:, other]] = 1
    weight[chain] = 2
    return weight, float(total[last])
