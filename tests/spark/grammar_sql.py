"""Generated queries that are one text of SQL, and those without an operator."""

from __future__ import annotations

from grammar import Draw, Query, events
from grammar_data import Given
from grammar_operators import calls_of
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def stateless(draw: Draw) -> Query:
    stream = events(draw, watermark=draw.often(0.3), most=3)
    has = {"id": "number", "user": "text", "value": "number", "device": "text"}
    mode = draw.one("mode", ["append", "update"])
    return Query(lambda g: stream.build(g).select(*has), mode, has, text=f"{stream.text} | select")


def limited(draw: Draw) -> Query:
    stream = events(draw, watermark=False, most=0)
    n = draw.rng.randint(1, 50)
    return Query(
        lambda g: stream.build(g).limit(n).select(F.lit(1).alias("one")),
        "append",
        {"one": "number"},
        text=f"limit {n}",
    )


def sql(draw: Draw) -> Query:
    """Return a query that is one text over temporary views."""
    stream = events(draw, most=1)
    what = draw.one(
        "sql",
        [
            "window",
            "hop",
            "session",
            "keys",
            "with",
            "join static",
            "distinct",
            "join",
            "lateral",
            "subquery",
            "union",
            "case",
        ],
    )
    calls, exact = calls_of(draw, stream, 3)
    listed = ", ".join(f"{x} AS {name}" for name, x, _ in calls)
    kinds = {name: kind for name, _, kind in calls}
    window = {"window": "window"}
    texts: dict[str, tuple[str, dict[str, str], list[str], str]] = {
        "window": (
            f"SELECT window(ts, '30 seconds') AS window, device, {listed} FROM e WHERE device <> 'd3' "
            "GROUP BY window(ts, '30 seconds'), device",
            window | {"device": "text"} | kinds,
            ["window", "device"],
            "any",
        ),
        "hop": (
            f"SELECT window.start AS start, window.end AS end, {listed} FROM e "
            "GROUP BY window(ts, '1 minute', '30 seconds') HAVING count(*) > 0",
            {"start": "time", "end": "time"} | kinds,
            ["start"],
            "any",
        ),
        "session": (
            f"SELECT user, session_window.start AS start, {listed} FROM e "
            "GROUP BY session_window(ts, '5 seconds'), user",
            {"user": "text", "start": "time"} | kinds,
            ["user", "start"],
            "append complete",
        ),
        "keys": (
            f"SELECT user, action, {listed} FROM e GROUP BY user, action",
            {"user": "text", "action": "text"} | kinds,
            ["user", "action"],
            "update complete",
        ),
        "with": (
            f"WITH bought AS (SELECT * FROM e WHERE action = 'buy') "
            f"SELECT device, {listed} FROM bought GROUP BY ALL",
            {"device": "text"} | kinds,
            ["device"],
            "update complete",
        ),
        "join static": (
            f"SELECT u.tier, {listed} FROM e LEFT JOIN u ON e.user = u.name GROUP BY u.tier",
            {"tier": "text"} | kinds,
            ["tier"],
            "update complete",
        ),
        "distinct": (
            "SELECT DISTINCT user, action FROM e",
            {"user": "text", "action": "text"},
            ["user", "action"],
            "update complete",
        ),
        "join": (
            "SELECT e.id, c.click_id, e.user FROM e JOIN c ON e.user = c.click_user "
            "AND c.click_ts >= e.ts AND c.click_ts <= e.ts + interval 10 seconds WHERE c.ad < 4",
            {"id": "number", "click_id": "number", "user": "text"},
            [],
            "append",
        ),
        "lateral": (
            f"SELECT tag, {listed} FROM e "
            "LATERAL VIEW explode(array(device, action)) x AS tag GROUP BY tag",
            {"tag": "text"} | kinds,
            ["tag"],
            "update complete",
        ),
        "subquery": (
            f"SELECT user, {listed} FROM "
            "(SELECT * FROM e WHERE device IN (SELECT device FROM d)) GROUP BY user",
            {"user": "text"} | kinds,
            ["user"],
            "update complete",
        ),
        "union": (
            "SELECT who, count(*) AS n FROM (SELECT user AS who FROM e "
            "UNION ALL SELECT click_user AS who FROM c) GROUP BY who",
            {"who": "text", "n": "number"},
            ["who"],
            "update complete",
        ),
        "case": (
            "SELECT device, sum(CASE WHEN value > 50 THEN 1 ELSE 0 END) AS high, "
            "round(avg(value), 1) AS mean, max(ts) AS newest FROM e GROUP BY device HAVING count(1) > 0",
            {"device": "text", "high": "number", "mean": "number", "newest": "time"},
            ["device"],
            "update complete",
        ),
    }
    text, has, keys, modes = texts[what]
    mode = draw.one("mode", ["append", "update", "complete"] if modes == "any" else modes.split())

    def build(g: Given) -> DataFrame:
        stream.build(g).createOrReplaceTempView("e")
        g.clicks.withWatermark("click_ts", "10 seconds").createOrReplaceTempView("c")
        g.users.createOrReplaceTempView("u")
        g.devices.createOrReplaceTempView("d")
        return g.spark.sql(text)

    due = mode == "append" and what != "join"
    exact = exact or not set(kinds) <= set(has)
    return Query(build, mode, has, keys, due, exact, text=f"{stream.text} | SQL {text}")
