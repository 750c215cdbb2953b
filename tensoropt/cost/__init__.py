"""What operators, reshards and memory cost on a topology."""

from tensoropt.cost.analytic import AnalyticCost
from tensoropt.cost.memory import activation_bytes, copy_bytes, variable_bytes
from tensoropt.cost.model import CostModel
from tensoropt.cost.op_profile import Curve, OpProfile, OpTime, profile_key
from tensoropt.cost.profiled import ProfiledCost, gradient_positions

__all__ = [
    "AnalyticCost",
    "CostModel",
    "Curve",
    "OpProfile",
    "OpTime",
    "ProfiledCost",
    "activation_bytes",
    "copy_bytes",
    "gradient_positions",
    "profile_key",
    "variable_bytes",
]
