"""Checks the rows and words that a router of a pipe sends to its slots, over made-up channels."""

from __future__ import annotations

import json
from collections.abc import Callable
from multiprocessing import AuthenticationError
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from headgate.spark.job.columns import MARKER_TO, MARKER_TOKEN, MARKER_US
from headgate.spark.realtime import in_run, router, words
from headgate.spark.realtime.router import DROPPED, Router, stored_at, to_slots
from headgate.spark.worker.payloads import read_table


class Line:
    """A channel that keeps what is sent, and may be broken."""

    def __init__(self, address: str) -> None:
        self.address, self.open = address, True
        self.sent: list[Any] = []
        self.broken: type[Exception] | None = None

    def send(self, message: Any) -> None:
        if self.broken is not None:
            raise self.broken
        if isinstance(message, tuple):
            message = tuple(_readable(part) for part in message)
        self.sent.append(message)

    def close(self) -> None:
        self.open = False

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _readable(part: Any) -> Any:
    """Return the values of rows in place of their bytes."""
    return values(read_table(part)) if isinstance(part, bytes) else part


def values(table: Any) -> list[tuple[Any, ...]]:
    return list(zip(*(column.to_pylist() for column in table.columns), strict=True))


class Lines:
    """The meeting of a run; connects to made-up channels."""

    driver = "driver"

    def __init__(self) -> None:
        self.made: list[Line] = []
        self.breaks: dict[str, type[Exception]] = {}

    def connect(self, address: str) -> Line:
        if address in self.breaks:
            raise self.breaks[address]
        self.made.append(Line(address))
        return self.made[-1]

    def to(self, address: str) -> list[Any]:
        """Return all that was sent to an address."""
        return [said for line in self.made if line.address == address for said in line.sent]

    def line(self, address: str) -> Line:
        return [line for line in self.made if line.address == address][-1]


class Routed:
    """A router of a task 3 for the slots of `count`."""

    def __init__(self, *, shared: bool = False) -> None:
        self.lines = Lines()
        meeting: Any = self.lines
        self.routing = router._Routing(Router(meeting, "count", shared), 3)

    def rows(self, *rows: tuple[int, int], to: Any = None, **us: Any) -> None:
        """Route rows of a key group and a value; `us` are times by the number of a watermark."""
        self.routing.route(batch(rows, to or [None] * len(rows), [None] * len(rows), us))

    def marker(self, **said: Any) -> None:
        self.routing.route(batch([(None, None)], [0], [json.dumps(said)], {}))


def batch(rows: Any, to: Any, tokens: Any, us: dict[str, Any]) -> pa.RecordBatch:
    columns = {
        "g": pa.array([row[0] for row in rows], pa.int32()),
        "k0": pa.array([row[1] for row in rows], pa.int64()),
        "n": pa.array([None if row[0] is None else 1 for row in rows], pa.int64()),
        MARKER_TO: pa.array(to, pa.int32()),
        MARKER_TOKEN: pa.array(tokens, pa.string()),
    }
    columns |= {MARKER_US + name: pa.array(times, pa.int64()) for name, times in us.items()}
    return pa.RecordBatch.from_pydict(columns)


def routes(*slots: str, of: tuple[int, ...] = (0, 1, 0)) -> dict[str, Any]:
    return {"slots": list(slots), "slot_of": list(of)}


@pytest.fixture
def made() -> Routed:
    routed = Routed()
    routed.marker(count=routes("a", "b"))
    return routed


def test_a_router_greets_each_slot_with_its_number(made: Routed) -> None:
    assert (made.lines.to("a"), made.lines.to("b")) == ([3], [3])


def test_an_epoch_ends_with_the_rows_of_each_slot_in_order_of_key_groups(made: Routed) -> None:
    made.rows((2, 10), (1, 11), (0, 12), (2, 13))
    assert made.lines.to("a") == [3]
    made.marker(**{words.EPOCH: 5})
    assert made.lines.to("a")[1:] == [(words.EPOCH, 5, {}, [(0, 12, 1), (2, 10, 1), (2, 13, 1)])]
    assert made.lines.to("b")[1:] == [(words.EPOCH, 5, {}, [(1, 11, 1)])]


def test_a_slot_without_rows_hears_of_the_epoch_too_and_rows_are_sent_once(made: Routed) -> None:
    made.rows((1, 11))
    made.marker(**{words.EPOCH: 5})
    made.marker(**{words.EPOCH: 6})
    assert made.lines.to("a")[1:] == [(words.EPOCH, 5, {}, None), (words.EPOCH, 6, {}, None)]
    assert made.lines.to("b")[2:] == [(words.EPOCH, 6, {}, None)]


def test_a_marker_that_was_multiplied_counts_once(made: Routed) -> None:
    for _ in range(2):
        made.marker(**{words.EPOCH: 5})
    assert len(made.lines.to("a")) == 2


def test_rows_around_a_marker_belong_to_the_epochs_around_it(made: Routed) -> None:
    rows = [(0, 1), (None, None), (0, 2), (0, 3), (None, None), (0, 4)]
    tokens = [None, '{"%s": 5}', None, None, '{"%s": 6}', None]
    told = [one and one % words.EPOCH for one in tokens]
    made.routing.route(batch(rows, [None if one is None else 0 for one in told], told, {}))
    made.marker(**{words.EPOCH: 7})
    assert [said[3] for said in made.lines.to("a")[1:]] == [
        [(0, 1, 1)], [(0, 2, 1), (0, 3, 1)], [(0, 4, 1)],
    ]  # fmt: skip


def test_the_time_of_a_dropped_row_counts_and_the_row_does_not(made: Routed) -> None:
    made.rows((0, 1), (0, 2), to=[None, DROPPED], **{"0": [7, 9], "1": [None, None]})
    made.rows((0, 3), to=[DROPPED], **{"0": [8], "1": [-4]})
    made.marker(**{words.EPOCH: 5})
    made.rows((0, 4), **{"0": [2]})
    made.marker(**{words.EPOCH: 6})
    assert made.lines.to("a")[1:] == [
        (words.EPOCH, 5, {0: 9, 1: -4}, [(0, 1, 1)]),
        (words.EPOCH, 6, {0: 2}, [(0, 4, 1)]),
    ]


@pytest.mark.parametrize(("limit", "value"), [("_FLUSH_ROWS", 3), ("_FLUSH_BYTES", 60)])
def test_many_rows_are_sent_before_the_epoch_ends(
    made: Routed, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(router, limit, value)  # a row has 20 bytes, and bits of nulls
    made.rows((0, 1), (0, 2))
    assert made.lines.to("a") == [3]
    made.rows((0, 3))
    made.rows((0, 4))
    rows = [(0, 1, 1), (0, 2, 1), (0, 3, 1)]
    assert made.lines.to("a")[1:] == [(words.RECORDS, rows)]
    one = Routed()
    one.rows((0, 4))
    assert (made.routing.rows, made.routing.byte_count) == (1, one.routing.byte_count)
    made.marker(**{words.EPOCH: 5})
    assert made.lines.to("a")[2:] == [(words.EPOCH, 5, {}, [(0, 4, 1)])]


def test_new_routes_hold_from_the_marker_on_and_old_slots_are_let_go(made: Routed) -> None:
    made.rows((0, 1), (1, 2))
    first = {address: made.lines.line(address) for address in "ab"}
    made.marker(**{words.EPOCH: 5, "count": routes("c", "a", of=(1, 1, 0))})
    assert [said[3] for said in made.lines.to("b")[1:]] == [[(1, 2, 1)]]
    assert (first["a"].open, first["b"].open) == (True, False)
    assert made.lines.line("a") is first["a"]
    made.rows((0, 3), (2, 4))
    made.marker(**{words.EPOCH: 6, "other": routes("z")})
    assert made.lines.to("a")[2:] == [(words.EPOCH, 6, {}, [(0, 3, 1)])]
    assert made.lines.to("c") == [3, (words.EPOCH, 6, {}, [(2, 4, 1)])]
    assert "z" not in {line.address for line in made.lines.made}


@pytest.mark.parametrize("error", [OSError, EOFError])
def test_a_slot_that_is_lost_is_told_once_and_rows_are_dropped_from_then_on(
    made: Routed, error: type[Exception]
) -> None:
    made.rows((0, 1), (1, 2))
    made.lines.line("a").broken = error
    made.marker(**{words.EPOCH: 5})
    made.rows((1, 3))
    made.marker(**{words.EPOCH: 6})
    assert made.lines.to("driver") == [(words.LOST, 3, "a")]
    assert made.lines.to("b") == [3]
    assert not made.lines.line("driver").open


def test_a_slot_that_cannot_be_reached_is_lost(made: Routed) -> None:
    made.lines.breaks["c"] = AuthenticationError
    made.marker(count=routes("c", "a"))
    assert made.lines.to("driver") == [(words.LOST, 3, "c")]
    made.marker(**{words.EPOCH: 5})
    assert made.lines.to("a") == [3]


def test_a_router_begins_anew_where_the_feeder_reads_again(made: Routed) -> None:
    made.rows((1, 2), **{"0": [9]})
    made.lines.line("a").broken = OSError
    made.rows((0, 1))
    made.marker(**{words.EPOCH: 5})
    assert made.lines.to("driver") == [(words.LOST, 3, "a")]
    made.marker(**{words.REWIND: 1})
    assert not any(line.open for line in made.lines.made)
    made.marker(**{words.REWIND: 1, "count": routes("d", "e")})
    made.rows((0, 8))
    made.marker(**{words.EPOCH: 5, words.REWIND: 1})
    assert made.lines.to("d") == [3, (words.EPOCH, 5, {}, [(0, 8, 1)])]
    assert made.lines.to("e") == [3, (words.EPOCH, 5, {}, None)]


def test_rows_that_waited_do_not_outlast_a_second_reading(made: Routed) -> None:
    made.rows((0, 1), **{"0": [9]})
    made.marker(**{words.REWIND: 1, "count": routes("a", "b")})
    assert (made.routing.rows, made.routing.byte_count) == (0, 0)
    made.marker(**{words.EPOCH: 5})
    assert made.lines.to("a") == [3, 3, (words.EPOCH, 5, {}, None)]


def test_each_slot_gets_every_shared_row_and_one_of_them_counts_it() -> None:
    made = Routed(shared=True)
    made.marker(count=routes("a", "b", of=(0, 1, 0)))
    made.rows(*[(0, key) for key in range(200)])
    made.marker(**{words.EPOCH: 5})
    one, other = (made.lines.to(address)[1][3] for address in "ab")
    assert one == other
    assert [row[1] for row in one] == list(range(200))
    assert {row[0] for row in one} == {0, 1, 2}
    table = pa.table(dict(zip("gkn", map(list, zip(*one, strict=True)), strict=True)))
    first, second = (values(stored_at(table, groups)) for groups in ((0, 2), [1]))
    assert [a[:2] for a in first] == [b[:2] for b in second] == [row[:2] for row in one]
    assert [a[2] + b[2] for a, b in zip(first, second, strict=True)] == [1] * 200
    assert all(row[2] == (row[0] == 1) for row in second)


def test_a_shared_row_goes_to_one_slot_of_each_host() -> None:
    one, two, three, four = (
        f"tcp://10.0.0.{host}:{port}/x" for host, port in ((1, 9), (2, 9), (1, 8), (1, 7))
    )
    made = Routed(shared=True)
    made.marker(count=routes(one, two, three, four, of=(0, 1, 2, 3)))
    made.rows((0, 10))
    made.marker(**{words.EPOCH: 5})
    assert (made.lines.to(three), made.lines.to(four)) == ([], [])
    alone, relayed = made.lines.to(two)[1], made.lines.to(one)[1]
    assert alone[:3] == (words.EPOCH, 5, {})
    assert relayed[:2] == (words.RELAY, [three, four])
    assert relayed[2][:3] == alone[:3]
    made.marker(count=routes(two, three, of=(0, 1, 1, 0)))
    made.marker(**{words.EPOCH: 6})
    assert not made.lines.line(one).open
    assert made.lines.to(three) == [3, (words.EPOCH, 6, {}, None)]
    assert made.lines.to(two)[2:] == [(words.EPOCH, 6, {}, None)]


def test_the_rows_of_a_single_slot_stay_as_they_came() -> None:
    table = pa.table({"g": [2, 0, 1], "n": [1, 1, 1]})
    found = to_slots(table, np.zeros(3, np.int32), 1)
    assert [*found] == [0]
    assert found[0] is table


def test_a_slot_without_rows_is_left_out() -> None:
    table = pa.table({"g": [2, 0, 2], "n": [1, 2, 3]})
    found = to_slots(table, np.array([2, 1, 0], np.int32), 4)
    assert {number: values(part) for number, part in found.items()} == {
        0: [(2, 1), (2, 3)], 2: [(0, 2)],
    }  # fmt: skip


# --- In a task ------------------------------------------------------------------------------------------


class TaskOfRouter:
    """The context of a task of Spark's."""

    told: str | None = "the run"

    @classmethod
    def get(cls) -> TaskOfRouter:
        return cls()

    def partitionId(self) -> int:
        return 3

    def getLocalProperty(self, name: str) -> str | None:
        return {"headgate.realtime.run": self.told}.get(name)


def test_a_router_routes_all_batches_and_lets_its_slots_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "TaskContext", TaskOfRouter)
    lines = Lines()
    meeting: Any = lines
    greeted = batch([(None, None)], [0], [json.dumps({"count": routes("a", of=(0,))})], {})
    ended = batch([(None, None)], [0], [json.dumps({words.EPOCH: 5})], {})
    run: Callable[[Any], Any] = Router(meeting, "count", shared=False)
    row = batch([(0, 1)], [None], [None], {})
    assert list(run(iter([greeted, row, ended]))) == []
    assert lines.to("a") == [3, (words.EPOCH, 5, {}, [(0, 1, 1)])]
    assert not lines.line("a").open


def test_the_slots_of_a_router_that_failed_are_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "TaskContext", TaskOfRouter)
    lines = Lines()
    meeting: Any = lines
    greeted = batch([(None, None)], [0], [json.dumps({"count": routes("a", of=(0,))})], {})
    wrong = batch([(None, None)], [0], ["no json"], {})
    with pytest.raises(json.JSONDecodeError):
        list(Router(meeting, "count", shared=False)(iter([greeted, wrong])))
    assert not lines.line("a").open


def test_a_task_meets_the_run_of_its_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_run, "TaskContext", TaskOfRouter)

    def told(run: str) -> Any:
        return f"meeting of {run}"

    meeting: Any = SimpleNamespace(of_told=told)
    monkeypatch.setattr(Router, "__call__", lambda self, batches: iter([(self.meeting, *batches)]))
    met = list(in_run.InRun(Router(meeting, "count", shared=True))(iter(["batch"])))
    assert met == [("meeting of the run", "batch")]
