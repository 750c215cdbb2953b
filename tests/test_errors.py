"""Messages: whole sentences, that suggest what was meant and advise who gave something else."""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tensoropt
from tensoropt import errors
from tensoropt.errors import TensorOptError, did_you_mean

PACKAGE = Path(errors.__file__).parent


def _ours() -> set[str]:
    """The names of all classes of the package that are made of one of ``tensoropt.errors``."""
    found = {name for name in errors.__all__ if name.endswith("Error")}
    bases = {
        node.name: {ast.unparse(base).rpartition(".")[2] for base in node.bases}
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    }
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return found


OURS = _ours()


def _end(text: ast.expr) -> str | None:
    """The last character of a message; None if a value gives it."""
    if isinstance(text, ast.Constant):
        return str(text.value)[-1:]
    if isinstance(text, ast.JoinedStr):
        return _end(text.values[-1])
    return _end(text.right) if isinstance(text, ast.BinOp) else None


def _without_full_stop(source: str) -> list[int]:
    """Lines of all that is raised of ours whose message ends without one."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Raise) and isinstance(node.exc, ast.Call) and node.exc.args:
            end = _end(node.exc.args[0])
            if ast.unparse(node.exc.func).rpartition(".")[2] in OURS and end is not None and end not in ".?":
                found.append(node.lineno)
    return found


@pytest.mark.pure
def test_messages_end_with_a_full_stop() -> None:
    assert {"PlanError", "UnsupportedError", "UsageError"} <= OURS
    wrong = {path.name: _without_full_stop(path.read_text(encoding="utf-8")) for path in sorted(PACKAGE.rglob("*.py"))}
    assert {name: lines for name, lines in wrong.items() if lines} == {}


@pytest.mark.pure
@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ("raise PlanError('is none')", [1]),
        ("\nraise errors.PlanError(f'{a} is ' 'none')", [2]),
        ("raise PlanError(a + ' is none')", [1]),
        ("raise PlanError('is none.')", []),
        ("raise PlanError(f'is none: {reason}')", []),
        ("raise ValueError('is none')", []),
    ],
)
def test_the_check_finds_what_has_none(source: str, lines: list[int]) -> None:
    assert _without_full_stop(source) == lines


@pytest.mark.pure
def test_a_file_that_is_not_there_is_guessed(tmp_path: Path) -> None:
    (tmp_path / "cluster.json").write_text("{}", encoding="utf-8")
    (tmp_path / "notes.txt").write_text("", encoding="utf-8")
    with pytest.raises(
        TensorOptError, match=r"No such file or directory \(there is 'cluster\.json'\)\. Check the path"
    ):
        tensoropt.Topology.load(tmp_path / "clusters.json")
    for path in (tmp_path / "plan.json", tmp_path / "nowhere" / "clusters.json"):
        with pytest.raises(TensorOptError, match=r"No such file or directory\. Check the path"):
            tensoropt.Plan.load(path)


@pytest.mark.pure
def test_what_is_like_nothing_is_not_guessed() -> None:
    assert did_you_mean("megatorn", ["zero1", "megatron"]) == " Did you mean 'megatron'?"
    assert did_you_mean("ZERO", ["zero1", "tofu", "zero2"]) == " Did you mean 'zero2' or 'zero1'?"
    assert did_you_mean("MINI_TIME", ["mini_time"]) == " Did you mean 'mini_time'?"
    assert did_you_mean("H100", ["v100", "h100"]) == " Did you mean 'h100'?"
    assert did_you_mean("tpu", ["cpu"]) == ""
    assert did_you_mean("something else", ["zero1"]) == did_you_mean(3, ["zero1"]) == ""


def _build() -> Any:
    tensoropt.reset_default_graph()
    x = tensoropt.placeholder(tensoropt.float32, [16, 4])
    loss = tensoropt.reduce_mean(tensoropt.matmul(x, tensoropt.get_variable("w", [4, 4])))
    tensoropt.GradientDescentOptimizer().minimize(loss)
    return loss


def _engine() -> None:
    from tensoropt.exec.engines.select import check_collectives

    check_collectives("mpi4p")


def _baseline() -> None:
    from tensoropt.baselines import apply_baseline

    nothing: Any = None
    apply_baseline("megatorn", nothing)


MISSPELT: dict[str, Callable[[], Any]] = {
    "mini_time": lambda: tensoropt.find_strategy("mini_tim", topology="p100"),
    "megatron": lambda: tensoropt.find_strategy(search="megatorn", topology="p100"),
    "h100": lambda: tensoropt.find_strategy(topology="H100s"),
    "global": lambda: tensoropt.find_strategy(topology="p100", feed="globel"),
    "analytic": lambda: tensoropt.find_strategy(topology="p100", costs="analytical"),
    "mcmc": lambda: tensoropt.compare(topology="p100", methods=["mcm"]),
    "zero3": lambda: tensoropt.compare(topology="p100", methods=["zero3"]).plan("zero_3"),
    "additive": lambda: tensoropt.Mcmc(cost="aditive"),
    "turning_point": lambda: _choose("turnpoint"),
    "mpi4py": _engine,
    "megatron ": _baseline,
    "memory_bytes": lambda: tensoropt.keras.plan(_model(), "p100", batch_size=8, memory_byte=1),  # type: ignore
    "mini_memory": lambda: tensoropt.keras.parallelize(_model(), "mini_memry"),
    "pase": lambda: tensoropt.keras.parallelize(_model(), search="pas"),
    "measured": lambda: tensoropt.function(abs).plan(costs="measure"),
    "horovod": lambda: tensoropt.function(abs).plan(collectives="horovd"),
    "random": lambda: tensoropt.Mcmc(initial=("randm",)),
    "search": lambda: tensoropt.keras.parallelize(_model(), serch="pase"),  # type: ignore[call-arg]
    "batch_size": lambda: tensoropt.function(abs).plan(batchsize=8),  # type: ignore[call-arg]
}


def _choose(option: str) -> Any:
    from tensoropt.search.options import choose

    return choose(tensoropt.find_frontier("p100"), option)


def _model() -> Any:
    import keras

    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(4)], name="net")
    model.compile("sgd", "mse")
    return model


@pytest.mark.tf
@pytest.mark.parametrize("name", MISSPELT)
def test_misspelt_names_are_guessed(name: str) -> None:
    _build()
    with pytest.raises(TensorOptError, match=rf"Did you mean .*'{name.strip()}'.*\?"):
        MISSPELT[name]()


@pytest.mark.tf
def test_who_gives_something_else_than_a_model_or_a_step_is_advised() -> None:
    import keras

    def make() -> Any:
        return _model()

    given: dict[str, Any] = {
        r"got a lambda\. If it makes the model, call it, compile": lambda: _model(),
        r"got the function 'make'\. If it makes the model, .*use tensoropt\.function\.": make,
        r"got the class 'Sequential'\. Make a model of it, 'Sequential\(…\)', compile it": keras.Sequential,
        r"got 'model\.keras'\. If that is the file of a model, give keras\.saving\.load_model": "model.keras",
        r"got a list of 1\. Give each model by itself": [_model()],
        r"got None\. A function that makes the model has to return it": None,
        r"takes a model of Keras 3 whose backend is TensorFlow, got int": 3,
    }
    for message, value in given.items():
        for call in (tensoropt.keras.parallelize, tensoropt.keras.plan, tensoropt.keras.frontier):
            with pytest.raises(TensorOptError, match=f"^{call.__name__}: (takes a .*)?{message}"):
                call(value)
    with pytest.raises(
        TensorOptError, match=r"verify: the model 'net' has no plan yet\. Call tensoropt\.keras\.parall"
    ):
        tensoropt.keras.verify(_model())
    with pytest.raises(AttributeError, match=r"has no attribute 'paralelize'\. Did you mean 'parallelize'"):
        tensoropt.keras.paralelize  # noqa: B018
    steps: dict[str, Any] = {"int 64": 64, "the class 'Sequential'": keras.Sequential}
    for said, step in steps.items():
        with pytest.raises(
            TensorOptError, match=rf"the step of a loop, .* got {said}\. Write @tensoropt\.function above"
        ):
            tensoropt.function(step)
    assert tensoropt.function(lambda x: x) is not None
