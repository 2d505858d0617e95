"""Finds the policies of other distributions by their entry points; loads a policy when it is named."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from headgate.core.errors import ConfigError, HeadgateError
from headgate.core.input import shown

POLICIES = "headgate.policies"
"""Group of entry points that make a `Policy` from numbers."""

REPLICA_POLICIES = "headgate.replica_policies"
"""Group of entry points that make a `ReplicaPolicy` from numbers."""

FLEET_POLICIES = "headgate.fleet_policies"
"""Group of entry points that make a `FleetPolicy` from the length of a round, in seconds."""


@dataclass(frozen=True)
class Plugin:
    """Holds the name of an installed policy, and the entry points that carry this name.

    Attributes
    ----------
    name : str
    entries : tuple of EntryPoint
        One, unless several distributions took the same name.
    """

    name: str
    entries: tuple[EntryPoint, ...]

    def __str__(self) -> str:
        return f'policy "{self.name}" of the distribution {_whose(self.entries[0])}'

    def load(self) -> Callable[..., Any]:
        """Return the class or function that makes the policy.

        Raises
        ------
        ConfigError
            It cannot be imported, cannot be called, or two distributions have that name.
        """
        if len(self.entries) > 1:
            both = " and ".join(_whose(entry) for entry in self.entries)
            msg = f'policy "{self.name}" is in the distributions {both}; remove one of them.'
            raise ConfigError(msg)
        with self.blamed("loaded"):
            found: object = self.entries[0].load()
        if not callable(found):
            what = shown(repr(found), 60)
            msg = f"{self} is no class and no function but {what}; repair that distribution."
            raise ConfigError(msg)
        return found

    @contextmanager
    def blamed(self, done: str) -> Iterator[None]:
        """Turn an error of the distribution's code into one sentence, except headgate's own errors."""
        try:
            yield
        except HeadgateError:
            raise
        except (Exception, SystemExit) as error:  # code of somebody else may raise anything
            why = shown(f"{type(error).__name__}: {error}")
            msg = f"{self} cannot be {done}: {why}; repair or remove that distribution."
            raise ConfigError(msg) from error


def installed(group: str) -> dict[str, Plugin]:
    """Return the policies of a group by name, in alphabetical order; none is loaded."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=group):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return {name: Plugin(name, found[name]) for name in sorted(found)}


def _whose(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value
