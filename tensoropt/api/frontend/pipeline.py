"""The front end: from a model to its logical graph, by one list of passes.

A pass takes a :class:`~tensoropt.api.frontend.source.Source` and gives another one; it has one job and runs once. With
``TENSOROPT_DUMP=folder`` the source is written as text after each pass, in a folder for each import, and checked::

    folder/000/01_cut_pipelines.txt
    folder/000/02_choose_part.txt
    …
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tensoropt.api.frontend.fanouts import fan_out, mark_differentiable, store_whole
from tensoropt.api.frontend.input_pipelines import cut_pipelines
from tensoropt.api.frontend.own_rows import mark_own_rows
from tensoropt.api.frontend.parts import choose_part
from tensoropt.api.frontend.placeholders import fill_shapes
from tensoropt.api.frontend.pointwise_gradients import mark_pointwise
from tensoropt.api.frontend.read_operators import read_operators
from tensoropt.api.frontend.source import Request, Source
from tensoropt.api.frontend.source_text import text_of
from tensoropt.api.frontend.static_graph import to_static_shapes
from tensoropt.api.mirror.model import Model
from tensoropt.errors import GraphError
from tensoropt.graph.graph import Graph
from tensoropt.graph.verifier import verify_graph
from tensoropt.logs import is_speaker
from tensoropt.storage import write_whole
from tensoropt.storage.document import cause_of

__all__ = ["PASSES", "run_passes"]

_FOLDER_VARIABLE = "TENSOROPT_DUMP"
_imports = itertools.count()


PASSES: tuple[Callable[[Source], Source], ...] = (
    cut_pipelines,  # first: a pipeline has no sizes, and calls functions that no device has
    choose_part,  # before sizes, which are asked of the part alone
    fill_shapes,  # which the next pass applies
    to_static_shapes,  # branches become selects, loops their turns: both need sizes
    read_operators,  # the rest is about operators of ours
    mark_own_rows,  # of the operators alone: before fan-outs stand between them
    mark_pointwise,  # as well
    store_whole,  # as well
    fan_out,  # once all readers of a tensor are there
    mark_differentiable,  # over fan-outs, which stand on gradients' ways
)


def run_passes(model: Model, request: Request) -> tuple[Source, Graph]:
    """Takes a model through all passes; returns what comes of it, and its logical graph.

    Raises:
        GraphError: naming the script's operation and line, where something cannot be planned.
    """
    folder = os.environ.get(_FOLDER_VARIABLE) or None
    into = None if folder is None or not is_speaker() else Path(folder) / f"{next(_imports):03}"
    source = Source(request, model)
    for number, each in enumerate(PASSES, start=1):
        source = each(source)
        if into is not None:
            _dump(into / f"{number:02}_{each.__name__}.txt", source)
            _check(source, each.__name__)
    graph = _logical_graph(source)
    verify_graph(graph)
    return source, graph


def _logical_graph(source: Source) -> Graph:
    graph = Graph(source.operators, source.training, source.differentiable)
    asked, parts = source.request.batch_size, source.model.parts
    has_asked = any(op.outputs[0].shape[:1] == (asked,) for op in graph.inputs() if op.name in graph.training)
    # The values of a sparse tensor are no samples.
    samples = asked if has_asked else graph.common_size(parts)
    return graph if samples in (None, graph.batch_size()) else replace(graph, samples=samples)


def _dump(path: Path, source: Source) -> None:
    """Writes a source as text.

    Raises:
        GraphError: there can be no such file.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text_of(source))
    except OSError as error:
        raise GraphError(
            f"{_FOLDER_VARIABLE}: '{path}' cannot be written: {cause_of(error)}. Name a folder that can be made and "
            "has room, or unset it."
        ) from error


def _check(source: Source, after: str) -> None:
    """Checks a source between passes.

    Raises:
        GraphError: the pass before has broken something that others take for granted.
    """
    try:
        verify_graph(_logical_graph(source))
    except GraphError as error:
        raise GraphError(f"After {after}: {error}") from error
