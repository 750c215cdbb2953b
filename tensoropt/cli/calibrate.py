"""``tensoropt calibrate``: this machine or these hosts as a cluster, measured."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from tensoropt.cli.answers import answer_of_rank, run_ranks
from tensoropt.cli.clusters import show_cluster
from tensoropt.cli.hosts import read_hosts
from tensoropt.cli.launcher import find_launcher, launch, refuse_ranks
from tensoropt.cli.output import Json, UsageError, answer, example
from tensoropt.cluster import Topology

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        "calibrate",
        epilog=example(
            "tensoropt calibrate -n 4 --save here.json && tensoropt plan --cluster here.json script.py",
            "tensoropt calibrate -n 16 --hosts hosts.txt --save ours.json",
        ),
    )(_calibrate)


def _calibrate(
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, help="How many ranks, one for each device.")] = 2,
    hosts: Annotated[Path | None, typer.Option(help="A file of hosts; see tensoropt run.")] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Cores of each rank; see tensoropt run.")] = None,
    mpirun: Annotated[str | None, typer.Option(help="The launcher; by default this environment's own.")] = None,
    save: Annotated[Path | None, typer.Option(help="Write the cluster to a file, for --cluster of others.")] = None,
    as_json: Json = False,
) -> None:
    """Measures devices and collectives anew.

    What is measured counts for all jobs of the kind, and is a cluster that plans can be made for.
    """
    refuse_ranks("calibrate")
    given = () if hosts is None else read_hosts(hosts, ranks)
    program = [sys.executable, "-m", "tensoropt.cli.calibrate"]
    done = run_ranks(launch(find_launcher(mpirun), ranks, program, given, threads))
    if len(done.answers) != 1:
        raise UsageError(f"calibrate: the job of {ranks} ranks failed, see above. tensoropt doctor says why.")
    topology = Topology.from_json(done.answers[0])
    if save is not None:
        topology.save(save)
    answer(as_json, topology.to_json(), lambda: show_cluster(topology))


def _measure() -> None:
    """Measures the machine on each rank; rank 0 answers with the topology."""
    import tensoropt

    topology = tensoropt.init(refresh=True)
    if tensoropt.world_rank() == 0:
        answer_of_rank(topology.to_json())


if __name__ == "__main__":
    _measure()
