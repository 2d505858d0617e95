"""Forms met in public programs: bars of trades, monitors, gold tables, courses' exercises."""

from __future__ import annotations

from forms import append, complete, events, sql, update
from grammar_data import Given
from pyspark.sql import DataFrame
from pyspark.sql import functions as F


def bars(g: Given) -> DataFrame:
    """Open, high, low, close, volume and weighted mean of a minute."""
    price, size = F.col("value").cast("decimal(18,8)"), F.col("id").cast("decimal(18,8)")
    trades = events(g).withColumn("price", price).withColumn("size", size + 1)
    when = F.struct("ts", "id", "value")
    return (
        trades.groupBy(F.window("ts", "1 minute"), F.col("device").alias("symbol"))
        .agg(
            F.min_by("price", when).alias("open"),
            F.max("price").alias("high"),
            F.min("price").alias("low"),
            F.max_by("price", when).alias("close"),
            F.sum("size").alias("volume"),
            (F.sum(F.col("price") * F.col("size")) / F.sum("size")).alias("vwap"),
            F.count("*").alias("trades"),
        )
        .select("symbol", F.col("window.start").alias("bar_start"), "*")
        .drop("window")
    )


def monitored(g: Given) -> DataFrame:
    """Figures as text, the window's ends as columns before them."""
    seen = (
        events(g)
        .groupBy(F.window(F.col("ts"), "1 minute", "30 seconds"))
        .agg(F.min("value").alias("low"), F.stddev("value").alias("spread"), F.count("value"))
        .withColumn("window_start", F.col("window.start").cast("string"))
        .withColumn("window_end", F.col("window.end").cast("string"))
        .drop("window")
    )
    for name in ("low", "spread"):
        seen = seen.withColumn(name, F.format_number(F.col(name), 4))
    return seen.select("window_start", "window_end", "low", "spread", "count(value)")


def rates(g: Given) -> DataFrame:
    """Conditional counts and sums, and what follows from them; names that begin with a digit."""
    buys = F.col("action") == "buy"
    return (
        events(g)
        .groupby("device")
        .agg(
            F.sum(F.when(buys, F.col("value")).otherwise(0)).alias("1_revenue"),
            F.count(F.when(buys, 1)).alias("2_buys"),
            F.round(
                F.count("id").cast("double") / F.approx_count_distinct("user").cast("double"), 1
            ).alias("3_each"),
            F.round(F.avg("value") * 0.4 + F.avg("id") * 0.6, 1).alias("4_score"),
        )
        .withColumn("rate", F.col("2_buys") / F.col("3_each"))
        .withColumn("status", F.when(F.col("4_score") > 50, " HIGH").otherwise("ok"))
    )


def three_windows(g: Given) -> DataFrame:
    first = events(g).groupBy(F.window("ts", "20 seconds"), "user").agg(F.count("*").alias("n"))
    second = first.groupBy(F.window(F.window_time("window"), "1 minute"), "user").agg(
        F.max("n").alias("peak"), F.sum("n").alias("n")
    )
    return second.groupBy(F.window(F.window_time(F.col("window")), "2 minutes")).agg(
        F.sum("n").alias("n"), F.sort_array(F.collect_set("user")).alias("who"), F.max("peak")
    )


FOUND = {
    "bars of trades": append(bars),
    "figures as text": update(monitored, "window_start"),
    "rates and names that begin with a digit": complete(rates),
    "three windows in a chain": append(three_windows),
    "hopping windows with an offset": append(
        lambda g: (
            events(g)
            .groupBy(F.window("ts", "30 seconds", "10 seconds", "5 seconds").alias("w"), "action")
            .agg(F.sum("value").alias("v"))
            .select("w.start", "action", "v")
        )
    ),
    "pivot with values": complete(
        lambda g: (
            g.events.groupBy("user", F.window("ts", "1 minute"))
            .pivot("action", ["buy", "view", "other"])
            .agg(F.count("id").alias("n"), F.max("ts").alias("last"))
        )
    ),
    "grouping sets with having": complete(
        sql(
            "SELECT user, device, sum(id) AS s, count(*) AS n, grouping(user) AS g FROM events "
            "GROUP BY GROUPING SETS ((user), (user, device), ()) HAVING count(*) > 1"
        )
    ),
    "structs and arrays as keys": complete(
        lambda g: g.events.groupBy(F.struct("user", "device").alias("who"), "tags").agg(
            F.min(F.struct("ts", "id")).alias("first"), F.max("user").alias("again")
        )
    ),
    "a star beside the window's ends": append(
        lambda g: (
            events(g)
            .groupBy(F.window("ts", "20 seconds"), *[F.col(c) for c in ["user", "device"]])
            .agg(F.count("*").alias("n"))
            .select(F.col("window.start").alias("from"), F.col("window.end").alias("to"), "*")
            .drop("window")
        )
    ),
    "a count in a filter above it": complete(
        lambda g: (
            events(g)
            .groupBy((F.window("ts", "60 seconds", "30 seconds")), "device")
            .agg(F.count("device").alias("n"))
            .filter(F.count("device") > 2)
            .orderBy(["window", "n"], ascending=[1, 0])
        )
    ),
    "a table made of values, joined by a query with a name": complete(
        sql(
            "WITH even AS (SELECT user, id FROM events WHERE id % 2 = 0) "
            "SELECT even.user, max(id) AS top, of.n FROM even JOIN (SELECT 'ann' AS user, 7 AS n "
            "UNION ALL SELECT 'bob', 8) of ON even.user = of.user GROUP BY even.user, of.n "
            "ORDER BY top DESC LIMIT 5"
        )
    ),
    "sessions in SQL": append(
        sql(
            "SELECT session_window.start AS s, session_window.end AS e, user, count(1) AS n "
            "FROM events GROUP BY session_window(ts, '5 seconds'), user"
        )
    ),
}
