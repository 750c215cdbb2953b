"""What ``import tensoropt`` does: next to nothing."""

from __future__ import annotations

import subprocess
import sys

import pytest


def _run(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)


@pytest.mark.pure
@pytest.mark.parametrize(
    "statement",
    [
        "import tensoropt",
        "import tensoropt.nn as nn; assert nn.__name__ == 'tensoropt.nn'",
        "import tensoropt.layers, tensoropt.train, tensoropt.random",
        "from tensoropt import errors, graph, layout",
        "import tensoropt; assert tensoropt.errors.LayoutError",
        "import tensoropt; assert not hasattr(tensoropt, '__wrapped__')",
        "import tensoropt.api.mirror.model, tensoropt.api.mirror.lookup",
    ],
)
def test_import_loads_no_tensorflow_no_mpi_and_leaves_the_environment(statement: str) -> None:
    done = _run(
        "import os, sys\n"
        "before = dict(os.environ)\n"
        f"{statement}\n"
        "assert dict(os.environ) == before\n"
        "print(sorted({'tensorflow', 'mpi4py', 'horovod', 'keras'} & sys.modules.keys()))"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


@pytest.mark.tf
def test_process_that_stays_in_the_private_graph_ends_quietly() -> None:
    done = _run(
        "import tensoropt\n"
        "x = tensoropt.placeholder(tensoropt.float32, [2])\n"
        "print((x + 1).shape, tensoropt.get_default_graph() is x.graph)"
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "(2,) True"
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr
