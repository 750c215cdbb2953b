"""``tensoropt run``: a script on many ranks, by the MPI that is there, or as a job file."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from tensoropt.cli.batch import mpi_job, sbatch
from tensoropt.cli.hosts import read_hosts
from tensoropt.cli.launcher import Launcher, find_launcher, launch, refuse_ranks
from tensoropt.cli.output import Json, UsageError, answer, example
from tensoropt.cli.scripts import BEFORE_SCRIPT, check_script
from tensoropt.cluster.host import affinity
from tensoropt.stages import announce

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(
        "run",
        context_settings=BEFORE_SCRIPT,
        epilog=example(
            "tensoropt run -n 4 script.py --epochs 3",
            "tensoropt run -n 16 --hosts hosts.txt script.py",
            "tensoropt run -n 16 --nodes 4 --slurm script.py > job.sbatch && sbatch job.sbatch",
        ),
    )(_run)


def _run(
    script: Annotated[str, typer.Argument(help="A Python file, or with -m a module.", metavar="SCRIPT")],
    arguments: Annotated[list[str] | None, typer.Argument(help="What the script is given.", metavar="ARGS…")] = None,
    ranks: Annotated[int, typer.Option("-n", "--ranks", min=1, help="How many ranks, one for each device.")] = 2,
    module: Annotated[bool, typer.Option("-m", "--module", help="SCRIPT is a module's name, as in python -m.")] = False,
    hosts: Annotated[Path | None, typer.Option(help="A file of hosts: 'name slots=4' or 'name:4', one a line.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Cores of each rank; by default a host's cores, shared.")
    ] = None,
    mpirun: Annotated[str | None, typer.Option(help="The launcher; by default this environment's own.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the line, and start nothing.")] = False,
    slurm: Annotated[bool, typer.Option("--slurm", help="Print a file for sbatch instead.")] = False,
    k8s: Annotated[bool, typer.Option("--k8s", help="Print an MPIJob of Kubernetes instead.")] = False,
    nodes: Annotated[int, typer.Option(min=1, help="Of --slurm and --k8s: hosts, with equally many ranks.")] = 1,
    image: Annotated[str | None, typer.Option(help="Of --k8s: the image, with MPI and the script.")] = None,
    as_json: Json = False,
) -> None:
    """Runs SCRIPT on many ranks, on this machine or on several hosts.

    It finds mpirun, gives each rank its share of the cores, and says the line that it runs. The script's exit code
    is the command's, and signals reach mpirun, which takes this process's place. Variables of the environment that
    are set already stay as they are.
    """
    program = [sys.executable, *(["-m", script] if module else [script]), *(arguments or ())]
    if slurm and k8s:
        raise UsageError("run: --slurm and --k8s are two files. Give one of them.")
    if not (slurm or k8s) and (nodes != 1 or image is not None):
        raise UsageError("run: --nodes and --image are for job files. Add --slurm or --k8s, or give --hosts.")
    if slurm or k8s:
        _check_nodes(ranks, nodes)
        # The file system of the job has the script, and need not be this one's.
        name = Path(script).stem if not module else script
        if slurm:
            text = sbatch(name, ranks, nodes, threads or 1, program, _launcher_if_any(mpirun))
            answer(as_json, {"sbatch": text}, lambda: typer.echo(text, nl=False))
            return
        if image is None:
            raise UsageError("run: --k8s needs --image, which has Python, MPI, tensoropt and the script.")
        job = mpi_job(name, image, ranks, nodes, threads or 1, ["python", *program[1:]])
        answer(as_json, {"mpi_job": job}, lambda: typer.echo(job, nl=False))
        return
    refuse_ranks("run")
    if not module:
        check_script("run", script)
    given = () if hosts is None else read_hosts(hosts, ranks)
    started = launch(find_launcher(mpirun), ranks, program, given, threads)
    elsewhere = [host.name for host in given if not host.is_here]
    if threads is None and elsewhere:
        announce(
            f"run: {', '.join(elsewhere)}: taken to have {len(affinity())} cores, as this machine; give the cores of "
            "each rank by --threads where there are others"
        )
    value = {"environment": dict(started.environment), "command": list(started.command)}
    if dry_run:
        answer(as_json, value, lambda: typer.echo(started))
        return
    if as_json:
        sys.stderr.write(f"{json.dumps(value)}\n")  # standard output is the script's
    else:
        announce(f"run: {started}")
    sys.stdout.flush()
    os.execve(started.command[0], started.command, {**os.environ, **started.environment})


def _launcher_if_any(named: str | None) -> Launcher | None:
    """The launcher of this machine, which need not be where the job will run."""
    try:
        return find_launcher(named)
    except UsageError:
        if named is not None:
            raise
        return None


def _check_nodes(ranks: int, nodes: int) -> None:
    if ranks % nodes:
        raise UsageError(
            f"run: --nodes {nodes} must divide the ranks, got -n {ranks}. Every node has equally many: take -n "
            f"{-(-ranks // nodes) * nodes}."
        )
