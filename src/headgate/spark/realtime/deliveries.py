"""Delivers the outputs of epochs in a separate thread, while later epochs are cut and served."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from headgate.checkpoint.manifest import Manifest
from headgate.spark.step.batch_thread import BatchThreads

MOST_TOGETHER = 16
"""Undelivered epochs at which no further epoch is cut, for a sink that takes several outputs together.
Below the number of steps between two garbage collections of a checkpoint, which would take the files of
undelivered epochs for unused. Chosen, not tuned."""

MOST_APART = 2
"""The same for other sinks: one output is delivered while the next epoch is served. More epochs would
only wait for each other; a later cut puts their records into one epoch."""


class _Item(NamedTuple):
    """Holds an output for the sink, or the note that its epoch is committed."""

    manifest: Manifest
    is_committed: bool


class Deliveries:
    """Delivers outputs in the order of their epochs; one call delivers all waiting outputs.

    Parameters
    ----------
    threads : BatchThreads    The query's threads, which are idle only if no delivery waits.
    deliver : callable    Writes outputs to the sink.
    note : callable    Notes that outputs of committed epochs are delivered.
    begin : callable    Called once, first, in the thread.
    most : int    Most epochs that wait for delivery.
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
        """Queue an epoch's output for the sink; `put_committed` must follow for the epoch."""
        self._put(_Item(manifest, is_committed=False))

    def put_committed(self, manifest: Manifest) -> None:
        """Queue the note that an epoch is committed, after its output."""
        self._put(_Item(manifest, is_committed=True))

    def wait_for_room(self, stopping: threading.Event) -> None:
        """Wait while too many outputs wait; raise the error of a failed delivery."""
        with self._changed:
            # an epoch has two items
            while self._open >= 2 * self._most and self._error is None and not stopping.is_set():
                self._changed.wait(1.0)
        self.check()

    @property
    def has_failed(self) -> bool:
        """Return whether a delivery failed; then no output is delivered any more."""
        return self._error is not None

    def check(self) -> None:
        """Raise the error of a failed delivery."""
        if self._error is not None:
            raise self._error

    def took_ms(self) -> float:
        """Return the time of deliveries since the last call."""
        with self._changed:
            found, self._busy_ms = self._busy_ms, 0.0
        return found

    def close(self) -> None:
        """Wait for all deliveries, and end the thread; raise the error of a failed delivery."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        self._thread.join()
        self.check()

    def _put(self, item: _Item) -> None:
        with self._changed:
            if self._error is not None:
                return  # the caller gets the error from `check`
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
