"""Writing, reading, following; what survives a kill and what is refused."""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from journal_page import field_docs, journal_page

from headgate.core.errors import CheckpointError, EngineError
from headgate.journal import (
    Applied,
    AssignmentChange,
    Batch,
    BatchBegun,
    ControlAct,
    Decided,
    Event,
    ExecutorChange,
    JournalWriter,
    Latency,
    MigrationStep,
    NotReadyToDecide,
    Observed,
    OperatorInfo,
    Restart,
    Retry,
    SloState,
    SlotLost,
    SlotStats,
    Start,
    Stop,
    Wish,
    follow,
    locate,
    read,
)
from headgate.journal.codec import decode, encode
from headgate.journal.fleet import (
    FleetDecided,
    FleetGranted,
    FleetJobChanged,
    FleetJobState,
    FleetRound,
    FleetStart,
    GrantChange,
    SlotRequest,
)
from headgate.journal.schema import KINDS, NESTED, VERSION

JOB = FleetJobState("q5", "running", 30.0, 35.0, False, (0.9,), {"aggregate-0": 3})
PAGE = Path(__file__).parents[2] / "docs" / "journal.md"
START = Start(
    job="7f",
    name="q",
    key_groups=128,
    slots=2,
    workload="nexmark-q5",
    seed=7,
    parameters={"rate": 20000, "options": {"hot": 2}},
    operators=(OperatorInfo("aggregate-0", "count(1) by auction"),),
    at_ms=1000,
)
BATCH = Batch(
    step=4,
    spark_batch=3,
    epoch=1,
    slots=2,
    duration_ms=412.5,
    phases_ms={"plan": 40.0, "slots": 84.0, "manifest": 9.0, "sink": 62.0},
    arrived=20,
    served=18,
    emitted=3,
    late=1,
    backlog=2,
    backlog_bytes=64,
    latency_ms=Latency(400.0, 390.0, 600.0, 700.0, 800.0),
    histogram=((395.1, 10), (602.2, 8)),
    watermark_us=5_000_000,
    slot_stats=(SlotStats(0, 64, 9, 1, 200.0), SlotStats(1, 64, 9, 1, 210.0)),
    hottest=((17, 6), (3, 2)),
    state_rows=5,
    state_bytes=400,
    changelog_bytes=100,
    attempts=2,
    watermark_holder=1,
    slo=SloState(
        "steady", False, 0.99, 0.9, 17, "aggregate-0", 100, 4, 0.99, 1000.0, 300.0, 1.5, 1
    ),
    at_ms=2000,
)
EVENTS: list[Event] = [
    START,
    BATCH,
    AssignmentChange(
        5, 2, 2, 4, 64, 0, "--scale-at", "asked", "aggregate-0", (0, 1), ((1, 1, 0),), 2100
    ),
    Retry(5, 1, "a worker died", 2200),
    Restart(5, 4, 2300),
    Restart(0, None, 2350),
    Stop("user", None, {"rows": 3}, 2400),
    Stop("failure", "sink is full", {}, 2500),
    Decided(
        "streamswitch(0.2)",
        "severe -> scale-out",
        "slot 0 is severe",
        True,
        (Wish("aggregate-0", "scale-out", 3, 64),),
        (Observed("aggregate-0", 2, None, 1000.0, 300.0, 900.5, 2000.0, 0.45, 7),),
        {"projected_s": None, "rate": 1.5},
        2360,
    ),
    Applied("aggregate-0", "scale-out", 3, 120.5, 2370),
    NotReadyToDecide("aggregate-0", "3 of 20 ticks have passed", 2380),
    ControlAct("freeze", "user", "INC-1", "until thawed", None, 2390),
    ExecutorChange("asked", 3, 2, 1, 3, 2, 30_000.0, "the cluster gave 1 of 2", 2395),
    MigrationStep(5, "aggregate-0", "caught up", 1, (3, 4), 0, 2, 640, at_ms=2150),
    MigrationStep(5, "aggregate-0", "failed", strategy="fluid", why="no room", at_ms=2160),
    FleetStart("henge", 8, 10.0, VERSION, 2400),
    FleetRound(10.0, (JOB,), 30.0, 35.0, 3, 8, True, 2410),
    FleetDecided("henge", "reduce", "b", "q5 has more than it needs", True, at_ms=2420),
    FleetJobChanged("q5", "removed", "asked for", 2430),
    FleetGranted("q5", {"a": 2}, {"a": 3}, "henge", "q7 is worth more", {"a": 4}, 10.0, 2440),
    GrantChange({"a": 2}, "henge", "q7 is worth more", 2450),
    SlotRequest({"a": 4}, {"a": 2}, 2460),
    SlotLost(5, "aggregate-0", 1, 3, 2470),
    BatchBegun(6, 5, 2480),
]


def written(path: Path, events: list[Event]) -> Path:
    with JournalWriter(path) as writer:
        for event in events:
            writer.write(event)
    return path


def test_every_kind_comes_back_as_it_went_in(tmp_path: Path) -> None:
    assert list(read(written(tmp_path / "j", EVENTS))) == EVENTS
    assert {type(event) for event in EVENTS} == set(KINDS.values())


def test_a_line_is_one_object_that_names_its_kind_and_time(tmp_path: Path) -> None:
    lines = written(tmp_path / "j", EVENTS).read_text().splitlines()
    objects = [json.loads(line) for line in lines]
    assert [o["event"] for o in objects[:4]] == ["start", "batch", "assignment", "retry"]
    assert all(isinstance(o["at_ms"], int) for o in objects)


def test_the_writer_stamps_events_that_bear_no_time(tmp_path: Path) -> None:
    with JournalWriter(tmp_path / "j", now_ms=lambda: 42) as writer:
        writer.write(dataclasses.replace(START, at_ms=0))
    (event,) = read(tmp_path / "j")
    assert event.at_ms == 42


def test_only_the_owner_may_read_it(tmp_path: Path) -> None:
    path = written(tmp_path / "j", EVENTS)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_numpy_numbers_are_written_as_numbers(tmp_path: Path) -> None:
    odd = dataclasses.replace(BATCH, served=np.int64(18), hottest=((np.int32(17), np.int64(6)),))
    assert list(read(written(tmp_path / "j", [START, odd])))[1].hottest == ((17, 6),)  # type: ignore[union-attr]


def test_a_number_that_is_not_finite_is_refused() -> None:
    with pytest.raises(EngineError, match='"batch" cannot be written as JSON'):
        encode(dataclasses.replace(BATCH, duration_ms=float("nan")))


def test_a_parameter_that_is_not_json_is_refused() -> None:
    with pytest.raises(EngineError, match="object is not JSON"):
        encode(dataclasses.replace(START, parameters={"x": object()}))


def test_a_journal_in_a_missing_directory_is_refused(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="cannot open the journal"):
        JournalWriter(tmp_path / "none" / "j")


def test_writing_after_close_is_refused(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path / "j")
    writer.close()
    writer.close()
    with pytest.raises(EngineError, match="cannot append to the journal"):
        writer.write(START)


def test_a_torn_last_line_is_skipped_wherever_it_was_torn(tmp_path: Path) -> None:
    whole = written(tmp_path / "j", EVENTS[:2]).read_bytes()
    first = whole.index(b"\n") + 1
    for end in range(first, len(whole)):
        (tmp_path / "torn").write_bytes(whole[:end])
        assert list(read(tmp_path / "torn")) == [START]


def test_a_writer_cuts_the_torn_line_that_a_killed_one_left(tmp_path: Path) -> None:
    path = written(tmp_path / "j", EVENTS[:2])
    path.write_bytes(path.read_bytes() + b'{"event":"batch","st' + b"x" * 200_000)
    written(path, [START])
    assert list(read(path)) == [START, BATCH, START]


def test_a_full_disk_leaves_no_half_line_for_the_next_event(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    room, real = [len(encode(BATCH)) // 2], os.write

    def until_full(file: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = real(file, data[: room[0]])
        room[0] -= taken
        return taken

    with JournalWriter(tmp_path / "j") as writer:
        writer.write(START)
        with monkeypatch.context() as full:
            full.setattr(os, "write", until_full)
            with pytest.raises(EngineError, match="No space left on device; free space"):
                writer.write(BATCH)
        writer.write(EVENTS[0])
    assert room == [0], "half of a line was written"
    assert list(read(tmp_path / "j")) == [START, EVENTS[0]]


def test_a_damaged_line_in_the_middle_is_refused_by_its_number(tmp_path: Path) -> None:
    path = written(tmp_path / "j", EVENTS[:2])
    path.write_bytes(path.read_bytes() + b"garbage\n" + encode(START))
    with pytest.raises(CheckpointError, match="line 3 is not a journal line"):
        list(read(path))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"late":1', '"late":-1'),
        ('"step":4', '"step":"4"'),
        ('"step":4,', ""),
        ('"hottest":[[17,6]', '"hottest":[[17]'),
    ],
)
def test_a_field_of_another_type_or_missing_is_refused(tmp_path: Path, old: str, new: str) -> None:
    path = written(tmp_path / "j", EVENTS[:2])
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    with pytest.raises(CheckpointError, match="line 2 is not a journal line"):
        list(read(path))


def test_another_version_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "j", [dataclasses.replace(START, version=99)])
    with pytest.raises(CheckpointError, match="journal version 99, this headgate reads 1"):
        list(read(path))


def test_what_a_line_need_not_say_is_as_recorded(
    recorded: Callable[[str, Iterable[str]], None],
) -> None:
    """Lines of an earlier release lack what came later."""
    lines: dict[str, None] = {}
    for event in EVENTS:
        least = {k: v for k, v in json.loads(encode(event)).items() if k not in spare(type(event))}
        read = decode(json.dumps(least).encode(), where="line 1")
        lines |= dict.fromkeys(told(read))
    for kind in NESTED:
        needed = {f.name for f in dataclasses.fields(kind)} - {*spare(kind)}
        lines |= dict.fromkeys(told(kind(**dict.fromkeys(needed))))  # type: ignore[arg-type]
    recorded("defaults", lines)


def spare(kind: type[Any]) -> list[str]:
    """The names of the fields that a line may lack."""
    needed = (dataclasses.MISSING, dataclasses.MISSING)
    return [f.name for f in dataclasses.fields(kind) if (f.default, f.default_factory) != needed]


def told(value: Any) -> list[str]:
    kind = type(value)
    return [f"{kind.__name__}.{name} = {getattr(value, name)!r}" for name in spare(kind)]


def test_unknown_fields_and_kinds_are_ignored(tmp_path: Path) -> None:
    path = written(tmp_path / "j", EVENTS[:2])
    text = path.read_text().replace('"event":', '"new":{"a":1},"event":')
    path.write_text(text + '{"event":"heartbeat","at_ms":1}\n')
    assert list(read(path)) == EVENTS[:2]


def test_a_file_that_begins_otherwise_is_no_journal(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not begin with a start event"):
        list(read(written(tmp_path / "j", [BATCH])))


def test_a_missing_journal_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="there is no journal at"):
        list(read(tmp_path / "j"))


def test_follow_sees_what_is_written_meanwhile_and_ends_at_stop(tmp_path: Path) -> None:
    path = written(tmp_path / "j", [START])
    torn = encode(BATCH)
    pieces = [torn[:50], torn[50:], encode(EVENTS[6])]

    def wait() -> bool:
        with path.open("ab") as file:
            file.write(pieces.pop(0))
        return True

    assert list(follow(path, wait)) == [START, BATCH, EVENTS[6]]
    assert not pieces


def test_follow_ends_when_waiting_is_given_up(tmp_path: Path) -> None:
    assert list(follow(written(tmp_path / "j", [START]), lambda: False)) == [START]


def test_follow_goes_on_behind_a_restart(tmp_path: Path) -> None:
    path = written(tmp_path / "j", [START, EVENTS[6], START, BATCH])
    assert list(follow(path, lambda: False))[-1] == BATCH


def test_locate_takes_a_checkpoint_or_the_journal_itself(tmp_path: Path) -> None:
    (tmp_path / "headgate").mkdir()
    path = written(tmp_path / "headgate" / "journal.jsonl", [START])
    assert locate(tmp_path) == path
    assert locate(path) == path


def test_locate_refuses_a_directory_without_journal(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no journal"):
        locate(tmp_path)
    with pytest.raises(CheckpointError, match="does not exist"):
        locate(tmp_path / "none")


def test_every_field_is_documented() -> None:
    for kind in (*KINDS.values(), *NESTED):
        named = [name for name, *_ in field_docs(kind)]
        assert named == [field.name for field in dataclasses.fields(kind)]


def test_the_page_is_not_stale() -> None:
    assert PAGE.read_text() == journal_page(), "run: make docs"


@pytest.mark.parametrize("kind", ["link", "pipe", "directory"])
def test_a_journal_is_no_link_and_no_pipe(tmp_path: Path, kind: str) -> None:
    victim, path = tmp_path / "victim", tmp_path / "headgate" / "journal.jsonl"
    path.parent.mkdir()
    victim.write_text("a text without a line's end")
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    with pytest.raises(
        EngineError, match=f"cannot open the journal {path}: .*; check its directory"
    ):
        JournalWriter(path)
    assert victim.read_text() == "a text without a line's end"
    with pytest.raises(CheckpointError):
        list(read(path))


def test_a_link_to_a_journal_that_somebody_types_is_meant(tmp_path: Path) -> None:
    (tmp_path / "headgate").mkdir()
    path = written(tmp_path / "headgate" / "journal.jsonl", [START])
    (tmp_path / "latest").symlink_to(path)
    assert len(list(read(locate(tmp_path / "latest")))) == 1
    (tmp_path / "other" / "headgate").mkdir(parents=True)
    (tmp_path / "other" / "headgate" / "journal.jsonl").symlink_to(path)
    with pytest.raises(CheckpointError, match="it is a symbolic link"):
        list(read(locate(tmp_path / "other")))


@pytest.mark.parametrize(
    "broken",
    [
        '"arrivals":[{"operator":"a","groups":[1,2],"records":[3]}]',
        '"served_groups":[{"operator":"a","groups":[],"records":[3]}]',
        '"histogram":[[1.0,-1]]',
        '"histogram":[[1.0,1' + "0" * 400 + "]]",
        '"histogram":[[1e300,1]]',
    ],
)
def test_counts_that_cannot_be_are_one_sentence(tmp_path: Path, broken: str) -> None:
    path = tmp_path / "journal.jsonl"
    with JournalWriter(path) as writer:
        writer.write(START)
        writer.write(BATCH)
    lines = path.read_bytes().splitlines()
    whole = json.loads(lines[1])
    for name in ("arrivals", "served_groups", "histogram"):
        whole.pop(name, None)
    text = json.dumps(whole)[:-1] + ", " + broken + "}"
    for line in (text, text.replace('{"event": "batch", ', '{"event":"batch",')):
        path.write_bytes(lines[0] + b"\n" + line.encode() + b"\n")
        with pytest.raises(CheckpointError, match="line 2 is not a journal line"):
            list(read(path))
