"""Waits for another process with exponential back-off, without keeping the processor busy."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Backoff:
    """Waits with exponential back-off: each wait is twice the one before.

    Parameters
    ----------
    first_s, longest_s : float    Seconds; the defaults are chosen, not tuned: an idle reader takes
                                  under 1 % of a core and wakes within 10 ms.

    References
    ----------
    [STRETCH] 7: instances without a ready tuple, and those in the pool, back off.
    """

    first_s: float = 0.00005
    longest_s: float = 0.01

    def until(self, attempt: Callable[[], T], timeout_s: float) -> T:
        """Return `attempt`'s first true result, or its last false one after `timeout_s` seconds."""
        deadline = time.monotonic() + timeout_s
        wait_s = self.first_s
        while not (result := attempt()) and time.monotonic() < deadline:
            time.sleep(wait_s)
            wait_s = min(2 * wait_s, self.longest_s)
        return result
