"""The pass that makes TensorFlow's graph one of static shapes and plain ops, without what computes gradients."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import replace

import tensorflow as tf
from tensorflow.python.framework import meta_graph

from tensoropt.api.frontend.meta_graphs import exported
from tensoropt.api.frontend.parts import needed_by_training
from tensoropt.api.frontend.rewriting.rewrite import RULES
from tensoropt.api.frontend.rewriting.rewriter import Rewriter
from tensoropt.api.frontend.rewriting.user_graph import UserGraph
from tensoropt.api.frontend.source import Part, Source
from tensoropt.api.frontend.stand_ins import given_in, merged_from, sized_gradients
from tensoropt.errors import GraphError

__all__ = ["to_static_shapes"]


def to_static_shapes(source: Source) -> Source:
    """Makes the graph again with the sizes that placeholders have now, functions written out, gradients cut off.

    What acts on one observation where a whole batch trains is refused here: it is imported when it is run.

    Raises:
        GraphError: TensorFlow finds that the sizes of training do not go together; or an op cannot be made again.
    """
    model, shapes, part = source.model, source.shapes, source.part
    graph, calls, merged = model.graph, part.gradients, part.merged
    target = tf.Graph()
    target.seed = graph.seed
    every = model.gradient_calls, model.merged_rows
    inside = frozenset().union(*(one.inside for made in every for one in made))
    may_refuse = source.request.only is None and bool(model.gradient_calls)
    try:
        # The sizes of rows follow from those of what is fed.
        open_rows = any(output.indices is not None for call in calls for output in call.outputs)
        sized = sized_gradients(model, shapes, calls, merged) if shapes and open_rows else graph
        given = given_in(graph, sized, calls, inside)
        gradients, passed_on = model.gradient_calls, merged_from(merged)
        user = UserGraph(graph, shapes, gradients, inside, given, passed_on, model.origins, model.copies)
        user.check_gradients_apart()
        rewriter = Rewriter(target, RULES, user)
        refused = rewriter.rewrite(
            part.operations | {name.split(":")[0] for name in given},
            functools.cache(lambda: needed_by_training(model)) if may_refuse else None,
        )
    except ValueError as error:
        sizes = ", ".join(f"'{name}' {tuple(shape)}" for name, shape in shapes.items())
        raise GraphError(
            f"The model: its shapes do not go together with what is {model.terms.given}, {sizes}: {error} "
            f"{model.terms.give.capitalize()} batches that fit, and write no batch size into the model (a reshape to "
            "[-1, …] takes any)."
        ) from error
    if source.request.only is None:
        meta = exported(graph, target)
        with target.as_default():
            meta_graph.import_scoped_meta_graph(meta)  # its collections, such as the variables
    made_of = {name: user.origin(op) for name, op in rewriter.origins.items()}
    left = _without(part, refused) if refused else part
    left = replace(left, gradients=tuple(call.renamed(rewriter.crossed) for call in left.gradients))
    return replace(source, graph=target, origins={**source.origins, **made_of}, part=left, refused=refused)


def _without(part: Part, refused: Mapping[str, Exception]) -> Part:
    """A part without some operations, by name, and without the gradients that they give."""

    def is_there(*tensors: str | None) -> bool:
        return refused.keys().isdisjoint(name.split(":")[0] for name in tensors if name is not None)

    calls = (
        replace(call, outputs=tuple(one for one in call.outputs if is_there(one.values, one.indices)))
        for call in part.gradients
    )
    return Part(
        part.operations - refused.keys(),
        tuple(call for call in calls if call.outputs),
        tuple(one for one in part.merged if is_there(one.values, one.indices)),
    )
