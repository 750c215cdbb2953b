"""The JSON Schema of topologies agrees with what reads and writes them; the documentation's example with both."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tensoropt.cluster import PRESETS, CollectiveProfile, ProfileEntry, Topology, preset, topology_schema
from tensoropt.errors import ClusterError

pytestmark = pytest.mark.pure

_DOCS = Path(__file__).parent.parent.parent / "docs" / "cluster.md"


def validator() -> Any:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(topology_schema())
    return jsonschema.Draft202012Validator(topology_schema())


def documented() -> Any:
    found = re.search(r"```json\n(.*?)```", _DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    return json.loads(found[1])


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid(name: str) -> None:
    validator().validate(preset(name).to_json())


def test_a_measured_topology_is_valid() -> None:
    profile = CollectiveProfile((ProfileEntry("permute", (2, 1), (1024,), (1e-5,)),))
    base = preset("v100")
    validator().validate(Topology(base.name, base.levels, base.device, profile).to_json())


def test_the_example_of_the_documentation_is_a_cluster() -> None:
    validator().validate(documented())
    topology = Topology.from_json(documented())
    assert topology.factor_mesh() == (2, 2, 2)
    assert [level.shared for level in topology.levels] == [True, False]


def test_the_documentation_names_every_field() -> None:
    text = _DOCS.read_text(encoding="utf-8")
    schema = topology_schema()["properties"]
    names = {*schema, *schema["levels"]["items"]["properties"], *schema["device"]["properties"]}
    assert sorted(name for name in names if name not in text) == []


def without(*path: str | int) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        del document[path[-1]]

    return change


def put(value: Any, *path: str | int) -> Callable[[Any], None]:
    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        put(2, "schema_version"),
        without("levels"),
        put([], "levels"),
        put(0, "levels", 0, "size"),
        put(-1.0, "levels", 0, "latency_s"),
        put(0, "levels", 1, "bandwidth_bytes_per_s"),
        put("yes", "levels", 1, "shared"),
        put(1, "levels", 1, "speed"),
        without("device", "memory_bytes"),
        without("device", "flops_per_s", "float32"),
        put({}, "profile"),
        put([{"kind": "gossip", "group": [2, 1], "sizes_bytes": [8], "seconds": [1.0]}], "profile"),
        put(1, "colour"),
    ],
)
def test_what_the_schema_refuses_is_refused_when_it_is_read(change: Callable[[Any], None]) -> None:
    document = copy.deepcopy(documented())
    change(document)
    assert not validator().is_valid(document)
    with pytest.raises(ClusterError, match=r"Topology|Device|Collective"):
        Topology.from_json(document)
