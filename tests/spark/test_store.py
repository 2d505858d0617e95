"""Queries whose checkpoint lies on an object store, and drivers that begin where another has ended."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

import headgate as hg
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.shipping import journal_at
from headgate.core.errors import CheckpointError
from headgate.spark.api import configured
from headgate.spark.api.verify import verify
from headgate.spark.cluster.location import Place
from headgate_demo.spark import sources
from headgate_lab.bench import kill, two_drivers
from headgate_lab.testing import faults, s3_server
from headgate_lab.testing.s3_server import BUCKET, FaultyS3, S3Fault

pytest.importorskip("obstore", reason="needs headgate[store]")

SECRET = "do-not-tell-0815"


@pytest.fixture
def store() -> Iterator[FaultyS3]:
    with s3_server.serving() as made:
        yield made


def on_store(writer: Any, store: FaultyS3, key: str) -> Any:
    """Let a query have its checkpoint on the store, by options: no environment says where it is."""
    for name, text in {**store.options, "secretAccessKey": SECRET}.items():
        writer = writer.option(f"headgate.store.{name}", text)
    return writer.option("checkpointLocation", f"s3://{BUCKET}/{key}")


def tokens_of(store: FaultyS3, kind: str) -> list[str]:
    return [key for key in store.objects if f"/headgate/{kind}/" in key]


def test_a_query_goes_on_from_a_store_on_another_machine(
    spark: SparkSession, store: FaultyS3, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sources.register(spark)
    job = kill.KillParameters(count=1, events=48_000, location="unused", us_per_row=50.0)
    options = {
        **{"seed": "0", "rate": "2000", "events": "48000"},
        "base": str(1_700_000_000_000_000),
    }

    def writer(**more: str) -> Any:
        frame = kill.bids_per_auction(spark, **options, **more)
        made = hg.writeStream(frame).slots(start=2).keyGroups(16).format("parquet")
        made = made.option("path", str(tmp_path / "output")).option("headgate.preaggregate", "off")
        return on_store(made.option("headgate.snapshotEvery", "4"), store, "ck")

    first = writer(batch_rows="4000").budget("50 ms")
    faults.inject(first, faults.slow(0, job.us_per_row))  # so that records wait, in files of slots
    query = first.trigger(processingTime="0 seconds").start()
    until = time.monotonic() + 60.0
    while (latest := query._machine.latest) is None or latest.step < 3:
        assert time.monotonic() < until
        time.sleep(0.05)
    query.scale(3)
    while query._machine.latest.step < 6:
        assert time.monotonic() < until
        time.sleep(0.05)
    here = query._machine.checkpoint.path
    query.stop()
    assert query.exception() is None
    assert not (here / "offsets").exists(), "nothing but the store has Spark's log"
    assert any("backlog/" in key for method, key in store.requests if method == "PUT")

    last = writer().trigger(availableNow=True).start()
    last.awaitTermination()
    environment = {"endpoint": store.endpoint, "secretAccessKey": SECRET}
    for name, text in store.environment.items():
        monkeypatch.setenv(name, text)
    checkpoint = Checkpoint(f"s3://{BUCKET}/ck")
    latest = checkpoint.latest()
    assert latest is not None
    place = Place(tmp_path / "beside", url=f"s3://{BUCKET}/ck")
    assert configured.last_output(place) == latest.engine["sink_batch"], "sinks ask the store"
    found = verify(
        spark,
        kill.bids_per_auction,
        checkpoint=f"s3://{BUCKET}/ck",
        output=spark.read.parquet(str(tmp_path / "output")),
        options=options,
    )
    assert found["verified"], found
    with journal_at(checkpoint) as journal:
        events = [json.loads(line) for line in journal.read_text().splitlines()]
    assert [e["event"] for e in events].count("start") == 2
    assert {"assignment", "restart", "batch", "stop"} <= {e["event"] for e in events}
    assert hg.inspect(f"s3://{BUCKET}/ck", verify=True)["sound"]
    written = b"".join(store.objects.values()) + query.journal.read_bytes()
    assert SECRET.encode() not in written
    assert environment["endpoint"].encode() not in written


@pytest.fixture
def numbers(spark: SparkSession, tmp_path: Path) -> Callable[[int], DataFrame]:
    """Return a function that adds a file of ten rows per number, and reads them all as a stream."""
    place = tmp_path / "numbers"
    place.mkdir()

    def add(files: int) -> DataFrame:
        for _ in range(files):
            count = len(list(place.iterdir()))
            rows = "".join(f'{{"k": {k}, "n": {count}}}\n' for k in range(10))
            (place / f"{count:04d}.json").write_text(rows)
        return spark.readStream.schema("k int, n int").json(str(place))

    return add


def test_a_store_has_the_log_of_a_file_source_and_what_was_delivered(
    spark: SparkSession, store: FaultyS3, numbers: Callable[[int], DataFrame]
) -> None:
    delivered: list[tuple[int, int]] = []

    def take(frame: DataFrame, number: int) -> None:
        rows = frame.collect()
        delivered.append((number, max(row["files"] for row in rows)))

    def run(files: int) -> None:
        counts = (
            numbers(files).groupBy("k").agg({"n": "count"}).withColumnRenamed("count(n)", "files")
        )
        writer = hg.writeStream(counts).outputMode("update").foreachBatch(take)
        query = on_store(writer, store, "files").trigger(availableNow=True).start()
        query.awaitTermination()

    run(40)
    assert tokens_of(store, "sources"), "forty names are an object of their own"
    run(1)
    assert delivered == [(0, 40), (1, 41)], "no file is read again, and no step delivered again"
    for key in tokens_of(store, "intents"):
        del store.objects[key]  # as after a kill before Spark's commit was noted
    run(0)
    assert delivered == [(0, 40), (1, 41), (1, 41)]
    run(2)
    assert delivered[3:] == [(2, 43)]


def test_a_kill_while_the_source_is_quiet_delivers_nothing_twice(
    spark: SparkSession, store: FaultyS3, numbers: Callable[[int], DataFrame]
) -> None:
    delivered: list[int] = []

    def start(files: int) -> Any:
        counts = numbers(files).groupBy("k").count()
        writer = hg.writeStream(counts).outputMode("update")
        writer = writer.foreachBatch(lambda f, _: delivered.append(f.first()["count"]))
        return on_store(writer, store, "quiet").trigger(processingTime="0 seconds").start()

    query = start(1)
    until = time.monotonic() + 240.0
    killed: dict[str, bytes] = {}
    while not any(b"spark_commit" in data for key, data in killed.items() if "/intents/" in key):
        assert time.monotonic() < until
        time.sleep(0.05)
        with store.lock:
            killed = dict(store.objects)
    query.stop()
    store.objects.clear()
    store.objects.update(killed)  # what the driver did at its end has not happened
    assert delivered == [1]
    again = start(1)
    while len(delivered) < 2:
        assert time.monotonic() < until
        assert again.exception() is None
        time.sleep(0.05)
    again.stop()
    assert delivered == [1, 2], "the second file, and not the first one's step again"


@pytest.mark.parametrize(
    ("kind", "part", "said"),
    [
        (s3_server.FORBIDDEN, "manifests", "403 AccessDenied"),
        pytest.param(
            s3_server.EXPIRED, "changelog", "400 ExpiredToken", marks=pytest.mark.thorough
        ),
        pytest.param(s3_server.FORBIDDEN, "output", "403 AccessDenied", marks=pytest.mark.thorough),
    ],
)
def test_rights_that_are_lost_in_the_middle_lose_nothing(
    spark: SparkSession,
    store: FaultyS3,
    numbers: Callable[[int], DataFrame],
    kind: str,
    part: str,
    said: str,
) -> None:
    delivered: list[list[int]] = []
    # another one with each file, so long that a slot's changelog and output are files of their own
    longest = F.max(F.concat("n", F.repeat(F.lit("x"), 300_000)))

    def run(files: int) -> None:
        counts = numbers(files).groupBy("k").agg(F.count("n").alias("files"), longest)
        writer = hg.writeStream(counts).outputMode("update")
        writer = writer.foreachBatch(
            lambda f, _: delivered.append([r["files"] for r in f.collect()])
        )
        on_store(writer, store, "rights").trigger(availableNow=True).start().awaitTermination()

    run(1)
    store.faults.append(S3Fault(kind, part=part, times=1000))
    with pytest.raises(Exception, match=f"the store refuses to write .{said}.*right"):
        run(1)
    store.faults.clear()
    run(1)
    assert delivered[0] == [1] * 10
    assert delivered[-1] == [3] * 10


def test_a_store_that_cannot_be_used_is_refused_before_anything_starts(
    spark: SparkSession, store: FaultyS3, numbers: Callable[[int], DataFrame]
) -> None:
    store.conditional = False
    counts = numbers(1).groupBy("k").count()
    writer = hg.writeStream(counts).outputMode("update").format("noop")
    with pytest.raises(CheckpointError, match="ignores If-None-Match"):
        on_store(writer, store, "ck").start()
    assert store.objects == {}
    store.conditional = True
    stateless = hg.writeStream(numbers(1)).format("noop")
    with pytest.raises(CheckpointError, match="would hold nothing: a query without stateful"):
        on_store(stateless, store, "ck").start()
    assert store.objects == {}
    assert not [q for q in spark.streams.active if q.name == "refused"]


@pytest.mark.thorough
@pytest.mark.parametrize("location", ["s3", None])
def test_a_driver_that_wakes_changes_nothing_and_says_who_goes_on(location: str | None) -> None:
    found = two_drivers.run(count=1, location=location)
    assert found["failed"] == []
    assert found["told"] == 1
    assert found["rows_compared"] > 0
