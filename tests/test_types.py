"""What type checkers and completion know of the package's names, without a run."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensoropt.api.mirror.namespaces import OWN

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parent.parent
# Made of TensorFlow's own classes when they are asked for.
MADE_OF_TENSORFLOWS = "tensoropt.api.mirror.train"
# A user's; what a type checker says of a line stands behind it.
SCRIPT = """
import tensoropt
import tensoropt.keras

x = tensoropt.placeholder(tensoropt.float32, [64, 784], anything=1)
reveal_type(x)  # says: Revealed type is "Any"
reveal_type(tensoropt.nn.relu(x))  # says: Revealed type is "Any"

tensoropt.init(refesh=True)  # says: Unexpected keyword argument "refesh" for "init"
plan = tensoropt.find_strategy("mini_memory", memory_bytes=8e9)
reveal_type(plan)  # says: Revealed type is "tensoropt.plan.plan.Plan"
reveal_type(plan.time_s)  # says: Revealed type is "float"
tensoropt.find_strategy(memory_byte=8e9)  # says: Unexpected keyword argument "memory_byte"
reveal_type(tensoropt.find_strategy("profiling"))  # says: ParallelismProfile
plan.tims_s  # says: "Plan" has no attribute "tims_s"
tensoropt.build_execution_graph(plans=plan)  # says: Unexpected keyword argument "plans"
tensoropt.run(x, feeddict={})  # says: Unexpected keyword argument "feeddict" for "run"
tensoropt.verify(plan, step=3)  # says: Unexpected keyword argument "step" for "verify"
tensoropt.compare(overlaps=True)  # says: Unexpected keyword argument "overlaps" for "compare"
tensoropt.show_strategy(1.5)  # says: Argument 1 to "show_strategy" has incompatible type "float"
reveal_type(tensoropt.find_frontier("h100").turning_point())  # says: FrontierPoint
reveal_type(tensoropt.cluster.preset("h100", hosts=2))  # says: Topology
tensoropt.cluster.preset("h100", host=2)  # says: Unexpected keyword argument "host" for "preset"
tensoropt.Mcmc(second=1)  # says: Unexpected keyword argument "second" for "Mcmc"


def load(path: str) -> tensoropt.Plan:
    return tensoropt.Plan.load(path)


@tensoropt.function
def step(a: int) -> int:
    return a


@tensoropt.function(shard=False)
def other(a: int) -> int:
    return a


reveal_type(step)  # says: Function
reveal_type(other)  # says: Function
reveal_type(step.plan("mini_time", batch_size=8))  # says: Plan | None
step.plan(memory_byte=8e9)  # says: Unexpected keyword argument "memory_byte" for "plan"
tensoropt.function(step, shards=True)  # says: No overload variant of "function" matches

model = tensoropt.keras.parallelize(object(), "mini_time", memory_bytes=8e9, collectives="mpi")
tensoropt.keras.parallelize(model, memory_byte=8e9)  # says: Unexpected keyword argument "memory_byte"
reveal_type(tensoropt.keras.plan(model, "h100", batch_size=8))  # says: Plan
tensoropt.keras.plan(model, batchsize=8)  # says: No overload variant of "plan" matches
tensoropt.keras.frontier(model, cost="analytic")  # says: Unexpected keyword argument "cost" for "frontier"
with tensoropt.keras.scope():
    pass
"""


def _declared() -> dict[str, tuple[str, str]]:
    """The names that the package imports for type checkers, with where from."""
    tree = ast.parse((ROOT / "tensoropt" / "__init__.py").read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING")
    found = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        for alias in node.names:
            assert alias.asname == alias.name.rpartition(".")[2] or alias.asname, "only this form is for users, too"
            found[str(alias.asname)] = (str(node.module), alias.name)
    return found


def test_type_checkers_are_told_of_our_names_where_they_are_found_at_run_time() -> None:
    own = {name: place for name, place in OWN.items() if "." not in name and place[0] != MADE_OF_TENSORFLOWS}
    packages = {name: ("tensoropt", name) for name in ("cluster", "errors", "keras")}
    assert _declared() == own | packages


@pytest.mark.slow
def test_a_users_script_is_checked(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT, encoding="utf-8")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--follow-imports=silent", "--no-error-summary", script.name],
        cwd=tmp_path,
        env={**os.environ, "MYPYPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    said: dict[int, str] = {}
    for line, text in re.findall(r"^script\.py:(\d+): \w+: (.*)$", checked.stdout, re.M):
        said[int(line)] = f"{said.get(int(line), '')} {text}".strip()
    wanted = dict(enumerate((text.partition("# says: ")[2] for text in SCRIPT.splitlines()), 1))
    assert {line for line, text in wanted.items() if text} == set(said), checked.stdout + checked.stderr
    assert [said[line] for line, text in wanted.items() if text and text not in said[line]] == []


def test_names_are_listed_without_tensorflow_and_are_those_that_it_has() -> None:
    code = (
        "import sys, tensoropt\n"
        "paths = ('', 'nn', 'train', 'contrib.rnn', 'math')\n"
        "spaces = [tensoropt, tensoropt.nn, tensoropt.train, tensoropt.contrib.rnn, tensoropt.math]\n"
        "before = [dir(space) for space in spaces]\n"
        "assert dir(tensoropt.contrib) and tensoropt.contrib is tensoropt.compat.v1.contrib\n"
        "tensoropt.Plan, tensoropt.Frontier, tensoropt.Topology, tensoropt.Mcmc\n"
        "assert not {'tensorflow', 'keras', 'mpi4py'} & set(sys.modules)\n"
        "tensoropt.matmul\n"
        "assert 'tensorflow' in sys.modules\n"
        "assert before == [dir(space) for space in spaces]\n"
        "assert {'find_strategy', 'matmul', 'keras', 'nn', 'Plan'} <= set(before[0])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
