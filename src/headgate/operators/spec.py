"""Describes a keyed, windowed aggregate, independent of any engine.

An engine converts its own query to an `AggregateSpec`. Every value has one of five kinds, so a row
consists of a few int64 words:

========  =====================================================  =======  ===================
kind      carries                                                 words    Arrow type at the edge
========  =====================================================  =======  ===================
INTEGER   integers, booleans, dates, timestamps (microseconds)    1        int64
FLOAT     floats; NaN is the largest, -0.0 equals 0.0             1        float64
DECIMAL   128-bit unscaled value                                  2        decimal128(38, s)
BYTES     strings and binary, interned: the word is id + 1        1        binary
REGISTERS a HyperLogLog++ sketch, 10 registers to a word           scale    in: int64, a
                                                                            hash; out: list
========  =====================================================  =======  ===================
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from math import gcd
from typing import Any

from headgate.core.errors import UnsupportedQuery

NEVER_US = 2**63 - 1
"""Due time of work that never becomes due."""

BEFORE_ALL_US = -(2**61)
"""Watermark before every event; subtracting a window's size from it does not overflow."""

NO_TIME_US = 2**62
"""Value of a plain event time that is null; after every watermark, so its row never expires."""

MAX_KEPT = 63
"""Largest number of leaves of a key and its stored values together: their null bits share one word."""


class Kind(IntEnum):
    """Names how a leaf is stored and how its values compare."""

    INTEGER = 0
    FLOAT = 1
    DECIMAL = 2
    BYTES = 3
    REGISTERS = 4


class Op(IntEnum):
    """Names the way in which an incoming buffer is merged into the stored buffer.

    The buffers are those of Spark's own partial aggregation, so a record and a partial aggregate are
    merged alike.
    """

    COUNT = 0
    """leaves: [n]"""
    SUM_INTEGER = 1
    """leaves: [sum]; null until a value has come"""
    SUM_FLOAT = 2
    """leaves: [sum]; null until a value has come"""
    SUM_DECIMAL = 3
    """leaves: [sum, n]; a null sum with n > 0 has overflowed and stays null"""
    MIN = 4
    """leaves: the value's, compared one after another, with null below all else; a null first leaf means
    that there is no value"""
    MAX = 5
    """as MIN"""
    FIRST = 6
    """leaves: [n, value ...]; n counts the records that pass the filter and, if nulls are ignored,
    have a value"""
    LAST = 7
    """as FIRST"""
    MIN_BY = 8
    """leaves: the ordering's; extra leaves: the value's"""
    MAX_BY = 9
    """as MIN_BY"""
    MERGED = 10
    """leaves: a declarative aggregate's buffer; merged by its `Program`"""
    REGISTERS = 11
    """leaves: [registers]; merging keeps the larger value of each register"""


class OutputMode(IntEnum):
    """Names the results that a step emits, as in Spark."""

    APPEND = 0
    UPDATE = 1
    COMPLETE = 2


@dataclass(frozen=True)
class Leaf:
    """Describes one fixed-width part of a key or a buffer."""

    kind: Kind
    scale: int = 0
    """For a DECIMAL, the digits after the point; for REGISTERS, the number of words."""

    @property
    def words(self) -> int:
        """Words this leaf takes in a row."""
        if self.kind is Kind.REGISTERS:
            return self.scale
        return 2 if self.kind is Kind.DECIMAL else 1


Expression = tuple[Any, ...]
"""``(operation, operand ...)``; see `headgate.operators.program`."""


@dataclass(frozen=True)
class Program:
    """Holds the expressions that merge two buffers of an aggregate that no other `Op` covers."""

    merges: tuple[Expression, ...]
    """One expression per leaf. ``("left", i)`` and ``("right", i)`` are leaves of the two buffers;
    ``("value", x)`` is a constant (None: null)."""
    initial: tuple[float | int | None, ...]
    """The leaves of a buffer before any value is merged into it."""
    any_order: bool
    """True if the result does not depend on which of two buffers is the left one."""


@dataclass(frozen=True)
class Aggregate:
    """Describes one aggregate of a row."""

    op: Op
    leaves: tuple[Leaf, ...]
    """Buffer leaves, in the sequence documented at `Op`."""
    extra: tuple[Leaf, ...] = ()
    """MIN_BY and MAX_BY: the value's leaves."""
    checked: bool = True
    """SUM_INTEGER: an overflow is an error (Spark's ANSI mode) instead of wrapping."""
    program: Program | None = None
    """MERGED: the expressions that merge its buffers."""

    @property
    def all_leaves(self) -> tuple[Leaf, ...]:
        """All leaves, in the sequence in which a row holds them."""
        return self.leaves + self.extra


class Keep(IntEnum):
    """Names the form of stored values: with or without a sequence, and with or without repeats."""

    LIST = 0
    """All values, in the sequence in which their records came."""
    BAG = 1
    """All values, without a sequence: equal values are stored once, with their count."""
    SET = 2
    """Equal values are stored once, without a count."""


@dataclass(frozen=True)
class Kept:
    """Describes record values that are stored one by one, for aggregates such as collect_list.

    No buffer of such an aggregate is smaller than its values.
    """

    leaves: tuple[Leaf, ...]
    """Leaves of a record's values."""
    keep: Keep


@dataclass(frozen=True)
class TimeKey:
    """Describes the part of the key that is time, which decides when a row is due.

    A record carries the start of its slice in microseconds. A window ``[w, w + size_us)`` is the union
    of its slices, so a sliding window costs one update per record whatever its overlap. A plain
    event-time key is a window of size 0.

    References
    ----------
    [STRETCH] 2.3 and 4.2 (window advance and size): expiry is ``l + WS <= W``.
    """

    size_us: int
    advance_us: int
    """`size_us`, `advance_us`: length of a window, and distance between the starts of two windows,
    microseconds. ``size_us == 0`` for a plain time."""
    offset_us: int = 0
    """Start of any one window, microseconds; other starts differ by multiples of `advance_us`."""
    expires: bool = True
    """False if the query has no watermark: rows stay for ever."""
    session: bool = False
    """True for session windows: `size_us` is the gap, and a record carries its own time. The spec's
    first aggregate is then the maximum of the records' end times."""

    @property
    def slice_us(self) -> int:
        """Length of a slice: the greatest length that divides both `size_us` and `advance_us`."""
        return gcd(self.size_us, self.advance_us)

    @property
    def overlap(self) -> int:
        """Largest number of windows that contain one slice."""
        if self.size_us == 0:
            return 1
        return -(-self.size_us // self.advance_us)

    @property
    def sliced(self) -> bool:
        """True if a window has several slices, which are merged when the window is due."""
        return self.size_us > 0 and self.slice_us != self.size_us


class OperatorSpec:
    """Describes an operator of any kind; the properties below are defaults that a kind may override."""

    @property
    def shared(self) -> bool:
        """Return whether every slot sees every record."""
        return False

    @property
    def holds_us(self) -> int | None:
        """Return the earliest event time that later output may have, in microseconds from the watermark.

        Negative if output may be older than the watermark. None: see `JoinSpec.holds_us`.
        """
        return 0

    @property
    def by_clock(self) -> bool:
        """Return whether the batch's time stamp, not the watermark, makes entries due."""
        return False

    @property
    def merges(self) -> tuple[Aggregate, ...] | None:
        """Aggregates by which records can be merged before they reach a slot; None if they cannot."""
        return None

    @property
    def unsplittable(self) -> str:
        """Return why the records of one key must not be split among several slots and merged afterwards.

        Empty if records may be split.
        """
        return "only the state of aggregates can be merged from parts"


@dataclass(frozen=True)
class AggregateSpec(OperatorSpec):
    """Describes a keyed aggregate: key leaves, an optional time, buffers, and the output mode."""

    keys: tuple[Leaf, ...]
    """The key without its time."""
    time: TimeKey | None
    aggregates: tuple[Aggregate, ...]
    mode: OutputMode
    """APPEND needs a `time` that expires."""
    kept: tuple[Kept, ...] = ()
    """Values stored beside the aggregates, in rows of their own; such a key begins with key and slice."""

    def __post_init__(self) -> None:
        keys = len(self.keys) + sum(len(kept.leaves) for kept in self.kept)
        if self.kept and keys > MAX_KEPT:
            msg = (
                f"the key and the values that collect_list and the like keep need {keys} columns "
                f"together, more than {MAX_KEPT}, and a struct counts as all of its fields; keep fewer "
                "of them, or split the query."
            )
            raise UnsupportedQuery(msg)

    @property
    def merges(self) -> tuple[Aggregate, ...] | None:
        """The aggregates: a record arrives as one buffer per aggregate, which can be merged anywhere.

        None if values of records are stored, or if there is a sketch (REGISTERS): for a sketch, a record
        brings only a hash, not a buffer.
        """
        ours_only = any(aggregate.op is Op.REGISTERS for aggregate in self.aggregates)
        return None if self.kept or ours_only else self.aggregates

    @property
    def unsplittable(self) -> str:
        """Return why the records of one key must not be split among several slots and merged afterwards.

        Empty if records may be split.
        """
        if self.kept:
            return "the values of its records are stored one by one, and cannot be merged"
        if self.time is not None and self.time.session:
            return "a session grows with every record, in the order of their times"
        if self.time is not None and self.time.expires and self.time.sliced:
            # a split group emits a window one step late, when the other slots' parts have arrived;
            # until then the owner would merge late records into the window (note 0104)
            return "a record may be late for one of its overlapping windows and not for another"
        ops = {aggregate.op for aggregate in self.aggregates}
        if ops & {Op.FIRST, Op.LAST}:
            return "first and last depend on the order of the records"
        if ops & {Op.MIN_BY, Op.MAX_BY}:
            return "of records of the same order min_by and max_by keep the one that came last"
        if Op.REGISTERS in ops:
            return "a sketch comes as a hash of each record, and goes out as registers"
        programs = (part.program for part in self.aggregates if part.program is not None)
        if not all(program.any_order for program in programs):
            return "the result of one of its aggregates may depend on the order of the records"
        return ""

    @property
    def results_after_us(self) -> int | None:
        """Return the length of windows that emit their result at their end; else None.

        None if results are emitted at once, for sessions, which have no length, and for plain times.
        """
        time = self.time
        if time is None or time.session or not time.expires or self.mode is not OutputMode.APPEND:
            return None
        return time.size_us or None

    def to_json(self) -> dict[str, Any]:
        """Return the part of the spec that a checkpoint's state depends on."""
        time = self.time
        parts: dict[str, Any] = {
            "keys": _pairs(self.keys),
            "time": [time.size_us, time.advance_us, time.offset_us] if time else None,
            "aggregates": [[a.op.name, _pairs(a.all_leaves)] for a in self.aggregates],
        }
        if self.kept:
            parts["kept"] = [[kept.keep.name, _pairs(kept.leaves)] for kept in self.kept]
        return parts


def _pairs(leaves: tuple[Leaf, ...]) -> list[list[int]]:
    return [[int(leaf.kind), leaf.scale] for leaf in leaves]
