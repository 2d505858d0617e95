"""Checks the ranges of parameters."""

from __future__ import annotations

import math

from headgate.core.errors import ConfigError

_CELLS_MAX = 50_000_000
"""Largest product of a window's ticks and key groups; two or three float64 for each are 1.2 GB at most.
Chosen: ten hours of 128 key groups fit, at ticks of 0.1 s."""


def check_range(
    where: str, name: str, value: float, low: float, high: float = math.inf, *, above: bool = False
) -> None:
    """Raise ConfigError unless ``low <= value <= high``.

    `where`: name of the policy or decorator that has the parameter. `above`: whether `low` itself is
    excluded.
    """
    if low <= value <= high and not (above and value == low):
        return
    least = f"more than {low:g}" if above else f"at least {low:g}"
    most = "" if high == math.inf else f" and at most {high:g}"
    msg = f"{where}: {name}={value!r} is out of range; use {least}{most}."
    raise ConfigError(msg)


def window_ticks(window_s: float, delta_s: float, key_groups: int) -> int:
    """Return the number of ticks in a window, rounded up; every tick has counters of each key group.

    Raises `ConfigError`: the window has no length, or its counters need too much memory.
    """
    ticks = window_s / delta_s
    if not 0.0 < ticks < math.inf:
        msg = f"window_s={window_s:g} is out of range; use a finite length above 0."
        raise ConfigError(msg)
    if ticks * key_groups > _CELLS_MAX:
        most_s = _CELLS_MAX // key_groups * delta_s
        msg = (
            f"a window of {window_s:g} s is too long to be kept for {key_groups} key groups; use "
            f"{most_s:g} s at most."
        )
        raise ConfigError(msg)
    return max(1, math.ceil(ticks - 1e-9))
