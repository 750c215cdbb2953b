"""Sums of costs to the last bit, so that whoever adds the same entries gets the same number."""

from __future__ import annotations

import math

import numpy as np

from tensoropt.search.problem import FloatArray, IntArray

__all__ = ["exact_sums"]


def exact_sums(terms: FloatArray, counts: IntArray) -> FloatArray:
    """The correctly rounded sum of each row, which does not depend on the order of its terms.

    Args:
        terms: ``(points, terms)``, all >= 0; +inf for what is impossible.
        counts: ``(terms,)``, how often each term is in the sum.

    Returns:
        ``(points,)``.
    """
    totals = terms @ counts.astype(np.float64)
    largest = float(totals.max(where=np.isfinite(totals), initial=0.0))
    if largest > 0.0:
        # Multiples of one unit whose sum is below 2^53 of it add exactly in any order. Mostly the first row tells.
        unit = math.ldexp(1.0, math.frexp(largest)[1] - 52)
        if _are_multiples(terms[:1], unit) and _are_multiples(terms, unit):
            return totals
    # A multiple as its powers of two, which are exact.
    powers = [
        (i, float(1 << power))
        for i, c in enumerate(counts.tolist())
        for power in range(c.bit_length())
        if c >> power & 1
    ]
    parts = terms[:, [i for i, _ in powers]] * np.array([scale for _, scale in powers])
    return np.array([math.fsum(row.tolist()) for row in parts])


def _are_multiples(costs: FloatArray, unit: float) -> bool:
    """Whether all that are finite are."""
    counts = costs[np.isfinite(costs)] / unit
    return bool((counts == np.rint(counts)).all())
