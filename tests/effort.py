"""How much random tests try: some by default, far more in CI."""

from __future__ import annotations

import os

__all__ = ["GRAPHS", "THOROUGH"]

GRAPHS = int(os.environ.get("TENSOROPT_TEST_GRAPHS", "12"))
"""Random graphs on four ranks; each takes some seconds."""

THOROUGH = GRAPHS >= 200
"""Whether to try what takes minutes more, as CI does."""
