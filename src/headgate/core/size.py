"""Parses and formats sizes as text: a number and a unit, never a bare number."""

from __future__ import annotations

import re

from headgate.core.errors import ConfigError, nearest
from headgate.core.input import shown, whole

_BYTES_OF_UNIT = {
    "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip

_LARGEST = 10**18
"""Largest size in bytes, an exabyte: 64 bits hold it, and no machine has it."""

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def bytes_or_size(text: str) -> int:
    """Return the bytes of an option's text: a whole number of bytes, or a text for `parse_bytes`."""
    return whole(text, "the size", 1, _LARGEST) if text.strip().isdecimal() else parse_bytes(text)


def parse_bytes(text: str) -> int:
    """Return the bytes of a size written with its unit.

    `text`: a number and a unit, such as ``500MB``, ``1 GB`` (powers of 1,000) or ``64 MiB`` (of
    1,024). Raises `ConfigError`: no number, no unit, an unknown unit, less than 1 byte, or more than
    an exabyte.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        msg = f'"{shown(text, 60)}" is not a size; write a number and a unit, such as "500 MB".'
        raise ConfigError(msg)
    number, unit = match.groups()
    if not unit:
        msg = f'size "{shown(text, 60)}" has no unit; write it as "500 MB".'
        raise ConfigError(msg)
    if unit.lower() not in _BYTES_OF_UNIT:
        known = nearest(unit.lower(), _BYTES_OF_UNIT) or "; use kB, MB, GB or MiB."
        msg = f'size "{shown(text, 60)}" has the unknown unit "{shown(unit, 20)}"{known}'
        raise ConfigError(msg)
    size = float(number) * _BYTES_OF_UNIT[unit.lower()]
    if not 1 <= size <= _LARGEST:
        what = "nothing" if size < 1 else "more than a machine has"
        msg = f'size "{shown(text, 60)}" is {what}; use 1 B or more, 1,000,000 TB at most.'
        raise ConfigError(msg)
    return int(size)


def format_bytes(size: float) -> str:
    """Return a size as text for people: three digits and a unit of powers of 1,000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000 * 0.9995:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
