"""What somebody sees who runs an example for the first time: every stage, the result, and no long silence."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from tests.effort import THOROUGH, left_to_ci
from tests.mpi_support import run_mpi

pytestmark = pytest.mark.mpi

# More than there are cores, where there is time.
_RANKS = 4 if THOROUGH else 2
_ROOT = Path(__file__).parents[2]
# More than the five seconds that it takes on a machine of one's own: while a library is loaded, or while others have
# the cores, no thread gets to say anything.
_LONGEST_SILENCE_S = 20.0
# With the table of layers, and without those that break a silence, of which there is one every four seconds.
_LINES = 40

STAGES = [
    r"loading TensorFlow",
    r"loading: TensorFlow \S+, \S+ s",
    rf"init: {_RANKS} ranks on 1 host:.*, \S+ s",
    r"import: \d+ operators, 20 of them variables, \S+ s",
    r"profiling: measured \d+ of \d+ operators, \d+ are left to estimates, \S+ s",
    r"search: all \d+ operators, \S+ s",
    rf"(mini_time on {_RANKS} devices: \S+ \S+ a step, .* a device|no gain from {_RANKS} devices, since .*)",
    r"build: collectives through '\w+', \S+ s",
]


@left_to_ci("takes half a minute, for what each stage's own tests say, too")
def test_a_first_run_says_each_stage_in_a_line_and_is_never_silent_for_long(tmp_path: Path) -> None:
    job = run_mpi(
        _ROOT / "tests/scripts/timed_output.py",
        _RANKS,
        _ROOT / "examples/digits.py",
        "--steps=5",
        timeout=400,
        env={
            "TENSOROPT_CACHE_DIR": str(tmp_path),
            "TENSOROPT_COSTS": "measured",
            "TENSOROPT_PROFILE_SECONDS": "4",
            "TF_CPP_MIN_LOG_LEVEL": "",
        },
    )
    assert job.stderr == ""  # which is in the other output, with times
    stamped = [line.partition(" ") for line in job.stdout.splitlines()]
    lines = sorted([(float(time_s), text) for time_s, _, text in stamped], key=lambda line: line[0])
    silences = {after: later - earlier for (earlier, after), (later, _) in itertools.pairwise(lines)}
    assert max(silences.values()) < _LONGEST_SILENCE_S, silences
    texts = [text for _, text in lines]
    said = [text.removeprefix("tensoropt: ") for text in texts if text.startswith("tensoropt: ")]
    still = [text for text in said if text.endswith(" so far")]
    assert len(still) <= (lines[-1][0] - lines[0][0]) / 4 + 1
    stages = [text for text in said if text not in still]
    assert len(stages) == len(STAGES), stages
    for text, pattern in zip(stages, STAGES, strict=True):
        assert re.fullmatch(pattern, text)
    assert len(texts) - len(still) <= _LINES, texts
    assert sum(text.startswith("final loss") for text in texts) == 1
