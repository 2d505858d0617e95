"""Counts the requests to a store, which is billed by them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """Holds the number of requests to a store, and the bytes written."""

    requests: int = 0
    """Calls made; what a library repeats by itself is not seen."""
    written_bytes: int = 0
    """Bytes in those that wrote."""

    def __add__(self, other: Traffic) -> Traffic:
        """Return the requests of both."""
        requests = self.requests + other.requests
        return Traffic(requests, self.written_bytes + other.written_bytes)

    def since(self, before: Traffic) -> Traffic:
        """Return the requests since `before`."""
        requests = self.requests - before.requests
        return Traffic(requests, self.written_bytes - before.written_bytes)
