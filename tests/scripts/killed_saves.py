"""Saves again and again until a rank kills itself; the arguments are a folder and a seed that says which, and when."""

from __future__ import annotations

import os
import signal
import sys
import threading

import numpy as np

import tensoropt


def say(line: str) -> None:
    """Writes a line at once: another thread of this process says something, too, and then kills it."""
    os.write(sys.stdout.fileno(), f"{line}\n".encode())


def main() -> None:
    """Saves variables whose numbers all are the number of the save, to one name or to new ones."""
    folder, seed = sys.argv[1], int(sys.argv[2])
    random = np.random.default_rng(seed)
    tensoropt.init()
    number = tensoropt.placeholder(tensoropt.float32, [])
    v = tensoropt.get_variable("v", [4, 300_000])
    w = tensoropt.get_variable("w", [600_000])
    change = tensoropt.group(
        tensoropt.assign(v, tensoropt.zeros_like(v) + number), tensoropt.assign(w, tensoropt.zeros_like(w) + number)
    )
    saver = tensoropt.train.Saver(max_to_keep=2)
    tensoropt.build_execution_graph(plan=tensoropt.find_strategy("mini_memory"))
    seconds, victim, is_one_name = random.random() * 1.5, int(random.integers(2)), random.random() < 0.5

    def kill() -> None:
        say("KILLED")
        os.kill(os.getpid(), signal.SIGKILL)

    for save in range(10_000):
        tensoropt.run(change, {number: float(save)})
        saver.save(None, os.path.join(folder, "m"), global_step=None if is_one_name else save, write_meta_graph=False)
        if tensoropt.world_rank() == 0:
            say(f"SAVED {save}")
        if save == 1 and tensoropt.world_rank() == victim:
            threading.Timer(seconds, kill).start()


if __name__ == "__main__":
    main()
