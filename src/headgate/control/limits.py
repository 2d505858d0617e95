"""The ranges of parameters."""

from __future__ import annotations

import math

from headgate.core.errors import ConfigError


def check_range(
    where: str, name: str, value: float, low: float, high: float = math.inf, *, above: bool = False
) -> None:
    """Raise ConfigError unless ``low <= value <= high``.

    Parameters
    ----------
    where : str
        Whose parameter it is: the name of a policy or decorator.
    name : str
    value : float
    low, high : float
    above : bool
        Whether `low` itself is excluded.
    """
    if low <= value <= high and not (above and value == low):
        return
    least = f"more than {low:g}" if above else f"at least {low:g}"
    most = "" if high == math.inf else f" and at most {high:g}"
    msg = f"{where}: {name}={value!r} is out of range; use {least}{most}."
    raise ConfigError(msg)
