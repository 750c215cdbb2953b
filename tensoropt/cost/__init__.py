"""What operators, reshards and memory cost on a topology."""

from tensoropt.cost.analytic import AnalyticCost
from tensoropt.cost.memory import activation_bytes, copy_bytes, variable_bytes
from tensoropt.cost.model import CostModel

__all__ = ["AnalyticCost", "CostModel", "activation_bytes", "copy_bytes", "variable_bytes"]
