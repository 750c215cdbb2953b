"""Merges the ``tf.compat.v1.ConfigProto`` of two places: where a script builds, and where it opens a session."""

from __future__ import annotations

from typing import Any

from tensoropt.errors import SessionError

__all__ = ["merged_config"]


def merged_config(built: Any, of_session: Any) -> Any:
    """One ConfigProto of those of ``build_execution_graph(config=…)`` and of a session; either may be None.

    Raises:
        SessionError: they say different things of one field.
    """
    if built is None or of_session is None:
        return of_session if built is None else built
    said = dict(built.ListFields())
    apart = [field.name for field, value in of_session.ListFields() if field in said and said[field] != value]
    if apart:
        raise SessionError(
            f"Session: its config and that of build_execution_graph(config=…) differ in {', '.join(sorted(apart))}. "
            "The session runs the execution graph, so there is one config: give the field at one of the two places."
        )
    merged, rest = type(built)(), type(built)()
    merged.CopyFrom(built)
    rest.CopyFrom(of_session)
    for field in said:
        rest.ClearField(field.name)
    merged.MergeFrom(rest)
    return merged
