"""What `bench behind` makes of a journal; nothing runs here."""

from __future__ import annotations

import pytest

from headgate.core.errors import ConfigError
from headgate.journal.parts import Latency, Observed, Wish
from headgate.journal.schema import Batch, Decided, Event
from headgate_lab.bench.behind import BehindParameters, caught_up, met_s


def batch(at_s: float, lag: int, mean_ms: float | None, slots: int = 1, backlog: int = 0) -> Batch:
    latency = None if mean_ms is None else Latency(mean_ms, 0.0, 0.0, 0.0, 0.0)
    return Batch(
        0, 0, 0, slots, 1000.0, {}, 900, 900, 0, 0, backlog, 0, latency,
        lag={"a-0": lag, "a-1": 0}, at_ms=int(1_000_000 + at_s * 1e3),
    )  # fmt: skip


def test_lag_is_gone_once_less_waits_than_comes_in_a_second() -> None:
    wish = Wish("o", "scale-out", 4, 3)
    saw = Observed("o", 1, None, 1000.0, 0.0, 0.0, 0.0, 0.0, 7000)
    decided = Decided("p", "out", "why", True, (wish,), (saw,), {}, 1_003_000)
    unheard = Decided("p", "out", "advice", False, (wish,), (saw,), {}, 1_003_000)
    events: list[Event] = [
        batch(0, 0, 600_000),  # Spark has told of no batch yet
        batch(2, 8000, 600_000),
        decided,
        unheard,
        batch(4, 3000, 500_000, 4, backlog=200),
        batch(6, 499, 1_500, 4),
        batch(7, 0, 800, 4),
        batch(12, 0, 700, 2),
        batch(17, 0, 700, 2),
    ]
    found = caught_up(events, 1000.0, 500.0)
    assert found is not None
    # the first batch took a second, so it began at -1
    assert (found["waiting_most"], found["gone_s"], found["met_s"]) == (8000, 7.0, 8.0)
    assert found["records_per_s"] == round(4 * 900 / 7)
    assert [(one["at_s"], one["slots"], one["waiting"]) for one in found["decisions"]] == [
        (4.0, [4], 7000)
    ]
    assert [one["lag"] for one in found["batches"]] == [0, 8000, 3000, 499, 0, 0, 0]
    assert caught_up([decided], 1000.0, 500.0) is None


def test_one_slow_batch_begins_the_ten_seconds_anew() -> None:
    def kept(*seen: tuple[float, int | None]) -> float | None:
        return met_s([{"at_s": at_s, "latency_ms": ms} for at_s, ms in seen], 1000.0)

    assert kept((1, 900), (6, 900), (11, 900)) == 1
    assert kept((1, 900), (6, 1000), (11, 900), (21, None), (22, 900)) == 11
    assert kept((1, 900), (10, 900)) is None
    assert kept() is None


@pytest.mark.parametrize(
    "wrong",
    [{"minutes": 0}, {"limit": -1}, {"slots": 5}, {"slo": "p95 < 1 s over 1 s"}],
)
def test_parameters_out_of_range_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="of behind"):
        BehindParameters(**wrong)  # type: ignore[arg-type]
