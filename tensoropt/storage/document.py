"""Reading JSON that may be damaged, hostile, or written by a person: strictly, with errors that name the field.

What is not meant is refused, never bent into what might be: a truth value is no number, 2.9 is no integer, NaN and
infinity are no figures, nothing stands twice, and no field is there that nobody reads.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NoReturn, TypeVar

from tensoropt.errors import TensorOptError, close_names

__all__ = [
    "ERROR_LENGTH",
    "LABEL_LENGTH",
    "Fields",
    "cause_of",
    "parse_json",
    "printable",
    "quoted",
    "read_object",
    "refused",
    "shortened",
]

ERROR_LENGTH = 500
"""The most characters of an error about a file: what it quotes may be as long as the file."""

LABEL_LENGTH = 200
"""The most characters of a name that tables, lines and errors repeat."""

_T = TypeVar("_T")
# Beyond it a float no longer holds every integer, so that another program may have written another one.
_LARGEST = 2**53
_SHOWN = 60
_QUOTED = 100


def parse_json(text: str | bytes) -> Any:
    """Parses JSON text.

    Raises:
        ValueError: the text is no JSON, or is what only Python takes for JSON (``NaN``), or has a field twice, a number
            that no float holds, or more nesting than any document of ours. The message is short.
    """
    if not isinstance(text, str | bytes):
        raise ValueError(f"it is no text but {type(text).__name__}")
    try:
        return json.loads(
            text.decode("utf-8") if isinstance(text, bytes) else text,
            parse_float=_finite,
            parse_int=_integer,
            parse_constant=_no_constant,
            object_pairs_hook=_without_twins,
        )
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def printable(text: object) -> str:
    """Text for a terminal: a file's text may have characters that steer it, which are written as their numbers."""
    said = str(text)
    if said.isprintable():
        return said
    return "".join(
        letter if letter == "\n" or letter.isprintable() else letter.encode("unicode_escape").decode("ascii")
        for letter in said
    )


def shortened(text: object, length: int = ERROR_LENGTH) -> str:
    """Printable text of at most so many characters, with what was left out between its beginning and its end."""
    said = printable(text)
    if len(said) <= length:
        return said
    tail = length // 4
    return f"{said[: length - tail - 1]}…{said[len(said) - tail :]}"


def quoted(text: object) -> str:
    """A name from a file as an error quotes it: printable, and not as long as the file may have it."""
    return shortened(repr(text), _QUOTED)


def cause_of(error: OSError) -> str:
    """Returns the reason why a file cannot be read or written, without its name and number.

    For a file that does not exist, the reason includes files of its folder with similar names.
    """
    cause = shortened(error.strerror or error, 200)
    if not isinstance(error, FileNotFoundError) or not isinstance(error.filename, str):
        return cause
    folder, name = os.path.split(error.filename)
    try:
        close = close_names(name, os.listdir(folder or os.curdir))
    except OSError:  # the folder is not there either
        return cause
    return f"{cause} (there is {' or '.join(map(quoted, close))})" if close else cause


def refused(error: type[TensorOptError], subject: str, cause: object, remedy: str = "") -> TensorOptError:
    """An error about a document, of at most :data:`ERROR_LENGTH` characters, the remedy among them."""
    said = f"{type(cause).__name__} {cause}" if isinstance(cause, Exception) else str(cause)
    end = f" {remedy}" if remedy else ""
    return error(shortened(f"{shortened(subject, 200)}: {shortened(said, ERROR_LENGTH - 200 - len(end) - 2)}{end}"))


def read_object(data: object, where: str, error: type[TensorOptError]) -> Mapping[str, Any]:
    """``data`` as a JSON object."""
    if not isinstance(data, dict) or not all(isinstance(name, str) for name in data):
        raise error(f"{where} must be an object, got {_kind(data)}.")
    return data


@dataclass(frozen=True, slots=True)
class Fields:
    """The fields of one object of a document.

    Attributes:
        values: by name.
        where: the document and the object in it, for messages: ``Topology JSON: levels[0]``.
        error: what is raised.
    """

    values: Mapping[str, Any]
    where: str
    error: type[TensorOptError]

    @classmethod
    def of(
        cls,
        data: object,
        where: str,
        error: type[TensorOptError],
        required: Sequence[str],
        optional: Mapping[str, object] | None = None,
    ) -> Fields:
        """An object that has all required fields, perhaps optional ones, and no other, most likely a misspelt one.

        Args:
            data: the object.
            where: see the class.
            error: see the class.
            required: names.
            optional: names, and the values that stand for them where they are missing.
        """
        given = read_object(data, where, error)
        known = (*required, *(optional or {}))
        unknown = sorted(set(given) - set(known))
        if unknown:
            raise error(
                f"{where}: unknown field {shortened(repr(unknown[0]), _SHOWN)}. Known fields: {', '.join(known)}."
            )
        missing = [name for name in required if name not in given]
        if missing:
            raise error(f"{where}: field {missing[0]!r} is missing. Add it.")
        return cls({**(optional or {}), **given}, where, error)

    def text(self, name: str) -> str:
        """A string that UTF-8 can hold."""
        value = self.values[name]
        if not isinstance(value, str) or any("\ud800" <= letter <= "\udfff" for letter in value):
            self._wrong(name, "a string", value)
        return value

    def label(self, name: str) -> str:
        """A name that tables, lines and errors repeat: printable, and not long."""
        value = self.text(name)
        if len(value) > LABEL_LENGTH or not value.isprintable():
            self._wrong(name, f"at most {LABEL_LENGTH} printable characters", value)
        return value

    def boolean(self, name: str) -> bool:
        """True or false."""
        value = self.values[name]
        if not isinstance(value, bool):
            self._wrong(name, "true or false", value)
        return value

    def number(self, name: str, *, least: float = -math.inf) -> float:
        """A finite number from ``least``; booleans are not numbers."""
        return self._number(name, self.values[name], least)

    def integer(self, name: str, *, least: float = -math.inf) -> int:
        """An integer from ``least``; a float without a fraction counts, as other programs write ``1.6e10``."""
        return self._integer(name, self.values[name], least)

    def array(self, name: str) -> list[Any]:
        """An array of anything."""
        value = self.values[name]
        if not isinstance(value, list):
            self._wrong(name, "an array", value)
        return value

    def mapping(self, name: str) -> Mapping[str, Any]:
        """An object with any fields."""
        return read_object(self.values[name], f"{self.where}: field {name!r}", self.error)

    def numbers(self, name: str, *, least: float = -math.inf) -> tuple[float, ...]:
        """An array of numbers."""
        return tuple(self._number(name, item, least) for item in self.array(name))

    def integers(self, name: str, *, least: float = -math.inf) -> tuple[int, ...]:
        """An array of integers."""
        return tuple(self._integer(name, item, least) for item in self.array(name))

    def texts(self, name: str) -> tuple[str, ...]:
        """An array of strings."""
        return tuple(Fields({name: item}, self.where, self.error).text(name) for item in self.array(name))

    def optional(self, name: str, read: Callable[[str], _T]) -> _T | None:
        """Returns the result of ``read``, a method of this object, or None where the field is null."""
        return None if self.values[name] is None else read(name)

    def _number(self, name: str, value: object, least: float) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._wrong(name, "a number", value)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            self._wrong(name, "a finite number", value)
        if number < least:
            self._wrong(name, f"at least {least:g}", value)
        return number

    def _integer(self, name: str, value: object, least: float) -> int:
        number = self._number(name, value, least)
        whole = value if isinstance(value, int) else int(number)
        if not number.is_integer():
            self._wrong(name, "an integer", value)
        if abs(whole) > _LARGEST:
            self._wrong(name, f"at most {_LARGEST}", value)
        return whole

    def _wrong(self, name: str, wanted: str, got: object) -> NoReturn:
        raise self.error(f"{self.where}: field {name!r} must be {wanted}, got {_shown(got)}.")


def _shown(value: object) -> str:
    """A value as an error quotes it."""
    if isinstance(value, list | dict):
        return _kind(value)
    if isinstance(value, int) and abs(value) > 10**_SHOWN:  # Python refuses to print the longest
        return "a number too large"
    return shortened(repr(value), _SHOWN)


def _kind(value: object) -> str:
    return type(value).__name__


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"it has the number {shortened(text, 20)}, which is too large")
    return number


def _integer(text: str) -> int:
    if len(text) > 400:  # no float is longer
        raise ValueError(f"it has an integer of {len(text)} digits, which is too large")
    return int(text)


def _no_constant(text: str) -> NoReturn:
    raise ValueError(f"it has {text}, which is no JSON")


def _without_twins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        last = {name: place for place, (name, _) in enumerate(pairs)}
        twin = next(name for place, (name, _) in enumerate(pairs) if last[name] != place)
        raise ValueError(f"it has the field {shortened(repr(twin), _SHOWN)} twice")
    return found
