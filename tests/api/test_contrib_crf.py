"""Conditional random fields beside all sequences of tags that there are."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

import tensoropt
from tensoropt.api.mirror.model import Model
from tensoropt.contrib import crf
from tensoropt.errors import GraphError

pytestmark = pytest.mark.tf

v1 = tf.compat.v1
_BATCH, _STEPS, _TAGS = 4, 4, 3
_LENGTHS = [4, 2, 1, 0]


def _all_scores(scores: Any, table: Any) -> dict[tuple[int, ...], float]:
    """The score of each sequence of tags."""
    return {
        tags: sum(scores[step, tag] for step, tag in enumerate(tags))
        + sum(table[a, b] for a, b in itertools.pairwise(tags))
        for tags in itertools.product(range(_TAGS), repeat=len(scores))
    }


@pytest.mark.parametrize("dtype", ["int32", "int64"])
@pytest.mark.parametrize("is_open", [False, True])
def test_likelihood_and_decoding_are_those_of_all_sequences(model: Model, dtype: str, is_open: bool) -> None:
    random = np.random.default_rng(0)
    scores = random.normal(size=(_BATCH, _STEPS, _TAGS)).astype(np.float32)
    table = random.normal(size=(_TAGS, _TAGS)).astype(np.float32)
    tags = random.integers(0, _TAGS, (_BATCH, _STEPS)).astype(dtype)
    lengths = np.array(_LENGTHS, dtype)
    shape = [None, None, _TAGS] if is_open else scores.shape
    given = tensoropt.placeholder_with_default(scores, shape)
    likelihood, same = crf.crf_log_likelihood(given, tags, lengths, tensoropt.constant(table))
    decoded, best = crf.crf_decode(given, same, lengths)
    permitted = np.arange(_TAGS) == tags[:, :, None]
    several = crf.crf_multitag_sequence_score(given, permitted, lengths, same)
    norm = crf.crf_log_norm(given, lengths, same)
    with v1.Session() as session:
        got = session.run([likelihood, decoded, best, several, norm])
    for row, length in enumerate(_LENGTHS):
        all_scores = _all_scores(scores[row, :length], table)
        total = np.log(np.exp(list(all_scores.values())).sum())
        own = all_scores[tuple(tags[row, :length])]
        assert got[0][row] == pytest.approx(own - total, abs=1e-4)
        assert got[4][row] == pytest.approx(total, abs=1e-4)
        if length:
            wanted = max(all_scores, key=lambda each: all_scores[each])
            assert tuple(got[1][row, :length]) == wanted
            assert got[2][row] == pytest.approx(all_scores[wanted], abs=1e-4)
            assert crf.viterbi_decode(scores[row, :length], table)[0] == list(wanted)
            assert crf.viterbi_score(scores[row, :length], table) == pytest.approx(all_scores[wanted], abs=1e-4)
            assert got[3][row] == pytest.approx(own, abs=1e-4)
    assert got[1].dtype == np.int32


def test_one_step_and_the_variable_of_transitions(model: Model) -> None:
    scores = tensoropt.constant([[[1.0, 3.0]], [[5.0, 2.0]]])
    likelihood, table = crf.crf_log_likelihood(scores, [[0], [0]], [1, 1])
    decoded, best = crf.crf_decode(scores, table, [1, 1])
    assert table.op.name == "transitions"
    with v1.Session() as session:
        session.run(v1.global_variables_initializer())
        got = session.run([likelihood, decoded, best])
    np.testing.assert_allclose(got[0], [1 - np.logaddexp(1, 3), 5 - np.logaddexp(5, 2)], rtol=1e-5)
    np.testing.assert_array_equal(got[1], [[1], [0]])
    np.testing.assert_array_equal(got[2], [3, 5])
    with pytest.raises(GraphError, match=r"the number of tags must be known. Got inputs \(2, 1, None\)"):
        crf.crf_log_likelihood(tensoropt.placeholder(tf.float32, [2, 1, None]), [[0], [0]], [1, 1])
