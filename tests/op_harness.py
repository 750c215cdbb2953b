"""Checks an op's declaration against TensorFlow: the op's local parts together must be the unsplit op.

For a sample and a configuration, every rank's local part is built from the rank's pieces of the inputs. Outputs and
gradients must then be in the states that the configuration says: a shard equals the slice of the whole, partial
sums add up to it, a replicated tensor equals it everywhere. All parts live in one graph and run in one session;
where an op communicates inside, ranks are threads that build in turns and meet at each collective, which becomes
plain TensorFlow ops between their parts (:mod:`tests.lockstep`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_library, op_def_registry

from tensoropt.api.frontend.reader import import_operators
from tensoropt.api.session.difference import Expected, difference, tolerance_of
from tensoropt.exec.program.lowering import OpLowering, lower_operator
from tensoropt.graph.operator import Operator
from tensoropt.graph.registry import declaration, registered_types, rule_of
from tensoropt.graph.rule import OpRule
from tensoropt.graph.sample import Operand, Sample
from tensoropt.layout import Layout, Mesh
from tensoropt.plan.configuration import Configuration, configurations
from tests.effort import THOROUGH
from tests.lockstep import Lockstep

__all__ = [
    "MESHES",
    "Part",
    "Report",
    "SampleGraph",
    "check_graph",
    "check_sample",
    "draw",
    "lowered_types",
    "samples_of",
]

MESHES = (Mesh((2,)), Mesh((3,)), Mesh((2, 2)), Mesh((2, 3)), Mesh((2, 2, 2)))
# On three axes there are most configurations, each with most parts, and little that two axes do not have: sets of axes
# that are not next to one another. By default so many of them are checked, other ones for each sample.
_ON_THREE_AXES = 5


def lowered_types() -> tuple[str, ...]:
    """All op types that the contract test is about."""
    return tuple(op_type for op_type in registered_types() if declaration(op_type).lower is not None)


def samples_of(op_type: str) -> tuple[Sample, ...]:
    """The samples of one op type."""
    return tuple(sample for sample in declaration(op_type).samples if sample.type == op_type)


@dataclass(frozen=True, slots=True)
class Part:
    """What one rank computes under one configuration: tensors, or their values; None where there is none."""

    mesh: Mesh
    configuration: Configuration
    rank: int
    outputs: tuple[Any, ...]
    gradients: tuple[Any, ...]


@dataclass(slots=True)
class Report:
    """What a check found.

    Attributes:
        configurations: how many were checked.
        splits: how many of them split something.
        splittable: the axes that the rule would let split.
        failures: what is wrong.
    """

    configurations: int = 0
    splits: int = 0
    splittable: tuple[str, ...] = ()
    failures: list[str] = field(default_factory=list)


class SampleGraph:
    """A sample's op in a graph of its own, beside the local parts that are added.

    Attributes:
        wanted: positions of the inputs that get a gradient.
    """

    def __init__(self, sample: Sample) -> None:
        self.sample = sample
        self._random = np.random.default_rng(zlib.crc32(repr((sample.type, len(sample.operands))).encode()))
        self._feeds: dict[Any, np.ndarray] = {}
        self._variables: dict[str, np.ndarray] = {}
        self._initial: list[Any] = []
        self.graph = tf.Graph()
        self.graph.switch_to_thread_local()
        with self.graph.as_default():
            outputs = self._build()
            imported = {op.name: op for op in import_operators(self.graph, [outputs[0].op])}
            operator = self._imported(imported[outputs[0].op.name])
            self.op = operator
            tensors = [self.graph.get_tensor_by_name(str(tensor)) for tensor in operator.inputs]
            self.inputs = [self._value(tensor) for tensor in tensors]
            self.input_specs = [imported[tensor.op].outputs[tensor.index] for tensor in operator.inputs]
            self.rule: OpRule = rule_of(operator, self.input_specs)
            # An output that the lowering leaves out is read by TensorFlow's own gradient only.
            alone = self._context(Mesh(()), Configuration(()), 0, None)
            made = lower_operator(alone, [tf.constant(value) for value in self.inputs])
            present = [tensor is not None for tensor in made]
            self.incoming = [
                self._random.uniform(-1, 1, spec.shape).astype(tf.as_dtype(spec.dtype).as_numpy_dtype)
                if here and spec.is_differentiable
                else None
                for here, spec in zip(present, operator.outputs, strict=True)
            ]
            self._whole = (list(outputs), self._whole_gradients(outputs, tensors))

    # ------------------------------------------------------------------------------------------------ the whole op

    def _imported(self, op: Operator) -> Operator:
        """The op as passes leave it."""
        return op

    def _build(self) -> Sequence[Any]:
        """The unsplit op, its operands placeholders but for the static ones."""
        if self.sample.type == "Const":
            return [tf.constant(self.sample.attrs["value"], dtype=self.sample.attrs["dtype"])]
        definition = op_def_registry.get(self.sample.type)
        if definition is None:
            raise LookupError(f"TensorFlow has no op {self.sample.type}.")
        arguments = {}
        for position, (argument, operand) in enumerate(zip(definition.input_arg, self.sample.operands, strict=True)):
            if isinstance(operand, list) and operand and isinstance(operand[0], Operand):
                arguments[argument.name] = [self._operand(one, 7 * i) for i, one in enumerate(operand)]
            elif argument.type == tf.resource.as_datatype_enum:
                arguments[argument.name] = self._variable(operand, position)
            else:
                arguments[argument.name] = self._operand(operand, position)
        defaults = {
            attr.name: _attr_value(attr.default_value)
            for attr in definition.attr
            if attr.HasField("default_value") and attr.name not in self._inferred(definition)
        }
        op_def_library.apply_op(self.sample.type, name="sample", **arguments, **(defaults | dict(self.sample.attrs)))
        return list(self.graph.get_operation_by_name("sample").outputs)

    @staticmethod
    def _inferred(definition: Any) -> set[str]:
        """Attributes that follow from the operands."""
        arguments = definition.input_arg
        return {name for x in arguments for name in (x.type_attr, x.number_attr, x.type_list_attr) if name}

    def _operand(self, operand: Any, position: int) -> Any:
        if not isinstance(operand, Operand):
            return operand
        tensor = tf.compat.v1.placeholder(operand.dtype, operand.shape)
        self._feeds[tensor] = draw(operand, position, self._random)
        return tensor

    def _variable(self, operand: Operand, position: int) -> Any:
        """The handle of a variable, for ops that read one."""
        handle = tf.raw_ops.VarHandleOp(dtype=operand.dtype, shape=operand.shape)
        self._variables[handle.name] = draw(operand, position, self._random)
        value = tf.constant(self._variables[handle.name])
        self._initial.append(tf.raw_ops.AssignVariableOp(resource=handle, value=value))
        return handle

    def _value(self, tensor: Any) -> np.ndarray:
        if tensor.name in self._variables:
            return self._variables[tensor.name]
        for placeholder, value in self._feeds.items():
            if placeholder is tensor:
                return value
        value = tf.get_static_value(tensor)
        if value is None:
            raise ValueError(f"{self.sample}: input {tensor.name} is neither an operand nor a constant.")
        return np.asarray(value)

    def _whole_gradients(self, outputs: Sequence[Any], tensors: Sequence[Any]) -> tuple[Any, ...] | None:
        pairs = [(y, g) for y, g in zip(outputs, self.incoming, strict=True) if g is not None]
        self.wanted = tuple(i for i, spec in enumerate(self.input_specs) if spec.is_differentiable and pairs)
        if not self.wanted:
            return None
        try:
            made = tf.gradients([y for y, _ in pairs], [tensors[i] for i in self.wanted], [g for _, g in pairs])
        except LookupError:  # TensorFlow has no gradient for it
            return None
        return tuple(_dense(g, self.input_specs[i].shape) for g, i in zip(made, self.wanted, strict=True))

    # ---------------------------------------------------------------------------------------------------- its parts

    def _context(self, mesh: Mesh, configuration: Configuration, rank: int, engine: Any) -> OpLowering:
        stand_in: Any = _Silent(rank) if engine is None else engine
        return OpLowering(self.op, self.rule, self.input_specs, configuration, mesh, stand_in)

    def _input_slices(self, mesh: Mesh, configuration: Configuration, rank: int) -> list[np.ndarray]:
        layouts = [configuration.input_layouts(self.rule, i).value for i in range(len(self.inputs))]
        return [x[layout.slices(x.shape, mesh, rank)] for x, layout in zip(self.inputs, layouts, strict=True)]

    def _incoming_slices(self, mesh: Mesh, configuration: Configuration, rank: int) -> list[np.ndarray | None]:
        layouts = [configuration.output_layouts(self.rule, i).gradient for i in range(len(self.incoming))]
        return [
            None if x is None else x[layout.slices(x.shape, mesh, rank)]
            for x, layout in zip(self.incoming, layouts, strict=True)
        ]

    def _local(self, mesh: Mesh, configuration: Configuration, rank: int) -> _Local:
        """A local part without communication, fed with any rank's pieces unless it depends on the rank."""
        engine = _Silent(rank)
        values = self._input_slices(mesh, configuration, rank)
        inputs = [tf.compat.v1.placeholder(value.dtype, value.shape) for value in values]
        outputs = lower_operator(self._context(mesh, configuration, rank, engine), inputs)
        incoming = [
            None if value is None else tf.compat.v1.placeholder(value.dtype, value.shape)
            for value in self._incoming_slices(mesh, configuration, rank)
        ]
        return _Local(engine, inputs, outputs, incoming)

    def _add_gradients(self, made: Sequence[_Local]) -> None:
        """Adds the gradients of local inputs, of all local parts at once."""
        if self._whole[1] is None or not made:
            return
        pairs = [pair for x in made for pair in zip(x.outputs, x.incoming, strict=True) if pair[1] is not None]
        xs = [local.inputs[index] for local in made for index in self.wanted]
        gradients = tf.gradients([y for y, _ in pairs], xs, [g for _, g in pairs])
        flat = iter([_dense(gradient, x.shape.as_list()) for gradient, x in zip(gradients, xs, strict=True)])
        for local in made:
            local.gradients = [next(flat) for _ in self.wanted]

    def configurations(self, mesh: Mesh) -> Sequence[Configuration]:
        """Those that are checked: all, or on three axes a spread of them, which is the same in each run."""
        every = configurations(self.rule, mesh)
        if THOROUGH or len(mesh.shape) < 3 or len(every) <= _ON_THREE_AXES:
            return every
        seed = zlib.crc32(repr(self.sample).encode())
        return [every[i] for i in sorted(np.random.default_rng(seed).permutation(len(every))[:_ON_THREE_AXES])]

    def quiet(self, meshes: Sequence[Mesh]) -> list[tuple[Any, _Local, Part]]:
        """The local parts under all configurations without communication, each with the mesh, rank and so on.

        A lowering sees only how each axis is split and which piece is its own, so parts that are alike in that are
        one, and unless it asks for the piece, one graph serves all pieces.
        """
        places: dict[tuple[tuple[int, int], ...], tuple[Mesh, Configuration, int]] = {}
        listed = []
        for mesh in meshes:
            for configuration in self.configurations(mesh):
                if set(configuration.actions) & self.rule.communicates_over:
                    continue
                for rank in _distinct(mesh, configuration):
                    axes = [configuration.mesh_axes(axis) for axis in self.rule.split]
                    key = tuple((mesh.extent(group), mesh.group_index(rank, group)) for group in axes)
                    places.setdefault(key, (mesh, configuration, rank))
                    listed.append((key, Part(mesh, configuration, rank, (), ())))
        with self.graph.as_default():
            shapes: dict[tuple[int, ...], tuple[Any, _Local]] = {}
            for key, place in places.items():
                shape = tuple(pieces for pieces, _ in key)
                if shape not in shapes:
                    shapes[shape] = key, self._local(*place)
            self._add_gradients([local for _, local in shapes.values()])
            locals_: dict[tuple[tuple[int, int], ...], _Local] = {}
            for key, place in places.items():
                first, local = shapes[tuple(pieces for pieces, _ in key)]
                locals_[key] = self._local(*place) if local.engine.asked and key != first else local
            self._add_gradients([local for local in locals_.values() if local.gradients is None])
        return [(key, locals_[key], part) for key, part in listed]

    def talking(self, meshes: Sequence[Mesh]) -> list[Part]:
        """The local parts under all configurations in which they communicate.

        Ranks that differ along replicating mesh axes only are copies of one another, so each configuration is
        built on the mesh of its other axes, once for all meshes: see :meth:`spread`.
        """
        result = []
        chosen: dict[Mesh, list[Configuration]] = {}
        for _, _, mesh, configuration in self._talking(meshes):
            if configuration not in chosen.setdefault(mesh, []):
                chosen[mesh].append(configuration)
        for mesh, wanted in chosen.items():

            def build(engine: Any, mesh: Mesh = mesh, wanted: Sequence[Configuration] = wanted) -> list[Part]:
                with self.graph.as_default():
                    return [self.part(mesh, configuration, engine) for configuration in wanted]

            for parts in Lockstep(mesh).run(build):
                result += parts
        return result

    def spread(self, parts: Sequence[Part], meshes: Sequence[Mesh]) -> list[Part]:
        """The values of :meth:`talking`'s parts, on the ranks of the whole meshes."""
        known = {(part.mesh, part.configuration, part.rank): part for part in parts}
        result = []
        for mesh, configuration, inner, its_configuration in self._talking(meshes):
            split = [axis for axis, action in enumerate(configuration.actions) if action is not None]
            for rank in _distinct(mesh, configuration):
                part = known[inner, its_configuration, mesh.group_index(rank, split)]
                result.append(replace(part, mesh=mesh, configuration=configuration, rank=rank))
        return result

    def _talking(self, meshes: Sequence[Mesh]) -> Iterator[tuple[Mesh, Configuration, Mesh, Configuration]]:
        """Each mesh and configuration, and both without the replicating axes."""
        for mesh in meshes:
            for configuration in self.configurations(mesh):
                if set(configuration.actions) & self.rule.communicates_over:
                    pairs = zip(mesh.shape, configuration.actions, strict=True)
                    extents, actions = zip(*((x, action) for x, action in pairs if action is not None), strict=True)
                    yield mesh, configuration, Mesh(extents), Configuration(actions)

    def part(self, mesh: Mesh, configuration: Configuration, engine: Any) -> Part:
        """The local part of the engine's rank, which may communicate."""
        inputs = [tf.constant(value) for value in self._input_slices(mesh, configuration, engine.rank)]
        outputs = lower_operator(self._context(mesh, configuration, engine.rank, engine), inputs)
        incoming = self._incoming_slices(mesh, configuration, engine.rank)
        gradients: tuple[Any, ...] = ()
        if self._whole[1] is not None:
            pairs = [(y, tf.constant(g)) for y, g in zip(outputs, incoming, strict=True) if g is not None]
            xs = [inputs[index] for index in self.wanted]
            made = tf.gradients([y for y, _ in pairs], xs, [g for _, g in pairs])
            gradients = tuple(_dense(g, x.shape.as_list()) for g, x in zip(made, xs, strict=True))
        return Part(mesh, configuration, engine.rank, tuple(outputs), gradients)

    # --------------------------------------------------------------------------------------------------- comparison

    def run(self, parts: Sequence[Part], quiet: Sequence[tuple[Any, _Local, Part]] = ()) -> tuple[Part, list[Part]]:
        """The values of the whole op and of its parts."""
        config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)
        config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
        config.graph_options.rewrite_options.disable_meta_optimizer = True
        whole = Part(Mesh(()), Configuration(()), 0, tuple(self._whole[0]), self._whole[1] or ())
        keyed = {key: (local, part) for key, local, part in quiet}
        # A run serves one piece of every local part: each new set of fetches costs a pass over the whole graph.
        waves: list[list[Any]] = []
        served: dict[int, int] = {}
        for key, (local, _) in keyed.items():
            number = served[id(local)] = served.get(id(local), -1) + 1
            if number == len(waves):
                waves.append([])
            waves[number].append(key)
        known: dict[Any, Part] = {}
        with tf.compat.v1.Session(graph=self.graph, config=config) as session:
            session.run(self._initial)
            values = iter(session.run(_present((whole, *parts)), self._feeds))
            whole, *made = [_filled(part, values) for part in (whole, *parts)]
            for wave in waves:
                feeds: dict[Any, Any] = {}
                tensors = []
                for local, part in (keyed[key] for key in wave):
                    pieces = self._input_slices(part.mesh, part.configuration, part.rank)
                    incoming = self._incoming_slices(part.mesh, part.configuration, part.rank)
                    pairs = zip((*local.inputs, *local.incoming), (*pieces, *incoming), strict=True)
                    feeds |= {x.ref(): value for x, value in pairs if x is not None}
                    gradients = tuple(local.gradients or ())
                    tensors.append(replace(part, outputs=tuple(local.outputs), gradients=gradients))
                values = iter(session.run(_present(tensors), {x.deref(): value for x, value in feeds.items()}))
                known |= {key: _filled(part, values) for key, part in zip(wave, tensors, strict=True)}
        result = [replace(part, outputs=known[key].outputs, gradients=known[key].gradients) for key, _, part in quiet]
        return whole, result + made

    def failures(self, whole: Part, parts: Sequence[Part]) -> Iterator[str]:
        """What is wrong with ``parts``, which are values and complete for each of their configurations."""
        groups: dict[tuple[Mesh, Configuration], dict[int, Part]] = {}
        for part in parts:
            groups.setdefault((part.mesh, part.configuration), {})[part.rank] = part
        for (mesh, configuration), ranks in groups.items():
            checks = []
            for index, expected in enumerate(whole.outputs):
                layout = configuration.output_layouts(self.rule, index).value
                checks.append((f"output {index}", layout, expected, {r: p.outputs[index] for r, p in ranks.items()}))
            for place, expected in enumerate(whole.gradients):
                index = self.wanted[place]
                layout = configuration.input_layouts(self.rule, index).gradient
                found = {r: p.gradients[place] for r, p in ranks.items()}
                checks.append((f"gradient of input {index}", layout, expected, found))
            for what, layout, expected, found in checks:
                problem = _compare(mesh, configuration, layout, expected, found, what.startswith("output"))
                if problem:
                    yield (
                        f"{self.sample.type} {self.sample.operands} {dict(self.sample.attrs)}, {mesh}, "
                        f"configuration {configuration}: {what} (layout {layout}): {problem}"
                    )


def check_sample(sample: Sample, meshes: Sequence[Mesh] = MESHES) -> Report:
    """Compares a sample with TensorFlow on every mesh, under every legal configuration or a spread of them."""
    return check_graph(SampleGraph(sample), meshes)


def check_graph(built: SampleGraph, meshes: Sequence[Mesh] = MESHES) -> Report:
    """Compares an operator with TensorFlow on every mesh, under every legal configuration or a spread of them."""
    report = Report(splittable=built.rule.split)
    for mesh in meshes:
        chosen = built.configurations(mesh)
        report.configurations += len(chosen)
        report.splits += sum(any(action is not None for action in c.actions) for c in chosen)
    quiet = built.quiet(meshes)
    talking = built.talking(meshes)
    whole, values = built.run(talking, quiet)
    made = values[: len(quiet)] + built.spread(values[len(quiet) :], meshes)
    report.failures += built.failures(whole, made)
    return report


@dataclass(slots=True)
class _Local:
    """The tensors of a local part: inputs and incoming gradients are fed."""

    engine: _Silent
    inputs: list[Any]
    outputs: list[Any]
    incoming: list[Any]
    gradients: list[Any] | None = None


def _present(parts: Sequence[Part]) -> list[Any]:
    return [x for part in parts for x in (*part.outputs, *part.gradients) if x is not None]


def _filled(part: Part, values: Iterator[Any]) -> Part:
    outputs = tuple(None if x is None else next(values) for x in part.outputs)
    return replace(part, outputs=outputs, gradients=tuple(None if x is None else next(values) for x in part.gradients))


def draw(operand: Operand, position: int, random: np.random.Generator) -> np.ndarray:
    """Values without ties, and none near 0 by chance: evenly spaced points in random order."""
    dtype = tf.as_dtype(operand.dtype)
    if dtype.is_floating or dtype.is_complex:
        count = int(np.prod(operand.shape, dtype=np.int64))
        places = (random.permutation(count) + 0.37 + 0.13 * (position % 5)) / max(count, 1)
        values = operand.low + (operand.high - operand.low) * places
        if dtype.is_complex:
            return (values + 1j * random.permutation(values)).reshape(operand.shape).astype(dtype.as_numpy_dtype)
        return values.reshape(operand.shape).astype(dtype.as_numpy_dtype)
    return random.integers(int(operand.low), int(operand.high), operand.shape).astype(dtype.as_numpy_dtype)


def _attr_value(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind == "list":
        return next((list(items) for _, items in value.list.ListFields()), [])
    return getattr(value, kind)


def _dense(gradient: Any, shape: Sequence[int]) -> Any:
    if isinstance(gradient, tf.IndexedSlices):
        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, shape[0])
    return gradient


def _representative(mesh: Mesh, configuration: Configuration, rank: int) -> int:
    """The rank that computes the same because it differs only along mesh axes that replicate the op."""
    pairs = zip(mesh.coordinates(rank), configuration.actions, strict=True)
    return mesh.rank([0 if action is None else place for place, action in pairs])


def _distinct(mesh: Mesh, configuration: Configuration) -> list[int]:
    return [rank for rank in range(mesh.size) if _representative(mesh, configuration, rank) == rank]


def _compare(
    mesh: Mesh,
    configuration: Configuration,
    layout: Layout,
    expected: Any,
    found: Mapping[int, Any],
    may_lack: bool,
) -> str | None:
    """What is wrong with a tensor, given the values that ranks hold."""
    missing = [rank for rank, value in found.items() if value is None]
    if expected is None:
        wrong = [rank for rank, value in found.items() if value is not None and np.any(value)]
        return f"TensorFlow has none, ranks {wrong} have one" if wrong else None
    if missing:
        return None if may_lack and len(missing) == len(found) else f"none on ranks {missing}"
    exact = expected.dtype.kind in "biu"
    wide = expected.dtype if exact else np.complex128 if expected.dtype.kind == "c" else np.float64
    tolerance = tolerance_of([tf.as_dtype(expected.dtype).name])
    # What operators read in a sample is of the order of 1.
    whole = Expected.of(expected, tolerance.noise)
    for rank in sorted(found):
        members = mesh.group_members(rank, layout.partial)
        terms = [found[_pick(found, mesh, configuration, member)].astype(wide) for member in members]
        total = terms[0] if len(terms) == 1 else np.sum(terms, axis=0).astype(wide)
        piece = whole.part(layout.slices(expected.shape, mesh, rank))
        if total.shape != piece.value.shape:
            return f"shape {total.shape} on rank {rank}, expected {piece.value.shape}"
        apart = difference(total, piece, tolerance)
        if not apart <= tolerance.relative:
            return f"largest difference {apart:.3g} on rank {rank} (relative), tolerated {tolerance.relative:.3g}"
    return None


def _pick(found: Mapping[int, Any], mesh: Mesh, configuration: Configuration, rank: int) -> int:
    return rank if rank in found else _representative(mesh, configuration, rank)


class _Silent:
    """Stands for the engine of an op that must not communicate; knows whether it was asked for the rank."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self.asked = False

    @property
    def rank(self) -> int:
        """The rank whose part is built."""
        self.asked = True
        return self._rank

    def all_reduce(self, tensor: Any, axes: Sequence[int], *, op: str = "sum") -> Any:
        """Refuses."""
        raise RuntimeError(f"all_reduce of {tensor} over {axes}, but the op splits no axis over which it communicates.")
