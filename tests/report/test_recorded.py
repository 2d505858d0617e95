"""Every view of some journals says what was recorded: texts, figures, and what is left out."""

from __future__ import annotations

import io
import json
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import runs
from rich.console import Console

from headgate.core.errors import ConfigError
from headgate.journal import (
    Applied,
    AssignmentChange,
    Batch,
    BatchBegun,
    ControlAct,
    Decided,
    Event,
    FleetDecided,
    FleetJobChanged,
    FleetRound,
    FleetStart,
    Latency,
    MemoryUse,
    NotReadyToDecide,
    OperatorInfo,
    Restart,
    Retry,
    SlotStats,
    Wish,
    read,
)
from headgate.journal.fleet import FleetHostState, FleetJobState
from headgate.journal.histogram import counts_of, sparse_of
from headgate.journal.parts import GroupRecords, SloState
from headgate.metrics.exporter import JournalMetrics
from headgate.report import Run
from headgate.report.diagnose import diagnose, diagnose_lines
from headgate.report.finish import finish_lines
from headgate.report.fleet import fleet_status
from headgate.report.limits import DriverSeen
from headgate.report.live import frame, told_at
from headgate.report.plain import plain_line
from headgate.report.summary import summary_of
from headgate.report.top import top, top_lines
from headgate.report.why import why, why_lines
from headgate.ui.history import JournalHistory

Recorded = Callable[[str, Iterable[str]], None]
INCIDENTS = Path(__file__).parent / "incidents"
ALIVE = DriverSeen(True, "host a, process 7", 40, 41)


def told(value: Any) -> str:
    """Return a value as JSON, numbers without their last digits, which are the machine's."""
    return json.dumps(
        json.loads(json.dumps(value), parse_float=lambda text: float(f"{float(text):.12g}"))
    )


def scraped(text: str) -> list[str]:
    """Return the lines of metrics with their values, likewise."""
    parts = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return [f"{name} {float(value):.12g}" for name, _, value in parts]


def busy(batches: int) -> list[Event]:
    """Return a journal with all kinds of events: two operators, waves of load, a hot key group."""
    slo = ["mean < 1 s over 1 s"]
    given = {"slo": slo, "cores": 4, "policy": "unified", "slots_max": 8, "duration_s": 60.0}
    operators = (OperatorInfo("count-0", "count(1)"), OperatorInfo("join-1", "inner join"))
    events: list[Event] = [
        runs.start(parameters=given, operators=operators, floor_ms=120.0, key_groups=32)
    ]
    slots = 2
    for step in range(batches):
        mean_ms = 600.0 + 700.0 * math.sin(step / 4.0) ** 2
        records = 100 + 40 * (step % 5)
        at_ms = runs.BEGAN_MS + step * 700
        events.append(BatchBegun(step, step, at_ms=at_ms))
        stats = tuple(
            SlotStats(
                s, 32 // slots, records // (s + 2), 7 * s * (step % 3), 200.0 + 60.0 * s, mean_ms,
                1.5 * mean_ms, 20.0, 3.0, ("count-0", "join-1")[s % 2],
            )
            for s in range(slots)
        )  # fmt: skip
        state = SloState(
            "missed" if mean_ms > 1000.0 else "met", step == 9, 0.9 if step else None, 0.5, 3,
            "join-1", step, 2, 0.99, 1000.0, 120.0, 1.5, 1, {"count-0": 0.9}, step, {}, 1,
            at_ms + 5000 if step == 7 else None,
        )  # fmt: skip
        fields: dict[str, Any] = {
            "slots": slots, "arrived": records, "served": records - 5 * (step % 2), "late": step % 4,
            "backlog": 30 * (step % 6), "backlog_bytes": 3000 * (step % 6), "at_ms": at_ms + 650,
            "duration_ms": 450.0 + 10.0 * (step % 7), "slot_stats": stats, "slo": state,
            "latency_ms": Latency(mean_ms, mean_ms, 2 * mean_ms, 3 * mean_ms, 4 * mean_ms),
            "histogram": sparse_of(counts_of([mean_ms] * 50 + [2 * mean_ms] * 5)),
            "arrivals": (GroupRecords("count-0", [3, 9], [records // 2, 4]),) if step > 4 else (),
            "lag": {"topic": 10 * step} if step % 2 else {}, "watermark_holder": 1,
            "watermark_operator": "count-0", "dropped": {"late_rows": step % 2},
            "store_requests": 12 + step, "store_bytes": 1000 * step,
            "memory": MemoryUse(1 << 20, 3 << 20, 2, step % 3, 4, 2.5) if step % 3 else None,
            "hottest_key": "k = 7" if step > 6 else None, "attempts": 1 + (step == 5),
        }  # fmt: skip
        events.append(runs.batch(step, **fields))
        if step == 3:
            wish = Wish("count-0", "scale-out", 4, 11)
            events.append(
                Decided("unified", "out", "3 slots of work", True, (wish,), at_ms=at_ms + 660)
            )
        if step == 4:
            change = AssignmentChange(
                5, 1, 2, 4, 11, 2048, "unified", "3 slots of work", "count-0", split=((3, 0, 1),),
                at_ms=at_ms + 660,
            )  # fmt: skip
            events += [change, Applied("count-0", "scale-out", 4, 700.0, at_ms=at_ms + 670)]
            slots = 4
        if step == 5:
            events.append(Retry(6, 1, "worker lost", at_ms=at_ms + 660))
        if step == 8:
            events.append(ControlAct("hold", "eve", "a sale", "4 slots", at_ms=at_ms + 660))
            events.append(ControlAct("scale", "eve", detail="9 slots", refused="8 at most",
                                     at_ms=at_ms + 661))  # fmt: skip
        if step == 11:
            events.append(Decided("unified", "in", "all is well", False,
                                  (Wish("count-0", "scale-in", 3, 5),), at_ms=at_ms + 660))  # fmt: skip
        if step == 12:
            events.append(AssignmentChange(13, 2, 4, 4, 2, 100, "eve", at_ms=at_ms + 660))
        if step == 14:
            events.append(NotReadyToDecide("count-0", "3 of 10 ticks", at_ms=at_ms + 660))
        if step == 16:
            events += [runs.start(at_ms=at_ms + 662, parameters=given, operators=operators),
                       Restart(17, 16, at_ms=at_ms + 663)]  # fmt: skip
        if step == 18:
            events.append(
                Decided("unified", "calm", "nothing is to be done", True, at_ms=at_ms + 660)
            )
    return events


def journals() -> Iterator[tuple[str, list[Event], DriverSeen, float]]:
    """Yield names, events, what is seen of the driver, and how long after the last line it is."""
    for path in sorted(INCIDENTS.glob("*.jsonl")):
        alive = DriverSeen(holds=False) if path.stem == "dead" else ALIVE
        yield path.stem, list(read(path)), alive, 1.0
    yield "scaled", runs.scaled_run(), ALIVE, 1.0
    for batches in (0, 1, 4, 6, 12, 20):
        yield f"busy-{batches}", busy(batches), ALIVE, 0.4
    yield "silent", busy(15), DriverSeen(None), 4000.0
    yield "hanging", [*busy(15), BatchBegun(15, 15, at_ms=runs.BEGAN_MS + 11_000)], ALIVE, 90.0
    yield "ended", [*busy(20), runs.stopped(at_ms=runs.BEGAN_MS + 15_000)], DriverSeen(False), 60.0
    yield "failed", [*busy(9), runs.stopped("disk full", runs.BEGAN_MS + 9000)], ALIVE, 60.0


@pytest.fixture
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


CASES = list(journals())


def drawn_run(dice: random.Random) -> tuple[list[Event], DriverSeen, float]:
    """Return a journal of one to four batches, 400 ms apart, whose figures lie at edges or off them."""
    bound_ms, slots = 1000.0, dice.choice([1, 2, 4])
    given: dict[str, Any] = {
        "slo": ["mean < 1 s over 1 s"] if dice.random() < 0.9 else [],
        "cores": dice.choice([None, 1, 2, 4]), "machine_cores": dice.choice([None, 3]),
        "slots_max": dice.choice([0, 2, 8]),
        "trigger": dice.choice([{}, {}, {"processingTime": "1 second"}, {"processingTime": "999 ms"},
                                {"processingTime": "soon"}, {"once": True}]),
        "source_limits": dice.choice([{}, {}, {"maxFilesPerTrigger": "1"}]),
        "unsplittable": dice.choice([{}, {"count-0": ""}, {"count-0": "first depends on the order"}]),
    }  # fmt: skip
    operators = (OperatorInfo("count-0", "count(1)"),) if dice.random() < 0.8 else ()
    events: list[Event] = [runs.start(parameters=given, operators=operators)]
    mean_ms = dice.choice([300.0, 3000.0, 3000.0, 3000.0])
    useful_ms = [dice.choice([0.0, 20.0, 200.0, 280.0, 279.0, 400.0]) for _ in range(slots)]
    ready = dice.choice([None, 0.0, 50.0, 280.0])
    waits = [dice.choice([0, 0, 80, 101, 400]) for _ in range(slots)]
    hot = dice.choice([0, 25, 50, 60, 100])
    sink_ms = dice.choice([0.0, 0.0, 0.0, 60.0, 199.0, 200.0])
    state = SloState(
        dice.choice(["missed", "missed", "unreachable"]), dice.random() < 0.2, 0.5, 0.1, 3, "count-0",
        10, 1, 0.99, bound_ms, dice.choice([100.0, 1200.0, 1201.0]), 1.0, 1,
    )  # fmt: skip
    lag = dice.choice([0, 0, 7])
    for step in range(dice.randint(1, 4)):
        stats = tuple(
            SlotStats(
                s, 64, 50, waits[s], useful_ms[s], None, None, ready, dice.choice([None, 5.0])
            )
            for s in range(slots)
        )
        fields: dict[str, Any] = {
            "slots": slots, "slot_stats": stats, "latency_ms": Latency(*[mean_ms] * 5),
            "phases_ms": {"plan": 40.0, "slots": dice.choice([40.0, 200.0])}
            | ({"sink": sink_ms} if sink_ms else {}),
            "backlog": sum(waits) * (1 + step), "lag": {"topic": lag * step} if lag else {},
            "slo": state if given["slo"] else None, "at_ms": runs.BEGAN_MS + 400 * (step + 1),
            "arrivals": (GroupRecords("count-0", [3, 9], [hot, 100 - hot]),) if hot else (),
            "hottest": ((3, 60),),
        }  # fmt: skip
        events.append(runs.batch(step, **fields))
    if dice.random() < 0.3:
        reason = dice.choice(["2 slots of work", "8 slots wanted; the cores are the limit"])
        events.append(Decided("unified", "out", reason, True, at_ms=events[-1].at_ms + 1))
    if dice.random() < 0.2:
        events.append(BatchBegun(9, 9, at_ms=events[-1].at_ms + 10))
    if dice.random() < 0.1:
        events.append(runs.stopped(dice.choice([None, "no room"]), events[-1].at_ms + 10))
    driver = DriverSeen(
        *dice.choice([(None, ""), (True, "host a"), (True, "host a", 3, 4), (False, "")])
    )
    return events, driver, dice.choice([0.1, 0.1, 0.1, 0.1, 9.0, 10.0, 10.1, 100.0])


def test_a_run_that_nothing_was_said_of_has_no_batch() -> None:
    run = Run()
    assert (run.has_batches, run.last, run.query_restarts) == (False, None, 0)
    run.absorb(Restart(3, 2, at_ms=1))
    assert run.query_restarts == 0, "nothing was done since"


@pytest.mark.usefixtures("_utc")
def test_limits_of_many_runs(recorded: Recorded) -> None:
    lines, dice = [], random.Random(12)
    for number in range(250):
        events, driver, after_s = drawn_run(dice)
        now_ms = max(event.at_ms for event in events) + round(after_s * 1000)
        found = diagnose(events, "CK", now_ms=now_ms, driver=driver)
        limit, hot = found["limit"], found["hot"] or {"text": "-"}
        lines.append(f"{number} {limit['cause']}: {limit['why']} | {found['do']} | {hot['text']}")
    recorded("limits", lines)


@pytest.mark.usefixtures("_utc")
@pytest.mark.parametrize("case", CASES, ids=[case[0] for case in CASES])
def test_views_of_a_journal(
    case: tuple[str, list[Event], DriverSeen, float], recorded: Recorded, tmp_path: Path
) -> None:
    name, events, driver, after_s = case
    run = Run()
    for event in events:
        run.absorb(event)
    now_ms = run.ended_ms + round(after_s * 1000)
    found = diagnose(events, "CK", now_ms=now_ms, driver=driver)
    lines = ["-- diagnose", told(found), *diagnose_lines(found)]
    lines += ["-- plain", plain_line(run, now_ms=now_ms), *told_at(run, "CK")]
    for width in (80, 130):
        console = Console(file=io.StringIO(), width=width)
        console.print(
            frame(run, now_ms=now_ms, width=width, planned_s=60.0 * (width > 100) or None)
        )
        text: str = console.file.getvalue()  # type: ignore[attr-defined]
        lines += [f"-- frame {width}", *(line.rstrip() for line in text.splitlines())]
    if any(isinstance(event, Batch) for event in events):
        whole = summary_of(run, "JOURNAL")
        lines += ["-- summary", told(whole), *finish_lines(whole)]
        hot = top(run)
        lines += ["-- top", told(hot), *top_lines(hot)]
        for at in (None, "+0:03", "5 s"):
            try:
                reason = why(events, at)
            except ConfigError as error:
                lines += [f"-- why {at}", str(error)]
            else:
                lines += [f"-- why {at}", told(reason), *why_lines(reason)]
    if name not in ("busy-4", "busy-20", "ended", "hot"):
        recorded(name, lines)
        return
    history = JournalHistory()
    for event in events:
        history.absorb(event)
    page = history.describe("CK", now_ms, driver, 7)
    lines += ["-- page", *(f"{key}: {told(part)}" for key, part in page.items())]
    metrics = JournalMetrics([runs.journal(tmp_path / "journal.jsonl", events)]).text()
    lines += ["-- metrics", *scraped(metrics)]
    recorded(name, lines)


def fleet() -> list[Event]:
    """Return a fleet's journal: two jobs, one of which ends; two actions, one of which helps."""

    def job(name: str, round_: int) -> FleetJobState:
        return FleetJobState(
            name, "running", 10.0 + round_, 35.0, round_ > 2, (0.5,), {"a": 2 + round_, "b": 1},
            {"a": 0.9, "b": 0.1}, 100.0 * round_, {"a": 3}, {"a": 4},
        )  # fmt: skip

    events: list[Event] = [FleetStart("henge", 9, 10.0, 1, at_ms=5)]
    events += [FleetRound(1.0, (), 0.0, 0.0, 0, 9, False, at_ms=6)]
    events += [FleetStart("henge(2)", 12, 10.0, 1, at_ms=9)]
    events += [FleetJobChanged("low", "running", "", at_ms=9)]
    for round_ in range(5):
        at_ms, names = 10_000 * (round_ + 1), ("low", "high")[: 2 - (round_ > 2)]
        hosts = (FleetHostState("h1", 4, 3.5, 0.9, True), FleetHostState("h2", 4, 1.0, None, False))
        jobs = tuple(job(name, round_) for name in names)
        utility = sum(one.utility or 0.0 for one in jobs)
        events.append(
            FleetRound(10.0 * round_, jobs, utility, 26.0, 9, 12, round_ == 1, at_ms, hosts)
        )
        slots = {1: {"low": {"a": 4, "b": 2}}, 3: {"low": {"a": 5}}}.get(round_, {})
        acts = ("reconfiguration", "drop -> more") if slots else ("nothing", "converged")
        events.append(
            FleetDecided("henge(2)", *acts, f"round {round_}", True, slots, {"n": 1.0}, 10.0 * round_,
                         at_ms=at_ms + 1)
        )  # fmt: skip
        if round_ == 2:
            events.append(FleetJobChanged("high", "ended", "by its user", at_ms=at_ms + 2))
        if round_ == 4:
            events.append(FleetJobChanged("low", "failing", "disk full", at_ms=at_ms + 2))
    return events


@pytest.mark.parametrize("since_s", [None, 15.0])
def test_views_of_a_fleet(since_s: float | None, recorded: Recorded, tmp_path: Path) -> None:
    path = runs.journal(tmp_path / "fleet.jsonl", fleet())
    found = fleet_status(path, since_s) | {"journal": ""}
    lines = [f"{key}: {told(part)}" for key, part in found.items()]
    metrics = JournalMetrics([path]).text()
    lines += scraped(metrics)
    recorded(f"fleet-{since_s}", [line.replace(tmp_path.name, "PLACE") for line in lines])
    assert fleet_status(tmp_path)["rows"] == fleet_status(path)["rows"]
