"""``tensoropt plan``, ``estimate``, ``frontier`` and ``compare``: the user's script on a cluster that is described."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tensoropt.cluster import preset
from tests.cli.command import Ran, ran
from tests.mpi_support import run_mpi

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "tests" / "cli" / "trained_scripts.py"

_GRAPH = """
import numpy as np
import tensoropt
x = tensoropt.placeholder(tensoropt.float32, [64, 256])
hidden = tensoropt.layers.dense(x, 512)
loss = tensoropt.reduce_mean(tensoropt.square(tensoropt.layers.dense(hidden, 128)))
train_op = tensoropt.train.MomentumOptimizer(0.1, 0.9).minimize(loss)
print("ranks", tensoropt.init().device_count, tensoropt.world_rank(), tensoropt.world_size())
plan = tensoropt.find_strategy()
tensoropt.build_execution_graph(plan=plan)
print("not reached")
"""


@pytest.fixture
def graph(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text(_GRAPH)
    return str(path)


@pytest.mark.mpi
def test_plan_is_the_plan_of_a_job(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A graph, a function and a Keras model, whose sizes are open: started by ``run``, and each by ``plan``."""
    preset("cpu", devices=2).save(tmp_path / "cluster.json")
    job = ("run", "-n", "2", SCRIPTS, tmp_path, "function", "keras", "graph")
    run_mpi("tensoropt", 1, *job, launcher=["env"], env={"TF_USE_LEGACY_KERAS": "0"}, timeout=240)
    for kind in ("function", "keras", "graph"):
        saved = tmp_path / f"alone-{kind}.json"
        command = ["plan", "--cluster", str(tmp_path / "cluster.json"), "--json", "--save", str(saved)]
        command += [str(SCRIPTS), str(tmp_path), kind]
        # One of them in a process of its own, as users have it.
        done = in_a_process(*command) if kind == "keras" else ran(capsys, *command)
        assert done.code == 0, done.err
        plans = [json.loads(path.read_text()) for path in (saved, tmp_path / f"{kind}.json")]
        for plan in plans:
            del plan["notes"]["search_seconds"]
        assert plans[0] == plans[1]
        answer = json.loads(done.out)
        assert answer["devices"] == 2 and answer["operators"]
        if kind == "keras":
            assert "loss before" in done.err
        if kind == "function":
            assert "total before 12.0" in done.err


def in_a_process(*arguments: str) -> Ran:
    """Runs ``tensoropt`` in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "tensoropt", *arguments],
        env={**os.environ, "PYTHONPATH": str(ROOT), "TF_USE_LEGACY_KERAS": "0"},
        capture_output=True,
        text=True,
        timeout=240,
    )
    return Ran(done.returncode, done.stdout, done.stderr)


@pytest.mark.tf
def test_plan_prints_the_table_and_takes_other_options(
    capsys: pytest.CaptureFixture[str], graph: str, tmp_path: Path
) -> None:
    saved = tmp_path / "plan.json"
    done = ran(capsys, "plan", "--cluster", "v100", "--devices", "4", "--save", str(saved), "--full", graph)
    assert done.code == 0 and "mini_time on 4 devices" in done.out and "tensor maps" in done.out
    assert "ranks 4 0 4\n" in done.err and "not reached" not in done.err
    assert json.loads(saved.read_text())["option"] == "mini_time"
    done = ran(capsys, "plan", "--cluster", "v100", "--devices", "8", "--option", "mini_memory", "--json", graph)
    assert (json.loads(done.out)["option"], json.loads(done.out)["devices"]) == ("mini_memory", 8)
    done = ran(capsys, "plan", "--cluster", "v100", "--search", "megatron", "--json", graph)
    assert done.code == 0, done.err


@pytest.mark.tf
@pytest.mark.parametrize("then", ["pass", "tensoropt.build_execution_graph(plan=plan)", "sys.exit(4)", "1 / 0"])
def test_a_script_that_catches_everything_ends_all_the_same(
    capsys: pytest.CaptureFixture[str], graph: str, then: str
) -> None:
    text = Path(graph).read_text()
    built = "tensoropt.build_execution_graph(plan=plan)"
    caught = f"import sys\ntry:\n    {built}\nexcept:\n    {then}\n"
    Path(graph).write_text(text.replace(built, caught).replace('print("not reached")', ""))
    done = ran(capsys, "plan", "--cluster", "v100", "--devices", "2", graph)
    assert done.code == 0 and "mini_time on 2 devices" in done.out, done.err


@pytest.mark.tf
def test_estimate_over_device_counts(capsys: pytest.CaptureFixture[str], graph: str) -> None:
    done = ran(capsys, "estimate", "--cluster", "v100", "--devices", "1,2,64", "--price", "2", "--json", graph)
    rows = json.loads(done.out)["rows"]
    assert done.code == 0 and [row["devices"] for row in rows] == [1, 2, 64]
    assert rows[0]["time_s"] > 0 and rows[1]["cost_per_hour"] == 4
    done = ran(capsys, "estimate", "--cluster", "v100", "--devices", "1,2", "--memory", "0.0001", graph)
    assert done.code == 1 and "does not fit" in done.out


@pytest.mark.tf
def test_commands_plan_for_other_steps_than_the_script_s(capsys: pytest.CaptureFixture[str], graph: str) -> None:
    on = ("--cluster", "v100", "--devices", "2")
    split = ("--micro-batches", "2", "--recompute")
    plans = [json.loads(ran(capsys, "plan", *on, *steps, "--json", graph).out) for steps in ((), split)]
    assert plans[1]["time_s"] > plans[0]["time_s"]
    rows = json.loads(ran(capsys, "estimate", *on, *split, "--json", graph).out)["rows"]
    assert rows[0]["micro_batches"] == 2 and rows[0]["time_s"] == pytest.approx(plans[1]["time_s"])
    table = ran(capsys, "compare", *on, "--methods", "ft", *split, "--json", graph)
    assert json.loads(table.out)["rows"][0]["time_s"] == pytest.approx(plans[1]["time_s"])
    found = json.loads(ran(capsys, "frontier", *on, *split, "--json", graph).out)
    assert found["provenance"]["micro_batches"] == 2 and found["provenance"]["recompute"] is True
    assert "a step of 2 micro-batches" in ran(capsys, "explain", *on, *split, graph).out
    _one_line(ran(capsys, "trace", *on, *split, graph), "Give --micro-batches 1 --no-recompute")
    _one_line(ran(capsys, "plan", *on, "--micro-batches", "some", graph), "--micro-batches must be a whole number")


@pytest.mark.tf
def test_frontier_as_table_json_and_file(capsys: pytest.CaptureFixture[str], graph: str, tmp_path: Path) -> None:
    done = ran(capsys, "frontier", "--cluster", "v100", "--devices", "4", "--memory", "1", graph)
    assert done.code == 0 and "turning point" in done.out and "fastest that fits" in done.out
    saved = tmp_path / "frontier.json"
    command = ("frontier", "--cluster", "v100", "--devices", "4", "--memory", "1e-6", "--json")
    done = ran(capsys, *command, "--save", str(saved), graph)
    assert done.code == 1 and json.loads(done.out) == json.loads(saved.read_text())
    from tensoropt.problem.frontier import Frontier

    assert len(Frontier.from_json(saved.read_text()).time_s) >= 1


@pytest.mark.tf
def test_trace(capsys: pytest.CaptureFixture[str], graph: str, tmp_path: Path) -> None:
    out = tmp_path / "step.json"
    command = ("trace", "--cluster", "v100", "--devices", "4", "--out", str(out))
    answer = json.loads(ran(capsys, *command, "--json", graph).out)
    events = json.loads(out.read_text())["traceEvents"]
    tasks = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in tasks} == set(range(answer["devices"])) == {0, 1, 2, 3}
    assert max(event["ts"] + event["dur"] for event in tasks) == pytest.approx(answer["step_s"] * 1e6)
    assert ran(capsys, *command, "--search", "data_parallel", graph).out.startswith(f"written: {out}, ")
    _one_line(ran(capsys, *command, "--search", "megatrn", graph), "mean 'megatron'")


@pytest.mark.tf
def test_compare(capsys: pytest.CaptureFixture[str], graph: str) -> None:
    command = ("compare", "--cluster", "v100", "--devices", "4", "--methods", "ft, data_parallel", "--json")
    done = ran(capsys, *command, graph)
    rows = {row["method"]: row for row in json.loads(done.out)["rows"]}
    assert done.code == 0 and rows["ft"]["time_s"] <= rows["data_parallel"]["time_s"]
    _one_line(ran(capsys, "compare", "--cluster", "v100", "--methods", "fastest", graph), "'fastest' is unknown")


def _one_line(done: Ran, said: str) -> None:
    assert (done.code, done.out) == (2, "")
    assert said in done.err.splitlines()[-1], done.err


@pytest.mark.tf
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import tensoropt\nprint(1)", "never came to a training step"),
        ("import sys\nsys.exit(3)", "ended, with the exit code 3 and never"),
        ("def f():\n    raise ValueError('no data')\nf()", "failed before it trained"),
        ("import tensoropt\ntensoropt.find_strategy()", "Call tensoropt.init() first"),
        ("syntax error here", "failed before it trained"),
    ],
)
def test_scripts_that_never_train(capsys: pytest.CaptureFixture[str], tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "script.py"
    path.write_text(text)
    done = ran(capsys, "plan", "--cluster", "cpu", str(path))
    _one_line(done, said)
    if "ValueError" in text:
        assert "ValueError: no data" in done.err and "runpy" not in done.err


@pytest.mark.tf
def test_wrong_options_are_one_line(capsys: pytest.CaptureFixture[str], graph: str) -> None:
    _one_line(ran(capsys, "plan", "--cluster", "cpu", "--option", "mini_tim", graph), "mean 'mini_time'")
    _one_line(ran(capsys, "plan", "--cluster", "cpu", "--search", "megatrn", graph), "mean 'megatron'")
    _one_line(ran(capsys, "plan", "--cluster", "cpu", "--memory", "1e-6", graph), "fit")


@pytest.mark.tf
def test_plans_are_shown_explained_and_compared(capsys: pytest.CaptureFixture[str], graph: str, tmp_path: Path) -> None:
    saved = [str(tmp_path / f"{option}.json") for option in ("mini_time", "mini_memory")]
    cluster = ("--cluster", "v100", "--devices", "4")
    for path in saved:
        ran(capsys, "plan", *cluster, "--option", Path(path).stem, "--save", path, graph)
    plan = json.loads(Path(saved[0]).read_text())
    assert json.loads(ran(capsys, "show", "--json", saved[0]).out) == plan
    assert "mini_time on 4 devices" in ran(capsys, "show", saved[0]).out
    alone = json.loads(ran(capsys, "explain", "--json", saved[0]).out)
    assert sum(alone["seconds"].values()) == pytest.approx(plan["time_s"])
    assert alone["rivals"] is None and "--option PLAN SCRIPT" in ran(capsys, "explain", saved[0]).out
    with_model = json.loads(ran(capsys, "explain", *cluster, "--option", saved[0], "--json", graph).out)
    assert {rival["name"] for rival in with_model["rivals"]} >= {"data_parallel", "megatron"}
    assert with_model["seconds"] == alone["seconds"]
    page = tmp_path / "page.html"
    sizes = []
    for arguments in ((saved[0],), (*cluster, "--option", saved[0], graph)):
        done = ran(capsys, "report", "--out", str(page), *arguments)
        assert done.code == 0 and done.out == f"written: {page}\n", done.err
        assert "mini_time" in page.read_text()
        sizes.append(page.stat().st_size)
    assert sizes[1] > sizes[0]
    found = json.loads(ran(capsys, "diff", "--json", *saved).out)
    assert found["same_model"] and "mini_memory" in found["titles"][1]
    assert "other: mini_memory on 4 devices" in ran(capsys, "diff", *saved).out


@pytest.mark.pure
def test_plans_that_are_none_are_one_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("{}")
    bad = str(tmp_path / "bad.json")
    for arguments, said in (
        (["show", "no.json"], "no.json"),
        (["show", bad], "bad.json"),
        (["show"], "Missing argument 'PLAN'"),
        (["explain", "script.py"], "a script needs --cluster"),
        (["explain", bad], "bad.json"),
        (["explain", "--cluster", "cpu", "no.py"], "explain: the script 'no.py' is not there"),
        (["diff", bad], "Missing argument 'OTHER'"),
        (["report", "script.py"], "a script needs --cluster"),
        (["report", bad], "bad.json"),
        (["report", "--cluster", "h1000", "script.py"], "'h1000': unknown"),
        (["diff", bad, bad], "bad.json"),
        (["diff", "no.json", bad], "no.json"),
    ):
        done = ran(capsys, *arguments)
        _one_line(done, said)
        assert done.err.count("\n") == 1


@pytest.mark.pure
@pytest.mark.parametrize("command", ["plan", "estimate", "frontier", "trace", "compare"])
def test_bad_input_is_one_line_before_anything_is_loaded(
    capsys: pytest.CaptureFixture[str], command: str, tmp_path: Path
) -> None:
    (tmp_path / "bad.json").write_text("{")
    for arguments, said in (
        (["--cluster", "cpu", "nothing.py"], f"{command}: the script 'nothing.py' is not there"),
        (["--cluster", "h1000", __file__], "'h1000': unknown"),
        (["--cluster", str(tmp_path / "bad.json"), __file__], "bad.json"),
        (["--cluster", "cpu"], "Missing argument 'SCRIPT'"),
        ([__file__], "Missing option '--cluster'"),
    ):
        done = ran(capsys, command, *arguments)
        _one_line(done, said)
        assert done.err.count("\n") == 1


@pytest.mark.pure
def test_bad_lists_of_devices(capsys: pytest.CaptureFixture[str]) -> None:
    for text, said in (("1,two", "must be whole numbers"), ("0,2", "at least 1"), ("", "must be whole numbers")):
        _one_line(ran(capsys, "estimate", "--cluster", "cpu", "--devices", text, __file__), said)
    _one_line(ran(capsys, "plan", "--cluster", "cpu", "--option", "profiling", __file__), "Use tensoropt estimate")
    _one_line(ran(capsys, "trace", "--cluster", "cpu", "--option", "mini_tim", __file__), "mean 'mini_time'")


@pytest.mark.pure
def test_clusters(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    done = ran(capsys, "clusters")
    assert done.code == 0 and "h100" in done.out and "V100-SXM2-16GB" in done.out
    assert set(json.loads(ran(capsys, "clusters", "--json").out)) >= {"h100", "cpu"}
    saved = tmp_path / "mine.json"
    done = ran(capsys, "clusters", "v100", "--devices", "32", "--save", str(saved))
    assert "4 hosts × 8 devices" in done.out
    again = json.loads(ran(capsys, "clusters", str(saved), "--json").out)
    assert again == json.loads(saved.read_text()) == preset("v100", devices=32).to_json()
    for arguments, said in (
        (["v1000"], "unknown. Did you mean 'v100'"),
        (["v100", "--devices", "0"], "--devices"),
        (["no/file.json"], "no/file.json"),
    ):
        _one_line(ran(capsys, "clusters", *arguments), said)
