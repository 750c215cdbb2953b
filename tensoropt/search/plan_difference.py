"""`Difference`: two plans side by side, with the layers that they split differently."""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from tensoropt.plan.plan import Plan
from tensoropt.plan.summary import LayerSummary, PlanSummary, family_key
from tensoropt.search.explanation import differences, signed
from tensoropt.search.report import Grid, Shown, figure
from tensoropt.search.strategy_table import family_text, kept_text, plan_title
from tensoropt.viz.canvas import bytes_unit, seconds_unit

__all__ = ["Difference", "LayerDifference"]

_SCHEMA = 1
_NAME = 28


@dataclass(frozen=True, slots=True)
class LayerDifference:
    """A layer that two plans split or store differently, with those that are equal to it.

    Attributes:
        layers: their names.
        split: how the one splits them, in words; None if it has no such layers.
        other_split: how the other one does.
        pieces: into how many the one cuts variables; None without variables.
        other_pieces: into how many the other one does.
        more_s: how much longer the other one takes for them.
        more_bytes: how much more it holds.
    """

    layers: tuple[str, ...]
    split: str | None
    other_split: str | None
    pieces: int | None
    other_pieces: int | None
    more_s: float
    more_bytes: float


@dataclass(frozen=True, slots=True)
class Difference(Shown):
    """Two plans compared.

    Attributes:
        titles: of both.
        same_model: whether they are for the same graph.
        seconds: of a step by parts, of the one and of the other.
        bytes: of a device by parts, of the one and of the other.
        layers: those that are split or stored differently.
        layers_in_all: how many the one has.
    """

    _COLUMNS: ClassVar[int] = 100

    titles: tuple[str, str]
    same_model: bool
    seconds: Mapping[str, tuple[float, float]]
    bytes: Mapping[str, tuple[float, float]]
    layers: tuple[LayerDifference, ...]
    layers_in_all: int

    @classmethod
    def of(cls, one: Plan, other: Plan) -> Difference:
        """Compares two plans, which need neither be for one cluster nor for one model.

        Raises:
            PlanError: one of them says nothing of its operators.
        """
        first, second = PlanSummary(one), PlanSummary(other)
        return cls(
            (plan_title(first), plan_title(second)),
            one.fingerprint == other.fingerprint,
            _paired(first.seconds, second.seconds),
            _paired(first.bytes, second.bytes),
            _layers(first, second),
            len(first.layers),
        )

    def to_json(self) -> str:
        """JSON text: all attributes by their names."""
        return json.dumps({"schema": _SCHEMA, **dataclasses.asdict(self)})

    def _parts(self) -> Sequence[str | Grid]:
        parts: list[str | Grid] = [f"one:   {_indented(self.titles[0])}", f"other: {_indented(self.titles[1])}"]
        if not self.same_model:
            parts.append("They are for different models, or sizes of one.")
        parts += ["", _parts_of(self.seconds, "seconds"), "", _parts_of(self.bytes, "bytes"), ""]
        differing = sum(len(one.layers) for one in self.layers)
        if not self.layers:
            parts.append(f"All {self.layers_in_all} layers are split and stored alike.")
            return parts
        parts += [f"Layers that are split or stored differently ({differing} of {self.layers_in_all})", self._grid()]
        return parts

    def _grid(self) -> Grid:
        cells = []
        for one in self.layers:
            cells.append(
                [
                    family_text(one.layers, _NAME),
                    one.split or "-",
                    kept_text(one.pieces),
                    one.other_split or "-",
                    kept_text(one.other_pieces),
                    signed(one.more_s, "seconds"),
                    signed(one.more_bytes, "bytes"),
                ]
            )
        headers = ("layer", "one", "kept", "other", "kept", "time", "memory")
        return Grid(headers, cells, (0, 1, 2, 3, 4), framed=False)


def _paired(one: Mapping[str, float], other: Mapping[str, float]) -> dict[str, tuple[float, float]]:
    return {part: (one.get(part, 0.0), other.get(part, 0.0)) for part in {**one, **other}}


def _parts_of(pairs: Mapping[str, tuple[float, float]], kind: str) -> Grid:
    whole = [sum(column) for column in zip(*pairs.values(), strict=True)] or [0.0, 0.0]
    scale, unit = seconds_unit(whole) if kind == "seconds" else bytes_unit(whole)
    ours, theirs = ({part: pair[place] for part, pair in pairs.items()} for place in (0, 1))
    told = differences(ours, theirs, max(whole))
    rows = [(part, pairs[part]) for part in told]
    cells = [
        [f"  {part}", figure(one, 1 / scale), figure(other, 1 / scale), signed(other - one, kind)]
        for part, (one, other) in [*rows, ("total", (whole[0], whole[1]))]
    ]
    return Grid(("", f"one, {unit}", f"other, {unit}", "difference"), cells, (0,), framed=False)


def _layers(first: PlanSummary, second: PlanSummary) -> tuple[LayerDifference, ...]:
    ours, theirs = ({layer.name: layer for layer in summary.layers} for summary in (first, second))
    groups: dict[tuple[object, ...], list[tuple[LayerSummary | None, LayerSummary | None]]] = defaultdict(list)
    for name in {**ours, **theirs}:
        pair = ours.get(name), theirs.get(name)
        said = tuple(None if layer is None else (layer.text, layer.pieces) for layer in pair)
        if said[0] != said[1]:
            groups[family_key(name), said].append(pair)
    return tuple(map(_difference, groups.values()))


def _difference(pairs: Sequence[tuple[LayerSummary | None, LayerSummary | None]]) -> LayerDifference:
    one, other = pairs[0]
    seconds = [[0.0 if layer is None else layer.own_s + layer.network_s for layer in pair] for pair in pairs]
    held = [[0.0 if layer is None else layer.memory_bytes for layer in pair] for pair in pairs]
    return LayerDifference(
        tuple(next(layer.name for layer in pair if layer is not None) for pair in pairs),
        None if one is None else one.text,
        None if other is None else other.text,
        None if one is None else one.pieces,
        None if other is None else other.pieces,
        sum(after - before for before, after in seconds),
        sum(after - before for before, after in held),
    )


def _indented(title: str) -> str:
    return title.replace("\n", "\n       ")
