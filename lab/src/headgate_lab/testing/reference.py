"""Computes a keyed, windowed aggregate record by record: the oracle of `headgate.operators`.

The state is a dictionary keyed by (key group, key, window end) with Python values, without arrays and
slices. The code is slow, since it is written to be read.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from headgate.core.errors import EngineError
from headgate.operators.spec import Aggregate, AggregateSpec, Kind, Op, OutputMode

INT64_MIN, INT64_MAX = -(2**63), 2**63 - 1
DECIMAL_MAX = 10**38 - 1

Value = Any
"""A leaf: int, float, int (DECIMAL: the unscaled value), bytes, or None."""

Row = tuple[tuple[Value, ...], int | None, tuple[Value, ...]]
"""(key, window end or time, value leaves)."""


@dataclass(frozen=True)
class Record:
    """Holds an arriving record.

    Attributes
    ----------
    time_us : int
        Event time; ignored if the spec has no time.
    values : tuple of Value
        Aggregation buffers of the record alone, one value per value leaf of the spec.
    """

    group: int
    key: tuple[Value, ...]
    time_us: int
    values: tuple[Value, ...]


def order(kind: Kind, a: Value, b: Value) -> int:
    """Return -1, 0 or 1: null first, NaN last, -0.0 equals 0.0, bytes unsigned."""
    if a is None or b is None:
        return (a is not None) - (b is not None)
    if kind is Kind.FLOAT and (math.isnan(a) or math.isnan(b)):
        return math.isnan(a) - math.isnan(b)
    return int(a > b) - int(a < b)


def order_all(aggregate: Aggregate, a: Sequence[Value], b: Sequence[Value]) -> int:
    """Return the order of two structs, field by field."""
    for leaf, x, y in zip(aggregate.leaves, a, b, strict=False):
        found = order(leaf.kind, x, y)
        if found:
            return found
    return 0


def merged(aggregate: Aggregate, old: Sequence[Value], new: Sequence[Value]) -> tuple[Value, ...]:
    """Merge two buffers of an aggregate; `old` is the earlier one."""
    return _MERGE[aggregate.op](aggregate, tuple(old), tuple(new))


def _count(_: Aggregate, old: tuple[Value, ...], new: tuple[Value, ...]) -> tuple[Value, ...]:
    return (old[0] + new[0],)


def _sum(aggregate: Aggregate, old: tuple[Value, ...], new: tuple[Value, ...]) -> tuple[Value, ...]:
    if old[0] is None or new[0] is None:
        return old if new[0] is None else new
    total = old[0] + new[0]
    if aggregate.op is Op.SUM_INTEGER and not INT64_MIN <= total <= INT64_MAX:
        if aggregate.checked:
            msg = "[ARITHMETIC_OVERFLOW]"
            raise EngineError(msg)
        total = (total - INT64_MIN) % 2**64 + INT64_MIN
    return (total,)


def _sum_decimal(_: Aggregate, old: tuple[Value, ...], new: tuple[Value, ...]) -> tuple[Value, ...]:
    (total, count), (more, more_count) = old, new
    if count == 0 or more_count == 0:
        return new if count == 0 else old
    if total is None or more is None or abs(total + more) > DECIMAL_MAX:
        return (None, count + more_count)
    return (total + more, count + more_count)


def _extreme(
    aggregate: Aggregate, old: tuple[Value, ...], new: tuple[Value, ...]
) -> tuple[Value, ...]:
    if old[0] is None or new[0] is None:
        return old if new[0] is None else new
    found = order_all(aggregate, old, new)
    if aggregate.op in (Op.MIN, Op.MIN_BY):
        found = -found
    # of equal values MIN and MAX keep the older, MIN_BY and MAX_BY the newer
    newer = found <= 0 if aggregate.op in (Op.MIN_BY, Op.MAX_BY) else found < 0
    return new if newer else old


def _first(_: Aggregate, old: tuple[Value, ...], new: tuple[Value, ...]) -> tuple[Value, ...]:
    kept = new if new[0] and not old[0] else old
    return (old[0] + new[0], *kept[1:])


def _last(_: Aggregate, old: tuple[Value, ...], new: tuple[Value, ...]) -> tuple[Value, ...]:
    kept = new if new[0] else old
    return (old[0] + new[0], *kept[1:])


_MERGE: dict[Op, Callable[..., tuple[Value, ...]]] = {
    Op.COUNT: _count,
    Op.SUM_INTEGER: _sum,
    Op.SUM_FLOAT: _sum,
    Op.SUM_DECIMAL: _sum_decimal,
    Op.MIN: _extreme,
    Op.MAX: _extreme,
    Op.MIN_BY: _extreme,
    Op.MAX_BY: _extreme,
    Op.FIRST: _first,
    Op.LAST: _last,
}


@dataclass
class Reference:
    """Holds the state of one operator, and computes the output of its steps.

    Attributes
    ----------
    windows : dict of (group, key, end) to value leaves
        `end` is None without event time.
    waiting : dict of int to deque of Record
        Backlog per key group, in order of arrival.
    emitted_us : dict of int to int
        Watermark up to which a group has emitted; 0 if absent.
    late : list of Record
        Refused records, of which no window was open.
    """

    spec: AggregateSpec
    windows: dict[tuple[int, tuple[Value, ...], int | None], tuple[Value, ...]] = field(
        default_factory=dict
    )
    waiting: dict[int, deque[Record]] = field(default_factory=dict)
    emitted_us: dict[int, int] = field(default_factory=dict)
    late: list[Record] = field(default_factory=list)

    @property
    def expires(self) -> bool:
        """Return whether windows close; in complete mode they do not."""
        time = self.spec.time
        return time is not None and time.expires and self.spec.mode is not OutputMode.COMPLETE

    def ends(self, record: Record) -> list[int | None]:
        """Return the ends of all windows that contain a record."""
        time = self.spec.time
        if time is None:
            return [None]
        if time.size_us == 0:
            return [record.time_us]
        start = time.offset_us + (record.time_us - time.offset_us) // time.advance_us * (
            time.advance_us
        )
        ends: list[int | None] = []
        while start + time.size_us > record.time_us:
            ends.append(start + time.size_us)
            start -= time.advance_us
        return ends

    def open_ends(self, record: Record) -> list[int | None]:
        """Return the ends of the record's windows that have not been emitted."""
        met = self.emitted_us.get(record.group, 0)
        return [e for e in self.ends(record) if not self.expires or (e is not None and e > met)]

    def arrive(self, record: Record) -> None:
        """Add a record to its group's backlog, or refuse it if it is late on arrival."""
        if self.open_ends(record):
            self.waiting.setdefault(record.group, deque()).append(record)
        else:
            self.late.append(record)

    def may_reach_us(self, group: int, watermark_us: int) -> int:
        """Return the group's watermark, which is held back by waiting records."""
        time = self.spec.time
        held = [watermark_us]
        if time is not None:
            for record in self.waiting.get(group, ()):
                held.append(record.time_us - (1 if time.size_us == 0 else 0))
        return max(self.emitted_us.get(group, 0), min(held))

    def serve(self, group: int, count: int, watermark_us: int) -> list[Row]:
        """Serve the `count` oldest records of a group, and return its output.

        Parameters
        ----------
        watermark_us : int
            The operator's watermark.
        """
        touched = set()
        for _ in range(count):
            record = self.waiting[group].popleft()
            for end in self.open_ends(record):
                at = (group, record.key, end)
                self.windows[at] = self._with(self.windows.get(at), record.values)
                touched.add(at)
        emitted_us = self.emitted_us.get(group, 0)
        reached_us = self.may_reach_us(group, watermark_us)
        mine = [at for at in self.windows if at[0] == group]
        closed = [at for at in mine if self.expires and at[2] is not None and at[2] <= reached_us]
        if self.spec.mode is OutputMode.COMPLETE:
            shown = mine
        elif self.spec.mode is OutputMode.UPDATE:
            shown = [at for at in mine if at in touched]
        else:
            shown = [at for at in closed if at[2] is not None and at[2] > emitted_us]
        rows: list[Row] = [(at[1], at[2], self.windows[at]) for at in shown]
        for at in closed:
            del self.windows[at]
        return rows

    def _with(self, old: tuple[Value, ...] | None, new: tuple[Value, ...]) -> tuple[Value, ...]:
        if old is None:
            old = fresh(self.spec)
        values: list[Value] = []
        for aggregate in self.spec.aggregates:
            at, width = len(values), len(aggregate.all_leaves)
            values += merged(aggregate, old[at : at + width], new[at : at + width])
        return tuple(values)


def fresh(spec: AggregateSpec) -> tuple[Value, ...]:
    """Return the aggregation buffers of a key without records."""
    values: list[Value] = []
    for aggregate in spec.aggregates:
        empty: list[Value] = [None] * len(aggregate.all_leaves)
        if aggregate.op in (Op.COUNT, Op.FIRST, Op.LAST):
            empty[0] = 0
        if aggregate.op is Op.SUM_DECIMAL:
            empty[1] = 0
        values += empty
    return tuple(values)
