"""The line that a search comes to: beside data parallelism, beside one device, and where nothing is gained."""

from __future__ import annotations

import logging
import re
from dataclasses import replace
from typing import Any

import pytest

import tensoropt
from tensoropt.cluster import Level, Topology
from tensoropt.cluster.presets import preset

pytestmark = pytest.mark.tf


def _model(batch: int, width: int, layers: int = 1) -> None:
    tensoropt.reset_default_graph()
    images = tensoropt.placeholder(tensoropt.float32, [batch, width])
    labels = tensoropt.placeholder(tensoropt.int32, [batch])
    hidden = images
    for _ in range(layers):
        hidden = tensoropt.layers.dense(hidden, width, activation=tensoropt.nn.relu)
    loss = tensoropt.softmax_cross_entropy(labels, tensoropt.layers.dense(hidden, width))
    tensoropt.GradientDescentOptimizer(0.1).minimize(loss)


def _outcome(
    caplog: pytest.LogCaptureFixture, topology: Topology, option: str = "mini_time", micro_batches: int | str = 1
) -> str:
    caplog.clear()
    with caplog.at_level(logging.INFO, "tensoropt"):
        tensoropt.find_strategy(option, topology=topology, micro_batches=micro_batches)
    assert re.fullmatch(r"search: (.*, )?\S+ s", caplog.messages[-2])
    return caplog.messages[-1]


def test_a_gain_is_told_beside_data_parallelism(caplog: pytest.LogCaptureFixture) -> None:
    _model(64, 4096)
    fast = re.fullmatch(
        r"mini_time on 4 devices: \S+ \S+ a step, (\S+) times as fast as one device, "
        r"(\S+) times as fast as data parallelism, \S+ \S+ a device",
        _outcome(caplog, preset("v100").with_device_count(4)),
    )
    assert fast is not None and min(map(float, fast.groups())) > 1
    _model(4096, 512)
    common = _outcome(caplog, preset("v100").with_device_count(4), "data_parallel")
    beside = re.fullmatch(
        r"data_parallel on 4 devices: \S+ \S+ a step, (\S+) times as fast as one device, \S+ \S+ a device", common
    )
    assert beside is not None and 1 < float(beside[1]) <= 4


def test_no_gain_is_said_where_one_device_is_as_fast(caplog: pytest.LogCaptureFixture) -> None:
    _model(4, 64)
    few = preset("v100").with_device_count(4)
    slow = replace(few, levels=tuple(replace(level, latency_s=1e-2) for level in few.levels))
    assert re.fullmatch(
        r"no gain from 4 devices, since data parallelism takes \S+ ms a step, \S+ ms to communicate: mini_time is "
        r"predicted to take \S+ ms a step, one device \S+ µs; \S+ KiB a device"
        r"\. Fewer ranks or a larger batch may serve better",
        _outcome(caplog, slow),
    )
    assert _outcome(caplog, slow, "mini_memory").startswith("mini_memory on 4 devices: ")  # time is not what it is for
    assert _outcome(caplog, few.with_device_count(1)).startswith("mini_time on 1 device: ")


def test_hosts_are_named_and_so_is_a_pipeline(caplog: pytest.LogCaptureFixture) -> None:
    link = Level("host", 2, 1e-4, 40e6)
    hosts = Topology("two hosts", (link,), preset("cpu").device)
    _model(256, 1024, layers=8)
    assert re.fullmatch(
        r"pipeline on 2 hosts: \S+ ms a step, 1\.\d+ times as fast as one device by a pipeline of 2 stages and "
        r"[2-8] micro-batches, \S+ times as fast as data parallelism, \S+ MiB a device",
        _outcome(caplog, hosts, micro_batches="auto"),
    )
    slow = replace(hosts, levels=(replace(link, bandwidth_bytes_per_s=1e6),))
    assert _outcome(caplog, slow, micro_batches="auto").startswith("no gain from the second host, since data ")
    several = replace(hosts, levels=(replace(link, latency_s=10.0), Level("device", 2, 1e-6, 1e10)))
    assert _outcome(caplog, several).startswith("no gain from 4 devices of 2 hosts, since ")


def test_what_makes_a_plan_fit_is_told(caplog: pytest.LogCaptureFixture) -> None:
    four = preset("v100").with_device_count(4)
    tensoropt.reset_default_graph()
    hidden = tensoropt.placeholder(tensoropt.float32, [4096, 256])
    for _ in range(8):
        hidden = tensoropt.nn.gelu(tensoropt.layers.dense(hidden, 256))
    tensoropt.GradientDescentOptimizer(0.1).minimize(tensoropt.reduce_mean(tensoropt.square(hidden)))
    whole = tensoropt.find_strategy("mini_memory", topology=four)
    asked: dict[str, Any]
    for asked in ({"micro_batches": "auto"}, {"recompute": True}):
        with caplog.at_level(logging.INFO, "tensoropt"):
            plan: Any = tensoropt.find_strategy(topology=four, memory_bytes=0.6 * whole.memory_bytes, **asked)
        how = f" of {plan.micro_batches} micro-batches" * (plan.micro_batches > 1)
        how += f", {len(plan.again)} operators made again" * bool(plan.again)
        assert how and re.fullmatch(
            rf"mini_time on 4 devices: \S+ \S+ a step{how}, one device does not hold it, "
            r"data parallelism does not fit, \S+ \S+ a device",
            caplog.messages[-1],
        )


def test_fewer_devices_are_compared_among_themselves(caplog: pytest.LogCaptureFixture) -> None:
    _model(64, 64)
    assert _outcome(caplog, preset("v100").with_device_count(4), "mini_parallelism").startswith(
        "mini_parallelism on 1 device: "
    )


@pytest.mark.parametrize(("bytes_per_s", "is_pipeline"), [(40e6, True), (1e6, False), (1e10, False)])
def test_the_fastest_of_whole_batches_and_all_pipelines_is_taken(bytes_per_s: float, is_pipeline: bool) -> None:
    hosts = Topology("two hosts", (Level("host", 2, 1e-4, bytes_per_s),), preset("cpu").device)
    _model(256, 1024, layers=8)
    others = [tensoropt.find_strategy(topology=hosts, micro_batches=n, search="pipeline") for n in (2, 4, 8)]
    others.append(tensoropt.find_strategy(topology=hosts))
    plan = tensoropt.find_strategy(topology=hosts, micro_batches="auto")
    assert plan.time_s == min(other.time_s for other in others)
    assert ("pipeline" in plan.notes) is is_pipeline
