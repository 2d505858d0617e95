"""Checks when a feeder reads, passes records on and cuts an epoch, over a made-up reader and driver."""

from __future__ import annotations

import json
import math
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headgate.core.errors import EngineError
from headgate.spark.job.columns import MARKER_TO, MARKER_TOKEN
from headgate.spark.realtime import feeder, words
from headgate.spark.realtime.feed import BranchTasks
from headgate.spark.realtime.feeder import Feeder

SCHEMA = pa.schema([("x", pa.int64())])


def records(*values: int) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"x": list(values)}, schema=SCHEMA)


class Copy:
    """A channel to a task that gets copies of records; also a door and the reader behind it."""

    address = "the door"

    def __init__(self, *got: bytes) -> None:
        self.got = list(got)

    def send_bytes(self, data: bytes) -> None:
        self.got.append(data)

    def recv_bytes(self) -> bytes:
        if not self.got:
            raise EOFError
        return self.got.pop(0)

    def accept(self) -> Any:
        return self

    def __enter__(self) -> Copy:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the channel open."""


class FeederCourse:
    """A clock, a reader and a driver, which follow a list of what happens."""

    def __init__(self, *words_of_driver: Any, polls: list[Any] | None = None) -> None:
        self.now_s = 100.0
        self.said = list(words_of_driver)
        self.polls = list(polls or [])
        self.waits: list[float | None] = []
        self.sent: list[Any] = []
        self.opened: list[Any] = []
        self.copies: dict[str, Copy] = {}
        self.closed = 0

    # --- The driver
    def poll(self, timeout: float | None = 0.0) -> bool:
        """Return whether the driver has said something; an int in the list is polls without a word."""
        self.waits.append(timeout)
        if self.said and isinstance(self.said[0], int) and timeout is not None:
            self.now_s += timeout
            self.said[0] -= 1
            if self.said[0] == 0:
                del self.said[0]
            return False
        return True

    def recv(self) -> Any:
        if self.said and isinstance(self.said[0], int):
            del self.said[0]
        return self.said.pop(0) if self.said else (words.END,)

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def close(self) -> None:
        self.closed += 1

    def __enter__(self) -> FeederCourse:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave the channel open."""

    def door(self, name: str, driver: Any) -> Any:
        assert driver is self
        return self.copies[name]

    # --- The reader
    def reader(self, offsets: Any, number: int, count: int) -> Any:
        self.opened.append((offsets, number, count))
        return SimpleNamespace(
            poll=self._next, offsets=lambda: f"offsets {len(self.polls)}", close=self.close
        )

    def _next(self, most_s: float) -> Any:
        self.waits.append(-most_s)
        return self.polls.pop(0) if self.polls else None

    def connect(self, address: str) -> Any:
        return self if address == "driver" else self.copies[address]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeder, "TaskContext", SimpleNamespace(get=TaskOfFeeder))


class TaskOfFeeder:
    """A task's context: the second task of the branch."""

    def partitionId(self) -> int:
        return 6


def run(
    course: FeederCourse, monkeypatch: pytest.MonkeyPatch, *, padding: int = 0, **branch: Any
) -> list[list[tuple[Any, ...]]]:
    monkeypatch.setattr(
        feeder, "time",
        SimpleNamespace(monotonic=lambda: course.now_s, time=lambda: 1000.0 + course.now_s),
    )  # fmt: skip
    of_branch = BranchTasks(source=1, first=5, count=3, reader=10, **branch)
    meeting: Any = SimpleNamespace(connect=course.connect, door=course.door, driver="driver")
    made = Feeder(meeting, course, of_branch, SCHEMA, [None] * padding)  # type: ignore[arg-type]
    batches = list(made(iter([records()])))
    assert all(batch.schema.names == ["x", MARKER_TO, MARKER_TOKEN] for batch in batches)
    return [
        list(zip(*(column.to_pylist() for column in batch.columns), strict=True))
        for batch in batches
    ]


BEGIN: Any = (words.BEGIN, '["no", "start"]', {})


def cut(epoch: int, after_s: float | None = None, *, still: bool = False, **routes: Any) -> Any:
    return words.CUT, epoch, after_s, still, routes


def marker(**said: Any) -> tuple[Any, ...]:
    return None, 0, json.dumps(said)


GO = (words.GO, {"count": 1})


def test_a_feeder_says_its_name_and_reads_from_where_it_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    course = FeederCourse(BEGIN)
    assert run(course, monkeypatch) == []
    ((word, number, (_, process)),) = course.sent
    assert (word, number) == (words.FEEDER, 11)
    assert process > 0
    assert course.opened == [("start", 1, 3)]
    assert course.closed == 1


def test_a_feeder_holds_still_until_it_may_go(monkeypatch: pytest.MonkeyPatch) -> None:
    course = FeederCourse(BEGIN, GO, polls=[records(1)])
    assert run(course, monkeypatch) == [[marker(count=1)], [marker(count=1)]]
    assert course.waits == [None, 0.0]


def test_records_are_passed_on_with_the_marker_of_their_epoch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    course = FeederCourse(BEGIN, GO, 1, cut(7, count=2), polls=[records(1, 2), records(3)])
    batches = run(course, monkeypatch, padding=2)
    end = marker(epoch=7, count=2)
    empty = (None, 0, None)
    rows = [(one, None, None) for one in (1, 2, 3)]
    assert batches[2:] == [[*rows, end, empty, empty], [empty]]
    assert course.sent[1] == (words.CUT, 7, "offsets 0", 1_100_000.0)


def test_an_epoch_is_cut_once(monkeypatch: pytest.MonkeyPatch) -> None:
    course = FeederCourse(BEGIN, GO, cut(7), cut(7), cut(6), cut(8))
    run(course, monkeypatch)
    assert [said[1] for said in course.sent[1:]] == [7, 8]
    assert [said[3] for said in course.sent[1:]] == [None, None]


def test_after_an_epoch_that_holds_still_nothing_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    course = FeederCourse(BEGIN, GO, cut(7, still=True), cut(8), GO, polls=[None, records(5)])
    run(course, monkeypatch)
    assert [said[1:] for said in course.sent[1:]] == [
        (7, "offsets 1", None), (8, "offsets 1", None),
    ]  # fmt: skip


def test_an_epoch_that_may_wait_is_cut_at_its_time_if_there_is_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    course = FeederCourse(BEGIN, GO, cut(7, 0.03), 9, polls=[None, None, records(4)])
    run(course, monkeypatch)
    assert course.sent[1:] == [(words.CUT, 7, "offsets 0", 1_100_000.0)]
    assert [wait for wait in course.waits if wait and wait > 0] == pytest.approx([0.01] * 3)


def test_an_epoch_that_may_wait_is_not_cut_without_a_record(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    course = FeederCourse(BEGIN, GO, cut(7, 0.0), 4)
    run(course, monkeypatch)
    assert course.sent[1:] == []


def test_an_idle_source_is_polled_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    course = FeederCourse(BEGIN, GO, 1)
    run(course, monkeypatch)
    assert [wait for wait in course.waits if wait and wait < 0] == [-0.002]
    late = FeederCourse(BEGIN, GO, 1)
    polled = late.recv

    def recv() -> Any:
        late.now_s += 1.1 if late.said and late.said[0] == GO else 0.0
        return polled()

    monkeypatch.setattr(late, "recv", recv)
    run(late, monkeypatch)
    assert [wait for wait in late.waits if wait and wait < 0] == [-0.02]


def test_many_records_are_passed_on_before_the_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    few, more = records(*range(63)), records(63)
    course = FeederCourse(BEGIN, GO, 2, polls=[few, more])
    assert [len(batch) for batch in run(course, monkeypatch)[2:]] == [64]
    course = FeederCourse(BEGIN, GO, 1, polls=[few, more])
    assert run(course, monkeypatch)[2:] == []


@pytest.mark.parametrize(("limit", "most"), [("_ROWS_AHEAD", 2), ("_BYTES_AHEAD", 16)])
def test_a_feeder_far_ahead_of_the_next_cut_waits_for_it(
    monkeypatch: pytest.MonkeyPatch, limit: str, most: int
) -> None:
    monkeypatch.setattr(feeder, limit, most)
    course = FeederCourse(BEGIN, GO, 5, cut(7), polls=[records(1, 2), records(3), records(4)])
    run(course, monkeypatch)
    assert course.sent[1:] == [(words.CUT, 7, "offsets 1", 1_100_000.0)]
    assert course.waits[-2] is None or course.waits[-1] is None


def test_a_feeder_reads_again_from_where_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    again = (words.REWIND, '["no", "again"]')
    course = FeederCourse(BEGIN, GO, again, again, polls=[records(1)])
    batches = run(course, monkeypatch)
    assert [one[0] for one in course.opened] == ["start", "again", "again"]
    assert course.sent[1:] == [(words.REWIND, 1), (words.REWIND, 2)]
    assert batches[2:] == [[marker(rewind=n)] for n in (1, 1, 2, 2)]
    assert course.closed == 3


@pytest.mark.parametrize("error", [OSError, EOFError])
def test_a_feeder_without_its_driver_fails_and_may_be_tried_again(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    course = FeederCourse(BEGIN)

    def recv() -> Any:
        raise error

    monkeypatch.setattr(course, "recv", recv)
    with pytest.raises(EngineError, match="a feeder has lost its driver") as raised:
        run(course, monkeypatch)
    assert raised.value.transient


def test_what_is_left_of_a_wait_needs_a_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.monotonic", lambda: 10.0)
    at_once = feeder._Cut.of(1, None, still=False, routes={})
    later = feeder._Cut.of(1, 0.5, still=False, routes={})
    past = feeder._Cut(1, 9.0, still=False, routes={})
    none, some = feeder._Behind(), feeder._Behind(read_ms=5.0)
    assert [one.left_s(none) for one in (at_once, later, past)] == [0.0, math.inf, math.inf]
    assert [one.left_s(some) for one in (at_once, later, past)] == [0.0, 0.5, 0.0]


def test_a_poll_without_rows_shows_that_the_reader_has_got_on() -> None:
    behind = feeder._Behind()
    took = [behind.take(None)]
    times = [behind.read_ms]
    for batch in (records(), records(1, 2)):
        took.append(behind.take(batch))
        times.append(behind.read_ms)
    assert took == [False, True, True]
    assert times[0] is None
    assert times[1] is not None
    assert times[2] == times[1]
    assert (behind.rows, behind.byte_count, len(behind.gathered)) == (2, 16, 1)


def test_branches_of_the_same_source_get_copies_of_all_batches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    course = FeederCourse((words.BEGIN, '["no", "start"]', {21: "a", 31: "b", 20: "c"}), GO)
    course.copies = {name: Copy() for name in "abc"}
    batches = run(course, monkeypatch, copied_to=(20, 30))
    assert len(batches) == 2
    copied = {name: len(copy.got) for name, copy in course.copies.items()}
    assert copied == {"a": 2, "b": 2, "c": 0}
    taken = FeederCourse()
    taken.copies = {"copy-6": course.copies["a"]}
    assert run(taken, monkeypatch, copies_of=20) == batches
    assert taken.sent == [(words.COPY, 6, "the door")]


def test_records_are_waited_for_only_where_the_reader_had_none(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    course = FeederCourse(BEGIN, GO, 4, polls=[records(1), records(2)])
    run(course, monkeypatch)
    # negative numbers are polls of the reader
    assert course.waits == [None, 0.0, -0.002, 0.0, 0, 0.0, 0, 0.01, 0, 0.01]
