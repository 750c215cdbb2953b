"""``tensoropt show``, ``explain``, ``report`` and ``diff``: plans as people read them, from files or of a script."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tensoropt.cli.clusters import cluster_of
from tensoropt.cli.output import Json, UsageError, answer, example
from tensoropt.cli.planning import Devices, Memory, bytes_of, parsed
from tensoropt.cli.scripts import (
    BEFORE_SCRIPT,
    Arguments,
    BatchSize,
    MicroBatches,
    Recompute,
    Shares,
    ready,
    rehearsed,
    steps_of,
)
from tensoropt.plan.plan import Plan

if TYPE_CHECKING:
    from tensoropt.search.explanation import Explanation
    from tensoropt.search.plan_difference import Difference

__all__ = ["register"]

Subject = Annotated[str, typer.Argument(help="A plan's file; with --cluster a script.", metavar="PLAN|SCRIPT")]
ClusterOfScript = Annotated[
    str | None, typer.Option("--cluster", help="Of a script: a preset, or the JSON file of a cluster.")
]
OptionOfScript = Annotated[
    str | None, typer.Option("--option", help="Of a script: of find_strategy, or a plan's file.")
]
PlanFile = Annotated[Path, typer.Argument(help="A plan's file, as plan.save wrote it.", metavar="PLAN")]


def register(app: typer.Typer) -> None:
    """Adds the commands."""
    app.command("show", epilog=example("tensoropt show plan.json"))(_show)
    app.command(
        "explain",
        context_settings=BEFORE_SCRIPT,
        epilog=example(
            "tensoropt explain plan.json",
            "tensoropt explain --cluster h100 script.py --epochs 1",
            "tensoropt explain --cluster mine.json --option plan.json script.py",
        ),
    )(_explain)
    app.command(
        "report",
        context_settings=BEFORE_SCRIPT,
        epilog=example(
            "tensoropt report plan.json",
            "tensoropt report --out report.html --cluster h100 --devices 8 script.py --epochs 1",
        ),
    )(_report)
    app.command("diff", epilog=example("tensoropt diff plan.json other.json"))(_diff)


def _show(plan: PlanFile, as_json: Json = False) -> None:
    """Prints a plan's file, a row for each layer.

    The model need not be here.
    """
    loaded = Plan.load(plan)
    from tensoropt.search.strategy_table import StrategyTable

    answer(as_json, loaded.to_json(), lambda: StrategyTable.of(loaded).show())


def _explain(
    subject: Subject,
    arguments: Arguments = None,
    cluster: ClusterOfScript = None,
    devices: Devices = None,
    option: OptionOfScript = None,
    memory: Memory = None,
    micro_batches: MicroBatches = None,
    recompute: Recompute = None,
    batch_size: BatchSize = None,
    shares: Shares = False,
    as_json: Json = False,
) -> None:
    """Says where a plan's predicted time and memory go, and why.

    (What steps really take is measured in a script, by tensoropt.measuring.) Of a plan's file by parts, with the peak
    and the collectives. Of a script, which is run up to its first training step as by tensoropt plan, also the
    second-best split of every layer, and what data parallelism, Megatron's and ZeRO's layouts would cost.
    """
    if cluster is None:
        plan = _plan_alone("explain", subject, arguments)
        from tensoropt.search.explanation import Explanation

        _answer(as_json, Explanation.of(plan, _missing("explain")))
        return
    topology = cluster_of(cluster, devices)
    ready("explain", subject)
    from tensoropt.api.session.explain import explain
    from tensoropt.api.session.rehearsal import Rehearsal

    rehearsal = Rehearsal(
        topology,
        after=explain,
        option=option,
        memory_bytes=bytes_of(memory),
        steps=steps_of("explain", micro_batches, recompute),
        batch_size=batch_size,
        shares=shares,
    )
    _answer(as_json, rehearsed("explain", subject, arguments or (), rehearsal))


def _report(
    subject: Subject,
    arguments: Arguments = None,
    out: Annotated[Path, typer.Option("--out", "-o", help="The file.")] = Path("report.html"),
    cluster: ClusterOfScript = None,
    devices: Devices = None,
    option: OptionOfScript = None,
    memory: Memory = None,
    micro_batches: MicroBatches = None,
    recompute: Recompute = None,
    batch_size: BatchSize = None,
    shares: Shares = False,
    as_json: Json = False,
) -> None:
    """Writes a plan's report, one HTML file with charts.

    It says what tensoropt explain says; of a script with the frontier, other numbers of devices, and the memory over
    the step, too. It needs Plotly, and no network.
    """
    if cluster is None:
        plan = _plan_alone("report", subject, arguments)
        from tensoropt.search.explanation import Explanation
        from tensoropt.search.plan_page import plan_page

        plan_page(plan, Explanation.of(plan, _missing("report"))).save(out)
    else:
        topology = cluster_of(cluster, devices)
        ready("report", subject)
        from tensoropt.api.session.explain import report
        from tensoropt.api.session.rehearsal import Rehearsal

        def write(found: Plan) -> None:
            report(found, out)

        rehearsal = Rehearsal(
            topology,
            after=write,
            option=option,
            memory_bytes=bytes_of(memory),
            steps=steps_of("report", micro_batches, recompute),
            batch_size=batch_size,
            shares=shares,
        )
        rehearsed("report", subject, arguments or (), rehearsal)
    answer(as_json, {"report": str(out)}, lambda: typer.echo(f"written: {out}"))


def _diff(
    one: PlanFile,
    other: Annotated[Path, typer.Argument(help="Another one.", metavar="OTHER")],
    as_json: Json = False,
) -> None:
    """Says how two plans' files differ.

    These are the layers that they split otherwise, and their parts of time and memory.
    """
    from tensoropt.search.plan_difference import Difference

    _answer(as_json, Difference.of(Plan.load(one), Plan.load(other)))


def _plan_alone(caller: str, subject: str, arguments: list[str] | None) -> Plan:
    """The plan of a file.

    Raises:
        UsageError: it is a script, whose cluster is not said, or something stands behind it.
        PlanError: the file cannot be read, or is no plan's.
    """
    if arguments and not subject.endswith(".py"):
        raise UsageError(
            f"{caller}: options stand before the plan's file, got '{' '.join(arguments)}' behind '{subject}'. "
            f"Write tensoropt {caller} {' '.join(arguments)} {subject}."
        )
    if subject.endswith(".py"):
        raise UsageError(f"{caller}: a script needs --cluster, got '{subject}'. Give a preset, or a plan's file.")
    return Plan.load(subject)


def _missing(caller: str) -> str:
    return f"the plan's model is not here; tensoropt {caller} --cluster … --option PLAN SCRIPT has them"


def _answer(as_json: bool, found: Explanation | Difference) -> None:
    answer(as_json, parsed(found.to_json()), found.show)
