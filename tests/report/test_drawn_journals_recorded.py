"""Every view of journals that are drawn by lot, colours included, and what plain models say of them."""

from __future__ import annotations

import io
import json
import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any

import drawn_journals
import numpy as np
import pytest
import runs
from rich.console import Console

from headgate.core.errors import ConfigError
from headgate.journal import AssignmentChange, Batch, Decided, Event, SlotStats, Start, Stop
from headgate.report import Run
from headgate.report.diagnose import diagnose, diagnose_lines, labelled
from headgate.report.finish import finish_lines, slo_text
from headgate.report.limits import DriverSeen
from headgate.report.live import frame, told_at
from headgate.report.now import health, now_of
from headgate.report.plain import plain_line
from headgate.report.summary import quantile, slo_of, summary_of
from headgate.report.top import top, top_lines
from headgate.report.why import why, why_lines

Recorded = Callable[[str, Iterable[str]], None]
DRIVERS = (
    DriverSeen(None), DriverSeen(True, "host a"), DriverSeen(True, "host a", 40, 41),
    DriverSeen(True, "host a", 1, 3), DriverSeen(False, "host a, process 7"),
)  # fmt: skip


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def told(value: Any) -> str:
    """Return a value as JSON, numbers without their last digits, which are the machine's."""
    return json.dumps(
        json.loads(json.dumps(value), parse_float=lambda text: float(f"{float(text):.9g}"))
    )


def styled(run: Run, now_ms: int, width: int, planned_s: float | None) -> list[str]:
    """Return the lines of a frame; before a piece of another style, the style in braces."""
    console = Console(file=io.StringIO(), width=width)
    view = frame(run, now_ms=now_ms, width=width, planned_s=planned_s)
    lines = []
    for line in console.render_lines(view, pad=False):
        style, text = "none", ""
        for piece in line:
            if str(piece.style) != style and piece.text:
                style = str(piece.style)
                text += f"{{{style.replace('not ', '-')}}}"
            text += piece.text
        lines.append(text.rstrip())
    return lines


def drawn(seed: int, count: int) -> Iterator[tuple[random.Random, list[Event], Run, int]]:
    """Yield dice, a journal, the run in it, and when somebody looks."""
    dice = random.Random(seed)
    for _ in range(count):
        events, run = drawn_journals.journal(dice), Run()
        for event in events:
            run.absorb(event)
        yield dice, events, run, run.ended_ms + dice.choice(drawn_journals.AFTER_MS)


def test_diagnoses(recorded: Recorded) -> None:
    lines = []
    for number, (dice, events, _, now_ms) in enumerate(drawn(41, 48)):
        driver = dice.choice(DRIVERS)
        found = diagnose(events, "CK", now_ms=now_ms, driver=driver)
        lines += [f"== {number}", *diagnose_lines(found)]
        if number % 12 == 0:
            lines.append(told(found))
    recorded("drawn-diagnoses", lines)


def test_limits_of_late_work(recorded: Recorded) -> None:
    lines, causes, dice = [], Counter[str](), random.Random(48)
    for number in range(160):
        events = drawn_journals.late_work(dice)
        found = diagnose(events, "CK", now_ms=events[-1].at_ms, driver=DriverSeen(True))
        limit, policy = found["limit"], found["policy"]
        causes[limit["cause"]] += 1
        lines.append(
            f"{number} {limit['cause']}: {limit['why']} | {'; '.join(found['do'])} | {policy}"
        )
    recorded("late-work", lines)
    assert {
        "sink",
        "floor",
        "trigger",
        "one key",
        "cores",
        "slots",
        "source",
        "batch",
    } <= causes.keys()


def test_frames(recorded: Recorded) -> None:
    lines = []
    for number, (dice, _, run, now_ms) in enumerate(drawn(42, 22)):
        width = dice.choice([60, 80, 109, 110, 130])
        lines.append(f"== {number}, {width} wide")
        lines += styled(run, now_ms, width, dice.choice([None, 60.0]))
        lines += told_at(run, "CK")
    recorded("drawn-frames", lines)


def test_bars_at_their_ends(recorded: Recorded) -> None:
    """Slots that work for none of a batch, for nine tenths of it, or longer than it took."""
    run = Run()
    run.absorb(runs.start())
    shares = (-0.1, 0.0, 0.049, 0.05, 0.051, 0.5, 0.899, 0.9, 0.901, 1.0, 1.2)
    stats = tuple(SlotStats(number, 1, 1, 0, 1000.0 * share) for number, share in enumerate(shares))
    for step, share in enumerate([*shares, 1.4]):
        run.absorb(runs.batch(step, duration_ms=1000.0 * share, slot_stats=()))
    run.absorb(runs.batch(12, duration_ms=1000.0, slot_stats=stats))
    recorded("bars", styled(run, run.ended_ms, 80, None))


def test_lines_of_a_run(recorded: Recorded) -> None:
    lines = []
    for number, (dice, _, run, now_ms) in enumerate(drawn(43, 70)):
        holds = dice.choice([None, True, False])
        lines += [f"{number} {health(run, now_ms, holds)}", f"  {plain_line(run, now_ms=now_ms)}"]
        state = slo_of(run)
        lines += [] if state is None else [f"  {slo_text(state)}"]
    recorded("drawn-lines", lines)


def test_summaries_and_hot_groups(recorded: Recorded) -> None:
    lines = []
    for number, (_, _, run, _) in enumerate(drawn(44, 36)):
        lines.append(f"== {number}")
        if not run.recent:
            with pytest.raises(ConfigError, match="the journal has no batch yet"):
                top(run)
            continue
        whole = summary_of(run, "JOURNAL")
        lines += [told(whole)] if number % 4 == 0 else finish_lines(whole)
        lines += [told(top(run))] if number % 6 == 1 else top_lines(top(run))
    recorded("drawn-summaries", lines)


def test_reasons(recorded: Recorded) -> None:
    lines = []
    for number, (dice, events, run, _) in enumerate(drawn(45, 60)):
        since_s = (run.ended_ms - run.began_ms) // 1000
        at = dice.choice([None, "+0:00", "+0:02", f"{since_s // 2} s", "22:13:20", "22:13",
                          "2023-11-14T22:13:22"])  # fmt: skip
        lines.append(f"== {number} {at}")
        # of every third only whether the SLO can be met
        known = [event for event in events if number % 3 or not isinstance(event, Decided)]
        try:
            reason = why(known, at)
        except ConfigError as error:
            lines.append(str(error))
        else:
            lines += [told(reason)] if number % 5 == 0 else why_lines(reason)
    recorded("drawn-reasons", lines)


def batches_of(events: list[Event]) -> list[Batch]:
    """Return the batches of the last run in a journal: each step once, as it came first."""
    batches: list[Batch] = []
    ended = False
    for event in events:
        if isinstance(event, Start) and ended:
            batches = []
        ended = isinstance(event, Stop) and event.error is None
        if isinstance(event, Batch) and (not batches or event.step > batches[-1].step):
            batches.append(event)
    return batches


def test_sums_of_a_run_are_those_of_its_batches() -> None:
    seen = Counter[str]()
    for _, events, run, _ in drawn(46, 200):
        batches = batches_of(events)
        assert [row.step for row in run.rows] == [batch.step for batch in batches]
        assert list(run.recent) == batches[-10:]
        for name in ("arrived", "served", "emitted", "late"):
            assert getattr(run, name) == sum(getattr(batch, name) for batch in batches)
        assert dict(run.histogram) == sum(
            (Counter(dict(batch.histogram)) for batch in batches), Counter()
        )
        if not batches:
            continue
        seen["with batches"] += 1
        whole, recent = summary_of(run, "J"), batches[-10:]
        counts = [sum(n for _, n in b.histogram) or b.served for b in batches if b.latency_ms]
        means = [b.latency_ms.mean for b in batches if b.latency_ms]
        if sum(counts):
            mean = np.average(means, weights=counts)
            assert whole["latency_ms"]["mean"] == pytest.approx(mean, abs=0.051)
        spans = [(b.at_ms - a.at_ms, b.slots) for a, b in pairwise(batches)]
        if sum(span for span, _ in spans):
            slots = np.average([n for _, n in spans], weights=[span for span, _ in spans])
            assert whole["slots_mean"] == pytest.approx(slots, abs=1e-4)
        for phase, spent in whole["phases_ms"].items():
            of = [b.phases_ms[phase] for b in batches if phase in b.phases_ms]
            assert spent == pytest.approx(statistics.median(of), abs=0.051)
        began_ms = run.began_ms if len(batches) <= 10 else batches[-11].at_ms
        spent_s = max(0.001, (recent[-1].at_ms - began_ms) / 1000)
        now = now_of(run)
        assert now.in_per_s == pytest.approx(sum(b.arrived for b in recent) / spent_s)
        assert now.out_per_s == pytest.approx(sum(b.emitted for b in recent) / spent_s)
        for phase, mean_ms in now.phases_ms.items():
            of = [b.phases_ms.get(phase, 0.0) for b in recent]
            assert mean_ms == pytest.approx(statistics.mean(of))
        if any(b.store_requests is not None for b in recent):
            assert now.store_per_h is not None
            requests, written = now.store_per_h
            assert requests == pytest.approx(
                sum(b.store_requests or 0 for b in recent) * 3600 / spent_s
            )
            assert written == pytest.approx(
                sum(b.store_bytes or 0 for b in recent) * 3600 / spent_s
            )
            seen["with a store"] += 1
    assert min(seen.values()) > 30


@pytest.mark.parametrize("count", [1, 2, 3, 9, 40])
def test_a_quantile_is_numpys(count: int) -> None:
    values = np.random.default_rng(count).normal(size=count).tolist()
    for share in (0.0, 0.05, 0.25, 0.5, 0.75, 1.0):
        assert quantile(values, share) == pytest.approx(np.quantile(values, share))


@pytest.mark.parametrize("slots", [(2, 4), (4, 2), (3, 3)])
def test_what_a_change_added_is_beside_the_21_nearest_batches(slots: tuple[int, int]) -> None:
    dice = random.Random(8)
    run, at, took = Run(), 30, [dice.uniform(100.0, 900.0) for _ in range(70)]
    run.absorb(runs.start())
    for step, duration_ms in enumerate(took):
        if step in (at, at + 2):
            before = slots if step == at else (9, 8)
            run.absorb(AssignmentChange(step, 1, *before, 3, 0, "eve", at_ms=runs.BEGAN_MS + 777))
        run.absorb(runs.batch(step, duration_ms=duration_ms))
    near = [*range(19, 30), 31, *range(33, 42)]
    around = [took[step] for step in near]
    assert len(around) == 21
    added = summary_of(run, "J")["rescale_added_ms"]
    if slots == (3, 3):
        assert [row["step"] for row in added] == [at + 2], "as many slots as before are no change"
        return
    row = added[0]
    assert (row["from"], row["to"], row["step"], row["at_s"]) == (*slots, at, 0.377)
    median_ms = statistics.median(around)
    assert row["median_ms"] == round(median_ms, 1)
    assert row["added_ms"] == round(took[at] - median_ms, 1)
    spread_ms = np.quantile(around, 0.75) - np.quantile(around, 0.25)
    assert row["spread_ms"] == pytest.approx(spread_ms, abs=0.051)


def test_rows_of_a_diagnosis_have_the_text_of_its_lines() -> None:
    for _, events, _, now_ms in drawn(47, 40):
        found = diagnose(events, "CK", now_ms=now_ms)
        lines = diagnose_lines(found)
        assert [line[8:] for line in lines] == [text for _, text in labelled(found)]
        label = ""
        for line, (of, _) in zip(lines, labelled(found), strict=True):
            assert line[:8].strip() == ("" if of == label else of)
            label = of
