"""The JSON Schema of a topology's file, for editors and other programs that write one."""

from __future__ import annotations

from typing import Any

from tensoropt.cluster.collective_profile import COLLECTIVE_KINDS
from tensoropt.cluster.device import FUSIONS
from tensoropt.cluster.topology import SCHEMA_VERSION
from tensoropt.storage.document import LABEL_LENGTH

__all__ = ["topology_schema"]

_TEXT = {"type": "string", "minLength": 1, "maxLength": LABEL_LENGTH}
_POSITIVE = {"type": "number", "exclusiveMinimum": 0}
_NOT_NEGATIVE = {"type": "number", "minimum": 0}
_COUNT = {"type": "integer", "minimum": 1}


def _object(required: dict[str, Any], optional: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {**required, **(optional or {})},
        "required": list(required),
        "additionalProperties": False,
        **more,
    }


def topology_schema() -> dict[str, Any]:
    """A JSON Schema (draft 2020-12) of what ``Topology.load`` reads and ``Topology.save`` writes.

    What a schema cannot say is checked when a file is read: names are printable, those of levels unique, a profile's
    groups partition the levels, its sizes ascend and have a time each.
    """
    level = _object(
        {"name": _TEXT, "size": _COUNT, "latency_s": _NOT_NEGATIVE, "bandwidth_bytes_per_s": _POSITIVE},
        {"shared": {"type": "boolean", "default": False}},
        description="One level of links. shared: devices contend for one link, such as a host's network card.",
    )
    device = _object(
        {
            "name": _TEXT,
            "flops_per_s": {
                "type": "object",
                "required": ["float32"],
                "additionalProperties": _POSITIVE,
                "description": "By the name of a dtype.",
            },
            "memory_bandwidth_bytes_per_s": _POSITIVE,
            "memory_bytes": _COUNT,
            "op_overhead_s": _NOT_NEGATIVE,
        },
        {
            "wide_products": {
                "type": "boolean",
                "default": False,
                "description": "Products of 16-bit numbers give float32 at the 16-bit rate.",
            },
            "product_efficiency": {
                "type": "number",
                "exclusiveMinimum": 0,
                "maximum": 1,
                "default": 1,
                "description": "The share of flops_per_s that products and convolutions reach.",
            },
            "fusion": {
                "enum": list(FUSIONS),
                "default": "none",
                "description": "What operators its compiler makes one kernel of.",
            },
        },
    )
    entry = _object(
        {
            "kind": {"enum": list(COLLECTIVE_KINDS)},
            "group": {"type": "array", "items": _COUNT, "minItems": 1, "description": "Members per level."},
            "sizes_bytes": {"type": "array", "items": _COUNT, "minItems": 1},
            "seconds": {"type": "array", "items": _POSITIVE, "minItems": 1},
        }
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "A cluster that tensoropt plans for",
        **_object(
            {
                "schema_version": {"const": SCHEMA_VERSION},
                "name": _TEXT,
                "levels": {"type": "array", "items": level, "minItems": 1, "description": "Outermost first."},
                "device": device,
            },
            {
                "profile": {
                    "description": "Measured collectives; without it the figures of the levels count.",
                    "anyOf": [{"type": "null"}, {"type": "array", "items": entry}],
                }
            },
        ),
    }
