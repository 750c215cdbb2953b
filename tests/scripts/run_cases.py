"""Runs the cases of the scripts that are named after the first argument, a directory for files."""

from __future__ import annotations

import sys

from tests.scripts.cases import main

if __name__ == "__main__":
    main(*sys.argv[2:])
