"""The operators of generated queries: aggregates, duplicates, joins, state by functions, and chains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from grammar import Build, Draw, Query, Stream, events, needs
from grammar_data import Given
from pyspark.sql import Column, DataFrame, GroupedData
from pyspark.sql import functions as F

KEYS: dict[str, tuple[str, str]] = {
    "user": ("user", "text"),
    "device": ("device", "text"),
    "action": ("action", "text"),
    "boolean": ("ok", "other"),
    "date": ("born", "other"),
    "double": ("value", "number"),
    "decimal": ("amount", "number"),
    "number": ("id % 5", "number"),
    "function": ("upper(device)", "text"),
    "case": ("case when value > 50 then 'high' when value > 10 then 'mid' else 'low' end", "text"),
    "struct": ("place", "other"),
    "field": ("place.city", "text"),
    "made struct": ("struct(user, device)", "other"),
    "array": ("tags", "array"),
    "hour": ("hour(ts)", "number"),
    "day": ("to_date(ts)", "other"),
    "minute": ("date_trunc('minute', ts)", "time"),
    "without zone": ("cast(date_trunc('minute', ts) as timestamp_ntz)", "other"),
    "map": ("attrs", "other"),
    "of a map": ("attrs['k']", "text"),
    "hash": ("abs(hash(user)) % 4", "number"),
}

AGGREGATES: dict[str, tuple[str, str]] = {
    "count": ("count(value)", "number"),
    "count if": ("count_if(value > 20)", "number"),
    "sum": ("sum(value)", "number"),
    "sum of decimals": ("sum(amount)", "number"),
    "sum of case": ("sum(case when action = 'buy' then 1 else 0 end)", "number"),
    "avg": ("avg(value)", "number"),
    "avg of decimals": ("avg(amount)", "number"),
    "min": ("min(value)", "number"),
    "max": ("max(amount)", "number"),
    "max of text": ("max(user)", "text"),
    "max of time": ("max(ts)", "time"),
    "max of struct": ("max(struct(id, action))", "other"),
    "max by": ("max_by(action, id)", "text"),
    "min by": ("min_by(tags, id)", "array"),
    "range": ("max(value) - min(value)", "number"),
    "ratio": ("sum(value) / count(*)", "number"),
    "filtered": ("sum(value) filter (where action = 'buy')", "number"),
    "any": ("bool_or(ok)", "other"),
    "every": ("every(ok)", "other"),
    "bits": ("bit_xor(id)", "number"),
    "distinct count": ("count(distinct user)", "number"),
    "distinct sum": ("sum(distinct id)", "number"),
    "distinct pair": ("count(distinct user, device)", "number"),
    "approximate count": ("approx_count_distinct(user)", "number"),
    "approximate count, narrow": ("approx_count_distinct(id, 0.02)", "number"),
    "sorted set": ("sort_array(collect_set(action))", "array"),
    "sorted list": ("sort_array(collect_list(id))", "array"),
    "size of set": ("size(collect_set(device))", "number"),
    "joined list": ("array_join(array_sort(collect_set(user)), ',')", "text"),
    "percentile": ("percentile(value, 0.5)", "number"),
    "median": ("median(id)", "number"),
    "approximate percentile": ("percentile_approx(value, array(0.5, 0.9))", "array"),
    "mode": ("mode(action, true)", "text"),
    "listagg": ("listagg(device, ',') within group (order by device)", "text"),
}
"""Two right answers of these are equal."""

LOOSE: dict[str, tuple[str, str]] = {
    "stddev": ("stddev(value)", "number"),
    "variance": ("var_pop(value)", "number"),
    "correlation": ("corr(value, id)", "number"),
    "covariance": ("covar_samp(value, id)", "number"),
    "skewness": ("skewness(value)", "number"),
    "kurtosis": ("kurtosis(value)", "number"),
    "slope": ("regr_slope(value, id)", "number"),
    "list": ("collect_list(action)", "array"),
    "set": ("collect_set(user)", "array"),
    "list of structs": ("collect_list(struct(id, value))", "array"),
    "array_agg": ("array_agg(device)", "array"),
}
"""Of these last digits or an order are left to chance."""

WINDOWS: dict[str, tuple[str, ...]] = {
    "tumbling": ("30 seconds",),
    "a minute": ("1 minute",),
    "sliding": ("1 minute", "20 seconds"),
    "sliding unevenly": ("50 seconds", "20 seconds"),
    "with an offset": ("1 minute", "1 minute", "15 seconds"),
    "sliding with an offset": ("40 seconds", "20 seconds", "5 seconds"),
}
GAPS: dict[str, Callable[[], Column | str]] = {
    "fixed": lambda: "4 seconds",
    "by record": lambda: F.when(F.col("device") == "d1", "2 seconds").otherwise("6 seconds"),
}


def _usable(table: Mapping[str, tuple[str, str]], columns: set[str]) -> dict[str, tuple[str, str]]:
    return {name: found for name, found in table.items() if needs(found[0]) <= columns}


def _keys(draw: Draw, stream: Stream, least: int, most: int) -> list[tuple[str, str, str]]:
    """Return grouping keys: name, expression, kind."""
    found = draw.some("key", _usable(KEYS, stream.columns), least, most)
    plain = {"user", "device", "action", "ok", "born", "value", "amount", "place", "tags", "attrs"}
    return [(x if x in plain else f"k{i}", x, kind) for i, (x, kind) in enumerate(found)]


def calls_of(draw: Draw, stream: Stream, most: int = 4) -> tuple[list[tuple[str, str, str]], bool]:
    """Return aggregates (name, expression, kind), and whether they are exact."""
    found = draw.some("aggregate", _usable(AGGREGATES, stream.columns), 1, most)
    loose = draw.some("aggregate", _usable(LOOSE, stream.columns), 1, 2) if draw.often(0.3) else []
    made = [(f"a{i}", x, kind) for i, (x, kind) in enumerate([*found, *loose])]
    return [("n", "count(*)", "number"), *made], not loose


def _grouping(keys: list[tuple[str, str, str]]) -> list[Column]:
    return [F.col(x) if name == x else F.expr(x).alias(name) for name, x, _ in keys]


_SHORT: dict[str, Any] = {
    "count": (lambda grouped: grouped.count(), {"count": "number"}),
    "sum": (
        lambda grouped: grouped.sum("value", "id"),
        {"sum(value)": "number", "sum(id)": "number"},
    ),
    "avg": (lambda grouped: grouped.avg("value"), {"avg(value)": "number"}),
    "dictionary": (
        lambda grouped: grouped.agg({"value": "max", "id": "sum", "*": "count"}),
        {"max(value)": "number", "sum(id)": "number", "count(1)": "number"},
    ),
    "functions": (
        lambda grouped: grouped.agg(
            F.count("*").alias("n"), F.sum("value"), F.approx_count_distinct("user").alias("users")
        ),
        {"n": "number", "sum(value)": "number", "users": "number"},
    ),
}
"""Forms of aggregates that have no list of expressions."""


def _time(draw: Draw, cut: str) -> tuple[Callable[[], list[Column]], str]:
    """Return what makes the window to group by, if there is one, and what it is."""
    if cut in ("window", "sliding"):
        window, renamed = draw.one("window", WINDOWS), draw.often(0.2)

        def made() -> list[Column]:
            found = F.window("ts", *window)
            return [found.alias("window") if renamed else found]

        return made, f"window {window}"
    if cut == "session":
        gap = draw.one("gap", GAPS)
        return lambda: [F.session_window("ts", gap())], "session"
    return list, cut


def aggregate(draw: Draw, mode: str | None = None) -> Query:
    """Return a grouping by keys and a window, or by one of them."""
    cut = draw.one("time", ["window", "window", "sliding", "session", "none", "event time"])
    stream = events(draw, watermark=cut != "none" or draw.often(0.3))
    modes = {"session": ("append", "complete"), "none": ("update", "complete")}.get(
        cut, ("append", "update", "complete")
    )
    mode = mode or draw.one("mode", modes)
    if mode not in modes:
        return aggregate(draw, mode)
    keys = _keys(draw, stream, 0 if cut != "none" else 1, 2)
    if cut == "event time":
        keys = [("ts", "ts", "time"), *keys]
    time, said = _time(draw, cut)
    named = {"window": "window", "sliding": "window", "session": "session_window"}.get(cut)
    has = {named: "window"} if named else {}
    has |= {name: kind for name, _, kind in keys}

    def grouped(g: Given) -> GroupedData:
        return stream.build(g).groupBy(*time(), *_grouping(keys))

    form = draw.one("form", ["expressions", "expressions", *_SHORT])
    exact = True
    if form == "expressions":
        calls, exact = calls_of(draw, stream)
        has |= {name: kind for name, _, kind in calls}

        def build(g: Given) -> DataFrame:
            made = [F.expr(x).alias(name) for name, x, _ in calls]
            return grouped(g).agg(*made)

        text = f"{[x for _, x, _ in calls]}"
    else:
        short, columns = _SHORT[form]
        has |= columns

        def build(g: Given) -> DataFrame:
            found: DataFrame = short(grouped(g))
            return found

        text = form
    text = f"{stream.text} | by {said} {[x for _, x, _ in keys]}: {text}"
    key_names = [*([named] if named else []), *(name for name, _, _ in keys)]
    return Query(build, mode, has, key_names, mode == "append", exact, text=text)


def grouping_sets(draw: Draw) -> Query:
    """Return a rollup, a cube, or SQL's grouping sets."""
    stream = events(draw, watermark=draw.often(0.5))
    calls, exact = calls_of(draw, stream, 2)
    kind = draw.one("sets", ["rollup", "cube", "grouping sets"])
    mode = draw.one("mode", ["update", "complete"])

    def build(g: Given) -> DataFrame:
        frame = stream.build(g)
        made = [F.expr(x).alias(name) for name, x, _ in calls]
        if kind != "grouping sets":
            grouped = getattr(frame, kind)("user", "device")
            return grouped.agg(F.grouping_id().alias("which"), *made)
        frame.createOrReplaceTempView("sets")
        listed = ", ".join(f"{x} AS {name}" for name, x, _ in calls)
        return g.spark.sql(
            f"SELECT user, device, grouping_id() AS which, {listed} FROM sets "
            "GROUP BY user, device GROUPING SETS ((user, device), (device), ())"
        )

    has = {"user": "text", "device": "text", "which": "number"} | {n: k for n, _, k in calls}
    text = f"{stream.text} | {kind}: {[x for _, x, _ in calls]}"
    return Query(build, mode, has, ["user", "device", "which"], False, exact, text=text)


def pivot(draw: Draw) -> Query:
    """Return a pivot over given values.

    Of numbers Spark makes one aggregate over another, which it takes by windows in append mode only.
    """
    call, kind = draw.one("pivot", _PIVOTED)
    timed = kind == "number" or draw.often(0.5)
    stream = events(draw, watermark=timed)
    modes = ["append", "update", "complete"] if timed else ["update", "complete"]
    mode = "append" if kind == "number" else draw.one("mode", modes)

    def build(g: Given) -> DataFrame:
        by = [F.window("ts", "1 minute")] if timed else []
        grouped = stream.build(g).groupBy(*by, "device").pivot("action", ["buy", "view", "never"])
        return grouped.agg(F.expr(call))

    has = {"window": "window"} if timed else {}
    keys = [*has, "device"]
    has |= {"device": "text"} | dict.fromkeys(["buy", "view", "never"], kind)
    text = f"{stream.text} | pivot {call} {timed=}"
    return Query(build, mode, has, keys, mode == "append", text=text)


_PIVOTED = {
    "sum": ("sum(value)", "number"),
    "count": ("count(*)", "number"),
    "distinct": ("count(distinct id)", "number"),
    "set": ("sort_array(collect_set(user))", "array"),
    "text": ("max(user)", "text"),
    "struct": ("max(struct(id, user))", "other"),
}
"""What is pivoted, and what it comes to."""


def duplicates(draw: Draw, *, mode: str | None = None) -> Query:
    """Return a stream without duplicates."""
    mode = mode or draw.one("mode", ["append", "update"])
    stream = events(draw, most=1)
    how = draw.one(
        "duplicates",
        ["by id", "by id and time", "within watermark", "distinct", "by columns", "by struct"],
    )

    def build(g: Given) -> DataFrame:
        frame = stream.build(g)
        if how == "by id":
            return frame.dropDuplicates(["id"]).select("id", "user", "value", "ts")
        if how == "by id and time":
            return frame.drop_duplicates(["id", "ts"]).select("id", "user", "value", "ts")
        if how == "within watermark":
            # a batch has no watermark
            found = (
                frame.dropDuplicatesWithinWatermark(["id"])
                if g.stream
                else frame.dropDuplicates(["id"])
            )
            return found.select("id", "user", "value", "ts")
        if how == "distinct":
            return frame.select("user", "device", F.to_date("ts").alias("day")).distinct()
        if how == "by struct":
            return frame.select(
                F.struct("user", "action").alias("both"), F.array("device").alias("all")
            ).dropDuplicates()
        return frame.dropDuplicates(["user", "action"]).select("user", "action")

    has = {"id": "number", "user": "text", "value": "number", "ts": "time"}
    if how == "distinct":
        has = {"user": "text", "device": "text", "day": "other"}
    elif how == "by columns":
        has = {"user": "text", "action": "text"}
    elif how == "by struct":
        has = {"both": "other", "all": "array"}
    return Query(build, mode, has, text=f"{stream.text} | duplicates {how}")


JOINS = ["inner", "left", "right", "full", "left_semi"]
MORE = {
    "nothing": "",
    # what closes everything passes it: Spark filters below the watermark, which then stood still
    "one side": " AND action <> 'buy' AND ad > 0",
    "comparison": " AND id < click_id",
    "sum": " AND id + ad > 20",
    "or": " AND (value > cost OR action = 'buy')",
    "not equal": " AND id % 3 <> click_id % 3",
    "like": " AND concat(device, ad) LIKE '%1'",
}


def clicks(draw: Draw) -> Build:
    delay = draw.one("delay", ["2 seconds", "10 seconds", "1 minute"])
    return lambda g: g.clicks.withWatermark("click_ts", delay)


def join(draw: Draw, *, how: str | None = None) -> Query:
    """Return a join of two streams with a range of times, or on a window."""
    left, right = events(draw, most=1), clicks(draw)
    how = how or draw.one("join", JOINS)
    on = draw.one("on", ["range", "range", "window", "using"])
    more = draw.one("condition", MORE)
    kept = ["id", "ts", "user", "action", "value", "device"]
    reach = draw.rng.choice([5, 20, 40])
    within = f"BETWEEN ts - INTERVAL 3 SECONDS AND ts + INTERVAL {reach} SECONDS"
    match = f"user = click_user AND click_ts {within}"

    def build(g: Given) -> DataFrame:
        a = left.build(g).select(*kept)
        b = right(g)
        if on == "range":
            return a.join(b, F.expr(match + more), how)
        if on == "using":
            # as people name both sides' keys alike
            b = b.withColumnRenamed("click_user", "user").withColumnRenamed("click_ts", "when")
            near = F.expr(f"when {within}" + more)
            return (
                a.alias("a")
                .join(b.alias("b"), (F.col("a.user") == F.col("b.user")) & near, how)
                .drop(*([] if how == "left_semi" else [F.col("b.user")]))
            )
        a = a.withColumn("w", F.window("ts", "20 seconds"))
        b = b.withColumn("cw", F.window("click_ts", "20 seconds"))
        return a.join(b, F.expr("w = cw AND user = click_user" + more), how)

    has = {
        "id": "number",
        "ts": "time",
        "user": "text",
        "action": "text",
        "value": "number",
        "device": "text",
    }
    if how != "left_semi":
        has |= {"click_id": "number", "ad": "number", "cost": "number"}
    due = how in ("left", "right", "full")
    text = f"{left.text} | {how} join {on} {reach}{more}"
    mode = (
        draw.one("mode", ["append", "append", "update"])
        if how in ("inner", "left_semi")
        else "append"
    )
    return Query(build, mode, has, due=due, text=text)
