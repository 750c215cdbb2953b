"""Launchers by what they say of themselves, and the lines that start jobs with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensoropt.cli import launcher as launcher_module
from tensoropt.cli.hosts import Host, read_hosts
from tensoropt.cli.launcher import Launcher, environment, identified, launch, threads_of
from tensoropt.cli.output import UsageError

pytestmark = pytest.mark.pure

OPEN_MPI_4 = Launcher("/usr/bin/mpirun", "openmpi", "Open MPI", "4.1.6")
OPEN_MPI_5 = Launcher("/opt/bin/mpirun", "openmpi", "Open MPI", "5.0.11")
MPICH = Launcher("/usr/bin/mpiexec", "hydra", "MPICH", "4.2.1")
SRUN = Launcher("/usr/bin/srun", "srun", "SLURM", "23.02.7")
PROGRAM = ["python", "script.py"]


@pytest.fixture(autouse=True)
def machine_of_four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user's machine, whose shell has said nothing yet."""
    monkeypatch.setattr(launcher_module, "affinity", lambda: (0, 1, 2, 3))
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    for name in (*environment(1, {}), "SLURM_JOB_ID", "TENSOROPT_LOG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", "/usr/bin:/opt/bin")


@pytest.mark.parametrize(
    ("said", "kind", "name", "version"),
    [
        ("mpirun (Open MPI) 5.0.11\n\nReport bugs to https://…", "openmpi", "Open MPI", "5.0.11"),
        ("mpiexec (OpenRTE) 4.0.3\n\nReport bugs to …", "openmpi", "Open MPI", "4.0.3"),
        ("mpirun (Open MPI) 4.1.6rc1", "openmpi", "Open MPI", "4.1.6rc1"),
        (
            "HYDRA build details:\n    Version:                                 4.2.1\n    Release Date: …",
            "hydra",
            "MPICH",
            "4.2.1",
        ),
        (
            "Intel(R) MPI Library for Linux* OS, Version 2021.9 Build 20230307 (id: d82b3071db)",
            "hydra",
            "Intel MPI",
            "2021.9",
        ),
        ("slurm-wlm 23.02.7", "srun", "SLURM", "23.02.7"),
        ("slurm 22.05.3", "srun", "SLURM", "22.05.3"),
    ],
)
def test_a_launcher_is_known_by_its_version(said: str, kind: str, name: str, version: str) -> None:
    found = identified("/some/mpirun", said)
    assert (found.kind, found.name, found.version) == (kind, name, version)


def test_an_unknown_launcher_is_refused_with_what_it_says() -> None:
    with pytest.raises(UsageError, match=r"'/x/mpirun' must be the mpirun of Open MPI, MPICH.*'LAM 7\.1'.*--mpirun"):
        identified("/x/mpirun", "\nLAM 7.1\nmore")


def test_ranks_share_the_cores_and_keep_their_pages() -> None:
    assert (threads_of(1), threads_of(2), threads_of(3), threads_of(8)) == (4, 2, 1, 1)
    assert launch(OPEN_MPI_5, 2, PROGRAM).environment == {
        "TF_NUM_INTRAOP_THREADS": "2",
        "OMP_NUM_THREADS": "2",
        "MALLOC_MMAP_THRESHOLD_": "1073741824",
        "MALLOC_TRIM_THRESHOLD_": "4294967296",
        "TF_CPP_MIN_LOG_LEVEL": "3",
    }


def test_what_the_environment_says_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    monkeypatch.setenv("TENSOROPT_LOG", "debug")
    added = launch(OPEN_MPI_5, 2, PROGRAM).environment
    assert "OMP_NUM_THREADS" not in added and "TF_CPP_MIN_LOG_LEVEL" not in added
    assert added["TF_NUM_INTRAOP_THREADS"] == "2"


def line_of(launcher: Launcher, ranks: int, hosts: tuple[Host, ...] = (), threads: int | None = None) -> str:
    return " ".join(launch(launcher, ranks, PROGRAM, hosts, threads).command)


def test_lines_on_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    assert line_of(OPEN_MPI_5, 4) == "/opt/bin/mpirun -n 4 --map-by :OVERSUBSCRIBE python script.py"
    assert line_of(OPEN_MPI_4, 4) == "/usr/bin/mpirun -n 4 --oversubscribe python script.py"
    assert line_of(OPEN_MPI_5, 8).endswith("OVERSUBSCRIBE --mca mpi_yield_when_idle 1 python script.py")
    assert line_of(OPEN_MPI_5, 2).endswith("OVERSUBSCRIBE --bind-to none python script.py")
    assert line_of(OPEN_MPI_5, 2, threads=1).endswith("OVERSUBSCRIBE python script.py")
    assert line_of(MPICH, 4) == "/usr/bin/mpiexec -n 4 python script.py"
    assert line_of(SRUN, 4) == "/usr/bin/srun -n 4 --mpi=pmix --kill-on-bad-exit=1 python script.py"
    monkeypatch.setattr("os.geteuid", lambda: 0)
    assert line_of(OPEN_MPI_4, 4).startswith("/usr/bin/mpirun -n 4 --allow-run-as-root --oversubscribe")
    assert "root" not in line_of(MPICH, 4)


def test_lines_on_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    hosts = (Host("a", 4), Host("b", 4))
    for name in ("TENSOROPT_CACHE_DIR", "HOME"):
        monkeypatch.setenv(name, "/x")
    words = line_of(OPEN_MPI_4, 8, hosts).split()
    assert words[3:5] == ["--host", "a:4,b:4"]
    passed = [words[place + 1] for place, word in enumerate(words) if word == "-x"]
    assert {"TENSOROPT_CACHE_DIR", "OMP_NUM_THREADS", "MALLOC_TRIM_THRESHOLD_", "PATH"} <= set(passed)
    assert "HOME" not in passed and "--oversubscribe" not in words
    # How many cores other hosts have is not known here.
    assert " ".join(words[-4:-2]) == "--bind-to core:overload-allowed"
    assert "yield" not in line_of(OPEN_MPI_5, 8, hosts, threads=2)
    assert line_of(OPEN_MPI_5, 8, hosts, threads=2).endswith("--bind-to none python script.py")
    assert line_of(MPICH, 8, hosts) == "/usr/bin/mpiexec -n 8 -hosts a:4,b:4 python script.py"
    assert "--nodelist a,b" in line_of(SRUN, 8, hosts)


def test_an_allocation_of_slurm_is_not_oversubscribed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert line_of(OPEN_MPI_5, 4) == "/opt/bin/mpirun -n 4 python script.py"


def test_the_line_can_be_pasted() -> None:
    started = launch(OPEN_MPI_5, 4, ["python", "a script.py", "--name", "it's"], threads=2)
    assert str(started).startswith("TF_NUM_INTRAOP_THREADS=2 OMP_NUM_THREADS=2 MALLOC_")
    assert str(started).endswith("""python 'a script.py' --name 'it'"'"'s'""")


def test_a_launcher_outside_of_the_path_reaches_what_lies_beside_it() -> None:
    started = launch(Launcher("/opt/impi/bin/mpirun", "hydra", "Intel MPI", "2021.9"), 4, PROGRAM)
    assert started.environment["PATH"] == "/opt/impi/bin:/usr/bin:/opt/bin"
    assert 'PATH=/opt/impi/bin:"$PATH" /opt/impi/bin/mpirun -n 4' in str(started)


def test_hosts_of_either_form_are_read(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# ours\na slots=3 max_slots=4\nb.cluster:2  # the other\n\nc\nd\n")
    assert read_hosts(path, 8) == (Host("a", 3), Host("b.cluster", 2), Host("c", 2), Host("d", 2))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a slots=2\na:1\n", "line 2: 'a:1' stands there before"),
        ("a slots=two\n", "line 1: 'a slots=two' is no host"),
        ("a;rm -rf\n", "is no host"),
        ("\n", "must have hosts"),
        ("a:0\n", "must have hosts with a rank or more"),
        ("a:2\nb:1\n", "room for 3 ranks, and -n 4 asks for more"),
    ],
)
def test_wrong_hosts_are_refused(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "hosts"
    path.write_text(text)
    with pytest.raises(UsageError, match=said):
        read_hosts(path, 4)


def test_hosts_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_hosts(tmp_path / "none", 4)
    with pytest.raises(UsageError, match="cannot be read: it is a folder"):
        read_hosts(tmp_path, 4)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="must be text"):
        read_hosts(tmp_path / "binary", 4)
