"""Every kind of misuse on every rank, one after another in one job; prints what each rank got as one line of JSON.

The last rank only misbehaves in the cases whose name starts with "one rank". Each case must end with an error on all
ranks, and leave a job that still works.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import tensoropt
from tensoropt.errors import TensorOptError

# Cases are registered, and so run, in this order: the first ones need a job that has not built a graph yet.
from tests.scripts import misuse_planning, misuse_running, misuse_single_rank  # noqa: F401
from tests.scripts.misuse import CASES, Classifier, built, forget


def main() -> None:
    """Runs all cases."""
    got: dict[str, list[str]] = {}
    Classifier()
    got["planning before init"] = attempt(tensoropt.find_strategy)
    comm = None
    for name, function in CASES.items():
        if comm is None:
            tensoropt.init()
            from mpi4py import MPI

            comm = MPI.COMM_WORLD.Dup()
        got[name] = attempt(function)
        if not any(part in name for part in ("feed", "fetch", "training step made", "one rank")):
            forget()
        comm.Barrier()
    forget()
    model = built()
    losses = [float(tensoropt.run([model.loss, model.train], model.feeds())[0]) for _ in range(3)]
    got["afterwards"] = ["", f"{losses}"]
    ranks = comm.gather(got) if comm is not None else [got]
    if ranks:
        print("RESULT", json.dumps(ranks), flush=True)


def attempt(function: Callable[[], Any]) -> list[str]:
    """The class and the message of the error that a misuse ends with."""
    import tensorflow as tf

    try:
        function()
    except (TensorOptError, ZeroDivisionError, tf.errors.OpError) as error:
        return [type(error).__name__, str(error)]
    return ["", "no error"]


if __name__ == "__main__":
    main()
