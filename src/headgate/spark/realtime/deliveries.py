"""Delivers the outputs of epochs in a thread of its own, while the next epochs are cut and served."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headgate.checkpoint.manifest import Manifest
from headgate.spark.step.batch_thread import BatchThreads

MOST_TOGETHER = 16
"""Epochs that may be committed and not delivered before the next one is cut, where a sink takes them
together. Fewer than the steps between two sweeps of a checkpoint's garbage, which would take the files of
open ones for nobody's. Chosen."""

MOST_APART = 2
"""The same for other sinks: more epochs would only wait for each other, where one that is cut later has
their records. One is delivered while the next one is served."""


class _Item(NamedTuple):
    """An output that is to go out, or the note that its epoch is committed."""

    manifest: Manifest
    is_committed: bool


class Deliveries:
    """Delivers outputs in the order of their epochs; those that wait go out together.

    Parameters
    ----------
    threads : BatchThreads    Of the query, which is idle only where nothing is to be delivered.
    deliver : callable    Gives outputs to the sink.
    note : callable    Notes that outputs of committed epochs are out.
    begin : callable    Called in the thread, at first.
    most : int    Epochs that may be open.
    """

    def __init__(
        self,
        threads: BatchThreads,
        deliver: Callable[[Sequence[Manifest]], None],
        note: Callable[[Sequence[Manifest]], None],
        begin: Callable[[], None],
        most: int,
    ) -> None:
        self._threads, self._deliver, self._note = threads, deliver, note
        self._begin, self._most = begin, most
        self._changed = threading.Condition()
        self._items: list[_Item] = []
        self._open = 0
        self._error: BaseException | None = None
        self._closing = False
        self._busy_ms = 0.0
        self._thread = threading.Thread(target=self._run, name="headgate-sink", daemon=True)
        self._thread.start()

    def put_rows(self, manifest: Manifest) -> None:
        """Have the output of an epoch go out; the epoch is committed, or will be by `put_committed`."""
        self._put(_Item(manifest, is_committed=False))

    def put_committed(self, manifest: Manifest) -> None:
        """Take note that an epoch whose output was given is committed."""
        self._put(_Item(manifest, is_committed=True))

    def wait_for_room(self, stopping: threading.Event) -> None:
        """Wait while too many outputs are open; raise what a delivery failed with."""
        with self._changed:
            # an epoch is two items
            while self._open >= 2 * self._most and self._error is None and not stopping.is_set():
                self._changed.wait(1.0)
        self.check()

    @property
    def has_failed(self) -> bool:
        """Return whether a delivery failed: nothing goes out any more."""
        return self._error is not None

    def check(self) -> None:
        """Raise what a delivery failed with."""
        if self._error is not None:
            raise self._error

    def took_ms(self) -> float:
        """Return how long deliveries took since the last call."""
        with self._changed:
            found, self._busy_ms = self._busy_ms, 0.0
        return found

    def close(self) -> None:
        """Wait until all is out, and end the thread; raise what a delivery failed with."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self.check()

    def _put(self, item: _Item) -> None:
        with self._changed:
            if self._error is not None:
                return  # who puts hears of it in `check`
            self._threads.begin()
            self._items.append(item)
            self._open += 1
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            self._begin()
            while True:
                with self._changed:
                    while not (self._items or self._closing):
                        self._changed.wait()
                    items, self._items = self._items, []
                if not items:
                    return
                began_s = time.perf_counter()
                with self._threads.working():
                    self._do(items)
                self._end(len(items), (time.perf_counter() - began_s) * 1e3)
        except BaseException as error:
            with self._changed:
                self._error = error
                left, self._items = self._open, []
            self._end(left, 0.0)

    def _do(self, items: Sequence[_Item]) -> None:
        rows = [item.manifest for item in items if not item.is_committed]
        if rows:
            self._deliver(rows)
        committed = [item.manifest for item in items if item.is_committed]
        if committed:
            self._note(committed)

    def _end(self, count: int, took_ms: float) -> None:
        with self._changed:
            self._open -= count
            self._busy_ms += took_ms
            self._changed.notify_all()
        for _ in range(count):
            self._threads.end()
