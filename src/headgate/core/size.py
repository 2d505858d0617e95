"""Sizes as text: a number and a unit, never a bare number."""

from __future__ import annotations

import re

from headgate.core.errors import ConfigError, nearest

_BYTES_OF_UNIT = {
    "b": 1,
    "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12,
    "kib": 2**10, "mib": 2**20, "gib": 2**30, "tib": 2**40,
}  # fmt: skip

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)")


def parse_bytes(text: str) -> int:
    """Return the bytes of a size written with its unit.

    Parameters
    ----------
    text : str
        A number and a unit, such as ``500MB``, ``1 GB`` (powers of 1,000) or ``64 MiB`` (of 1,024).

    Raises
    ------
    ConfigError
        No number, no unit, an unknown unit, or nothing at all.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        msg = f'"{text}" is not a size; write a number and a unit, such as "500 MB".'
        raise ConfigError(msg)
    number, unit = found.groups()
    if not unit:
        msg = f'size "{text}" has no unit; write "{number} MB" or "{number} GB".'
        raise ConfigError(msg)
    if unit.lower() not in _BYTES_OF_UNIT:
        known = nearest(unit.lower(), _BYTES_OF_UNIT) or "; use kB, MB, GB or MiB."
        msg = f'size "{text}" has the unknown unit "{unit}"{known}'
        raise ConfigError(msg)
    size = int(float(number) * _BYTES_OF_UNIT[unit.lower()])
    if size < 1:
        msg = f'size "{text}" is nothing; use 1 B or more.'
        raise ConfigError(msg)
    return size


def format_bytes(size: float) -> str:
    """Return a size for people: three digits and a unit of powers of 1,000."""
    for unit in ("B", "kB", "MB", "GB"):
        if abs(size) < 1000 * 0.9995:
            return f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} TB"
