"""Forms of SQL, and of joins."""

from __future__ import annotations

from forms import append, at_once, clicks, complete, events, sql
from grammar_data import Given
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.functions import col

# -- SQL --------------------------------------------------------------------------------------------


def bought(g: Given) -> DataFrame:
    found: DataFrame = g.spark.sql(
        "SELECT user, count(*) AS n FROM {e} WHERE action = :what GROUP BY 1",
        args={"what": "buy"},
        e=events(g),
    )
    return found


def registered(g: Given) -> DataFrame:
    g.spark.udf.register("shout", lambda s: s and s.upper() + "!", "string")
    events(g).createOrReplaceTempView("events")
    return g.spark.sql(
        "SELECT shout(user) AS who, sum(value) AS v FROM events GROUP BY shout(user)"
    )


def temporary_function(g: Given) -> DataFrame:
    g.spark.sql("CREATE OR REPLACE TEMPORARY FUNCTION half(x DOUBLE) RETURNS DOUBLE RETURN x / 2")
    events(g).createOrReplaceTempView("events")
    return g.spark.sql("SELECT device, max(half(value)) AS h FROM events GROUP BY device")


def views_over_views(g: Given) -> DataFrame:
    events(g).createOrReplaceTempView("raw")
    g.spark.sql("CREATE OR REPLACE TEMP VIEW cleaned AS SELECT *, upper(action) AS a FROM raw")
    g.spark.sql(
        "CREATE OR REPLACE TEMP VIEW counted AS SELECT window(ts, '30 seconds') AS w, a, "
        "count(*) AS n FROM cleaned GROUP BY window(ts, '30 seconds'), a"
    )
    return g.spark.table("counted").where("n > 1").select("w.*", "a", "n")


SQL = {
    "parameters and frames": complete(bought),
    "a registered function": complete(registered),
    "a temporary function": complete(temporary_function),
    "views over views": append(views_over_views),
    "pipes": complete(
        sql(
            "FROM events |> WHERE value > 10 |> AGGREGATE count(*) AS n, avg(value) AS v GROUP BY user"
        )
    ),
    "ordinals": complete(
        sql(
            "SELECT user, device, count(1) FROM events GROUP BY 1, 2 HAVING count(1) > 1 ORDER BY 1, 2"
        )
    ),
    "window and group by all": append(
        sql("SELECT window(ts, '20 seconds') AS w, user, sum(value) AS v FROM events GROUP BY ALL")
    ),
    "window in a subquery": append(
        sql(
            "SELECT w.start, max(n) AS most FROM (SELECT window(ts, '20 seconds') AS w, user, "
            "count(*) AS n FROM events GROUP BY 1, 2) GROUP BY w"
        )
    ),
    "left join of ranges": append(
        sql(
            """
            SELECT e.id, e.user, c.ad
            FROM events e LEFT OUTER JOIN clicks c
              ON e.user = c.click_user
             AND c.click_ts BETWEEN e.ts AND e.ts + INTERVAL 15 SECONDS
            """
        )
    ),
    "exists": complete(
        sql(
            "SELECT action, count(*) AS n FROM events e WHERE EXISTS "
            "(SELECT 1 FROM users u WHERE u.name = e.user AND u.level > 1) GROUP BY action"
        )
    ),
    "not in": complete(
        sql(
            "SELECT user, count(*) AS n FROM events WHERE user NOT IN "
            "(SELECT name FROM users WHERE tier = 'gold') GROUP BY user"
        )
    ),
    "scalar subquery": complete(
        sql(
            "SELECT user, sum(value) AS v FROM events WHERE value > "
            "(SELECT avg(level) FROM users) GROUP BY user"
        )
    ),
    "lateral view": complete(
        sql(
            "SELECT tag, count(*) AS n, collect_set(user) AS who FROM events "
            "LATERAL VIEW OUTER explode(tags) t AS tag GROUP BY tag"
        )
    ),
    "filter and case": append(
        sql(
            "SELECT window.start, count(*) FILTER (WHERE action = 'buy') AS buys, "
            "sum(if(action = 'view', 1, 0)) AS views, "
            "try_divide(count(*) FILTER (WHERE action = 'buy'), count(*)) AS rate "
            "FROM events GROUP BY window(ts, '30 seconds')"
        )
    ),
    "union all of windows": append(
        sql(
            "SELECT user AS k, count(*) AS n FROM events GROUP BY window(ts, '30 seconds'), user "
            "UNION ALL "
            "SELECT device, count(*) FROM events GROUP BY window(ts, '30 seconds'), device"
        )
    ),
    "inline table": complete(
        sql(
            "SELECT v.label, count(*) AS n FROM events e JOIN VALUES ('buy', 'sale'), "
            "('view', 'look') AS v(action, label) USING (action) GROUP BY v.label"
        )
    ),
    "star except": at_once(sql("SELECT * EXCEPT (payload, tags) FROM events WHERE user <=> 'ann'")),
    "hints": complete(
        sql(
            "SELECT /*+ BROADCAST(u) */ u.tier, count(*) AS n FROM events e JOIN users u "
            "ON e.user = u.name GROUP BY u.tier"
        )
    ),
}

# -- joins ------------------------------------------------------------------------------------------


def own_join(g: Given) -> DataFrame:
    a = events(g).where("action = 'view'").alias("a")
    b = events(g).where("action = 'buy'").alias("b")
    return a.join(
        b,
        F.expr("a.user = b.user AND b.ts >= a.ts AND b.ts <= a.ts + interval 30 seconds"),
    ).select("a.user", col("a.id").alias("viewed"), col("b.id").alias("bought"), "b.value")


def three_static(g: Given) -> DataFrame:
    return (
        events(g)
        .join(g.users, F.col("user") == F.col("name"), "left")
        .join(F.broadcast(g.devices), on="device", how="inner")
        .groupBy(F.window("ts", "30 seconds"), "tier", "room")
        .agg(F.sum("value").alias("v"))
    )


def windows_joined(g: Given) -> DataFrame:
    a = events(g).select(F.window("ts", "20 seconds").alias("w"), "user", "id")
    b = clicks(g).select(
        F.window("click_ts", "20 seconds").alias("w"), F.col("click_user").alias("user"), "ad"
    )
    return a.join(b, ["w", "user"])


JOINS = {
    "views then buys": append(own_join),
    "arrays kept by a join": append(
        lambda g: events(g).join(
            clicks(g),
            F.expr("user = click_user AND click_ts BETWEEN ts AND ts + INTERVAL 9 SECONDS"),
            "left_outer",
        )
    ),
    "several tables": append(three_static),
    "a number on its own side": append(
        lambda g: events(g).join(
            clicks(g),
            F.expr(
                "user = click_user AND click_ts BETWEEN ts AND ts + INTERVAL 9 SECONDS AND ad > 0"
            ),
            "right_outer",
        )
    ),
    "on windows": append(windows_joined),
    "with a stream's table above": append(
        lambda g: (
            events(g)
            .join(
                clicks(g),
                (col("user") == col("click_user"))
                & (col("click_ts") > col("ts"))
                & (col("click_ts") < col("ts") + F.expr("INTERVAL 20 SECONDS")),
            )
            .join(g.users, col("user") == col("name"))
            .groupBy(F.window("click_ts", "1 minute"), "tier")
            .agg(F.count_distinct("ad").alias("ads"))
        )
    ),
    "distinct of a join": at_once(
        lambda g: (
            events(g)
            .join(
                clicks(g),
                F.expr("user = click_user AND click_ts BETWEEN ts AND ts + INTERVAL 20 SECONDS"),
            )
            .select("user", "ad")
            .distinct()
        )
    ),
    "table on the left": append(
        lambda g: (
            g.users.join(events(g), F.col("user") == F.col("name"), "right_outer")
            .groupBy(F.window("ts", "30 seconds"), "tier")
            .count()
        )
    ),
    "semi with a table": append(
        lambda g: (
            events(g)
            .join(g.users, F.col("user") == F.col("name"), "leftsemi")
            .groupBy(F.window("ts", "30 seconds"))
            .agg(F.count("*").alias("n"))
        )
    ),
}
