"""Brings records to an instance: watermarks of several streams, ready order, routing by key."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence

from headgate.operators.operator_plus import NO_WATERMARK, OperatorPlus, Record, Watermark
from headgate_lab.oplus.reference import Epoch


def ready_time(latest: Iterable[int]) -> int:
    """Return the time up to which records are ready: the least of the streams' latest times.

    References
    ----------
    [STRETCH] definition 3.
    """
    return min(latest)


def merged(streams: Sequence[Iterable[Record]]) -> list[Record]:
    """Return time-sorted streams as one, ordered by time, then stream, then position.

    Watermarks are implicit: the time of each record is the watermark when it is processed. The order
    does not depend on when each stream was read.
    """
    # Of equal keys, heapq.merge takes the earlier stream's first; it keeps each stream's order.
    return list(heapq.merge(*streams, key=lambda record: record.time))


class ExplicitWatermark:
    """Computes the watermark of an operator whose streams send watermarks of their own.

    Parameters
    ----------
    streams : int    Number of physical streams; there is no watermark until each has sent one.

    References
    ----------
    [STRETCH] 2.3: the minimum of the latest watermarks received from each stream.
    """

    def __init__(self, streams: int) -> None:
        self._latest = [NO_WATERMARK] * streams

    def receive(self, stream: int, watermark: Watermark) -> Watermark:
        """Note a stream's watermark; return the operator's. A stream's watermark never goes back."""
        self._latest[stream] = max(self._latest[stream], watermark.time)
        return Watermark(min(self._latest))


class TimeOrder:
    """Sorts records by time, given explicit watermarks.

    With explicit watermarks, an instance needs this for order-sensitive functions and for single windows
    ([STRETCH] 2.3). Records at equal times are in the order (stream, arrival in the stream).
    """

    def __init__(self) -> None:
        self._waiting: list[tuple[int, int, int, Record]] = []
        self._arrived = 0

    def receive(self, stream: int, record: Record) -> None:
        """Keep a record until the watermark has passed it."""
        heapq.heappush(self._waiting, (record.time, stream, self._arrived, record))
        self._arrived += 1

    def advance(self, watermark: Watermark) -> list[Record | Watermark]:
        """Return the records before the watermark, in time order, then the watermark."""
        released: list[Record | Watermark] = []
        while self._waiting and self._waiting[0][0] < watermark.time:
            released.append(heapq.heappop(self._waiting)[-1])
        return [*released, watermark]


def route(operator: OperatorPlus, epoch: Epoch, record: Record) -> frozenset[int]:
    """Return the instances that need a copy of a record where nothing is shared.

    References
    ----------
    [STRETCH] algorithm 1 (forwardSN): one copy for each instance that owns one of the keys; theorem 1:
    this may be more than one.
    """
    return frozenset(epoch.owner(key) for key in operator.keys_of(record))
