"""What is known of an op stands in its declaration: nothing else names op types."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from tensorflow.python.framework import op_def_registry

import tensoropt
from tensoropt.graph.registry import has_rule

pytestmark = pytest.mark.tf

_PACKAGE = Path(tensoropt.__file__).parent
# Declarations, and what makes operators or knows TensorFlow's operations that are none of ours.
_MAY_NAME = {
    "api/frontend/effects.py": "operations of TensorFlow's graphs that no logical operator is made of",
    "api/frontend/fanouts.py": "adds our operators to TensorFlow's",
    "api/frontend/reader.py": "makes our operators of TensorFlow's",
    "api/frontend/subgraphs.py": "operations of TensorFlow's graphs that are in no operator of their own",
    "api/frontend/rewriting/inlining.py": "branches, calls and reads of TensorFlow's, of which others are made",
    "api/frontend/rewriting/custom_gradients.py": "TensorFlow's op that carries a gradient of its own",
    "api/frontend/rewriting/values.py": "what it knows of conditions",
    "api/frontend/rewriting/lists.py": "TensorFlow's lists of tensors, which become none",
    "api/frontend/rewriting/loops.py": "TensorFlow's loops, which are unrolled",
    "api/frontend/rewriting/rewriter.py": "what stands in for an op",
    "api/mirror/layers.py": "the mirror: names of layers",
    "api/mirror/lookup.py": "the mirror: names of functions",
    "contrib/tf_slim_copy.py": "the mirror: names of layers",
    "api/mirror/producers.py": "operations of which a dataset can have no copy",
    "terms.py": "what users call inputs",
}


def _is_op_type(word: str) -> bool:
    """Whether TensorFlow or our registry has an op type of that name."""
    return has_rule(word) or (word.isidentifier() and not word[0].islower() and op_def_registry.get(word) is not None)


def _op_types(source: str) -> Iterator[tuple[int, str]]:
    """Line and text of every string that is an op type, or several.

    Strings in collections count where all others there do: ``("Barrier", "Split", "allgather")`` are MPI's functions.
    """
    tree = ast.parse(source)
    skipped: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            skipped.update(ast.walk(node))
        elif isinstance(node, ast.JoinedStr):
            skipped.update(node.values)
        elif isinstance(node, ast.Tuple | ast.List | ast.Set):
            texts = [each for each in node.elts if isinstance(each, ast.Constant) and isinstance(each.value, str)]
            if not all(_is_op_type(str(each.value)) for each in texts):
                skipped.update(texts)
    for node in ast.walk(tree):
        if node not in skipped and isinstance(node, ast.Constant) and isinstance(node.value, str):
            words = node.value.split()
            if words and all(map(_is_op_type, words)):
                yield node.lineno, node.value


def test_no_op_type_is_named_outside_of_declarations() -> None:
    found = []
    for path in sorted(_PACKAGE.rglob("*.py")):
        name = path.relative_to(_PACKAGE).as_posix()
        if not name.startswith("graph/ops/") and name not in _MAY_NAME:
            found += [f"{name}:{line}: {text!r}" for line, text in _op_types(path.read_text())]
    assert not found, "Ask the op's traits (tensoropt.graph.traits) instead:\n" + "\n".join(found)


def test_what_may_name_op_types_does() -> None:
    assert [name for name in _MAY_NAME if not [*_op_types((_PACKAGE / name).read_text())]] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('if op.type == "Variable": pass', ["Variable"]),
        ('_FREE = frozenset({"Const", "VarHandleOp"})', ["Const", "VarHandleOp"]),
        ('_HEAVY = "Conv2DBackpropFilter MatMul".split()', ["Conv2DBackpropFilter MatMul"]),
        ('_READING = {"BiasAdd": "Conv2D"}', ["BiasAdd", "Conv2D"]),
        ('graph.of_type("Placeholder", "Fanout")', ["Placeholder", "Fanout"]),
        ('__all__ = ["Select", "Sum"]', []),
        ('_BLOCKING = ("Barrier", "Split", "allgather")', []),
        ('print(f"Sum {x}")', []),
        ('"""Split what is whole."""', []),
    ],
)
def test_the_check_finds_op_types_and_no_other_words(source: str, found: list[str]) -> None:
    assert [text for _, text in _op_types(source)] == found
