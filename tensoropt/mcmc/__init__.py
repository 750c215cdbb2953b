"""FlexFlow's search: Markov chains over strategies, by simulated time or by a sum."""

from __future__ import annotations

from tensoropt.mcmc.chain import Chain as Chain
from tensoropt.mcmc.chain import ChainResult as ChainResult
from tensoropt.mcmc.chain import Stop as Stop
from tensoropt.mcmc.initial import random_strategy as random_strategy
from tensoropt.mcmc.kernel_loading import load_kernels as load_kernels
from tensoropt.mcmc.moves import Moves as Moves
from tensoropt.mcmc.neighbours import moves_of as moves_of
from tensoropt.mcmc.options import RANDOM as RANDOM
from tensoropt.mcmc.options import Mcmc as Mcmc
from tensoropt.mcmc.search import McmcResult as McmcResult
from tensoropt.mcmc.search import mcmc as mcmc
from tensoropt.mcmc.search import search_strategy as search_strategy
from tensoropt.simulate import Network as Network
from tensoropt.simulate import Resource as Resource
from tensoropt.simulate import Simulator as Simulator
from tensoropt.simulate import Task as Task
from tensoropt.simulate import Timeline as Timeline
from tensoropt.simulate import network_of as network_of
from tensoropt.simulate import simulate as simulate

__all__ = [
    "RANDOM",
    "Chain",
    "ChainResult",
    "Mcmc",
    "McmcResult",
    "Moves",
    "Network",
    "Resource",
    "Simulator",
    "Stop",
    "Task",
    "Timeline",
    "load_kernels",
    "mcmc",
    "moves_of",
    "network_of",
    "random_strategy",
    "search_strategy",
    "simulate",
]
