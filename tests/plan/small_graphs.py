"""Small logical graphs made by hand, without TensorFlow."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.operator import Operator
from tensoropt.graph.spec import TensorId, TensorSpec

__all__ = [
    "assigning",
    "convolutions",
    "deep",
    "embedding",
    "mlp",
    "operator",
    "remembering",
    "tied",
    "towers",
    "trained",
    "trained_mlp",
    "two_lookups",
]


def operator(
    name: str,
    op_type: str,
    inputs: tuple[str, ...],
    shape: tuple[int, ...],
    attrs: Mapping[str, Any] | None = None,
    dtype: str = "float32",
    **more: Any,
) -> Operator:
    """An operator with one output."""
    return Operator(
        name,
        op_type,
        tuple(TensorId(i) for i in inputs),
        (TensorSpec(shape, dtype),),
        MappingProxyType(dict(attrs or {})),
        **more,
    )


_PLAIN = {"transpose_a": False, "transpose_b": False}


def _graph(operators: list[Operator], not_differentiable: tuple[str, ...]) -> Graph:
    names = frozenset(op.name for op in operators)
    edges = frozenset(
        Edge(tensor, op.name, position)
        for op in operators
        for position, tensor in enumerate(op.inputs)
        if tensor.op not in not_differentiable
    )
    return Graph(tuple(operators), names, edges)


def mlp(batch: int = 8, width: int = 12, classes: int = 4, dtype: str = "float32") -> Graph:
    """Two dense layers with a bias each, and the mean of the squares."""
    op = functools.partial(operator, dtype=dtype)
    return _graph(
        [
            op("x", "Placeholder", (), (batch, 6)),
            op("w1", "Variable", (), (6, width)),
            op("h", "MatMul", ("x", "w1"), (batch, width), _PLAIN),
            op("b1", "Variable", (), (width,)),
            op("hb", "BiasAdd", ("h", "b1"), (batch, width), {"data_format": "NHWC"}),
            op("a", "Relu", ("hb",), (batch, width)),
            op("w2", "Variable", (), (width, classes)),
            op("y", "MatMul", ("a", "w2"), (batch, classes), _PLAIN),
            op("s", "Square", ("y",), (batch, classes)),
            op("flat", "Reshape", ("s",), (batch * classes,), static={1: (batch * classes,)}),
            op("loss", "Mean", ("flat",), (), {"keep_dims": False}, static={1: 0}),
            op("loss:0/sink", "Sink", ("loss",), ()),
        ],
        ("x",),
    )


def trained_mlp() -> Graph:
    """:func:`mlp` whose first weight is updated by its gradient, with a slot."""
    graph = mlp()
    loss, weight, size = "loss:0/sink", TensorId("w1"), graph["w1"].outputs
    more = (
        operator("w1/m", "Variable", (), (6, 12)),
        operator("rate", "Const", (), (), {"value": 0.1}),
        operator("momentum", "Const", (), (), {"value": 0.9}),
        Operator(
            "gradients/w1",
            "Gradient",
            (weight,),
            size,
            MappingProxyType({"call": 0, "losses": (loss,), "stopped": ()}),
            control_inputs=(loss,),
            handles=(0,),
        ),
        Operator(
            "update",
            "ResourceApplyMomentum",
            tuple(TensorId(name) for name in ("w1", "w1/m", "rate", "gradients/w1", "momentum")),
            (),
            handles=(0, 1),
        ),
    )
    return Graph((*graph.operators, *more), graph.training | {op.name for op in more}, graph.differentiable)


# By how many slots they have; and how many numbers they take beside these.
_UPDATES = {0: ("ResourceApplyGradientDescent", 1), 1: ("ResourceApplyMomentum", 2), 2: ("ResourceApplyAdam", 6)}


def trained(graph: Graph, variable: str, slots: int = 0) -> Graph:
    """A graph with one more update: of a variable, by an optimizer with so many slots of its shape."""
    spec = graph.spec(TensorId(variable))
    op_type, numbers = _UPDATES[slots]
    kept = [operator(f"{variable}/slot{i}", "Variable", (), spec.shape) for i in range(slots)]
    given = [operator(f"{variable}/number{i}", "Const", (), (), {"value": 0.5}) for i in range(numbers)]
    (loss,) = (op.name for op in graph.of_type("Sink"))
    gradient = operator(
        f"gradients/{variable}",
        "Gradient",
        (variable,),
        spec.shape,
        {"call": 0, "losses": (loss,), "stopped": ()},
        control_inputs=(loss,),
        handles=(0,),
    )
    # A rate comes before the gradient, and momentum after it; which of them are where makes no difference here.
    inputs = (variable, *(op.name for op in (*kept, *given, gradient)))
    update = Operator(
        f"{variable}/update",
        op_type,
        tuple(TensorId(name) for name in inputs),
        (),
        handles=tuple(range(1 + slots)),
    )
    added = (*kept, *given, gradient, update)
    training = graph.training | {op.name for op in added}
    return Graph((*graph.operators, *added), training, graph.differentiable)


def deep(layers: int, batch: int = 8, width: int = 8) -> Graph:
    """A product and a Relu, layer after layer."""
    operators = [operator("x", "Placeholder", (), (batch, width))]
    for i in range(layers):
        operators += [
            operator(f"w{i}", "Variable", (), (width, width)),
            operator(f"h{i}", "MatMul", (operators[-1].name, f"w{i}"), (batch, width), _PLAIN),
            operator(f"a{i}", "Relu", (f"h{i}",), (batch, width)),
        ]
    operators += [
        operator("loss", "Mean", (operators[-1].name,), (), {"keep_dims": False}, static={1: (0, 1)}),
        operator("loss:0/sink", "Sink", ("loss",), ()),
    ]
    return _graph(operators, ("x",))


def towers(layers: int = 3, batch: int = 64, width: int = 32) -> Graph:
    """Two chains of products, of which neither reads the other: their losses alone are added."""
    operators = []
    for tower in "ab":
        operators.append(operator(f"x{tower}", "Placeholder", (), (batch, width)))
        for i in range(layers):
            before = operators[-1].name
            operators += [
                operator(f"w{tower}{i}", "Variable", (), (width, width)),
                operator(f"h{tower}{i}", "MatMul", (before, f"w{tower}{i}"), (batch, width), _PLAIN),
            ]
        last = operators[-1].name
        operators.append(operator(f"l{tower}", "Mean", (last,), (), {"keep_dims": False}, static={1: (0, 1)}))
    operators += [operator("loss", "AddV2", ("la", "lb"), ()), operator("loss:0/sink", "Sink", ("loss",), ())]
    return _graph(operators, ("xa", "xb"))


def convolutions(batch: int = 2, channels: int = 4) -> Graph:
    """Two convolutions of small images, one after the other."""
    shape, filters = (batch, 4, 4, channels), (3, 3, channels, channels)
    attrs = {
        "strides": [1, 1, 1, 1],
        "padding": "SAME",
        "data_format": "NHWC",
        "dilations": [1, 1, 1, 1],
        "explicit_paddings": [],
    }
    return _graph(
        [
            operator("x", "Placeholder", (), shape),
            operator("w1", "Variable", (), filters),
            operator("h", "Conv2D", ("x", "w1"), shape, attrs),
            operator("w2", "Variable", (), filters),
            operator("y", "Conv2D", ("h", "w2"), shape, attrs),
            operator("loss", "Mean", ("y",), (), {"keep_dims": False}, static={1: (0, 1, 2, 3)}),
            operator("loss:0/sink", "Sink", ("loss",), ()),
        ],
        ("x",),
    )


def tied(batch: int = 8, width: int = 4, more: int = 0) -> Graph:
    """One square weight that two products read, or some more, through a fan-out."""
    between = [f"h{i}" for i in range(more)]
    reads = zip(between, ["h", *between], strict=False)
    return _graph(
        [
            operator("x", "Placeholder", (), (batch, width)),
            operator("w", "Variable", (), (width, width)),
            operator("w/fanout0", "Fanout", ("w",), (width, width)),
            operator("h", "MatMul", ("x", "w/fanout0"), (batch, width), _PLAIN),
            *(operator(one, "MatMul", (before, "w/fanout0"), (batch, width), _PLAIN) for one, before in reads),
            operator("y", "MatMul", (["h", *between][-1], "w/fanout0"), (batch, width), _PLAIN),
            operator("loss", "Mean", ("y",), (), {"keep_dims": False}, static={1: (0, 1)}),
            operator("loss:0/sink", "Sink", ("loss",), ()),
        ],
        ("x",),
    )


def assigning() -> Graph:
    """A variable that is set to what a placeholder brings."""
    write = Operator("write", "AssignVariableOp", (TensorId("v"), TensorId("x")), ())
    return Graph(
        (operator("x", "Placeholder", (), (8, 4)), operator("v", "Variable", (), (8, 4)), write),
        frozenset({"x", "v", "write"}),
    )


def remembering(batch: int = 8, width: int = 8) -> Graph:
    """A dense layer, and a variable that is set to the mean of what it makes and read afterwards."""
    shape = (batch, width)
    write = Operator("write", "AssignVariableOp", (TensorId("mean"), TensorId("sums")), (), handles=(0,))
    graph = _graph(
        [
            operator("x", "Placeholder", (), (batch, 4)),
            operator("w", "Variable", (), (4, width)),
            operator("mean", "Variable", (), (width,)),
            operator("h", "MatMul", ("x", "w"), shape, _PLAIN),
            operator("h/fanout0", "Fanout", ("h",), shape),
            operator("sums", "Sum", ("h/fanout0",), (width,), {"keep_dims": False}, static={1: 0}),
            write,
            operator("read", "ReadVariableOp", ("mean",), (width,), control_inputs=("write",), handles=(0,)),
            operator("less", "Sub", ("h/fanout0", "read"), shape),
            operator("s", "Square", ("less",), shape),
            operator("loss", "Mean", ("s",), (), {"keep_dims": False}, static={1: (0, 1)}),
            operator("loss:0/sink", "Sink", ("loss",), ()),
        ],
        ("x", "mean", "read"),
    )
    into = {Edge(TensorId("h/fanout0"), "sums", 0), Edge(TensorId("sums"), "write", 1)}
    return Graph(graph.operators, graph.training, graph.differentiable - into)


def embedding(batch: int = 8, rows: int = 16, width: int = 8) -> Graph:
    """Rows of a table by their numbers, and the mean of their squares."""
    return _graph(
        [
            operator("ids", "Placeholder", (), (batch,), dtype="int32"),
            operator("table", "Variable", (), (rows, width)),
            Operator(
                "rows",
                "GatherV2",
                (TensorId("table"), TensorId("ids")),
                (TensorSpec((batch, width), "float32"),),
                MappingProxyType({"batch_dims": 0}),
                MappingProxyType({2: 0}),
            ),
            operator("s", "Square", ("rows",), (batch, width)),
            operator("loss", "Mean", ("s",), (), {"keep_dims": False}, static={1: (0, 1)}),
            operator("loss:0/sink", "Sink", ("loss",), ()),
        ],
        ("ids",),
    )


def two_lookups(batch: int = 8, rows: int = 16, width: int = 8) -> Graph:
    """One table that two lookups read, through a fan-out."""
    found = [
        Operator(
            name,
            "GatherV2",
            (TensorId("table/fanout0"), TensorId(ids)),
            (TensorSpec((batch, width), "float32"),),
            MappingProxyType({"batch_dims": 0}),
            MappingProxyType({2: 0}),
        )
        for name, ids in (("one", "ids"), ("other", "more"))
    ]
    return _graph(
        [
            operator("ids", "Placeholder", (), (batch,), dtype="int32"),
            operator("more", "Placeholder", (), (batch,), dtype="int32"),
            operator("table", "Variable", (), (rows, width)),
            operator("table/fanout0", "Fanout", ("table",), (rows, width)),
            *found,
            operator("product", "Mul", ("one", "other"), (batch, width)),
            operator("loss", "Mean", ("product",), (), {"keep_dims": False}, static={1: (0, 1)}),
            operator("loss:0/sink", "Sink", ("loss",), ()),
        ],
        ("ids", "more"),
    )
