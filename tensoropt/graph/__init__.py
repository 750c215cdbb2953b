"""The logical graph, and the declarations of the ops that it is made of."""

from tensoropt.graph.graph import Edge, Graph
from tensoropt.graph.graph_text import graph_text
from tensoropt.graph.operator import Operator
from tensoropt.graph.rule import OpRule
from tensoropt.graph.spec import TensorId, TensorSpec
from tensoropt.graph.verifier import verify_graph

__all__ = ["Edge", "Graph", "OpRule", "Operator", "TensorId", "TensorSpec", "graph_text", "verify_graph"]
