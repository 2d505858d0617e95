"""Asks sources, beside the epochs, for partitions that are new since the pipe began."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from headgate.core.errors import HeadgateError

EVERY_S = 30.0
"""Interval of asking sources; a Kafka client asks its broker for all ends. Chosen, not tuned."""


class NewPartitions:
    """Asks in a separate thread, so that no epoch waits for a broker.

    `grown`: see `Feeds.grown`: returns offsets with the beginnings of new partitions. `start`: the
    offsets at which the pipe began, a result of `grown`.
    """

    def __init__(self, grown: Callable[[str], str], start: str) -> None:
        self._grown, self._start = grown, start
        self._next_s = time.monotonic() + EVERY_S
        self._have_come = threading.Event()

    def have_come(self) -> bool:
        """Return whether an answer had new partitions; ask again every `EVERY_S`."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            threading.Thread(target=self._ask, name="headgate-partitions", daemon=True).start()
        return self._have_come.is_set()

    def _ask(self) -> None:
        # readers report a source that does not answer
        with contextlib.suppress(HeadgateError):
            if self._grown(self._start) != self._start:
                self._have_come.set()
