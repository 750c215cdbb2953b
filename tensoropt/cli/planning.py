"""``tensoropt plan``, ``estimate``, ``frontier``, ``trace``, ``compare``: a script on a cluster that is described."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tensoropt.cli.clusters import Cluster, cluster_of
from tensoropt.cli.output import NO, Json, UsageError, answer, example, table, write
from tensoropt.cli.scripts import (
    BEFORE_SCRIPT,
    Arguments,
    BatchSize,
    MicroBatches,
    Recompute,
    Script,
    Shares,
    ready,
    rehearsed,
    steps_of,
)
from tensoropt.errors import PlanError, did_you_mean

if TYPE_CHECKING:
    from tensoropt.api.find.planner import Planner
    from tensoropt.cluster import Topology
    from tensoropt.problem.frontier import Frontier
    from tensoropt.simulate.timeline import Timeline

__all__ = ["Devices", "Memory", "bytes_of", "parsed", "register"]

Devices = Annotated[int | None, typer.Option(min=1, help="So many devices of the cluster, or of more like it.")]
Memory = Annotated[float | None, typer.Option(help="GiB that a device may hold; by default its memory less a reserve.")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    for name, command, *examples in (
        (
            "plan",
            _plan,
            "tensoropt plan --cluster h100 script.py",
            "tensoropt plan --cluster mine.json --devices 16 --save plan.json script.py --epochs 1",
        ),
        ("estimate", _estimate, "tensoropt estimate --cluster h100 --devices 1,2,4,8,16 script.py"),
        ("frontier", _frontier, "tensoropt frontier --cluster v100 --plot frontier.png script.py"),
        ("trace", _trace, "tensoropt trace --cluster h100 --devices 8 --out step.json script.py"),
        ("compare", _compare, "tensoropt compare --cluster v100 --methods ft,data_parallel,megatron script.py"),
    ):
        app.command(name, context_settings=BEFORE_SCRIPT, epilog=example(*examples))(command)


def _plan(
    script: Script,
    cluster: Cluster,
    arguments: Arguments = None,
    devices: Devices = None,
    option: Annotated[
        str | None, typer.Option(help="mini_time, mini_memory, turning_point, …; by default the script's own.")
    ] = None,
    search: Annotated[
        str | None, typer.Option(help="ft, pase, mcmc or a baseline; by default the script's own.")
    ] = None,
    memory: Memory = None,
    micro_batches: MicroBatches = None,
    recompute: Recompute = None,
    batch_size: BatchSize = None,
    shares: Shares = False,
    save: Annotated[Path | None, typer.Option(help="Write the plan to a file, for find_strategy(PATH).")] = None,
    full: Annotated[bool, typer.Option("--full", help="A row for each operator, not for each layer.")] = False,
    as_json: Json = False,
) -> None:
    """Plans SCRIPT for a cluster that need not be there.

    The script runs up to its first training step, and its plan is printed. It needs neither MPI nor devices: the
    script sees as many ranks as the cluster has devices, and is the first. The plan is that of the same job with
    TENSOROPT_COSTS=analytic. Several models: the first that trains.
    """
    topology = cluster_of(cluster, devices)
    if option == "profiling":
        raise UsageError("plan: --option profiling gives no plan. Use tensoropt estimate.")
    ready("plan", script)
    from tensoropt.api.find.choosing import check_option, check_search
    from tensoropt.api.find.plans import is_plan_file
    from tensoropt.api.session.rehearsal import Rehearsal
    from tensoropt.api.session.report import show_strategy, strategy_rows

    from_file = is_plan_file(option)
    if option is not None and not from_file:
        check_option(option)
    if search is not None:
        check_search(search, None if from_file else option or "mini_time")
    rehearsal = Rehearsal(
        topology,
        option=option,
        memory_bytes=bytes_of(memory),
        search=search,
        steps=steps_of("plan", micro_batches, recompute),
        batch_size=batch_size,
        shares=shares,
    )
    plan = rehearsed("plan", script, arguments or (), rehearsal)
    if save is not None:
        plan.save(save)
    value = {
        "cluster": topology.name,
        "devices": plan.mesh.size,
        "option": plan.option,
        "time_s": plan.time_s,
        "memory_bytes": plan.memory_bytes,
        "peak_bytes": plan.peak_bytes,
        "fingerprint": plan.fingerprint,
        "operators": strategy_rows(plan) if as_json else [],
    }
    answer(as_json, value, lambda: show_strategy(plan, full=full))


def _estimate(
    script: Script,
    cluster: Cluster,
    arguments: Arguments = None,
    devices: Annotated[str | None, typer.Option(help="Counts, as 1,2,4; by default powers of two, up to all.")] = None,
    price: Annotated[float | None, typer.Option(min=0, help="Of a device and hour, for the columns of cost.")] = None,
    memory: Memory = None,
    micro_batches: MicroBatches = None,
    recompute: Recompute = None,
    batch_size: BatchSize = None,
    shares: Shares = False,
    as_json: Json = False,
) -> None:
    """Predicts time and memory on several device counts.

    Each has the fastest strategy for SCRIPT's model that fits. The batch is that of all devices, as the script has
    it on the whole cluster. The exit code is 1 if nothing fits.
    """
    topology = cluster_of(cluster)
    ready("estimate", script)
    counts = None if devices is None else _counts(devices)
    from tensoropt.api.find.device_counts import profile
    from tensoropt.api.session.rehearsal import Rehearsal

    rehearsal = Rehearsal(
        topology,
        lambda planner, where, times: profile(planner, where, counts, bytes_of(memory), price, times),
        steps=steps_of("estimate", micro_batches, recompute),
        batch_size=batch_size,
        shares=shares,
    )
    found = rehearsed("estimate", script, arguments or (), rehearsal)
    answer(as_json, parsed(found.to_json()), found.show)
    if found.fastest() is None:
        raise typer.Exit(NO)


def _frontier(
    script: Script,
    cluster: Cluster,
    arguments: Arguments = None,
    devices: Devices = None,
    memory: Memory = None,
    micro_batches: MicroBatches = None,
    recompute: Recompute = None,
    batch_size: BatchSize = None,
    shares: Shares = False,
    save: Annotated[Path | None, typer.Option(help="Write the frontier as JSON, for Frontier.from_json.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw it into a file (PNG, PDF, SVG); needs Matplotlib.")] = None,
    as_json: Json = False,
) -> None:
    """Finds the trade-off between time and memory.

    These are all strategies for SCRIPT's model that are worth having: of more memory, each is faster. With
    --memory, the exit code is 1 if none of them fits in it.
    """
    topology = cluster_of(cluster, devices)
    ready("frontier", script)
    from tensoropt.api.session.rehearsal import Rehearsal

    rehearsal = Rehearsal(
        topology,
        lambda planner, where, _: planner.frontier(where),
        steps=steps_of("frontier", micro_batches, recompute),
        batch_size=batch_size,
        shares=shares,
    )
    frontier = rehearsed("frontier", script, arguments or (), rehearsal)
    text = frontier.to_json()
    if save is not None:
        write("frontier --save", save, text)
    if plot is not None:
        frontier.plot(plot)
    answer(as_json, parsed(text), lambda: _show(frontier, bytes_of(memory)))
    if memory is not None and frontier.memory_bytes[0] > memory * 2**30:
        raise typer.Exit(NO)


def _trace(
    script: Script,
    cluster: Cluster,
    arguments: Arguments = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file, for ui.perfetto.dev or chrome://tracing.")] = Path(
        "trace.json"
    ),
    devices: Devices = None,
    option: Annotated[str, typer.Option(help="mini_time, mini_memory or turning_point.")] = "mini_time",
    search: Annotated[str, typer.Option(help="What finds the strategy: ft, or a baseline.")] = "ft",
    memory: Memory = None,
    micro_batches: MicroBatches = None,
    recompute: Recompute = None,
    batch_size: BatchSize = None,
    shares: Shares = False,
    overlap: Annotated[bool, typer.Option("--overlap", help="Links move data while devices compute.")] = False,
    as_json: Json = False,
) -> None:
    """Writes the predicted step as a trace.

    It has what each device of the cluster computes and sends at which time, by the strategy for SCRIPT's model that a
    search finds, as simulated.
    """
    topology = cluster_of(cluster, devices)
    from tensoropt.search.options import OPTIONS

    if option not in OPTIONS:
        known = " or ".join(OPTIONS)
        raise UsageError(f"trace: --option must be {known}, got '{option}'.{did_you_mean(option, OPTIONS)}")
    ready("trace", script)
    from tensoropt.api.find.choosing import check_search
    from tensoropt.api.session.rehearsal import Rehearsal
    from tensoropt.search.options import MemoryLimit
    from tensoropt.simulate.simulated_step import simulate

    finder = check_search(search, option)
    limit = MemoryLimit.of(topology.device.memory_bytes, bytes_of(memory))

    def simulated(planner: Planner, where: Topology, _: int | str) -> Timeline:
        if not planner.is_simulated:
            raise PlanError(
                "trace: steps are simulated in whole batches, with nothing made again, got "
                f"micro_batches={planner.micro_batches}, recompute={planner.recompute}. Give --micro-batches 1 "
                "--no-recompute."
            )
        found = planner.find(where, finder, limit)
        return simulate(found.space, found.choose(option, limit).assignment, overlap=overlap)

    steps = steps_of("trace", micro_batches, recompute)
    rehearsal = Rehearsal(topology, simulated, steps=steps, batch_size=batch_size, shares=shares)
    timeline = rehearsed("trace", script, arguments or (), rehearsal)
    write("trace --out", out, timeline.to_chrome_trace())
    tasks, seconds = len(timeline.tasks), timeline.makespan_s
    value = {"trace": str(out), "devices": timeline.devices, "step_s": seconds, "tasks": tasks}
    text = f"written: {out}, {tasks} tasks on {timeline.devices} devices in {seconds * 1e3:.4g} ms"
    answer(as_json, value, lambda: typer.echo(text))


def _compare(
    script: Script,
    cluster: Cluster,
    arguments: Arguments = None,
    devices: Devices = None,
    methods: Annotated[
        str | None, typer.Option(help="Searches and baselines, as ft,megatron,zero3; by default all, which takes long.")
    ] = None,
    memory: Memory = None,
    micro_batches: MicroBatches = None,
    recompute: Recompute = None,
    batch_size: BatchSize = None,
    shares: Shares = False,
    overlap: Annotated[bool, typer.Option("--overlap", help="Links move data while devices compute.")] = False,
    as_json: Json = False,
) -> None:
    """Compares searches and known strategies.

    All that are asked for say what they would do with SCRIPT's model, with time, memory and traffic.
    """
    topology = cluster_of(cluster, devices)
    names = None if methods is None else [name.strip() for name in methods.split(",") if name.strip()]
    ready("compare", script)
    from tensoropt.api.session.compare import compared, methods_of
    from tensoropt.api.session.rehearsal import Rehearsal

    chosen = methods_of(names, bytes_of(memory), overlap)
    rehearsal = Rehearsal(
        topology,
        lambda planner, where, _: compared(planner, where, chosen, bytes_of(memory), overlap),
        steps=steps_of("compare", micro_batches, recompute),
        batch_size=batch_size,
        shares=shares,
    )
    found = rehearsed("compare", script, arguments or (), rehearsal)
    answer(as_json, parsed(found.to_json()), found.show)


def _show(frontier: Frontier, memory_bytes: float | None) -> None:
    turn, best = frontier.turning_point().index, None
    if memory_bytes is not None and frontier.memory_bytes[0] <= memory_bytes:
        best = frontier.best(memory_bytes).index
    rows = []
    for index, (time_s, size) in enumerate(zip(frontier.time_s, frontier.memory_bytes, strict=True)):
        marks = ["turning point"] * (index == turn) + ["fastest that fits"] * (index == best)
        rows.append([str(index), f"{size / 2**30:.4g}", f"{time_s * 1e3:.4g}", ", ".join(marks)])
    table(f"{len(rows)} strategies", ["point", "memory, GiB", "time, ms", ""], rows)


def bytes_of(gib: float | None) -> float | None:
    """Bytes of so many GiB, if they are given."""
    return None if gib is None else gib * 2**30


def parsed(text: str) -> Any:
    """Parses JSON text that tensoropt wrote."""
    from tensoropt.storage.document import parse_json

    return parse_json(text)


def _counts(text: str) -> tuple[int, ...]:
    """Device counts of a list with commas.

    Raises:
        UsageError: it is none.
        PlanError: a count below 1.
    """
    from tensoropt.api.find.device_counts import check_counts

    try:
        return check_counts([int(part) for part in text.split(",")])
    except ValueError as error:
        raise UsageError(f"estimate: --devices must be whole numbers with commas, got '{text}'. Give 1,2,4.") from error
