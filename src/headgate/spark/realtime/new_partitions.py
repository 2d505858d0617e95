"""Asks sources, beside the epochs, whether they have got partitions since the pipe began."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable

from headgate.core.errors import HeadgateError

EVERY_S = 30.0
"""How often sources are asked, in seconds: a Kafka client asks its broker for all ends. Chosen."""


class NewPartitions:
    """Asks in a thread of its own, so that no epoch waits for a broker.

    `grown`: as `Feeds.grown`: given offsets, returns them with the beginnings of what has come
    since. `start`: the offsets at which the pipe began, as `grown` has returned them.
    """

    def __init__(self, grown: Callable[[str], str], start: str) -> None:
        self._grown, self._start = grown, start
        self._next_s = time.monotonic() + EVERY_S
        self._have_come = threading.Event()

    def have_come(self) -> bool:
        """Return whether partitions have come, as far as is known; ask again where it is time."""
        now_s = time.monotonic()
        if now_s >= self._next_s:
            self._next_s = now_s + EVERY_S
            threading.Thread(target=self._ask, name="headgate-partitions", daemon=True).start()
        return self._have_come.is_set()

    def _ask(self) -> None:
        # a source that does not answer is the readers' concern
        with contextlib.suppress(HeadgateError):
            if self._grown(self._start) != self._start:
                self._have_come.set()
