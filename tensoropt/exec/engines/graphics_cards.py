"""Which of its host's graphics cards a rank computes on, and how ranks that share one share its memory."""

from __future__ import annotations

import os
from collections.abc import MutableMapping
from pathlib import Path

__all__ = ["has_driver", "take_card"]

# Where the drivers of graphics cards can be reached.
_DRIVERS = (Path("/dev/nvidiactl"), Path("/dev/kfd"))

# What launchers call a rank's number on its host: Open MPI, MPICH and Intel MPI, SLURM.
_LOCAL_RANKS = ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "SLURM_LOCALID")
_VISIBLE = "CUDA_VISIBLE_DEVICES"


def has_driver() -> bool:
    """Tells whether this host may have a card."""
    return any(path.exists() for path in _DRIVERS)


def take_card(environ: MutableMapping[str, str] = os.environ, devices: Path = Path("/dev")) -> None:
    """Lets a rank see one card: ranks of a host take those that they could see in turn.

    Otherwise each rank would take all of the memory of all cards. CUDA and TensorFlow read these variables when they
    first look for cards, and not again. Nothing is changed in a process that no launcher started, nor where there is no
    card of NVIDIA's.

    Args:
        environ: of this process.
        devices: where the system has its devices.
    """
    local = next((environ[name] for name in _LOCAL_RANKS if name in environ), "")
    count = sum(path.name[6:].isdigit() for path in devices.glob("nvidia*"))
    given = environ.get(_VISIBLE)
    cards = [card.strip() for card in given.split(",")] if given is not None else [str(card) for card in range(count)]
    if local.isdigit() and count and cards:
        environ[_VISIBLE] = cards[int(local) % len(cards)]
        environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
