"""What operators, reshards and memory cost on a topology."""

from tensoropt.cost.analytic import AnalyticCost
from tensoropt.cost.memory import KnowsScratch, piece_bytes
from tensoropt.cost.model import CostModel, OpCall
from tensoropt.cost.op_profile import Curve, OpProfile, OpTime, collective_key, profile_key, whole_key
from tensoropt.cost.packing import KnowsPacking, packing_of
from tensoropt.cost.pase import PaseCost
from tensoropt.cost.profiled import ProfiledCost, gradient_positions

__all__ = [
    "AnalyticCost",
    "CostModel",
    "Curve",
    "KnowsPacking",
    "KnowsScratch",
    "OpCall",
    "OpProfile",
    "OpTime",
    "PaseCost",
    "ProfiledCost",
    "collective_key",
    "gradient_positions",
    "packing_of",
    "piece_bytes",
    "profile_key",
    "whole_key",
]
