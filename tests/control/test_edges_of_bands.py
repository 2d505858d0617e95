"""Tests loads that lie on the thresholds of a band, and a counter that falls at the second sample."""

from __future__ import annotations

import numpy as np
import pytest
from control_views import view

from headgate.control.estimators.examiner import Examiner
from headgate.control.sample import Sample
from headgate.control.slots import band
from headgate.control.slots.band import Band
from headgate.core.assignment import Assignment
from headgate.core.errors import NotReady


@pytest.mark.parametrize(
    ("demand", "slots"), [(65.0, 64), (65.1, 129), (31.5, 64), (31.4, 63), (48.0, 64)]
)
def test_a_load_within_a_record_of_a_threshold_is_on_the_threshold(
    monkeypatch: pytest.MonkeyPatch, demand: float, slots: int
) -> None:
    """The tolerance is a 64th, so that all numbers are exact."""
    monkeypatch.setattr(band, "_SLACK_MAX", 1 / 64)
    seen = view([0.0] * 256, slots=64, window_s=1.0)
    assert Band(1.0, 0.5, 0.5).slots(seen, demand) == slots


def test_a_counter_that_falls_at_the_second_sample_is_a_wrong_one() -> None:
    held = Assignment((0, 0), 1)
    examiner = Examiner(2, 0.1, 0.2)
    for tick, counted in ((1, [9.0, 9.0]), (2, [4.0, 10.0]), (3, [11.0, 11.0])):
        counts = np.array(counted)
        examiner.add(Sample(tick, held, (0,), counts, counts, np.full(1, 0.05)))
        if tick == 2:
            with pytest.raises(NotReady, match="tick 2"):
                examiner.view(bound_s=1.0, alert_s=0.1)
    found = examiner.view(bound_s=1.0, alert_s=0.1)
    assert found.group_rate.tolist() == pytest.approx([10.0, 10.0])
