"""Keeps slots on their host, so that they find their key groups in its shared memory.

Private classes of Spark pin rows to hosts (`headgate.spark.jvm.hosts`), so they are tried once before
their use. Without them, or on a single host, Spark chooses the hosts of tasks, and a slot on another
host catches up from the changelog.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial

from pyspark.sql import SparkSession

from headgate.spark.jvm.errors import JvmError
from headgate.spark.jvm.hosts import living_hosts, pinned
from headgate.spark.jvm.sessions import driver_conf

_LOCALITY_WAIT = "spark.locality.wait"
_FEWEST_HOSTS = 2
_WAIT = "300ms"
"""Time that a task waits for a core of its host; Spark's 3 s would be a batch's whole budget."""


class Placement:
    """Chooses the hosts for the slots of one operator."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._host_of: dict[int, str] = {}
        self._usable: bool | None = None
        self._living: Callable[[], Sequence[str]] = partial(living_hosts, spark)

    def follow(self, living: Callable[[], Sequence[str]]) -> None:
        """Place slots on the hosts that `living` returns, without a trial of Spark's private classes."""
        self._living, self._usable = living, True

    @property
    def active(self) -> bool:
        """Return whether slots are placed: there are several hosts, and the private classes work.

        Looks up the hosts at each call, since executors come and go; tries the classes once.
        """
        return self._places(self._living())

    def _places(self, hosts: Sequence[str]) -> bool:
        if len(hosts) < _FEWEST_HOSTS:
            return False
        if self._usable is None:
            self._usable = self._works(hosts)
        return self._usable

    def hosts(self, slots: int) -> list[str]:
        """Return the host to which each of `slots` slots is pinned; empty if Spark chooses the hosts."""
        hosts = self._living()
        # a single host is recorded, too: slots stay there when other hosts come
        wishes = self._wishes(slots, hosts)
        return wishes if self._places(hosts) else []

    def hosts_of(self, slots: int) -> list[str]:
        """Return the intended host of each of `slots` slots; empty if there is no host."""
        return self._wishes(slots, self._living())

    def renumber(self, numbers: Sequence[int]) -> None:
        """Give slot i the intended host of the slot that had number ``numbers[i]`` until now."""
        known = self._host_of
        self._host_of = {i: known[old] for i, old in enumerate(numbers) if old in known}

    def _wishes(self, slots: int, hosts: Sequence[str]) -> list[str]:
        """Return a living host for each slot: its former host, or else the one with fewest slots."""
        if not hosts:
            return []
        # slots beyond `slots` keep their hosts: in a migration, callers ask for slots before their use
        kept = {s: h for s, h in self._host_of.items() if h in hosts}
        load = Counter(host for slot, host in kept.items() if slot < slots)
        for slot in range(slots):
            if slot not in kept:
                kept[slot] = min(hosts, key=lambda host: (load[host], host))
                load[kept[slot]] += 1
        self._host_of = kept
        return [kept[slot] for slot in range(slots)]

    def _works(self, hosts: Sequence[str]) -> bool:
        try:
            pinned(self._spark.range(0, 1, 1, 1), hosts[:1]).count()
            wait_for_hosts(self._spark)
        except (JvmError, TypeError):
            return False
        return True


def wait_for_hosts(spark: SparkSession) -> None:
    """Have tasks wait a little for a core of their intended host, unless the user set a wait."""
    conf = driver_conf(spark)
    if not conf.contains(_LOCALITY_WAIT):
        conf.set(_LOCALITY_WAIT, _WAIT)
