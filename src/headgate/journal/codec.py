"""Converts events to JSON lines and back."""

from __future__ import annotations

import json

import msgspec

from headgate.core.errors import CheckpointError, ConfigError, EngineError
from headgate.core.input import bounded, shown
from headgate.journal.schema import KINDS, VERSION, Batch, Event


class _Head(msgspec.Struct):
    """Holds the fields that decide how the rest of a line is read."""

    event: str
    version: int = VERSION


_head = msgspec.json.Decoder(_Head)

_FREQUENT = b'{"event":"batch",'
"""Beginning of a batch's line as `encode` writes it; such lines are parsed once, not twice."""

_HALF = b"\\ud"
"""Beginning of a surrogate in the ASCII form of JSON."""

_DECODERS = {kind: msgspec.json.Decoder(event) for kind, event in KINDS.items()}


def encode(event: Event) -> bytes:
    """Return the line of an event, newline included.

    A surrogate without its other half, as in a path that is no UTF-8, becomes ``?``. Raises
    `EngineError` if a number is not finite, a parameter is not JSON, or a field has a wrong type.
    """
    try:
        line = {"event": event.KIND, **msgspec.to_builtins(event, enc_hook=_plain)}
        # not msgspec's encoder, which writes a number that is not finite as null
        text = json.dumps(line, allow_nan=False, separators=(",", ":")).encode() + b"\n"
        if _HALF in text:
            text = json.dumps(line, ensure_ascii=False, separators=(",", ":")).encode(
                "utf-8", "replace"
            )
            text += b"\n"
        if not isinstance(event, Batch):  # batches are frequent, and contain no values from users
            _DECODERS[event.KIND].decode(text)
    except (TypeError, ValueError) as error:
        msg = f'journal event "{event.KIND}" cannot be written as JSON: {str(error).rstrip(".")}.'
        raise EngineError(msg) from error
    return text


def decode(line: bytes, *, where: str) -> Event | None:
    """Return the event of a line, or None for a kind that this version does not know.

    Ignores fields that the kind does not have.

    `line`: a whole line, with or without its newline. `where`: journal and line number, for
    messages. Raises `CheckpointError` if the line is not JSON, lacks a field, or states a version
    that this headgate cannot read.
    """
    try:
        if line.startswith(_FREQUENT):
            kind = "batch"
        else:
            head = _head.decode(line)
            kind = head.event
            if kind in ("start", "fleet-start") and head.version != VERSION:
                msg = (
                    f"{where} has journal version {head.version}, this headgate reads {VERSION}; "
                    "use the headgate that wrote it."
                )
                raise CheckpointError(msg)
        decoder = _DECODERS.get(kind)
        if decoder is None:
            return None
        event = decoder.decode(line)
        if isinstance(event, Batch):
            for counted in (*event.arrivals, *event.served_groups):
                if len(counted.groups) != len(counted.records):
                    msg = f"{len(counted.groups)} key groups have {len(counted.records)} counts"
                    raise ConfigError(msg)
        else:
            for free in ("parameters", "summary"):
                bounded(getattr(event, free, {}), free)
    except (ConfigError, ValueError, RecursionError) as error:
        why = shown(str(error).removesuffix(".") or repr(error), 160)
        msg = f"{where} is not a journal line ({why}); the file is damaged or not a journal."
        raise CheckpointError(msg) from error
    return event


def _plain(value: object) -> object:
    """Convert a number of NumPy's to a plain number."""
    item = getattr(value, "item", None)
    if item is None:
        msg = f"{type(value).__name__} is not JSON"
        raise TypeError(msg)
    return item()
