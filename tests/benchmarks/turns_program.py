"""Takes turns without training; ``--from`` says from which number its seconds count up."""

from __future__ import annotations

import argparse
import itertools
import os
import time
from pathlib import Path
from typing import Any

from benchmarks.turns import take_turns


def main() -> None:
    """Runs the program."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="first", required=True)
    parser.add_argument("--sleep", type=float, default=0.0)
    parser.add_argument("--turns", type=Path, required=True)
    flags = parser.parse_args()
    if not flags.first.isdigit():
        raise SystemExit(f"no such number: {flags.first}")
    time.sleep(flags.sleep)
    numbers = itertools.count(int(flags.first))

    def train(steps: int) -> dict[str, Any]:
        taken = list(itertools.islice(numbers, steps))
        return {"seconds": [float(number) for number in taken], "losses": [-number for number in taken]}

    take_turns(flags.turns, 0, {"from": int(flags.first), "pid": os.getpid()}, train)


if __name__ == "__main__":
    main()
