"""Defines STRETCH's operators as O+: aggregate, join, longest tweet, words, pairs, ScaleJoin, forward."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from headgate.operators.operator_plus import (
    Key,
    OperatorPlus,
    Payload,
    Record,
    State,
    Windows,
    WindowType,
)


def aggregate(
    advance: int,
    size: int,
    keys: Callable[[Record], Iterable[Key]],
    fold: Callable[[State, Record], State],
    result: Callable[[State], Any],
    *,
    distinct: bool = False,
) -> OperatorPlus:
    """Return A+: `fold` a record into a window's state, emit (key, `result`) when the window expires.

    `fold` gets None for the first record of a window.

    References
    ----------
    [STRETCH] 2.1, theorem 2. Differs: the reduce function f_R is used as f_U and the aggregate
    function f_A as f_O; the proof says f_S for the former, and operators 1 and 4 swap the two names.
    """

    def update(windows: Windows, record: Record) -> tuple[Sequence[State], Iterable[Payload]]:
        return [fold(windows[0].state, record)], ()

    def output(windows: Windows) -> Iterable[Payload]:
        return [(windows[0].key, result(windows[0].state))]

    return OperatorPlus(
        advance,
        size,
        keys,
        WindowType.MULTI,
        ("key", "value"),
        update=update,
        output=output,
        distinct=distinct,
    )


def single_aggregate(
    advance: int,
    size: int,
    keys: Callable[[Record], Iterable[Key]],
    result: Callable[[Sequence[Record]], Any],
) -> OperatorPlus:
    """Return A+ with one window per key that keeps records and emits their `result` at every advance."""

    def output(windows: Windows) -> Iterable[Payload]:
        return [(windows[0].key, result(windows[0].state))]

    return OperatorPlus(advance, size, keys, WindowType.SINGLE, ("key", "value"), output=output)


def join(
    advance: int,
    size: int,
    keys: Callable[[Record], Iterable[Key]],
    match: Callable[[Record, Record], bool],
    window_type: WindowType = WindowType.SINGLE,
) -> OperatorPlus:
    """Return J+: emits the payloads, side by side, of matching records that share key and window.

    SINGLE emits a pair once, MULTI once for each window that holds both.

    References
    ----------
    [STRETCH] 2.1, theorem 2, with f_J in f_U.
    """

    def update(windows: Windows, record: Record) -> tuple[Sequence[State], Iterable[Payload]]:
        states = [window.state for window in windows]
        emitted = _matches(windows[1 - record.input].state or (), record, match)
        states[record.input] = (*(states[record.input] or ()), record)
        return states, emitted

    return OperatorPlus(
        advance, size, keys, window_type, ("left", "right"), inputs=2, update=update
    )


def scale_join(
    size: int,
    virtual_keys: int,
    match: Callable[[Record, Record], bool],
    *,
    inclusive: bool = False,
) -> OperatorPlus:
    """Return ScaleJoin: every record is compared under every key and stored under one.

    Parameters
    ----------
    size : int             WS; WA is 1.
    virtual_keys : int     More than there will ever be instances.
    match : callable       (left record, right record) -> bool.
    inclusive : bool       Whether records exactly WS apart are compared, as in the paper's experiment;
                           a window, whose right end is exclusive, does not hold both.

    References
    ----------
    [STRETCH] operator 3. Differs: the keys are 0 to n - 1 (printed: 1 to 1000 against c % 1000, so
    that one record in 1,000 is never stored), and a window with a counter is not empty even if it
    holds no record (else its counter is lost and records are stored twice or never).
    """
    reach = size if inclusive else size - 1

    def update(windows: Windows, record: Record) -> tuple[Sequence[State], Iterable[Payload]]:
        key = windows[0].key
        stored = [() if w.state is None else w.state[1] for w in windows]
        count = 1 + (0 if windows[0].state is None else windows[0].state[0])
        opposite = 1 - record.input
        stored[opposite] = tuple(r for r in stored[opposite] if r.time + reach >= record.time)
        emitted = _matches(stored[opposite], record, match)
        if count % virtual_keys == key:
            stored[record.input] = (*stored[record.input], record)
        return [(count, stored[0]), (count, stored[1])], emitted

    def slide(windows: Windows) -> Sequence[State]:
        # A record to come is at `right` - 1 or later.
        return [
            (w.state[0], tuple(r for r in w.state[1] if r.time + reach >= w.right - 1))
            for w in windows
        ]

    return OperatorPlus(
        1,
        size,
        lambda record: range(virtual_keys),
        WindowType.SINGLE,
        ("left", "right"),
        inputs=2,
        update=update,
        slide=slide,
    )


def forward(instances: int, inputs: int = 2) -> OperatorPlus:
    """Return operator 6: every key forwards every record and keeps nothing.

    Its cost is that of sharing and ordering alone.
    """

    def update(windows: Windows, record: Record) -> tuple[Sequence[State], Iterable[Payload]]:
        return [None] * inputs, [record.payload]

    return OperatorPlus(
        1,
        1,
        lambda record: range(instances),
        WindowType.SINGLE,
        ("payload",),
        inputs=inputs,
        update=update,
    )


def hashtags(text: str) -> list[str]:
    """Return the words that start with ``#``, without it, in order."""
    return [word[1:] for word in text.split() if word.startswith("#") and len(word) > 1]


def longest_tweet(advance: int, size: int) -> OperatorPlus:
    """Return operator 2: the length of the longest tweet of each hashtag; payload (user, tweet)."""

    def fold(longest: State, record: Record) -> State:
        return max(longest or 0, len(record.payload[1]))

    return aggregate(
        advance, size, lambda record: hashtags(record.payload[1]), fold, int, distinct=True
    )


def word_count(advance: int, size: int, *, distinct: bool = False) -> OperatorPlus:
    """Return operator 5 on words; payload (user, tweet). The paper's is ``distinct=True``."""
    return aggregate(
        advance, size, lambda record: record.payload[1].split(), _count, int, distinct=distinct
    )


def pairs(words: Sequence[str], distance_max: int | None) -> list[tuple[str, str]]:
    """Return the pairs of words at most `distance_max` positions apart; None is no limit."""
    reach = len(words) if distance_max is None else distance_max
    return [(word, other) for i, word in enumerate(words) for other in words[i + 1 : i + 1 + reach]]


def pair_count(
    advance: int, size: int, distance_max: int | None, *, distinct: bool = False
) -> OperatorPlus:
    """Return operator 5 on pairs of words; the paper's B is `distance_max`."""
    return aggregate(
        advance,
        size,
        lambda record: pairs(record.payload[1].split(), distance_max),
        _count,
        int,
        distinct=distinct,
    )


def _count(count: State, record: Record) -> State:
    return (count or 0) + 1


def _matches(
    opposite: Iterable[Record], record: Record, match: Callable[[Record, Record], bool]
) -> list[Payload]:
    emitted: list[Payload] = []
    for other in opposite:
        left, right = (record, other) if record.input == 0 else (other, record)
        if match(left, right):
            emitted.append((left.payload, right.payload))
    return emitted
