"""What stands above the operators of generated queries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grammar import Draw, Query, Step, halved, same_batches, same_frame, same_frames, shout
from grammar_data import Given
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def _flat(frame: DataFrame, window: str) -> DataFrame:
    rest = [F.col(f"`{name}`") for name in frame.columns if name != window]
    return frame.select(
        F.col(f"`{window}`.start").alias("start"), F.col(f"`{window}`.end").alias("end"), *rest
    )


def above(draw: Draw, query: Query, *, most: int = 2) -> Query:
    """Return a query with something above it that Spark takes in its mode."""
    for _ in range(draw.rng.randint(0, most)):
        higher = _one_above(draw, query)
        if not (higher.stream and query.batch):
            query = higher
    if query.mode == "complete" and query.exact and draw.often(0.4):
        query = _sorted(draw, query)
    return query


def _sorted(draw: Draw, query: Query) -> Query:
    names = [f"`{name}`" for name in query.of("number", "text", "window", "time")]
    draw.rng.shuffle(names)
    if len(names) < len(query.has):
        return query
    up = draw.often(0.5)

    def ordered(frame: DataFrame, g: Given) -> DataFrame:
        return frame.orderBy(*[F.col(n).asc() if up else F.col(n).desc() for n in names])

    if draw.one("above", ["sort", "sort and limit"]) == "sort":
        return query.then(ordered, f"sort {names}")
    return query.then(lambda f, g: ordered(f, g).limit(4), f"sort {names} limit 4")


def _one_above(draw: Draw, query: Query) -> Query:
    numbers, texts, windows = query.of("number"), query.of("text"), query.of("window")
    number = f"`{draw.rng.choice(numbers)}`" if numbers else ""
    possible = ["rename", "alias", "repartition", "coalesce", "observe", "literal"]
    if number:
        possible += ["having", "withColumn", "when", "explode", "round", "pandas udf"]
    if windows:
        possible += ["flat window"]
    if texts:
        possible += ["udf", "concat", "drop text"]
        if {"name", "tier", "level"}.isdisjoint(query.has):
            possible += ["static join", "left static join", "anti static join", "in list"]
    if query.exact:
        possible.append("to_json")
    if not set(query.has.values()) - {"number", "text"}:
        possible += ["mapInPandas", "mapInArrow"]
        if query.mode == "complete" and texts:
            possible.append("applyInPandas")
    what = draw.one("above", ABOVE, *possible)
    text = f"`{draw.rng.choice(texts)}`" if texts else ""
    return what(query, number, text, windows[0] if windows else "")


def _replaces(query: Query) -> bool:
    """Return whether rows replace others, so that only Spark's stream says which come out."""
    return query.stream or (query.mode == "update" and bool(query.keys))


def _moves(query: Query, text: str) -> bool:
    """Return whether a column that may change from batch to batch decides what comes out."""
    return query.stream or (_replaces(query) and text.strip("`") not in query.keys)


def _having(query: Query, number: str, text: str, window: str) -> Query:
    stream = _replaces(query)
    return query.then(lambda f, g: f.where(F.col(number) > 2), "having", stream=stream)


def _with(name: str, kind: str, make: Callable[[Any, str], Any]) -> Callable[..., Query]:
    def changed(query: Query, number: str, text: str, window: str) -> Query:
        has = {**query.has, name: kind}
        return query.then(
            lambda f, g: f.withColumn(name, make(F.col(number or "0"), text)), name, has=has
        )

    return changed


def _flattened(query: Query, number: str, text: str, window: str) -> Query:
    has = {"start": "time", "end": "time"} | {n: k for n, k in query.has.items() if n != window}
    keys = [*({"start"} if window in query.keys else ()), *(k for k in query.keys if k != window)]
    if {"start", "end"} & set(query.has):
        return query
    return query.then(lambda f, g: _flat(f, window), "flat window", has=has, keys=keys)


def _exploded(query: Query, number: str, text: str, window: str) -> Query:
    def step(frame: DataFrame, g: Given) -> DataFrame:
        return frame.withColumn("part", F.explode(F.expr(f"array({number}, {number} + 1)")))

    stream = _replaces(query)
    return query.then(step, "explode", has={**query.has, "part": "number"}, stream=stream)


def _joined(how: str) -> Callable[..., Query]:
    def changed(query: Query, number: str, text: str, window: str) -> Query:
        def step(frame: DataFrame, g: Given) -> DataFrame:
            return frame.join(g.users, F.col(text) == F.col("name"), how)

        more = {} if how == "left_anti" else {"name": "text", "tier": "text", "level": "number"}
        has, stream = {**query.has, **more}, _moves(query, text)
        return query.then(step, f"{how} static join", has=has, stream=stream)

    return changed


def _json(query: Query, number: str, text: str, window: str) -> Query:
    def step(frame: DataFrame, g: Given) -> DataFrame:
        return frame.select(F.lit("k").alias("key"), F.to_json(F.struct("*")).alias("value"))

    stream = _replaces(query)
    return query.then(
        step, "to_json", has={"key": "text", "value": "other"}, keys=[], stream=stream
    )


def _dropped(query: Query, number: str, text: str, window: str) -> Query:
    name = text.strip("`")
    if len(query.has) < 2:
        return query
    has = {n: k for n, k in query.has.items() if n != name}
    stream = query.stream or (query.mode == "update" and name in query.keys)
    return query.then(lambda f, g: f.drop(name), f"drop {name}", has=has, stream=stream)


def _renamed(query: Query, number: str, text: str, window: str) -> Query:
    name = next(iter(query.has))
    if "renamed" in query.has:
        return query
    has = {("renamed" if n == name else n): k for n, k in query.has.items()}
    keys = ["renamed" if k == name else k for k in query.keys]
    return query.then(
        lambda f, g: f.withColumnRenamed(name, "renamed"), "rename", has=has, keys=keys
    )


def _grouped(query: Query, number: str, text: str, window: str) -> Query:
    def step(frame: DataFrame, g: Given) -> DataFrame:
        return frame.groupBy(text).applyInPandas(same_frame, frame.schema)

    return query.then(step, "applyInPandas")


def _observed(query: Query, number: str, text: str, window: str) -> Query:
    # two of one name Spark refuses
    name = f"out {query.text.count('observe')}"
    return query.then(lambda f, g: f.observe(name, F.count("*").alias("n")), "observe")


def _same(step: Step, text: str) -> Callable[..., Query]:
    return lambda query, number, words, window: query.then(step, text)


ABOVE: dict[str, Callable[..., Query]] = {
    "having": _having,
    "withColumn": _with("more", "number", lambda n, t: n * 2 + 1),
    "when": _with("level_of", "text", lambda n, t: F.when(n > 10, "high").otherwise("low")),
    "round": _with("whole", "number", lambda n, t: F.round(n, 0)),
    "pandas udf": _with("half", "number", lambda n, t: halved(n.cast("double"))),
    "udf": _with("loud", "text", lambda n, t: shout(t)),
    "concat": _with("said", "text", lambda n, t: F.concat_ws("-", F.col(t), F.lit("x"))),
    "literal": _with("one", "number", lambda n, t: F.lit(1)),
    "flat window": _flattened,
    "explode": _exploded,
    "static join": _joined("inner"),
    "left static join": _joined("left"),
    "anti static join": _joined("left_anti"),
    "in list": lambda q, n, t, w: q.then(
        lambda f, g: f.where(F.col(t).isin("ann", "bob", "d1", "buy")),
        "in list",
        stream=_moves(q, t),
    ),
    "to_json": _json,
    "drop text": _dropped,
    "rename": _renamed,
    "alias": _same(lambda f, g: f.alias("x").select("x.*"), "alias"),
    "repartition": _same(lambda f, g: f.repartition(2), "repartition"),
    "coalesce": _same(lambda f, g: f.coalesce(1), "coalesce"),
    "observe": _observed,
    "mapInPandas": _same(lambda f, g: f.mapInPandas(same_frames, f.schema), "mapInPandas"),
    "applyInPandas": _grouped,
    "mapInArrow": _same(lambda f, g: f.mapInArrow(same_batches, f.schema), "mapInArrow"),
}
