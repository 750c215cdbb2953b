"""``python -m benchmarks.optimum``."""

from __future__ import annotations

from benchmarks.optimum.comparison import main

main()
