"""Settings of the loop: both ends of each number."""

from __future__ import annotations

from typing import Any

import pytest

from headgate.core.errors import ConfigError
from headgate.loop.settings import OperatorSettings

GOOD: dict[str, Any] = {"bound_s": 1.0, "window_s": 0.5, "slots_max": 8}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"alert_s": 0.0}, "alert threshold 0 s does not lie between 0 and the latency bound 1 s"),
        ({"alert_s": 1.0}, "alert threshold 1 s does not lie between"),
        ({"window_s": 0.0}, "window 0 s is too short; use more than 0 s."),
        ({"slots_min": 0}, "slots min=0 max=8 is out of range; use 1 <= min <= max."),
        ({"slots_min": 9}, "slots min=9 max=8 is out of range"),
        ({"success": 0.0}, "success=0 is out of range; use a share above 0, at most 1."),
        ({"success": 1.01}, "success=1.01 is out of range"),
        ({"floor_s": -0.1}, "floor -0.1 s is negative; use 0 s or leave it out to measure it."),
        ({"floor_s": float("nan")}, "floor nan s is negative"),
    ],
)
def test_a_number_beyond_its_end_is_refused(changed: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        OperatorSettings(**{**GOOD, **changed})
    assert says in str(refused.value)


def test_numbers_may_be_at_their_ends() -> None:
    made = OperatorSettings(**GOOD, slots_min=8, success=1.0, floor_s=0.0, alert_s=0.999)
    assert (made.limit, made.initial_service_rate) == ("", None)
    assert OperatorSettings(**GOOD).slots_min == 1
    assert OperatorSettings(**GOOD).alert_s == 0.1
    assert OperatorSettings(**GOOD).floor_s is None
