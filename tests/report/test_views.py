"""What the live view, the plain lines and the picture show."""

from __future__ import annotations

import io
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest
import runs
from rich.console import Console

from headgate.journal import BatchBegun, Event, JournalWriter, MemoryUse, Restart, Retry, SlotStats
from headgate.report import Run, render_svg, summary
from headgate.report.display import Display
from headgate.report.finish import finish_lines
from headgate.report.format import bytes_text, clock_text
from headgate.report.live import frame
from headgate.report.now import health, now_of
from headgate.report.plain import PlainProgress, plain_line

END_MS = runs.batch(89).at_ms


def shown(events: list[Event], now_ms: int = END_MS, width: int = 118) -> str:
    run = Run()
    for event in events:
        run.absorb(event)
    console = Console(file=io.StringIO(), width=width)
    console.print(frame(run, now_ms=now_ms, width=width, planned_s=60.0))
    return console.file.getvalue()  # type: ignore[attr-defined, no-any-return]


def test_the_view_names_job_batch_slots_and_epoch() -> None:
    text = shown(runs.scaled_run())
    assert "nexmark-q5  running  00:00:35 / 00:01:00  batch 89  slots 3  epoch 2" in text
    assert "in 250/s  out 25/s" in text
    assert "backlog 0 (0 B)" in text


def test_changes_are_marked_under_their_batch_with_their_cost() -> None:
    lines = shown(runs.scaled_run()).splitlines()
    bars = next(line for line in lines if " batches " in line)
    marks = lines[lines.index(bars) + 1]
    begin = bars.index("▇") if "▇" in bars else bars.index("█")
    assert marks.index("^ 2→4 at 12 s (+18 ms ± 20)") == begin + 30
    assert marks.index("^ 4→3 at 24 s (+18 ms ± 20)") == begin + 60


def test_no_line_is_wider_than_the_terminal() -> None:
    for width in (60, 80, 118, 200):
        assert max(map(len, shown(runs.scaled_run(), width=width).splitlines())) <= width


def test_a_slot_shows_its_share_groups_and_backlog() -> None:
    busy = runs.batch(
        0,
        backlog=70,
        slot_stats=(SlotStats(0, 64, 90, 70, 285.0), SlotStats(1, 64, 10, 0, 60.0)),
    )
    text = shown([runs.start(), busy])
    assert "slot 0   ██████████  95%   64 groups  90 records  backlog 70" in text
    assert "slot 1   ██░░░░░░░░  20%   64 groups  10 records" in text


def test_of_many_slots_the_busiest_are_shown() -> None:
    stats = tuple(SlotStats(s, 1, 1, 0, float(s)) for s in range(40))
    text = shown([runs.start(), runs.batch(0, slots=40, slot_stats=stats)])
    assert "and 28 less busy slots" in text
    assert "slot 39" in text
    assert "slot 3 " not in text


def test_the_hottest_group_the_phases_and_drops_are_shown() -> None:
    text = shown([runs.start(), runs.batch(0, late=12, watermark_holder=1)])
    assert "group 17 has 25.0% of records" in text
    assert "wait 90  plan 40  slots 80  manifest 9.0  sink 60" in text
    assert "late 12" in text
    assert "held by slot 1" in text


def test_before_the_first_batch_a_job_is_not_silent(tmp_path: Path) -> None:
    began_ms = runs.BEGAN_MS
    run = Run()
    assert health(run, began_ms) == "no start event yet"
    run.absorb(runs.start())
    assert health(run, began_ms + 100_000) == "no batch yet, started 100 s ago"
    assert "waiting for the first batch" in plain_line(run, now_ms=began_ms + 100_000)
    run.absorb(runs.batch(0))
    assert health(run, began_ms + 100_000) == "silent for 100 s"
    run.absorb(runs.start(at_ms=began_ms + 200_000))
    assert health(run, began_ms + 230_000) == "no batch yet, started 30 s ago"


def test_a_job_that_works_on_a_batch_is_not_silent() -> None:
    run, begun = Run(), BatchBegun(1, 1, at_ms=runs.BEGAN_MS + 5_000)
    for event in (runs.start(), runs.batch(0), begun):
        run.absorb(event)
    assert health(run, begun.at_ms + 1_000) == "running"
    assert health(run, begun.at_ms + 40_000) == "working on batch 1 for 40 s"
    run.absorb(runs.batch(1, at_ms=begun.at_ms + 41_000))
    assert health(run, begun.at_ms + 141_000) == "silent for 100 s"


def test_a_driver_tells_an_idle_query_from_a_dead_one() -> None:
    run = Run()
    for event in (runs.start(), runs.batch(0)):
        run.absorb(event)
    later_ms = run.ended_ms + 60_000
    assert health(run, later_ms, holds=True) == "idle for 60 s"
    assert health(run, later_ms, holds=None) == "silent for 60 s"
    assert health(run, later_ms, holds=False).startswith("dead: no driver holds it")
    assert health(run, run.ended_ms + 1_000, holds=False) == "running"


def test_a_silent_job_is_never_shown_as_running() -> None:
    text = shown(runs.scaled_run(), now_ms=END_MS + 60_000)
    assert "silent for 60 s" in text
    assert "running" not in text


def test_a_dead_job_says_why() -> None:
    text = shown([*runs.scaled_run(), runs.stopped("sink is full")])
    assert "nexmark-q5  failed  " in text
    assert "failed: sink is full" in text
    assert "finished (user)" in shown([*runs.scaled_run(), runs.stopped()])


def test_retries_and_restarts_are_events() -> None:
    again = [Retry(1, 1, "a worker died", END_MS), Restart(1, 0, END_MS)]
    text = shown([runs.start(), runs.batch(0), *again])
    assert "batch 1 failed in attempt 1 and is repeated: a worker died" in text
    assert "restarted at batch 1 from batch 0" in text


def test_a_job_without_a_batch_waits_for_it() -> None:
    assert "waiting for the first batch" in shown([runs.start()])
    assert "no start event" in shown([])


def test_a_batch_that_took_no_time_and_served_nothing_is_drawn() -> None:
    idle = runs.batch(
        0, duration_ms=0.0, served=0, arrived=0, latency_ms=None, histogram=(), watermark_us=None
    )
    assert "mean - ms" in shown([runs.start(), idle])


def test_the_picture_is_svg_and_the_same_every_time(tmp_path: Path) -> None:
    path = runs.journal(tmp_path / "j", [*runs.scaled_run(), runs.stopped()])
    picture = render_svg(path)
    assert ET.fromstring(picture).tag.endswith("svg")
    assert "nexmark-q5" in picture
    assert "url(http" not in picture
    assert render_svg(path) == picture


def test_the_picture_is_the_same_whatever_the_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = runs.journal(tmp_path / "j", runs.scaled_run())
    picture = render_svg(path)
    for variables in ({"TERM": "dumb"}, {"NO_COLOR": "1"}, {"TERM": "dumb", "FORCE_COLOR": "1"}):
        with monkeypatch.context() as patch:
            for name, value in variables.items():
                patch.setenv(name, value)
            assert render_svg(path) == picture, variables


def test_a_store_is_shown_by_what_it_costs_per_hour() -> None:
    run = Run()
    run.absorb(runs.start())
    for step in range(4):  # one every 400 ms
        run.absorb(runs.batch(step, store_requests=4, store_bytes=10_000))
    assert "store 36000 requests/h 86 MB/h" in plain_line(run, now_ms=END_MS)
    now = now_of(run)
    assert now.store_per_h == (36_000.0, 90_000_000.0)


def test_state_that_is_not_all_in_memory_is_shown_by_where_it_lies() -> None:
    run = Run()
    run.absorb(runs.start())
    run.absorb(runs.batch(0, memory=MemoryUse(500 * 2**20, 1536 * 2**20, 3, 2, 40, 12.5)))
    assert "state 500 MB in memory 1.5 GB on disk" in plain_line(run, now_ms=END_MS)
    assert "in memory 500 MB, on disk 1.5 GB" in shown([runs.start(), run.last])


def test_a_plain_line_has_no_control_codes_and_all_numbers() -> None:
    run = Run()
    for event in runs.scaled_run():
        run.absorb(event)
    line = plain_line(run, now_ms=END_MS)
    assert line.isprintable()
    assert line.startswith(
        "+00:00:36 nexmark-q5 running batch 89 slots 3 epoch 2 in 250/s out 25/s"
    )
    assert "waiting for the first batch" in plain_line(Run(), now_ms=0)


def test_plain_progress_prints_every_five_seconds_and_events_at_once(tmp_path: Path) -> None:
    lines: list[str] = []
    clock = [runs.BEGAN_MS]
    path = tmp_path / "j"
    progress = PlainProgress(lines.append, lambda: clock[0])
    progress.update(path)  # not there yet
    with JournalWriter(path) as writer:
        for event in runs.scaled_run():
            writer.write(event)
            clock[0] = event.at_ms
            progress.update(path)
    events = [line for line in lines if "event:" in line]
    assert [line.split("event: ")[1].split(" by")[0] for line in events[1:]] == [
        "slots 2 → 4",
        "slots 4 → 3",
    ]
    # A batch every 0.4 s for 36 s: the first, then each that ends 5 s or more after the last line.
    assert len(lines) - len(events) == 7


def test_plain_progress_prints_a_change_of_several_operators_once(tmp_path: Path) -> None:
    lines: list[str] = []
    events = [runs.start(), runs.batch(0), runs.change(1, 2, 4), runs.change(1, 2, 4, epoch=2)]
    PlainProgress(lines.append, lambda: END_MS).update(runs.journal(tmp_path / "j", events))
    assert [line.split("event: ")[1] for line in lines if "slots 2 →" in line] == [
        "slots 2 → 4 by --scale-at; 128 groups, 0 B moved; from batch 1"
    ]


def test_the_display_draws_the_view_on_a_terminal_and_lines_elsewhere(tmp_path: Path) -> None:
    path = runs.journal(tmp_path / "j", runs.scaled_run())
    drawn = {}
    for terminal in (True, False):
        console = Console(file=io.StringIO(), force_terminal=terminal, width=118)
        with Display(console, lambda: END_MS) as display:
            display.update(path)
        drawn[terminal] = console.file.getvalue()  # type: ignore[attr-defined]
    assert "█" in drawn[True]
    assert "\x1b" not in drawn[False]
    assert drawn[False].count("\n") == 4


def test_the_last_lines_say_whether_the_answers_were_compared(tmp_path: Path) -> None:
    result = summary(runs.journal(tmp_path / "j", runs.scaled_run()))
    assert any("not compared" in line for line in finish_lines(result))
    compared = {"rows_compared": 41310, "missing": 0, "extra": 0}
    text = "\n".join(finish_lines({**result, **compared, "verified": True, "checkpoint": "ck"}))
    assert "yes: 41,310 rows equal Spark's batch answer (0 missing, 0 extra)" in text
    assert "slots      2 → 4 → 3\n" in text
    for change in ("2 → 4", "4 → 3"):
        told = f"{change}: its batch took 318 ms, the 21 around it 300 (+18; their spread 20)"
        assert f"  change     {told}\n" in text
    assert "checkpoint ck" in text
    wrong = "\n".join(finish_lines({**result, **compared, "verified": False, "missing": 7}))
    assert "NO: 7 missing" in wrong
    assert "late records" not in wrong
    late = {**result, **compared, "verified": False, "dropped": {"late": 7}}
    assert "it counts the 7 late records that were dropped" in "\n".join(finish_lines(late))


def test_a_run_without_changes_has_nothing_added(tmp_path: Path) -> None:
    result = summary(runs.journal(tmp_path / "j", [runs.start(), runs.batch(0)]))
    assert any(line.endswith("slots      2") for line in finish_lines(result))
    assert not any("start-up" in line for line in finish_lines(result)), "it was started elsewhere"
    started = finish_lines(result | {"startup_s": 2.54})
    assert "  start-up   2.5 s until the first batch, apart from the above" in started


def test_sizes_and_times_as_text() -> None:
    assert [bytes_text(n) for n in (0, 900, 2048, 3 << 20, 5 << 30, 2 << 40)] == [
        "0 B", "900 B", "2.0 KB", "3.0 MB", "5.0 GB", "2.0 TB"
    ]  # fmt: skip
    assert clock_text(3723.9) == "01:02:03"


def test_reports_load_without_spark() -> None:
    code = "import sys, headgate.report, headgate.report.display; print('pyspark' in sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "False"


def test_redelivered_batches_are_drawn_once() -> None:
    once = shown([runs.start(), runs.batch(0), runs.batch(1)])
    twice = [runs.start(), runs.batch(0), runs.batch(1), replace(runs.batch(1), arrived=9)]
    assert shown(twice) == once
