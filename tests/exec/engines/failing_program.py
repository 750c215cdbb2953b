"""Ranks that fail, all by themselves or since another one did, as the first argument says."""

from __future__ import annotations

import sys
import time

from tensoropt.exec.engines.guard import Guard
from tensoropt.exec.engines.launch import install_abort_hook, start_mpi


def main(how: str) -> None:
    """Fails."""
    world = start_mpi()
    install_abort_hook(world)
    if how == "all":
        time.sleep(0.05 * (world.size - world.rank))
        raise ValueError("out of cheese\non the second line, too")
    guard = Guard(world)
    try:
        if world.rank == 1:
            raise ValueError("out of cheese")
    except ValueError as error:
        guard.meet("step", error)
        time.sleep(1.0)  # so that the other ranks end first, with what they have heard
        raise
    guard.meet("step")


if __name__ == "__main__":
    main(sys.argv[1])
