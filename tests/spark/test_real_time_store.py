"""Real time with a checkpoint on an object store: as in a directory, and on from there on any machine."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from real_time import Rows, totals, writer

import headgate as hg
from headgate.checkpoint.checkpoint import Checkpoint
from headgate.checkpoint.manifest import file_name
from headgate.journal import Batch, read
from headgate.spark.worker.failure import QueryFailed
from headgate_demo.spark import sources
from headgate_lab.testing import s3_server
from headgate_lab.testing.s3_server import BUCKET, FaultyS3

pytest.importorskip("obstore", reason="needs headgate[store]")

LIMIT_S = 120.0
SECRET = "do-not-tell-0815"
PLACE = f"s3://{BUCKET}/ck"


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyS3]:
    with s3_server.serving() as made:
        for name, text in made.environment.items():
            monkeypatch.setenv(name, text)
        yield made


def on_store(frame: DataFrame, rows: Rows, store: FaultyS3) -> hg.Writer:
    """A query in real time; Python workers of Spark's began before the environment had the store."""
    made = writer(frame, rows, PLACE, "update")
    for name, text in {**store.options, "secretAccessKey": SECRET}.items():
        made = made.option(f"headgate.store.{name}", text)
    return made


def wait_until(reached: Callable[[], bool], query: Any) -> None:
    until_s = time.monotonic() + LIMIT_S
    while not reached():
        assert query.isActive, query.exception()
        assert time.monotonic() < until_s, "not within two minutes"
        time.sleep(0.01)


def test_the_modes_take_turns_on_a_store_and_a_lost_slot_changes_nothing(
    spark: SparkSession, store: FaultyS3
) -> None:
    sources.register(spark)
    build, rows = totals(), Rows()

    def more(query: Any, steps: int = 2) -> None:
        done = len(rows.steps)
        wait_until(lambda: len(rows.steps) > done + steps, query)

    for turn in ("real time", "batches", "real time"):
        made = on_store(build(spark), rows, store)
        made = made.trigger(processingTime="0 seconds") if turn == "batches" else made
        query = made.start()
        more(query)
        query.scale(3 if turn == "batches" else 1)
        more(query)
        if turn == "real time":
            os.kill(query.processes["slot 0"], signal.SIGKILL)
            wait_until(lambda q=query: '"event":"retry"' in q.journal.read_text(), query)
            more(query)
        query.stop()
        assert query.exception() is None
    assert rows.came_again == 0
    output = rows.last_by(spark, "k")
    found = hg.verify(spark, build, checkpoint=PLACE, output=output, mode="update")
    assert found["verified"], found
    assert found["rows_compared"] > 50
    assert hg.inspect(PLACE, verify=True)["sound"]
    assert SECRET.encode() not in b"".join(store.objects.values())


def epochs_of(lines: list[Batch]) -> int:
    return sum(line.epochs for line in lines)


def test_an_epoch_takes_few_requests_of_a_store(spark: SparkSession, store: FaultyS3) -> None:
    """Its manifest, and now and then the note that its output is out; garbage goes beside."""
    sources.register(spark)
    rows = Rows()
    query = on_store(totals()(spark), rows, store).start()
    wait_until(lambda: len(rows.steps) > 3, query)
    first, since = Checkpoint(PLACE).latest(), len(store.requests)
    wait_until(lambda: len(rows.steps) > 20, query)
    put = [key for method, key in store.requests[since:] if method == "PUT"]
    query.stop()
    lines = [event for event in read(query.journal) if isinstance(event, Batch)]
    assert sum(line.store_requests or 0 for line in lines) > epochs_of(lines)
    assert sum(line.store_bytes or 0 for line in lines) > 100 * epochs_of(lines)
    last = Checkpoint(PLACE).latest()
    assert first is not None
    assert last is not None
    epochs = sum("/manifests/" in key for key in put)
    notes = [key for key in put if "/intents/" in key]
    assert 10 < epochs <= last.step - first.step
    assert len(notes) == len(set(notes)) > 0
    assert len(put) <= 2 * epochs + 10


def test_of_two_drivers_the_one_that_commits_second_stops_and_has_put_nothing_out(
    spark: SparkSession, store: FaultyS3
) -> None:
    """The other one's manifest is there when this one wants to write its own."""
    sources.register(spark)
    rows = Rows()
    query = on_store(totals()(spark), rows, store).start()
    wait_until(lambda: len(rows.steps) > 3, query)
    with store.lock:
        newest = max(key for key in store.objects if "/manifests/" in key)
        theirs = file_name(int(newest.rpartition("/")[2]) + 20)
        store.objects[f"{newest.rpartition('/')[0]}/{theirs}"] = store.objects[newest]
    with pytest.raises(QueryFailed, match=r"has step \d+ from another driver already"):
        query.awaitTermination(LIMIT_S)
    assert max(rows.steps) < int(theirs)
