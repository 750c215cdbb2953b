"""Runs an experiment of the papers: TensorOpt's section 5, FlexFlow's table 5, PaSE's tables and figure 6.

    python -m benchmarks.paper figure6 --json figure6.json --plot .
    python -m benchmarks.paper table3 --model transformer --devices 16 64 --size layers=50
    python -m benchmarks.paper table3 --model transformer --size layers=4 --method ldp
    python -m benchmarks.paper pase_equals_ft --model alexnet --devices 4
    python -m benchmarks.paper flexflow_table5 --model inception3 --devices 16 --whole
    python -m benchmarks.paper pase_table1 --model inception3 --devices 4 64

``--size`` replaces an argument of every chosen model, such as its layers (100 Transformer layers are an encoder and a
decoder of 50).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.arguments import UsageError, check_sizes, output_directory, output_file, positive, size_argument
from benchmarks.paper import (
    figure6,
    figure7,
    figure8,
    flexflow_table5,
    pase_equals_ft,
    pase_figure6,
    pase_table1,
    pase_table2,
    table1,
    table3,
)
from benchmarks.paper.setting import Options, Report
from examples.models import MODELS
from tensoropt.errors import TensorOptError

_EXPERIMENTS: dict[str, Callable[..., Report]] = {
    "figure6": figure6.run,
    "figure7": figure7.run,
    "figure8": figure8.run,
    "flexflow_table5": flexflow_table5.run,
    "pase_equals_ft": pase_equals_ft.run,
    "pase_figure6": pase_figure6.run,
    "pase_table1": pase_table1.run,
    "pase_table2": pase_table2.run,
    "table1": table1.run,
    "table3": table3.run,
}


def main(arguments: list[str] | None = None) -> None:
    """Runs what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=sorted(_EXPERIMENTS))
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write all numbers here")
    parser.add_argument("--plot", type=output_directory, metavar="DIR", help="write pictures here")
    parser.add_argument("--model", nargs="+", choices=sorted(MODELS), default=[], help="instead of the paper's")
    parser.add_argument("--devices", nargs="+", type=positive, default=[], help="instead of the paper's")
    parser.add_argument("--size", nargs="+", type=size_argument, default=[], metavar="NAME=VALUE")
    parser.add_argument("--epsilon", type=float, default=0.0, help="bound on the error of frontiers (default: exact)")
    parser.add_argument("--threads", type=positive, default=None)
    parser.add_argument("--method", nargs="+", choices=table3.METHODS, help="of table3")
    parser.add_argument("--whole", action="store_true", help="of flexflow_table5: search all of SOAP, not what runs")
    flags = parser.parse_args(arguments)
    options = Options(
        tuple(flags.model),
        tuple(flags.devices),
        {model: dict(flags.size) for model in MODELS},
        flags.epsilon,
        flags.threads,
    )
    if flags.method and flags.experiment != "table3":
        parser.error(f"--method: is of table3, got it for {flags.experiment}")
    if flags.whole and flags.experiment != "flexflow_table5":
        parser.error(f"--whole: is of flexflow_table5, got it for {flags.experiment}")
    more: Report = {"methods": tuple(flags.method)} if flags.method else {}
    if flags.whole:
        more["whole"] = True
    try:
        for model in flags.model if flags.experiment != "figure7" else ():  # it has an argument of its own
            check_sizes(model, MODELS[model], dict(flags.size))
        report = _EXPERIMENTS[flags.experiment](options, flags.plot, **more)
    except UsageError as error:
        parser.error(f"{flags.experiment}: {error}")
    except TensorOptError as error:
        raise SystemExit(f"{flags.experiment}: {error}") from error
    report["processors"] = os.cpu_count()
    _show(report)
    if flags.json is not None:
        flags.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    if report.get("differ"):
        raise SystemExit(f"{flags.experiment}: these differ: {', '.join(report['differ'])}")


def _show(report: Report) -> None:
    """Prints the report's numbers, long lists by their ends."""
    table = Table(show_header=False)
    for key, value in _flat(report):
        table.add_row(key, value)
    Console().print(table)


def _flat(value: Any, prefix: str = "") -> list[tuple[str, str]]:
    if isinstance(value, dict):
        return [row for key, item in value.items() for row in _flat(item, f"{prefix} / {key}" if prefix else str(key))]
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        return [(prefix, ", ".join(value) or "none")]
    if isinstance(value, list):
        return [(prefix, f"{value[0]:.5g} … {value[-1]:.5g}" if value else "none")]
    return [(prefix, f"{value:.5g}" if isinstance(value, float) else str(value))]


if __name__ == "__main__":
    main()
