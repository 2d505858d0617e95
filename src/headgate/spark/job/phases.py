"""Measures the phases of a batch, and runs calls to the checkpoint's store beside batches."""

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
    """Runs calls to the checkpoint's store in a thread, one after the other, beside the batches.

    The next `do` or `wait` raises the error of a failed call, so that it ends the query.

    `name`: name of the thread.
    """

    def __init__(self, name: str) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix=name)
        self._last: Future[object] | None = None

    def do(self, work: Callable[[], object]) -> None:
        """Begin `work` when all earlier work is done."""
        before = self._last
        if before is not None and before.done():
            before.result()
        self._last = self._pool.submit(_do_after, before, work)

    def wait(self) -> None:
        """Wait until all work is done."""
        if self._last is not None:
            self._last.result()

    def close(self) -> None:
        """Wait until all work is done, and end the thread; errors of the last calls are ignored."""
        self._pool.shutdown()


def _do_after(before: Future[object] | None, work: Callable[[], object]) -> None:
    """Do `work`; if the earlier work failed, raise its error instead."""
    if before is not None:
        before.result()
    work()
