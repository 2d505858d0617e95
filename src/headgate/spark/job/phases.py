"""Times the phases of a batch, and the work that goes on beside batches."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Phases:
    """Collects the time of each phase of a batch."""

    def __init__(self) -> None:
        self.phases_ms: dict[str, float] = {}
        self._at = time.perf_counter()

    def lap(self, phase: str) -> None:
        """Charge the time since the last lap to `phase`."""
        now = time.perf_counter()
        self.phases_ms[phase] = self.phases_ms.get(phase, 0.0) + (now - self._at) * 1e3
        self._at = now


class Beside:
    """Calls to the checkpoint's store that no batch needs to wait for, one after the other.

    What fails is raised by the next `do` or `wait`, so that it ends the query as it would have at once.

    `name`: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._last: Future[object] | None = None

    def do(self, work: Callable[[], object]) -> None:
        """Begin `work` when what was begun before is done."""
        before = self._last
        if before is not None and before.done():
            before.result()
        self._last = self._pool.submit(_do_after, before, work)

    def wait(self) -> None:
        """Wait until all is done."""
        if self._last is not None:
            self._last.result()

    def close(self) -> None:
        """Wait until all is done, and end the thread; what failed was no batch's concern any more."""
        self._pool.shutdown()


def _do_after(before: Future[object] | None, work: Callable[[], object]) -> None:
    """Do `work`, unless what was begun before it has failed: then raise that."""
    if before is not None:
        before.result()
    work()
