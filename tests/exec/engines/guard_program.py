"""Ranks that take steps together, until the last one ends in the way that the first argument names.

Prints ``rank r: done`` where a rank comes to its end in peace.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

from tensoropt.exec.engines import watch as watch_module
from tensoropt.exec.engines.guard import Guard
from tensoropt.exec.engines.launch import install_abort_hook, start_mpi

# Half of the library's, so that a test takes half as long; a rank that waits spins.
watch_module._GRACE_S = 1.5
# Longer than that: a rank that is only late, and one that comes to its end last.
_LATE_S = 2.5


def end(how: str, guard: Guard) -> None:
    """Ends this rank, or raises; returns in the cases that are no failure."""
    if how == "exception":
        raise RuntimeError("out of cheese")
    if how == "exit with 1":
        sys.exit(1)
    if how == "exit with 0":
        sys.exit(0)
    if how == "exit with a message":
        sys.exit("out of cheese")
    if how == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "exit of the process":
        os._exit(3)
    if how == "interrupt":
        raise KeyboardInterrupt
    if how == "thread":
        thread = threading.Thread(target=end, args=("exception", guard))
        thread.start()
        time.sleep(60)
    if how == "failed collective":
        try:
            raise ValueError("out of cheese")
        except ValueError as error:
            guard.meet("step 3", error, patience_s=1.0)
    if how == "late":
        time.sleep(_LATE_S)


def main(how: str) -> None:
    """Takes three steps."""
    world = start_mpi()
    install_abort_hook(world)
    guard = Guard(world)
    for step in range(3):
        if world.rank == world.size - 1 and step == 2:
            print(f"ending {time.time()}", flush=True)
            end(how, guard)
        elif how == "failed collective" and step == 2:
            world.Barrier()  # stands for a collective inside of the local graph, of which the guard knows nothing
        guard.meet(f"step {step}")
    if how == "nobody waits" and world.rank == 0:
        time.sleep(_LATE_S)
    print(f"rank {world.rank}: done", flush=True)
    sys.exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
