"""Metrics of drawn journals as recorded, whole and read piece by piece, and against plain sums."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import drawn_journals
import pytest
from journals import START, write
from prometheus_client.parser import text_string_to_metric_families

from headgate.journal import (
    AssignmentChange,
    Batch,
    ControlAct,
    Event,
    ExecutorChange,
    FleetDecided,
    FleetJobState,
    FleetRound,
    FleetStart,
    GrantChange,
    GroupRecords,
    MigrationStep,
    Retry,
    SlotLost,
    SlotRequest,
    Start,
    Stop,
)
from headgate.metrics.exporter import JournalMetrics
from headgate.metrics.totals import QueryTotals

Recorded = Callable[[str, Iterable[str]], None]
NAMES = ("count-0", "join-1")


def more(dice: random.Random, events: list[Event]) -> list[Event]:
    """Return a drawn journal with what only metrics look at."""
    found: list[Event] = []
    judged: Counter[str] = Counter()
    for event in events:
        step, name = len(found), dice.choice(NAMES)
        others: list[list[Event]] = [
            [], [], [],
            [MigrationStep(step, name, "held", suspended_s=dice.choice([0.0, 0.25]), at_ms=event.at_ms)],
            [SlotLost(step, name, 1, at_ms=event.at_ms)],
            [GrantChange({n: dice.randint(1, 4) for n in NAMES[: dice.randint(0, 2)]}, "fleet",
                         at_ms=event.at_ms)],
            [SlotRequest({name: dice.randint(1, 9)}, {}, at_ms=event.at_ms)],
            [ExecutorChange("out", 4, 2, 1, 3, dice.randint(1, 3), 5.0, at_ms=event.at_ms)],
        ]  # fmt: skip
        found += dice.choice(others) if found else []  # the first line is a start event
        if isinstance(event, Start):
            judged.clear()
            event = replace(event, versions=dice.choice([{}, {"headgate": "1.0", "spark": "4.3"}]))  # noqa: PLW2901
        if isinstance(event, Batch):
            judged.update({n: dice.randint(0, 5) for n in NAMES})
            windows = {n: (judged[n], judged[n] // 2) for n in NAMES if judged[n]}
            served = tuple(
                GroupRecords(
                    n, sorted(dice.sample(range(32), 7)), [dice.randint(1, 90) for _ in range(7)]
                )
                for n in NAMES[: dice.randint(0, 2)]
            )
            slo = None if event.slo is None else replace(event.slo, windows_of=windows)
            event = replace(event, slo=slo, served_groups=served)  # noqa: PLW2901
        found.append(event)
    return found


def journal(dice: random.Random) -> list[Event]:
    return more(dice, drawn_journals.journal(dice))


def told(text: str) -> list[str]:
    """Return the metrics of a text, a line for all labels of each; no bucket that is empty."""
    lines = []
    for family in text_string_to_metric_families(text):
        values: dict[str, list[str]] = {}
        for sample in family.samples:
            if sample.value or not sample.name.endswith(("_created", "_bucket")):
                labels = ",".join(text for _, text in sorted(sample.labels.items()))
                values.setdefault(sample.name, []).append(f"{labels} {sample.value:.9g}".strip())
        lines += [
            f"  {name.removeprefix('headgate_')}: {'; '.join(of)}" for name, of in values.items()
        ]
    return lines


def test_metrics_of_drawn_journals(recorded: Recorded, tmp_path: Path) -> None:
    dice, lines = random.Random(61), []
    for number in range(10):
        path = write(tmp_path / f"{number}" / "journal.jsonl", journal(dice))
        metrics = JournalMetrics([path])
        lines += [f"== {number}", *told(metrics.text())]
        assert not metrics.broken
    recorded("drawn-metrics", lines)


def test_a_journal_that_is_read_in_pieces_has_the_same_metrics(tmp_path: Path) -> None:
    dice = random.Random(62)
    for number in range(8):
        events = journal(dice)
        growing, whole = tmp_path / f"a{number}" / "j.jsonl", tmp_path / f"b{number}" / "j.jsonl"
        write(growing, events[:1])
        metrics, begin = JournalMetrics([growing]), 1
        while begin < len(events):
            metrics.text()
            count = dice.randint(1, 9)
            write(growing, events[begin : begin + count])
            begin += count
        assert told(metrics.text()) == told(JournalMetrics([write(whole, events)]).text())


def of(events: list[Event], kinds: type | tuple[type, ...]) -> list[Any]:
    return [event for event in events if isinstance(event, kinds)]


def test_totals_are_the_sums_of_the_lines() -> None:
    dice = random.Random(63)
    for _ in range(60):
        events, totals, steps = journal(dice), QueryTotals(), list[Batch]()
        for event in events:
            totals.absorb(event)
            if isinstance(event, Batch) and (not steps or event.step > steps[-1].step):
                steps.append(event)
        assert (totals.starts, totals.retries) == (len(of(events, Start)), len(of(events, Retry)))
        assert totals.last_event_ms == max(event.at_ms for event in events)
        assert totals.is_up == (not isinstance(of(events, (Start, Batch, Stop))[-1], Stop))
        assert totals.batches == len(steps)
        for name in ("attempts", "arrived", "served", "emitted", "changelog_bytes"):
            assert getattr(totals, name) == sum(getattr(batch, name) for batch in steps)
        for name in ("store_requests", "store_bytes"):
            assert getattr(totals, name) == sum(getattr(batch, name) or 0 for batch in steps)
        spent: Counter[str] = Counter()
        for batch in steps:
            spent.update(batch.phases_ms)  # type: ignore[arg-type]
        assert totals.phase_ms == pytest.approx(dict(spent))
        assert totals.durations.sum_s == pytest.approx(sum(b.duration_ms for b in steps) / 1e3)
        (*_, (edge, count)) = totals.durations.cumulative()
        assert (edge, count) == ("+Inf", len(steps))
        for edge, count in totals.durations.cumulative()[:-1]:
            assert count == sum(b.duration_ms / 1e3 <= float(edge) for b in steps)
        moved: Counter[str] = Counter()
        for change in of(events, AssignmentChange):
            moved[change.operator] += change.groups_moved
        assert dict(totals.groups_moved) == dict(moved)
        asked = Counter((a.act, str(a.refused is not None).lower()) for a in of(events, ControlAct))
        assert totals.controls == asked
        last = steps[-10:]
        if len(last) > 1 and (served := sum(batch.served for batch in last[1:])):
            waits = last[-1].backlog + sum(last[-1].lag.values())
            seconds = (last[-1].at_ms - last[0].at_ms) / 1e3
            assert totals.backlog_s == pytest.approx(waits * seconds / served)
        elif last:
            waits = last[-1].backlog + sum(last[-1].lag.values())
            assert totals.backlog_s == (None if waits else 0.0)
        busy: dict[str, Counter[int]] = {}
        for batch in last:
            for slot in batch.slot_stats:
                busy.setdefault(slot.operator, Counter())[slot.slot] += slot.useful_ms  # type: ignore[assignment]
        expected = {
            name: max(times.values()) / (sum(times.values()) / len(times))
            for name, times in busy.items()
            if sum(times.values())
        }
        assert totals.skew == pytest.approx(expected)


def test_metrics_of_fleets_and_names_that_several_have(recorded: Recorded, tmp_path: Path) -> None:
    dice, lines = random.Random(64), []

    def job(name: str) -> FleetJobState:
        return FleetJobState(
            name, "running", dice.choice([None, 0.0, 7.0]), dice.choice([0.0, 10.0]), dice.random() < 0.5
        )  # fmt: skip

    for number in range(10):
        events: list[Event] = [FleetStart("henge", 9, 10.0, 1, 5)]
        for round_ in range(dice.randint(0, 3)):
            jobs = tuple(job(name) for name in ("a", "b")[: dice.randint(0, 2)])
            events.append(
                FleetRound(
                    10.0 * round_, jobs, dice.choice([0.0, 5.0]), dice.choice([0.0, 20.0]), 3, 9,
                    dice.random() < 0.5, 9,
                )
            )  # fmt: skip
            events.append(FleetDecided("henge", dice.choice(["reduce", "nothing"]), "", "", True))
        path = write(tmp_path / f"{number}" / "fleet.jsonl", events)
        lines += [f"== {number}", *told(JournalMetrics([path]).text())]
    places = [tmp_path / "x" / "headgate", tmp_path / "y" / "x" / "headgate", tmp_path / "z" / "x",
              tmp_path / "w" / "x" / "headgate"]  # fmt: skip
    names = ("clicks", "clicks", "clicks", "")
    journals = [
        write(place / "journal.jsonl", [replace(START, name=name, at_ms=7)])
        for place, name in zip(places, names, strict=True)
    ]
    text = JournalMetrics(journals).text()
    lines += [line for line in text.splitlines() if line.startswith("headgate_query_up")]
    recorded("drawn-fleets", lines)


@pytest.mark.parametrize(("length", "shown"), [(199, 199), (200, 200), (201, 206)])
def test_a_label_that_is_too_long_is_cut(length: int, shown: int, tmp_path: Path) -> None:
    path = write(tmp_path / "journal.jsonl", [replace(START, name="q" * length)])
    (family,) = [
        f
        for f in text_string_to_metric_families(JournalMetrics([path]).text())
        if f.name == "headgate_query_up"
    ]
    assert len(family.samples[0].labels["query"]) == shown


def test_a_journal_that_was_removed_is_forgotten(tmp_path: Path) -> None:
    one, two = (
        write(tmp_path / n / "j.jsonl", [replace(START, name=n), Stop("user")]) for n in "ab"
    )
    metrics = JournalMetrics([one])
    metrics.add(two)
    assert 'query="a"' in metrics.text()
    metrics.remove(one)
    metrics.remove(one)
    assert 'query="a"' not in metrics.text()
    assert 'query="b"' in metrics.text()
