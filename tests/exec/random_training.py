"""Random training of random models: what is made of gradients, by which optimizers, and in which runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

import tensoropt as to

__all__ = ["Turn", "random_turns"]

# A gradient and its variable.
_Pair = tuple[Any, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """One run of a training: the operation that is run, and the names of the losses that it goes by."""

    op: str
    losses: tuple[str, ...]


class Maker(Protocol):
    """The model under construction."""

    dtype: str
    random: np.random.Generator
    weights: list[Any]
    pool: list[Any]

    def pick(self, options: Any) -> Any:
        """One of several."""
        ...

    def chance(self, probability: float) -> bool:
        """True so often."""
        ...

    def loss(self) -> Any:
        """A scalar of tensors of the pool."""
        ...


def random_turns(maker: Maker) -> tuple[Turn, Turn, Turn]:
    """Losses for a model, and what trains it in each of three runs."""
    loss = maker.loss()
    kind = maker.random.random()
    with to.control_dependencies(to.get_collection(to.GraphKeys.UPDATE_OPS)):
        if kind < 0.3:
            train = _finished(maker, _minimized(maker, loss))
            return (Turn(train, (loss.name,)),) * 3
        if kind < 0.6:
            pairs = _processed(maker, _gradients(maker, loss), loss)
            train = _finished(maker, _applied(maker, pairs))
            return (Turn(train, (loss.name,)),) * 3
        if kind < 0.8:
            return _accumulated(maker, loss)
        return _of_two_losses(maker, loss, maker.loss())


def _minimized(maker: Maker, loss: Any) -> Any:
    step, optimizer = _optimizer(maker)
    return optimizer.minimize(loss, global_step=step)


def _applied(maker: Maker, pairs: Sequence[_Pair]) -> Any:
    step, optimizer = _optimizer(maker)
    return optimizer.apply_gradients(pairs, global_step=step)


def _finished(maker: Maker, train: Any) -> str:
    """The name of a step, after which moving averages may follow."""
    if maker.chance(0.25):
        average = to.train.ExponentialMovingAverage(0.9)
        with to.control_dependencies([train]):
            train = average.apply(maker.weights[:3])
            if maker.chance(0.5):
                with to.control_dependencies([train]):
                    train = to.group(maker.weights[0].assign(average.average(maker.weights[0])))
    return str(train.name)


def _accumulated(maker: Maker, loss: Any) -> tuple[Turn, Turn, Turn]:
    """Gradients are added up over two runs, the second of which applies their mean and empties the sums."""
    pairs = [(g, v) for g, v in _processed(maker, _gradients(maker, loss), loss) if g is not None]
    sums = [
        to.get_variable(f"sum{i}", v.shape, v.dtype, to.zeros_initializer(), trainable=False)
        for i, (_, v) in enumerate(pairs)
    ]
    by_rows = maker.chance(0.5)
    added = to.group(*(_add(total, gradient, by_rows) for total, (gradient, _) in zip(sums, pairs, strict=True)))
    with to.control_dependencies([added]):
        means = [total.read_value() / 2.0 for total in sums]
    if maker.chance(0.5):
        means, _ = to.clip_by_global_norm(means, 1.0)
    applied = _applied(maker, [(mean, v) for mean, (_, v) in zip(means, pairs, strict=True)])
    with to.control_dependencies([applied]):
        emptied = to.group(*(total.assign(to.zeros_like(total)) for total in sums))
    first, second = Turn(added.name, (loss.name,)), Turn(_finished(maker, emptied), (loss.name,))
    return first, second, first


def _add(total: Any, gradient: Any, by_rows: bool) -> Any:
    if isinstance(gradient, to.IndexedSlices) and by_rows:
        return total.scatter_add(gradient)
    return total.assign_add(to.convert_to_tensor(gradient))


def _of_two_losses(maker: Maker, one: Any, other: Any) -> tuple[Turn, Turn, Turn]:
    """Two optimizers, in one run or in turns, of variables that they may share."""
    variables = to.trainable_variables()
    middle = len(variables) // 2
    shares = maker.pick([(variables, variables), (variables[: middle + 1], variables[middle:])])
    losses = (one, other)
    pairs = [_gradients(maker, loss, share) for loss, share in zip(losses, shares, strict=True)]
    kept = [(each, loss) for each, loss in zip(pairs, losses, strict=True) if any(g is not None for g, _ in each)]
    pairs = [_processed(maker, each, loss) if maker.chance(0.5) else each for each, loss in kept]
    losses = tuple(loss for _, loss in kept)
    if maker.chance(0.5) or len(kept) < 2:
        found = [
            Turn(_finished(maker, _applied(maker, each)), (loss.name,))
            for each, (_, loss) in zip(pairs, kept, strict=True)
        ]
        return found[0], found[-1], found[0]
    # Both gradients are of the variables as they were.
    used = [to.convert_to_tensor(g) for each in pairs for g, _ in each if g is not None]
    trained: list[Any] = list(losses) + used
    for each in pairs:
        with to.control_dependencies(trained):
            trained.append(_applied(maker, [(None if g is None else _waiting(g), v) for g, v in each]))
    together = Turn(_finished(maker, to.group(*trained[-2:])), tuple(loss.name for loss in losses))
    return together, together, together


def _waiting(gradient: Any) -> Any:
    if isinstance(gradient, to.IndexedSlices):
        return to.IndexedSlices(to.identity(gradient.values), gradient.indices, gradient.dense_shape)
    return to.identity(gradient)


def _gradients(maker: Maker, loss: Any, variables: Sequence[Any] | None = None) -> list[_Pair]:
    """Gradients of a loss, by an optimizer's own call or by ``gradients``, perhaps of the loss times 64."""
    variables = list(to.trainable_variables() if variables is None else variables)
    kind = maker.random.random()
    if kind < 0.4:
        return list(to.train.GradientDescentOptimizer(0.1).compute_gradients(loss, variables))
    if kind < 0.6:
        found = to.gradients(loss * 64.0, variables)
        return [(None if g is None else _scaled(g, 1 / 64.0), v) for g, v in zip(found, variables, strict=True)]
    if kind < 0.8:  # of a tensor of the forward pass, too, whose size then scales the others
        *found, of_tensor = to.gradients(loss, [*variables, maker.pool[0]])
        factor = 1.0 if of_tensor is None else 1.0 / (1.0 + to.nn.l2_loss(to.convert_to_tensor(of_tensor)))
        return [(None if g is None else _scaled(g, factor), v) for g, v in zip(found, variables, strict=True)]
    weights = to.constant(maker.pick([0.5, 2.0]), to.as_dtype(maker.dtype))
    return list(zip(to.gradients([loss], variables, grad_ys=[weights]), variables, strict=True))


def _scaled(gradient: Any, factor: Any) -> Any:
    if isinstance(gradient, to.IndexedSlices):
        return to.IndexedSlices(gradient.values * factor, gradient.indices, gradient.dense_shape)
    return gradient * factor


def _processed(maker: Maker, pairs: Sequence[_Pair], loss: Any) -> list[_Pair]:
    """One to three things that scripts do to gradients."""
    there = [(g, v) for g, v in pairs if g is not None]
    for _ in range(maker.pick([1, 1, 2, 3])):
        there = maker.pick(_PROCESSES)(maker, there, loss)
    return there + [(g, v) for g, v in pairs if g is None]


def _clip_by_global_norm(maker: Maker, pairs: list[_Pair], loss: Any) -> list[_Pair]:
    clipped, norm = to.clip_by_global_norm([g for g, _ in pairs], maker.pick([0.05, 1.0]))
    if maker.chance(0.3) and not any(v.op.name == "norm" for v in to.global_variables()):
        seen = to.get_variable("norm", [], norm.dtype, to.zeros_initializer(), trainable=False)
        with to.control_dependencies([seen.assign(norm)]):
            clipped = [_waiting(g) for g in clipped]
    return [(g, v) for g, (_, v) in zip(clipped, pairs, strict=True)]


def _clip_by_value(maker: Maker, pairs: list[_Pair], loss: Any) -> list[_Pair]:
    bound = maker.pick([0.01, 0.2])
    return [(to.clip_by_value(g, -bound, bound), v) for g, v in pairs]


def _clip_by_norm(maker: Maker, pairs: list[_Pair], loss: Any) -> list[_Pair]:
    bound = maker.pick([0.05, 0.5])
    return [(to.clip_by_norm(g, bound), v) for g, v in pairs]


def _scale(maker: Maker, pairs: list[_Pair], loss: Any) -> list[_Pair]:
    factor = maker.pick([lambda: 0.5, lambda: to.sigmoid(loss), lambda: 1.0 / float(len(pairs))])()
    return [(_scaled(g, factor), v) for g, v in pairs]


def _decay(maker: Maker, pairs: list[_Pair], loss: Any) -> list[_Pair]:
    return [(to.convert_to_tensor(g) + 0.02 * v, v) for g, v in pairs]


def _noise(maker: Maker, pairs: list[_Pair], loss: Any) -> list[_Pair]:
    draw = to.random.normal
    with to.control_dependencies(None):  # what waits for a tensor of one run draws in no other
        noise = [draw(v.shape, dtype=v.dtype.base_dtype, seed=i + 7) for i, (_, v) in enumerate(pairs)]
    return [(to.convert_to_tensor(g) + 0.01 * each, v) for each, (g, v) in zip(noise, pairs, strict=True)]


def _layerwise(maker: Maker, pairs: list[_Pair], loss: Any) -> list[_Pair]:
    """As in LARS: a gradient is as long as its variable."""
    dense = [(to.convert_to_tensor(g), v) for g, v in pairs]
    return [(g * (to.norm(v) / (to.norm(g) + to.norm(v) + 0.1)), v) for g, v in dense]


def _centred(maker: Maker, pairs: list[_Pair], loss: Any) -> list[_Pair]:
    dense = [(to.convert_to_tensor(g), v) for g, v in pairs]
    return [(g - to.reduce_mean(g, axis=0, keepdims=True) if g.shape.rank else g, v) for g, v in dense]


def _finite(maker: Maker, pairs: list[_Pair], loss: Any) -> list[_Pair]:
    dense = [(to.convert_to_tensor(g), v) for g, v in pairs]
    return [(to.where(to.is_finite(g), g, to.zeros_like(g)), v) for g, v in dense]


_PROCESSES = (
    _clip_by_global_norm, _clip_by_global_norm, _clip_by_value, _clip_by_norm, _scale, _decay, _noise, _layerwise,
    _centred, _finite,
)  # fmt: skip


def _optimizer(maker: Maker) -> tuple[Any, Any]:
    """A global step or None, and an optimizer."""
    rate: Any = float(maker.pick([0.01, 0.05]))
    train = to.train
    step = train.get_or_create_global_step() if maker.chance(0.2) else None
    if step is not None:
        rate = train.exponential_decay(rate, step, 1, 0.9)
    makers: list[Callable[[], Any]] = [
        lambda: train.GradientDescentOptimizer(rate),
        lambda: train.MomentumOptimizer(rate, 0.9, use_nesterov=maker.chance(0.5)),
        lambda: train.AdagradOptimizer(rate),
        lambda: train.AdamOptimizer(rate),
        lambda: train.RMSPropOptimizer(rate, momentum=0.5, centered=maker.chance(0.5), epsilon=1e-3),
        lambda: train.AdadeltaOptimizer(rate, epsilon=1e-2),
        lambda: train.FtrlOptimizer(rate, l1_regularization_strength=maker.pick([0.0, 1e-3])),
        lambda: train.AdagradDAOptimizer(rate, train.get_or_create_global_step(), l2_regularization_strength=1e-3),
        lambda: _own_optimizer()(rate),
    ]
    if maker.dtype == "float32":  # TensorFlow's own take no other
        makers += [
            lambda: train.ProximalAdagradOptimizer(rate, l2_regularization_strength=1e-3),
            lambda: train.ProximalGradientDescentOptimizer(rate, l1_regularization_strength=1e-3),
        ]
    made = maker.pick(makers)()
    return step if not isinstance(made, train.AdagradDAOptimizer) else train.get_or_create_global_step(), made


def _own_optimizer() -> type:
    """An optimizer as scripts write them: Adam with decaying weights, of assignments."""

    class AdamWeightDecay(to.train.Optimizer):
        def __init__(self, rate: Any) -> None:
            super().__init__(False, "AdamWeightDecay")
            self._rate = rate

        def apply_gradients(self, grads_and_vars: Any, global_step: Any = None, name: Any = None) -> Any:
            assignments = []
            for gradient, parameter in grads_and_vars:
                if gradient is None:
                    continue
                dense, key = to.convert_to_tensor(gradient), parameter.op.name
                m, v = (
                    to.get_variable(
                        f"{key}/{self._name}/{kind}{len(to.global_variables())}",
                        parameter.shape,
                        parameter.dtype.base_dtype,
                        to.zeros_initializer(),
                        trainable=False,
                    )
                    for kind in ("m", "v")
                )
                next_m = 0.9 * m + 0.1 * dense
                next_v = 0.99 * v + 0.01 * to.square(dense)
                update = next_m / (to.sqrt(next_v) + 1e-3) + 0.01 * parameter
                change = to.cast(self._rate, dense.dtype) * update
                assignments += [parameter.assign(parameter - change), m.assign(next_m), v.assign(next_v)]
            if global_step is not None:
                with to.control_dependencies(assignments):  # which read the step, perhaps, for their rate
                    assignments.append(global_step.assign_add(1))
            return to.group(*assignments, name=name)

    return AdamWeightDecay
