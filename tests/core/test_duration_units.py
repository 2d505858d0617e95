"""Units of durations: each spelling is the same, and each unit so many of the one below."""

from __future__ import annotations

import pytest

from headgate.core.duration import parse_duration_s

UNITS = (
    (("us", "microsecond", "microseconds"), 1), (("ms", "millisecond", "milliseconds"), 1000),
    (("s", "sec", "second", "seconds"), 1000), (("min", "minute", "minutes"), 60),
    (("h", "hour", "hours"), 60), (("d", "day", "days"), 24),
)  # fmt: skip


def test_each_unit_is_so_many_of_the_one_below_in_every_spelling() -> None:
    below = "1 us"
    for spellings, times in UNITS:
        length_s = parse_duration_s(below) * times
        for name in (*spellings, *map(str.upper, spellings)):
            assert parse_duration_s(f"1 {name}") == pytest.approx(length_s)
            assert parse_duration_s(f"2.5{name}") == pytest.approx(2.5 * length_s)
        below = f"1 {spellings[0]}"
    assert parse_duration_s("1 s") == 1.0
