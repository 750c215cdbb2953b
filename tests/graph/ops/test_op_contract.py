"""Every declared op, every sample, every mesh, every configuration: the parts together are the unsplit op."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from tensoropt.graph import registry
from tensoropt.graph.lowering import Lowering
from tensoropt.graph.operator import Operator
from tensoropt.graph.rule import OpRule, elementwise
from tensoropt.graph.sample import Sample, floats
from tensoropt.graph.spec import TensorSpec
from tensoropt.layout import Mesh
from tensoropt.plan.configuration import configurations
from tests.effort import EVERY_CASE, THOROUGH, some
from tests.op_harness import MESHES, SampleGraph, check_sample, lowered_types, samples_of

pytestmark = pytest.mark.tf

# Op types of which no axis can be split, and why.
UNSPLITTABLE: dict[str, str] = {
    "StatelessRandomGetAlg": "one number",
    "StatelessRandomGetKeyCounter": "three numbers from a seed",
    "StatelessRandomGetKeyCounterAlg": "four numbers from a seed",
}

# A mesh of one axis is a part of these; three are for CI.
_TRIED = MESHES if EVERY_CASE else (Mesh((2, 2)), Mesh((2, 3)))
_MANY = 6 if EVERY_CASE else 2  # of more samples of an op a third are tried


@pytest.mark.parametrize("op_type", lowered_types())
def test_parts_of_op_are_the_unsplit_op(op_type: str) -> None:
    samples: Sequence[Sample] = samples_of(op_type)
    if len(samples) > _MANY:
        samples = some(samples, 3)
    reports = [check_sample(sample, _TRIED) for sample in samples]
    failures = [failure for report in reports for failure in report.failures]
    assert not failures, "\n".join([f"{len(failures)} failures", *failures[:8]])
    for sample, report in zip(samples, reports, strict=True):
        assert report.splits or not report.splittable, f"{sample}: no mesh divides its sizes; the sample checks nothing"
    splits = sum(report.splits for report in reports)
    assert (splits == 0) == (op_type in UNSPLITTABLE), f"{op_type}: {splits} splits; keep UNSPLITTABLE up to date"


def test_all_configurations_are_checked_but_on_three_axes_a_spread_of_them() -> None:
    some, other = (SampleGraph(sample) for sample in samples_of("Einsum")[:2])
    for mesh in MESHES[:-1]:
        assert some.configurations(mesh) == configurations(some.rule, mesh)
    every, chosen = configurations(some.rule, MESHES[-1]), some.configurations(MESHES[-1])
    assert chosen == some.configurations(MESHES[-1]) and set(chosen) <= set(every)
    assert len(chosen) == len(every) if THOROUGH else 4 < len(chosen) < len(every)
    assert len(other.configurations(MESHES[-1])) > 4


# ------------------------------------------------------------------------------------- the check itself must fail


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., None]]:
    """Puts another declaration in the place of Softmax's."""

    def put(rule: Callable[..., OpRule], lower: Callable[..., Any]) -> None:
        entry = replace(registry.declaration("Softmax"), rule=rule, lower=lower)
        monkeypatch.setitem(registry._REGISTRY, "Softmax", entry)

    yield put


SOFTMAX = Sample("Softmax", (floats(4, 6),))


def _internal(op: Operator, inputs: Sequence[TensorSpec]) -> OpRule:
    return replace(elementwise(inputs, op.outputs), internal=frozenset(("d1",)))


def _as_is(ctx: Lowering, *inputs: Any) -> list[Any]:
    return ctx.emit(inputs)


def _with_sum(gradient: str) -> Callable[..., Any]:
    def lower(ctx: Lowering, x: Any) -> Any:
        exponentials = ctx.tf.exp(x)
        total = ctx.tf.reduce_sum(exponentials, -1, keepdims=True)
        return exponentials / ctx.all_reduce(total, "d1", gradient=gradient)

    return lower


def test_check_finds_an_op_that_needs_all_of_an_axis(declare: Callable[..., None]) -> None:
    declare(_internal, _as_is)
    failures = check_sample(SOFTMAX, [Mesh((2,))]).failures
    assert [f for f in failures if "configuration d1: output 0" in f and "largest difference" in f]
    assert not [f for f in failures if "configuration d0" in f]


def test_check_finds_a_share_of_a_gradient_that_is_not_summed(declare: Callable[..., None]) -> None:
    declare(_internal, _with_sum("complete"))
    failures = check_sample(SOFTMAX, [Mesh((2,))]).failures
    assert failures and all("configuration d1: gradient of input 0" in failure for failure in failures)


def test_check_passes_the_same_op_with_its_sums(declare: Callable[..., None]) -> None:
    declare(_internal, _with_sum("partial"))
    assert not check_sample(SOFTMAX).failures


def test_check_finds_communication_that_the_rule_does_not_declare(declare: Callable[..., None]) -> None:
    declare(lambda op, inputs: elementwise(inputs, op.outputs), _with_sum("partial"))
    with pytest.raises(RuntimeError, match="the op splits no axis over which it communicates"):
        check_sample(SOFTMAX, [Mesh((2,))])


def test_check_finds_ranks_that_communicate_differently(declare: Callable[..., None]) -> None:
    def lower(ctx: Lowering, x: Any) -> Any:
        return x if ctx.offset("d1") else _with_sum("partial")(ctx, x)

    declare(_internal, lower)
    with pytest.raises(RuntimeError, match="others ended without it"):
        check_sample(SOFTMAX, [Mesh((2,))])


def test_check_finds_a_gradient_that_is_cut(declare: Callable[..., None]) -> None:
    declare(
        lambda op, inputs: replace(elementwise(inputs, op.outputs), split=("d0",)),
        lambda ctx, x: ctx.tf.stop_gradient(ctx.tf.nn.softmax(x)),
    )
    failures = check_sample(SOFTMAX, [Mesh((2,))]).failures
    assert failures and all("gradient of input 0" in f and "none on ranks" in f for f in failures)
