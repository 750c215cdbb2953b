"""Topologies: their factor mesh, their parts, and their JSON."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import pytest

from tensoropt.cluster import CollectiveProfile, Device, Level, ProfileEntry, Topology, preset
from tensoropt.cluster.topology import prime_factors
from tensoropt.errors import ClusterError

pytestmark = pytest.mark.pure

DEVICE = Device("chip", {"float64": 5e11, "float32": 1e12}, 1e11, 8 * 2**30, 1e-6)


def cluster(*sizes: int, profile: CollectiveProfile | None = None) -> Topology:
    levels = tuple(Level(f"level{i}", size, 1e-6, 1e9) for i, size in enumerate(sizes))
    return Topology("invented", levels, DEVICE, profile)


@pytest.mark.parametrize(
    ("sizes", "mesh", "levels"),
    [
        ((1,), (), ()),
        ((8,), (2, 2, 2), (0, 0, 0)),
        ((2, 8), (2, 2, 2, 2), (0, 1, 1, 1)),
        ((3, 2), (3, 2), (0, 1)),
        ((6,), (2, 3), (0, 0)),
        ((12, 1, 10), (2, 2, 3, 2, 5), (0, 0, 0, 2, 2)),
    ],
)
def test_factor_mesh_is_primes_outermost_level_first(
    sizes: tuple[int, ...], mesh: tuple[int, ...], levels: tuple[int, ...]
) -> None:
    topology = cluster(*sizes)
    assert topology.factor_mesh() == mesh
    assert tuple(topology.axis_level(axis) for axis in range(len(mesh))) == levels
    assert topology.device_count == math.prod(sizes) == math.prod(mesh)


@pytest.mark.parametrize(
    ("sizes", "mesh", "borders"),
    [
        ((128, 8), (4, 4, 8, 2, 2, 2), (3,)),
        ((1024,), (4, 4, 4, 4, 2, 2), ()),
        ((16, 16), (4, 2, 2, 4, 2, 2), (3,)),
        ((4, 4, 8), (2, 2, 2, 2, 4, 2), (2, 4)),
        ((7, 1, 64), (7, 4, 2, 2, 2, 2), (1,)),
        ((2,) * 9, (2,) * 9, (1, 2, 3, 4, 5, 6, 7, 8)),
    ],
)
def test_a_factor_mesh_of_many_axes_multiplies_neighbours_of_a_level(
    sizes: tuple[int, ...], mesh: tuple[int, ...], borders: tuple[int, ...]
) -> None:
    topology = cluster(*sizes)
    assert topology.factor_mesh() == mesh
    assert topology.level_borders() == borders
    assert topology.group_by_level(range(len(mesh))) == sizes


def test_prime_factors_are_ascending_primes_with_that_product() -> None:
    for number in range(1, 200):
        factors = prime_factors(number)
        assert math.prod(factors) == number and list(factors) == sorted(factors)
        assert all(all(factor % divisor for divisor in range(2, factor)) for factor in factors)


@pytest.mark.parametrize("axis", [-1, 4])
def test_axis_that_does_not_exist_is_refused(axis: int) -> None:
    with pytest.raises(ClusterError, match=rf"mesh axis {axis} does not exist.*axes 0\.\.3"):
        cluster(2, 8).axis_level(axis)


def test_group_by_level_counts_members_per_level_in_any_order() -> None:
    topology = cluster(2, 6)
    assert topology.group_by_level((2, 0)) == topology.group_by_level((0, 2)) == (2, 3)
    assert topology.group_by_level(()) == (1, 1)


def test_group_with_an_axis_twice_is_refused() -> None:
    with pytest.raises(ClusterError, match=r"mesh axis 1 occurs twice in the group \(1, 1\)"):
        cluster(2, 6).group_by_level((1, 1))


def test_first_devices_fill_inner_levels_first() -> None:
    topology = cluster(4, 2, 2)
    sizes = {count: topology.with_device_count(count).level_sizes for count in (1, 2, 4, 8, 12, 16)}
    assert sizes == {
        1: (1, 1, 1),
        2: (1, 1, 2),
        4: (1, 2, 2),
        8: (2, 2, 2),
        12: (3, 2, 2),
        16: (4, 2, 2),
    }


@pytest.mark.parametrize(("count", "use"), [(9, "8 or 16"), (12, "8 or 16"), (15, "8 or 16")])
def test_device_count_that_leaves_a_host_half_filled_names_the_nearest(count: int, use: str) -> None:
    with pytest.raises(ClusterError, match=rf"{count} devices do not fill levels.*Use {use}\."):
        cluster(2, 8).with_device_count(count)


@pytest.mark.parametrize("count", [0, 17])
def test_device_count_beyond_the_cluster_is_refused(count: int) -> None:
    with pytest.raises(ClusterError, match=f"{count} devices asked for, of 16"):
        cluster(2, 8).with_device_count(count)


def test_first_devices_keep_the_measurements_that_still_partition_them() -> None:
    entries = [ProfileEntry("permute", group, (1024,), (1e-5,)) for group in ((1, 2), (1, 4), (2, 1))]
    topology = cluster(2, 4, profile=CollectiveProfile.of(entries))
    one_host = topology.with_device_count(4).profile
    assert one_host is not None and [entry.group for entry in one_host.entries] == [(1, 2), (1, 4)]
    assert topology.with_device_count(1).profile is None
    assert topology.with_device_count(8) == topology


def test_device_falls_to_float32_where_it_has_no_figure() -> None:
    assert DEVICE.flops("float64") == DEVICE.flops("complex128") == 5e11
    assert DEVICE.flops("bfloat16") == DEVICE.flops("int32") == 1e12


def test_equal_figures_are_equal_values_whatever_the_order_of_dtypes() -> None:
    other = Device("chip", {"float32": 1e12, "float64": 5e11}, 1e11, 8 * 2**30, 1e-6)
    assert other == DEVICE and hash(other) == hash(DEVICE)
    assert dataclasses.replace(DEVICE, memory_bytes=1).flops_per_s == DEVICE.flops_per_s


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "the name is empty"),
        ({"size": 0}, "size must be at least 1, got 0"),
        ({"latency_s": -1.0}, "latency_s must be finite and not negative, got -1.0"),
        ({"latency_s": math.nan}, "latency_s must be finite"),
        ({"bandwidth_bytes_per_s": 0.0}, "bandwidth_bytes_per_s must be finite and positive, got 0.0"),
        ({"bandwidth_bytes_per_s": math.inf}, "bandwidth_bytes_per_s must be finite and positive, got inf"),
    ],
)
def test_level_out_of_range_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        dataclasses.replace(Level("host", 2, 1e-6, 1e9), **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"flops_per_s": {"float64": 1.0}}, "flops_per_s has no 'float32'"),
        (
            {"flops_per_s": {"float32": -1.0}},
            r"flops_per_s\['float32'\] must be finite and positive, got -1.0",
        ),
        ({"memory_bandwidth_bytes_per_s": 0.0}, "memory_bandwidth_bytes_per_s must be finite and positive"),
        ({"memory_bytes": 0}, "memory_bytes must be finite and positive, got 0"),
        ({"op_overhead_s": -1e-6}, "op_overhead_s must be finite and not negative"),
        ({"product_efficiency": 0.0}, "product_efficiency must be above 0 and at most 1, got 0.0"),
        ({"product_efficiency": 1.5}, "product_efficiency must be above 0 and at most 1, got 1.5"),
        ({"fusion": "pointwize"}, "fusion 'pointwize' is unknown. Did you mean 'pointwise'"),
    ],
)
def test_device_out_of_range_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        dataclasses.replace(DEVICE, **change)


def test_topology_without_levels_is_refused() -> None:
    with pytest.raises(ClusterError, match="no levels"):
        Topology("empty", (), DEVICE)


def test_levels_of_one_name_are_refused() -> None:
    level = Level("host", 2, 1e-6, 1e9)
    with pytest.raises(ClusterError, match="2 levels are named 'host'"):
        Topology("twins", (level, level), DEVICE)


@pytest.mark.parametrize("group", [(3, 1), (2,)])
def test_profile_of_another_cluster_is_refused(group: tuple[int, ...]) -> None:
    profile = CollectiveProfile((ProfileEntry("permute", group, (1024,), (1e-5,)),))
    with pytest.raises(ClusterError, match=r"do not partition levels of sizes \(2, 4\)"):
        cluster(2, 4, profile=profile)


def test_file_round_trip_keeps_every_figure(tmp_path: Path) -> None:
    profile = CollectiveProfile((ProfileEntry("permute", (1, 2), (1024, 4096), (1 / 3e5, 1e-5)),))
    topology = cluster(2, 4, profile=profile)
    topology.save(tmp_path / "cluster.json")
    assert Topology.load(tmp_path / "cluster.json") == topology


def test_json_may_leave_out_what_has_a_natural_value() -> None:
    document = preset("h100").to_json()
    del document["profile"]
    for level in document["levels"]:
        del level["shared"]
    assert Topology.from_json(document) == preset("h100")


def test_fingerprint_sees_every_figure_but_free_memory_and_no_name() -> None:
    topology = cluster(2, 4)
    named = dataclasses.replace(topology, name="other", device=dataclasses.replace(DEVICE, name="other"))
    assert named.fingerprint() == topology.fingerprint()
    fuller = dataclasses.replace(topology, device=dataclasses.replace(DEVICE, memory_bytes=1))
    assert fuller.fingerprint() == topology.fingerprint()
    faster = dataclasses.replace(topology, device=dataclasses.replace(DEVICE, op_overhead_s=1.0))
    profiled = cluster(2, 4, profile=CollectiveProfile((ProfileEntry("permute", (1, 2), (1,), (1.0,)),)))
    prints = {topo.fingerprint() for topo in (topology, faster, profiled, cluster(2, 2), cluster(4, 2))}
    assert len(prints) == 5


DELETE = object()


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("schema_version",), 99, "schema_version must be 1, got 99"),
        (("schema_version",), DELETE, "schema_version must be 1, got None"),
        (("name",), 3, "the document: field 'name' must be a string, got 3"),
        (("levels",), {}, "field 'levels' must be an array, got dict"),
        (("levels", 0), "host", r"levels\[0\] must be an object, got str"),
        (("levels", 1, "size"), 1.5, r"levels\[1\]: field 'size' must be an integer, got 1.5"),
        (("levels", 1, "size"), True, r"levels\[1\]: field 'size' must be a number, got True"),
        (("levels", 1, "shared"), 1, r"levels\[1\]: field 'shared' must be true or false, got 1"),
        (("levels", 0, "latency_s"), DELETE, r"levels\[0\]: field 'latency_s' is missing"),
        (
            ("levels", 0, "latency"),
            1,
            r"levels\[0\]: unknown field 'latency'. Known fields: name, size, latency_s",
        ),
        (("levels", 0, "size"), 0, "size must be at least 1"),
        (("device",), DELETE, "field 'device' is missing"),
        (("device", "memory_bytes"), "16GB", "device: field 'memory_bytes' must be a number, got '16GB'"),
        (("device", "flops_per_s"), 1e12, "device.flops_per_s must be an object, got float"),
        (("device", "flops_per_s", "float32"), None, "device.flops_per_s: field 'float32' must be a number"),
        (("profile",), {}, "field 'profile' must be an array, got dict"),
        (("profile",), [{}], "collective profile entry: field 'kind' is missing"),
    ],
)
def test_json_that_breaks_the_schema_names_the_field(path: tuple[Any, ...], value: object, message: str) -> None:
    document: Any = copy.deepcopy(preset("v100").to_json())
    inner = document
    for key in path[:-1]:
        inner = inner[key]
    if value is DELETE:
        del inner[path[-1]]
    else:
        inner[path[-1]] = value
    with pytest.raises(ClusterError, match=message):
        Topology.from_json(document)


def test_document_that_is_no_object_is_refused() -> None:
    with pytest.raises(ClusterError, match="the document must be an object, got list"):
        Topology.from_json([])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("{", "not JSON"),
        (json.dumps({"schema_version": 1}), r"cluster\.json.*field 'name' is missing"),
    ],
)
def test_file_that_is_no_topology_is_named(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "cluster.json"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(ClusterError, match=message):
        Topology.load(path)


def test_str_says_what_the_cluster_is_made_of() -> None:
    assert str(preset("v100")) == "2x8 V100, NVLink, RDMA: 2 hosts × 8 devices of V100-SXM2-16GB"


@pytest.mark.parametrize(
    ("field", "value"), [("wide_products", True), ("product_efficiency", 0.8), ("fusion", "pointwise")]
)
def test_figures_are_written_only_where_they_are_not_the_usual_ones(field: str, value: Any) -> None:
    usual = preset("cpu", devices=2)
    assert field not in usual.to_json()["device"]
    device = dataclasses.replace(usual.device, **{field: value})
    written = device.to_json()
    assert written[field] == value
    assert Device.from_json(written) == device
    assert dataclasses.replace(usual, device=device).fingerprint() != usual.fingerprint()
