"""A processor on Spark: the stock exchange's trades, whatever happens to slots, workers and drivers."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import answers
import exchange
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from ending import ending
from pyspark.sql import functions as F
from pyspark.sql.streaming import StatefulProcessor

import headgate as hg
from headgate.core.errors import UnsupportedQuery
from headgate.spark.api.verify import verify
from headgate.spark.job.faults import CRASH
from headgate.spark.read.logical import read
from headgate_demo.spark.matcher import TRADES, Matcher
from headgate_demo.spark.queries import stock_exchange, stock_exchange_reference
from headgate_lab.testing import faults

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(600)


def run(spark, directory, *planned, **options):
    """Run the exchange to its end and return the journal."""
    writer = exchange.writer(exchange.trades(spark, **options), directory)
    faults.inject(writer, *planned)
    query = ending(writer)
    query.awaitTermination()
    return [json.loads(line) for line in query.journal.read_text().splitlines()]


def test_trades_are_those_of_the_books_while_slots_change(spark, tmp_path):
    writer = exchange.writer(exchange.trades(spark), tmp_path)
    query = ending(writer)
    assert answers.change_at_random(query, random.Random(1), key_groups=16) > 1
    assert query.lastProgress["headgate"]["epoch"] > 1
    got = exchange.put_out(spark, tmp_path)
    assert got == exchange.expected()
    assert got.total() > 1000


def test_a_run_is_verified_against_books_and_a_wrong_one_is_not(spark, tmp_path):
    run(spark, tmp_path)
    output = spark.read.parquet(str(tmp_path / "out"))
    checkpoint = str(tmp_path / "checkpoint")

    def verified(rows):
        return verify(
            spark, stock_exchange, checkpoint=checkpoint, output=rows,
            options=exchange.OPTIONS, reference=stock_exchange_reference,
        )  # fmt: skip

    found = verified(output)
    assert found["verified"]
    assert found["rows_compared"] == exchange.expected().total()
    wrong = output.withColumn(
        "volume", F.when(F.col("buy") % 97 == 0, 1).otherwise(F.col("volume"))
    )
    assert not verified(wrong)["verified"]


@pytest.fixture
def rocksdb(spark):
    """Plain Spark runs transformWithState on this store only."""
    name = "spark.sql.streaming.stateStore.providerClass"
    package = "org.apache.spark.sql.execution.streaming.state"
    before = spark.conf.get(name)
    spark.conf.set(name, f"{package}.RocksDBStateStoreProvider")
    yield
    spark.conf.set(name, before)


@pytest.mark.thorough
@pytest.mark.usefixtures("rocksdb")
def test_plain_spark_gives_the_same_trades_from_the_same_processor(spark, tmp_path):
    few = 300
    plain = exchange.trades(spark, events=str(few), batch_rows="150", stocks="6").writeStream
    plain = plain.format("memory").queryName("plain_trades")
    ending(plain.option("checkpointLocation", str(tmp_path))).awaitTermination()
    wanted = exchange.expected(few, stocks=6)
    assert Counter(map(tuple, spark.table("plain_trades").collect())) == wanted
    until = json.dumps({"event": few, "base_us": 0})
    options = {**exchange.OPTIONS, "stocks": "6", "until": until}
    orders = spark.read.format("stock_exchange").options(**options).load()
    batch = orders.groupBy("stock").transformWithState(Matcher(), TRADES, "append", "None")
    assert Counter(map(tuple, batch.collect())) == wanted


@pytest.mark.parametrize(
    "fault",
    [pytest.param(faults.raise_in, marks=pytest.mark.thorough), faults.kill_worker],
)
def test_a_slot_that_ends_in_the_middle_of_its_writes_does_not_change_the_trades(
    spark, tmp_path, fault
):
    events = run(spark, tmp_path, fault(slot=1, step=3))
    assert [e["step"] for e in events if e["event"] == "retry"] == [3]
    assert exchange.put_out(spark, tmp_path) == exchange.expected()


@pytest.mark.thorough
def test_books_survive_a_stop(spark, tmp_path):
    half = exchange.ROWS // 2
    run(spark, tmp_path, events=str(half))
    assert exchange.put_out(spark, tmp_path) == exchange.expected(half)
    events = run(spark, tmp_path)
    assert [e["recovered_from"] for e in events if e["event"] == "restart"]
    assert exchange.put_out(spark, tmp_path) == exchange.expected()


@pytest.mark.thorough
def test_books_survive_a_killed_driver(spark, tmp_path):
    script = Path(exchange.__file__)
    ran = subprocess.run(
        [sys.executable, str(script), str(tmp_path)],
        env={**os.environ, CRASH: "after-manifest:4"},
        capture_output=True,
        check=False,
        start_new_session=True,
    )
    assert ran.returncode == -signal.SIGKILL, ran.stderr[-2000:]
    run(spark, tmp_path)
    assert exchange.put_out(spark, tmp_path) == exchange.expected()


@pytest.mark.thorough
def test_waiting_orders_are_matched_in_their_order(spark, tmp_path):
    writer = exchange.writer(exchange.trades(spark), tmp_path)
    # slow enough for a backlog, on every slot alike
    faults.inject(writer, *[faults.slow(slot, 2000.0) for slot in range(2)])
    query = writer.budget("200 ms").start()
    query.drain(120)
    query.stop()
    waited = [json.loads(line) for line in query.journal.read_text().splitlines()]
    assert max(e["backlog"] for e in waited if e["event"] == "batch") > 0
    assert exchange.put_out(spark, tmp_path) == exchange.expected()


def test_the_processor_of_the_guide_adds_up(spark, tmp_path):
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    (code,) = [c for c in re.findall(r"```python\n(.*?)```", guide, re.DOTALL) if "Processor" in c]
    total = Counter()
    for number in range(3):
        rows = [(f"p{i % 7}", i * number + 1) for i in range(40)] + [(None, 5)]
        for page, count in rows:
            total[page] += count
        pages, counts = zip(*rows, strict=True)
        table = pa.table({"page": pages, "bytes": pa.array(counts, pa.int64())})
        pq.write_table(table, tmp_path / f"{number}.parquet")
    reader = spark.readStream.schema("page string, bytes bigint").option("maxFilesPerTrigger", 1)
    names = {"clicks": reader.parquet(str(tmp_path)), "__name__": "__main__"}
    exec(code, names)
    last = {}
    query = (
        hg.writeStream(names["totals"])
        .outputMode("update")
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .foreachBatch(lambda frame, _: last.update({r.page: r.bytes for r in frame.collect()}))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert last == dict(total)


# -- what is refused --------------------------------------------------------------------------------


class Unready(StatefulProcessor):
    def init(self, handle):
        raise KeyError("settings")

    def handleInputRows(self, key, rows, timerValues):
        return iter([])

    def close(self):
        pass


class Missing(Matcher):
    inputs = pa.schema([*Matcher.inputs, ("fee", pa.int64())])


class TwoKeys(Matcher):
    keys = pa.schema([("stock", pa.int32()), ("account", pa.int64())])


class OtherKey(Matcher):
    keys = pa.schema([("account", pa.int32())])


class Undeclared(hg.ArrowProcessor):
    keys = pa.schema([("stock", pa.int32())])

    def handleBatch(self, keys, batch, state, timers):
        return batch.rows


@pytest.fixture
def orders(spark):
    exchange.trades(spark)
    return spark.readStream.format("stock_exchange").options(**exchange.OPTIONS).load()


@pytest.mark.parametrize(
    ("processor", "mode", "message"),
    [
        (Unready(), "None", "Unready.init failed with KeyError"),
        (Missing(), "None", 'Missing reads column "fee", which the stream lacks'),
        (TwoKeys(), "None", "TwoKeys declares the keys stock, account, the query groups by stock"),
        (OtherKey(), "None", "OtherKey declares the keys account, the query groups by stock"),
        (Undeclared(), "None", "Undeclared declares no inputs"),
    ],
)
def test_a_processor_that_cannot_run_is_refused(orders, processor, mode, message):
    frame = orders.groupBy("stock").transformWithState(processor, TRADES, "append", mode)
    with pytest.raises(UnsupportedQuery, match=message):
        read(frame, "append")
    assert hg.explain(frame).startswith("not elastic")


def test_an_arrow_processor_on_pandas_frames_is_refused(orders):
    frame = orders.groupBy("stock").transformWithStateInPandas(Matcher(), TRADES, "append", "None")
    with pytest.raises(UnsupportedQuery, match="cannot run Matcher with pandas: it takes Arrow"):
        read(frame, "append")


def test_a_processor_that_carries_much_is_refused(orders):
    class Heavy(Matcher):
        def __init__(self):
            super().__init__()
            self.ballast = random.Random(1).randbytes(3_000_000)

    frame = orders.groupBy("stock").transformWithState(Heavy(), TRADES, "append", "None")
    with pytest.raises(UnsupportedQuery, match="more than 1 MB"):
        read(frame, "append")


def test_explain_says_what_a_processor_is_keyed_by(spark):
    text = hg.explain(exchange.trades(spark).where("volume > 100").select("stock", "price"))
    assert text.splitlines()[0] == "elastic       Matcher keys stock; about 88 B per entry"
    assert "where()" in text
