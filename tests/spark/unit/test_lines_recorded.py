"""Journal lines of drawn batches and epochs: each figure is drawn for itself, as recorded."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_shares import MERGED

from headgate.checkpoint.manifest import FileEntry, Manifest
from headgate.checkpoint.traffic import Traffic
from headgate.core.assignment import Assignment
from headgate.journal.parts import SloState
from headgate.operators.counts import Binned, Counts
from headgate.operators.spec import AggregateSpec, Kind, Leaf, OutputMode
from headgate.spark.job.assignment_request import AssignmentRequest
from headgate.spark.job.job import JobConfig, OperatorState
from headgate.spark.job.reports import Payload, Ran, Report
from headgate.spark.realtime import epoch_lines
from headgate.spark.realtime.epoch_lines import EpochRecorder
from headgate.spark.step.begun import Begun
from headgate.spark.step.outcome import Outcome
from headgate.spark.step.record import Recorder, sentence
from headgate.spark.worker.failure import QueryFailed
from headgate.tables.tiers import Tiering

Recorded = Callable[[str, Iterable[str]], None]
SPECS = {
    "first": AggregateSpec((Leaf(Kind.BYTES),), None, MERGED, OutputMode.UPDATE),
    "other": AggregateSpec((Leaf(Kind.INTEGER),), None, MERGED, OutputMode.UPDATE),
    "above": AggregateSpec((Leaf(Kind.INTEGER),), None, MERGED, OutputMode.UPDATE),
}
GROUPS = 3


def query() -> Any:
    operators = [
        SimpleNamespace(id=name, what=f"what {name} is", spec=spec, key_names=("k", "l"))
        for name, spec in SPECS.items()
    ]
    first, other, above = operators
    return SimpleNamespace(operators=operators, sources=[[first, above], [other, above]])


def payload(dice: random.Random) -> Payload | None:
    length = dice.randrange(100)
    return dice.choice([None, Payload(b"x", None, length, 0), Payload(None, "f", length, 0)])


def report(dice: random.Random, operator: str, slot: int, step: int) -> Report:
    """Return a report in which each figure is drawn for itself."""
    groups = np.array(dice.sample(range(GROUPS), dice.randint(0, 3)), dtype=np.int64)
    some = np.array([dice.randint(1, 9) for _ in groups], dtype=float)
    binned = Binned(groups, groups, some, some, some)
    ran = Ran(dice.choice(["h", "i"]), 1.0, dice.choice([5.0, 6.0]), None)
    tiering = Tiering(*(dice.randrange(100) for _ in range(5)), ms=dice.random())
    figures = {
        name: dice.randrange(50)
        for name in (
            "output_rows", "late_rows", "arrived", "served", "late_records", "waiting_records",
            "served_rows", "touched_rows", "useful_ms", "cpu_ms", "waited_ms", "latency_sum_ms",
        )
    }  # fmt: skip
    return Report(
        step=step, attempt=1, operator=operator, slot=slot, token="t", consumed=(), groups={},
        sections={}, changelog=payload(dice), output=payload(dice), waiting=payload(dice),
        late=payload(dice), segments={}, taken={},
        served_by_group={g: dice.randint(1, 4) for g in dice.sample(range(GROUPS), 2)},
        histogram=tuple((10.0 * n, dice.randrange(4)) for n in (1, 2, 3)) * dice.randint(0, 1),
        latency_max_ms=dice.choice([29.0, 30.5]), watermark_us=0, holds_us=dice.choice([3, 7, 8]),
        phases_ms={"log": 0.75 * slot, "serve": 2.0},
        counts=dice.choice([None, Counts(binned, binned)]),
        ran=dice.choice([None, ran]), tiering=dice.choice([None, tiering]),
        hottest_key=dice.choice([None, (dice.choice([999, 1500]), "a, 1")]), **figures,
    )  # fmt: skip


def states(dice: random.Random) -> dict[str, OperatorState]:
    made = {}
    for name in SPECS:
        state = OperatorState.fresh(dice.randint(1, 3), GROUPS)
        state.rows = [dice.randrange(9) for _ in range(GROUPS)]
        state.backlog = {
            group: [["f", 0, dice.randint(1, 5), 0.0]] * dice.randint(1, 2)
            for group in dice.sample(range(GROUPS), 2)
        }
        made[name] = state
    return made


def outcome(dice: random.Random, of: dict[str, OperatorState], step: int) -> Outcome[Report]:
    reports = [
        report(dice, name, slot, step)
        for name, state in of.items()
        for slot in range(state.assignment.slots)
    ]
    files = tuple(
        FileEntry(dice.choice(["backlog/1", "outputs/1"]), dice.randrange(90), 0) for _ in range(3)
    )
    made: Any = Manifest(
        "j", step, step + 3, 2, {}, {"evict_us": dice.choice([0, 7, 8])}, {}, {}, files, {}, None
    )
    phases = {"plan": dice.random() * 10, "slots": 10.00049, "sink": dice.choice([1.0, 2.5])}
    store = dice.choice([None, Traffic(dice.randrange(9), dice.randrange(99))])
    return Outcome(made, reports, phases, dice.randint(1, 3), dice.randrange(30), store)


def slo(dice: random.Random) -> SloState | None:
    if dice.random() < 0.3:
        return None
    success = dice.choice([None, 0.5])
    windows, cycles = dice.randrange(9), dice.randrange(4)
    made = SloState(
        "steady", False, success, success, 1, "first", windows, 2, 3, 4.0, 5.0, 0.0, cycles
    )
    return replace(made, loop_ms=round(dice.random(), 5))


def lines(path: Path) -> list[str]:
    """Return the lines of a journal without what differs between runs and machines."""
    found = []
    for text in path.read_text().splitlines():
        line = json.loads(text)
        for name in ("at_ms", "versions", "version"):
            line.pop(name, None)
        found.append(json.dumps(line))
    return found


def begun(step: int) -> Begun:
    return Begun(step, step + 3, 0, [], 0.0, 0.0, 0, drain=False, latest=None)


def test_lines_of_drawn_batches(tmp_path: Path, recorded: Recorded) -> None:
    dice, path = random.Random(178), tmp_path / "journal.jsonl"
    recorder = Recorder(path, query(), texts=True)
    of = states(dice)
    config = JobConfig("the name", key_groups=GROUPS, delta_ms=100.0)
    recorder.started("u", config, of, None, {"seed": 7, "p": 1}, workload="w")
    extra = []
    for step in range(6):
        recorder.begun(begun(step))
        made = outcome(dice, of, step)
        recorder.batch(made, of, slo(dice))
        extra += [json.dumps(one) for one in recorder.operators(of, made.reports)][:2]
        if step % 3 == 0:
            recorder.retry(step, 2, ValueError("a record: 7"))
            of = states(dice)
    assert recorder.last is not None
    assert recorder.last.step == 5
    extra.append(f"late {recorder.late_records}, of a batch {recorder.progress.own(5)}")
    split = {1: (1, 0)}
    before, after = Assignment((0, 1, 0), 2, 3), Assignment((0, 1, 1), 3, 4, split)
    for survivors in ((0, 1, None), (1, 0, None), (None, None, 0)):
        request = AssignmentRequest(after, "me", "why", survivors, before=before, moved_bytes=9)
        recorder.assignment(8, "first", request)
    recorder.stateless(9, {"sink": 1.23456, "plan": 2.0})
    recorder.stop("failed", QueryFailed("it quotes a record"))
    again = Recorder(tmp_path / "again.jsonl", query())
    again.started("u", config, {}, made.manifest, {}, workload=None)
    again.retry(1, 2, ValueError("a record: 7"))
    again.stop("stopped")
    recorded("lines_of_batches", [*lines(path), *lines(again.path), *extra])


def test_lines_of_drawn_epochs(
    tmp_path: Path, recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line a second sums what its epochs did; events come behind the epochs before them."""
    dice, path, now_s = random.Random(315), tmp_path / "journal.jsonl", [10.0]
    monkeypatch.setattr(epoch_lines, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    recorder, counted = EpochRecorder(path, query()), []
    of = states(dice)
    recorder.follow(of, lambda: dice.choice([0.25, 0.5]))
    recorder.after_line = lambda: counted.append(len(path.read_text().splitlines()))
    recorder.flush()
    for step in range(12):
        recorder.begun(begun(step))
        recorder.batch(outcome(dice, of, step), of, slo(dice))
        now_s[0] += dice.choice([0.1, 0.5, 1.0])
        recorder.look()
        if step % 6 == 5:
            recorder.retry(step, 1, ValueError("a record: 7"))
    recorder.stop("stopped")
    found = lines(path)
    epochs = [json.loads(line).get("epochs", 0) for line in found]
    assert sum(epochs) == 12
    recorded("lines_of_epochs", [*found, f"{counted}"])


def test_the_sentence_of_an_error() -> None:
    failed = QueryFailed("it quotes a record")
    failed.journalled = "a user's function failed"
    assert sentence(failed, texts=False) == "a user's function failed"
    assert sentence(failed, texts=True) == "it quotes a record"
    assert sentence(ValueError("x" * 600), texts=True) == "ValueError: " + "x" * 488
