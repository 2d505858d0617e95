"""Streams of the workloads: the same rows after a restart, and in a batch up to the same offset."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from headgate.core.errors import ConfigError
from headgate.core.installed import WORKLOADS, installed
from headgate.scenario.description import DEMO
from headgate.scenario.spark import SparkEngine
from headgate.scenario.workload import Workload
from headgate.workloads.rates import ConstantRate
from headgate_demo.generators import nexmark, sentences, stock_exchange
from headgate_demo.spark import sources
from headgate_demo.spark.queries import find_sdsc_log

pytestmark = pytest.mark.spark

BASE_US = 1_700_000_000_000_000
PAST = {"base": str(BASE_US), "rate": "1000"}


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    sources.register(spark)
    spark.conf.set("spark.sql.session.timeZone", "UTC")
    return spark


def workload(name: str) -> Workload:
    return SparkEngine().workload(name)


class AsBatch:
    """A session whose `readStream` is its batch reader."""

    def __init__(self, spark: SparkSession) -> None:
        self.readStream = spark.read


def _run(stream: DataFrame, folder: Path, *, restart_name: str = "one") -> Any:
    """Run `stream` until what is available is done; return the finished query."""
    query = (
        stream.writeStream.format("parquet")
        .option("path", str(folder / "out"))
        .option("checkpointLocation", str(folder / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(120), restart_name
    return query


def _rows(frame: DataFrame) -> Counter[str]:
    return Counter(frame.toJSON().collect())


def _last_offset(folder: Path) -> str:
    newest = max((folder / "checkpoint" / "offsets").glob("[0-9]*"), key=lambda p: int(p.name))
    return newest.read_text().splitlines()[2]


def _nexmark(spark: SparkSession, **options: str) -> DataFrame:
    return spark.readStream.format("nexmark").options(**options).load()


def test_a_finite_stream_ends_by_itself_and_delivers_every_event(
    session: SparkSession, tmp_path: Path
) -> None:
    options = {"rate": "1000", "events": "2500", "batch_rows": "1000", "columns": "bid,scheduled"}
    query = _run(_nexmark(session, **options), tmp_path)
    assert [p.numInputRows for p in query.recentProgress] == [1000, 1000, 500]
    out = session.read.parquet(str(tmp_path / "out"))
    assert out.count() == 2500
    # Without `base`, a finite stream read at once is one that has just ended.
    last_us = out.selectExpr("unix_micros(max(scheduled))").collect()[0][0]
    assert last_us <= datetime.now(UTC).timestamp() * 1e6
    assert json.loads(_last_offset(tmp_path))["base_us"] == pytest.approx(last_us - 2.5e6, abs=2)


def test_a_batch_until_an_offset_is_what_the_stream_delivered(
    session: SparkSession, tmp_path: Path
) -> None:
    options = {"rate": "1000", "events": "2500", "batch_rows": "999", "padding": "true"}
    _run(_nexmark(session, **options), tmp_path)
    batch = session.read.format("nexmark").options(**options, until=_last_offset(tmp_path)).load()
    assert _rows(batch) == _rows(session.read.parquet(str(tmp_path / "out")))


def test_a_batch_that_is_read_again_after_a_crash_is_the_same(
    session: SparkSession, tmp_path: Path
) -> None:
    options = {"rate": "1000", "events": "2000", "batch_rows": "1000"}
    seen: dict[int, list[Counter[str]]] = defaultdict(list)

    def run(fail_at: int | None) -> None:
        def sink(frame: DataFrame, batch: int) -> None:
            seen[batch].append(_rows(frame))
            if batch == fail_at:
                raise RuntimeError("the driver dies here")

        query = (
            _nexmark(session, **options)
            .writeStream.foreachBatch(sink)
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination(120)

    with pytest.raises(PySparkException, match="the driver dies here"):
        run(fail_at=1)
    run(fail_at=None)
    assert [len(seen[batch]) for batch in (0, 1)] == [1, 2]
    assert seen[1][0] == seen[1][1]
    assert sum(seen[1][0].values()) == 1000


def test_rows_do_not_depend_on_the_number_of_partitions(session: SparkSession) -> None:
    frames = [
        session.read.format("nexmark").options(**PAST, events="1001", partitions=parts).load()
        for parts in ("1", "3")
    ]
    assert [frame.rdd.getNumPartitions() for frame in frames] == [1, 3]
    assert _rows(frames[0]) == _rows(frames[1])


def test_orders_come_from_one_partition_in_their_order(session: SparkSession) -> None:
    options = {**PAST, "events": "3000", "stocks": "9", "seed": "4"}
    frame = session.read.format("stock_exchange").options(**options).load()
    assert frame.rdd.getNumPartitions() == 1
    config = stock_exchange.ExchangeConfig(seed=4, rate=ConstantRate(1000.0), stocks=9)
    wanted = stock_exchange.orders(config, 0, 3000, BASE_US).to_pylist()
    assert [row.asDict() for row in frame.drop("scheduled").collect()] == [
        {name: value for name, value in row.items() if name != "scheduled"} for row in wanted
    ]


def test_words_are_counted_per_window(session: SparkSession) -> None:
    options = {**PAST, "events": "7000", "words": "40", "seed": "4"}
    config = sentences.SentenceConfig(seed=4, rate=ConstantRate(1000.0), words=40)
    wanted: Counter[tuple[int, str]] = Counter()
    for row in sentences.sentences(config, 0, 7000, BASE_US).to_pylist():
        begin = int(row["scheduled"].timestamp()) // 5 * 5
        wanted.update((begin, word) for word in row["text"].split(" "))
    rows = workload("word-count").build(AsBatch(session), **options)
    got = rows.selectExpr("unix_seconds(window.start)", "word", "count").collect()
    assert {(row[0], row[1]): row[2] for row in got} == wanted


def test_an_empty_batch_has_no_rows(session: SparkSession) -> None:
    assert session.read.format("nexmark").options(**PAST, events="0").load().count() == 0


@pytest.mark.parametrize(
    ("source", "options", "message"),
    [
        ("nexmark", {"Hot_Auction_Ratios": "2"}, 'did you mean "hot_auction_ratio"'),
        ("nexmark", {"rate": "sin(base=1)"}, 'did you mean "sine"'),
        ("nexmark", {"partitions": "0"}, "give a whole number from 1 to "),
        ("nexmark", {"columns": "bid.prise"}, 'did you mean "bid.price"'),
        ("stock_exchange", {"stock": "5"}, 'did you mean "stocks"'),
        ("stock_exchange", {"rate": "exchange(speeds=5)"}, 'did you mean "speed"'),
        ("sentences", {"length": "0"}, "give a whole number from 1 to "),
        ("replay", {}, "give the path"),
        ("replay", {"path": "/no/such/file"}, "cannot read"),
    ],
)
def test_refuses_an_option_with_the_remedy(
    session: SparkSession, source: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(PySparkException, match=message):
        session.readStream.format(source).options(**options).load()


# --- readers without Spark -----------------------------------------------------------------------


def _reader(**options: str) -> Any:
    source = sources.NexmarkSource(options)
    return source.streamReader(source.schema())


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set the wall clock of the sources, seconds after `BASE_US`."""

    def set_to(elapsed_s: float) -> None:
        monkeypatch.setattr(sources, "_now_us", lambda: BASE_US + round(elapsed_s * 1e6))

    set_to(0.0)
    return set_to


def test_what_is_due_is_due_however_slow_the_query(clock: Callable[[float], None]) -> None:
    reader = _reader(rate="1000")
    start = reader.initialOffset()
    assert start == {"event": 0, "base_us": BASE_US}
    for elapsed_s, event in ((0.0, 0), (1.5, 1500), (3600.0, 3_600_000)):
        clock(elapsed_s)
        assert reader.latestOffset(start, ReadAllAvailable())["event"] == event
    assert reader.latestOffset(start, ReadMaxRows(10))["event"] == 10
    assert reader.reportLatestOffset()["event"] == 3_600_000


def test_a_restarted_reader_goes_on_from_the_offset_and_never_back(
    clock: Callable[[float], None],
) -> None:
    clock(100.0)
    reader = _reader(rate="1000", events="5000")
    assert reader.latestOffset(
        {"event": 42, "base_us": BASE_US + 99_000_000}, ReadAllAvailable()
    ) == {
        "event": 1000,
        "base_us": BASE_US + 99_000_000,
    }
    ahead = {"event": 6000, "base_us": BASE_US}
    assert reader.latestOffset(ahead, ReadAllAvailable()) == ahead


def test_where_spark_tells_nothing_a_reader_goes_on_from_the_end_of_the_log(
    clock: Callable[[float], None],
) -> None:
    """Spark 4.1: `latestOffset` without arguments, and the log's end by two equal offsets, first."""
    clock(100.0)
    options = {"rate": "1000", "batch_rows": "10", "base": str(BASE_US)}
    reader = _reader(**options)
    assert [reader.onward()["event"] for _ in range(3)] == [10, 20, 30]
    end = {"event": 42, "base_us": BASE_US}
    again = _reader(**options)
    assert again.partitions(end, end) == []
    assert again.onward() == {"event": 52, "base_us": BASE_US}
    again.partitions(end, {"event": 52, "base_us": BASE_US})
    assert again.onward()["event"] == 62


def test_the_clock_stands_still_once_available_now_has_begun(
    clock: Callable[[float], None],
) -> None:
    reader = _reader(rate="1000", base=str(BASE_US))
    clock(2.0)
    reader.prepareForTriggerAvailableNow()
    clock(9.0)
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["event"] == 2000


def test_duration_ends_a_stream_at_what_is_due_by_then(clock: Callable[[float], None]) -> None:
    clock(60.0)
    reader = _reader(rate="1000", duration="2500 ms", base=str(BASE_US))
    assert reader.latestOffset(reader.initialOffset(), ReadAllAvailable())["event"] == 2500


def test_partitions_are_contiguous_and_batches_bounded() -> None:
    reader = _reader(rate="1000", partitions="3", columns="scheduled")
    parts = reader.partitions({"event": 5, "base_us": 0}, {"event": 100_005, "base_us": 0})
    assert [(p.start, p.stop) for p in parts] == [(5, 33_338), (33_338, 66_671), (66_671, 100_005)]
    assert [b.num_rows for b in reader.read(parts[0])] == [32_768, 565]
    assert reader.partitions({"event": 5, "base_us": 0}, {"event": 5, "base_us": 0}) == []


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"events": "10"}, "no end or no start"),
        ({"base": "0"}, "no end or no start"),
        ({"until": "17"}, "an offset such as"),
        ({"events": "10", "until": '{"event": 11, "base_us": 0}'}, "there are 10"),
    ],
)
def test_a_batch_needs_its_end(options: dict[str, str], message: str) -> None:
    source = sources.NexmarkSource(options)
    with pytest.raises(ConfigError, match=message):
        source.reader(source.schema())


# --- replay --------------------------------------------------------------------------------------


def test_replays_a_log_in_log_time(session: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("t_s,kind\n0,a\n5,b\n4,c\n")
    options = {"path": str(log), "speed": "10", "repeat": "2", "base": str(BASE_US)}
    _run(session.readStream.format("replay").options(**options).load(), tmp_path)
    out = session.read.parquet(str(tmp_path / "out"))
    got = out.selectExpr(
        "kind", f"unix_micros(ts) - {BASE_US}", f"unix_micros(scheduled) - {BASE_US}"
    )
    assert sorted(tuple(row) for row in got.collect()) == [
        ("a", 0, 0),
        ("a", 6_000_000, 600_000),
        ("b", 5_000_000, 500_000),
        ("b", 11_000_000, 1_100_000),
        ("c", 4_000_000, 500_000),
        ("c", 10_000_000, 1_100_000),
    ]
    batch = session.read.format("replay").options(**options, until=_last_offset(tmp_path)).load()
    assert _rows(batch) == _rows(out)


# --- queries -------------------------------------------------------------------------------------


def _bids(count: int, per_s: float, hot_ratio: int = 2) -> list[dict[str, Any]]:
    config = nexmark.NexmarkConfig(rate=ConstantRate(per_s), hot_auction_ratio=hot_ratio)
    rows = nexmark.events(config, 0, count, BASE_US).to_pylist()
    return [row["bid"] for row in rows if row["bid"]]


def _micros(time: datetime) -> int:
    return round((time - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1e6)


def _windows(time: datetime, length_s: int, step_s: int) -> list[int]:
    """Return the begins, in seconds, of the windows that hold `time`."""
    second = _micros(time) // 1_000_000
    last = second // step_s * step_s
    return [begin for begin in range(last, last - length_s, -step_s) if begin + length_s > second]


def _q5(bids: list[dict[str, Any]]) -> dict[int, tuple[int, int]]:
    counts: Counter[tuple[int, int]] = Counter()
    for bid in bids:
        counts.update((begin, bid["auction"]) for begin in _windows(bid["dateTime"], 10, 2))
    best: dict[int, tuple[int, int]] = {}
    for (begin, auction), count in sorted(counts.items()):
        if begin not in best or count > best[begin][1]:
            best[begin] = (auction, count)
    return best


def _q7(bids: list[dict[str, Any]]) -> dict[int, tuple[int, int, int]]:
    best: dict[int, tuple[int, int, int]] = {}
    for bid in bids:
        (begin,) = _windows(bid["dateTime"], 10, 10)
        mine = (bid["price"], -bid["auction"], -bid["bidder"])
        best[begin] = max(best.get(begin, mine), mine)
    return {k: (-auction, -bidder, price) for k, (price, auction, bidder) in best.items()}


@pytest.mark.parametrize(
    ("name", "columns", "reference"),
    [("nexmark-q5", ("auction", "bids"), _q5), ("nexmark-q7", ("auction", "bidder", "price"), _q7)],
)
def test_windowed_queries_equal_a_plain_reference(
    session: SparkSession,
    tmp_path: Path,
    name: str,
    columns: tuple[str, ...],
    reference: Callable[[list[dict[str, Any]]], dict[int, tuple[int, ...]]],
) -> None:
    # 40 s of stream. Without a hot auction, several often share the most bids of a window.
    options = {**PAST, "rate": "50", "events": "2000", "batch_rows": "500"}
    options["hot_auction_ratio"] = "1"
    expected = reference(_bids(2000, 50.0, hot_ratio=1))

    def read(frame: DataFrame) -> dict[int, tuple[int, ...]]:
        rows = frame.selectExpr("unix_seconds(window.start)", *columns).collect()
        assert len({row[0] for row in rows}) == len(rows)
        return {row[0]: tuple(row[1:]) for row in rows}

    batch = workload(name).build(AsBatch(session), **options)
    assert read(batch) == expected

    _run(workload(name).build(session, **options), tmp_path)
    streamed = read(session.read.parquet(str(tmp_path / "out")))
    assert len(streamed) >= 2
    # Append mode holds back windows that the watermark hasn't passed.
    assert streamed == {begin: expected[begin] for begin in streamed}


def test_stateless_queries_keep_what_they_say(session: SparkSession) -> None:
    options = {**PAST, "events": "2000", "until": json.dumps({"event": 2000, "base_us": BASE_US})}
    bids = _bids(2000, 1000.0)
    frames = {
        n: workload(f"nexmark-{n}").build(AsBatch(session), **options) for n in ("q0", "q1", "q2")
    }
    q0 = frames["q0"].select("auction", "bidder", "price").collect()
    assert [tuple(row) for row in q0] == [(b["auction"], b["bidder"], b["price"]) for b in bids]
    q1 = frames["q1"].select("price").collect()
    assert [row[0] for row in q1] == [b["price"] * 0.908 for b in bids]
    q2 = frames["q2"].select("auction", "price").collect()
    assert [tuple(r) for r in q2] == [
        (b["auction"], b["price"]) for b in bids if b["auction"] % 123 == 0
    ]
    assert q2


@pytest.mark.parametrize("name", [name for name in DEMO if name != "kafka-clicks"])
def test_every_workload_analyses_and_carries_its_arrival(
    session: SparkSession, tmp_path: Path, name: str
) -> None:
    it = workload(name)
    log = tmp_path / "log.csv"
    log.write_text("t_s,host_id,path_id,kind\n0,1,1,text\n")
    own = {"path": str(log)} if name == "sdsc" else {}
    formats: list[str] = []

    class Noting:
        """A session that notes the formats of its sources."""

        @property
        def readStream(self) -> Any:
            return self

        def format(self, source: str) -> Any:
            formats.append(source)
            return session.readStream.format(source)

    frame = it.build(Noting(), **{**it.options, **own})
    assert frame.isStreaming
    assert formats
    source = session.readStream.format(formats[0]).options(**own).load()
    assert it.arrival in source.columns


def test_every_workload_is_installed_by_its_name() -> None:
    assert set(DEMO) <= set(installed(WORKLOADS))
    assert [name for name in DEMO if workload(name).function is not None] == []


def test_sdsc_counts_requests_per_window(session: SparkSession, tmp_path: Path) -> None:
    log = tmp_path / "log.csv"
    log.write_text("t_s,host_id,path_id,kind\n0,1,7,text\n5,1,7,text\n65,2,7,text\n")
    options = {"path": str(log), "base": "0"}
    rows = workload("sdsc").build(AsBatch(session), **options)
    counts = rows.selectExpr("unix_seconds(window.start) AS begin", "count").collect()
    assert {row["begin"]: row["count"] for row in counts} == {
        **{begin: 2 for begin in range(-50, 10, 10)},
        **{begin: 1 for begin in range(10, 70, 10)},
    }


def test_says_where_to_get_the_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADGATE_SDSC_LOG", str(tmp_path / "none.csv"))
    with pytest.raises(ConfigError, match="Internet Traffic Archive"):
        find_sdsc_log()
    (tmp_path / "here.csv").write_text("t_s\n0\n")
    monkeypatch.setenv("HEADGATE_SDSC_LOG", str(tmp_path / "here.csv"))
    assert find_sdsc_log() == str(tmp_path / "here.csv")
