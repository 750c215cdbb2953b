"""``tf.contrib.training.HParams``: named settings of a script, each of one type."""

from __future__ import annotations

import json
import numbers
import re
from collections.abc import Mapping
from typing import Any

__all__ = ["HParams", "parse_values"]

# name=value, name[place]=value, name=[value,value]
_PAIR = re.compile(
    r"\s*(?P<name>[a-zA-Z][\w.]*)\s*(\[\s*(?P<place>\d+)\s*\])?\s*=\s*"
    r"(\[(?P<several>[^\]]*)\]|(?P<one>[^,\[]*))\s*($|,)"
)
_BOOLS = {"true": True, "True": True, "1": True, "false": False, "False": False, "0": False}


def parse_values(values: str, type_map: Mapping[str, type], ignore_unknown: bool = False) -> dict[str, Any]:
    """Reads ``name=value`` pairs with commas between them.

    Args:
        values: such as ``rate=0.1,layers=[64,32],layers[1]=16,name=relu``.
        type_map: the type of each name; of a list, that of its elements.
        ignore_unknown: whether other names are left out.

    Returns:
        Values by name; of places of a list, a dict by place.

    Raises:
        ValueError: the text is no such list, or a name or value is none.
    """
    found: dict[str, Any] = {}
    at = 0
    while at < len(values):
        match = _PAIR.match(values, at)
        if match is None:
            raise ValueError(f"HParams: {values[at:]!r} is no name=value. Got {values!r}.")
        at = match.end()
        name, place, several, one = match["name"], match["place"], match["several"], match["one"]
        if name not in type_map:
            if ignore_unknown:
                continue
            raise ValueError(f"HParams: there is no {name!r}. Known are {', '.join(sorted(type_map))}.")
        kind = type_map[name]
        if several is not None:
            if place is not None:
                raise ValueError(f"HParams: {name}[{place}] takes one value. Got [{several}].")
            found[name] = [_parsed(name, kind, each) for each in re.split("[ ,]", several) if each]
        elif place is None:
            found[name] = _parsed(name, kind, one.strip())
        else:
            places = found.setdefault(name, {})
            if not isinstance(places, dict) or int(place) in places:
                raise ValueError(f"HParams: {name}[{place}] is given twice in {values!r}.")
            places[int(place)] = _parsed(name, kind, one.strip())
    return found


def _parsed(name: str, kind: type, text: str) -> Any:
    try:
        return _BOOLS[text] if kind is bool else kind(text)
    except (KeyError, ValueError, TypeError):
        raise ValueError(f"HParams: {name!r} is of type {kind.__name__}, which {text!r} is not.") from None


class HParams:
    """Settings by name, which are attributes too.

    Invariants: a setting keeps its type, and whether it is a list.
    """

    def __init__(self, hparam_def: Any = None, model_structure: Any = None, **kwargs: Any) -> None:
        """Takes values by name.

        Args:
            hparam_def: not supported.
            model_structure: kept as it is.
            **kwargs: the settings.

        Raises:
            ValueError: a name is taken, a list is empty, or ``hparam_def`` is given.
        """
        if hparam_def is not None:
            raise ValueError("HParams: hparam_def is not supported. Give the settings by name.")
        self._hparam_types: dict[str, tuple[type, bool]] = {}
        self._model_structure = model_structure
        for name, value in kwargs.items():
            self.add_hparam(name, value)

    def add_hparam(self, name: str, value: Any) -> None:
        """Adds a setting, whose type is that of its value; of a list, that of its first element."""
        if getattr(self, name, None) is not None:
            raise ValueError(f"HParams: the name {name!r} is taken.")
        is_list = isinstance(value, list | tuple)
        if is_list and not value:
            raise ValueError(f"HParams: the list {name!r} is empty, so that its type is open. Give it an element.")
        self._hparam_types[name] = (type(value[0] if is_list else value), is_list)
        setattr(self, name, value)

    def set_hparam(self, name: str, value: Any) -> None:
        """Changes a setting.

        Raises:
            ValueError: of another type, or a list where there is none.
        """
        kind, is_list = self._known(name)
        if isinstance(value, list) != is_list:
            raise ValueError(f"HParams: {name!r} is {'a' if is_list else 'no'} list. Got {value!r}.")
        setattr(self, name, [_cast(name, kind, each) for each in value] if is_list else _cast(name, kind, value))

    def del_hparam(self, name: str) -> None:
        """Removes a setting, if there is one of the name."""
        if name in self._hparam_types:
            delattr(self, name)
            del self._hparam_types[name]

    def parse(self, values: str) -> HParams:
        """Changes settings by a text; see :func:`parse_values`."""
        found = parse_values(values, {name: kind for name, (kind, _) in self._hparam_types.items()})
        for name, value in found.items():
            if isinstance(value, dict):
                places = list(getattr(self, name))
                for place, one in value.items():
                    if not self._known(name)[1] or place >= len(places):
                        raise ValueError(f"HParams: {name!r} has no place {place}. Got {values!r}.")
                    places[place] = one
                found[name] = places
        return self.override_from_dict(found)

    def override_from_dict(self, values_dict: Mapping[str, Any]) -> HParams:
        """Changes settings by name."""
        for name, value in values_dict.items():
            self.set_hparam(name, value)
        return self

    def parse_json(self, values_json: str) -> HParams:
        """Changes settings by a JSON object."""
        return self.override_from_dict(json.loads(values_json))

    def to_json(self, indent: Any = None, separators: Any = None, sort_keys: bool = False) -> str:
        """The settings as a JSON object."""
        return json.dumps(self.values(), indent=indent, separators=separators, sort_keys=sort_keys)

    def values(self) -> dict[str, Any]:
        """The settings by name."""
        return {name: getattr(self, name) for name in self._hparam_types}

    def get(self, key: str, default: Any = None) -> Any:
        """A setting, or the default where there is none of the name."""
        return getattr(self, key) if key in self._hparam_types else default

    def get_model_structure(self) -> Any:
        """Returns the ``model_structure`` that was given."""
        return self._model_structure

    def set_model_structure(self, model_structure: Any) -> None:
        """Keeps another ``model_structure``."""
        self._model_structure = model_structure

    def _known(self, name: str) -> tuple[type, bool]:
        if name not in self._hparam_types:
            raise ValueError(f"HParams: there is no {name!r}. Known are {', '.join(sorted(self._hparam_types))}.")
        return self._hparam_types[name]

    def __contains__(self, key: str) -> bool:
        """Tells whether there is a setting of that name."""
        return key in self._hparam_types

    def __str__(self) -> str:
        """The settings, sorted."""
        return str(sorted(self.values().items()))

    def __repr__(self) -> str:
        """The settings, sorted."""
        return f"HParams({self})"


def _cast(name: str, kind: type, value: Any) -> Any:
    """A value as one of the setting's type: an integer may become a float, and nothing else what it is not."""
    if kind is type(None) or (isinstance(value, kind) and isinstance(value, bool) == (kind is bool)):
        return value
    if kind in (bool, str, bytes) or isinstance(value, bool):
        fits = False
    elif issubclass(kind, numbers.Integral):
        fits = isinstance(value, numbers.Integral)
    else:
        fits = not issubclass(kind, numbers.Number) or isinstance(value, numbers.Number)
    if not fits:
        raise ValueError(f"HParams: {name!r} is of type {kind.__name__}. Got {value!r}, a {type(value).__name__}.")
    return kind(value)
