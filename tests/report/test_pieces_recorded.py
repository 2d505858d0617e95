"""Texts of what is no journal: checkpoints, comparisons, numbers; and views that follow a journal."""

from __future__ import annotations

import io
import math
import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import drawn_journals
import pytest
import runs
from rich.console import Console

from headgate.journal import Batch, Event, JournalWriter
from headgate.report.display import Display
from headgate.report.finish import inspection_lines, slo_text, verification_lines
from headgate.report.format import (
    ago_text,
    bytes_text,
    clock_text,
    ms_text,
    since_text,
    span_text,
)
from headgate.report.limits import DriverSeen
from headgate.report.notebook import NotebookView, history_figure

Recorded = Callable[[str, Iterable[str]], None]


@pytest.fixture(autouse=True)
def _utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


def inspection(dice: random.Random) -> dict[str, Any]:
    """Return what `headgate.inspect` may say of a checkpoint."""
    phases = ("pending", "prefetch", "switch", "done")
    groups = [list(range(n, n + dice.randint(1, 3))) for n in range(0, 12, 4)]
    subscales = [
        {"subscale": n, "groups": of, "source": dice.randint(0, 2), "destination": 3,
         "phase": dice.choice(phases), "groups_answered": of[: dice.randint(0, 2)]}
        for n, of in enumerate(groups)
    ]  # fmt: skip
    operator: dict[str, Any] = {
        "slots": 3,
        "groups": 12,
        "groups_with_state": 7,
        "entries": dice.choice([0, 1234]),
    }
    if dice.random() < 0.5:
        operator["migration"] = {
            "strategy": dice.choice(["subscale", "fluid"]), "slots_from": 2, "slots_to": 4,
            "going_back": dice.choice(["", "slot 3 is lost"]), "subscales": subscales,
            "groups_by_phase": {phase: 1 + n for n, phase in enumerate(dice.sample(phases, 2))},
        }  # fmt: skip
    found = {
        "checkpoint": "CK", "sound": dice.random() < 0.6, "checked": dice.random() < 0.5,
        "problems": dice.choice([[], [], ["step 3 is damaged", "step 4 is missing"]]),
        "restart": {"does": "go on after step 7", "groups": dice.choice([0, 1, 1200]),
                    "sections": dice.choice([1, 2400]), "rows": 5678, "bytes": 3 << 20},
        "files": {"manifests": dice.choice([0, 7]), "blobs": 1200},
        "bytes": {"manifests": 1, "blobs": 1023},
    }  # fmt: skip
    if dice.random() < 0.7:
        found |= {"job": "j-1", "step": 7, "spark_batch": 6, "epoch": 2, "backlog_rows": 4321}
        found["operators"] = {"count-0": operator, "join-1": {**operator, "slots": 1}}
    return found


def comparison(dice: random.Random) -> dict[str, Any]:
    """Return what `headgate.verify` may say."""
    row = {"k": "7", "n": dice.choice(["1", "x" * 600])}
    verified = dice.choice([None, True, False])
    found: dict[str, Any] = {
        "verified": verified,
        "rows_compared": dice.choice([None, 0] if verified is None else [0, 1234]),
        "missing": dice.choice([None, 0, 1001]), "extra": dice.choice([None, 0, 2]),
    }  # fmt: skip
    optional: dict[str, Any] = {
        "differing": [{"want": row, "got": None}, {"want": None, "got": row}],
        "within_tolerance": dice.choice([[], ["total", "mean"]]),
        "settings_not_taken": dice.choice([[], ["spark.a", "spark.b"]]),
        "dropped": dice.choice([{}, {"late": 0}, {"late": 1234}]),
    }
    return found | {name: value for name, value in optional.items() if dice.random() < 0.6}


def test_checkpoints_and_comparisons(recorded: Recorded) -> None:
    lines, dice = [], random.Random(5)
    for number in range(24):
        lines += [f"== {number}", *inspection_lines(inspection(dice))]
    for number in range(40):
        lines += [f"== {number}", *verification_lines(comparison(dice))]
    recorded("pieces", lines)


def test_words_of_an_slo() -> None:
    slo = {
        "success": 0.5, "met": False, "wanted": 0.99, "worst_group": 3, "success_worst": 0.25,
        "records_in_time": 0.75, "state": "changing", "frozen": True, "floor_ms": 120.0,
        "held_until_ms": runs.BEGAN_MS,
    }  # fmt: skip
    state = "changing, frozen, slots held until 2023-11-14 22:13:20, floor 120 ms"
    assert slo_text(slo) == (
        "MISSED since it began: 50.0% of windows in time "
        f"(want 99.0%, worst group 3 25.0%; 75.0% of records); at the end {state}"
    )
    for name in ("worst_group", "success_worst"):
        assert "worst" not in slo_text(slo | {name: None})
    assert "of records" not in slo_text(slo | {"records_in_time": None})
    assert slo_text(slo | {"success": None}) == f"no window yet; at the end {state}"
    calm = slo | {"frozen": False, "held_until_ms": None, "floor_ms": 0.0, "met": True}
    assert slo_text(calm).startswith("met since it began: 50.0%")
    assert slo_text(calm).endswith("of records); at the end changing, floor not known")


@pytest.mark.parametrize(
    ("text", "of"),
    [
        (bytes_text, {0: "0 B", 9: "9 B", 1023: "1023 B", 1024: "1.0 KB", 10239: "10.0 KB",
                      10240: "10 KB", 1 << 20: "1.0 MB", 1 << 30: "1.0 GB", 1 << 40: "1.0 TB",
                      5 << 50: "5120.0 TB"}),
        (ms_text, {None: "-", 0.0: "0.0", 9.94: "9.9", 10.0: "10", -9.94: "-9.9", -10.0: "-10",
                   1234.5: "1,234"}),
        (clock_text, {-5: "00:00:00", 0: "00:00:00", 59.9: "00:00:59", 60: "00:01:00",
                      3599: "00:59:59", 3600: "01:00:00", 360_000: "100:00:00"}),
        (span_text, {-1: "0 s", 0.4: "0 s", 119.4: "119 s", 120: "2 min", 3599: "59 min",
                     3600: "1 h 0 min", 28_620: "7 h 57 min", 86_399: "23 h 59 min",
                     86_400: "1 d 0 h", 273_599: "3 d 3 h"}),
    ],
)  # fmt: skip
def test_numbers_at_their_ends(text: Callable[[Any], str], of: dict[Any, str]) -> None:
    assert {value: text(value) for value in of} == of


def test_moments() -> None:
    assert since_text(runs.BEGAN_MS + 61_500, runs.BEGAN_MS) == "+00:01:01"
    assert ago_text(runs.BEGAN_MS + 999, runs.BEGAN_MS + 61_998) == (
        "2023-11-14 22:13:20 (00:01:00 ago)"
    )


class Clock:
    """Goes on by 2.5 s at each question."""

    def __init__(self) -> None:
        self.ms = runs.BEGAN_MS

    def __call__(self) -> int:
        self.ms += 2_500
        return self.ms


@pytest.mark.parametrize("terminal", [False, True])
def test_views_that_follow_a_journal(terminal: bool, recorded: Recorded, tmp_path: Path) -> None:
    """One that grows by some events between two looks; nothing is there at the first look."""
    dice, lines = random.Random(51), []
    for number in range(2 if terminal else 8):
        events: list[Event] = []
        while len(events) < 12:
            events = drawn_journals.journal(dice)
        path, clock = tmp_path / f"{number}.jsonl", Clock()
        console = Console(
            file=io.StringIO(),
            width=100,
            height=60,
            force_terminal=terminal,
            color_system=None,
            _environ={},
        )
        lines.append(f"== {number}")
        with Display(console, clock, planned_s=dice.choice([None, 60.0])) as display:
            display.update(path)
            with JournalWriter(path) as journal:
                while events:
                    for event in events[: dice.randint(1, 4)]:
                        journal.write(event)
                        events.remove(event)
                    display.update(path)
                    shown: str = console.file.getvalue()  # type: ignore[attr-defined]
                    console.file.seek(0)
                    console.file.truncate()
                    lines += [f"-- {len(events)} to come"] if shown else []
                    lines += [repr(line)[1:-1].rstrip() for line in shown.splitlines()]
    recorded(f"following-{'terminal' if terminal else 'lines'}", lines)


def batches_drawn(dice: random.Random, at_ms: int, count: int) -> list[Batch]:
    return [drawn_journals.batch(dice, step, at_ms + 700 * step, 0.9) for step in range(count)]


def test_a_notebook(recorded: Recorded, tmp_path: Path) -> None:
    """The line of latencies; its table is that of `diagnose`."""
    lines, dice = [], random.Random(52)
    for number, count in enumerate((0, 1, 2, 3, 5, 9, 245)):
        journal = tmp_path / f"{number}.jsonl"
        runs.journal(
            journal, [runs.start(), *batches_drawn(dice, runs.BEGAN_MS, count), runs.stopped()]
        )
        page = NotebookView(journal).html("CK", runs.BEGAN_MS + 70_000, DriverSeen(True))
        table, _, picture = page.partition("</table>")
        lines += [f"== {count} batches", *([table] if count == 2 else []), picture[:3000]]
    recorded("notebook", lines)


def test_a_picture_of_a_run_has_its_numbers(tmp_path: Path) -> None:
    for count in (0, 1, 7):
        batches = batches_drawn(random.Random(count), runs.BEGAN_MS, count)
        path = runs.journal(tmp_path / f"{count}", [runs.start(), *batches])
        latency, waiting, slots = history_figure(path).axes
        at_s = [0.7 * step for step in range(count)]
        for panel, name, values in (
            (
                latency,
                "mean latency, s",
                [b.latency_ms.mean / 1e3 if b.latency_ms else None for b in batches],
            ),
            (waiting, "records that wait", [b.backlog + sum(b.lag.values()) for b in batches]),
            (slots, "slots", [b.slots for b in batches]),
        ):
            line = panel.lines[0]
            assert list(line.get_xdata()) == pytest.approx(at_s)
            drawn = [None if math.isnan(y) else y for y in line.get_ydata()]
            assert drawn == values
            assert panel.get_ylabel() == name
            assert panel.get_xlabel() == "time since the first batch, s"
            assert panel.get_ylim()[0] == 0
        assert slots.lines[0].get_drawstyle() == "steps-post"
        bounds = [b.slo.bound_ms / 1e3 for b in batches[-1:] if b.slo is not None]
        assert [line.get_ydata()[0] for line in latency.lines[1:]] == bounds
        assert all(line.get_linestyle() == "--" for line in latency.lines[1:])
