"""Plans of large language models: what they take to find, and what they are worth.

    python -m benchmarks.gpt --json gpt.json
    python -m benchmarks.gpt --model llama3-8b --recompute
    python -m benchmarks.gpt --layers 12 --devices 64 --batch 96 --micro-batches 2

A decoder is written by tensoropt's calls, as a script would: variables and Adam's slots in float32, casts of them and
all that flows in bfloat16 but for means, variances and the loss. It is planned for described H100, eight in a host;
nothing runs. ``gpt3`` is GPT-3 of 175 billion parameters (Brown et al. 2020) with its table of words as last layer;
``llama3-8b`` is like Llama 3 8B: root mean squares, rotated halves of heads, gates, and four queries to a key.

Seconds are of processors (of all threads), by phases:

- *build*: the forward pass, call by call;
- *differentiate*: gradients and updates (``minimize``);
- *import*: the logical graph;
- *tables*: what all strategies cost, for each number of micro-batches;
- *search*: the fastest strategy within the memory, and its plan; for each number, too.

``--micro-batches auto`` tries one, and where that does not fit 2, 3, 4, 6, 8 and more until time grows again, as
``find_strategy`` does, but for pipelines. Beside the plan stand baselines on the same tables: of what each offers the
fastest that fits, or else the smallest. *MFU* is the arithmetic of the model as a share of what the devices can do. The
*gap* is how much slower the plan is than a lower bound of all strategies that fit.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

import tensorflow as tf
from rich.console import Console
from rich.table import Table

import tensoropt
from benchmarks.arguments import output_file, positive
from tensoropt.api.find.choosing import find_plan
from tensoropt.api.find.planner import Planner
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.garbage import collecting_new_objects
from tensoropt.api.mirror.model import current_model
from tensoropt.cluster import Topology
from tensoropt.cluster.device import FUSIONS
from tensoropt.cluster.presets import preset
from tensoropt.errors import TensorOptError
from tensoropt.plan.plan import Plan
from tensoropt.search.options import MemoryLimit
from tensoropt.space.space import SearchSpace

__all__ = ["DECODERS", "Decoder", "main", "measure"]

_GIB = 2**30
_BASELINES = ("data_parallel", "zero3", "megatron")


@dataclass(frozen=True, slots=True)
class Decoder:
    """A language model of equal layers.

    Attributes:
        heads: of queries.
        groups: of heads that share keys and values.
        hidden: units between the two products of a layer's second half.
        is_llama: whether layers are those of Llama, and not of GPT.
        are_functions: whether layers are calls of one ``tf.function``, which TensorFlow traces once.
        batch: samples of a step.
        devices: it is planned for.
    """

    layers: int
    width: int
    heads: int
    groups: int
    hidden: int
    length: int
    vocabulary: int
    batch: int
    devices: int
    is_llama: bool = False
    are_functions: bool = False

    def with_sizes(self, sizes: Mapping[str, int]) -> Decoder:
        """The same in other sizes; units and groups grow with the width and the heads, unless they are given."""
        width, heads = sizes.get("width", self.width), sizes.get("heads", self.heads)
        scaled = {"hidden": self.hidden * width // self.width, "groups": max(1, self.groups * heads // self.heads)}
        return replace(self, **{**scaled, **sizes})  # type: ignore[arg-type]  # of numbers only

    def loss(self) -> Any:
        """Builds the forward pass in the current model; returns the loss."""
        ids = tensoropt.placeholder(tensoropt.int32, [self.batch, self.length], name="ids")
        labels = tensoropt.placeholder(tensoropt.int32, [self.batch, self.length], name="labels")
        words = _variable("words", [self.vocabulary, self.width])
        x = _as_half(tensoropt.gather(words, ids))
        x = x if self.is_llama else x + _half("positions", [self.length, self.width])
        place = tensoropt.range(self.length)
        hidden = _as_half(place > tensoropt.expand_dims(place, 1)) * -1e9
        angles = self._angles(place) if self.is_llama else ()
        layer = tf.function(self._layer) if self.are_functions else self._layer
        for number in range(self.layers):
            with tensoropt.variable_scope(f"layer_{number}"):
                x = layer(x, hidden, angles, self._weights())
        with tensoropt.variable_scope("norm"):
            x = self._norm(x, self._norm_weights())
        last = _half("logits", [self.vocabulary, self.width]) if self.is_llama else _as_half(words)
        logits = tensoropt.einsum("bld,vd->blv", x, last)
        return tensoropt.softmax_cross_entropy(labels, tensoropt.cast(logits, tensoropt.float32))

    def _weights(self) -> dict[str, Any]:
        """Returns a layer's weights, by their names: of products, biases, norms."""
        depth, width = self.width // self.heads, self.width
        shapes: dict[str, list[int]] = {"up": [width, self.hidden], "down": [self.hidden, width]}
        biases: dict[str, list[int]] = {}
        if self.is_llama:
            shapes["query"] = [width, self.groups, self.heads // self.groups, depth]
            shapes["key"] = shapes["value"] = [width, self.groups, depth]
            shapes["output"] = [*shapes["query"][1:], width]
            shapes["gate"] = [width, self.hidden]
        else:
            shapes |= {"qkv": [width, 3, self.heads, depth], "output": [self.heads, depth, width]}
            biases = {"qkv": [3, 1, self.heads, 1, depth], "output": [width], "up": [self.hidden], "down": [width]}
        found = {name: _half(name, shape) for name, shape in shapes.items()}
        found |= {f"{name}_bias": _half(f"{name}_bias", shape, 0.0) for name, shape in biases.items()}
        for name in ("norm_1", "norm_2"):
            with tensoropt.variable_scope(name):
                found[name] = self._norm_weights()
        return found

    def _norm_weights(self) -> list[Any]:
        scale = _half("scale", [self.width], 1.0)
        return [scale] if self.is_llama else [scale, _half("offset", [self.width], 0.0)]

    def _layer(self, x: Any, hidden: Any, angles: Any, weights: Mapping[str, Any]) -> Any:
        x = x + self._attention(self._norm(x, weights["norm_1"]), hidden, angles, weights)
        return x + self._feed_forward(self._norm(x, weights["norm_2"]), weights)

    def _norm(self, x: Any, weights: Sequence[Any]) -> Any:
        wide = tensoropt.cast(x, tensoropt.float32)
        if self.is_llama:
            square = tensoropt.reduce_mean(wide * wide, axis=-1, keepdims=True)
            return x * _as_half(tensoropt.math.rsqrt(square + 1e-5)) * weights[0]
        mean, variance = tensoropt.nn.moments(wide, axes=[-1], keep_dims=True)
        return (x - _as_half(mean)) * _as_half(tensoropt.math.rsqrt(variance + 1e-5)) * weights[0] + weights[1]

    def _attention(self, x: Any, hidden: Any, angles: Any, weights: Mapping[str, Any]) -> Any:
        s = "s" if self.is_llama else ""  # heads that share a key have a dimension of their own
        if self.is_llama:
            query = _turned(tensoropt.einsum("blw,wgsd->bgsld", x, weights["query"]), *angles)
            key = _turned(tensoropt.einsum("blw,wgd->bgld", x, weights["key"]), *angles)
            value = tensoropt.einsum("blw,wgd->bgld", x, weights["value"])
        else:
            together = tensoropt.einsum("blw,wngd->nbgld", x, weights["qkv"]) + weights["qkv_bias"]
            query, key, value = tensoropt.unstack(together)
        query *= (self.width // self.heads) ** -0.5
        scores = tensoropt.einsum(f"bg{s}qd,bgkd->bg{s}qk", query, key) + hidden
        mixed = tensoropt.einsum(f"bg{s}qk,bgkd->bg{s}qd", tensoropt.nn.softmax(scores), value)
        found = tensoropt.einsum(f"bg{s}qd,g{s}dw->bqw", mixed, weights["output"])
        return found if self.is_llama else found + weights["output_bias"]

    def _angles(self, place: Any) -> tuple[Any, Any]:
        """Returns sines and cosines of the angles by which pairs of a head's numbers are turned, by place."""
        half = self.width // self.heads // 2
        rates = tensoropt.constant([500_000 ** (-i / half) for i in range(half)], tensoropt.float32)
        angles = tensoropt.expand_dims(tensoropt.cast(place, tensoropt.float32), 1) * rates
        return _as_half(tensoropt.math.sin(angles)), _as_half(tensoropt.math.cos(angles))

    def _feed_forward(self, x: Any, weights: Mapping[str, Any]) -> Any:
        up = tensoropt.einsum("blw,wh->blh", x, weights["up"])
        if self.is_llama:
            gate = tensoropt.einsum("blw,wh->blh", x, weights["gate"])
            return tensoropt.einsum("blh,hw->blw", gate * tensoropt.sigmoid(gate) * up, weights["down"])
        middle = tensoropt.nn.gelu(up + weights["up_bias"])
        return tensoropt.einsum("blh,hw->blw", middle, weights["down"]) + weights["down_bias"]


def _turned(x: Any, sine: Any, cosine: Any) -> Any:
    first, second = tensoropt.split(x, 2, axis=-1)
    return tensoropt.concat([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def _variable(name: str, shape: Sequence[int], value: float | None = None) -> Any:
    small = tensoropt.initializers.random_normal(stddev=0.02)
    initial = small if value is None else tensoropt.initializers.constant(value)
    return tensoropt.get_variable(name, shape, initializer=initial)


def _half(name: str, shape: Sequence[int], value: float | None = None) -> Any:
    """Returns a new variable of float32, cast."""
    return _as_half(_variable(name, shape, value))


def _as_half(x: Any) -> Any:
    return tensoropt.cast(x, tensoropt.bfloat16)


DECODERS: Mapping[str, Decoder] = MappingProxyType(
    {
        "gpt3": Decoder(96, 12_288, 96, 96, 4 * 12_288, 2048, 51_200, 1536, 1024),
        "llama3-8b": Decoder(32, 4096, 32, 8, 14_336, 8192, 128_256, 128, 64, is_llama=True),
    }
)


@dataclass(slots=True)
class Phases:
    """Seconds of processors by phase, and of the clock in all."""

    processor_s: dict[str, float] = field(default_factory=dict)
    wall_s: float = 0.0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Adds what is done inside to a phase, less what phases inside of it take."""
        wall_s, processor_s = time.perf_counter() - self.wall_s, time.process_time() - sum(self.processor_s.values())
        try:
            yield
        finally:
            inside_s = sum(self.processor_s.values())
            took_s = time.process_time() - processor_s - inside_s
            self.processor_s[name] = self.processor_s.get(name, 0.0) + took_s
            self.wall_s = time.perf_counter() - wall_s

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.1f}" for name, seconds in self.processor_s.items())


def measure(
    decoder: Decoder,
    micro_batches: int | None,
    *,
    recompute: bool = False,
    memory_bytes: float | None = None,
    device: Mapping[str, Any] = MappingProxyType({}),
    said: Callable[[str], object] = lambda text: None,
) -> dict[str, Any]:
    """Plans a decoder.

    Args:
        decoder: the model.
        micro_batches: how many a step has; None for as many as are needed.
        recompute: whether outputs may be made again.
        memory_bytes: of a device; by default its memory less the reserve.
        device: fields of the device that differ from the preset's.
        said: is told how far it is.

    Raises:
        TensorOptError: no plan fits, or the model cannot be planned.
    """
    cluster = preset("h100", devices=decoder.devices)
    topology = replace(cluster, device=replace(cluster.device, **device))
    limit = MemoryLimit.of(topology.device.memory_bytes, memory_bytes)
    tensoropt.reset_default_graph()
    current_model()  # loads TensorFlow
    phases = Phases()
    with phases.phase("build"):
        loss = decoder.loss()
    with phases.phase("differentiate"):
        tensoropt.train.AdamOptimizer(1e-4).minimize(loss)
    made = current_model()
    with phases.phase("import"):
        imported = import_model(made)
        # Shares of a batch that devices do not divide are cut from the whole batch.
        feed = "data_parallel" if decoder.batch % decoder.devices == 0 else "global"
        planner = _planner_of(phases)(imported, feed, made, recompute=recompute)
    said(f"imported: {phases}")

    def plan_of(steps: Planner) -> Plan:
        found = find_plan(steps, topology, "mini_time", limit.limit_bytes, micro_batches=steps.micro_batches)
        said(f"{steps.micro_batches} micro-batches, {found.time_s:.4g} s: {phases}")
        return found

    with phases.phase("search"), collecting_new_objects():  # as find_strategy searches
        plan = None
        if micro_batches is None and not planner.fits(topology, limit.limit_bytes):
            plan = planner.fastest_split(topology, limit, plan_of, lambda found: found.time_s)
        plan = plan_of(planner.with_steps(micro_batches)) if plan is None else plan
    planner = planner.with_steps(plan.micro_batches)
    return {
        "operators": len(imported.graph.operators),
        "parameters": sum(op.outputs[0].elements for op in imported.graph.variables() if "Adam" not in op.name),
        "topology": topology.name,
        "processor_s": phases.processor_s,
        "total_processor_s": sum(phases.processor_s.values()),
        "total_wall_s": phases.wall_s,
        "micro_batches": plan.micro_batches,
        "limit_bytes": limit.limit_bytes,
        "searched": plan.notes.get("searched"),
        "made_again": len(plan.again),
        "methods": {
            "tensoropt": _figures(plan, _gap(planner, topology, limit, plan)),
            **_baselines(planner, topology, limit),
        },
    }


def _planner_of(phases: Phases) -> type[Planner]:
    """The planner that adds what tables take to a phase of their own."""

    class Timed(Planner):
        def space(self, topology: Topology) -> SearchSpace:
            with phases.phase("tables"):
                space = super().space(topology)
                _ = space.problem
            return space

    return Timed


def _gap(planner: Planner, topology: Topology, limit: MemoryLimit, plan: Plan) -> float | None:
    """By how much a plan may be slower than the fastest that fits; None where tables are too large for a bound."""
    try:
        bound_s = planner.find(topology, "columns", limit).frontier.point(0).bound_s
    except TensorOptError:
        return None
    return None if bound_s is None else plan.time_s / bound_s - 1


def _figures(plan: Plan, gap: float | None = None) -> dict[str, Any]:
    return {
        "time_s": plan.time_s,
        "memory_bytes": plan.memory_bytes,
        "peak_bytes": plan.peak_bytes,
        "utilization": plan.utilization,
        "gap": gap,
    }


def _baselines(planner: Planner, topology: Topology, limit: MemoryLimit) -> dict[str, Any]:
    """What baselines offer on the same tables: the fastest that fits, or else the smallest; or why there is none."""
    found: dict[str, Any] = {}
    for name in _BASELINES:
        try:
            offered = planner.find(topology, name)
        except TensorOptError as error:
            found[name] = {"reason": str(error)}
            continue
        frontier = offered.frontier
        fits = frontier.memory_bytes[0] <= limit.limit_bytes
        point = frontier.best(limit.limit_bytes) if fits else frontier.point(0)
        plan = planner.plan_found(topology, offered, point, name, limit)
        found[name] = _figures(plan) | ({} if fits else {"reason": "does not fit"})
    return found


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=sorted(DECODERS), default="gpt3")
    sizes = ("layers", "width", "heads", "groups", "hidden", "length", "vocabulary", "batch", "devices")
    for name in sizes:
        parser.add_argument(f"--{name}", type=positive, help="by default the model's")
    parser.add_argument("--function", action="store_true", help="layers are calls of one tf.function, traced once")
    parser.add_argument("--micro-batches", type=_number_or_auto, default=None, metavar="N|auto")
    parser.add_argument("--recompute", action="store_true", help="outputs may be made again in the backward pass")
    parser.add_argument(
        "--memory", type=float, metavar="GIB", help="that a device may hold; by default 80 less a tenth"
    )
    parser.add_argument("--fusion", choices=FUSIONS, default="none", help="kernels that devices make of operators")
    parser.add_argument("--product-efficiency", type=float, default=1.0, help="the share of peaks that products reach")
    parser.add_argument("--json", type=output_file, metavar="FILE")
    flags = parser.parse_args(arguments)
    given = {name: value for name in sizes if (value := getattr(flags, name)) is not None}
    decoder = replace(DECODERS[flags.model].with_sizes(given), are_functions=flags.function)
    device = {"fusion": flags.fusion, "product_efficiency": flags.product_efficiency}
    memory = None if flags.memory is None else flags.memory * _GIB
    try:
        said = functools.partial(print, file=sys.stderr, flush=True)
        report = measure(
            decoder, flags.micro_batches, recompute=flags.recompute, memory_bytes=memory, device=device, said=said
        )
    except TensorOptError as error:
        parser.exit(1, f"{parser.prog}: {error}\n")
    if flags.json is not None:
        given_flags = {"recompute": flags.recompute, "function": flags.function}
        options = {name: getattr(decoder, name) for name in sizes} | given_flags | device
        text = json.dumps({"model": flags.model, **options, **report}, indent=1)
        flags.json.write_text(text + "\n", encoding="utf-8")
    _show(flags.model, report)


def _number_or_auto(text: str) -> int | None:
    return None if text == "auto" else positive(text)


def _show(model: str, report: Mapping[str, Any]) -> None:
    console = Console(width=120)
    seconds = ", ".join(f"{name} {value:.1f}" for name, value in report["processor_s"].items())
    console.print(
        f"{model}: {report['parameters'] / 1e9:.4g} billion parameters, {report['operators']:,} operators, for "
        f"{report['topology']}, {report['micro_batches']} micro-batches, {report['made_again']} operators made again.\n"
        f"Seconds of processors: {seconds}, in all {report['total_processor_s']:.1f} ({report['total_wall_s']:.1f} s "
        "of the clock).",
        highlight=False,
    )
    table = Table(title=f"predicted steps; at most {report['limit_bytes'] / _GIB:.1f} GiB of a device")
    for header in ("method", "time, s", "memory, GiB", "peak, GiB", "MFU", "gap", "remark"):
        table.add_column(header, justify="left" if header in ("method", "remark") else "right")
    for name, row in report["methods"].items():
        cells = ["-"] * 5
        if "time_s" in row:
            memory = [f"{row[key] / _GIB:.1f}" for key in ("memory_bytes", "peak_bytes")]
            shares = [f"{row[key]:.2%}" if row[key] is not None else "-" for key in ("utilization", "gap")]
            cells = [f"{row['time_s']:.4g}", *memory, *shares]
        table.add_row(name, *cells, row.get("reason", ""))
    console.print(table)


if __name__ == "__main__":
    main()
