"""The site: it is built without a warning, has all names that are ours, and loads nothing from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tensoropt import errors
from tensoropt.api.mirror.namespaces import OWN

pytestmark = pytest.mark.pure

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("material", reason="the extra 'docs' is not installed")
    pytest.importorskip("mkdocstrings", reason="the extra 'docs' is not installed")
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


@pytest.mark.slow
def test_every_page_is_on_the_site(site: Path) -> None:
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")} | {"index", "reference", "CHANGELOG", "CONTRIBUTING"}
    assert pages <= {path.stem for path in site.glob("*.html")}
    shown = re.findall(r'<span class="filename">(.*?)</span>', "".join(map(_text, site.glob("*.html"))))
    assert shown and all((ROOT / path).exists() for path in shown)


@pytest.mark.slow
def test_the_reference_has_what_is_our_own(site: Path) -> None:
    text = _text(site / "reference.html")
    steps = {
        name for name, (module, _) in OWN.items() if module.startswith("tensoropt.api.session.") and "." not in name
    }
    steps -= {"InteractiveSession", "Session"}  # of TensorFlow's name and meaning
    assert {"compare", "find_strategy", "init", "verify"} <= steps
    missing = [name for name in sorted(steps | {"keras.parallelize", "function"}) if f"tensoropt.{name}\n" not in text]
    assert missing == []
    assert [name for name in errors.__all__ if name.endswith("Error") and f"tensoropt.errors.{name}" not in text] == []
    assert "memory_bytes" in text and "Raises:" in text
    assert not re.search(r":(class|data|func|meth|mod):", text)


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    for page in site.glob("*.html"):
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="(https?:[^"]*)"', _text(page))
        loaded += re.findall(r'<link[^>]* rel="(?:stylesheet|preconnect)"[^>]* href="(https?:[^"]*)"', _text(page))
        assert loaded == [], page.name
