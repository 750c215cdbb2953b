"""The choice of an engine, by argument, environment and what is there."""

from __future__ import annotations

import logging
import sys
import types
from collections.abc import Sequence
from typing import Any

import pytest
import tensorflow as tf

from tensoropt.errors import CollectiveError, EngineError
from tensoropt.exec.engines import horovod_engine, select
from tensoropt.exec.engines.horovod_engine import HorovodEngine
from tensoropt.exec.engines.select import ENGINES, make_engine

pytestmark = pytest.mark.tf


class World:
    """A world of two ranks; the other one answers as this one does, unless told otherwise."""

    rank, size = 0, 2

    def __init__(self) -> None:
        self.other: Any = None

    def allgather(self, value: Any) -> list[Any]:
        # A choice is a pair; anything else is the digest of an agreement.
        return [value, self.other if self.other and isinstance(value, tuple) else value]


class Engine:
    """Stands for an engine: remembers its mesh."""

    def __init__(self, name: str, mesh_shape: Sequence[int]) -> None:
        self.name, self.mesh_shape = name, mesh_shape


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> World:
    made = World()
    monkeypatch.delenv("TENSOROPT_COLLECTIVES", raising=False)
    monkeypatch.setattr(select, "start_mpi", lambda: made)
    monkeypatch.setattr(select, "find_compiler", lambda: "/bin/mpicxx")
    for name in list(ENGINES):
        monkeypatch.setitem(ENGINES, name, lambda mesh, name=name: Engine(name, mesh))
    caplog.set_level(logging.DEBUG, "tensoropt")
    return made


def no_compiler() -> str:
    raise EngineError("no mpicxx")


def test_registry_has_the_three_engines() -> None:
    assert sorted(ENGINES) == ["horovod", "mpi", "mpi4py"]


@pytest.mark.parametrize("name", ["mpi", "mpi4py", "horovod"])
def test_asked_engine_is_made_and_logged(name: str, world: World, caplog: pytest.LogCaptureFixture) -> None:
    engine = make_engine(name, (1, 2))
    assert (engine.name, engine.mesh_shape) == (name, (1, 2))
    assert caplog.messages == [f"collectives: engine '{name}' on 2 ranks, mesh (1, 2), because it was asked for"]


def test_default_mesh_is_one_axis(world: World) -> None:
    assert make_engine("mpi").mesh_shape == (2,)


def test_auto_takes_mpi_where_there_is_a_compiler(world: World, caplog: pytest.LogCaptureFixture) -> None:
    assert make_engine("auto", (2,)).name == "mpi"
    assert caplog.messages[0].endswith("because there is a compiler, /bin/mpicxx")


def test_auto_takes_mpi4py_without_a_compiler(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(select, "find_compiler", no_compiler)
    assert make_engine("auto", (2,)).name == "mpi4py"
    assert caplog.messages[0].endswith("because there is no compiler: no mpicxx")


def test_auto_takes_mpi4py_if_one_rank_has_no_compiler(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.other = ("mpi4py", "there is no compiler: no mpicxx")
    assert make_engine("auto", (2,)).name == "mpi4py"
    assert caplog.messages[0].endswith("because on rank 1 there is no compiler: no mpicxx")


def test_auto_takes_horovod_with_gpus(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(select.importlib.util, "find_spec", lambda name: object())
    monkeypatch.setattr(select.tf.config, "list_physical_devices", lambda kind: [kind])
    assert make_engine("auto", (2,)).name == "horovod"
    world.other = ("mpi", "there is a compiler")
    assert make_engine("auto", (2,)).name == "mpi"


def test_auto_falls_back_where_the_ops_do_not_compile(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(mesh_shape: Sequence[int]) -> Any:
        raise EngineError("does not compile")

    monkeypatch.setitem(ENGINES, "mpi", broken)
    monkeypatch.setattr(select, "Mpi4pyEngine", Fallback)
    assert make_engine("auto", (2,)).name == "mpi4py"
    assert "the engine 'mpi' cannot be used: does not compile" in caplog.messages[0]
    with pytest.raises(EngineError, match="does not compile"):
        make_engine("mpi", (2,))


class Fallback(Engine):
    """Stands for the engine ``mpi4py``, where it is made by its class."""

    name = "mpi4py"

    def __init__(self, mesh_shape: Sequence[int]) -> None:
        super().__init__("mpi4py", mesh_shape)


def test_environment_has_the_last_word(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("TENSOROPT_COLLECTIVES", "mpi4py")
    assert make_engine("mpi", (2,)).name == "mpi4py"
    assert caplog.messages[0].endswith("because TENSOROPT_COLLECTIVES says so")


def test_unknown_engine_is_an_error_that_names_the_known(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    known = "one of 'auto', 'mpi', 'mpi4py', 'horovod'. Got 'nccl'"
    with pytest.raises(EngineError, match=rf"collectives: .*{known}"):
        make_engine("nccl", (2,))
    monkeypatch.setenv("TENSOROPT_COLLECTIVES", "nccl")
    with pytest.raises(EngineError, match=rf"TENSOROPT_COLLECTIVES: .*{known}"):
        make_engine("mpi", (2,))


def test_ranks_that_ask_for_different_engines_get_an_error(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world, "allgather", lambda value: [value, "another digest"])
    with pytest.raises(CollectiveError, match=r"The collectives engine and mesh must be the same"):
        make_engine("mpi", (2,))


def test_no_choice_is_an_error() -> None:
    with pytest.raises(EngineError, match="No rank chose an engine"):
        select._agreed_choice([])


def test_missing_horovod_names_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(horovod_engine, "start_mpi", World)
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", None)
    with pytest.raises(EngineError, match=r"needs Horovod. Got .*Build it with 'make horovod'"):
        HorovodEngine((2,))


def test_horovod_without_dynamic_process_sets_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(ranks: list[int]) -> None:
        raise ValueError("not dynamic")

    horovod = types.ModuleType("horovod.tensorflow")
    vars(horovod).update(is_initialized=lambda: True, size=lambda: 4, add_process_set=refuse, allreduce=None)
    vars(horovod).update(Sum=1, Max=2, Min=3)
    monkeypatch.setitem(sys.modules, "horovod", types.ModuleType("horovod"))
    monkeypatch.setitem(sys.modules, "horovod.tensorflow", horovod)
    sys.modules["horovod"].tensorflow = horovod  # type: ignore[attr-defined]
    monkeypatch.setattr(horovod_engine, "start_mpi", FourRanks)
    engine = HorovodEngine((2, 2))
    with tf.Graph().as_default(), engine.program():
        with pytest.raises(EngineError, match=r"must add the process set \[0, 2\]. Got not dynamic"):
            engine.all_reduce(tf.zeros([2]), (0,))


class FourRanks(World):
    """A world of four ranks that answer alike."""

    size = 4
