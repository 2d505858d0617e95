"""Queries, and changes of them, drawn by lot: what a start on the first one's checkpoint has to do.

A change is of one of three kinds. Of *meaning*: the state would say something else, so the start is
refused. Of *spelling*: the query says the same in other words. Of *input*: only what comes in, or what is
made of the results, is another from now on. After the latter two the query goes on as plain Spark does.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

SEED = 28
"""Of the drawing of cases; fixed before any of them was run."""

CASES = 60

MEANING, SPELLING, INPUT = "meaning", "spelling", "input"

SCHEMA = "k int, j int, s string, v bigint, w bigint, at timestamp, later timestamp"
_HALF = 60
"""Records of a half, a second apart."""


def write_half(folder: Path, number: int) -> None:
    """Write the first (0) or the second (1) half of the input."""
    rng = random.Random(f"changed {number}")
    folder.mkdir(exist_ok=True)
    lines = []
    for i in range(_HALF * number, _HALF * (number + 1)):
        row = {"k": rng.randrange(4), "j": rng.randrange(4), "s": rng.choice("abc")}
        row |= {"v": rng.randrange(100), "w": 1000 + rng.randrange(100)}
        times = {name: 1_700_000_000 + i + late for name, late in (("at", 0), ("later", 7))}
        lines.append(json.dumps(row | {n: f"{_time(t)}" for n, t in times.items()}))
    (folder / f"{number}.json").write_text("\n".join(lines) + "\n")


def _time(seconds: int) -> str:
    minutes, rest = divmod(seconds - 1_700_000_000, 60)
    return f"2024-01-01T00:{minutes:02d}:{rest:02d}Z"


@dataclass(frozen=True)
class Query:
    """A query by its parts, each as SQL.

    Attributes
    ----------
    kind : str
        aggregate, window, session, plain time, duplicates, join, above a join, or chain.
    """

    kind: str
    where: str = ""
    x: str = "v"
    below: str = ""
    key: str = "k"
    aggregates: tuple[str, ...] = ("sum(x)",)
    names: tuple[str, ...] = ()
    time: str = "at"
    delay: str = "5 seconds"
    window: tuple[str, ...] = ("20 seconds",)
    gap: str = "3 seconds"
    columns: tuple[str, ...] = ("k", "x")
    within: bool = False
    join: str = "inner"
    on: str = "lk = rk"
    near: str = "rat >= lat and rat <= lat + interval 5 seconds"
    kept: tuple[str, ...] = ("lk", "lv", "rv")
    files: str = "1000"
    above: str = ""
    outer: tuple[str, ...] = ("sum(y)", "count(*)")
    swap: bool = False
    zone: str = "UTC"

    @property
    def mode(self) -> str:
        return "update" if self.kind == "aggregate" else "append"

    def build(self, spark: SparkSession, folder: Path) -> DataFrame:
        """Return the query over the files of a folder."""
        spark.conf.set("spark.sql.session.timeZone", self.zone)
        read = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", self.files)
        rows = read.json(str(folder))
        if self.where:
            rows = rows.where(self.where)
        if self.below:
            rows = rows.withColumn("b", F.expr(self.below))
        rows = rows.withColumn("x", F.expr(self.x))
        if self.swap:
            rows = rows.select(*reversed(rows.columns))
        made = _KINDS[self.kind](self, rows)
        return made.withColumn("more", F.expr(self.above)) if self.above else made

    def named(self, texts: tuple[str, ...]) -> list[Column]:
        names = self.names or tuple(f"a{i}" for i in range(len(texts)))
        return [F.expr(text).alias(name) for text, name in zip(texts, names, strict=False)]


def _aggregate(q: Query, rows: DataFrame) -> DataFrame:
    return rows.groupBy(F.expr(q.key).alias("g")).agg(*q.named(q.aggregates))


def _window(q: Query, rows: DataFrame) -> DataFrame:
    windows = rows.withWatermark(q.time, q.delay).groupBy(
        F.window(q.time, *q.window), F.expr(q.key)
    )
    return windows.agg(*q.named(q.aggregates))


def _session(q: Query, rows: DataFrame) -> DataFrame:
    sessions = rows.withWatermark(q.time, q.delay)
    return sessions.groupBy(F.session_window(q.time, q.gap), F.expr(q.key)).agg(
        *q.named(q.aggregates)
    )


def _plain_time(q: Query, rows: DataFrame) -> DataFrame:
    return (
        rows.withWatermark(q.time, q.delay)
        .groupBy(q.time, F.expr(q.key))
        .agg(*q.named(q.aggregates))
    )


def _duplicates(q: Query, rows: DataFrame) -> DataFrame:
    rows = rows.withWatermark(q.time, q.delay)
    once = rows.dropDuplicatesWithinWatermark if q.within else rows.dropDuplicates
    return once(list(q.columns)).select(*q.columns)


def _joined(q: Query, rows: DataFrame) -> DataFrame:
    left = rows.where("v % 2 = 0").withWatermark(q.time, q.delay)
    right = rows.where("v % 2 = 1").withWatermark(q.time, q.delay)
    left = left.selectExpr("k as lk", "j as lj", "x as lv", "w as lw", f"{q.time} as lat")
    right = right.selectExpr("k as rk", "j as rj", "x as rv", "w as rw", f"{q.time} as rat")
    return left.join(right, F.expr(f"{q.on} and {q.near}"), q.join)


def _join(q: Query, rows: DataFrame) -> DataFrame:
    return _joined(q, rows).select(*q.kept)


def _above_join(q: Query, rows: DataFrame) -> DataFrame:
    pairs = _joined(q, rows).withColumnRenamed("rv", "y").withColumnRenamed("lat", "when")
    return pairs.groupBy(F.window("when", *q.window), "lk").agg(*q.named(q.outer))


def _chain(q: Query, rows: DataFrame) -> DataFrame:
    first = _window(replace(q, names=()), rows)
    again = first.withColumnRenamed("a0", "y").groupBy("window")
    return again.agg(*q.named(q.outer))


_KINDS: dict[str, Callable[[Query, DataFrame], DataFrame]] = {
    "aggregate": _aggregate,
    "window": _window,
    "session": _session,
    "plain time": _plain_time,
    "duplicates": _duplicates,
    "join": _join,
    "above a join": _above_join,
    "chain": _chain,
}

BASES = {
    "sum by key": Query("aggregate"),
    "two sums": Query("aggregate", x="v + w", aggregates=("sum(x)", "max(v)")),
    "first and list": Query("aggregate", aggregates=("first(x)", "sort_array(collect_list(v))")),
    "by day": Query("aggregate", key="to_date(at)", aggregates=("count(x)",)),
    "filtered": Query(
        "aggregate", aggregates=("sum(x) filter (where v > 10)", "approx_count_distinct(j)")
    ),
    "tumbling": Query("window"),
    "sliding": Query("window", window=("20 seconds", "5 seconds"), aggregates=("sum(x)", "min(w)")),
    "sessions": Query("session", key="j"),
    "plain time": Query("plain time"),
    "duplicates": Query("duplicates"),
    "within": Query("duplicates", within=True),
    "join": Query("join"),
    "left join": Query("join", join="left_outer"),
    "above a join": Query("above a join"),
    "chain": Query("chain", window=("10 seconds",)),
}
"""Queries that checkpoints are of."""

_CALLS = ("aggregate", "window", "session", "plain time", "chain")
_WINDOWS = ("window", "above a join", "chain")
_JOINS = ("join", "above a join")
_TIMED = ("window", "session", "plain time", "duplicates", "chain")


@dataclass(frozen=True)
class Change:
    """One way to change a query: its kind, the kinds of queries that it fits, and itself."""

    kind: str
    fits: tuple[str, ...]
    apply: Callable[[Query], Query]


def _other(**parts: object) -> Callable[[Query], Query]:
    return lambda q: replace(q, **parts)  # type: ignore[arg-type]


def _first(function: Callable[[str], str]) -> Callable[[Query], Query]:
    return lambda q: replace(q, aggregates=(function(q.aggregates[0]), *q.aggregates[1:]))


_ALL = tuple(_KINDS)
CHANGES = {
    # what the state means
    "another column": Change(MEANING, _ALL, _other(x="w")),
    "another expression below": Change(MEANING, _ALL, lambda q: replace(q, x=f"{q.x} + 1")),
    "two steps below": Change(MEANING, _ALL, _other(below="v * 2", x="b + 1")),
    "another argument": Change(MEANING, _CALLS, _first(lambda a: a.replace("(x", "(w"))),
    "expression in place": Change(MEANING, _CALLS, _first(lambda a: a.replace("(x", "(x * 2"))),
    "a constant": Change(MEANING, _CALLS, _first(lambda a: a.replace("(x", "(x + 7"))),
    "another function": Change(MEANING, _CALLS, _first(lambda a: "max(x)")),
    "a filter of an aggregate": Change(
        MEANING, _CALLS, _first(lambda a: "sum(x) filter (where v > 20)")
    ),
    "distinct": Change(MEANING, _CALLS, _first(lambda a: "sum(distinct x)")),
    "one aggregate more": Change(
        MEANING, _CALLS, lambda q: replace(q, aggregates=(*q.aggregates, "count(*)"))
    ),
    "nulls ignored": Change(MEANING, ("aggregate",), _first(lambda a: "first(x, true)")),
    "another key": Change(MEANING, _CALLS, lambda q: replace(q, key="k" if q.key == "j" else "j")),
    "a computed key": Change(MEANING, _CALLS, lambda q: replace(q, key=f"{q.key} % 2")),
    "another time zone": Change(MEANING, ("aggregate",), _other(zone="Asia/Tokyo")),
    "a longer window": Change(
        MEANING, _WINDOWS, lambda q: replace(q, window=("40 seconds", *q.window[1:]))
    ),
    "a sliding window": Change(
        MEANING, _WINDOWS, lambda q: replace(q, window=(q.window[0], "2 seconds"))
    ),
    "windows that begin later": Change(
        MEANING, _WINDOWS, lambda q: replace(q, window=(q.window[0], q.window[-1], "1 second"))
    ),
    "sessions for windows": Change(MEANING, ("window",), _other(kind="session")),
    "windows for sessions": Change(MEANING, ("session",), _other(kind="window")),
    "another gap": Change(MEANING, ("session",), _other(gap="4 seconds")),
    "another time": Change(MEANING, (*_TIMED, *_JOINS), _other(time="later")),
    "other duplicates": Change(MEANING, ("duplicates",), _other(columns=("j", "x"))),
    "fewer columns": Change(MEANING, ("duplicates",), _other(columns=("k",))),
    "within or for ever": Change(
        MEANING, ("duplicates",), lambda q: replace(q, within=not q.within)
    ),
    "another join": Change(MEANING, _JOINS, _other(join="right_outer")),
    "another equality": Change(MEANING, _JOINS, _other(on="lj = rj")),
    "a wider range": Change(
        MEANING, _JOINS, _other(near="rat >= lat and rat <= lat + interval 9 seconds")
    ),
    "a condition of one side": Change(MEANING, _JOINS, _other(on="lk = rk and lv > 30")),
    "another column of a join": Change(MEANING, ("join",), _other(kept=("lk", "lv", "rw"))),
    "another aggregate above": Change(
        MEANING, ("above a join", "chain"), _other(outer=("sum(y + 1)", "count(*)"))
    ),
    # other words
    "another name": Change(SPELLING, _CALLS, lambda q: replace(q, names=("p", "q", "r"))),
    "turned around": Change(
        SPELLING, _ALL, lambda q: replace(q, x=" + ".join(q.x.split(" + ")[::-1]))
    ),
    "in another case": Change(SPELLING, _CALLS, _first(str.upper)),
    "through a column": Change(SPELLING, _ALL, lambda q: replace(q, below=q.x, x="b")),
    "columns in another order": Change(SPELLING, _ALL, _other(swap=True)),
    "another unit": Change(
        SPELLING, ("window",), lambda q: replace(q, window=("20000 milliseconds", *q.window[1:]))
    ),
    "between": Change(
        SPELLING, _JOINS, _other(near="rat between lat and lat + interval 5 seconds")
    ),
    "a turned equality": Change(SPELLING, _JOINS, _other(on="rk = lk")),
    # what comes in, and what is made of results
    "a filter below": Change(INPUT, _ALL, _other(where="v > 5")),
    "a watermark that is later": Change(INPUT, (*_TIMED, *_JOINS), _other(delay="8 seconds")),
    "another option of the source": Change(INPUT, _ALL, _other(files="500")),
    "a column above": Change(INPUT, _ALL, _other(above="1 + 1")),
}


@dataclass(frozen=True)
class Case:
    """A query, a change of it, and what the start has to do."""

    base: str
    change: str

    @property
    def changed(self) -> Query:
        return CHANGES[self.change].apply(BASES[self.base])

    @property
    def goes_on(self) -> bool:
        """Whether the state means the same."""
        return CHANGES[self.change].kind != MEANING

    def __str__(self) -> str:
        return f"{self.base}, {self.change}"


def pairs() -> Iterator[Case]:
    """Yield all pairs of a query and a change that fits and changes something."""
    for base, query in BASES.items():
        for name, change in CHANGES.items():
            case = Case(base, name)
            within = query.within and name == "a watermark that is later"
            if query.kind in change.fits and case.changed != query and not within:
                yield case


def drawn() -> list[Case]:
    """Return the cases of the thorough run."""
    return random.Random(SEED).sample(list(pairs()), CASES)
