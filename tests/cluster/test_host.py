"""What a process sees of its host, from files as Linux writes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensoropt.cluster import host

pytestmark = pytest.mark.pure

GIB = 2**30


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    write(tmp_path / "proc", {"meminfo": f"MemTotal: {64 * 2**20} kB\nMemAvailable:   {32 * 2**20} kB\n"})
    return tmp_path / "proc"


def test_without_a_cgroup_memory_is_what_the_kernel_calls_available(proc: Path, tmp_path: Path) -> None:
    assert host.available_memory_bytes(proc, tmp_path / "cgroup") == 32 * GIB


def test_limit_of_a_parent_cgroup_holds_and_idle_file_pages_are_free(proc: Path, tmp_path: Path) -> None:
    write(proc, {"self/cgroup": "0::/job/step\n"})
    write(
        tmp_path / "cgroup",
        {
            "job/memory.max": f"{8 * GIB}\n",
            "job/memory.current": f"{3 * GIB}\n",
            "job/memory.stat": f"anon {GIB}\ninactive_file {GIB}\n",
            "job/step/memory.max": "max\n",
            "job/step/memory.current": f"{GIB}\n",
        },
    )
    assert host.available_memory_bytes(proc, tmp_path / "cgroup") == 6 * GIB


def test_limit_of_a_version_1_cgroup_holds_inside_a_container(proc: Path, tmp_path: Path) -> None:
    # The path is the host's; inside the container only the root of the hierarchy is mounted.
    write(proc, {"self/cgroup": "5:cpu,cpuacct:/docker/abc\n4:memory:/docker/abc\n"})
    files = {"memory/memory.limit_in_bytes": f"{4 * GIB}", "memory/memory.usage_in_bytes": f"{GIB}"}
    write(tmp_path / "cgroup", files)
    assert host.available_memory_bytes(proc, tmp_path / "cgroup") == 3 * GIB


def test_cgroup_that_is_full_leaves_a_positive_figure(proc: Path, tmp_path: Path) -> None:
    write(proc, {"self/cgroup": "0::/\n"})
    write(tmp_path / "cgroup", {"memory.max": "100\n", "memory.current": "200\n"})
    assert host.available_memory_bytes(proc, tmp_path / "cgroup") == 1


def test_without_proc_memory_is_all_there_is(tmp_path: Path) -> None:
    assert host.available_memory_bytes(tmp_path, tmp_path) > 2**20


def test_cpu_model_is_read_from_cpuinfo(tmp_path: Path) -> None:
    write(tmp_path, {"cpuinfo": "processor\t: 0\nmodel name\t: Invented CPU @ 3 GHz\n"})
    assert host.cpu_model(tmp_path) == "Invented CPU @ 3 GHz"
    assert host.cpu_model(tmp_path / "nothing") != "Invented CPU @ 3 GHz"


def test_cores_are_shared_by_the_ranks_that_may_use_them() -> None:
    assert host.cores_per_rank([(0, 1)] * 4) == (0.5,) * 4
    assert host.cores_per_rank([(0, 1, 2), (0,)]) == (2.5, 0.5)
    assert host.affinity()
