"""What one large image takes of a rank's memory when it is cut by height and width, beside what its plan predicts.

Prints a line with the measured and the predicted bytes of a step, the losses, and what is cut. Started by
``test_recomputed_memory.py`` on one rank and on several.
"""

from __future__ import annotations

import numpy as np

import tensoropt as to
from benchmarks.accuracy_memory import memory_parts
from tensoropt.api.frontend.imported_model import import_model
from tensoropt.api.mirror.model import current_model
from tensoropt.cluster.presets import cpu
from tensoropt.cost import AnalyticCost
from tensoropt.exec.engines.launch import start_mpi
from tensoropt.exec.engines.mpi_engine import MpiEngine
from tensoropt.exec.program.device_state import DeviceState
from tensoropt.exec.program.executor import Executor
from tensoropt.graph.spec import TensorId
from tensoropt.search.registry import get_finder
from tensoropt.space.space import SearchSpace
from tests.exec.random_runs import real_session
from tests.exec.test_recomputed_memory import step_bytes, traces_of_all_runs

_SIZE, _CHANNELS = 256, 8


def _u_net(image: object) -> object:
    """Two levels: down by a pool, up by a transposed convolution, and over both ways together."""

    def block(x: object, channels: int, name: str) -> object:
        for number in range(2):
            kernel = to.get_variable(f"{name}{number}", [3, 3, int(x.shape[-1]), channels])  # type: ignore[attr-defined]
            x = to.nn.relu(to.nn.conv2d(x, kernel, 1, "SAME"))
        return x

    wide = block(image, _CHANNELS, "wide")
    deep = block(to.nn.max_pool2d(wide, 2, 2, "SAME"), 2 * _CHANNELS, "deep")
    kernel = to.get_variable("up", [2, 2, _CHANNELS, 2 * _CHANNELS])
    up = to.nn.conv2d_transpose(deep, kernel, [1, _SIZE, _SIZE, _CHANNELS], 2)
    return block(to.concat([up, wide], 3), _CHANNELS, "last")


def main() -> None:
    comm, traces = start_mpi(), traces_of_all_runs()
    x = to.placeholder(to.float32, [1, _SIZE, _SIZE, 3], name="x")
    loss = to.identity(to.reduce_mean(to.square(_u_net(x))), name="the_loss")
    to.train.GradientDescentOptimizer(0.1).minimize(loss, name="train")
    graph = import_model(current_model()).graph
    space = SearchSpace(graph, AnalyticCost(cpu(comm.size)))
    point = get_finder("pase").find(space).frontier.point(0)
    plan = space.plan(point.assignment, "pase", alternatives=point.alternatives)
    cut = sum(not {"height", "width"}.isdisjoint(entry.configuration.actions) for entry in plan.operators.values())
    executor = Executor(DeviceState(graph, plan, MpiEngine(space.mesh.shape), config=real_session()))
    random = np.random.default_rng(1)
    values = {op.name: random.normal(0.0, 0.1, op.outputs[0].shape) for op in graph.of_type("Variable")}
    executor.state.set_variables(lambda name: values[name])
    image = random.normal(size=(1, _SIZE, _SIZE, 3)).astype(np.float32)
    losses = [float(executor.run([TensorId("the_loss"), "train"], {x.op.name: image})[0]) for _ in range(3)]
    measured = max(comm.allgather(max(memory_parts(trace, executor.state.tf_graph)["step"] for trace in traces[-2:])))
    if comm.rank == 0:
        print(f"image: {measured:.0f} {step_bytes(plan):.0f} {cut} {' '.join(f'{loss:.7f}' for loss in losses)}")
    executor.state.close()


if __name__ == "__main__":
    main()
