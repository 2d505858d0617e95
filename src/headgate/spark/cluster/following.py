"""Requests executors before slots exceed the cores, and gives executors back after slots have gone.

A change that needs more cores than there are waits until the new executors run and their Python workers
are ready: until then, more slots would share the old cores without gain, on hosts where they do not
stay. If the cluster gives no executors, the change comes into force nevertheless, and slots share cores.
No batch waits for executors.
"""

from __future__ import annotations

import threading
import time
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

from headgate.journal.hosts import ExecutorChange
from headgate.journal.schema import Event
from headgate.spark.jvm.executors import Executor, ExecutorPool

GRANT_S = 30.0
"""Longest wait for the executors that a cluster manager was asked for, in seconds."""

AGAIN_S = 300.0
"""Time after a refusal in which no change waits for executors, in seconds."""

_POLL_S = 0.1


@dataclass
class SharedNeeds:
    """Adds up the executors that the queries of one application need; they share them."""

    floor: int | None = None
    """Number of executors that always stay: as many as the user configured, or else as there were at
    the first request for more; None until then."""
    slots: dict[str, int] = field(default_factory=dict)
    """Slots by query."""
    hosts: dict[str, frozenset[str]] = field(default_factory=dict)
    """Hosts of each query's slots."""

    @property
    def cores(self) -> int:
        """Number of cores so that each slot has its own."""
        return sum(self.slots.values())

    def executors(self, living: Sequence[Executor]) -> int:
        """Return the number of executors that is needed; `living`: the present executors."""
        cores_each = min((executor.cores for executor in living), default=1)
        return max(self.floor or 1, -(-self.cores // max(1, cores_each)))

    def surplus(self, living: Sequence[Executor]) -> list[Executor]:
        """Return the executors that no slot needs; a host in use keeps at least one executor."""
        if self.floor is None:
            return []
        used = frozenset[str]().union(*self.hosts.values())
        # state belongs to hosts, so executors on hosts without slots go first
        spared = {
            executor.host: executor for executor in reversed(living) if executor.host in used
        }.values()
        going = [executor for executor in reversed(living) if executor not in spared]
        too_many = max(0, len(living) - self.executors(living))
        return sorted(going, key=lambda executor: executor.host in used)[:too_many]


class ExecutorFollower:
    """Requests executors and gives them back as one query's number of slots changes.

    `ready`, `need` and `settled` are called by the batches' thread and return at once.

    Parameters
    ----------
    needs : SharedNeeds    Shared by the queries of the application.
    query : str    Name of the query, unique within the application.
    grown : callable
        Prepares the workers of new executors; called before slots may use these.
    start : callable    Runs a function beside the batches; by default in a thread.
    """

    def __init__(
        self,
        pool: ExecutorPool,
        needs: SharedNeeds,
        query: str,
        write: Callable[[Event], None],
        grown: Callable[[], None],
        *,
        start: Callable[[Callable[[], None]], None] | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._pool = pool
        self._needs = needs
        self._query = query
        self._write = write
        self._grown = grown
        self._start = start or _in_thread
        self._sleep = sleep
        self._busy = threading.Lock()
        self._refused_at = float("-inf")
        self._settled = 0
        self._due = False
        self._warned = False
        self._left = False

    def ready(self, slots: int) -> bool:
        """Return whether a change to `slots` may come into force: it has cores, or they were refused."""
        others = self._needs.cores - self._needs.slots.get(self._query, 0)
        return self._refused or others + slots <= self._pool.cores

    def need(self, slots: int) -> None:
        """Record that a change to `slots` is requested; request executors if cores are too few."""
        self._needs.slots[self._query] = slots
        if not self.ready(slots):
            self._follow()

    def settled(self, slots: int, hosts: Callable[[], Collection[str]]) -> None:
        """Record that a step was committed with `slots` slots, whose intended hosts are `hosts`."""
        if slots != self._settled:
            self._settled, self._due = slots, True
            self._needs.slots[self._query] = slots
            self._needs.hosts[self._query] = frozenset(hosts())
        if self._due:
            self._due = not self._follow()

    def leave(self) -> None:
        """Give back executors that only this query needed; its journal is closed already."""
        self._left = True
        self._needs.slots.pop(self._query, None)
        self._needs.hosts.pop(self._query, None)
        self._follow()

    @property
    def _refused(self) -> bool:
        return time.monotonic() - self._refused_at < AGAIN_S

    def _follow(self) -> bool:
        """Request or give back executors in the background; return False if that already runs."""
        if not self._busy.acquire(blocking=False):
            return False

        def work() -> None:
            try:
                if self._needs.cores <= self._pool.cores:
                    self._give_back()
                elif not self._refused:
                    self._ask()
            except Exception as error:  # a failing cluster manager must not end the query
                self._refused_at = time.monotonic()
                self._warn(
                    f"executors cannot be asked for or given back ({error}); slots share cores."
                )
            finally:
                self._busy.release()

        self._start(work)
        return True

    def _ask(self) -> None:
        pool, needs, began = self._pool, self._needs, time.monotonic()
        before = pool.living()
        if needs.floor is None:
            needs.floor = len(before)
        slots, wanted = needs.cores, needs.executors(before)
        waited_s = 0.0 if pool.request(wanted) else GRANT_S
        while pool.cores < slots and waited_s < GRANT_S:
            self._sleep(_POLL_S)
            waited_s += _POLL_S
        after = pool.living()
        if len(after) > len(before):
            self._grown()
        why = ""
        if pool.cores < slots:
            self._refused_at = time.monotonic()
            why = _too_few(len(after) - len(before), wanted - len(before), slots, pool.cores)
            self._warn(why)
        self._note("asked", slots, wanted, before, after, began, why)

    def _give_back(self) -> None:
        before, began = self._pool.living(), time.monotonic()
        chosen = self._needs.surplus(before)
        if not chosen:
            return
        slots, wanted = self._needs.cores, len(before) - len(chosen)
        why = ", ".join(f"{executor.id} on {executor.host}" for executor in chosen)
        after = [executor for executor in before if executor not in chosen]
        if not self._pool.give_back(chosen):
            after = before
            why = f"the cluster manager did not take back {why}; end them there, if they matter."
        self._note("gave back", slots, wanted, before, after, began, why)

    def _warn(self, text: str) -> None:
        """Warn once, and only while the query runs."""
        if not (self._warned or self._left):
            self._warned = True
            warnings.warn(text, stacklevel=2)

    def _note(
        self,
        act: str,
        slots: int,
        wanted: int,
        before: Sequence[Executor],
        after: Sequence[Executor],
        began: float,
        why: str,
    ) -> None:
        if self._left:
            return
        self._write(
            ExecutorChange(
                act=act,
                slots=slots,
                cores=self._pool.cores,
                executors_before=len(before),
                executors_wanted=wanted,
                executors_after=len(after),
                took_ms=round((time.monotonic() - began) * 1e3, 3),
                why=why,
            )
        )


def _in_thread(work: Callable[[], None]) -> None:
    threading.Thread(target=work, name="headgate-executors", daemon=True).start()


def _too_few(granted: int, asked: int, slots: int, cores: int) -> str:
    return (
        f"the cluster gave {max(0, granted)} of {asked} executors asked for within {GRANT_S:g} s, so "
        f"{slots} slots share {cores} cores; add workers, raise spark.cores.max, or keep to {cores} "
        "slots."
    )
