"""Finds fleet policies by name, and scales their times to the length of a round.

The papers' times fit rounds of 10 s on a cluster where a change takes minutes. Here rounds have any
length, and a time of so many rounds in the paper is a time of as many rounds here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from headgate.control.fleet.henge import Goal, Henge, HengeParameters
from headgate.control.fleet.unified_fleet import UnifiedFleet, UnifiedFleetParameters
from headgate.control.fleet.view import FleetPolicy
from headgate.core.errors import ConfigError, nearest
from headgate.core.installed import FLEET_POLICIES, installed

_OBSERVE_ROUNDS = 90
_FRESH_ROUNDS = 30
_SETTLE_ROUNDS = 6
_SETTLE_MAX_ROUNDS = 30
_BLACKLIST_ROUNDS = 360
"""Henge's 900 s, 5 min, 1 min, 5 min and 1 h in rounds of 10 s."""

_AHEAD_ROUNDS = 12
_CATCH_UP_ROUNDS = 30
"""The 120 s and 300 s of `UnifiedFleet` in rounds of 10 s."""

_FREE_MARGIN, _FREE_KEPT = 0.1, 1
"""`epsilon` and `kept` of `UnifiedFleet` where a change of slots stops no job, so that jobs need no
reserve to avoid changes. The margin is that of `Unified`."""

_INPUT_STEADY = 0.2
_INPUT_CHANGE = 0.3
"""Relative changes of an input rate above its noise: up to 10 % either way over six rounds of 4 s
(measured)."""


def in_rounds(round_s: float, *, observe_s: float | None = None, **changes: Any) -> HengeParameters:
    """Return Henge's parameters for jobs in micro-batches, with its times in proportion to a round.

    Parameters
    ----------
    round_s : float    Time between two rounds, in seconds.
    observe_s : float, optional
        Time for which a new fleet is only watched, in seconds; 90 rounds by default.
    **changes
        Other fields of `HengeParameters`.
    """
    parameters = HengeParameters(
        round_s=round_s,
        observe_s=_OBSERVE_ROUNDS * round_s if observe_s is None else observe_s,
        fresh_s=_FRESH_ROUNDS * round_s,
        settle_s=_SETTLE_ROUNDS * round_s,
        settle_max_s=_SETTLE_MAX_ROUNDS * round_s,
        blacklist_s=_BLACKLIST_ROUNDS * round_s,
        input_steady=_INPUT_STEADY,
        input_change=_INPUT_CHANGE,
        blame_falling=False,
    )
    return replace(parameters, **changes)


def henge(round_s: float, *, observe_s: float | None = None, **changes: Any) -> Henge:
    """Return Henge with the parameters of `in_rounds`."""
    return Henge(in_rounds(round_s, observe_s=observe_s, **changes))


def unified(round_s: float, *, observe_s: float | None = None, **changes: Any) -> UnifiedFleet:
    """Return the unified policy over a fleet whose changes stop no job.

    `round_s`, `observe_s`: see `in_rounds`. `**changes`: other fields of `UnifiedFleetParameters`.
    """
    parameters = UnifiedFleetParameters(
        epsilon=_FREE_MARGIN,
        kept=_FREE_KEPT,
        ahead_s=_AHEAD_ROUNDS * round_s,
        look_back_s=_AHEAD_ROUNDS * round_s,
        observe_s=_OBSERVE_ROUNDS * round_s if observe_s is None else observe_s,
        settle_s=_SETTLE_ROUNDS * round_s,
        catch_up_s=_CATCH_UP_ROUNDS * round_s,
    )
    return UnifiedFleet(replace(parameters, **changes))


_Make = Callable[[float, float | None, Goal], FleetPolicy]
"""Takes the length of a round and the time of watching, in seconds, and the goal; makes a policy."""

_POLICIES: Mapping[str, _Make] = {
    "henge": lambda round_s, observe_s, goal: henge(round_s, observe_s=observe_s, goal=goal),
    "unified": lambda round_s, observe_s, _: unified(round_s, observe_s=observe_s),
}


def names() -> tuple[str, ...]:
    """Return the names of headgate's own fleet policies."""
    return tuple(_POLICIES)


def check(name: str, goal: str = Goal.TOTAL) -> None:
    """Refuse a name that no fleet policy has, and a goal that the policy does not have.

    Raises `ConfigError`: there is no such policy or goal, only Henge has that goal, or the policy of
    another distribution cannot be loaded.
    """
    others = {} if name in _POLICIES else installed(FLEET_POLICIES)
    if name in others:
        others[name].load()
    elif name not in _POLICIES:
        known = [*_POLICIES, *others]
        hint = nearest(name, known) or f"; known: {', '.join(known)}."
        msg = f'unknown fleet policy "{name}"{hint}'
        raise ConfigError(msg)
    if goal not in list(Goal):
        msg = f'unknown goal "{goal}"{nearest(goal, Goal) or "; use total or max-min."}'
        raise ConfigError(msg)
    if goal != Goal.TOTAL and name != "henge":
        msg = f'the fleet policy {name} has no goal "{goal}"; use policy = "henge", or no goal.'
        raise ConfigError(msg)


def fleet_policy(
    name: str, round_s: float, *, observe_s: float | None = None, goal: str = Goal.TOTAL
) -> FleetPolicy:
    """Make the fleet policy that `name` names.

    Raises `ConfigError`: as `check`.

    Parameters
    ----------
    name : str
        One of `names`, or the name of another distribution's policy (`headgate.core.installed`).
    round_s : float    Time between two rounds, in seconds.
    observe_s : float, optional
        Time for which headgate's policies only watch a new fleet, in seconds; 90 rounds by default.
    goal : str    What Henge maximises: *total* or *max-min*.
    """
    check(name, goal)
    if name in _POLICIES:
        return _POLICIES[name](round_s, observe_s, Goal(goal))
    plugin = installed(FLEET_POLICIES)[name]
    make = plugin.load()
    with plugin.blamed("made"):
        made: FleetPolicy = make(round_s=round_s)
        if not (callable(getattr(made, "decide", None)) and isinstance(made.name, str)):
            msg = (
                f"{plugin} has no method decide, or no text called name; repair that distribution."
            )
            raise ConfigError(msg)
    return made
