"""Presets: sizes of the papers' clusters, and the relations between them that the papers report."""

from __future__ import annotations

import pytest

from tensoropt.cluster import PRESETS, CollectiveModel, Topology, preset
from tensoropt.cluster import presets as all_presets
from tensoropt.errors import ClusterError

pytestmark = pytest.mark.pure


@pytest.mark.parametrize(
    ("name", "devices", "mesh"),
    [
        ("v100", 16, (2, 2, 2, 2)),
        ("v100-no-rdma", 16, (2, 2, 2, 2)),
        ("v100-4x-rdma", 16, (2, 2, 2, 2)),
        ("v100-pcie", 16, (2, 2, 2, 2)),
        ("p100", 16, (2, 2, 2, 2)),
        ("k80", 64, (2, 2, 2, 2, 2, 2)),
        ("1080ti", 32, (2, 2, 2, 2, 2)),
        ("2080ti", 32, (2, 2, 2, 2, 2)),
        ("a100", 8, (2, 2, 2)),
        ("h100", 8, (2, 2, 2)),
        ("cpu", 4, (2, 2)),
    ],
)
def test_preset_has_its_papers_size(name: str, devices: int, mesh: tuple[int, ...]) -> None:
    topology = preset(name)
    assert topology.device_count == devices and topology.factor_mesh() == mesh
    assert Topology.from_json(topology.to_json()) == topology


def test_every_preset_is_a_cluster_of_its_own() -> None:
    assert len({preset(name).fingerprint() for name in PRESETS}) == len(PRESETS)


def test_presets_grow_by_hosts() -> None:
    for build in (all_presets.v100, all_presets.k80, all_presets.gtx1080ti, all_presets.h100):
        assert build(6).device_count == 6 * build(1).device_count


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "cpu"])
def test_preset_can_be_asked_for_in_other_sizes(name: str) -> None:
    host = preset(name, hosts=1).device_count
    assert preset(name, hosts=8).device_count == 8 * host
    assert preset(name, hosts=8).name.startswith(f"8x{host} ")
    assert preset(name, devices=8 * host) == preset(name, hosts=8)
    assert preset(name, devices=2).device_count == 2
    assert preset(name, devices=2).device == preset(name).device


def test_cpu_is_asked_for_by_devices() -> None:
    assert preset("cpu", devices=6) == all_presets.cpu(6)


@pytest.mark.parametrize(
    ("name", "size", "message"),
    [
        ("v100", {"hosts": 2, "devices": 16}, r"hosts or devices, got hosts=2 and devices=16\. Give one"),
        ("v100", {"hosts": 0}, r"at least 1 host, got hosts=0"),
        ("v100", {"devices": 0}, r"at least 1 device, got devices=0"),
        ("v100", {"devices": 12}, r"12 devices do not fill levels of sizes \(2, 8\) evenly"),
        ("cpu", {"hosts": 2}, r"'cpu': is one host, got hosts=2\. Give devices="),
    ],
)
def test_sizes_that_a_preset_cannot_have(name: str, size: dict[str, int], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        preset(name, **size)


def test_cpu_has_as_many_devices_as_asked() -> None:
    assert all_presets.cpu(6).factor_mesh() == (2, 3)


def test_faster_networks_are_faster_in_the_papers_order() -> None:
    # TensorOpt figure 7b, for gradients across hosts; "even 4x RDMA is 10 times slower than NVLink".
    across = [
        CollectiveModel(preset(name)).seconds("all_reduce", (0,), 100e6)
        for name in ("v100-4x-rdma", "v100", "v100-no-rdma")
    ]
    inside = CollectiveModel(preset("v100")).seconds("all_reduce", (1,), 100e6)
    assert 10 * inside < across[0] < across[1] < across[2]
    assert across[1] / across[2] == pytest.approx(0.5, rel=0.01)


def test_pcie_is_a_twentieth_of_nvlink() -> None:
    pcie, nvlink = (CollectiveModel(preset(name)) for name in ("v100-pcie", "v100"))
    ratio = pcie.seconds("all_reduce", (1, 2, 3), 1e9) / nvlink.seconds("all_reduce", (1, 2, 3), 1e9)
    assert ratio == pytest.approx(20, rel=0.01)


def test_k80_pairs_on_a_switch_are_faster_than_across_the_root() -> None:
    costs = CollectiveModel(preset("k80"))
    times = [costs.seconds("all_reduce", (axis,), 100e6) for axis in (5, 4, 0)]
    assert times == sorted(times) and len(set(times)) == 3


def test_unknown_preset_names_those_there_are() -> None:
    with pytest.raises(ClusterError, match=r"preset 'tpu': unknown.* Use one of v100, v100-no-rdma"):
        preset("tpu")
