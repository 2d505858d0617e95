"""Finds the plugins of other distributions by their entry points; loads a plugin only when it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from headgate.core.errors import ConfigError, HeadgateError
from headgate.core.input import shown

POLICIES = "headgate.policies"
"""Group of entry points that make a `Policy` from its numeric parameters."""

REPLICA_POLICIES = "headgate.replica_policies"
"""Group of entry points that make a `ReplicaPolicy` from its numeric parameters."""

FLEET_POLICIES = "headgate.fleet_policies"
"""Group of entry points that make a `FleetPolicy` from the length of a round, in seconds."""

WORKLOADS = "headgate.workloads"
"""Group of entry points that are a `headgate.scenario.workload.Workload`."""

SOURCES = "headgate.sources"
"""Group of entry points that are a Python data source of Spark, each named as its format. In a batch read
the source takes the option ``until``: the offset of the stream at which the read ends."""

SINKS = "headgate.sinks"
"""Group of entry points that are a class derived from `hg.Sink`, each named as its format, in
lower case."""

STORES = "headgate.stores"
"""Group of entry points that are a class derived from `headgate.checkpoint.CheckpointStore`, each
named as the scheme of its addresses."""

_KINDS = {STORES: "store", WORKLOADS: "workload", SOURCES: "source", SINKS: "sink"}


@dataclass(frozen=True)
class Plugin:
    """Holds the name of an installed plugin, and the entry points with this name."""

    kind: str
    """Kind of the plugin in messages: policy, workload, source, sink, store."""
    name: str
    entries: tuple[EntryPoint, ...]
    """One entry point, unless several distributions use the same name."""

    def __str__(self) -> str:
        return f'{self.kind} "{self.name}" of the distribution {_whose(self.entries[0])}'

    def load(self, wanted: Any = Callable, called: str = "class and no function") -> Any:
        """Return the object that the entry point names; for a policy, the callable that makes it.

        `wanted`: required type of the object. `called`: name of that type in messages. Raises
        `ConfigError`: the object cannot be imported, is of another type, or two distributions have
        that name.
        """
        if len(self.entries) > 1:
            both = " and ".join(_whose(entry) for entry in self.entries)
            msg = f'{self.kind} "{self.name}" is in the distributions {both}; remove one of them.'
            raise ConfigError(msg)
        with self.blamed("loaded"):
            value: object = self.entries[0].load()
        if not isinstance(value, wanted):
            what = shown(repr(value), 60)
            msg = f"{self} is no {called} but {what}; repair that distribution."
            raise ConfigError(msg)
        return value

    @contextmanager
    def blamed(self, done: str) -> Iterator[None]:
        """Turn an error of the distribution's code into a ConfigError, except headgate's own errors."""
        try:
            yield
        except HeadgateError:
            raise
        except (Exception, SystemExit) as error:  # code of another distribution may raise anything
            why = shown(f"{type(error).__name__}: {error}")
            msg = f"{self} cannot be {done}: {why}; repair or remove that distribution."
            raise ConfigError(msg) from error


def installed(group: str) -> dict[str, Plugin]:
    """Return the installed plugins of a group by name, sorted by name, without loading them."""
    entries: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in entry_points(group=group):
        entries[entry.name] = (*entries.get(entry.name, ()), entry)
    return {
        name: Plugin(_KINDS.get(group, "policy"), name, entries[name]) for name in sorted(entries)
    }


def _whose(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist is not None else entry.value
