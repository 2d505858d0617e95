"""Sources of a pipe beside Kafka: rows by the clock, several sources together, Kafka's notes of steps."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any

import pytest
from told import told

from headgate.spark.realtime import clocked
from headgate.spark.realtime.clocked import ClockFeed, RateRows
from headgate.spark.realtime.feed import Feeds
from headgate.spark.sinks import kafka_notes
from headgate.spark.sinks.kafka_notes import NOTES, last_note, make_notes, note

Recorded = Callable[[str, Iterable[str]], None]


class Clock:
    """Time that only sleeping moves."""

    def __init__(self, now_us: int) -> None:
        self.now_us = now_us

    def time_ns(self) -> int:
        return self.now_us * 1000

    def monotonic(self) -> float:
        return self.now_us / 1e6

    def sleep(self, seconds: float) -> None:
        self.now_us += round(seconds * 1e6)


def test_rows_of_the_format_rate_as_options_say(recorded: Recorded) -> None:
    lines = []
    for options in (
        {}, {"rowsPerSecond": "7"}, {"ROWSPERSECOND": "1"}, {"rowsPerSecond": "0"},
        {"rowsPerSecond": "1.5"}, {"rowsPerSecond": "-1"}, {"rampUpTime": "0s"},
        {"rampUpTime": " 00 seconds "}, {"rampUpTime": "10s"}, {"rampUpTime": "1s"},
    ):  # fmt: skip
        lines.append(f"{options}: {told(lambda o=options: RateRows.of(o))}")
    for rate in (1, 3, 1000):
        rows = RateRows(rate)
        due = [rows.due(us) for us in (0, 1, 333_333, 333_334, 999_999, 1_000_000, 2_500_000)]
        made = rows.batch(2, 6, 5_000_999).to_pydict()
        lines.append(f"{rate}: {due} {[at.isoformat() for at in made['timestamp']]}")
        assert made["value"] == [2, 3, 4, 5]
    recorded("rate_rows", lines)


@pytest.mark.parametrize("only_here", [False, True])
def test_rows_come_when_their_time_has_come_each_once(
    monkeypatch: pytest.MonkeyPatch, only_here: bool
) -> None:
    clock, dice = Clock(1_000_000), random.Random(1)
    monkeypatch.setattr(clocked, "time", clock)
    feed = ClockFeed(RateRows(2000), only_here)
    start = feed.first()
    more = {"real_time_only": True} if only_here else {}
    assert json.loads(start) == {"event": 0, "base_us": 1_000_000} | more
    assert json.loads(ClockFeed(RateRows(1, base_us=7)).first()) == {"event": 0, "base_us": 7}
    reader, seen = feed.reader(start, 0, 1), list[int]()
    for _ in range(40):
        clock.now_us += dice.choice([0, 100, 500, 999, 3_000_000])
        before_us = clock.now_us
        due = (clock.now_us - 1_000_000) * 2000 // 1_000_000
        batch = reader.poll(0.25)
        if batch is None:
            assert (len(seen), clock.now_us - before_us) == (due, 250_000)
        else:
            seen += batch.column("value").to_pylist()
            assert len(seen) <= due
            assert batch.num_rows == min(due - (len(seen) - batch.num_rows), 4096)
        assert json.loads(reader.offsets())["event"] == len(seen)
    assert seen == list(range(len(seen)))
    newest = feed.newest(reader.offsets())
    assert feed.reached(newest, reader.offsets())
    assert feed.reached(newest, newest)
    assert not feed.reached(start, newest)
    assert (feed.grown(start), feed.merged([start])) == (start, start)
    assert feed.schema == RateRows.schema
    clock.now_us = 0  # a clock that is put back takes no row back
    assert feed.newest(newest) == newest
    assert told(lambda: feed.reader("7", 0, 1)).startswith("ConfigError: the query has read format")


class Numbered:
    """A source whose offsets are lists of numbers, one for each reader."""

    keeps_first = False

    def __init__(self, name: str, readers: int) -> None:
        self.name, self.readers = name, readers

    def merged(self, parts: Iterable[str]) -> str:
        return f"{self.name}:{'+'.join(parts)}"

    def grown(self, offsets: str) -> str:
        return f"{offsets}>{self.name}"

    def newest(self, since: str) -> str:
        return f"newest of {self.name} since {since}"

    def reached(self, offsets: str, wanted: str) -> bool:
        return offsets >= wanted


def test_several_sources_of_one_pipe(recorded: Recorded) -> None:
    lines, a, b = [], Numbered("a", 2), Numbered("b", 1)
    for sources, same_as in (
        ((a,), (0,)), ((a, b), (0, 1)), ((a, a), (0, 0)), ((a, b, a, a), (0, 1, 0, 0)),
        ((b, a, b, a), (0, 1, 0, 1)), ((a, a, b), (0, 1, 2)),
    ):  # fmt: skip
        feeds: Any = Feeds(sources, same_as)
        names = [source.name for source in sources]
        lines.append(f"{names} {same_as}: {feeds.tasks} tasks, {feeds.readers} read")
        lines += [f"  {share}" for share in feeds.shares]
        assert feeds.copies == feeds.tasks - feeds.readers
        offsets = json.dumps([str(n) for n in range(len(sources))])
        lines.append(f"  {feeds.merged(map(str, range(feeds.readers)))}")
        lines += [f"  {feeds.grown(offsets)}", f"  {feeds.newest(offsets)}"]
        lines.append(f"  {feeds.each(None, lambda feed, one: feed.name + repr(one))}")
    both: Any = Feeds((a, b), (0, 1))
    both.check('["1", "1"]')
    reached = [both.reached('["1", "1"]', w) for w in ('["1", "1"]', '["0", "2"]', '["2", "0"]')]
    assert reached == [True, False, False]
    recorded("feeds", lines)


# --- notes of steps -----------------------------------------------------------------------------------


class FakeFailure(Exception):
    """As the client raises it."""


def problem(name: str) -> Any:
    return SimpleNamespace(name=lambda: name, str=lambda: f" {name} happened. ")


def message(key: str, value: bytes | None, at: int = 0, error: Any = None) -> Any:
    return SimpleNamespace(
        key=key.encode, value=lambda: value, offset=lambda: at, error=lambda: error
    )


class FakeClient:
    """A client of Kafka that brings what it is told, poll by poll."""

    KafkaException, OFFSET_BEGINNING = FakeFailure, -2

    def __init__(self, end: int, polls: list[list[Any]], fails: int = 0) -> None:
        self.end, self.polls, self.fails = end, polls, fails
        self.said, self.made = list[str](), list[Any]()
        self.failure: Any = None
        self.admin = SimpleNamespace(AdminClient=self._admin, NewTopic=self._topic)

    def _admin(self, settings: dict[str, Any]) -> Any:
        self.said.append(f"admin {settings}")
        return self

    def _topic(self, name: str, partitions: int, config: Any) -> str:
        self.said.append(f"{name} {partitions} {config}")
        return name

    def create_topics(self, topics: list[str], operation_timeout: float) -> Any:
        def result(timeout_s: float) -> None:
            assert (operation_timeout, timeout_s) == (10.0, 20.0)
            if self.failure is not None:
                raise FakeFailure(self.failure)

        return {topic: SimpleNamespace(result=result) for topic in topics}

    def TopicPartition(self, *place: Any) -> tuple[Any, ...]:
        return place

    def Consumer(self, settings: dict[str, Any]) -> Any:
        self.said.append(f"consumer {settings}")
        return self

    def get_watermark_offsets(self, place: Any, timeout: float) -> tuple[int, int]:
        assert (place, timeout) == ((NOTES, 0), 10.0)
        if self.fails:
            self.fails -= 1
            raise FakeFailure("no leader")
        return 0, self.end

    def assign(self, places: list[Any]) -> None:
        assert places == [(NOTES, 0, -2)]

    def consume(self, count: int, timeout_s: float) -> list[Any]:
        assert count == 1000
        kafka_notes.time.sleep(timeout_s)
        return self.polls.pop(0) if self.polls else []

    def close(self) -> None:
        self.said.append("closed")


TARGET: Any = SimpleNamespace(
    servers="b:1",
    client={"bootstrap.servers": "b:1", "transaction.timeout.ms": 1, "partitioner": "x"},
)


def test_the_newest_note_of_a_job(monkeypatch: pytest.MonkeyPatch, recorded: Recorded) -> None:
    eof = problem("_PARTITION_EOF")
    mine, other = message("j", note(3)), message("other", note(9))
    cases: dict[str, FakeClient] = {
        "empty": FakeClient(0, []),
        "two": FakeClient(3, [[mine, other], [message("j", note(4))], [message("", b"", 3, eof)]]),
        "none": FakeClient(1, [[other, message("", b"", 1, eof)]]),
        "deleted": FakeClient(2, [[mine, message("j", None), message("", b"", 2, eof)]]),
        "end hidden": FakeClient(5, [[mine, message("", b"", 4, eof)]]),
        "end later": FakeClient(5, [[mine, message("", b"", 4, eof)], [message("", b"", 5, eof)]]),
        "foreign": FakeClient(1, [[message("j", b'{"step": "x"}')]]),
        "no JSON": FakeClient(1, [[message("j", b"step")]]),
        "no step": FakeClient(1, [[message("j", b"[1]")]]),
        "true": FakeClient(1, [[message("j", b'{"step": true}')]]),
        "away twice": FakeClient(0, [], fails=2),
        "broken": FakeClient(1, [[message("", b"", 0, problem("_BROKEN"))]] * 9),
        "away": FakeClient(0, [], fails=99),
    }
    lines = []
    for name, client in cases.items():
        monkeypatch.setattr(kafka_notes, "time", Clock(0))

        def asked(client: Any = client) -> Any:
            try:
                return last_note(client, TARGET, "j", 0.3)
            except FakeFailure as error:
                return f"raised {type(error.args[0]).__name__}"

        lines += [f"{name}: {told(asked)}", f"  {kafka_notes.time.monotonic():g} s"]
        consumers = [said for said in client.said if said != "closed"]
        assert len(consumers) == client.said.count("closed")
        lines += [f"  {said}" for said in dict.fromkeys(consumers)] if name == "two" else []
    recorded("kafka_notes", lines)


def test_the_topic_of_notes_is_made_where_it_is_not_there(recorded: Recorded) -> None:
    lines, there = [], SimpleNamespace(error=None)
    for topics in ({}, {NOTES: there}, {NOTES: SimpleNamespace(error="gone")}, {"x": there}):
        for failure in (None, problem("TOPIC_ALREADY_EXISTS"), problem("NOT_ALLOWED")):
            client = FakeClient(0, [])
            client.failure = failure
            said = told(lambda c=client, t=topics: make_notes(c, TARGET, t))
            lines.append(f"{list(topics)} {failure and failure.name()}: {said} {client.said}")
    recorded("kafka_notes_topic", lines)
