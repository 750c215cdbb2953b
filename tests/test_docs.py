"""The pages stay true: what they name exists, links lead somewhere, code in them is code that runs.

In a page, code in backticks that looks like a path must be the end of one path of the package, or else of the project:
``pase/search.py``, or ``vertex_order.py`` alone where no two files are called so. A block of Python whose info names
a file is equal to that file. Blocks of ``pycon`` run as doctests.
"""

from __future__ import annotations

import ast
import doctest
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mpi_support import run_mpi

ROOT = Path(__file__).resolve().parent.parent
PAGES = (
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted((ROOT / "docs").glob("*.md")),
)
LONGEST = 120

_FOLDERS = ("benchmarks", "docs", "examples", "scripts", "tensoropt", "tests")
_PATH = re.compile(r"[\w.-]+(/[\w.-]+)*/?")
_ENDINGS = (".py", ".md", ".cc", ".h", ".toml")
_MODULES = re.compile(r"(?:tensoropt|benchmarks|examples|tests)(?:\.\w+)+")

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


class Block(NamedTuple):
    """A block of code.

    Attributes:
        info: what stands after the opening backticks.
        text: its lines, each with its end.
    """

    info: str
    text: str


def blocks(page: Path) -> list[Block]:
    """All blocks of code of a page."""
    return [Block(*found) for found in re.findall(r"^ *```([^\n`]*)\n(.*?)^ *```$", _text(page), re.M | re.S)]


def prose(page: Path) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^ *```[^\n`]*\n.*?^ *```$", "", _text(page), flags=re.M | re.S)


def spans(page: Path) -> set[str]:
    """All code in backticks, outside of blocks; line breaks in it are spaces."""
    return {re.sub(r"\s+", " ", found) for found in re.findall(r"`([^`]+)`", prose(page))}


def anchors(page: Path) -> set[str]:
    """What links may lead to inside of a page."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}


def known_paths() -> set[str]:
    """Every file and folder of the project, as paths from its root."""
    found = {path.name for path in ROOT.iterdir()}
    for folder in _FOLDERS:
        for path in (ROOT / folder).rglob("*"):
            if "__pycache__" not in path.parts:
                found.add(str(path.relative_to(ROOT)))
    return found


def _text(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def _looks_like_a_path(span: str) -> bool:
    if not _PATH.fullmatch(span):
        return False
    return span.endswith(_ENDINGS) or ("/" in span and span.split("/")[0] in {*_FOLDERS, *_packages()})


def _packages() -> set[str]:
    return {init.parent.name for init in (ROOT / "tensoropt").glob("*/__init__.py")}


def _exists(dotted: str) -> bool:
    """Whether a dotted name is a module, or what attributes of one lead to."""
    parts = dotted.split(".")
    for length in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError:
            continue
        for name in parts[length:]:
            if not hasattr(found, name):
                return name in getattr(found, "__dataclass_fields__", {})
            found = getattr(found, name)
        return True
    return False


# ------------------------------------------------------------------------------------------------------ what is named


@pytest.mark.pure
@each_page
def test_lines_are_short(page: Path) -> None:
    long = [number for number, line in enumerate(_text(page).splitlines(), 1) if len(line) > LONGEST]
    assert long == []


@pytest.mark.pure
@each_page
def test_paths_exist_and_are_no_other_files_too(page: Path) -> None:
    known = known_paths()
    wrong = {}
    for span in sorted(filter(_looks_like_a_path, spans(page))):
        wanted = span.rstrip("/")
        if {wanted, f"tensoropt/{wanted}"} & known:
            continue
        everywhere = [path for path in known if path.endswith(f"/{wanted}")]
        found = [path for path in everywhere if path.startswith("tensoropt/")] or everywhere
        if len(found) != 1:
            wrong[span] = sorted(found)
    assert wrong == {}


@pytest.mark.tf
@each_page
def test_dotted_names_exist(page: Path) -> None:
    named = {name for span in spans(page) for name in _MODULES.findall(span)}
    named |= {name for block in blocks(page) for name in re.findall(r"python -m ([\w.]+)", block.text)}
    assert sorted(name for name in named if not _exists(name)) == []


@pytest.mark.pure
@each_page
def test_environment_variables_are_read_somewhere(page: Path) -> None:
    code = "".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "tensoropt").rglob("*.py")))
    named = set(re.findall(r"TENSOROPT_[A-Z_]+", _text(page)))
    assert sorted(name for name in named if name not in code) == []


@pytest.mark.pure
@each_page
def test_make_targets_exist(page: Path) -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M))
    named = {name for span in spans(page) for name in re.findall(r"^make (\w+)", span)}
    named |= {name for block in blocks(page) for name in re.findall(r"^make (\w+)", block.text, re.M)}
    assert sorted(named - targets) == []


@pytest.mark.pure
@each_page
def test_links_lead_somewhere(page: Path) -> None:
    wrong = []
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if re.match(r"\w+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (page.parent / file).resolve() if file else page
        if not path.exists() or (anchor and anchor not in anchors(path)):
            wrong.append(target)
    assert wrong == []


@pytest.mark.pure
def test_every_page_is_linked_from_the_readme() -> None:
    linked = {(ROOT / target).resolve() for target in re.findall(r"\]\(([^)#\s]+)\)", prose(ROOT / "README.md"))}
    assert sorted(page.name for page in PAGES[1:] if page not in linked) == []


def imported_packages() -> dict[str, set[str]]:
    """Which other packages each package of tensoropt imports, anywhere in its code."""
    found: dict[str, set[str]] = {name: set() for name in _packages()}
    for name in found:
        for file in sorted((ROOT / "tensoropt" / name).rglob("*.py")):
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom):
                    modules = [node.module or ""]
                else:
                    modules = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
                parts = [module.split(".") for module in modules]
                found[name] |= {part[1] for part in parts if part[0] == "tensoropt" and len(part) > 1}
        found[name] &= _packages() - {name}
    return found


@pytest.mark.pure
def test_every_package_is_on_the_map_with_what_it_may_import() -> None:
    rows = re.findall(r"^\| `tensoropt/(\w+)` \|.*\| (.+?) \|$", prose(ROOT / "docs/ideas.md"), re.M)
    assert sorted(name for name, _ in rows) == sorted(_packages())
    allowed: dict[str, set[str]] = {}
    for name, text in rows:  # a stage may import what earlier ones may
        direct = set(allowed) if text == "all" else set(re.findall(r"\w+", text))
        assert direct <= set(allowed), f"{name}: what it may import stands above it"
        allowed[name] = direct.union(*(allowed[other] for other in direct))
    imported = imported_packages()
    assert {name: imported[name] - allowed[name] for name in imported if imported[name] - allowed[name]} == {}


@pytest.mark.pure
def test_every_word_of_the_glossary_has_its_module() -> None:
    entries = re.findall(r"^- \*\*(.+?)\*\*(.*?)(?=^- |^#|\Z)", prose(ROOT / "docs/glossary.md"), re.M | re.S)
    assert len(entries) > 30
    homeless = [word for word, text in entries if not any(map(_looks_like_a_path, re.findall(r"`([^`]+)`", text)))]
    assert homeless == []
    words = [word.lower() for word, _ in entries]
    assert words == sorted(words)


# --------------------------------------------------------------------------------------------------- the code in pages


def quoted() -> Iterator[tuple[Path, str, str]]:
    """Every block that shows a file: the page, the file's path, the block's text."""
    for page in PAGES:
        for block in blocks(page):
            _, _, path = block.info.partition(" ")
            if path:
                yield page, path, block.text


@pytest.mark.pure
def test_files_are_shown_as_they_are() -> None:
    shown = list(quoted())
    differing = [(page.name, path) for page, path, text in shown if text != (ROOT / path).read_text(encoding="utf-8")]
    assert differing == []
    examples = {"tensoropt/graph/ops/segment_sum.py", "tests/extending/late_engine.py"}
    examples |= {str(path.relative_to(ROOT)) for path in (ROOT / "tests/extending").glob("add_*.py")}
    assert examples <= {path for _, path, _ in shown}


@pytest.mark.pure
@each_page
def test_python_in_pages_is_python(page: Path) -> None:
    for block in blocks(page):
        if block.info == "python":
            ast.parse(block.text)


@pytest.mark.pure
@each_page
def test_sessions_in_pages_give_what_they_show(page: Path) -> None:
    text = "\n".join(block.text for block in blocks(page) if block.info == "pycon")
    example = doctest.DocTestParser().get_doctest(text, {}, page.name, str(page), 0)
    said: list[str] = []
    failed, _ = doctest.DocTestRunner(verbose=False).run(example, out=said.append)
    assert not failed, "".join(said)


@pytest.mark.pure
def test_the_cluster_of_the_page_is_one(tmp_path: Path) -> None:
    from tensoropt.cluster import Topology

    (text,) = (block.text for block in blocks(ROOT / "docs/cluster.md") if block.info == "json")
    path = tmp_path / "cluster.json"
    path.write_text(text, encoding="utf-8")
    assert Topology.load(path).device_count == 8


@pytest.mark.pure
def test_presets_are_listed_as_they_are() -> None:
    from tensoropt.cluster.presets import PRESETS

    rows = {}
    for name, make in PRESETS.items():
        topology = make()
        device = topology.device
        rows[name] = (
            " × ".join(map(str, topology.level_sizes)),
            device.name,
            f"{device.memory_bytes / 2**30:.0f}",
            f"{dict(device.flops_per_s)['float32'] / 1e12:.3g}",
            " / ".join(f"{level.bandwidth_bytes_per_s / 1e9:.3g}" for level in topology.levels),
        )
    shown = re.findall(r"^\| `([\w-]+)` \| (.+) \|$", prose(ROOT / "docs/cluster.md"), re.M)
    assert {name: tuple(text.split(" | ")) for name, text in shown} == rows


@pytest.mark.mpi
def test_the_script_of_the_readme_trains(tmp_path: Path) -> None:
    python = [block.text for block in blocks(ROOT / "README.md") if block.info == "python"]
    (script,) = (text for text in python if "tensoropt.init()" in text)
    path = tmp_path / "script.py"
    path.write_text(script, encoding="utf-8")
    job = run_mpi(path, 2, timeout=400)
    lines = [re.fullmatch(r"step (\d+): loss (\S+)", line) for line in job.stdout.splitlines()]
    steps = [(int(line[1]), float(line[2])) for line in lines if line is not None]
    assert [step for step, _ in steps] == [0, 20, 40, 60, 80, 100]
    assert steps[-1][1] < steps[0][1] / 10
    done = [line for line in job.stderr.splitlines() if not line.endswith(" so far")]
    stages = re.findall(r"^tensoropt: (init|import|search|build): ", "\n".join(done), re.M)
    assert stages == ["init", "import", "search", "build"]
    assert re.search(r"^tensoropt: (mini_time on 2 devices|no gain from 2 devices(, since .*)?): ", job.stderr, re.M)
