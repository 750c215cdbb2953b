"""``tensoropt clusters``: the presets, and any cluster as a file; the option ``--cluster`` of others."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from tensoropt.cli.output import Json, answer, example, table
from tensoropt.cluster import Topology
from tensoropt.cluster.presets import PRESETS, preset
from tensoropt.cluster.scaling import scaled

__all__ = ["Cluster", "cluster_of", "register", "show_cluster"]

Cluster = Annotated[str, typer.Option(help="A preset (see tensoropt clusters), or the JSON file of a cluster.")]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        "clusters",
        epilog=example(
            "tensoropt clusters", "tensoropt clusters h100 --devices 32", "tensoropt clusters v100 --save mine.json"
        ),
    )(_clusters)


def cluster_of(text: str, devices: int | None = None) -> Topology:
    """A preset or the cluster of a file, in another size if one is given.

    Raises:
        ClusterError: there is none, or not in that size.
    """
    if os.sep not in text and not text.endswith(".json"):
        return preset(text, devices=devices)
    topology = Topology.load(text)
    return topology if devices is None else scaled(topology, devices)


def _clusters(
    cluster: Annotated[str | None, typer.Argument(help="A preset or a file to show; by default all presets.")] = None,
    devices: Annotated[int | None, typer.Option(min=1, help="Its size: so many devices.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write it to a file, to begin one's own with.")] = None,
    as_json: Json = False,
) -> None:
    """Lists clusters to plan for, or shows one."""
    if cluster is None:
        found = {name: make() for name, make in PRESETS.items()}
        rows = [[name, str(topology.device_count), *_described(topology)] for name, topology in found.items()]
        columns = ["preset", "devices", "levels", "device", "memory, GiB", "float32, TFLOPS"]
        value = {name: topology.to_json() for name, topology in found.items()}
        answer(as_json, value, lambda: table("", columns, rows))
        return
    topology = cluster_of(cluster, devices)
    if save is not None:
        topology.save(save)
    answer(as_json, topology.to_json(), lambda: show_cluster(topology))


def _described(topology: Topology) -> list[str]:
    levels = " × ".join(str(level.size) for level in topology.levels)
    device = topology.device
    flops = dict(device.flops_per_s)["float32"]
    return [levels, device.name, f"{device.memory_bytes / 2**30:.3g}", f"{flops / 1e12:.3g}"]


def show_cluster(topology: Topology) -> None:
    """Prints a cluster."""
    typer.echo(str(topology))
    rows = [
        [
            level.name,
            str(level.size),
            f"{level.latency_s * 1e6:.3g}",
            f"{level.bandwidth_bytes_per_s / 1e9:.3g}",
            "shared" if level.shared else "own",
        ]
        for level in topology.levels
    ]
    table("", ["level", "size", "latency, µs", "bandwidth, GB/s", "link"], rows)
    _, name, memory, flops = _described(topology)
    typer.echo(f"device: {name}, {memory} GiB, {flops} TFLOPS in float32")
