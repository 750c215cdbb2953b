"""``tensoropt run``: lines, job files, real jobs, and what is wrong with what it is given."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.cli.command import ran

ROOT = Path(__file__).resolve().parents[2]
_COMMAND = [sys.executable, "-m", "tensoropt", "run"]


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "script.py"
    path.write_text("")
    return str(path)


@pytest.mark.pure
def test_the_line_as_text_and_as_json(capsys: pytest.CaptureFixture[str], script: str) -> None:
    done = ran(capsys, "run", "-n", "3", "--dry-run", "--json", script, "-n", "5", "--json")
    value = json.loads(done.out)
    assert done.code == 0 and sorted(value) == ["command", "environment"]
    assert value["command"][1:3] == ["-n", "3"]
    assert value["command"][-5:] == [sys.executable, script, "-n", "5", "--json"]
    text = ran(capsys, "run", "-n", "3", "--dry-run", script).out
    assert text.endswith(f"{sys.executable} {script}\n")
    module = ran(capsys, "run", "--dry-run", "-m", "some.module", "--flag").out
    assert module.endswith(f"{sys.executable} -m some.module --flag\n")


@pytest.mark.pure
def test_a_file_for_sbatch_is_a_shell_script(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("run", "-n", "8", "--nodes", "4", "--threads", "6", "--slurm")
    text = ran(capsys, *arguments, "dir/train it.py", "--name", "a b").out
    assert text.startswith("#!/bin/sh\n#SBATCH --job-name='train it'\n")
    for line in ("--nodes=4", "--ntasks=8", "--ntasks-per-node=2", "--cpus-per-task=6"):
        assert f"#SBATCH {line}\n" in text
    assert "export OMP_NUM_THREADS=6\n" in text
    last = text.splitlines()[-1]
    assert re.fullmatch(r"exec srun --mpi=pmix .*python\S* 'dir/train it.py' --name 'a b'", last)
    subprocess.run(["sh", "-n"], input=text, text=True, check=True)
    assert json.loads(ran(capsys, *arguments, "--json", "script.py").out).keys() == {"sbatch"}


@pytest.mark.pure
def test_a_job_for_kubernetes(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("run", "-n", "8", "--nodes", "2", "--threads", "3", "--k8s", "--image", "me/image:1")
    done = ran(capsys, *arguments, "Train_It.py", "--name", "a b")
    assert done.code == 0
    assert "apiVersion: kubeflow.org/v2beta1\nkind: MPIJob\nmetadata:\n  name: train-it\n" in done.out
    assert "slotsPerWorker: 4\n" in done.out and "replicas: 2\n" in done.out
    given = json.loads(re.search(r"args: (\[.*\])", done.out)[1])  # type: ignore[index]
    assert given[:2] == ["-n", "8"] and given[-4:] == ["python", "Train_It.py", "--name", "a b"]
    assert "resources: {limits: {cpu: 12}}" in done.out


@pytest.mark.pure
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Missing argument 'SCRIPT'"),
        (["nothing.py"], "the script 'nothing.py' is not there"),
        (["-m"], "Missing argument 'SCRIPT'"),
        (["/"], "'/' is a folder"),
        (["-n", "0", "x.py"], "-n"),
        (["-n", "two", "x.py"], "-n"),
        (["--ranks-of-all", "2", "x.py"], "No such option"),
        (["--slurm", "--k8s", "x.py"], "Give one of them"),
        (["--k8s", "x.py"], "needs --image"),
        (["--slurm", "-n", "5", "--nodes", "2", "x.py"], "take -n 6"),
        (["--nodes", "2", "x.py"], "for job files"),
        (["--mpirun", "/no/mpirun", __file__], "must be a program"),
        (["--mpirun", "true", __file__], "Of its version it says: "),
        (["--hosts", "/no/hosts", __file__], "cannot be read: No such file"),
    ],
)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    done = ran(capsys, "run", *arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.count("\n") == 1 and said in done.err, done.err


@pytest.mark.pure
def test_a_command_that_is_not_there_is_guessed(capsys: pytest.CaptureFixture[str]) -> None:
    done = ran(capsys, "docter")
    assert done.code == 2 and "No such command 'docter'. Did you mean 'doctor'?" in done.err


@pytest.mark.pure
def test_a_rank_starts_no_job(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    monkeypatch.setenv("PMIX_RANK", "0")
    for command in (["run", script], ["doctor"]):
        done = ran(capsys, *command)
        assert done.code == 2 and "is a rank of an MPI job" in done.err


@pytest.mark.pure
def test_help_loads_no_tensorflow_and_has_an_example() -> None:
    code = (
        "import sys\nfrom tensoropt.cli.main import app\n"
        "for command in ([], ['run'], ['doctor']):\n"
        "    app(args=[*command, '--help'], standalone_mode=False)\n"
        "print(sorted({'tensorflow', 'mpi4py', 'keras', 'numba'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    assert done.stdout.count("Examples:") == 2


def _started(script: Path, *arguments: str, options: tuple[str, ...] = (), **more: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(script.parent), **more}
    return subprocess.Popen(
        [*_COMMAND, "-n", "3", *options, str(script), *arguments],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.mpi
def test_ranks_get_arguments_and_their_exit_code_is_the_commands(tmp_path: Path) -> None:
    """Each rank leaves a file: Open MPI ends the others with the first that fails, in the midst of a line too."""
    script = tmp_path / "script.py"
    script.write_text(
        "import glob, os, sys, time\nos.chdir(os.path.dirname(__file__))\n"
        "os.mkdir(f\"{os.environ['OMPI_COMM_WORLD_RANK']} {sys.argv[1:]}.rank\")\n"
        "while len(glob.glob('*.rank')) < 3:\n"
        "    time.sleep(0.01)\n"
        "sys.exit(7)\n"
    )
    process = _started(script, "-x", "1")
    _, err = process.communicate(timeout=60)
    assert process.returncode == 7, err
    assert {file.stem for file in tmp_path.glob("*.rank")} == {f"{rank} ['-x', '1']" for rank in range(3)}
    assert re.search(r"tensoropt: run: .*mpirun -n 3 .*script\.py -x 1\n", err)


@pytest.mark.mpi
def test_ranks_run_on_hosts_with_the_variables_of_jobs(tmp_path: Path) -> None:
    """What is to reach a host by ssh is run here, without this process's environment."""
    agent = tmp_path / "agent"
    run = 'shift\nexec env -i HOME=/ PATH="$PATH" /bin/sh -c "$*"\n'
    agent.write_text(f'#!/bin/sh\necho "$1" >>{tmp_path}/reached\n{run}')
    agent.chmod(0o700)
    (tmp_path / "hosts").write_text("nodea slots=1\nnodeb:2\n")
    script = tmp_path / "script.py"
    script.write_text("import os\nprint(os.environ['TENSOROPT_LOG'], os.environ['OMP_NUM_THREADS'])\n")
    agents = {"PRTE_MCA_plm_ssh_agent": str(agent), "OMPI_MCA_plm_rsh_agent": str(agent)}
    options = ("--hosts", str(tmp_path / "hosts"), "--threads", "5", "--json")
    process = _started(script, options=options, TENSOROPT_LOG="warning", **agents)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    assert sorted(out.splitlines()) == 3 * ["warning " + os.environ.get("OMP_NUM_THREADS", "5")]
    assert sorted((tmp_path / "reached").read_text().split()) == ["nodea", "nodeb"]
    assert json.loads(err.splitlines()[0])["command"][1:3] == ["-n", "3"]


@pytest.mark.mpi
def test_a_signal_ends_the_ranks(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(
        f"import os, pathlib, time\npathlib.Path({str(tmp_path)!r}, f'rank{{os.getpid()}}').touch()\ntime.sleep(60)\n"
    )
    process = _started(script)
    deadline = time.monotonic() + 60
    while len(list(tmp_path.glob("rank*"))) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    ranks = [int(path.name.removeprefix("rank")) for path in tmp_path.glob("rank*")]
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=60)
    assert len(ranks) == 3 and process.returncode != 0
    while any(map(_is_alive, ranks)) and time.monotonic() < deadline:  # a busy machine takes a moment to end them
        time.sleep(0.05)
    assert [pid for pid in ranks if _is_alive(pid)] == []


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False
