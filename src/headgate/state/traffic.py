"""How much was asked of a store, which is what one pays for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """What was asked of a store.

    Attributes
    ----------
    requests : int
        Calls made; what a library repeats by itself is not seen.
    written_bytes : int
        Bytes in those that wrote.
    """

    requests: int = 0
    written_bytes: int = 0

    def since(self, before: Traffic) -> Traffic:
        """Return what has come since `before`."""
        requests = self.requests - before.requests
        return Traffic(requests, self.written_bytes - before.written_bytes)
