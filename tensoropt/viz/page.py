"""Pages of HTML: text, tables, bars and charts in one file that needs no network, light and dark.

What is on a page is plain values. Jinja2 writes the page, and escapes all texts; Plotly draws charts, whose script is a
part of the file. A fragment, as notebooks show one, has no script, and so no charts.
"""

from __future__ import annotations

import functools
import importlib.util
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tensoropt.errors import PlotError
from tensoropt.storage import write_whole
from tensoropt.storage.document import cause_of, printable

__all__ = ["Bar", "Bars", "Chart", "Page", "Section", "Table"]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of texts.

    Attributes:
        headers: one for each column.
        rows: cells.
        words: the columns that are words, which stand on the left; others are figures.
        tones: for each row a number from 0 for its colour, or None; empty for no colours.
    """

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: Sequence[int] = (0,)
    tones: Sequence[int | None] = ()

    kind = "table"


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar.

    Attributes:
        label: before it.
        share: of the longest, from 0 to 1.
        text: behind it.
        tone: a number from 0 for its colour.
    """

    label: str
    share: float
    text: str
    tone: int = 0


@dataclass(frozen=True, slots=True)
class Bars:
    """Bars one below the other."""

    bars: Sequence[Bar]

    kind = "bars"


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart of Plotly's.

    Attributes:
        name: of the chart, by which tests and links find it.
        data: traces, as Plotly's JSON has them.
        layout: the same of the layout; colours of text and lines are the page's.
        text: what it shows, in words, for who cannot see it.
    """

    name: str
    data: Sequence[Mapping[str, Any]]
    layout: Mapping[str, Any]
    text: str

    kind = "chart"

    @property
    def figure(self) -> str:
        """The chart as JSON that may stand in a script's element."""
        text = json.dumps({"data": list(self.data), "layout": dict(self.layout)})
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@dataclass(frozen=True, slots=True)
class Section:
    """A part of a page with a heading."""

    heading: str
    text: str = ""
    parts: Sequence[Table | Bars | Chart] = field(default=())


@dataclass(frozen=True, slots=True)
class Page:
    """A page.

    Attributes:
        title: above all.
        verdict: what a reader in a hurry must know.
        sections: below.
    """

    title: str
    verdict: str
    sections: Sequence[Section]

    def fragment(self) -> str:
        """The page without charts, to stand in another one."""
        return self._rendered(whole=False)

    def document(self) -> str:
        """The page as a file.

        Raises:
            PlotError: Plotly is missing.
        """
        return self._rendered(whole=True)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the page, whole or not at all.

        Raises:
            PlotError: Plotly is missing, or there can be no such file.
        """
        text = self.document()
        try:
            write_whole(path, text)
        except OSError as error:
            raise PlotError(
                f"'{printable(os.fspath(path))}' cannot be written: {cause_of(error)}. Give a file in a directory that "
                "exists and has room."
            ) from error

    def _rendered(self, *, whole: bool) -> str:
        script = _plotly() if whole and any(_charts(section) for section in self.sections) else ""
        text: str = _template().render(page=self, whole=whole, script=script)
        return text


def _charts(section: Section) -> list[Chart]:
    return [part for part in section.parts if isinstance(part, Chart)]


@functools.cache
def _template() -> Any:
    import jinja2

    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("tensoropt.viz", ""),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["printable"] = printable
    return environment.get_template("page.html")


@functools.cache
def _plotly() -> str:
    """Plotly's own script.

    Raises:
        PlotError: it is missing.
    """
    if importlib.util.find_spec("plotly") is None:
        raise PlotError("A report's charts need Plotly, got none. Install it: pip install 'tensoropt[report]'.")
    from plotly.offline import get_plotlyjs

    text: str = get_plotlyjs()
    return text
