"""The registry of collectives engines, and the choice of one."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable, Sequence

import tensorflow as tf

from tensoropt.errors import EngineError, did_you_mean
from tensoropt.exec.engines.base import CollectiveEngine
from tensoropt.exec.engines.horovod_engine import HorovodEngine
from tensoropt.exec.engines.launch import agree, start_mpi
from tensoropt.exec.engines.mpi4py_engine import Mpi4pyEngine
from tensoropt.exec.engines.mpi_engine import MpiEngine
from tensoropt.exec.engines.mpi_library import find_compiler
from tensoropt.exec.engines.settings import setting

__all__ = ["ENGINES", "check_collectives", "check_engine_name", "engine_name", "make_engine"]

_log = logging.getLogger("tensoropt")

ENGINES: dict[str, Callable[[Sequence[int]], CollectiveEngine]] = {
    engine.name: engine for engine in (MpiEngine, Mpi4pyEngine, HorovodEngine)
}
"""Every engine by its name."""

_AUTO = "auto"
_VARIABLE = "TENSOROPT_COLLECTIVES"


def check_engine_name(name: str, source: str = "collectives") -> str:
    """Return ``name``.

    Args:
        name: ``"auto"`` or the name of an engine.
        source: Where the name comes from, for the message.

    Raises:
        EngineError: There is no such engine.
    """
    known = [_AUTO, *ENGINES]
    if name not in known:
        raise EngineError(
            f"{source}: the collectives engine must be one of {', '.join(map(repr, known))}. Got {name!r}."
            f"{did_you_mean(name, known)} Leave it at 'auto' to have one chosen."
        )
    return name


def check_collectives(name: str) -> str:
    """Return the name of the engine to use: ``name``, or what the environment variable TENSOROPT_COLLECTIVES says.

    Raises:
        EngineError: There is no such engine.
    """
    chosen = setting(_VARIABLE)
    return check_engine_name(chosen, _VARIABLE) if chosen else check_engine_name(name)


def engine_name(name: str = _AUTO) -> str:
    """The engine that :func:`make_engine` would try first; collective.

    Raises:
        EngineError: The engine is unknown, or MPI is missing.
    """
    name = check_collectives(name)
    return _agreed_choice(start_mpi().allgather(_local_choice()))[0] if name == _AUTO else name


def make_engine(name: str = _AUTO, mesh_shape: Sequence[int] | None = None) -> CollectiveEngine:
    """Start MPI and make the engine of collectives for all ranks; collective.

    Args:
        name: ``"mpi"``, ``"mpi4py"``, ``"horovod"``, or ``"auto"``: Horovod where it is installed and GPUs
            are visible, else the MPI op if all ranks have a compiler, else mpi4py. The environment variable
            TENSOROPT_COLLECTIVES has the last word.
        mesh_shape: Sizes of the axes of the factor mesh; by default one axis of all ranks.

    Raises:
        EngineError: The engine is unknown or cannot be used here, MPI is missing, or the mesh has another
            size than the world.
        CollectiveError: Ranks were asked for different engines or meshes.
    """
    reason = f"{_VARIABLE} says so" if setting(_VARIABLE) else "it was asked for"
    name = check_collectives(name)
    world = start_mpi()
    mesh_shape = (world.size,) if mesh_shape is None else tuple(mesh_shape)
    agree(world, "collectives engine and mesh", f"{name} {mesh_shape}")
    automatic = name == _AUTO
    if automatic:
        name, reason = _agreed_choice(world.allgather(_local_choice()))
    try:
        engine = ENGINES[name](mesh_shape)
    except EngineError as error:
        if not automatic or name == Mpi4pyEngine.name:
            raise
        # The same on all ranks, since engines fail on all ranks or on none.
        if world.rank == 0:
            _log.warning("collectives: the engine '%s' cannot be used: %s", name, error)
        engine, reason = Mpi4pyEngine(mesh_shape), f"'{name}' cannot be used"
    if world.rank == 0:
        _log.debug(
            "collectives: engine '%s' on %d ranks, mesh %s, because %s",
            engine.name,
            world.size,
            mesh_shape,
            reason,
        )
    return engine


def _local_choice() -> tuple[str, str]:
    """Return the engine that suits this process, and why."""
    if importlib.util.find_spec("horovod") is not None and tf.config.list_physical_devices("GPU"):
        return HorovodEngine.name, "GPUs are visible and Horovod is installed"
    try:
        compiler = find_compiler()
    except EngineError as error:
        return Mpi4pyEngine.name, f"there is no compiler: {error}"
    return MpiEngine.name, f"there is a compiler, {compiler}"


def _agreed_choice(choices: Sequence[tuple[str, str]]) -> tuple[str, str]:
    """Return the least demanding of the ranks' choices, and the reason of the first rank that made it."""
    for name in (Mpi4pyEngine.name, MpiEngine.name, HorovodEngine.name):
        for rank, (choice, reason) in enumerate(choices):
            if choice == name:
                alike = all(other == name for other, _ in choices)
                return name, reason if alike else f"on rank {rank} {reason}"
    raise EngineError("No rank chose an engine of collectives. Got an empty world.")
