"""No module of the package imports one that imports it, at whatever level."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import networkx as nx
import pytest

import tensoropt

pytestmark = pytest.mark.pure


def _modules() -> dict[str, Path]:
    root = Path(tensoropt.__file__).parent
    paths = {path.relative_to(root.parent).with_suffix(""): path for path in root.rglob("*.py")}
    return {".".join(part for part in name.parts if part != "__init__"): path for name, path in paths.items()}


def _imports(node: ast.AST) -> Iterator[ast.Import | ast.ImportFrom]:
    """All below a node, those of functions included; not those for type checkers alone."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield from _imports(child)


def _imported(statement: ast.Import | ast.ImportFrom, known: dict[str, Path]) -> Iterator[str]:
    if isinstance(statement, ast.Import):
        yield from (alias.name for alias in statement.names)
        return
    assert statement.level == 0, "imports name the whole module"
    for alias in statement.names:
        submodule = f"{statement.module}.{alias.name}"
        yield submodule if submodule in known else statement.module or ""


def test_imports_have_no_cycle() -> None:
    known = _modules()
    graph = nx.DiGraph()
    for module, path in known.items():
        for statement in _imports(ast.parse(path.read_text(encoding="utf-8"))):
            graph.add_edges_from((module, name) for name in _imported(statement, known) if name in known)
    assert graph.number_of_edges() > len(known)
    cycles = [sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1]
    assert not cycles, f"modules that import one another: {cycles}"
    assert not list(nx.selfloop_edges(graph))
