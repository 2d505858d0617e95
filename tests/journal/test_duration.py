"""Durations need units."""

from __future__ import annotations

import pytest

from headgate.core.duration import parse_duration_s
from headgate.core.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("60s", 60.0),
        ("800 ms", 0.8),
        ("2 min", 120.0),
        ("1h", 3600.0),
        ("1.5 h", 5400.0),
        (".5s", 0.5),
        ("1 min 30 s", 90.0),
        ("1h30min", 5400.0),
        ("10 Seconds", 10.0),
        (" 1 day ", 86400.0),
    ],
)
def test_a_number_and_a_unit_is_a_duration(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("60", 'duration "60" has no unit at "60"'),
        ("1 min 30", 'has no unit at "30"'),
        ("5 sceonds", 'unknown unit "sceonds"; did you mean "seconds"'),
        ("5 q", 'unknown unit "q"; use ms, s, min or h'),
        ("soon", '"soon" is not a duration'),
        ("-5s", '"-5s" is not a duration'),
        ("", '"" is not a duration'),
        ("0 s", "is not above zero"),
        ("9" * 400 + "s", "is not above zero"),
    ],
)
def test_anything_else_is_refused_by_name(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_duration_s(text)
    assert message in str(refused.value)
