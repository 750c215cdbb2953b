"""Which card each rank of a host sees."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensoropt.exec.engines.graphics_cards import take_card

pytestmark = pytest.mark.pure

_GROWS = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"}


@pytest.mark.parametrize(
    ("environ", "cards", "changed"),
    [
        ({"OMPI_COMM_WORLD_LOCAL_RANK": "1"}, 4, {"CUDA_VISIBLE_DEVICES": "1", **_GROWS}),
        ({"SLURM_LOCALID": "5"}, 4, {"CUDA_VISIBLE_DEVICES": "1", **_GROWS}),
        ({"MPI_LOCALRANKID": "1"}, 1, {"CUDA_VISIBLE_DEVICES": "0", **_GROWS}),
        (
            {"MPI_LOCALRANKID": "1", "CUDA_VISIBLE_DEVICES": "2, 5", "TF_FORCE_GPU_ALLOW_GROWTH": "false"},
            8,
            {"CUDA_VISIBLE_DEVICES": "5"},
        ),
        ({"MPI_LOCALRANKID": "1", "CUDA_VISIBLE_DEVICES": "-1"}, 8, _GROWS),
        ({"MPI_LOCALRANKID": "1"}, 0, {}),
        ({}, 4, {}),
    ],
    ids=["open mpi", "more ranks than cards", "one card", "given", "hidden", "no card", "no launcher"],
)
def test_ranks_take_cards_in_turn(environ: dict[str, str], cards: int, changed: dict[str, str], tmp_path: Path) -> None:
    for name in ["nvidiactl", "nvidia-uvm", *(f"nvidia{card}" for card in range(cards))]:
        (tmp_path / name).touch()
    found = dict(environ)
    for _ in range(2):  # what was taken is kept
        take_card(found, tmp_path)
        assert found == environ | changed
