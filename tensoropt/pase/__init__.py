"""PaSE: the fastest strategy by dynamic programming over any graph (Elango, IPDPS 2021)."""

from __future__ import annotations

from tensoropt.pase.best import BestStrategy as BestStrategy
from tensoropt.pase.search import ORDERS as ORDERS
from tensoropt.pase.search import fastest_point as fastest_point
from tensoropt.pase.search import find_best_strategy as find_best_strategy
from tensoropt.pase.tables import MAX_TABLE_ENTRIES as MAX_TABLE_ENTRIES
from tensoropt.pase.tables import TimeTables as TimeTables
from tensoropt.pase.vertex_order import VertexOrder as VertexOrder
from tensoropt.pase.vertex_order import breadth_first as breadth_first
from tensoropt.pase.vertex_order import connected_parts as connected_parts
from tensoropt.pase.vertex_order import generate_seq as generate_seq

__all__ = [
    "MAX_TABLE_ENTRIES",
    "ORDERS",
    "BestStrategy",
    "TimeTables",
    "VertexOrder",
    "breadth_first",
    "connected_parts",
    "fastest_point",
    "find_best_strategy",
    "generate_seq",
]
