"""What the page shows of a journal is bounded, and keeps what is worst of what it joins."""

from __future__ import annotations

import dataclasses
import itertools
import math
import shutil
from pathlib import Path

import pytest
from journals import SLO, START, batch, write

from headgate.core.errors import CheckpointError
from headgate.journal import (
    AssignmentChange,
    BatchBegun,
    ControlAct,
    Decided,
    Event,
    GroupRecords,
    Latency,
    OperatorInfo,
    Stop,
    Wish,
    read,
)
from headgate.report.diagnose import DiagnosisReader
from headgate.report.limits import DriverSeen
from headgate.report.now import health
from headgate.ui.history import (
    CHANGES_KEPT,
    CURVES,
    HEAT_COLUMNS,
    HEAT_ROWS,
    HeatMap,
    JournalHistory,
)
from headgate.ui.shelf import Shelf

NOW_MS = 100_000


def told(events: list[Event], points: int = 2_000) -> dict:
    history = JournalHistory()
    for event in events:
        history.absorb(event)
    return history.describe("ck", NOW_MS, DriverSeen(), points)


def test_all_curves_have_a_value_for_each_batch() -> None:
    curves = told([START, *(batch(step) for step in range(7))])["curves"]
    assert {name: len(values) for name, values in curves.items()} == dict.fromkeys(
        ["at_s", *CURVES], 7
    )
    assert curves["at_s"] == [2.0 + step for step in range(7)]
    assert curves["mean_ms"] == [300.0] * 7
    assert curves["arrived"] == [100.0] * 7  # a batch a second
    assert curves["lag"] == [295.0] * 7


def test_the_worst_of_joined_batches_is_kept_and_rates_add_up() -> None:
    slow = Latency(9_000.0, 1.0, 1.0, 1.0, 1.0)
    events = [batch(step, **{"latency_ms": slow} if step == 777 else {}) for step in range(1_000)]
    curves = told([START, *events], points=50)["curves"]
    assert len(curves["at_s"]) == 50
    assert max(value for value in curves["mean_ms"] if value is not None) == 9_000.0
    assert curves["arrived"] == pytest.approx([100.0] * 50)


def test_the_share_of_windows_is_of_those_judged_since_the_batch_before() -> None:
    states = [(100, 90), (200, 190), (200, 190), (300, 190)]
    batches = [
        batch(step, slo=dataclasses.replace(SLO, windows=judged, windows_met=met))
        for step, (judged, met) in enumerate(states)
    ]
    assert told([START, *batches])["curves"]["met"] == [0.9, 1.0, None, 0.0]


def test_a_column_of_the_heat_map_is_no_narrower_than_a_batch() -> None:
    heat = HeatMap()
    for at_s in [*range(0, 40, 3), *range(4_000, 4_040, 3)]:  # idle for an hour between
        heat.add(at_s * 1_000, GroupRecords("a", [0], [1]))
    found = heat.describe()
    # the hour needs columns of 16 s; of batches alone 4 s would do
    assert found["column_ms"] == max(4_000, 1_000 * 2 ** math.ceil(math.log2(4_040 / HEAT_COLUMNS)))
    assert sum(found["rows"][0]["counts"]) == 28


def test_the_heat_map_joins_columns_and_loses_no_record() -> None:
    heat = HeatMap()
    for second in range(10 * HEAT_COLUMNS):
        heat.add(second * 1_000, GroupRecords("a", [second % (HEAT_ROWS + 5)], [2]))
    found = heat.describe()
    assert found["column_ms"] == 16_000
    assert found["groups"] == HEAT_ROWS + 5
    assert len(found["rows"]) == HEAT_ROWS
    assert all(len(row["counts"]) <= HEAT_COLUMNS for row in found["rows"])
    assert all(sum(row["counts"]) == row["records"] for row in found["rows"])
    each = 2 * 10 * HEAT_COLUMNS / (HEAT_ROWS + 5)
    assert all(abs(row["records"] - each) <= 2 for row in found["rows"])
    assert found["rows"][0]["records"] >= found["rows"][-1]["records"]


def test_operators_without_end_take_no_memory_without_end() -> None:
    heat = HeatMap()
    for number in range(100):
        heat.add(0, GroupRecords(f"op{number}", [32_767], [1]))
    assert len(heat.describe()["rows"]) == 2


def test_key_groups_of_two_operators_are_two_rows() -> None:
    served = (GroupRecords("a", [3], [70]), GroupRecords("b", [3], [30]))
    rows = told([START, batch(0, served_groups=served)])["heat"]["rows"]
    assert [(row["operator"], row["group"], row["records"]) for row in rows] == [
        ("a", 3, 70),
        ("b", 3, 30),
    ]


def test_only_the_newest_acts_are_kept_and_all_are_counted() -> None:
    history = JournalHistory()
    for number in range(CHANGES_KEPT + 7):
        history.absorb(ControlAct("scale", "user", at_ms=number))
    assert [act.at_ms for act in history.acts] == list(range(7, CHANGES_KEPT + 7))
    assert history.acts_count == CHANGES_KEPT + 7


def test_changes_say_what_and_why_newest_first() -> None:
    found = told(
        [
            START,
            batch(0),
            Decided("unified", "r", "busy", True, (Wish("a", "scale-out", 3, 9),), at_ms=3_000),
            AssignmentChange(1, 1, 2, 3, 9, 0, "unified", "busy", "a", at_ms=4_000),
            ControlAct("freeze", "user", "INC-1", at_ms=5_000),
            *[ControlAct("scale", "user", at_ms=6_000 + n) for n in range(CHANGES_KEPT)],
            Stop("user", at_ms=9_000),
        ]
    )["changes"]
    assert len(found) == CHANGES_KEPT
    assert found[0]["kind"] == "stop"
    few = told([START, Decided("p", "r", "busy", True, (Wish("a", "x", 3, 9),), at_ms=3)])[
        "changes"
    ]
    assert few == [{"at_ms": 3, "kind": "decision", "text": "p wants x of a to 3 slots: busy"}]


def test_a_change_of_two_operators_is_told_of_each_and_tried_once() -> None:
    history = JournalHistory()
    operators = (OperatorInfo("a", "counts"), OperatorInfo("b", "sums"))
    history.absorb(dataclasses.replace(START, operators=operators))
    history.absorb(batch(0))
    for name in ("a", "b"):
        history.absorb(AssignmentChange(1, 1, 2, 4, 9, 0, "u@h", "busy", name, at_ms=2_500))
    told = history.describe("ck", 3_000, DriverSeen())
    assert [change["text"][:12] for change in told["changes"]] == ["b: slots 2 →", "a: slots 2 →"]
    assert [text[20:] for text in told["diagnosis"]["tried"]] == ["slots 2 to 4 by u@h: busy"]


def test_another_run_in_the_same_journal_begins_anew() -> None:
    again = dataclasses.replace(START, at_ms=60_000)
    found = told([START, batch(0), batch(1), Stop("user", at_ms=9_000), again, batch(2)])
    assert len(found["curves"]["at_s"]) == 1
    assert found["heat"]["rows"][0]["records"] == 70


def test_a_journal_without_a_batch_has_empty_curves() -> None:
    found = told([START])
    assert found["curves"]["at_s"] == []
    assert found["slots"] == []
    assert found["heat"]["rows"] == []


def test_a_shelf_finds_new_journals_and_reads_on(tmp_path: Path) -> None:
    clock = [10_000]
    shelf = Shelf([tmp_path], lambda _: DriverSeen(holds=True), now_ms=lambda: clock[0])
    assert shelf.index() == []
    path = write(tmp_path / "one" / "headgate" / "journal.jsonl", [START, batch(0)])
    (entry,) = shelf.index()
    assert (entry["name"], entry["health"], entry["kind"]) == ("clicks", "running", "query")
    write(path, [batch(1)])
    clock[0] += 1_000
    query = shelf.query(entry["id"], 100)
    assert query is not None
    assert len(query["curves"]["at_s"]) == 2
    assert shelf.query("none", 100) is None
    assert shelf.fleet(entry["id"]) is None
    path.write_bytes(path.read_bytes() + b"garbage\n")
    clock[0] += 60_000
    query = shelf.query(entry["id"], 100)
    assert query is not None
    assert "line 4 is not a journal line" in query["error"]
    assert len(query["curves"]["at_s"]) == 2


def test_a_place_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no directory"):
        Shelf([tmp_path / "none"], lambda _: DriverSeen())


def test_a_place_that_is_gone_keeps_nobody_from_seeing_the_others(tmp_path: Path) -> None:
    for name in ("one", "other"):
        write(tmp_path / name / "headgate" / "journal.jsonl", [START, batch(0)])
    now_ms = [NOW_MS]
    shelf = Shelf([tmp_path / "one", tmp_path / "other"], lambda _: DriverSeen(), lambda: now_ms[0])
    assert len(shelf.index()) == 2
    shutil.rmtree(tmp_path / "one")
    now_ms[0] += 10_000
    found = {entry["place"]: entry["health"] for entry in shelf.index()}
    assert "cannot be read" in found[str(tmp_path / "one")]
    assert "cannot be read" not in found[str(tmp_path / "other")]


def test_what_many_batches_add_up_to_does_not_depend_on_how_they_are_put_aside(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def figures(aside: int) -> tuple[object, ...]:
        monkeypatch.setattr("headgate.journal.histogram._ASIDE_MAX", aside)
        monkeypatch.setattr("headgate.ui.history.ASIDE_MAX", aside)
        history, seen = JournalHistory(), []
        history.absorb(START)
        for step in range(1_000):
            slow = Latency(float(step), 1.0, 1.0, 1.0, 1.0) if step % 3 else None
            edges = ((305.0, step % 5),) if step % 2 else ((0.1, 1), (305.0, 2), (1e18, 2**63 - 1))
            groups = (GroupRecords("a", [step % 7, 3, 3, 2**62, -1], [step, 1, 2, 9, 9]),)
            given = {"latency_ms": slow, "histogram": edges if step % 4 else ()}
            history.absorb(batch(step, **given, served_groups=groups, at_ms=2_000 + 700 * step))
            if step % 100 == 99:
                run = history.reading.run
                seen.append((run.histogram, run.latencies.mean_ms, history._heat.describe()))
        return tuple(seen)

    assert figures(1) == figures(7) == figures(512)
    histogram, mean_ms, heat = figures(7)[-1]
    assert histogram[:1] == ((0.1, 250),)  # type: ignore[index]
    assert {row["group"] for row in heat["rows"]} == set(range(7))  # type: ignore[index]
    assert mean_ms is not None


@pytest.fixture
def incident() -> list[Event]:
    """A recorded run of which the driver was killed."""
    path = Path(__file__).parents[1] / "report" / "incidents" / "dead.jsonl"
    return list(read(path))


def test_the_list_of_queries_says_at_any_time_what_a_diagnosis_says(
    tmp_path: Path, incident: list[Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept of a query is as good as made anew: while it runs, hangs, is silent, and is dead."""
    monkeypatch.setattr("headgate.ui.shelf.READ_AGAIN_S", 0.0)
    path = tmp_path / "ck" / "headgate" / "journal.jsonl"
    begun_ms = incident[-1].at_ms + 500
    frozen = ControlAct("freeze", "user", at_ms=begun_ms + 5_000)
    events = [*incident, BatchBegun(1_000, 1_000, at_ms=begun_ms), frozen, Stop("stopped")]
    journal, now_ms, holds = write(path, events[:1]), [0], [True]
    shelf = Shelf([tmp_path], lambda _: DriverSeen(holds[0], "host", 10_000, 8), lambda: now_ms[0])
    reading = DiagnosisReader()
    reading.absorb(events[0])
    seen = set()
    for before, event in itertools.pairwise(events):
        for later_ms in (1, 4_000, 9_999, 10_001, 61_000, 400_000):
            now_ms[0] = before.at_ms + later_ms
            holds[0] = later_ms < 50_000 and not isinstance(event, Stop)
            (line,) = shelf.index()
            driver = DriverSeen(holds[0], "host", 10_000, 8)
            told = reading.diagnosis(str(tmp_path / "ck"), now_ms[0], driver)
            assert line["limit"] == told["limit"]["cause"]
            assert line["health"] == health(reading.run, now_ms[0], driver.holds)
            for key in ("met", "since_ms", "success", "latency_ms"):
                assert line[key] == told["slo"][key]
            seen.add((line["limit"], line["met"], line["health"].split()[0]))
            book = shelf._books[line["id"]]
            book.read_ms = 0  # the next batch is of an earlier time
            if not holds[0]:
                book.glance = None  # a driver that comes back would write a start event
        write(journal, [event])
        reading.absorb(event)
    assert len(seen) > 6, seen


def test_a_query_without_news_is_not_diagnosed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("headgate.ui.shelf.READ_AGAIN_S", 0.0)
    for name, events in {"ended": [Stop("stopped", at_ms=3_000)], "runs": [], "dead": []}.items():
        write(tmp_path / name / "headgate" / "journal.jsonl", [START, batch(0), *events])
    told, asked, now_ms = [], [], [4_000]
    made = DiagnosisReader.glance

    def glance(reading: DiagnosisReader, place: str, at_ms: int, seen: DriverSeen) -> dict:
        told.append(Path(place).name)
        return made(reading, place, at_ms, seen)

    monkeypatch.setattr(DiagnosisReader, "glance", glance)

    def driver(place: Path) -> DriverSeen:
        asked.append(place.name)
        return DriverSeen(place.name == "runs")

    shelf = Shelf([tmp_path], driver, lambda: now_ms[0])
    for _ in range(5):
        shelf.index()
        now_ms[0] += 1_000
    assert sorted(told) == ["dead", "ended", "runs"]
    assert sorted(asked) == ["dead", "ended", *["runs"] * 5]
    now_ms[0] += 60_000
    assert {entry["health"].split()[0] for entry in shelf.index()} == {"idle", "dead:", "finished"}
    write(tmp_path / "dead" / "headgate" / "journal.jsonl", [batch(1)])
    count = len(told)
    shelf.index()
    assert told[count:] == ["dead"]
