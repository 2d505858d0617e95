"""Sizes are read with their unit, and shown short."""

from __future__ import annotations

import pytest

from headgate.core.errors import ConfigError
from headgate.core.size import format_bytes, parse_bytes


@pytest.mark.parametrize(
    ("text", "size"),
    [("500MB", 500_000_000), ("1 GB", 10**9), ("64 MiB", 64 * 2**20), ("1.5kB", 1500), ("7 b", 7)],
)
def test_a_size_is_a_number_and_a_unit(text: str, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("500", '"500 MB"'),
        ("500 M", "unknown unit"),
        ("500 mbb", 'unknown unit "mbb"; did you mean "mb"'),
        ("500 zzzz", 'unknown unit "zzzz"; use kB, MB, GB or MiB.'),
        ("many", "not a size"),
        ("-1 MB", "not a size"),
        ("0 MB", "nothing"),
    ],
)
def test_what_is_no_size_is_refused_with_what_to_write(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        parse_bytes(text)


def test_a_size_is_shown_with_three_digits() -> None:
    shown = [format_bytes(size) for size in (0, 999, 67_108_864, 999_900_000, 3.1e12)]
    assert shown == ["0 B", "999 B", "67.1 MB", "1 GB", "3.1 TB"]
