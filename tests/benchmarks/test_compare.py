"""The comparison's command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensoropt.errors import ClusterError
from tensoropt.search.comparison import Comparison
from tests.examples.small_models import SMALL

pytestmark = pytest.mark.tf


def test_a_cluster_is_a_preset_and_a_size() -> None:
    from benchmarks.compare import cluster

    assert (cluster("p100x16").device_count, cluster("p100x16").level_sizes) == (16, (4, 4))
    assert cluster("v100-4x-rdma").device_count == 16
    assert cluster("v100x4").device_count == 4
    with pytest.raises(ClusterError, match="Cluster preset 'p': unknown"):
        cluster("px4")


def test_the_table_is_printed_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.compare import main

    file = tmp_path / "table.json"
    sizes = [f"{name}={value}" for name, value in SMALL["alexnet"].items()]
    methods = ["ft", "one_weird_trick", "megatron"]
    main(
        [
            "--model",
            "alexnet",
            "--cluster",
            "p100x2",
            "--json",
            str(file),
            "--size",
            *sizes,
            "--methods",
            *methods,
            "--show",
            "ft",
        ]
    )
    table = Comparison.from_json(file.read_text(encoding="utf-8"))
    assert [row.method for row in table.rows] == methods
    assert table.batch == 512  # 256 a device
    assert "is a convolution" in (table.row("megatron").reason or "")
    printed = capsys.readouterr().out
    assert "one_weird_trick" in printed
    # The strategy of one of them, operator by operator.
    assert "ft on 2 devices" in printed and "Conv2D" in printed
    assert table.plan("ft").option == "ft"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch", "0"], "argument --batch: must be a whole number of at least 1, got '0'"),
        (["--size", "foo=3"], "--size foo: must be an argument of lenet, one of batch_size"),
        (["--size", 'batch_size="a"'], "--size batch_size: must be a whole number above 0 for lenet, such as 64, got"),
        (["--size", "classes=0"], "--size classes: must be a whole number above 0 for lenet, such as 10, got 0"),
        (["--size", "hidden=3"], "--size hidden: must be a list of some for lenet, such as [120, 84], got 3"),
        (["--size", "image_size=3"], "--size image_size=3: lenet cannot be built so (ValueError: "),
        (["--size", 'hidden=["a"]'], '--size hidden=["a"]: lenet cannot be built so (ValueError: '),
        (["--cluster", "px4"], "Cluster preset 'p': unknown"),
        (["--methods", "f"], "argument --methods: invalid choice: 'f'"),
        (["--methods", "ft", "--show", "pase"], "--show: must be of what is compared, ft, got pase"),
        (["--json", "/nowhere/table.json"], "'/nowhere/table.json': the directory '/nowhere' does not exist; make it"),
    ],
)
def test_what_cannot_be_is_refused_before_any_work(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from benchmarks.compare import main

    with pytest.raises(SystemExit):
        main(["--model", "lenet", *arguments])
    assert message in capsys.readouterr().err


def test_an_error_of_the_comparison_is_a_line_and_its_remedy_a_flag() -> None:
    from benchmarks.compare import main

    arguments = ["--model", "lenet", "--cluster", "p100x3", "--methods", "pase"]
    with pytest.raises(
        SystemExit, match=r"benchmarks\.compare: Placeholder 'images'.* by 3 devices: .* or feed='global'"
    ):
        main(arguments)
    main([*arguments, "--feed", "global"])


def test_the_table_is_printed_before_it_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from benchmarks.compare import main

    file = tmp_path / "table.json"
    file.symlink_to("/dev/full")  # takes no bytes
    with pytest.raises(OSError, match="No space left"):
        main(["--model", "lenet", "--cluster", "p100x2", "--json", str(file), "--methods", "data_parallel"])
    assert "data_parallel" in capsys.readouterr().out
