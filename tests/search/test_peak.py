"""The peak of a plan's memory, against sums made by hand."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import pytest

from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost, OpProfile, ProfiledCost
from tensoropt.cost.cost_model import OpCall
from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.plan.configuration import Configuration
from tensoropt.plan.plan import Plan, rules_of
from tensoropt.space.peak import PeakMemory, peak_memory
from tensoropt.space.space import SearchSpace
from tests.plan.small_graphs import convolutions, embedding, mlp, operator, tied, trained_mlp

pytestmark = pytest.mark.pure

# The bytes of the tensors of mlp(): x, w1, b1, w2; h (also with its bias, and where the activation is); y.
X, W1, B1, W2, H, Y = 192, 288, 48, 192, 384, 128


def _plan(
    graph: Graph, actions: Mapping[str, tuple[str | None, ...]], alternatives: Mapping[str, int] | None = None
) -> Plan:
    """The plan in which operators have the configurations given, and all others replicate."""
    space = SearchSpace(graph, AnalyticCost(cpu(2)), reuse=True)
    wanted = {op.name: Configuration(actions.get(op.name, (None,))) for op in space.operators}
    picks = [0] * len(space.operators) + [(alternatives or {}).get(str(edge.tensor), 0) for edge in space.edges]
    return space.plan(space.assignment(wanted), "hand", alternatives=picks)


def _peak(graph: Graph, plan: Plan) -> PeakMemory:
    return peak_memory(graph, rules_of(graph), plan)


def test_the_peak_of_a_replicated_step_is_where_the_last_product_goes_back() -> None:
    peak = _peak(mlp(), _plan(mlp(), {}))
    # The activation is kept, y's gradient has come, those of its two inputs are made. Bias and activation take nothing.
    assert (peak.operator, peak.backward) == ("y", True)
    assert peak.memory_bytes == X + W1 + B1 + W2 + H + Y + W2 + H
    assert peak.parts == {
        "inputs": X,
        "variables": W1 + B1 + W2,
        "activations": H,
        "gradients": Y + H,
        "variable_gradients": W2,
    }


def test_pieces_are_counted_and_all_variables_are_held_all_the_time() -> None:
    graph = mlp()
    batch = {"h": ("m",), "y": ("m",), "x": ("d0",), "hb": ("d0",), "a": ("d0",), "s": ("d0",), "flat": ("d0",)}
    plan = _plan(graph, batch)
    whole = _peak(graph, plan)
    assert (whole.operator, whole.memory_bytes) == ("y", X / 2 + W1 + B1 + W2 + H / 2 + Y / 2 + W2 + H / 2)
    slot = operator("w1/m", "Variable", (), (6, 12))
    more = Graph((*graph.operators, slot), graph.training | {slot.name}, graph.differentiable)
    assert _peak(more, _plan(more, batch)).memory_bytes - whole.memory_bytes == W1


def test_parts_of_16_bit_gradients_are_held_in_float32() -> None:
    graph = mlp(dtype="bfloat16")
    batch = {"h": ("m",), "y": ("m",), "x": ("d0",), "hb": ("d0",), "a": ("d0",), "s": ("d0",), "flat": ("d0",)}
    peak = _peak(graph, _plan(graph, batch))
    # The sum of its parts, which are in float32, is rounded to a buffer of its own.
    assert peak.parts["variable_gradients"] == W2 + W2 / 2
    assert peak.memory_bytes == (X / 2 + W1 + B1 + W2 + H / 2 + H / 2) / 2 + W2 + W2 / 2


def test_a_plan_notes_its_peak_which_is_less_than_what_adds_up() -> None:
    plan = _plan(mlp(), {})
    noted = plan.notes["peak_memory"]
    assert noted["memory_bytes"] == _peak(mlp(), plan).memory_bytes and noted["operator"] == "y"
    assert Plan.from_json(plan.to_json()).notes["peak_memory"] == noted


def test_a_gathered_weight_is_a_copy_and_is_packed_where_its_pieces_are_strided() -> None:
    graph = tied()
    size = 4 * 4 * 4
    rows, columns = (
        _peak(graph, _plan(graph, {"w": (axis,), "w/fanout0": (None,)}))
        for axis in SearchSpace(graph, AnalyticCost(cpu(2))).rules["w"].split
    )
    for peak in (rows, columns):
        assert peak.parts["variables"] == size / 2
    # At the peak the gathered copy is read; how it was unpacked is over.
    assert rows.parts["moved"] == columns.parts["moved"] == size


def test_zeros_that_stand_for_others_parts_of_a_sum_are_held_all_the_time_and_once() -> None:
    graph = tied()
    whole = _peak(graph, _plan(graph, {}))
    # Both readers' gradients are whole, and all devices but the first drop theirs.
    partial = _peak(graph, _plan(graph, {"w/fanout0": ("~",)}))
    assert partial.parts["inputs"] - whole.parts["inputs"] == 4 * 4 * 4
    assert partial.memory_bytes - whole.memory_bytes == 4 * 4 * 4


def test_gradients_of_two_readers_are_there_before_they_are_summed() -> None:
    graph = tied()
    peak = _peak(graph, _plan(graph, {}))
    weight, image = 4 * 4 * 4, 8 * 4 * 4
    # x, w, h and the gradients of y, w and h; later x, w and the gradients of h, and of w from both readers.
    assert (peak.operator, peak.backward) == ("y", True)
    assert peak.memory_bytes == 4 * image + 2 * weight
    small = tied(batch=1, width=8)
    peak = _peak(small, _plan(small, {}))
    assert peak.operator == "h" and peak.parts["variable_gradients"] == 2 * 8 * 8 * 4


def test_gradients_of_many_readers_are_all_there_before_they_are_summed() -> None:
    for more in (1, 8):
        graph = tied(1, 8, more)
        assert _peak(graph, _plan(graph, {})).parts["variable_gradients"] == (2 + more) * 8 * 8 * 4


def test_the_gradient_of_a_filter_is_packed_before_that_of_the_image_is_made() -> None:
    graph = convolutions()
    filters = 3 * 3 * 4 * 4 * 4
    peak = _peak(graph, _plan(graph, {"x": ("d0",), "h": ("n",), "y": ("n",), "w2": ("d3",)}))
    assert (peak.operator, peak.backward) == ("y", True)
    # The gathered filters are held for the gradient of the image, beside their own gradient and its packed copy.
    assert peak.parts["moved"] == filters and peak.parts["variable_gradients"] == 2 * filters


def test_rows_of_a_table_are_less_than_the_table() -> None:
    graph = embedding(batch=2, rows=64)
    peak = _peak(graph, _plan(graph, {}))
    assert peak.parts["variables"] == 64 * 8 * 4
    assert peak.memory_bytes <= peak.parts["variables"] + 4 * 2 * 8 * 4


class _WithScratch(ProfiledCost):
    """Products take something beside their tensors."""

    def scratch_bytes(self, call: OpCall) -> tuple[float, float, float]:
        """1000 bytes forward, 10 kept, 100 backward."""
        return (1000.0, 10.0, 100.0) if call.op.type == "MatMul" and call.gradients else (0.0, 0.0, 0.0)


def test_what_kernels_take_beside_their_tensors_counts_while_they_run() -> None:
    graph = mlp()
    space = SearchSpace(graph, _WithScratch(cpu(2), graph, OpProfile()))
    point = space.assignment({op.name: Configuration((None,)) for op in space.operators})
    noted = space.plan(point, "hand").notes["peak_memory"]
    assert (noted["operator"], noted["backward"]) == ("y", False)
    # What "h" keeps is held, too.
    assert noted["memory_bytes"] == X + W1 + B1 + W2 + H + Y + 1000 + 10
    assert noted["parts"]["scratch"] == 1000 - 10


def test_a_lowering_with_a_gradient_of_its_own_has_no_output_for_tensorflows() -> None:
    losses = Operator(
        "losses",
        "SparseSoftmaxCrossEntropyWithLogits",
        (TensorId("y"), TensorId("labels")),
        (TensorSpec((8,), "float32"), TensorSpec((8, 4), "float32")),
    )
    operators = (
        operator("y", "Variable", (), (8, 4)),
        operator("labels", "Placeholder", (), (8,), dtype="int32"),
        losses,
        operator("losses:0/sink", "Sink", ("losses",), (8,)),
    )
    edges = frozenset({Edge(TensorId("y"), "losses", 0), Edge(TensorId("losses"), "losses:0/sink", 0)})
    graph = Graph(operators, frozenset(op.name for op in operators), edges)
    plan = _plan(graph, {"losses": ("c",), "y": ("d1",)})

    def scratch(op: Operator, configuration: Configuration) -> tuple[float, float, float]:
        return (0.0, 20.0, 0.0) if op.name == "losses" else (0.0, 0.0, 0.0)

    unknown, known = _peak(graph, plan), peak_memory(graph, rules_of(graph), plan, scratch)
    assert (unknown.operator, known.operator) == ("losses", "losses") and unknown.backward and known.backward
    assert unknown.parts["activations"] == 8 * 4 * 4 / 2
    assert known.parts["activations"] == 20


def test_a_copy_that_is_made_again_is_not_held_in_between() -> None:
    graph = mlp()
    stored = {"w2": ("d0",)}
    both, before = (_peak(graph, _plan(graph, stored, {"w2:0": pick})) for pick in (0, 1))
    assert both.parts["variables"] == before.parts["variables"] == W1 + B1 + W2 / 2
    # Where both products are done, the gathered weight is held, or not: but at the peak both have it.
    assert both.operator == before.operator == "y" and both.memory_bytes == before.memory_bytes
    stored = {"w1": ("d0",), "w2": ("d0",)}
    kept = _peak(graph, _plan(graph, stored))
    assert kept.parts["moved"] == W2  # of the first product only its weight's gradient is wanted


def test_every_output_of_an_op_that_passes_tensors_on_is_its_input() -> None:
    size = 8 * 4 * 4
    spec = TensorSpec((8, 4), "float32")
    operators = (
        operator("x", "Placeholder", (), (8, 4)),
        operator("a", "Tanh", ("x",), (8, 4)),
        operator("z", "Placeholder", (), (8, 4)),
        operator("b", "Tanh", ("z",), (8, 4)),
        Operator("both", "IdentityN", (TensorId("a"), TensorId("b")), (spec, spec)),
        Operator("y", "Mul", (TensorId("both", 0), TensorId("both", 1)), (spec,)),
        operator("y:0/sink", "Sink", ("y",), (8, 4)),
    )
    graph = Graph(operators, frozenset(op.name for op in operators))
    peak = _peak(graph, _plan(graph, {}))
    assert peak.parts == {"inputs": 2 * size, "activations": 2 * size}


def test_a_gradient_that_waits_for_what_an_earlier_one_is_used_for_is_followed_once() -> None:
    """As in a step that trains several times: each following again would follow all that comes later, again."""
    graph = trained_mlp()
    first = graph["gradients/w1"]
    more = (
        operator("later", "Neg", ("gradients/w1",), (6, 12)),
        dataclasses.replace(first, name="gradients_1/w1", control_inputs=(*first.control_inputs, "later")),
        operator("used", "Neg", ("gradients_1/w1",), (6, 12)),
    )
    graph = Graph((*graph.operators, *more), graph.training | {op.name for op in more}, graph.differentiable)
    followed: list[str] = []

    def scratch(op: Operator, configuration: Configuration) -> tuple[float, float, float]:
        followed.append(op.name)
        return 0.0, 0.0, 0.0

    peak_memory(graph, rules_of(graph), _plan(graph, {}), scratch)
    assert sorted(name for name in followed if name in ("later", "used", "update")) == ["later", "update", "used"]
