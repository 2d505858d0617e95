"""Strategies by name, as users and scenarios write them: ``subscale(early_route=true)``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import fields

from headgate.core.errors import ConfigError, nearest
from headgate.migration.plan import Plan
from headgate.migration.strategies.all_at_once import AllAtOnce
from headgate.migration.strategies.base import Base
from headgate.migration.strategies.fluid import Fluid
from headgate.migration.strategies.on_demand import OnDemand
from headgate.migration.strategies.shared import Shared
from headgate.migration.strategies.stop_restart import StopRestart
from headgate.migration.strategies.subscale import Subscales
from headgate.migration.strategy import Strategy

_STRATEGIES: Mapping[str, type[Base]] = {
    kind.name: kind for kind in (AllAtOnce, Fluid, OnDemand, Shared, StopRestart, Subscales)
}

_CALL = re.compile(r"\s*([\w-]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_SWITCH = {"true": True, "false": False}


def names() -> tuple[str, ...]:
    """Return the names of the strategies, in alphabetical order."""
    return tuple(_STRATEGIES)


def default(plan: Plan) -> Strategy:
    """Return `shared` if every move stays within its host, else `subscale`."""
    return Subscales() if plan.across else Shared()


def strategy(text: str) -> Strategy:
    """Return the strategy that `text` names, with the parameters that it gives.

    Parameters
    ----------
    text : str
        A name, or a name and parameters: ``fluid``, ``subscale(scheduling=false, per_host=4)``.

    Raises
    ------
    ConfigError
        No strategy or parameter has that name, a value is of the wrong kind or out of range, or
        `text` is not written like a call.
    """
    match = _CALL.fullmatch(text)
    if match is None:
        msg = f'cannot read the strategy "{text}"; write for example subscale(per_host=2).'
        raise ConfigError(msg)
    name, arguments = match[1], match[2] or ""
    if name not in _STRATEGIES:
        hint = nearest(name, _STRATEGIES) or f"; known: {', '.join(_STRATEGIES)}."
        msg = f'unknown strategy "{name}"{hint}'
        raise ConfigError(msg)
    return _STRATEGIES[name](**_values(name, arguments))


def _values(name: str, arguments: str) -> dict[str, bool | int]:
    """Return the value of each parameter that is given in `arguments`."""
    defaults = {field.name: field.default for field in fields(_STRATEGIES[name])}
    values: dict[str, bool | int] = {}
    for part in arguments.split(",") if arguments.strip() else []:
        key, _, value = (piece.strip() for piece in part.partition("="))
        if key not in defaults:
            hint = nearest(key, defaults) or f"; it takes {', '.join(defaults) or 'none'}."
            msg = f'{name} has no parameter "{key}"{hint}'
            raise ConfigError(msg)
        if isinstance(defaults[key], bool):
            if value not in _SWITCH:
                msg = f"{name}: {key}={value} is no switch; write {key}=true or {key}=false."
                raise ConfigError(msg)
            values[key] = _SWITCH[value]
        elif not value.isdecimal():
            msg = f"{name}: {key}={value} is no whole number; write for example {key}=2."
            raise ConfigError(msg)
        else:
            values[key] = int(value)
    return values
