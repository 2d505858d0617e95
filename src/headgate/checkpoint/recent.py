"""Caches recently read values, up to a number of bytes."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Caches recently read values, up to a number of bytes; safe to use from several threads."""

    def __init__(self, byte_limit: int) -> None:
        self._limit = byte_limit
        self._lock = threading.Lock()
        self._bytes = 0
        self._kept: OrderedDict[object, tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def byte_count(self) -> int:
        """Return the sum of the cached values' `byte_count`."""
        return self._bytes

    def clear(self) -> None:
        """Drop all values."""
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def get(self, key: object) -> Value | None:
        """Return the cached value of a key, or None."""
        with self._lock:
            entry = self._kept.get(key)
            if entry is None:
                return None
            self._kept.move_to_end(key)
            return entry[0]

    def put(self, key: object, value: Value, byte_count: int) -> None:
        """Cache a value of `byte_count` bytes; drop the least recently read values to make room."""
        with self._lock:
            if key in self._kept:
                self._bytes -= self._kept.pop(key)[1]
            self._kept[key] = (value, byte_count)
            self._bytes += byte_count
            while self._bytes > self._limit and len(self._kept) > 1:
                self._bytes -= self._kept.popitem(last=False)[1][1]
