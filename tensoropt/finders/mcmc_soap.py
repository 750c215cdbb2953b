"""FlexFlow's Markov chains (section 6) over its whole space: operators on parts of the devices, images in pieces."""

from __future__ import annotations

from tensoropt.mcmc import load_kernels
from tensoropt.mcmc.finder import find_in_whole_space
from tensoropt.mcmc.options import Mcmc
from tensoropt.search.registry import Finder, register

register(
    Finder(
        "mcmc_soap",
        "search",
        "fastest",
        find_in_whole_space,
        executes=False,
        begins_at_others=True,
        options=Mcmc(whole_space=True),
        prepare=load_kernels,
    )
)
