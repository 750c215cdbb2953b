"""The benchmark of steps: programs that take turns, how rivals are tuned, and what is reported."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import turns
from benchmarks.models import MODELS, OPTIMIZERS, SHORT
from benchmarks.rivals import alternatives, summary, tune
from benchmarks.turns import Setting, Team
from tests.effort import THOROUGH, left_to_ci
from tests.mpi_support import run_mpi

_PROGRAM = "tests.benchmarks.turns_program"


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[0]


@pytest.mark.pure
def test_a_team_trains_in_its_turns_and_rests_between_them() -> None:
    team = Team(_PROGRAM, Setting(("--from", "10"), None))
    pid = team.about["pid"]
    try:
        assert team.about.keys() == {"from", "pid"} and team.about["from"] == 10
        team.turn(2)
        team.turn(1)
        # The first step of a turn is not counted, but trained.
        assert team.turns_s == [[11.0, 12.0], [14.0]] and team.losses == [-10, -11, -12, -13, -14]
        deadline = time.monotonic() + 5
        while _state(pid) != "T" and time.monotonic() < deadline:
            time.sleep(0.01)
        assert _state(pid) == "T"
    finally:
        team.end()
        team.end()
    assert not Path(f"/proc/{pid}").exists()


@pytest.mark.pure
def test_a_team_that_fails_says_what_it_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RuntimeError, match=r"(?s)turns_program .* failed:.*no such number"):
        Team(_PROGRAM, Setting(("--from", "nothing"), None))
    monkeypatch.setattr(turns, "_GRACE_S", 0.2)
    with pytest.raises(RuntimeError, match=r"took longer than 0\.5 s"):
        Team(_PROGRAM, Setting(("--from", "10", "--sleep", "60"), None), limit_s=0.5)


@pytest.mark.pure
@pytest.mark.parametrize(("ranks", "cores"), [(2, 4), (4, 2)])
def test_rivals_are_tuned_in_threads_cycle_fusion_and_binding(ranks: int, cores: int) -> None:
    found = alternatives(ranks, cores)
    (threads,) = found["one_process"]
    assert threads["defaults"][0]["TF_NUM_INTRAOP_THREADS"] == str(cores) and len(threads) == 2
    cycle, fusion, binding = found["horovod"]
    assert {extra.get("HOROVOD_CYCLE_TIME") for extra, _ in cycle.values()} == {None, "0.5", "2"}
    assert {extra.get("HOROVOD_FUSION_THRESHOLD") for extra, _ in fusion.values()} == {None, "0", str(4 * 2**20)}
    affinities = {extra.get("HOROVOD_THREAD_AFFINITY") for extra, _ in binding.values()}
    assert affinities == {None, ",".join(str(rank % cores) for rank in range(ranks))}
    # Ranks that share cores are bound in no case.
    assert ("unbound ranks" in binding) == (ranks <= cores)
    *_, fragments = alternatives(ranks, cores, 2)["horovod"]
    assert {extra.get("OMPI_MCA_btl_tcp_flags") for extra, _ in fragments.values()} == {None, "send,inplace"}


class _FakeTeam:
    """Takes as long as its setting says."""

    def __init__(self, setting: Setting) -> None:
        taken = {"0.5": 3.0, "2": 6.0}[setting.environment.get("HOROVOD_CYCLE_TIME", "2")]
        self.second = taken + ("HOROVOD_FUSION_THRESHOLD" in setting.environment) - 0.5 * (not setting.bind)
        self.turns_s: list[list[float]] = []
        self.ended = False

    def turn(self, steps: int) -> None:
        self.turns_s.append([self.second] * steps)

    def end(self) -> None:
        self.ended = True


@pytest.mark.pure
def test_a_rival_keeps_the_fastest_setting_of_each_group() -> None:
    started: dict[str, _FakeTeam] = {}

    def start(name: str, setting: Setting) -> Any:
        started[name] = _FakeTeam(setting)
        return started[name]

    flags = argparse.Namespace(steps=2, tuning_turns=1)
    setting = Setting(("--variant", "horovod"), 2, {"OTHER": "1"})
    team, about = tune("horovod", setting, alternatives(2, 4)["horovod"], flags, start)
    assert about["chosen"] == ["cycle 0.5 ms", "unbound ranks, threads on 0,1"]
    affinity = {"HOROVOD_THREAD_AFFINITY": "0,1"}
    assert about["environment"] == {"OTHER": "1", "HOROVOD_CYCLE_TIME": "0.5", **affinity} and not about["bound"]
    assert about["tried"]["defaults"] == 6.0 and about["tried"]["cycle 0.5 ms"] == 3.0
    assert about["tried"]["cycle 0.5 ms, fusion 4 MiB"] == 4.0 and about["tried"]["cycle 0.5 ms, unbound ranks"] == 2.5
    # All others have ended, and it begins anew.
    assert [other for other in started.values() if not other.ended] == [team] and team.turns_s == []


@pytest.mark.pure
def test_a_summary_compares_medians_and_losses() -> None:
    variants: dict[str, Any] = {
        "mini_time": ([[1.0, 2.0], [3.0, 2.0]], [5.0, 4.0], {"search_s": 0.5}),
        "one_process": ([[4.0, 4.0], [6.0, 4.0]], [5.0, 4.0, 3.0], {}),
        "horovod": ([[3.0, 3.0]], [5.0, 4.25, 9.0], {}),
    }
    found = summary(variants, {"horovod": {"chosen": ["cycle 2 ms"]}}, "mini_time")
    ours, rival = found["variants"]["mini_time"], found["variants"]["horovod"]
    assert (ours["median_s"], ours["least_turn_s"], ours["longest_turn_s"]) == (2.0, 1.5, 2.5)
    assert ours["search_s"] == 0.5 and rival["chosen"] == ["cycle 2 ms"]
    assert ours["max_loss_difference"] == 0.0 and rival["max_loss_difference"] == 6.0
    assert found["speedup_of_mini_time_over"] == {"one_process": 2.0, "horovod": 1.5}
    assert found["speedup_over_horovod"] == {"mini_time": 1.5, "one_process": 0.75}


@pytest.mark.tf
@pytest.mark.parametrize("name", sorted(SHORT))
@left_to_ci("a benchmark, which users do not run")
def test_models_learn_by_every_optimizer(name: str) -> None:
    model = SHORT[name]
    batch = model.batch(np.random.default_rng(1), model.batch_size)
    for optimizer in OPTIMIZERS:
        with tf.Graph().as_default():
            tf.compat.v1.set_random_seed(1)
            built = model.build(tf.compat.v1, model.batch_size)
            train_op = model.train(tf.compat.v1, optimizer, built.loss)
            with tf.compat.v1.Session() as session:
                session.run(tf.compat.v1.global_variables_initializer())
                feeds = {built.feeds[key]: array for key, array in batch.items()}
                losses = [session.run([built.loss, train_op], feeds)[0] for _ in range(5)]
        assert losses[-1] < losses[0], (name, optimizer)


@pytest.mark.tf
@pytest.mark.parametrize("name", sorted(MODELS))
def test_batches_fit_the_models_that_are_measured(name: str) -> None:
    model = MODELS[name]
    with tf.Graph().as_default():
        built = model.build(tf.compat.v1, model.batch_size // 2)
    batch = model.batch(np.random.default_rng(1), model.batch_size // 2)
    assert {key: list(array.shape) for key, array in batch.items()} == {
        key: placeholder.shape.as_list() for key, placeholder in built.feeds.items()
    }
    assert {key: array.dtype for key, array in batch.items()} == {
        key: placeholder.dtype.as_numpy_dtype for key, placeholder in built.feeds.items()
    }


@pytest.mark.mpi
@left_to_ci("a benchmark, which users do not run")
def test_two_ranks_take_turns_with_the_losses_of_one_process(tmp_path: Path) -> None:
    found = {}
    for variant, ranks in (("one_process", 1), ("mini_time", 2)):
        folder = tmp_path / variant
        folder.mkdir()
        for turn, steps in enumerate((3, 1, 0)):
            (folder / f"turn-{turn}").write_text(str(steps), encoding="utf-8")
        arguments = [
            "--model",
            "lstm" if THOROUGH else "mlp",
            "--short",
            "--variant",
            variant,
            "--optimizer",
            "clipped_adam",
            "--turns",
            str(folder),
        ]
        if ranks == 1:
            command = [sys.executable, "-m", "benchmarks.step_worker", *arguments]
            subprocess.run(command, check=True, capture_output=True, timeout=120)
        else:
            run_mpi("benchmarks.step_worker", ranks, *arguments)
            about = json.loads((folder / "ready-0").read_text(encoding="utf-8"))["about"]
            assert about["strategy"] and 0 <= about["search_s"] and 0 < about["profile_s"]
        done = [json.loads((folder / f"done-{turn}-{ranks - 1}").read_text(encoding="utf-8")) for turn in (0, 1)]
        found[variant] = [loss for turn in done for loss in turn["losses"]]
        assert [len(turn["seconds"]) for turn in done] == [3, 1]
    np.testing.assert_allclose(found["mini_time"], found["one_process"], rtol=1e-5)
