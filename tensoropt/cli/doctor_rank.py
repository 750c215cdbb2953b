"""The work of each rank of the doctor's job: trying all that a job needs, and reporting it in one line of JSON.

Each import is part of a trial: a module that cannot be imported is a finding.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Sequence
from importlib import metadata
from typing import Any

from tensoropt.cli.answers import answer_of_rank

__all__ = ["main"]

_SMALL_BYTES, _LARGE_BYTES = 2**10, 2**22
_CALLS, _TIMES = 8, 5


def main() -> None:
    """Prints what all ranks found, on rank 0: on each, where ranks do not know of one another."""
    world: Any = None
    found: dict[str, Any] = {"host": os.uname().nodename, "python": platform.python_version()}

    def tries(name: str, what: Callable[[], Any]) -> Any:
        try:
            found[name] = what()
        except Exception as error:  # whatever it is, it is what was to be found out
            found.setdefault("failed", {})[name] = f"{type(error).__name__}: {error}"
        return found.get(name)

    tries("tensorflow", _tensorflow)
    if "tensorflow" not in found.get("failed", {}):
        tries("compiler", _compiler)
    tries("mpi4py", lambda: metadata.version("mpi4py"))
    mpi = tries("mpi", _mpi)
    if mpi is not None:
        from tensoropt.exec.engines.launch import start_mpi

        world = start_mpi()
        if world.size > 1 and all(world.allgather("tensorflow" in found)):
            _try_engines(world, tries)
    ranks = [found] if world is None else world.allgather(found)
    if world is None or world.rank == 0:
        answer_of_rank(ranks)


def _tensorflow() -> dict[str, Any]:
    from tensoropt.api.mirror.tensorflow_loading import load_tensorflow

    began_s = time.monotonic()
    load_tensorflow()
    import tensorflow as tf

    return {
        "version": tf.__version__,
        "import_s": time.monotonic() - began_s,
        "with_cuda": bool(tf.test.is_built_with_cuda()),
        "gpus": [device.name for device in tf.config.list_physical_devices("GPU")],
    }


def _compiler() -> str:
    from tensoropt.exec.engines.mpi_library import find_compiler

    return find_compiler()


def _mpi() -> dict[str, Any]:
    from tensoropt.exec.engines.launch import mpi_version, start_mpi

    world = start_mpi()
    return {"library": mpi_version().splitlines()[0], "rank": world.rank, "size": world.size}


def _try_engines(world: Any, tries: Callable[[str, Callable[[], Any]], Any]) -> None:
    """Collective."""
    from tensoropt.exec.engines.select import ENGINES, engine_name

    mesh = (world.size,)
    for name, make in ENGINES.items():
        tries(f"engine {name}", lambda make=make: _sum(make(mesh), world.rank))  # type: ignore[misc]
    chosen = tries("chosen", engine_name)
    if all(world.allgather(chosen is not None and tries("all_reduce", lambda: _seconds(world, mesh, chosen)))):
        return


def _sum(engine: Any, rank: int) -> bool:
    """Checks a sum over ranks; True if it is right."""
    import tensorflow as tf

    try:
        graph = tf.Graph()
        with graph.as_default(), tf.device(engine.device), engine.program():
            total = engine.all_reduce(tf.fill([1000], float(rank + 1)), [0])
            with tf.compat.v1.Session(graph=graph) as session:
                values = session.run(total)
    finally:
        engine.close()
    wanted = engine.size * (engine.size + 1) / 2
    if not (values == wanted).all():
        raise ValueError(f"an all_reduce must give {wanted}, and gave {values[0]}")
    return True


def _seconds(world: Any, mesh: Sequence[int], name: str) -> dict[str, float]:
    """Measures an all_reduce over all ranks, by its bytes: the median over measurements, of the slowest rank."""
    from tensoropt.exec.engines.select import ENGINES
    from tensoropt.measure.collective_seconds import EngineMeasurement
    from tensoropt.measure.machine import Machine

    measuring = EngineMeasurement(ENGINES[name](mesh), crowded=Machine.of(world).crowding > 1)
    try:
        found = {}
        for size_bytes in (_SMALL_BYTES, _LARGE_BYTES):
            times = sorted(measuring("all_reduce", (0,), size_bytes, _CALLS) for _ in range(_TIMES))
            found[str(size_bytes)] = max(world.allgather(times[_TIMES // 2]))
        return found
    finally:
        measuring.close()


if __name__ == "__main__":
    main()
