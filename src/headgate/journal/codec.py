"""Events to JSON lines and back."""

from __future__ import annotations

import dataclasses
import json
import types
import typing
from functools import cache
from typing import Any

from headgate.core.errors import CheckpointError, EngineError
from headgate.journal.schema import KINDS, VERSION, Event


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
        fields = json.loads(line)
        kind = KINDS.get(fields["event"])
        if kind is None:
            return None
        if fields["event"] in ("start", "fleet-start") and fields["version"] != VERSION:
            msg = (
                f"{where} has journal version {fields['version']}, this headgate reads {VERSION}; "
                "use the headgate that wrote it."
            )
            raise CheckpointError(msg)
        return typing.cast(Event, _build(kind, fields))
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        msg = f"{where} is not a journal line ({error!r}); the file is damaged or not a journal."
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
    return _scalar(hint, value)


def _scalar(hint: Any, value: Any) -> Any:
    """Return `value` checked against a plain type; a whole number may stand for a float."""
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    wanted = typing.get_origin(hint) or hint
    if wanted is not Any and not isinstance(value, wanted):
        msg = f"{value!r} is not {wanted.__name__}"
        raise TypeError(msg)
    return value
