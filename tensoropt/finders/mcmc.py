"""FlexFlow's Markov chains (section 6), over strategies that run."""

from __future__ import annotations

from tensoropt.mcmc import load_kernels
from tensoropt.mcmc.finder import find
from tensoropt.mcmc.options import Mcmc
from tensoropt.search.registry import Finder, register

register(
    Finder(
        "mcmc",
        "search",
        "fastest",
        find,
        begins_at_others=True,
        options=Mcmc(),
        prepare=load_kernels,
        simulates=True,
    )
)
