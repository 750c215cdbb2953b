"""Predicted steps beside published ones: GPT-3 of 175 billion parameters on A100, as Megatron-LM trained it.

    python -m benchmarks.gpt_published --json published.json

=================  ======  =====  ======  ============  =============================================  =========
published          cards   batch  stages  rounds        layout                                         seconds
=================  ======  =====  ======  ============  =============================================  =========
Narayanan 2021     1,024   1,536  16      1             products split over 8, layers made again       31.4
Korthikanti 2022   64      64     8       3             products split over 8, layers made again       18.13
Korthikanti 2022   64      64     8       3             the rest split by length, scores made again    13.75
=================  ======  =====  ======  ============  =============================================  =========

The first one's seconds follow from its 140 TFLOP/s a card, and its stages are an assumption. Micro-batches have one
sample. The devices have kernels of several pointwise operators, as Megatron-LM has.

Only the layouts of products with weights are given, by the baseline ``megatron``; where the rest is split by length,
that is what the search finds, as it is free to. A stage is priced by steps of one and two layers in two and three
micro-batches: a layer and a micro-batch cost what one more of them adds. Beside them stands the time to fill the
pipeline. What cards reach of their arithmetic, :attr:`tensoropt.cluster.Device.product_efficiency`, is **fitted** on
the three: the share by which the largest error is least. In the last column the same steps of layers have the strategy
that tensoropt finds in the memory which the published one takes with one micro-batch at a time.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from rich.console import Console
from rich.table import Table

import tensoropt
from benchmarks.arguments import output_file
from benchmarks.gpt import DECODERS, Decoder
from tensoropt.api.find.planner import Planner
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.mirror.model import current_model
from tensoropt.cluster import Topology
from tensoropt.cluster.presets import preset
from tensoropt.cost import AnalyticCost
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import traits
from tensoropt.layout import StepKind
from tensoropt.problem.frontier import frontier_of
from tensoropt.search.columns import SpaceColumns
from tensoropt.search.registry import get_finder
from tensoropt.space.space import SearchSpace

__all__ = ["PUBLISHED", "Published", "fitted", "main", "predicted_s"]


@dataclass(frozen=True, slots=True)
class Published:
    """A step that was measured and published.

    Attributes:
        name: of the source.
        cards: all of them.
        batch: samples of a step.
        stages: of the pipeline; the products of each are split over eight cards.
        rounds: runs of layers that each stage has.
        by_length: whether what no product splits is split by length (sequence parallelism).
        all_again: whether layers are made again, or attention's scores alone.
        step_s: measured.
    """

    name: str
    cards: int
    batch: int
    stages: int
    rounds: int
    by_length: bool
    all_again: bool
    step_s: float


_GROUP = 8
_ARITHMETIC = 96 * 1536 * 2048 * 96 * 12_288**2 * (1 + 2048 / (6 * 12_288) + 51_200 / (16 * 96 * 12_288))
PUBLISHED = (
    Published("Narayanan 2021", 1024, 1536, 16, 1, False, True, _ARITHMETIC / 1024 / 140e12),
    Published("Korthikanti 2022, all made again", 64, 64, 8, 3, False, True, 18.13),
    Published("Korthikanti 2022, scores made again", 64, 64, 8, 3, True, False, 13.75),
)


def predicted_s(
    published: Published, product_efficiency: float, decoder: Decoder = DECODERS["gpt3"], *, searched: bool = False
) -> float:
    """Predicted seconds of a step.

    Args:
        published: how the model is trained.
        product_efficiency: the share of their arithmetic that products reach.
        decoder: the model.
        searched: with strategies that are searched for in the memory of the published ones, in their place.
    """
    copies = published.cards // published.stages // _GROUP
    group, stage = (_a100(count, product_efficiency) for count in (_GROUP, _GROUP * copies))
    seconds = {
        (layers, count): _step_seconds(
            _planner(decoder, layers, count), group, published.by_length, published.all_again, searched
        )
        for layers in (1, 2)
        for count in (2, 3)
    }
    # What one more micro-batch takes, of a layer and of all else; and what is done once.
    each = {layers: seconds[layers, 3] - seconds[layers, 2] for layers in (1, 2)}
    layer, ends = each[2] - each[1], 2 * each[1] - each[2]
    once = {layers: seconds[layers, 2] - 2 * each[layers] for layers in (1, 2)}
    layers, micro_batches = decoder.layers // published.stages, published.batch // copies
    updates = once[1] + (layers - 1) * (once[2] - once[1]) + _sums_s(decoder, layers, stage)
    filling = (published.stages - 1) / published.rounds * layers * layer
    return micro_batches * (layers * layer + ends) + filling + updates


def _a100(devices: int, product_efficiency: float) -> Topology:
    cluster = preset("a100", devices=devices)
    device = replace(cluster.device, product_efficiency=product_efficiency, fusion="pointwise")
    return replace(cluster, device=device)


def _sums_s(decoder: Decoder, layers: int, stage: Topology) -> float:
    """Seconds in which the copies of a stage's weights, one for each group, add up their gradients."""
    borders = stage.level_borders()
    if not borders:  # one host, and so one group
        return 0.0
    cost = AnalyticCost(stage)
    size_bytes = 4.0 * layers * 12 * decoder.width**2 / _GROUP
    hosts = cost.mesh.axes[: borders[0]]
    return float(cost.step_seconds(StepKind.ALL_REDUCE, hosts, np.array([size_bytes]))[0])


@functools.cache
def _planner(decoder: Decoder, layers: int, micro_batches: int) -> Planner:
    """Plans steps of so many layers, in micro-batches of one sample."""
    part = replace(decoder, layers=layers, batch=micro_batches)
    tensoropt.reset_default_graph()
    tensoropt.train.AdamOptimizer(1e-4).minimize(part.loss())
    model = current_model()
    return Planner(import_model(model), "global", model, micro_batches, recompute=True)


@functools.cache
def _step_seconds(planner: Planner, topology: Topology, by_length: bool, all_again: bool, searched: bool) -> float:
    """The fastest step with the layouts and what is made again as published, or one that is searched for; no stages."""
    space = planner.space(topology)
    found = get_finder("megatron").find(space).frontier
    layouts = space.configurations(found.point(len(found) - 1).assignment)
    if by_length:
        free = SearchSpace(
            space.whole,
            space.cost,
            allowed={op.name: (layouts[op.name],) for op in space.operators if _is_laid_out(op)},
            reuse=True,
            micro_batches=planner.micro_batches,
            resharder=space.resharder,
        )
        layouts = free.configurations(SpaceColumns(free).fastest.point(0).assignment)
    wanted = {
        op.name: replace(
            layouts[op.name],
            again=(all_again or _is_of_scores(op)) and any(each.again for each in space.choices(op.name)),
        )
        for op in space.operators
    }
    assignment = np.array([space.assignment(wanted)])
    steps = frontier_of(space.problem, assignment, exact=False, eliminations=(), seconds=0.0)
    fastest = int(steps.time_s.argmin())
    if searched:
        return float(SpaceColumns(space).within(float(steps.memory_bytes[fastest])).time_s[0])
    return float(steps.time_s[fastest])


def _is_laid_out(op: Operator) -> bool:
    """Tells whether a layout of the operator is given: a product, a lookup, a weight or an input."""
    return traits(op).work is not None or traits(op).is_variable or traits(op).is_input


def _is_of_scores(op: Operator) -> bool:
    """Tells whether an operator gives a number for each pair of places."""
    shape = op.outputs[0].shape if op.outputs else ()
    return len(shape) > 3 and shape[-1] == shape[-2]


def fitted(
    predict: Callable[[Published, float], float] = predicted_s, published: Sequence[Published] = PUBLISHED
) -> tuple[float, float]:
    """Returns the share of products' arithmetic by which the largest relative error is least, and that error.

    Args:
        predict: seconds of a published step, by the share.
        published: what is measured.
    """

    def error(percent: int) -> float:
        return max(abs(predict(each, percent / 100) / each.step_s - 1) for each in published)

    low, high = 50, 100
    while high - low > 2:  # steps grow as the share falls, so the error has one least value
        first, second = low + (high - low) // 3, high - (high - low) // 3
        low, high = (low, second) if error(first) <= error(second) else (first, high)
    best = min(range(low, high + 1), key=error)
    return best / 100, error(best)


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=output_file, metavar="FILE")
    flags = parser.parse_args(arguments)
    share, error = fitted()
    steps = {
        each.name: (
            each.step_s,
            predicted_s(each, 1.0),
            predicted_s(each, share),
            predicted_s(each, share, searched=True),
        )
        for each in PUBLISHED
    }
    report = {
        "product_efficiency": share,
        "largest_error": error,
        "steps": [
            {"name": name, "published_s": published, "at_peak_s": at_peak, "fitted_s": predicted, "searched_s": found}
            for name, (published, at_peak, predicted, found) in steps.items()
        ],
    }
    if flags.json is not None:
        flags.json.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    table = Table(title=f"seconds of a step; products reach {share:.0%} of their arithmetic (fitted)")
    for header in ("published", "measured", "at their peak", "fitted", "error", "searched"):
        table.add_column(header, justify="left" if header == "published" else "right")
    for name, seconds in steps.items():
        *ours, found_s = (f"{each:.2f}" for each in seconds)
        table.add_row(name, *ours, f"{seconds[2] / seconds[0] - 1:+.1%}", found_s)
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
