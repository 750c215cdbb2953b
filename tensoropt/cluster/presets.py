"""Clusters of the papers, and of today.

Figures of devices are peaks from their data sheets. Bandwidths of links are what collectives reach, from the
constants with which NCCL (``src/graph/topo.h``) searches its rings: 12 GB/s for PCIe 3.0 x16 and for 100 Gbps
networks, 18 to 20.6 GB/s per NVLink. Latencies are the hops of a ring in NCCL's tuning model
(``src/graph/tuning.cc``, "Simple" protocol).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType

from tensoropt.cluster.device import Device
from tensoropt.cluster.scaling import scaled
from tensoropt.cluster.topology import Level, Topology
from tensoropt.errors import ClusterError, did_you_mean

__all__ = [
    "PRESETS",
    "a100",
    "cpu",
    "gtx1080ti",
    "h100",
    "k80",
    "p100",
    "preset",
    "rtx2080ti",
    "v100",
    "v100_4x_rdma",
    "v100_no_rdma",
    "v100_pcie",
]

_GIB = 2**30

# Launching a kernel from a TensorFlow executor; a few microseconds on every GPU of these generations.
_GPU_OP_OVERHEAD_S = 5e-6

_NVLINK_LATENCY_S = 3.4e-6  # tuning.cc: ring, Simple
_PCIE_LATENCY_S = 5.7e-6
_NETWORK_LATENCY_S = 9.6e-6
_PCIE3_BYTES_PER_S = 12e9  # topo.h: PCI_BW

# NVIDIA V100 SXM2 data sheet: 15.7 / 7.8 TFLOPS, 125 with tensor cores, 900 GB/s; 16 GB as in TensorOpt
# section 5.
_V100 = Device(
    "V100-SXM2-16GB",
    {"float32": 15.7e12, "float64": 7.8e12, "float16": 125e12},
    900e9,
    16 * _GIB,
    _GPU_OP_OVERHEAD_S,
    wide_products=True,
)
# NVIDIA P100 SXM2 data sheet: 10.6 / 5.3 / 21.2 TFLOPS, 732 GB/s.
_P100 = Device(
    "P100-SXM2-16GB",
    {"float32": 10.6e12, "float64": 5.3e12, "float16": 21.2e12},
    732e9,
    16 * _GIB,
    _GPU_OP_OVERHEAD_S,
)
# NVIDIA K80 data sheet, halved, as a board is two devices: 8.74 / 2.91 TFLOPS with boost, 480 GB/s, 24 GB.
_K80 = Device("K80-12GB", {"float32": 4.37e12, "float64": 1.455e12}, 240e9, 12 * _GIB, _GPU_OP_OVERHEAD_S)
# GeForce GTX 1080 Ti: 11.3 TFLOPS, 1/32 of it in float64 and 1/64 in float16, 484 GB/s, 11 GB.
_GTX1080TI = Device(
    "GTX1080Ti",
    {"float32": 11.34e12, "float64": 0.354e12, "float16": 0.177e12},
    484e9,
    11 * _GIB,
    _GPU_OP_OVERHEAD_S,
)
# GeForce RTX 2080 Ti (Turing whitepaper, reference clocks): 13.45 TFLOPS, 1/32 of it in float64, float16
# through tensor cores accumulating in float32 53.8, 616 GB/s, 11 GB.
_RTX2080TI = Device(
    "RTX2080Ti",
    {"float32": 13.45e12, "float64": 0.42e12, "float16": 53.8e12},
    616e9,
    11 * _GIB,
    _GPU_OP_OVERHEAD_S,
    wide_products=True,
)
# NVIDIA A100 SXM 80 GB data sheet. TensorFlow multiplies float32 in TF32 by default: 156 TFLOPS, dense.
_A100 = Device(
    "A100-SXM-80GB",
    {"float32": 156e12, "float64": 19.5e12, "float16": 312e12, "bfloat16": 312e12},
    2039e9,
    80 * _GIB,
    _GPU_OP_OVERHEAD_S,
    wide_products=True,
)
# NVIDIA H100 SXM data sheet, dense (the sheet's figures with sparsity, halved); float32 in TF32 as above.
_H100 = Device(
    "H100-SXM-80GB",
    {"float32": 494.5e12, "float64": 67e12, "float16": 989e12, "bfloat16": 989e12},
    3350e9,
    80 * _GIB,
    _GPU_OP_OVERHEAD_S,
    wide_products=True,
)

# One card of 100 Gbps EDR InfiniBand per host, shared by its devices (topo.h: NET_BW).
_EDR_BYTES_PER_S = 12e9
# V100: 6 NVLinks of 20 GB/s (topo.h: SM70_NVLINK_BW).
_V100_NVLINK = Level("device", 8, _NVLINK_LATENCY_S, 6 * 20e9)


def _edr(hosts: int, factor: float = 1.0) -> Level:
    return Level("host", hosts, _NETWORK_LATENCY_S, factor * _EDR_BYTES_PER_S, shared=True)


def v100(hosts: int = 2) -> Topology:
    """TensorOpt's cluster (section 5): 8 V100 16 GB per host with NVLink, 100 Gbps EDR InfiniBand with
    RDMA."""
    return Topology(f"{hosts}x8 V100, NVLink, RDMA", (_edr(hosts), _V100_NVLINK), _V100)


def v100_no_rdma(hosts: int = 2) -> Topology:
    """The same with RDMA disabled: "approximately 0.5 times" its bandwidth (TensorOpt section 5.1, figure
    7b)."""
    return Topology(f"{hosts}x8 V100, NVLink, no RDMA", (_edr(hosts, 0.5), _V100_NVLINK), _V100)


def v100_4x_rdma(hosts: int = 2) -> Topology:
    """The same with four network cards, as in a DGX (TensorOpt section 5.1, figure 7b)."""
    return Topology(f"{hosts}x8 V100, NVLink, 4x RDMA", (_edr(hosts, 4), _V100_NVLINK), _V100)


def v100_pcie(hosts: int = 2) -> Topology:
    """The same with PCIe inside, "approximately 1/20 of NVLink" (TensorOpt section 5.1, figure 7c)."""
    inside = Level("device", 8, _PCIE_LATENCY_S, _V100_NVLINK.bandwidth_bytes_per_s / 20)
    return Topology(f"{hosts}x8 V100, PCIe, RDMA", (_edr(hosts), inside), _V100)


def p100(hosts: int = 4) -> Topology:
    """FlexFlow's first cluster (section 8.1): 4 nodes of 4 P100 with NVLink, 100 Gbps EDR InfiniBand."""
    # 4 NVLinks of 18 GB/s (topo.h: SM60_NVLINK_BW). The paper prints 100 "GB/s"; EDR has 100 Gbps.
    return Topology(f"{hosts}x4 P100, NVLink", (_edr(hosts), Level("device", 4, _NVLINK_LATENCY_S, 4 * 18e9)), _P100)


def k80(hosts: int = 16) -> Topology:
    """FlexFlow's second cluster (section 8.1): 16 nodes of 4 K80, pairs on a PCIe switch, 56 Gbps
    InfiniBand."""
    # The paper prints 56 "GB/s EDR"; 56 Gbps is FDR, of which 54.5 Gbps are left after 64b/66b coding.
    network = Level("host", hosts, _NETWORK_LATENCY_S, 6.8e9, shared=True)
    root = Level("switch", 2, _PCIE_LATENCY_S, _PCIE3_BYTES_PER_S, shared=True)
    switch = Level("device", 2, _PCIE_LATENCY_S, _PCIE3_BYTES_PER_S)
    return Topology(f"{hosts}x4 K80, PCIe", (network, root, switch), _K80)


def gtx1080ti(hosts: int = 4) -> Topology:
    """PaSE's first system (section IV-B): nodes of 8 GTX 1080 Ti "fully-connected using PCIe links"."""
    # The paper names InfiniBand without its speed: taken as EDR, of the years of its devices.
    inside = Level("device", 8, _PCIE_LATENCY_S, _PCIE3_BYTES_PER_S)
    return Topology(f"{hosts}x8 GTX 1080 Ti, PCIe", (_edr(hosts), inside), _GTX1080TI)


def rtx2080ti(hosts: int = 4) -> Topology:
    """PaSE's second system (section IV-B): nodes of 8 RTX 2080 Ti, which cannot reach each other over
    PCIe."""
    # Without peer-to-peer every byte goes into host memory and out again: half of a link.
    inside = Level("device", 8, _PCIE_LATENCY_S, _PCIE3_BYTES_PER_S / 2)
    return Topology(f"{hosts}x8 RTX 2080 Ti, PCIe without peer-to-peer", (_edr(hosts), inside), _RTX2080TI)


def a100(hosts: int = 1) -> Topology:
    """Nodes of 8 A100 80 GB behind NVSwitch, with a 200 Gbps card per device, as in a DGX A100."""
    # 12 NVLinks of 20 GB/s, of which NCCL's model reaches 235 in all; the network as NET_BW scales: 24 GB/s
    # of 25.
    network = Level("host", hosts, _NETWORK_LATENCY_S, 24e9)
    return Topology(f"{hosts}x8 A100", (network, Level("device", 8, _NVLINK_LATENCY_S, 235e9)), _A100)


def h100(hosts: int = 1) -> Topology:
    """Nodes of 8 H100 80 GB behind NVSwitch, with a 400 Gbps card per device, as in a DGX H100."""
    # 18 NVLinks of 20.6 GB/s (topo.h: SM90_NVLINK_BW); the network as NET_BW scales: 48 GB/s of 50.
    network = Level("host", hosts, _NETWORK_LATENCY_S, 48e9)
    return Topology(f"{hosts}x8 H100", (network, Level("device", 8, _NVLINK_LATENCY_S, 18 * 20.6e9)), _H100)


def cpu(devices: int = 4) -> Topology:
    """Any one host whose processes share its memory: for planning without a cluster, not for predicting
    one."""
    # Round figures of one server core and of its share of memory; collectives copy through one memory bus.
    core = Device("cpu core", {"float32": 50e9, "float64": 25e9}, 10e9, 4 * _GIB, 5e-6)
    return Topology(f"{devices} processes of one host", (Level("device", devices, 5e-6, 20e9, shared=True),), core)


# What ``preset`` and the command line offer; each builds its paper's size.
PRESETS: Mapping[str, Callable[..., Topology]] = MappingProxyType(
    {
        "v100": v100,
        "v100-no-rdma": v100_no_rdma,
        "v100-4x-rdma": v100_4x_rdma,
        "v100-pcie": v100_pcie,
        "p100": p100,
        "k80": k80,
        "1080ti": gtx1080ti,
        "2080ti": rtx2080ti,
        "a100": a100,
        "h100": h100,
        "cpu": cpu,
    }
)


def preset(name: str, *, hosts: int | None = None, devices: int | None = None) -> Topology:
    """The preset called ``name``, in its usual size or in another one.

    Args:
        name: one of ``PRESETS``.
        hosts: how many hosts; each as it is in the paper.
        devices: how many devices in all: some of one host, or whole hosts.

    Example:
        >>> preset("v100", hosts=8).device_count
        64
        >>> preset("a100", devices=4).level_sizes
        (1, 4)

    Raises:
        ClusterError: if there is none, or not in that size.
    """
    if name not in PRESETS:
        raise ClusterError(
            f"Cluster preset {name!r}: unknown.{did_you_mean(name, PRESETS)} Use one of {', '.join(PRESETS)}, or a "
            "topology's JSON."
        )
    if hosts is not None and devices is not None:
        raise ClusterError(
            f"Cluster preset {name!r}: takes hosts or devices, got hosts={hosts} and devices={devices}. Give one."
        )
    if hosts is not None and (name == "cpu" or hosts < 1):
        rule = "is one host" if name == "cpu" else "needs at least 1 host"
        remedy = "Give devices=… instead." if name == "cpu" else "Give a positive number."
        raise ClusterError(f"Cluster preset {name!r}: {rule}, got hosts={hosts}. {remedy}")
    topology = PRESETS[name]() if hosts is None else PRESETS[name](hosts)
    if devices is None:
        return topology
    if devices < 1:
        raise ClusterError(f"Cluster preset {name!r}: needs at least 1 device, got devices={devices}.")
    below = topology.devices_below(0)
    # Built for its hosts, so that its name says how many; then cut, where it is a part of one.
    grown = PRESETS[name](-(-devices // below))
    return scaled(grown, devices)
