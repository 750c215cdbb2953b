"""Runs a program with each line that it writes, Python or not, led by the seconds of the monotonic clock."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

_STAMP = "import sys, time\nfor line in sys.stdin: print(f'{time.monotonic():.2f} {line}', end='', flush=True)"


def main(program: str, *arguments: str) -> None:
    """Runs it as ``python program arguments`` does."""
    stamper = subprocess.Popen([sys.executable, "-c", _STAMP], stdin=subprocess.PIPE)
    assert stamper.stdin is not None
    for output in (1, 2):
        os.dup2(stamper.stdin.fileno(), output)
    stamper.stdin.close()
    sys.argv = [program, *arguments]
    sys.path.insert(0, str(Path(program).parent))
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
