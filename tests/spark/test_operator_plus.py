"""`hg.stateful`: O+ in slots and on plain Spark, against its reference and Spark's own answers."""

from __future__ import annotations

import datetime as dt
import os
import random
import sys
from collections import Counter

import answers
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark import cloudpickle
from pyspark.sql import Row
from pyspark.sql import functions as F

import headgate as hg
from headgate.core.errors import ConfigError
from headgate.operators.operator_plus import Record, WindowType
from headgate_lab.oplus import library
from headgate_lab.oplus.reference import Instance, WindowState

pytestmark = pytest.mark.timeout(600)
cloudpickle.register_pickle_by_value(sys.modules[__name__])

_STORE = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
EPOCH = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
DELAY_S, FILES, ROWS = 4, 3, 30
SECOND = 1_000_000
WORDS = ["#a", "#b", "#c", "#dd", "x", "yy"]
SCHEMAS = ["id bigint, text string, ts timestamp", "ts timestamp, text string, price double"]


def write(folder, number, schema, *, late=False):
    """Write one file: a batch of one input. Files of a number are of the same ten seconds."""
    rng = random.Random(f"{folder.name} {number}")
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for i in range(ROWS):
        behind = late and number and rng.random() < 0.2
        seconds = 10 * number + rng.choice([rng.random() * 10, rng.randrange(10)])
        rows.append(
            {
                "id": i,
                "text": " ".join(rng.choices(WORDS, k=rng.randrange(4))),
                "ts": START + dt.timedelta(seconds=round(seconds - (25 if behind else 0), 4)),
                "price": float(rng.randrange(9)),
            }
        )
    kinds = {"bigint": pa.int64(), "string": pa.string(), "double": pa.float64()}
    kinds["timestamp"] = pa.timestamp("us", tz="UTC")
    fields = [column.split() for column in schema.split(", ")]
    table = pa.Table.from_pylist(rows, schema=pa.schema([(n, kinds[k]) for n, k in fields]))
    pq.write_table(table, folder / f"{number}.parquet")
    os.utime(folder / f"{number}.parquet", (1_000_000_000 + number,) * 2)


def written(tmp_path, inputs, *, late=False):
    folders = [tmp_path / f"in{i}" for i in range(inputs)]
    for i, folder in enumerate(folders):
        for number in range(FILES):
            write(folder, number, SCHEMAS[i % 2], late=late)
    return folders


def streams(spark, folders):
    return [
        spark.readStream.schema(SCHEMAS[i % 2])
        .option("maxFilesPerTrigger", 1)
        .parquet(str(folder))
        .withWatermark("ts", f"{DELAY_S} seconds")
        for i, folder in enumerate(folders)
    ]


class Collected:
    def __init__(self):
        self.rows = Counter()

    def __call__(self, frame, _):
        self.rows += Counter(tuple(map(answers.plain, row)) for row in frame.collect())


def on_spark(spark, frame, place):
    """Return what plain Spark puts out."""
    before, got = spark.conf.get(_STORE), Collected()
    shuffles = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set(_STORE, _ROCKSDB)
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    try:
        writer = frame.writeStream.foreachBatch(got).option("checkpointLocation", str(place))
        writer.trigger(availableNow=True).start().awaitTermination(240)
    finally:
        spark.conf.set(_STORE, before)
        spark.conf.set("spark.sql.shuffle.partitions", shuffles)
    return got.rows


def in_slots(frame, place, seed=1):
    """Return what slots put out, while they change or (without a seed) do not."""
    got = Collected()
    writer = hg.writeStream(frame).foreachBatch(got).option("checkpointLocation", str(place))
    writer = writer.keyGroups(8).slots(start=2).option("headgate.snapshotEvery", 3)
    query = writer.trigger(availableNow=True).start()
    if seed is not None:
        answers.change_at_random(query, random.Random(seed), key_groups=8)
    query.awaitTermination()
    assert query.exception() is None
    return got.rows


def records_of(spark, folders):
    """Return all records as the operator orders them: by time, input and content."""
    found, latest_us = [], []
    for i, folder in enumerate(folders):
        schema = SCHEMAS[i % 2]
        df = spark.read.schema(schema).parquet(str(folder))
        rows = df.select("*", F.unix_micros("ts").alias("at"), F.xxhash64(*df.columns).alias("tie"))
        for row in rows.collect():
            found.append((row["at"], i, row["tie"], row[:-2], df.columns))
        latest_us.append(max(at for at, number, *_ in found if number == i))
    found.sort(key=lambda one: one[:3])
    records = [Record(at, named(names, values), i) for at, i, _, values, names in found]
    return records, min(latest_us) // 1000 * 1000 - DELAY_S * SECOND


def named(names, values):
    return Row(*names)(*values)


def by_reference(operator, records, watermark_us, *, ordered):
    """Return what one instance of the reference emits."""
    instance = Instance(operator, WindowState())
    emitted = []
    for record in records:
        if not ordered:
            emitted += instance.update(record)
        elif record.time <= watermark_us:
            emitted += instance.process(record)
    emitted += instance.advance(watermark_us)
    return Counter((at(one.time), *map(answers.plain, one.payload)) for one in emitted)


def at(time_us):
    """Return a time as Spark collects it."""
    return (EPOCH + dt.timedelta(microseconds=time_us)).astimezone().replace(tzinfo=None)


def tags(record):
    return [word for word in record.payload.text.split() if word.startswith("#")]


def described(record):
    return f"{record.input}:{record.time % (100 * SECOND)}:{record.payload.text}"


def concatenated(windows, record):
    """f_U that depends on the order of records, and emits."""
    text = f"{windows[0].state or ''}|{described(record)}"
    return [text, *[None] * (len(windows) - 1)], [(windows[0].key, text[-90:])]


def listed(windows):
    """f_O of records kept, for any number of inputs."""
    texts = [described(record) for window in windows for record in window.state or ()]
    return [(windows[0].key, str(texts))]


def newest(windows):
    """f_S that keeps one record of each input, if it is still there."""
    return [tuple(r for r in (w.state or ())[-1:] if r.time >= w.left) or None for w in windows]


OVER = {"keys": tags, "distinct": True}
TEXT = "tag string, found string"
CASES = {
    "multi": (
        hg.OperatorPlus.over("2 seconds", "6 seconds", update=concatenated, inputs=3, **OVER),
        {"schema": TEXT, "state": "string", "ordered": True},
    ),
    "multi, kept": (
        hg.OperatorPlus.over(
            "4 seconds",
            "6 seconds",
            update=lambda ws, r: ([(ws[0].state or 0) + len(r.payload.text)], []),
            output=lambda ws: [(ws[0].key, str(ws[0].state))],
            **OVER,
        ),
        {"schema": TEXT, "state": "bigint"},
    ),
    "single": (
        hg.OperatorPlus.over(
            "2 seconds", "6 seconds", window_type="single", output=listed, inputs=3, **OVER
        ),
        {"schema": TEXT},
    ),
    "single, own slide": (
        hg.OperatorPlus.over(
            "3 seconds",
            "6 seconds",
            window_type="single",
            output=listed,
            slide=newest,
            inputs=2,
            **OVER,
        ),
        {"schema": TEXT},
    ),
}


SHORT = "multi, kept"


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=[] if n == SHORT else [pytest.mark.thorough]) for n in CASES],
)
def test_slots_and_plain_spark_put_out_what_the_reference_does(spark, tmp_path, name):
    operator, given = CASES[name]
    folders = written(tmp_path, operator.inputs)
    frame = hg.stateful(streams(spark, folders), operator, time="ts", key_type="string", **given)
    records, watermark_us = records_of(spark, folders)
    ordered = operator.window_type is WindowType.SINGLE or given.get("ordered", False)
    expected = by_reference(operator, records, watermark_us, ordered=ordered)
    assert expected
    assert on_spark(spark, frame, tmp_path / "spark") == expected
    assert in_slots(frame, tmp_path / "slots") == expected


def words(record):
    return record.payload.text.split()


COUNTED = "key string, value bigint"


def counted():
    """A+ that counts words in windows: the laboratory's, built of f_U and f_O only."""
    return library.aggregate(
        2 * SECOND, 6 * SECOND, words, lambda n, _: (n or 0) + 1, int, distinct=True
    )


def grouped(df):
    """Return Spark's own count of words in windows."""
    word = F.explode(F.array_distinct(F.split("text", " ")))
    rows = df.select("ts", word.alias("word")).where("word != ''")
    found = rows.groupBy(F.window("ts", "6 seconds", "2 seconds"), "word").count()
    return found.select("window.end", "word", "count")


@pytest.mark.parametrize("late", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_an_aggregate_built_of_o_plus_answers_as_sparks_group_by(spark, tmp_path, late):
    folders = written(tmp_path, 1, late=late)
    by_column = F.filter(F.split("text", " "), lambda word: word != "")
    (source,) = streams(spark, folders)
    given = {"time": "ts", "schema": COUNTED, "state": "bigint"}
    expected = on_spark(spark, grouped(source), tmp_path / "expected")
    frame = hg.stateful(source, counted(), keys=by_column, **given)
    assert expected
    assert on_spark(spark, frame, tmp_path / "spark") == expected
    by_function = hg.stateful(source, counted(), key_type="string", **given)
    # while groups move, what is late is judged per key group, and by Spark for all
    assert in_slots(by_function, tmp_path / "slots", None if late else 1) == expected


@pytest.mark.thorough
def test_a_join_built_of_o_plus_answers_as_sparks_join(spark, tmp_path):
    folders = written(tmp_path, 2)
    sides = streams(spark, folders)
    payloads = [f"struct<{SCHEMAS[i].replace(', ', ',').replace(' ', ':')}>" for i in range(2)]
    schema = f"left {payloads[0]}, right {payloads[1]}"
    _, watermark_us = records_of(spark, folders)
    # a pair is found when the later of the two comes, in the window that begins first
    operator = library.join(
        SECOND, 5 * SECOND, words, lambda x, y: x.payload.id % 9 >= y.payload.price
    )
    frame = hg.stateful(sides, operator, time="ts", schema=schema, key_type="string")
    frame = frame.selectExpr("left.id", "right.ts", "right.price")
    left, right = (
        spark.read.schema(SCHEMAS[i])
        .parquet(str(folders[i]))
        .withColumn("word", F.explode(F.split("text", " ")))
        .where(f"word != '' and unix_micros(ts) <= {watermark_us}")
        .select("*", F.unix_micros("ts").alias("at"))
        for i in range(2)
    )
    left, right = left.alias("l"), right.alias("r")
    latest, earliest = F.greatest("l.at", "r.at"), F.least("l.at", "r.at")
    first = (F.floor((latest - 5 * SECOND) / SECOND) + 1) * SECOND
    pairs = left.join(
        right, F.expr("l.word = r.word and l.id % 9 >= r.price") & (earliest >= first)
    )
    expected = Counter(
        tuple(map(answers.plain, row)) for row in pairs.select("l.id", "r.ts", "r.price").collect()
    )
    assert expected
    assert on_spark(spark, frame, tmp_path / "spark") == expected
    assert in_slots(frame, tmp_path / "slots") == expected


def test_what_does_not_fit_is_refused_in_a_sentence(spark, tmp_path):
    folders = written(tmp_path, 2)
    sources = streams(spark, folders)
    bare = spark.readStream.schema(SCHEMAS[0]).parquet(str(folders[0]))
    given = {"time": "ts", "schema": COUNTED, "state": "bigint", "keys": "text"}
    for inputs, more, message in [
        (bare, {}, 'input 0 needs the event time "ts" with a watermark; use withWatermark'),
        (sources, {}, "the operator has 1 inputs, and 2 were given; make them agree."),
        (sources[0], {"time": "tz"}, 'input 0 needs the event time "tz", which it lacks'),
        (sources[0], {"schema": "key string, value bigint, ts timestamp"}, "make them agree"),
        (sources[0], {"schema": "bigint"}, 'schema="bigint" has no named columns'),
        (sources[0], {"keys": words}, "keys is a function, whose type Spark cannot see"),
        (sources[0], {"state": "no type"}, 'state="no type" is no type'),
        (sources[0], {"keys": ["text", "id"]}, "keys has 2 entries for 1 inputs"),
    ]:
        with pytest.raises(ConfigError) as caught:
            hg.stateful(inputs, counted(), **{**given, **more})
        assert message in str(caught.value)
    with pytest.raises(ConfigError, match="did you mean"):
        hg.OperatorPlus.over("1 second", "2 seconds", window_type="singel", output=listed)
