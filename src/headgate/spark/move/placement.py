"""Keeps slots on their host, so that they find their key groups in its shared memory.

What pins rows to hosts (`headgate.spark.jvm.hosts`) are private classes of Spark, so they are tried once
at the start; without them, or on a single host, tasks go where Spark likes, and a slot on another host
catches up from the changelog.
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
"""How long a task waits for a core of its host; Spark's 3 s would be a batch's whole budget."""


class Placement:
    """Wishes for the slots of one operator."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._host_of: dict[int, str] = {}
        self._usable: bool | None = None
        self._living: Callable[[], Sequence[str]] = partial(living_hosts, spark)

    def follow(self, living: Callable[[], Sequence[str]]) -> None:
        """Place slots on the hosts that `living` returns, whether Spark can pin tasks to them or not."""
        self._living, self._usable = living, True

    @property
    def active(self) -> bool:
        """Return whether slots are placed: there are several hosts, and the private classes work.

        Asked anew each time, since executors come and go; the classes are tried once.
        """
        return self._places(self._living())

    def _places(self, hosts: Sequence[str]) -> bool:
        if len(hosts) < _FEWEST_HOSTS:
            return False
        if self._usable is None:
            self._usable = self._works(hosts)
        return self._usable

    def hosts(self, slots: int) -> list[str]:
        """Return the host to which each of `slots` slots is to be pinned; none: go where Spark likes."""
        hosts = self._living()
        # a single host is noted, too: slots stay there when others come
        wishes = self._wishes(slots, hosts)
        return wishes if self._places(hosts) else []

    def hosts_of(self, slots: int) -> list[str]:
        """Return the host that each of `slots` slots is wished to; none if no host lives."""
        return self._wishes(slots, self._living())

    def renumber(self, numbers: Sequence[int]) -> None:
        """Let slot i take over the wish of the slot that was ``numbers[i]`` until now."""
        known = self._host_of
        self._host_of = {i: known[old] for i, old in enumerate(numbers) if old in known}

    def _wishes(self, slots: int, hosts: Sequence[str]) -> list[str]:
        """Return a living host per slot: the one it had, else the one with the fewest slots."""
        if not hosts:
            return []
        # a slot that is gone keeps its wish: while slots move, some are asked for before they are used
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
    """Have tasks wait a little for a core of the host that they wish to run on."""
    conf = driver_conf(spark)
    if not conf.contains(_LOCALITY_WAIT):
        conf.set(_LOCALITY_WAIT, _WAIT)
