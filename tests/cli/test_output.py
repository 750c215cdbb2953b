"""What commands have in common: files that they write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tensoropt.cli.output import UsageError, write

pytestmark = pytest.mark.pure


def test_a_file_is_written_or_it_is_said_why_not(tmp_path: Path) -> None:
    write("trace --out", tmp_path / "step.json", "{}")
    assert (tmp_path / "step.json").read_text(encoding="utf-8") == "{}"
    for path in (tmp_path, tmp_path / "nowhere" / "step.json"):
        with pytest.raises(UsageError, match=r"^trace --out: '.*' cannot be written: .*\. Give a file in a folder"):
            write("trace --out", path, "{}")
