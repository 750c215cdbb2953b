"""tensoropt: a TensorFlow script, changed in a few lines, trains on many devices with the best strategy that
fits.

The names of this package are TensorFlow's own (``tensoropt.matmul``, ``tensoropt.nn.conv2d``,
``tensoropt.train.AdamOptimizer``, ...), found on first use; a mirrored call builds the same operation, under
the same name, in a private graph that allocates nothing. Added to them are the steps of a job: ``init``,
``find_strategy``, ``build_execution_graph`` and ``run``.

Importing this package loads neither TensorFlow nor MPI, starts nothing and leaves the environment alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tensoropt.api.mirror import lookup as _mirror

if TYPE_CHECKING:
    # What type checkers know of the names that are our own and found on first use; others are TensorFlow's, and Any.
    from tensoropt import cluster as cluster
    from tensoropt import errors as errors
    from tensoropt import keras as keras
    from tensoropt.api.functions.function import function as function
    from tensoropt.api.functions.rank_zero import on_rank_0 as on_rank_0
    from tensoropt.api.mirror.gradients import gradients as gradients
    from tensoropt.api.mirror.gradients import vectorized_map as vectorized_map
    from tensoropt.api.mirror.model import reset_default_graph as reset_default_graph
    from tensoropt.api.mirror.own_functions import softmax_cross_entropy as softmax_cross_entropy
    from tensoropt.api.mirror.readers import FixedLengthRecordReader as FixedLengthRecordReader
    from tensoropt.api.mirror.readers import IdentityReader as IdentityReader
    from tensoropt.api.mirror.readers import ReaderBase as ReaderBase
    from tensoropt.api.mirror.readers import TextLineReader as TextLineReader
    from tensoropt.api.mirror.readers import TFRecordReader as TFRecordReader
    from tensoropt.api.mirror.readers import WholeFileReader as WholeFileReader
    from tensoropt.api.mirror.script_calls import Graph as Graph
    from tensoropt.api.mirror.script_calls import disable_control_flow_v2 as disable_control_flow_v2
    from tensoropt.api.mirror.script_calls import disable_eager_execution as disable_eager_execution
    from tensoropt.api.mirror.script_calls import disable_tensor_equality as disable_tensor_equality
    from tensoropt.api.mirror.script_calls import disable_v2_behavior as disable_v2_behavior
    from tensoropt.api.mirror.script_calls import disable_v2_tensorshape as disable_v2_tensorshape
    from tensoropt.api.mirror.script_calls import enable_control_flow_v2 as enable_control_flow_v2
    from tensoropt.api.mirror.script_calls import enable_resource_variables as enable_resource_variables
    from tensoropt.api.mirror.script_calls import enable_v2_tensorshape as enable_v2_tensorshape
    from tensoropt.api.mirror.script_calls import report_uninitialized_variables as report_uninitialized_variables
    from tensoropt.api.mirror.script_calls import set_random_seed as set_random_seed
    from tensoropt.api.session.compare import compare as compare
    from tensoropt.api.session.explain import diff as diff
    from tensoropt.api.session.explain import explain as explain
    from tensoropt.api.session.explain import report as report
    from tensoropt.api.session.measuring import measuring as measuring
    from tensoropt.api.session.report import show_strategy as show_strategy
    from tensoropt.api.session.report import strategy_rows as strategy_rows
    from tensoropt.api.session.runtime import build_execution_graph as build_execution_graph
    from tensoropt.api.session.runtime import init as init
    from tensoropt.api.session.runtime import run as run
    from tensoropt.api.session.runtime import world_rank as world_rank
    from tensoropt.api.session.runtime import world_size as world_size
    from tensoropt.api.session.strategy_search import find_frontier as find_frontier
    from tensoropt.api.session.strategy_search import find_strategy as find_strategy
    from tensoropt.api.session.strategy_search import profile_strategies as profile_strategies
    from tensoropt.api.session.tf1_session import InteractiveSession as InteractiveSession
    from tensoropt.api.session.tf1_session import Session as Session
    from tensoropt.api.session.verify import reference_losses as reference_losses
    from tensoropt.api.session.verify import verify as verify
    from tensoropt.cluster.topology import Topology as Topology
    from tensoropt.mcmc.options import Mcmc as Mcmc
    from tensoropt.plan.plan import Plan as Plan
    from tensoropt.problem.frontier import Frontier as Frontier

__version__ = "0.1.0"

_mirror.register_namespaces(globals())


def __getattr__(name: str) -> Any:
    return _mirror.lookup("", name)


def __dir__() -> list[str]:
    return _mirror.names("")
