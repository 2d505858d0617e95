"""The numbers of a run, from journals whose numbers are known."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import runs

from headgate.core.errors import CheckpointError
from headgate.journal import AssignmentChange, Event, Latency, MemoryUse, Restart, Retry
from headgate.journal.histogram import counts_of, sparse_of
from headgate.report import Run, summary
from headgate.report.summary import quantile

KEYS = {
    "workload", "duration_s", "batches", "records", "verified", "rows_compared", "missing", "extra",
    "dropped", "slots_seen", "query_restarts", "latency_ms", "floor_ms", "rescale_added_ms",
    "phases_ms", "checkpoint", "journal", "slots_mean", "slo", "decisions", "switching", "memory",
}  # fmt: skip


def of(tmp_path: Path, *events: Event) -> dict[str, object]:
    return summary(runs.journal(tmp_path / "j.jsonl", list(events)))


def test_the_keys_are_those_of_run_json(tmp_path: Path) -> None:
    found = of(tmp_path, *runs.scaled_run())
    assert set(found) == KEYS
    json.dumps(found, allow_nan=False)


def test_counts_and_times_are_those_of_the_batches(tmp_path: Path) -> None:
    odd = runs.batch(90, slots=3, late=5)
    found = of(tmp_path, *runs.scaled_run(), odd)
    assert (found["batches"], found["records"]) == (91, 9100)
    assert found["duration_s"] == pytest.approx(91 * 0.4)
    assert found["dropped"] == {"late": 5}
    assert found["verified"] is None
    assert found["phases_ms"] == {
        "plan": 40.0, "slots": 80.0, "manifest": 9.0, "sink": 60.0, "wait": 90.0
    }  # fmt: skip


def test_where_state_lies_is_told_of_the_last_batch_and_what_moved_as_a_mean(
    tmp_path: Path,
) -> None:
    assert of(tmp_path / "none", runs.start())["memory"] is None
    uses = [MemoryUse(100, 400, 2, 1, 8, 3.0), MemoryUse(90, 410, 0, 1, 6, 1.0)]
    batches = [runs.batch(step, memory=use) for step, use in enumerate(uses)]
    assert of(tmp_path, runs.start(), *batches)["memory"] == {
        "memory_bytes": 90, "cold_bytes": 410,
        "groups_back": 1.0, "groups_away": 1.0, "groups_cold": 7.0, "moving_ms": 2.0,
    }  # fmt: skip


def test_slots_are_listed_in_the_order_they_took_effect(tmp_path: Path) -> None:
    assert of(tmp_path, *runs.scaled_run())["slots_seen"] == [2, 4, 3]
    assert of(tmp_path / "none", runs.start(slots=5))["slots_seen"] == []


def test_a_change_is_compared_with_the_21_nearest_batches_that_are_none(tmp_path: Path) -> None:
    first, second = of(tmp_path, *runs.scaled_run())["rescale_added_ms"]  # type: ignore[misc]
    assert first == {
        "at_s": 11.6,
        "from": 2,
        "to": 4,
        "step": 30,
        "batch_ms": 318.0,
        "median_ms": 300.0,
        "added_ms": 18.0,
        "spread_ms": 20.0,
    }
    assert (second["from"], second["to"], second["added_ms"]) == (4, 3, 18.0)


def test_a_remap_is_no_change_of_slots_but_no_calm_batch_either(tmp_path: Path) -> None:
    events = [runs.start(), *(runs.batch(s) for s in range(3))]
    events += [AssignmentChange(3, 1, 2, 2, 1, 0, "user", at_ms=1)]
    events += [runs.batch(3, duration_ms=9000.0), runs.change(4, 2, 4)]
    events += [runs.batch(4, slots=4)]
    (only,) = of(tmp_path, *events)["rescale_added_ms"]  # type: ignore[misc]
    assert only["to"] == 4
    assert only["median_ms"] == 300.0


def test_a_change_of_several_operators_is_one_change(tmp_path: Path) -> None:
    both = [runs.change(1, 2, 4, epoch=1), runs.change(1, 2, 4, epoch=2)]
    events = [runs.start(), runs.batch(0), *both, runs.batch(1, slots=4)]
    assert len(of(tmp_path, *events)["rescale_added_ms"]) == 1  # type: ignore[arg-type]
    (change,) = Run.read(tmp_path / "j.jsonl").changes
    assert (change.groups_moved, change.epoch) == (128, 2)


def test_a_change_whose_batch_never_ended_has_no_cost(tmp_path: Path) -> None:
    (only,) = of(tmp_path, runs.start(), runs.batch(0), runs.change(1, 2, 4))["rescale_added_ms"]  # type: ignore[misc]
    assert (only["batch_ms"], only["added_ms"], only["median_ms"]) == (None, None, 300.0)
    (bare,) = of(tmp_path / "b", runs.start(), runs.change(0, 2, 4))["rescale_added_ms"]  # type: ignore[misc]
    assert (bare["median_ms"], bare["spread_ms"]) == (None, None)


def test_the_floor_is_one_and_a_half_times_the_low_quantile_of_the_period(tmp_path: Path) -> None:
    assert of(tmp_path, *runs.scaled_run())["floor_ms"] == pytest.approx(1.5 * runs.PERIOD_MS)


def test_the_floor_of_a_short_run_is_the_one_known_before(tmp_path: Path) -> None:
    assert of(tmp_path, runs.start(floor_ms=290.0), runs.batch(0))["floor_ms"] == 290.0


def test_latency_weighs_batches_by_the_records_they_completed(tmp_path: Path) -> None:
    slow = runs.batch(
        1,
        latency_ms=Latency(1000.0, 1000.0, 1000.0, 1000.0, 1000.0),
        histogram=sparse_of(counts_of([1000.0] * 300)),
    )
    found = of(tmp_path, runs.start(), runs.batch(0), slow)["latency_ms"]
    assert found["mean"] == pytest.approx((100 * 300 + 300 * 1000) / 400)  # type: ignore[index]
    assert found["p99"] == pytest.approx(1000, rel=0.05)  # type: ignore[index]


def test_without_completed_records_latency_is_null(tmp_path: Path) -> None:
    idle = runs.batch(0, arrived=0, served=0, latency_ms=None, histogram=())
    found = of(tmp_path, runs.start(), idle)["latency_ms"]
    assert found == {"mean": None, "p50": None, "p95": None, "p99": None}


def test_a_change_of_slots_is_no_restart(tmp_path: Path) -> None:
    assert of(tmp_path, *runs.scaled_run(), runs.stopped())["query_restarts"] == 0


def test_a_start_behind_a_crash_continues_the_run_and_counts_once(tmp_path: Path) -> None:
    again_ms = runs.BEGAN_MS + 5000
    events = [
        runs.start(),
        *(runs.batch(s) for s in range(5)),
        runs.start(at_ms=again_ms),
        Restart(5, 4, again_ms),
        runs.batch(4),  # delivered again: counted once
        *(runs.batch(s, at_ms=again_ms + s * 400) for s in range(5, 8)),
    ]
    found = of(tmp_path, *events)
    assert found["query_restarts"] == 1
    assert (found["batches"], found["records"]) == (8, 800)
    # The pause of the crash is no batch period.
    assert found["floor_ms"] == 600.0


def test_a_restart_within_one_start_counts_too(tmp_path: Path) -> None:
    events = [runs.start(), runs.batch(0), Restart(1, 0, 1), Retry(1, 1, "x", 2), runs.batch(1)]
    assert of(tmp_path, *events)["query_restarts"] == 1


def test_a_start_behind_a_clean_stop_is_a_run_of_its_own(tmp_path: Path) -> None:
    later_ms = runs.BEGAN_MS + 1_000_000
    events = [
        *runs.scaled_run(),
        runs.stopped(),
        runs.start(at_ms=later_ms),
        Restart(90, 89, later_ms),
        runs.batch(90, at_ms=later_ms + 2000),
    ]
    found = of(tmp_path, *events)
    assert (found["batches"], found["query_restarts"], found["duration_s"]) == (1, 0, 2.0)


def test_no_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no journal"):
        summary(tmp_path / "none")


def test_quantile_interpolates() -> None:
    assert quantile([3.0], 0.05) == 3.0
    assert quantile([4.0, 1.0, 2.0, 3.0], 0.5) == 2.5
