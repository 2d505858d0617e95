"""Runs scheduled calls in virtual time."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any

Action = Callable[..., None]


class Clock:
    """Runs scheduled calls by time; calls of the same time in the order in which they were scheduled.

    Attributes
    ----------
    now_s : float
    """

    def __init__(self) -> None:
        self.now_s = 0.0
        self._due: list[tuple[float, int, Action, tuple[Any, ...]]] = []
        self._asked = 0

    def after(self, delay_s: float, action: Action, *arguments: object) -> None:
        """Call ``action(*arguments)`` once `delay_s` seconds have passed; at least 0."""
        self._asked += 1
        heapq.heappush(self._due, (self.now_s + delay_s, self._asked, action, arguments))

    def run(self, until_s: float = float("inf")) -> None:
        """Run all calls that are due up to `until_s`, or until none is scheduled."""
        due = self._due
        while due and due[0][0] <= until_s:
            self.now_s, _, action, arguments = heapq.heappop(due)
            action(*arguments)
        if until_s < float("inf"):
            self.now_s = until_s
