"""Generated data and queries, and how answers are compared."""

from __future__ import annotations

import datetime as dt
import math
import os
import random
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

FILES, ROWS = 3, 60
START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DELAY_S = 5
FILE_S = 10

_VALUES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "b": (pa.int8(), [-128, 0, 7]),
    "s": (pa.int16(), [-5, 0, 32767]),
    "i": (pa.int32(), [-1, 0, 2, 3]),
    "l": (pa.int64(), [-(10**12), 0, 5, 10**15]),
    "f": (pa.float32(), [0.0, -0.0, 0.5, math.nan, -1.25]),
    # quarters: sums are exact in any order
    "d": (pa.float64(), [0.0, -0.0, 2.25, math.nan, -3.5, 1e6]),
    "m": (pa.decimal128(9, 2), [Decimal("0.00"), Decimal("-12.34"), Decimal("9999999.99")]),
    "h": (pa.decimal128(30, 6), [Decimal("123456789012345678901234.000001"), Decimal("-0.5")]),
    "t": (pa.string(), ["", "a", "ab", "z\u00e9\u00df", "\u6c34\U0001f30a"]),
    "y": (pa.binary(), [b"", b"\x00", b"\xff\xfe", b"ab"]),
    "o": (pa.bool_(), [True, False]),
    "a": (pa.date32(), [dt.date(1969, 12, 31), dt.date(2026, 2, 28), dt.date(2100, 1, 1)]),
    "e": (pa.timestamp("us", tz="UTC"), [START, START + dt.timedelta(microseconds=1)]),
    "r": (
        pa.struct([("x", pa.int32()), ("z", pa.string())]),
        [{"x": 1, "z": "p"}, {"x": None, "z": ""}, {"x": 2, "z": None}],
    ),
}
COLUMNS = list(_VALUES)


def write_files(folder: Path, seed: int) -> None:
    """Write one file per batch; the watermark of one batch is before all times of the next."""
    rng = random.Random(seed)
    folder.mkdir(parents=True)
    for number in range(FILES):
        columns = {"id": pa.array(range(number * ROWS, (number + 1) * ROWS), pa.int64())}
        offsets = [number * FILE_S + rng.random() * (FILE_S + 2) - 2 for _ in range(ROWS)]
        times = [None if rng.random() < 0.05 else START + dt.timedelta(seconds=s) for s in offsets]
        columns["ts"] = pa.array(times, pa.timestamp("us", tz="UTC"))
        for name, (kind, values) in _VALUES.items():
            chosen = [None if rng.random() < 0.1 else rng.choice(values) for _ in range(ROWS)]
            columns[name] = pa.array(chosen, kind, from_pandas=False)
        pq.write_table(pa.table(columns), folder / f"{number}.parquet")
        when = (1_000_000_000 + number,) * 2  # the order in which Spark takes them
        os.utime(folder / f"{number}.parquet", when)


def final_watermark(folder: Path) -> dt.datetime:
    """Return Spark's watermark after the last file: whole milliseconds."""
    times = pq.read_table(folder, columns=["ts"]).column("ts").to_pylist()
    latest = max(t for t in times if t is not None) - dt.timedelta(seconds=DELAY_S)
    return latest.replace(microsecond=latest.microsecond // 1000 * 1000)


# -- queries ----------------------------------------------------------------------------------------

_KEYS = [
    *COLUMNS,
    "l % 3",
    "upper(t)",
    "d * 2",
    "coalesce(t, '?')",
    "case when o then i end",
    "struct(t, o)",
    "substring(t, 1, 1)",
    "m + 1",
    "cast(i as string)",
    "year(a)",
    "-f",
]
_NUMBERS = ["b", "s", "i", "l", "f", "d", "m", "h"]
_WINDOWS: list[tuple[str, ...]] = [
    (),
    ("4 seconds",),
    ("10 seconds", "10 seconds", "3 seconds"),
    ("6 seconds", "2 seconds"),
    ("6 seconds", "4 seconds", "1 second"),
    ("5 seconds", "3 seconds"),
]


@dataclass(frozen=True)
class Generated:
    """A query.

    Attributes
    ----------
    build : callable
        From a source DataFrame, streaming or not.
    mode : str
    keys : list of str
        Names of its key columns.
    window : str or None
        Name of its window column.
    text : str
        For a failing test's message.
    """

    build: Callable[[DataFrame], DataFrame]
    mode: str
    keys: list[str]
    window: str | None
    text: str


def generate(seed: int) -> Generated:
    """Return query `seed` of an endless list."""
    rng = random.Random(f"query {seed}")
    window = _WINDOWS[seed % len(_WINDOWS)]
    modes = ("append", "update", "complete") if window else ("update", "complete")
    mode = modes[seed // len(_WINDOWS) % len(modes)]
    # each column and expression is a key of some query
    first = _KEYS[seed % len(_KEYS)]
    others = rng.sample([k for k in _KEYS if k != first], rng.randint(0, 2))
    keys = [first, *others] if not window or rng.random() < 0.9 else []
    calls = ["count(*) as n", *(f"{c} as v{i}" for i, c in enumerate(_calls(rng, keys)))]
    # a record may count once per letter of its text; letters made after the watermark are made late
    letters = random.Random(f"letters {seed}").choice((None, None, None, "first", "last"))
    keys = [*keys, "letter"] if letters else keys
    having = rng.random() < 0.3
    computed = rng.random() < 0.3
    names = [f"key{i}" for i in range(len(keys))]

    def build(source: DataFrame) -> DataFrame:
        grouping: list[Column] = [
            F.expr(k).alias(name) for k, name in zip(keys, names, strict=True)
        ]
        exploded = F.explode(F.split("t", "")).alias("letter")
        if letters == "first":
            source = source.select("*", exploded)
        if window:
            source = source.withWatermark("ts", f"{DELAY_S} seconds")
            grouping.append(F.window("ts", *window))
        if letters == "last":
            source = source.select("*", exploded).where("letter <> 'x'")
        rng_order = random.Random(seed)
        rng_order.shuffle(grouping)
        result = source.groupBy(*grouping).agg(*[F.expr(c) for c in calls])
        if having:
            result = result.where("n > 1")
        if computed:
            result = result.withColumn("more", F.col("n") * 2 + 1).withColumn(
                "text", F.concat(F.lit("n="), F.col("n").cast("string"))
            )
        return result

    text = f"query {seed}: {mode}, window {window}, keys {keys}, {calls}, {letters=}, {having=}"
    all_keys = [*names, "window"] if window else names
    return Generated(build, mode, all_keys, "window" if window else None, text)


def _calls(rng: random.Random, keys: list[str]) -> list[str]:
    pool = [f"count({rng.choice(COLUMNS)})", f"sum({rng.choice(_NUMBERS)})"]
    pool += [f"avg({rng.choice(_NUMBERS)})" for _ in range(2)]
    pool += [f"{rng.choice(['min', 'max'])}({rng.choice(COLUMNS)})" for _ in range(3)]
    pool.append(f"max(struct({rng.choice(COLUMNS)}, id))")
    pool.append(f"{rng.choice(['max_by', 'min_by'])}({rng.choice(COLUMNS)}, id)")
    pool.append(f"max_by({rng.choice(COLUMNS)}, struct({rng.choice(COLUMNS)}, id))")
    pool.append(f"sum({rng.choice(_NUMBERS)}) filter (where l > 0)")
    pool.append("count(*) filter (where o)")
    pool.append(f"max({rng.choice(COLUMNS)}) filter (where i >= 0)")
    pool.append(f"sum({rng.choice(['i', 'l'])}) / count(*) + 1")
    for key in ("t", "i", "a"):
        if key in keys:  # all values are equal, so their order does not matter
            pool += [f"first({key})", f"last({key}, true)"]
    return rng.sample(pool, rng.randint(2, 5))


# -- running and comparing --------------------------------------------------------------------------


def source(spark: SparkSession, folder: Path, *, stream: bool) -> DataFrame:
    """Return the files as a stream of one file per batch, or as a batch."""
    schema = spark.read.parquet(str(folder)).schema
    reader = spark.readStream.option("maxFilesPerTrigger", 1) if stream else spark.read
    return reader.schema(schema).parquet(str(folder))


def change_at_random(query: Any, rng: random.Random, *, key_groups: int = 128) -> int:
    """Scale and remap until a query ends; return how often."""
    changes, slots = 0, 2
    deadline = time.monotonic() + 120
    while query.isActive:
        assert time.monotonic() < deadline, "the query does not end"
        if rng.random() < 0.6:
            slots = rng.randint(1, 4)
            query.scale(slots)
        else:
            query.remap({rng.randrange(key_groups): rng.randrange(slots) for _ in range(9)})
        changes += 1
        query.awaitTermination(rng.random() * 0.6)
    query.awaitTermination(1)
    return changes


def plain(value: Any) -> Any:
    """Return a value so that equal ones are equal: one NaN, one zero, everything hashable."""
    if isinstance(value, float):
        return "NaN" if math.isnan(value) else value + 0.0
    if isinstance(value, Row | tuple | list):
        return tuple(plain(v) for v in value)
    if isinstance(value, dict):
        return tuple(sorted((plain(k), plain(v)) for k, v in value.items()))
    return bytes(value) if isinstance(value, bytearray) else value


def bag(rows: list[Row]) -> Counter[Any]:
    return Counter(plain(row) for row in rows)


def last_per_key(rows: list[Row], keys: list[str]) -> list[Row]:
    """Return update mode's answer: for each key the row that came last, which counted the most."""
    last: dict[Any, Row] = {}
    for row in rows:
        key = tuple(plain(row[name]) for name in keys)
        if key not in last or row["n"] >= last[key]["n"]:
            last[key] = row
    return list(last.values())


def differences(expected: list[Row], got: list[Row]) -> str:
    """Return what differs, or nothing."""
    missing, extra = bag(expected) - bag(got), bag(got) - bag(expected)
    if not missing and not extra:
        return ""
    return f"missing {list(missing)[:3]} ({missing.total()}), extra {list(extra)[:3]} ({extra.total()})"


def shape(kind: Any, *, nullable: bool = True) -> Any:
    """Return a schema as names, types and (unless told not to) nullability, without metadata."""
    if isinstance(kind, T.StructType):
        return [
            (f.name, f.nullable and nullable, shape(f.dataType, nullable=nullable))
            for f in kind.fields
        ]
    return kind.simpleString()
