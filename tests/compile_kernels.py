"""Compiles what Numba compiles, before any test runs: ``python -m tests.compile_kernels``.

In a new tree that takes more than a minute of a core. Workers that share the tests would all do it at the same time,
and so would the ranks of the first job under ``mpirun``; from here they find it in the cache beside the sources.
"""

from __future__ import annotations

import importlib
import pkgutil
import subprocess
import sys

import tensoropt

__all__: list[str] = []

# Chains take as long as all others.
_PARTS = ("chains", "others")


def _compile_chains() -> None:
    from tensoropt.mcmc import load_kernels

    load_kernels()


def _compile_others() -> None:
    """Kernels whose signatures are written down are compiled when they are imported."""
    for module in pkgutil.walk_packages(tensoropt.__path__, "tensoropt."):
        if module.name.endswith("kernels"):
            importlib.import_module(module.name)


def main() -> None:
    """Compiles one part, or by default all parts beside one another."""
    if sys.argv[1:]:
        {"chains": _compile_chains, "others": _compile_others}[sys.argv[1]]()
        return
    running = [subprocess.Popen([sys.executable, "-m", "tests.compile_kernels", part]) for part in _PARTS]
    sys.exit(max(process.wait() for process in running))


if __name__ == "__main__":
    main()
