"""Numbers as text: each form at the edges between two units."""

from __future__ import annotations

import pytest

from headgate.report.format import bytes_text, clock_text, ms_text, since_text, span_text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "0 s"), (0.4, "0 s"), (59, "59 s"), (60, "60 s"), (119.4, "119 s"), (120, "2 min"),
        (3599, "59 min"), (3600, "1 h 0 min"), (7 * 3600 + 57 * 60, "7 h 57 min"),
        (86_399, "23 h 59 min"), (86_400, "1 d 0 h"), (200_000, "2 d 7 h"),
    ],
)  # fmt: skip
def test_a_length_of_time_has_its_two_largest_units(seconds: float, text: str) -> None:
    assert span_text(seconds) == text


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"), (9, "9 B"), (1023, "1023 B"), (1024, "1.0 KB"), (10 * 1024, "10 KB"),
        (5 << 20, "5.0 MB"), (184 << 20, "184 MB"), (3 << 30, "3.0 GB"), (1 << 40, "1.0 TB"),
        (2000 << 40, "2000.0 TB"),
    ],
)  # fmt: skip
def test_a_size_has_a_digit_more_below_ten(size: int, text: str) -> None:
    assert bytes_text(size) == text


def test_milliseconds_and_clocks() -> None:
    assert [ms_text(v) for v in (None, 0.04, 9.94, 10.0, -12.0, 1234.5)] == [
        "-", "0.0", "9.9", "10", "-12", "1,234",
    ]  # fmt: skip
    assert [clock_text(s) for s in (-1, 59.9, 60, 3661, 360_000)] == [
        "00:00:00", "00:00:59", "00:01:00", "01:01:01", "100:00:00",
    ]  # fmt: skip
    assert since_text(91_500, 1_500) == "+00:01:30"
