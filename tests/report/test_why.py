"""Why, and what is hot: read from journals whose decisions are known."""

from __future__ import annotations

import datetime as dt
import io
from pathlib import Path

import pytest
import runs
from rich.console import Console

from headgate.core.errors import ConfigError
from headgate.journal import (
    Applied,
    AssignmentChange,
    Decided,
    Event,
    Latency,
    Observed,
    SloState,
    SlotStats,
    Wish,
    read,
)
from headgate.report import Run, summary
from headgate.report.finish import finish_lines
from headgate.report.live import event_text, frame
from headgate.report.plain import plain_line
from headgate.report.top import top, top_lines
from headgate.report.why import _time_ms, why, why_lines

SAW = Observed("aggregate-0", 2, 900.0, 1000.0, 300.0, 3500.0, 4000.0, 0.9, 120)


def decided(at_s: float, reason: str, *, slots: int = 3, acts: bool = True) -> Decided:
    wish = Wish("aggregate-0", "scale-out", slots, 40)
    at_ms = runs.BEGAN_MS + int(at_s * 1000)
    rule = "severe -> scale-out"
    return Decided("streamswitch(0.2)", rule, reason, acts, (wish,), (SAW,), {}, at_ms)


def latency(mean_ms: float) -> Latency:
    return Latency(mean_ms, mean_ms, mean_ms, mean_ms, mean_ms)


def state(**fields: object) -> SloState:
    given: dict[str, object] = {
        "state": "steady", "frozen": False, "success": 0.97, "success_worst": 0.5,
        "worst_group": 17, "worst_operator": "aggregate-0", "windows": 100, "windows_empty": 3,
        "wanted": 0.99, "bound_ms": 1000.0, "floor_ms": 300.0, "loop_ms": 1.5, "cycles": 1,
    }  # fmt: skip
    return SloState(**{**given, **fields})  # type: ignore[arg-type]


def story() -> list[Event]:
    """Decides at 4 s and 12 s; batches take 900 ms of latency before 12.4 s, 400 ms after."""
    events: list[Event] = [runs.start(parameters={"slo": ["mean < 1 s over 1 s"]})]
    for step in range(60):
        at_s = step * runs.PERIOD_MS / 1000
        if at_s == 4.0:
            events.append(decided(at_s, "first"))
        if at_s == 12.0:
            events.append(decided(at_s, "second", slots=4))
            at_ms = runs.BEGAN_MS + 12_400
            events.append(Applied("aggregate-0", "scale-out", 4, 400.0, at_ms))
        mean_ms = 900.0 if at_s + 0.4 <= 12.4 else 400.0
        events.append(runs.batch(step, latency_ms=latency(mean_ms), slo=state()))
    return events


def test_the_last_decision_is_told_with_what_it_did() -> None:
    told = why(story(), None)
    assert (told["reason"], told["applied"][0]["slots"]) == ("second", 4)
    assert told["latency_before_ms"] == 900.0
    assert told["latency_after_ms"] == 400.0


@pytest.mark.parametrize("at", ["5 s", "iso", "clock"])
def test_a_decision_is_found_by_the_time_it_held_at(at: str) -> None:
    local = dt.datetime.fromtimestamp(runs.BEGAN_MS / 1000 + 6)
    text = {"iso": local.isoformat(), "clock": local.strftime("%H:%M:%S")}.get(at, at)
    assert why(story(), text)["reason"] == "first"


def test_before_the_first_decision_there_is_nothing_to_tell() -> None:
    for events, at in ((story(), "1 s"), ([runs.start(), runs.batch(0)], None)):
        with pytest.raises(ConfigError, match="no decision"):
            why(events, at)


@pytest.mark.parametrize("at", ["25:00", "03:61"])
def test_a_time_that_is_none_is_refused(at: str) -> None:
    with pytest.raises(ConfigError, match="is no time of day"):
        why(story(), at)


def test_the_text_names_what_was_seen_wanted_and_done() -> None:
    text = "\n".join(why_lines(why(story(), None)))
    for part in (
        "streamswitch(0.2): severe -> scale-out",
        "reason    second",
        "3,500 of 4,000",
        "scale-out to 4 slots, 40 key groups",
        "4 slots after 400 ms",
        "900 ms in the 10 s before, 400 ms after",
    ):
        assert part in text
    advice = [runs.start(), decided(1.0, "x", acts=False)]
    text = "\n".join(why_lines(why(advice, None)))
    assert "(advice only)" in text
    assert "applied   no" in text


def test_the_summary_counts_decisions_and_says_how_the_slo_stood(tmp_path: Path) -> None:
    found = summary(runs.journal(tmp_path / "j", [*story(), decided(30.0, "x", acts=False)]))
    assert found["decisions"] == {"advised": 1, "scale-out": 2}
    assert found["switching"] == {"events": 1, "took_ms_mean": 400.0}
    assert found["slo"]["met"] is False
    # of a run's records, two thirds are at 400 ms and a third at 900, all within a second; not windows
    assert found["slo"]["records_in_time"] == 1.0
    assert (found["slo"]["cycles"], found["slo"]["loop_ms"]) == (60, 1.5)
    assert found["slots_mean"] == 2.0
    text = "\n".join(finish_lines(found))
    assert (
        "mean < 1 s over 1 s: MISSED since it began: 97.0% of windows in time (want 99.0%, worst group 17"
        in text
    )
    assert "100.0% of records" in text
    assert "2 scale-out" in text


def test_mean_slots_is_weighted_by_time(tmp_path: Path) -> None:
    events = [runs.start(), runs.batch(0), runs.batch(1, slots=2), runs.batch(2, slots=4)]
    long = runs.batch(3, slots=1, at_ms=runs.BEGAN_MS + 3 * runs.PERIOD_MS + 800)
    found = summary(runs.journal(tmp_path / "j", [*events, long]))
    assert found["slots_mean"] == pytest.approx((2 + 4 + 1 * 2) / 4)


def test_decisions_push_no_event_off_the_view(tmp_path: Path) -> None:
    run = Run.read(runs.journal(tmp_path / "j", story()))
    assert all(event_text(event) for event in run.events)
    from rich.console import Console

    console = Console(width=120, record=True, file=io.StringIO())
    console.print(frame(run, now_ms=run.ended_ms, width=120))
    assert "MISSED since it began: 97.0% of windows in time" in console.export_text()


def test_top_lists_groups_and_slots_and_says_what_cannot_be_split() -> None:
    run = Run()
    for event in (runs.start(), runs.batch(0), runs.batch(1, hottest=((17, 40), (3, 5)))):
        run.absorb(event)
    found = top(run)
    assert found["groups"][0] == {"group": 17, "records": 65, "share": 0.325, "slots": 1}
    assert [one["slot"] for one in found["slots"]] == [0, 1]
    assert "key group 17 is 65% of what slot 0" in "\n".join(top_lines(found))


def test_views_say_over_how_many_slots_a_key_group_is_split() -> None:
    run = Run()
    split = AssignmentChange(1, 1, 2, 3, 0, 0, "streamswitch(0.2)", split=((17, 0, 2, 1),))
    for event in (runs.start(), runs.batch(0), split, runs.batch(1, hottest=((17, 40), (3, 5)))):
        run.absorb(event)
    found = top(run)
    assert found["groups"][0]["slots"] == 3
    assert found["advice"] is None
    assert "group   17   32.5%  65 records  split over 3 slots" in "\n".join(top_lines(found))
    assert "group 17 split over 3" in plain_line(run, now_ms=run.ended_ms)
    assert "group 17 split over 3 slots" in str(event_text(run.changes[-1]))
    run.absorb(AssignmentChange(2, 2, 3, 3, 0, 0, "streamswitch(0.2)"))
    assert not run.split


def test_top_tells_the_slots_of_two_operators_apart() -> None:
    run = Run()
    stats = tuple(
        SlotStats(0, 64, served, 0, 1.0, operator=f"join-{served}") for served in (30, 70)
    )
    for event in (runs.start(), runs.batch(0, slot_stats=stats)):
        run.absorb(event)
    found = top(run)
    assert [(one["operator"], one["records"]) for one in found["slots"]] == [
        ("join-70", 70),
        ("join-30", 30),
    ]
    assert "70 records  of join-70" in "\n".join(top_lines(found))


def test_top_needs_a_batch() -> None:
    with pytest.raises(ConfigError, match="no batch yet"):
        top(Run())


def test_a_journal_of_decisions_reads_back(tmp_path: Path) -> None:
    events = story()
    assert list(read(runs.journal(tmp_path / "j", events))) == events


def test_the_time_that_status_shows_is_a_time_of_why() -> None:
    view = drawn(story())
    for shown in ("+00:00:12", "+0:12", "12 s"):
        assert why(story(), shown)["reason"] == "second"
    assert why(story(), "+00:00:11")["reason"] == "first"
    assert why(story(), "+00:00:12")["since_s"] == 12.0
    assert "+00:00:" in view


def test_a_time_since_the_start_counts_from_the_run_that_status_shows() -> None:
    hour_ms = 3_600_000
    earlier = [runs.start(runs.BEGAN_MS - hour_ms), runs.stopped(at_ms=runs.BEGAN_MS - hour_ms + 9)]
    assert why([*earlier, *story()], "+00:00:05")["reason"] == "first"


def test_a_time_since_the_start_counts_over_a_crash() -> None:
    hour_ms = 3_600_000
    for crash in ([], [runs.stopped("disk full", runs.BEGAN_MS - hour_ms + 9)]):
        earlier = [runs.start(runs.BEGAN_MS - hour_ms), *crash]
        assert why([*earlier, *story()], "+01:00:05")["reason"] == "first"


def test_an_unreachable_slo_is_said_also_without_a_decision() -> None:
    unreachable = state(state="unreachable", bound_ms=100.0, floor_ms=310.0)
    events = [runs.start(), *(runs.batch(step, slo=unreachable) for step in range(3))]
    told = why(events, None)
    assert (told["rule"], told["wishes"]) == ("unreachable", [])
    text = "\n".join(why_lines(told))
    assert "the SLO is unreachable: its bound of 100 ms" in text
    assert "310 ms (the floor)" in text
    assert why([*story(), runs.batch(99, slo=unreachable)], None)["unreachable"]
    assert why(story(), None)["unreachable"] is None


def drawn(events: list[Event], width: int = 80) -> str:
    """Return the view of a run as text of a terminal of that width."""
    run = Run()
    for event in events:
        run.absorb(event)
    console = Console(file=io.StringIO(), width=width)
    console.print(frame(run, now_ms=run.ended_ms, width=width))
    return console.file.getvalue()  # type: ignore[attr-defined,no-any-return]


def test_the_floor_is_in_a_narrow_terminals_view() -> None:
    assert "floor 300 ms" in drawn(story())


def test_a_last_batch_of_left_overs_does_not_make_a_group_hot() -> None:
    events = [
        runs.start(),
        *(runs.batch(step, served=1000, hottest=((3, 90),)) for step in range(9)),
    ]
    events.append(runs.batch(9, served=2, hottest=((17, 2),)))
    assert "group 3 has" in drawn(events)
    assert "100.0%" not in drawn(events)


def test_a_time_of_day_is_that_of_the_journals_last_day() -> None:
    """Up to a minute after its end; whoever asks for a later time means the day before."""
    ended = dt.datetime(2026, 3, 5, 12, 0, 59, 999_000).timestamp() * 1000

    def day(text: str) -> str:
        return dt.datetime.fromtimestamp(_time_ms(text, 0, int(ended)) / 1000).isoformat()

    assert day("12:00") == "2026-03-05T12:00:59.999000"
    assert day("12:01") == "2026-03-05T12:01:59.999000"
    assert day("12:02") == "2026-03-04T12:02:59.999000"
    assert day("12:01:30") == "2026-03-05T12:01:30.999000"
