"""Makes strategies from their text, as users and scenarios write it: ``subscale(early_route=true)``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields

from headgate.core.call import Call
from headgate.core.errors import ConfigError
from headgate.core.input import shown, whole
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

_SWITCH = {"true": True, "false": False}


def names() -> tuple[str, ...]:
    """Return the names of the strategies, in alphabetical order."""
    return tuple(_STRATEGIES)


def default(plan: Plan) -> Strategy:
    """Return `shared` if every move stays within its host, else `subscale`."""
    return Subscales() if plan.across else Shared()


def strategy(text: str) -> Strategy:
    """Return the strategy that `text` names, with the parameters in `text`.

    `text`: a name, or a name and parameters: ``fluid``, ``subscale(scheduling=false, per_host=4)``.
    Raises `ConfigError`: no strategy or parameter has that name, a value is of the wrong kind or
    out of range, or `text` is not written like a call.
    """
    call = Call.parse(text, "strategy", _STRATEGIES, "subscale(per_host=2)")
    kind = _STRATEGIES[call.name]
    defaults = {field.name: field.default for field in fields(kind)}
    values = call.values(list(defaults))
    return kind(
        **{key: _value(call.name, key, value, defaults[key]) for key, value in values.items()}
    )


def _value(name: str, key: str, text: str, default: object) -> bool | int:
    """Return the value of a parameter: a switch or a whole number, as the type of its default."""
    if isinstance(default, bool):
        if text not in _SWITCH:
            msg = f"{name}: {key}={shown(text, 60)} is no switch; write {key}=true or {key}=false."
            raise ConfigError(msg)
        return _SWITCH[text]
    if not text.isdecimal():
        msg = f"{name}: {key}={shown(text, 60)} is no whole number; write for example {key}=2."
        raise ConfigError(msg)
    return whole(text, f"{name}: {key}")
