"""Reads the scheduled changes of a fleet's budget from its description."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headgate.core.duration import parse_duration_s
from headgate.core.errors import ConfigError, nearest
from headgate.core.input import shown

_KEYS = ("at", "slots")
_STEPS_MAX = 1000


@dataclass(frozen=True)
class BudgetStep:
    """Holds a table ``[[fleet.budget]]``: a change of the budget."""

    at_s: float
    """Time from the moment when all jobs have started, in s; > 0."""
    slots: int
    """Budget from that time on; >= 1."""


def budget_steps(value: Any) -> tuple[BudgetStep, ...]:
    """Return the changes of a budget, ordered by time.

    Raises `ConfigError`: `value` is not a list of tables with ``at`` and ``slots``, or one of these
    is out of range.
    """
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value):
        text = shown(repr(value), 60)
        msg = f"[fleet] budget is {text}; write tables [[fleet.budget]] instead, each with at and slots."
        raise ConfigError(msg)
    if len(value) > _STEPS_MAX:
        msg = f"[[fleet.budget]] occurs {len(value)} times; use {_STEPS_MAX} at most."
        raise ConfigError(msg)
    return tuple(sorted(map(_step, value), key=lambda step: step.at_s))


def _step(table: Mapping[str, Any]) -> BudgetStep:
    for key in table:
        if key not in _KEYS:
            hint = nearest(key, _KEYS) or "; use at and slots."
            msg = f'[[fleet.budget]] has the unknown key "{shown(key, 60)}"{hint}'
            raise ConfigError(msg)
    at, slots = table.get("at"), table.get("slots")
    if not isinstance(at, str):
        msg = f'[[fleet.budget]] at = {shown(repr(at), 60)} is no time; write at = "60 s".'
        raise ConfigError(msg)
    if not isinstance(slots, int) or isinstance(slots, bool) or slots < 1:
        msg = f"[[fleet.budget]] slots = {shown(repr(slots), 60)} is out of range; use 1 or more."
        raise ConfigError(msg)
    return BudgetStep(parse_duration_s(at), slots)
