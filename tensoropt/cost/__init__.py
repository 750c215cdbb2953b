"""Costs of operators, reshards and memory on a topology."""

from tensoropt.cost.analytic_cost import AnalyticCost
from tensoropt.cost.cost_model import CostModel, OpCall
from tensoropt.cost.memory import KnowsScratch, piece_bytes
from tensoropt.cost.op_profile import Curve, OpProfile, OpTime, collective_key, profile_key, whole_key
from tensoropt.cost.packing import KnowsPacking, packing_of
from tensoropt.cost.pase import PaseCost
from tensoropt.cost.profiled_cost import ProfiledCost, gradient_positions
from tensoropt.cost.rim_costs import rim_copies

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
    "rim_copies",
    "whole_key",
]
