"""Counters add up the whole journal; labels keep operators, slots and key groups apart."""

from __future__ import annotations

import dataclasses
import re
import sys
from pathlib import Path

import pytest
from journals import SLO, START, batch, write
from prometheus_client.parser import text_string_to_metric_families

from headgate.core.errors import CheckpointError, ConfigError
from headgate.journal import (
    Applied,
    AssignmentChange,
    ControlAct,
    Decided,
    Event,
    FleetDecided,
    FleetJobState,
    FleetRound,
    FleetStart,
    Restart,
    Retry,
    SlotStats,
    Stop,
    Wish,
)
from headgate.metrics import collect, families
from headgate.metrics.exporter import JournalMetrics


def samples(metrics: JournalMetrics) -> dict[tuple[str, tuple[str, ...]], float]:
    """The value of each sample, by its name and the values of its labels but the query's."""
    parsed = text_string_to_metric_families(metrics.text())
    return {
        (s.name, tuple(value for name, value in s.labels.items() if name != "query")): s.value
        for family in parsed
        for s in family.samples
    }


def exported(tmp_path: Path, events: list[Event]) -> dict[tuple[str, tuple[str, ...]], float]:
    return samples(JournalMetrics([write(tmp_path / "journal.jsonl", events)]))


def test_counters_add_up_over_a_restart_and_count_a_redelivery_once(tmp_path: Path) -> None:
    second = dataclasses.replace(SLO, windows_of={"a": (50, 50)})
    found = exported(
        tmp_path,
        [START, batch(0), batch(1), START, Restart(2, 1), batch(1), batch(2, slo=second)],
    )
    assert found["headgate_batches_total", ()] == 3
    assert found["headgate_records_served_total", ()] == 300
    assert found["headgate_starts_total", ()] == 2
    assert found["headgate_restarts_total", ()] == 1
    assert found["headgate_slo_windows_total", ("a",)] == 150
    assert found["headgate_slo_windows_met_total", ("a",)] == 140
    assert found["headgate_batch_phase_seconds_total", ("sink",)] == pytest.approx(0.3)
    assert found["headgate_records_dropped_total", ("late",)] == 3


def test_gauges_are_those_of_the_last_batches(tmp_path: Path) -> None:
    found = exported(tmp_path, [START, *(batch(step) for step in range(5))])
    assert found["headgate_slot_busy_seconds_total", ("a", "0")] == pytest.approx(2.0)
    assert found["headgate_slot_backlog_records", ("a", "0")] == 5
    assert found["headgate_skew_ratio", ("a",)] == pytest.approx(4 / 3)
    assert found["headgate_hot_key_group", ("a", "1")] == 3
    assert found["headgate_hot_key_group_ratio", ("a", "1")] == pytest.approx(0.7)
    assert found["headgate_source_lag_records", ("clicks",)] == 295
    assert found["headgate_backlog_seconds", ()] == pytest.approx(3.0)  # 300 at 100 a second
    assert found["headgate_slo_bound_seconds", ()] == 2.0
    assert found["headgate_slo_state", ("steady",)] == 1
    assert found["headgate_slo_state", ("unreachable",)] == 0
    assert found["headgate_query_up", ()] == 1


def test_a_latency_is_in_the_bucket_of_its_edge_and_above(tmp_path: Path) -> None:
    found = exported(tmp_path, [START, batch(0)])
    name = "headgate_record_latency_seconds"
    assert found[f"{name}_bucket", ("0.2",)] == 0
    assert found[f"{name}_bucket", ("0.35",)] == found[f"{name}_bucket", ("+Inf",)] == 100
    assert found[f"{name}_sum", ()] == pytest.approx(30.0)


def test_changes_decisions_and_commands_are_counted_by_who_and_what(tmp_path: Path) -> None:
    found = exported(
        tmp_path,
        [
            START,
            Decided("unified(0.2)", "r", "busy", True, (Wish("a", "scale-out", 3, 9),), at_ms=3),
            AssignmentChange(1, 1, 2, 3, 9, 640, "unified(0.2)", operator="a", at_ms=4),
            AssignmentChange(2, 2, 3, 2, 9, 0, "user", operator="a", at_ms=5),
            Applied("a", "scale-out", 3, 700.0, 6),
            ControlAct("scale", "user", refused="frozen", at_ms=7),
            Retry(3, 1, "a worker died", 8),
            Stop("user", at_ms=9),
        ],
    )
    assert found["headgate_decisions_total", ("true", "scale-out", "unified")] == 1
    assert found["headgate_rescales_total", ("policy", "a")] == 1
    assert found["headgate_rescales_total", ("user", "a")] == 1
    assert found["headgate_moved_bytes_total", ("a",)] == 640
    assert found["headgate_slots", ("a",)] == 2
    assert found["headgate_slots_wanted", ("a",)] == 3
    assert found["headgate_rescale_seconds_sum", ()] == pytest.approx(0.7)
    assert found["headgate_control_requests_total", ("scale", "true")] == 1
    assert found["headgate_retries_total", ()] == 1
    assert found["headgate_query_up", ()] == 0


def test_slots_that_are_gone_are_shown_no_more(tmp_path: Path) -> None:
    one = (SlotStats(0, 128, 100, 0, 300.0, operator="a"),)
    found = exported(tmp_path, [START, batch(0), batch(1, slot_stats=one)])
    assert found["headgate_slot_served_records_total", ("a", "0")] == 170
    assert ("headgate_slot_served_records_total", ("a", "1")) not in found


def test_a_scrape_reads_what_is_new_and_finds_new_checkpoints(tmp_path: Path) -> None:
    path = write(tmp_path / "one" / "headgate" / "journal.jsonl", [START, batch(0)])
    metrics = JournalMetrics([tmp_path])
    assert samples(metrics)["headgate_batches_total", ()] == 1
    write(path, [batch(1)])
    assert samples(metrics)["headgate_batches_total", ()] == 2
    write(tmp_path / "deep" / "two" / "headgate" / "journal.jsonl", [START, batch(0)])
    assert 'headgate_batches_total{query="clicks (one)"} 2.0' in metrics.text() or (
        'headgate_batches_total{query="clicks (two)"} 1.0' in metrics.text()
    )
    assert metrics.text().count("headgate_batches_total{") == 2


def test_a_damaged_journal_keeps_what_was_read_and_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "journal.jsonl", [START, batch(0)])
    path.write_bytes(path.read_bytes() + b"garbage\n")
    metrics = JournalMetrics([path])
    assert samples(metrics)["headgate_batches_total", ()] == 1
    (sentence,) = metrics.broken
    assert "line 3 is not a journal line" in sentence


def test_a_fleet_has_metrics_of_its_own(tmp_path: Path) -> None:
    job = FleetJobState("q5", "running", 30.0, 60.0, False)
    events: list[Event] = [
        FleetStart("henge", 8, 10.0, 1, 100),
        FleetRound(10.0, (job,), 30.0, 60.0, 3, 8, True, 110),
        FleetDecided("henge", "reduce", "b", "q5 has more than it needs", True, at_ms=120),
    ]
    write(tmp_path / "fleet.jsonl", events)
    text = JournalMetrics([tmp_path]).text()
    name = tmp_path.name
    assert f'headgate_fleet_utility_ratio{{fleet="{name}"}} 0.5' in text
    assert f'headgate_fleet_job_met{{fleet="{name}",query="q5"}} 0.0' in text
    assert f'headgate_fleet_decisions_total{{action="reduce",fleet="{name}"}} 1.0' in text


def test_every_metric_has_a_name_of_its_own_in_base_units() -> None:
    assert len(set(families.NAMES)) == len(families.NAMES)
    assert not [name for name in families.NAMES if "_ms" in name or "milli" in name]


def test_a_place_without_a_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no directory"):
        JournalMetrics([tmp_path / "none"])
    assert "headgate_batches_total{" not in JournalMetrics([tmp_path]).text()


def test_the_guide_lists_every_metric() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text()
    page = guide.partition("\n## Metrics\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `headgate_")]
    named = set()
    for row in rows:
        stem = ""
        for name in re.findall(r"`(\w+)`", row):
            stem = name if name.startswith("headgate_") else stem
            named |= {name, *(stem[:end] + name for end in range(len(stem)) if stem[end] == "_")}
    assert set(families.NAMES) <= named
    assert {n for n in re.findall(r"`(headgate_\w+)`", page)} <= set(families.NAMES)


def test_without_its_extra_one_sentence_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "headgate.metrics.exporter", None)
    with pytest.raises(ConfigError, match=r'metrics need prometheus-client: .*"\.\[metrics\]"'):
        collect([])
