"""The measurement gives the figures it promises; their size is nobody's business here."""

from __future__ import annotations

import time

import numpy as np
import pytest

from headgate_lab.tuple_buffer.backoff import Backoff
from headgate_lab.tuple_buffer.measure import Load, measure


@pytest.mark.slow
def test_a_paced_run_of_two_readers_reports_rate_and_latency(tmp_path):
    tmp_path.chmod(0o700)
    load = Load(sources=2, records=2000, block=100, rate_per_s=20_000.0)
    (result,) = measure(tmp_path, [2], load)
    assert result.readers == 2
    assert 0 < result.records_per_s <= 20_500, "no faster than the schedule"
    assert 0 < result.latency_ms_p50 <= result.latency_ms_p99
    assert np.isfinite(result.latency_ms_mean)
    assert list(tmp_path.iterdir()) == []


def test_waiting_takes_next_to_no_processor_time():
    before = time.process_time()
    assert Backoff(first_s=0.01).until(lambda: 0, 0.3) == 0
    assert time.process_time() - before < 0.1


def test_waiting_ends_at_the_first_result():
    answers = iter([0, 0, 7, 8])
    assert Backoff(first_s=0.0001).until(lambda: next(answers), 5.0) == 7
