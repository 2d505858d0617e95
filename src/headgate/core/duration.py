"""Parses and formats durations as text: a number and a unit, never a bare number."""

from __future__ import annotations

import re
import time

from headgate.core.errors import ConfigError, nearest
from headgate.core.input import shown

_SECONDS_OF_UNIT = {
    "us": 1e-6, "microsecond": 1e-6, "microseconds": 1e-6,
    "ms": 1e-3, "millisecond": 1e-3, "milliseconds": 1e-3,
    "s": 1.0, "sec": 1.0, "second": 1.0, "seconds": 1.0,
    "min": 60.0, "minute": 60.0, "minutes": 60.0,
    "h": 3600.0, "hour": 3600.0, "hours": 3600.0,
    "d": 86400.0, "day": 86400.0, "days": 86400.0,
}  # fmt: skip

LONGEST_S = 100 * 365.25 * 86_400.0
"""Longest duration in seconds, a hundred years: clocks, timers and dates plus this do not overflow."""

_CHARACTERS = 1000
_PART = re.compile(r"(\d+(?:\.\d+)?|\.\d+)\s*([A-Za-z]*)")


def parse_duration_s(text: object, *, zero: bool = False) -> float:
    """Return the length of a duration written with its unit.

    The result is in seconds; > 0, or >= 0 with `zero`; at most `LONGEST_S`.

    `text`: a number and a unit, such as ``60s``, ``800 ms``, ``2 min``, ``1h``; or several of these,
    as ``1 min 30 s``. Spark's own words (``second``, ``minutes`` ...) are units, too. `zero`: whether
    a length of zero is allowed. Raises `ConfigError`: no number, no unit, an unknown unit, a length of
    zero, or more than a hundred years.
    """
    if not isinstance(text, str):
        msg = (
            f'{shown(repr(text), 60)} is not a duration; write a number and a unit, such as "60 s".'
        )
        raise ConfigError(msg)
    stripped = (text.strip() if len(text) <= _CHARACTERS else "") or "?"
    total_s = 0.0
    position = 0
    while position < len(stripped):
        part = _PART.match(stripped, position)
        if part is None:
            msg = (
                f'"{shown(text, 60)}" is not a duration; write a number and a unit, such as "60 s".'
            )
            raise ConfigError(msg)
        total_s += float(part[1]) * _unit_s(part[2], number=part[1], text=text)
        position = part.end()
        while position < len(stripped) and stripped[position].isspace():
            position += 1
    if not ((total_s > 0.0 or zero) and total_s <= LONGEST_S):
        subject = f'duration "{shown(text, 60)}"'
        msg = f'{subject} is not above zero and finite (100 years at most); write it as "60 s".'
        raise ConfigError(msg)
    return total_s


def _unit_s(unit: str, *, number: str, text: str) -> float:
    """Return the seconds of one `unit`; `number` and `text` are for the message."""
    if not unit:
        number = shown(number, 60)
        subject = f'duration "{shown(text, 60)}" has no unit at "{number}"'
        msg = f'{subject}; write "{number} s" or "{number} ms".'
        raise ConfigError(msg)
    if unit.lower() not in _SECONDS_OF_UNIT:
        known = nearest(unit.lower(), _SECONDS_OF_UNIT) or "; use ms, s, min or h."
        msg = f'duration "{shown(text, 60)}" has the unknown unit "{unit}"{known}'
        raise ConfigError(msg)
    return _SECONDS_OF_UNIT[unit.lower()]


def at_text(at_s: float) -> str:
    """Return a time, in seconds since 1970, as text: local date and time, to the second."""
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
