"""Policies by name, as users and scenarios write them: ``streamswitch(0.2)``."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping

from headgate.control.policies.dhalion import Dhalion
from headgate.control.policies.drs import Drs, DrsBalanced
from headgate.control.policies.ds2 import Ds2
from headgate.control.policies.static import Static
from headgate.control.policies.streamswitch import StreamSwitch
from headgate.control.policies.threshold import Threshold
from headgate.control.policy import Policy
from headgate.core.errors import ConfigError, nearest

_POLICIES: Mapping[str, Callable[..., Policy]] = {
    "dhalion": Dhalion,
    "drs": Drs,
    "drs-lb": DrsBalanced,
    "ds2": Ds2,
    "static": Static,
    "streamswitch": StreamSwitch,
    "threshold": Threshold,
}

_CALL = re.compile(r"\s*([\w-]+)\s*(?:\((.*)\))?\s*", re.DOTALL)


def names() -> tuple[str, ...]:
    """Return the names of the policies, in alphabetical order."""
    return tuple(_POLICIES)


def policy(text: str) -> Policy:
    """Return the policy that `text` names, with the parameters that it gives.

    Parameters
    ----------
    text : str
        A name, or a name and parameters as in a call of Python: ``static(8)``,
        ``drs-lb(epsilon=0.4)``. Every parameter is a number.

    Raises
    ------
    ConfigError
        No policy or parameter has that name, a value is no number or out of range, or `text` is
        not written like a call.
    """
    match = _CALL.fullmatch(text)
    if match is None:
        msg = f'cannot read the policy "{text}"; write a name and parameters: streamswitch(0.2).'
        raise ConfigError(msg)
    name, arguments = match[1], match[2] or ""
    if name not in _POLICIES:
        hint = nearest(name, _POLICIES) or f"; known: {', '.join(_POLICIES)}"
        msg = f'unknown policy "{name}"{hint}.'
        raise ConfigError(msg)
    make = _POLICIES[name]
    types = {
        parameter.name: int if "int" in str(parameter.annotation) else float
        for parameter in inspect.signature(make).parameters.values()
    }
    return make(**_values(name, arguments, types))


def _values(
    policy_name: str, arguments: str, types: Mapping[str, type[int] | type[float]]
) -> dict[str, float]:
    """Return the value of each parameter that is given in `arguments`."""
    values: dict[str, float] = {}
    parts = arguments.split(",") if arguments.strip() else []
    for place, part in enumerate(parts):
        key, equals, value = (piece.strip() for piece in part.rpartition("="))
        if not equals:
            if place >= len(types):
                msg = f"{policy_name} takes {len(types)} parameters: {', '.join(types)}."
                raise ConfigError(msg)
            key = list(types)[place]
        if key not in types:
            hint = nearest(key, types) or f"; it takes {', '.join(types) or 'none'}"
            msg = f'{policy_name} has no parameter "{key}"{hint}.'
            raise ConfigError(msg)
        if key in values:
            msg = f"{policy_name}: {key} is given twice; give it once."
            raise ConfigError(msg)
        values[key] = _number(policy_name, key, value, types[key])
    return values


def _number(policy_name: str, key: str, value: str, kind: type[int] | type[float]) -> float:
    try:
        return kind(value)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        msg = f"{policy_name}: {key}={value} is not {what}; write for example {key}=1."
        raise ConfigError(msg) from None
