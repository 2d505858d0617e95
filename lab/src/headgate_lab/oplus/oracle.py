"""What O+ must answer, computed without any of its machinery."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import product

from headgate_lab.oplus.spec import Key, OperatorPlus, Record


def window_contents(
    operator: OperatorPlus, records: Iterable[Record]
) -> dict[tuple[Key, int], list[Record]]:
    """Return the records that fall in each window, by (key, left boundary), in the order given.

    A window ``[l, l + WS)`` is found by trying the multiples of WA around a record's time.
    """
    advance, size = operator.window_advance, operator.window_size
    contents: dict[tuple[Key, int], list[Record]] = {}
    for record in records:
        around = range(record.time // advance - size // advance - 1, record.time // advance + 2)
        for index in around:
            left = index * advance
            if left <= record.time < left + size:
                for key in operator.keys_of(record):
                    contents.setdefault((key, left), []).append(record)
    return contents


def nested_loop(
    left: Sequence[Record],
    right: Sequence[Record],
    within: int,
    match: Callable[[Record, Record], bool],
) -> list[tuple[Record, Record]]:
    """Return the pairs that match and are at most `within` apart in time."""
    return [
        (x, y) for x, y in product(left, right) if abs(x.time - y.time) <= within and match(x, y)
    ]
