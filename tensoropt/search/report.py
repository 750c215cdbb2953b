"""The base of reports for people: text and tables, printed on rank 0, and read from JSON."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from tensoropt.errors import ProblemError, TensorOptError
from tensoropt.logs import is_speaker
from tensoropt.storage.document import parse_json, printable, refused, shortened

__all__ = ["Grid", "Report", "Shown", "figure"]

_Report = TypeVar("_Report", bound="Report")


def figure(value: float | None, scale: float = 1.0) -> str:
    """A number as cells have it, ``-`` if there is none."""
    return "-" if value is None else f"{value * scale:,.4g}" if value * scale < 1e4 else f"{value * scale:,.0f}"


@dataclass(frozen=True, slots=True)
class Grid:
    """A table.

    Attributes:
        headers: of the columns.
        cells: by row.
        texts: columns of text, of which all but the first may be folded; all others are figures.
        framed: whether lines are drawn around cells.
    """

    headers: Sequence[str]
    cells: Sequence[Sequence[str]]
    texts: tuple[int, ...] = (0,)
    framed: bool = True

    def __str__(self) -> str:
        lines = [self.headers, *self.cells]
        widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
        aligned = [[*map(self._justified, line, widths, range(len(widths)))] for line in lines]
        return "\n".join("  ".join(line).rstrip() for line in aligned)

    def _justified(self, text: str, width: int, place: int) -> str:
        return text.ljust(width) if place in self.texts else text.rjust(width)


class Shown(ABC):
    """Text and tables, one below the other."""

    __slots__ = ()

    _COLUMNS: ClassVar[int]  # of characters, where the terminal says nothing

    @abstractmethod
    def _parts(self) -> Sequence[str | Grid]: ...

    def show(self, console: Any = None) -> None:
        """Prints it, on rank 0 only.

        Args:
            console: a ``rich.console.Console``; standard output by default.
        """
        if not is_speaker():
            return
        from rich.box import HEAVY_HEAD
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        # Under mpirun the output is a terminal of no known width, which would be taken for 80 columns.
        out = console or Console(width=None if "COLUMNS" in os.environ else self._COLUMNS)
        for part in self._parts():
            if isinstance(part, str):
                out.print(Text(printable(part)), highlight=False)
                continue
            table = Table(box=HEAVY_HEAD if part.framed else None, padding=(0, 1) if part.framed else (0, 1, 0, 0))
            for place, header in enumerate(part.headers):
                folds = place in part.texts[1:]
                justify: Literal["left", "right"] = "left" if place in part.texts else "right"
                table.add_column(header, justify=justify, no_wrap=not folds, overflow="fold" if folds else "ellipsis")
            for cells in part.cells:
                table.add_row(*(Text(printable(cell)) for cell in cells))
            out.print(table, highlight=False)

    def __str__(self) -> str:
        return printable("\n".join(map(str, self._parts())))


class Report(Shown):
    """A table with a title above and remarks below, which JSON gives back."""

    __slots__ = ()

    _SCHEMA: ClassVar[int]
    _TEXTS: ClassVar[tuple[int, ...]] = ()  # columns of text, of which all but the first may be folded

    @abstractmethod
    def _title(self) -> str: ...

    @abstractmethod
    def _headers(self) -> Sequence[str]: ...

    @abstractmethod
    def _cells(self) -> Sequence[Sequence[str]]: ...

    @abstractmethod
    def _remarks(self) -> str: ...

    def _parts(self) -> Sequence[str | Grid]:
        return (self._title(), Grid(self._headers(), self._cells(), self._TEXTS), self._remarks())

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
