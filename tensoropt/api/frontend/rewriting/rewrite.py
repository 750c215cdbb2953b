"""Rewrites ops that devices cannot have as they are: calls of functions, loops, lists, gradients of a script's own."""

from __future__ import annotations

from typing import Any

from tensoropt.api.frontend.effects import PASSED_ON
from tensoropt.api.frontend.functions import functions_in, is_call
from tensoropt.api.frontend.rewriting.custom_gradients import own_gradient
from tensoropt.api.frontend.rewriting.draws import DRAW_HANDLERS
from tensoropt.api.frontend.rewriting.inlining import CALL_HANDLERS, SIZE_HANDLERS, VARIABLE_HANDLERS, check, guarded
from tensoropt.api.frontend.rewriting.lists import LIST_HANDLERS, materialize
from tensoropt.api.frontend.rewriting.loops import LOOP_HANDLERS
from tensoropt.api.frontend.rewriting.rewriter import OWN_GRADIENT, Rules
from tensoropt.graph.gradient_graphs import GRADIENT_TYPE

__all__ = ["RULES", "is_rewritten"]

_BY_TYPE = (CALL_HANDLERS, DRAW_HANDLERS, LIST_HANDLERS, LOOP_HANDLERS, VARIABLE_HANDLERS, SIZE_HANDLERS)
_HANDLERS = {op_type: handler for each in _BY_TYPE for op_type, handler in each.items()} | {OWN_GRADIENT: own_gradient}


RULES = Rules(_HANDLERS, guarded, check, materialize, frozenset((*VARIABLE_HANDLERS, *DRAW_HANDLERS, PASSED_ON)))
"""All that becomes of ops."""


def is_rewritten(op: Any) -> bool:
    """Tells whether plain ops replace an op on devices: it calls functions, or has a gradient of its own."""
    attrs = op.node_def.attr
    return bool(op.type in CALL_HANDLERS or GRADIENT_TYPE in attrs or functions_in(attrs) or is_call(op))
