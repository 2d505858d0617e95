"""Makes policies from their text, as users and scenarios write it: ``streamswitch(0.2)``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TypeVar

from headgate.control.decorators import ActionLimit, Cooldown, Hysteresis
from headgate.control.estimators.forecast import daily_blend
from headgate.control.limits import check_range
from headgate.control.policy import Policy, checked
from headgate.control.pools.psps import Psps
from headgate.control.pools.replicas import ReplicaPolicy
from headgate.control.pools.unified_pools import UnifiedPools
from headgate.control.slots.static import Static
from headgate.control.slots.streamswitch import StreamSwitch
from headgate.control.slots.threshold import Threshold
from headgate.control.slots.unified import Unified
from headgate.core.call import Call
from headgate.core.errors import ConfigError
from headgate.core.input import finite, shown
from headgate.core.installed import POLICIES, REPLICA_POLICIES, installed

Made = TypeVar("Made")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)

LIMITS: Mapping[str, Callable[..., Policy]] = {
    "hysteresis": Hysteresis,
    "cooldown_s": Cooldown,
    "per_minute": ActionLimit,
}
"""Parameters that every policy over slots takes by name, and their decorators, innermost first."""

DEFAULT = "unified"
"""Name of the policy of a query that has an SLO and names no policy."""

_POLICIES: Mapping[str, Callable[..., Policy]] = {
    "static": Static,
    "streamswitch": StreamSwitch,
    "threshold": Threshold,
    "unified": Unified,
}


_SEASON_MAX = 100_000
"""Most intervals in a season; a forecast stores one value of each. Eleven days at intervals of 10 s."""


def _psps(blend: int = 0, season: int = 0) -> ReplicaPolicy:
    """Return PSPS; it forecasts if `blend` is 1, or if a season has `season` > 0 intervals."""
    check_range("psps", "blend", blend, 0, 1)
    check_range("psps", "season", season, 0, _SEASON_MAX)
    return Psps(daily_blend(season or None) if blend or season else None)


def _unified_pools(bound_s: float = 1.0) -> ReplicaPolicy:
    """Return the policy with the only parameter that a text may set."""
    return UnifiedPools(bound_s)


_REPLICA_POLICIES: Mapping[str, Callable[..., ReplicaPolicy]] = {
    "psps": _psps,
    "unified-pools": _unified_pools,
}


def names() -> tuple[str, ...]:
    """Return the names of headgate's own policies, in alphabetical order."""
    return tuple(_POLICIES)


def policy(text: str) -> Policy:
    """Return the policy that `text` names, with the parameters in `text`.

    Other distributions may add policies (`headgate.core.installed`). Where one of them has the name
    of a policy of headgate, the name means headgate's policy.

    `text`: a name, or a name and parameters as in a call of Python: ``static(8)``,
    ``streamswitch(epsilon=0.4)``. Every parameter is a number. Each policy also takes, by name,
    ``hysteresis`` (successive cycles in which the policy must want a change), ``cooldown_s`` (seconds
    after a change in which its slots do not change again) and ``per_minute`` (most changes in a minute):
    ``streamswitch(0.2, hysteresis=3, cooldown_s=30)``. Raises `ConfigError`: no policy or parameter
    has that name, a value is no number or out of range, `text` is not written like a call, or the
    policy of another distribution cannot be made.
    """
    if is_replica_policy(text):
        msg = (
            f"policy {_name(text)} sets the replicas of a stateless query, not slots; use one of "
            f"{', '.join(_POLICIES)}, or {_name(text)} for a stateless query."
        )
        raise ConfigError(msg)
    others = {} if _name(text) in _POLICIES else installed(POLICIES)
    call = Call.parse(text, "policy", [*_POLICIES, *others], "streamswitch(0.2)")
    if call.name not in others:
        return _made(call, _POLICIES[call.name], LIMITS)
    plugin = others[call.name]
    make = plugin.load()
    with plugin.blamed("made"):
        return checked(_made(call, make, LIMITS), str(plugin))


def same_name(name: str, other: str) -> bool:
    """Return whether two texts name the same policy; parameters do not matter."""
    return _name(name) == _name(other)


def is_own(text: str) -> bool:
    """Return whether `text` names a policy that headgate has itself."""
    return _name(text) in _POLICIES


def is_replica_policy(text: str) -> bool:
    """Return whether `text` names a policy over pools of replicas."""
    name = _name(text)
    return name in _REPLICA_POLICIES or name in installed(REPLICA_POLICIES)


def replica_policy(text: str) -> ReplicaPolicy:
    """Return the policy over pools of replicas that `text` names: ``psps``, ``unified-pools(0.5)``.

    Raises `ConfigError`: as `policy`.
    """
    others = {} if _name(text) in _REPLICA_POLICIES else installed(REPLICA_POLICIES)
    call = Call.parse(text, "policy", [*_REPLICA_POLICIES, *others], "psps")
    if call.name not in others:
        return _made(call, _REPLICA_POLICIES[call.name])
    plugin = others[call.name]
    make = plugin.load()
    with plugin.blamed("made"):
        policy: ReplicaPolicy = _made(call, make)
    return policy


def _name(text: str) -> str:
    return text.partition("(")[0].strip()


def _made(
    call: Call,
    make: Callable[..., Made],
    around: Mapping[str, Callable[..., Made]] = MappingProxyType({}),
) -> Made:
    """Return the policy that `make` makes, inside each decorator of `around` whose parameter is given."""
    own = _types(make)
    # the first parameter of a decorator is the policy, the second the limit
    types = {**own, **{key: list(_types(limit).values())[1] for key, limit in around.items()}}
    texts = call.values(list(own), list(around))
    numbers = {key: _number(call.name, key, value, types[key]) for key, value in texts.items()}
    made = make(**{key: value for key, value in numbers.items() if key in own})
    for key in around:
        if key in numbers:
            made = around[key](made, numbers[key])
    return made


def _types(make: Callable[..., object]) -> dict[str, type[int] | type[float]]:
    """Return the type of each parameter of `make`: int for a whole number, else float."""
    return {
        parameter.name: int if "int" in str(parameter.annotation) else float
        for parameter in inspect.signature(make).parameters.values()
        if parameter.kind in _BY_NAME
    }


def _number(policy_name: str, key: str, value: str, kind: type[int] | type[float]) -> float:
    try:
        number = kind(value)
    except ValueError:
        what = "a whole number" if kind is int else "a number"
        msg = f"{policy_name}: {key}={shown(value, 60)} is not {what}; write for example {key}=1."
        raise ConfigError(msg) from None
    return finite(number, f"{policy_name}: {key}")
