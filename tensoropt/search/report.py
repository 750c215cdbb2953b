"""What reports for people have in common: a table with a title and remarks, printed on rank 0, and read from JSON."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, Literal, TypeVar

from tensoropt.errors import ProblemError, TensorOptError
from tensoropt.logs import is_speaker
from tensoropt.storage.document import parse_json, refused, shortened

__all__ = ["Report", "figure"]

_Report = TypeVar("_Report", bound="Report")


def figure(value: float | None, scale: float = 1.0) -> str:
    """A number as cells have it, ``-`` if there is none."""
    return "-" if value is None else f"{value * scale:,.4g}" if value * scale < 1e4 else f"{value * scale:,.0f}"


class Report(ABC):
    """A table with a title above and remarks below."""

    __slots__ = ()

    _SCHEMA: ClassVar[int]
    _TEXTS: ClassVar[tuple[int, ...]] = ()  # columns of text, of which the last one may be folded
    _COLUMNS: ClassVar[int]  # of characters, where the terminal says nothing

    @abstractmethod
    def _title(self) -> str: ...

    @abstractmethod
    def _headers(self) -> Sequence[str]: ...

    @abstractmethod
    def _cells(self) -> Sequence[Sequence[str]]: ...

    @abstractmethod
    def _remarks(self) -> str: ...

    @classmethod
    @abstractmethod
    def _read(cls: type[_Report], data: object) -> _Report:
        """The report of a JSON object whose schema is right."""

    @classmethod
    def from_json(cls: type[_Report], text: str | bytes) -> _Report:
        """Reads what ``to_json`` wrote.

        Raises:
            ProblemError: the text is not JSON, of another schema, or incomplete.
        """
        subject, remedy = f"{cls.__name__} JSON", f"Give the text that {cls.__name__}.to_json wrote."
        try:
            data = parse_json(text)
            schema = data.get("schema") if isinstance(data, dict) else type(data).__name__
            if isinstance(schema, bool) or schema != cls._SCHEMA:
                raise ProblemError(f"schema must be {cls._SCHEMA}, got {shortened(repr(schema), 40)}.")
            return cls._read(data)
        except ValueError as error:
            raise refused(ProblemError, subject, f"cannot be read ({error}).", remedy) from None
        except TensorOptError as error:
            raise refused(ProblemError, subject, error.args[0], remedy) from None

    def show(self, console: Any = None) -> None:
        """Prints the table, what stands out in it, and how to go on, on rank 0 only: by Rich where it is installed.

        Args:
            console: a ``rich.console.Console``; standard output by default.
        """
        if not is_speaker():
            return
        try:
            from rich.console import Console
            from rich.table import Table
        except ImportError:
            print(self)
            return
        table = Table()
        for place, header in enumerate(self._headers()):
            folds = place in self._TEXTS[1:]
            justify: Literal["left", "right"] = "left" if place in self._TEXTS else "right"
            table.add_column(header, justify=justify, no_wrap=not folds, overflow="fold" if folds else "ellipsis")
        for cells in self._cells():
            table.add_row(*cells)
        # Under mpirun the output is a terminal of no known width, which would be taken for 80 columns.
        out = console or Console(width=None if "COLUMNS" in os.environ else self._COLUMNS)
        for part in (self._title(), table, self._remarks()):
            out.print(part, markup=False, highlight=False)

    def __str__(self) -> str:
        cells = [self._headers(), *self._cells()]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        texts = [[*map(self._justified, line, widths, range(len(widths)))] for line in cells]
        return "\n".join([self._title(), *("  ".join(line).rstrip() for line in texts), self._remarks()])

    def _justified(self, text: str, width: int, place: int) -> str:
        return text.ljust(width) if place in self._TEXTS else text.rjust(width)
