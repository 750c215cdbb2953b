"""Reading fields of a topology's JSON strictly, with errors that name the field."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tensoropt.errors import ClusterError

__all__ = [
    "read_bool",
    "read_integer",
    "read_list",
    "read_number",
    "read_object",
    "read_text",
    "reject_unknown_fields",
]


def read_object(data: object, where: str) -> Mapping[str, object]:
    """``data`` as a JSON object."""
    if not isinstance(data, dict):
        raise ClusterError(f"Topology JSON: {where} must be an object, got {type(data).__name__}.")
    return data


def reject_unknown_fields(fields: Mapping[str, object], known: Sequence[str], where: str) -> None:
    """Raise for a field that is missing or that nobody reads, most likely a misspelt one."""
    unknown = sorted(set(fields) - set(known))
    if unknown:
        raise ClusterError(f"Topology JSON: {where}: unknown field {unknown[0]!r}. Known fields: {', '.join(known)}.")
    missing = [name for name in known if name not in fields]
    if missing:
        raise ClusterError(f"Topology JSON: {where}: field {missing[0]!r} is missing. Add it.")


def read_text(fields: Mapping[str, object], name: str, where: str) -> str:
    """A string field."""
    value = fields.get(name)
    if not isinstance(value, str):
        raise _wrong_type(name, where, "a string", value)
    return value


def read_number(fields: Mapping[str, object], name: str, where: str) -> float:
    """A number field; booleans are not numbers."""
    value = fields.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _wrong_type(name, where, "a number", value)
    return float(value)


def read_integer(fields: Mapping[str, object], name: str, where: str) -> int:
    """An integer field; a float without a fraction counts, as other programs write ``1.6e10``."""
    value = read_number(fields, name, where)
    if not value.is_integer():
        raise _wrong_type(name, where, "an integer", fields.get(name))
    return int(value)


def read_bool(fields: Mapping[str, object], name: str, where: str) -> bool:
    """A true or false field."""
    value = fields.get(name)
    if not isinstance(value, bool):
        raise _wrong_type(name, where, "true or false", value)
    return value


def read_list(fields: Mapping[str, object], name: str, where: str, *, integers: bool = False) -> list[float]:
    """An array of numbers, or of integers."""
    value = fields.get(name)
    if not isinstance(value, list):
        raise _wrong_type(name, where, "an array", value)
    read = read_integer if integers else read_number
    return [read({name: item}, name, where) for item in value]


def _wrong_type(name: str, where: str, wanted: str, got: object) -> ClusterError:
    return ClusterError(f"Topology JSON: {where}: field {name!r} must be {wanted}, got {got!r}.")
