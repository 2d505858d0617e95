"""What `bench phases` makes of a journal; nothing here starts Spark."""

from __future__ import annotations

from itertools import pairwise

import pytest

from headgate.control.registry import policy
from headgate.core.errors import ConfigError
from headgate.journal.parts import Latency
from headgate.journal.schema import Batch
from headgate.workloads.rates import StepRate, parse_rate
from headgate_lab.bench.phases import (
    POLICIES,
    PhasesParameters,
    as_text,
    phase_rows,
    random_phases,
)

RATE = StepRate(((0.0, 100.0), (2.0, 400.0)))


def batch(step: int, arrived: int, mean_ms: float | None, slots: int = 2) -> Batch:
    """A batch of one second that completed ten records, or none."""
    latency = None if mean_ms is None else Latency(mean_ms, mean_ms, mean_ms, mean_ms, mean_ms)
    return Batch(
        step=step,
        spark_batch=step,
        epoch=0,
        slots=slots,
        duration_ms=1_000.0,
        phases_ms={},
        arrived=arrived,
        served=arrived,
        emitted=0,
        late=0,
        backlog=0,
        backlog_bytes=0,
        latency_ms=latency,
        histogram=() if mean_ms is None else ((1.0, 10),),
        at_ms=1_000 * (step + 1),
    )


def test_a_phase_begins_with_the_batch_of_its_first_record() -> None:
    # Records 0 to 199 belong to the first phase: record 200 is in the third batch.
    batches = [batch(0, 100, 500.0), batch(1, 100, 500.0), batch(2, 100, 900.0, slots=3)]
    slow, fast = phase_rows(batches, RATE, 2_000.0)
    assert (slow["rate_per_s"], fast["rate_per_s"]) == (100, 400)
    assert (slow["latency_ms_mean"], fast["latency_ms_mean"]) == (500.0, 900.0)
    assert (slow["slots_last"], fast["slots_first"]) == (2, 3)


def test_recovery_lasts_to_the_end_of_the_last_batch_above_the_bound() -> None:
    means = [500.0, 500.0, 3_000.0, None, 2_500.0, 600.0]
    batches = [batch(i, 100, mean) for i, mean in enumerate(means)]
    slow, fast = phase_rows(batches, RATE, 2_000.0)
    assert slow["recover_s"] == 0.0
    assert fast["recover_s"] == 3.0
    assert fast["latency_ms_peak"] == 3_000.0


def test_a_phase_without_a_batch_is_left_out() -> None:
    assert len(phase_rows([batch(0, 100, 500.0)], RATE, 2_000.0)) == 1


def test_phases_keep_within_their_limits_and_last_as_long_as_the_run() -> None:
    chosen = PhasesParameters(seconds=300.0)
    rate = random_phases(chosen)
    starts_s = [at_s for at_s, _ in rate.steps]
    assert all(20.0 <= b - a <= 60.0 for a, b in pairwise(starts_s))
    assert all(100.0 <= per_s <= 1_600.0 for _, per_s in rate.steps)
    assert 240.0 <= starts_s[-1] < 300.0
    assert random_phases(chosen) == rate


def test_a_run_is_given_the_very_phases() -> None:
    rate = random_phases(PhasesParameters())
    assert parse_rate(as_text(rate)) == rate


def test_the_controllers_are_known() -> None:
    assert [policy(name).name.partition("(")[0] for name in POLICIES] == ["predictive", "threshold"]


def test_limits_in_the_wrong_order_are_refused() -> None:
    with pytest.raises(ConfigError, match="rate_max of phases is below rate_min"):
        PhasesParameters(rate_min=10.0, rate_max=5.0)
