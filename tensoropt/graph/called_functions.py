"""The functions that nodes of a ``GraphDef`` call, by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

__all__ = ["called_by", "rename_called"]


def called_by(node: Any) -> Iterator[str]:
    """The names that a node may call functions by: its type, and those in its attributes."""
    yield node.op
    for value in node.attr.values():
        yield from (one.name for one in ([value.func] if value.HasField("func") else value.list.func))


def rename_called(node: Any, names: Mapping[str, str]) -> None:
    """Gives the functions that a node calls other names, where there are some."""
    node.op = names.get(node.op, node.op)
    for value in node.attr.values():
        for one in [value.func] if value.HasField("func") else value.list.func:
            one.name = names.get(one.name, one.name)
