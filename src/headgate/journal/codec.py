"""Converts events to JSON lines and back."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from functools import cache
from typing import Any

from headgate.core.errors import CheckpointError, ConfigError, EngineError
from headgate.core.input import KEY_GROUPS_MAX, WHOLE_MAX, read_json, shown
from headgate.journal.schema import KINDS, VERSION, Event

LATEST_MS = 250_000_000_000_000
"""The year 9892: what a calendar can still show in every time zone."""

_COUNTS = frozenset(
    """slots slots_max slots_before slots_after served backlog backlog_bytes arrived emitted late
    null_keys state_rows state_bytes changelog_bytes groups_moved bytes_moved windows windows_empty
    windows_stalled cycles""".split()
)
"""Fields that count something: below 0 they are damaged."""

_RANGES: dict[str, tuple[float, float]] = {
    **{name: (0, WHOLE_MAX) for name in _COUNTS},
    "at_ms": (0, LATEST_MS),
    "key_groups": (0, KEY_GROUPS_MAX),
    "slots": (0, KEY_GROUPS_MAX),
}
"""Least and most of a field by its name; any other number need only come through the gate."""


def encode(event: Event) -> bytes:
    """Return the line of an event, newline included.

    Raises
    ------
    EngineError
        A number is not finite, or a parameter is not JSON.
    """
    line = {"event": event.KIND, **dataclasses.asdict(event)}
    try:
        text = json.dumps(line, allow_nan=False, separators=(",", ":"), default=_plain)
    except (TypeError, ValueError) as error:
        msg = f'journal event "{event.KIND}" cannot be written as JSON: {error}.'
        raise EngineError(msg) from error
    return text.encode() + b"\n"


def decode(line: bytes, *, where: str) -> Event | None:
    """Return the event of a line, or None for a kind this version does not know.

    Parameters
    ----------
    line : bytes
        A whole line, with or without its newline.
    where : str
        Journal and line number, for messages.

    Raises
    ------
    CheckpointError
        The line is not JSON, lacks a field, or states a version this headgate cannot read.
    """
    try:
        fields = read_json(line, where)
        if not isinstance(fields, dict):
            msg = "no object"
            raise TypeError(msg)
        kind = KINDS.get(fields["event"])
        if kind is None:
            return None
        if fields["event"] in ("start", "fleet-start") and fields["version"] != VERSION:
            msg = (
                f"{where} has journal version {shown(fields['version'], 20)}, this headgate reads "
                f"{VERSION}; "
                "use the headgate that wrote it."
            )
            raise CheckpointError(msg)
        return typing.cast(Event, _build(kind, fields))
    except (ConfigError, ValueError, TypeError, KeyError, AttributeError) as error:
        why = shown(str(error).removesuffix(".") or repr(error), 160)
        msg = f"{where} is not a journal line ({why}); the file is damaged or not a journal."
        raise CheckpointError(msg) from error


def _plain(value: object) -> object:
    """Return a number that `json` knows for one of NumPy's."""
    item = getattr(value, "item", None)
    if item is None:
        msg = f"{type(value).__name__} is not JSON"
        raise TypeError(msg)
    return item()


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Return the resolved type of each field of a dataclass."""
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _build(kind: type, fields: dict[str, Any]) -> object:
    """Return an instance of dataclass `kind`; fields it does not have are ignored."""
    known = {n: _value(hint, fields[n]) for n, hint in _hints(kind).items() if n in fields}
    for name in known.keys() & _RANGES.keys():
        value, (low, high) = known[name], _RANGES[name]
        if isinstance(value, int | float) and not low <= value <= high:
            msg = f"{name} is {value:g}, not from {low:g} to {high:g}"
            raise ValueError(msg)
    return kind(**known)


def _value(hint: Any, value: Any) -> Any:
    """Return `value` as its field's type wants it: lists as tuples, objects as dataclasses."""
    origin = typing.get_origin(hint)
    if origin is types.UnionType:
        if value is None:
            return None
        hint = next(arm for arm in typing.get_args(hint) if arm is not type(None))
        return _value(hint, value)
    if origin is tuple:
        arms = typing.get_args(hint)
        if arms[-1] is Ellipsis:
            return tuple(_value(arms[0], item) for item in value)
        return tuple(_value(arm, item) for arm, item in zip(arms, value, strict=True))
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _build(hint, value)
    if origin is list:
        return [_value(typing.get_args(hint)[0], item) for item in _scalar(hint, value)]
    if origin is dict:
        inside = typing.get_args(hint)[1]
        return {key: _value(inside, item) for key, item in _scalar(hint, value).items()}
    return _scalar(hint, value)


def _scalar(hint: Any, value: Any) -> Any:
    """Return `value` checked against a plain type; a whole number may stand for a float."""
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    wanted = typing.get_origin(hint) or hint
    truth = wanted is int and isinstance(value, bool)
    if wanted is not Any and (truth or not isinstance(value, wanted)):
        msg = f"{shown(repr(value), 60)} is not {wanted.__name__}"
        raise TypeError(msg)
    return value
