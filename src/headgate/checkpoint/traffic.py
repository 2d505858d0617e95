"""Counts the requests to a store; a store bills by the request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Traffic:
    """Holds the number of requests to a store, and the bytes written."""

    requests: int = 0
    """Calls, without those that a library repeats by itself."""
    written_bytes: int = 0
    """Bytes of the calls that wrote."""

    def __add__(self, other: Traffic) -> Traffic:
        """Return the sum of both."""
        requests = self.requests + other.requests
        return Traffic(requests, self.written_bytes + other.written_bytes)

    def since(self, before: Traffic) -> Traffic:
        """Return the requests since `before`."""
        requests = self.requests - before.requests
        return Traffic(requests, self.written_bytes - before.written_bytes)
