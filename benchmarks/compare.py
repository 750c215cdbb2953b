"""Compares all searches and baselines on one of the papers' models and one cluster.

    python -m benchmarks.compare --model inception3 --cluster p100x16 --json FILE
    python -m benchmarks.compare --model transformer --cluster v100 --methods ft megatron zero3 --size layers=2
    python -m benchmarks.compare --model lenet --cluster p100x4 --show ft one_weird_trick

The file has every method's strategy, as a plan; ``--show`` prints some of them operator by operator.

A cluster is a preset, with ``x`` and a number of devices for another size than the paper's: ``p100x16`` are FlexFlow's
4 hosts of 4 P100, ``p100x4`` is one of them.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence

import tensoropt
from benchmarks.arguments import UsageError, built, check_sizes, output_file, positive, size_argument
from examples.models import MODELS, PER_DEVICE_BATCH
from tensoropt.api.find.planner import FEEDS
from tensoropt.cluster import Topology, preset
from tensoropt.cluster.presets import PRESETS
from tensoropt.errors import ClusterError, TensorOptError
from tensoropt.search import finders

__all__ = ["cluster", "main"]

_GIB = 2**30


def cluster(text: str) -> Topology:
    """The cluster of a preset's name, or of the name, ``x`` and a number of devices.

    Raises:
        ClusterError: there is none, or not in that size.
    """
    sized = re.fullmatch(r"(.+)x(\d+)", text)
    if text in PRESETS or sized is None:
        return preset(text)
    return preset(sized[1], devices=int(sized[2]))


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the command line says."""
    methods = tuple(finder.name for finder in finders())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(MODELS), required=True)
    parser.add_argument("--cluster", default="p100x16", help=f"one of {', '.join(PRESETS)}, or with a size as p100x16")
    parser.add_argument("--json", type=output_file, metavar="FILE", help="write the table here")
    parser.add_argument(
        "--show", nargs="+", default=[], choices=methods, metavar="METHOD", help="print their strategies"
    )
    parser.add_argument(
        "--methods", nargs="+", default=methods, choices=methods, metavar="METHOD", help="all by default"
    )
    parser.add_argument(
        "--batch", type=positive, help="samples per step; by default the paper's per device, or the model's"
    )
    parser.add_argument("--feed", choices=FEEDS, default=FEEDS[0], help="what each device is fed: its share, or all")
    parser.add_argument("--overlap", action="store_true", help="simulate communication beside computation, as FlexFlow")
    parser.add_argument("--memory-gib", type=float, help="limit per device; by default the device's less a reserve")
    parser.add_argument("--size", nargs="+", type=size_argument, default=[], metavar="NAME=VALUE")
    flags = parser.parse_args(arguments)
    try:
        topology = cluster(flags.cluster)
        check_sizes(flags.model, MODELS[flags.model], dict(flags.size))
    except (ClusterError, UsageError) as error:
        parser.error(str(error))
    if not set(flags.show) <= set(flags.methods):
        parser.error(f"--show: must be of what is compared, {', '.join(flags.methods)}, got {', '.join(flags.show)}")
    sizes = dict(flags.size)
    if flags.batch is not None:
        sizes["batch_size"] = flags.batch
    elif flags.model in PER_DEVICE_BATCH:
        sizes["batch_size"] = PER_DEVICE_BATCH[flags.model] * topology.device_count
    tensoropt.reset_default_graph()
    limit = None if flags.memory_gib is None else flags.memory_gib * _GIB
    try:
        loss = built(flags.model, MODELS[flags.model], sizes)
        table = tensoropt.compare(
            loss, topology, methods=flags.methods, memory_bytes=limit, feed=flags.feed, overlap=flags.overlap
        )
    except UsageError as error:
        parser.error(str(error))
    except TensorOptError as error:  # of what was asked for; no method's, which is in its row
        raise SystemExit(f"benchmarks.compare: {error}") from error
    table.show()
    if flags.json is not None:
        flags.json.write_text(table.to_json() + "\n", encoding="utf-8")
    for method in flags.show:
        row = table.row(method)
        if row.plan is None:
            print(f"{method}: no strategy. {row.reason}")
        else:
            tensoropt.show_strategy(row.plan)


if __name__ == "__main__":
    main()
