"""Formats numbers as text, the same way in every view."""

from __future__ import annotations

from headgate.core import duration

_STEP_BYTES = 1024
_HOUR_MIN = 60
_DAY_MIN = 24 * _HOUR_MIN


def bytes_text(size_bytes: float) -> str:
    """Return a size as ``184 MB``; powers of 1024."""
    for unit in ("B", "KB", "MB", "GB"):
        if size_bytes < _STEP_BYTES:
            digits = 1 if unit != "B" and size_bytes < 10 else 0  # noqa: PLR2004
            return f"{size_bytes:.{digits}f} {unit}"
        size_bytes /= _STEP_BYTES
    return f"{size_bytes:.1f} TB"


def ms_text(value_ms: float | None) -> str:
    """Return a number of milliseconds without its unit, or ``-`` for None."""
    if value_ms is None:
        return "-"
    return f"{value_ms:.1f}" if abs(value_ms) < 10 else f"{value_ms:,.0f}"  # noqa: PLR2004


def clock_text(seconds: float) -> str:
    """Return a length of time as ``00:01:30``."""
    whole = max(0, int(seconds))
    return f"{whole // 3600:02d}:{whole // 60 % 60:02d}:{whole % 60:02d}"


def span_text(seconds: float) -> str:
    """Return a length of time in its two largest units: ``45 s``, ``12 min``, ``7 h 57 min``."""
    minutes = int(seconds) // 60
    if minutes < 2:  # noqa: PLR2004 - below two minutes seconds are read at a glance
        return f"{max(0.0, seconds):.0f} s"
    if minutes < _HOUR_MIN:
        return f"{minutes} min"
    if minutes < _DAY_MIN:
        return f"{minutes // _HOUR_MIN} h {minutes % _HOUR_MIN} min"
    return f"{minutes // _DAY_MIN} d {minutes % _DAY_MIN // _HOUR_MIN} h"


def since_text(at_ms: float, began_ms: float) -> str:
    """Return a moment as the time since a run began, ``+00:01:30``, as ``why --at`` takes it.

    The sign distinguishes the text from a time of day.
    """
    return f"+{clock_text((at_ms - began_ms) / 1000)}"


def at_text(at_ms: float) -> str:
    """Return a moment in local time, ``2026-01-31 03:12:30``."""
    return duration.at_text(at_ms // 1000)


def ago_text(at_ms: float, now_ms: float) -> str:
    """Return a moment and how long it is past, ``2026-01-31 03:12:30 (00:01:30 ago)``."""
    return f"{at_text(at_ms)} ({clock_text((now_ms - at_ms) / 1000)} ago)"
