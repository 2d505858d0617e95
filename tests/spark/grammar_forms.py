"""Forms of queries that people write, each as it is: payloads, columns, Python, SQL, joins."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
from grammar import Build, Query
from grammar_data import Given
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.functions import col

# workers do not have this file
cloudpickle.register_pickle_by_value(sys.modules[__name__])

WM = "10 seconds"


def append(build: Build) -> Query:
    """Return a query in append mode whose rows come out when they are due."""
    return Query(build, "append", due=True)


def at_once(build: Build) -> Query:
    """Return one in append mode whose rows come out as they are made."""
    return Query(build, "append")


def complete(build: Build) -> Query:
    """Return a query in complete mode."""
    return Query(build, "complete")


def update(build: Build, *keys: str) -> Query:
    """Return a query in update mode, of which the newest row of each key counts."""
    return Query(build, "update", keys=list(keys))


def events(g: Given) -> DataFrame:
    return g.events.withWatermark("ts", WM)


def clicks(g: Given) -> DataFrame:
    return g.clicks.withWatermark("click_ts", WM)


def sql(text: str) -> Build:
    def build(g: Given) -> DataFrame:
        events(g).createOrReplaceTempView("events")
        clicks(g).createOrReplaceTempView("clicks")
        g.users.createOrReplaceTempView("users")
        return g.spark.sql(text)

    return build


# -- payloads ---------------------------------------------------------------------------------------

READINGS = T.StructType(
    [
        T.StructField("meta", T.StructType([T.StructField("site", T.StringType())])),
        T.StructField(
            "readings",
            T.ArrayType(
                T.StructType(
                    [T.StructField("kind", T.StringType()), T.StructField("v", T.DoubleType())]
                )
            ),
        ),
    ]
)


def messages(g: Given) -> DataFrame:
    """As from Kafka: key, value, topic and the broker's time, the value nested JSON."""
    body = F.to_json(
        F.struct(
            F.struct(F.col("device").alias("site")).alias("meta"),
            F.array(
                F.struct(F.lit("temp").alias("kind"), F.col("value").alias("v")),
                F.struct(F.lit("twice").alias("kind"), (F.col("value") * 2).alias("v")),
            ).alias("readings"),
        )
    )
    return g.events.select(
        F.col("user").cast("binary").alias("key"),
        body.cast("binary").alias("value"),
        F.lit("sensors").alias("topic"),
        F.col("ts").alias("timestamp"),
    )


def nested(g: Given) -> DataFrame:
    return (
        messages(g)
        .selectExpr("CAST(key AS STRING) AS who", "CAST(value AS STRING) AS json", "timestamp")
        .withColumn("data", F.from_json("json", READINGS))
        .select("who", "timestamp", "data.meta.site", F.explode("data.readings").alias("r"))
        .select("*", "r.*")
        .drop("r")
        .withWatermark("timestamp", "10 seconds")
        .groupBy(F.window("timestamp", "30 seconds"), "site", "kind")
        .agg(F.avg("v").alias("mean"), F.stddev("v").alias("spread"), F.count("*").alias("n"))
    )


LOG = r"^(\S+) (\S+) \[(\S+)\] (\d+)$"


def log_lines(g: Given) -> DataFrame:
    line = F.format_string("%s %s [%s] %s", "user", "action", F.date_format("ts", "HH:mm:ss"), "id")
    return (
        g.events.select(line.alias("value"))
        .select(
            F.regexp_extract("value", LOG, 1).alias("who"),
            F.regexp_extract("value", LOG, 2).alias("verb"),
            F.regexp_extract("value", LOG, 4).cast("int").alias("code"),
        )
        .filter(F.col("verb").rlike("^(buy|view)$"))
        .groupBy("who", "verb")
        .agg(F.count(F.lit(1)).alias("hits"), F.max("code").alias("code"))
    )


def csv_lines(g: Given) -> DataFrame:
    line = F.concat_ws(",", "user", "device", F.col("value").cast("string"))
    parts = F.split("value", ",")
    return (
        g.events.dropna(subset=["user", "device", "value"])
        .select(line.alias("value"))
        .select(parts[0].alias("who"), parts.getItem(1).alias("device"), parts[2].cast("double"))
        .toDF("who", "device", "amount")
        .groupBy("who")
        .agg({"amount": "sum", "device": "max"})
        .withColumnRenamed("sum(amount)", "total")
    )


PAYLOADS = {
    "nested json": append(nested),
    "log lines": update(log_lines, "who", "verb"),
    "csv lines": complete(csv_lines),
    "from_csv": complete(
        lambda g: (
            g.events.select(
                F.from_csv(F.concat_ws(",", "user", "id"), "who string, n bigint").alias("c")
            )
            .groupBy("c.who")
            .agg(F.sum("c.n").alias("n"))
        )
    ),
    "schema_of_json": complete(
        lambda g: (
            g.events.withColumn("p", F.from_json("payload", F.schema_of_json('{"temp":1.5}')))
            .groupBy("device")
            .agg(F.max("p.temp").alias("peak"))
        )
    ),
    "json_tuple": complete(
        lambda g: (
            g.events.select("user", F.json_tuple("payload", "temp", "unit").alias("temp", "unit"))
            .groupBy("unit")
            .agg(F.avg(F.col("temp").cast("double")).alias("mean"))
        )
    ),
    "variant": complete(
        lambda g: (
            g.events.withColumn("v", F.try_parse_json("payload"))
            .withColumn("unit", F.variant_get("v", "$.unit", "string"))
            .groupBy("unit")
            .agg(F.max(F.expr("v:temp::double")).alias("peak"))
        )
    ),
    "dedup by hash": at_once(
        lambda g: (
            events(g)
            .withColumn("hash", F.sha2(F.concat_ws("|", "user", "action", "device"), 256))
            .dropDuplicates(["hash"])
            .select("hash")
        )
    ),
}

# -- columns ----------------------------------------------------------------------------------------

COLUMNS = {
    "higher order functions": complete(
        lambda g: (
            g.events.withColumn("tags", F.transform("tags", F.upper))
            .withColumn("n", F.aggregate("tags", F.lit(0), lambda s, t: s + F.length(t)))
            .where(F.exists("tags", lambda t: t == "A"))
            .groupBy("user")
            .agg(F.sum("n").alias("n"), F.max(F.try_element_at("tags", F.lit(1))).alias("top"))
        )
    ),
    "map column": update(
        lambda g: (
            g.events.withColumn("m", F.create_map(F.col("action"), F.col("value")))
            .select("user", F.explode("m").alias("what", "much"))
            .groupBy("user", "what")
            .agg(F.sum("much").alias("much"))
        ),
        "user",
        "what",
    ),
    "withColumns": append(
        lambda g: (
            events(g)
            .withColumns({"hour": F.hour("ts"), "half": F.col("value") / 2})
            .withColumnsRenamed({"user": "who", "half": "h"})
            .groupBy(F.window("ts", "1 minute"), "who", "hour")
            .agg(F.sum("h").alias("h"))
        )
    ),
    "names with dots and spaces": append(
        lambda g: (
            events(g)
            .withColumnRenamed("value", "The Value (EUR)")
            .withColumnRenamed("device", "meta.device")
            .groupBy(F.window("ts", "30 seconds").alias("time window"), "`meta.device`")
            .agg(F.sum("The Value (EUR)").alias("Sum of EUR"), F.count("*"))
        )
    ),
    "keyword arguments": append(
        lambda g: (
            g.events.withWatermark(eventTime="ts", delayThreshold="5 seconds")
            .groupBy(
                F.window(timeColumn="ts", windowDuration="40 seconds", slideDuration="20 seconds")
            )
            .agg(F.count_distinct("user").alias("users"), F.approx_count_distinct("device"))
        )
    ),
    "window by expr": append(
        lambda g: (
            events(g)
            .groupBy(F.expr("window(ts, '30 seconds')"), F.expr("substr(action, 1, 1) AS letter"))
            .agg(
                F.expr("count_if(value > 50) AS high"),
                F.expr("max_by(device, struct(value, id)) AS loud"),
            )
        )
    ),
    "window column first": append(
        lambda g: (
            events(g)
            .withColumn("w", F.window("ts", "30 seconds"))
            .groupBy("w", "user")
            .agg(F.sum("value").alias("v"))
            .select(col("w.start").alias("from"), col("w.end").alias("to"), "user", "v")
        )
    ),
    "window start only": update(
        lambda g: (
            events(g)
            .withColumn("start", F.window("ts", "30 seconds").start)
            .groupBy("start", "device")
            .count()
        ),
        "start",
        "device",
    ),
    "date_trunc as key": update(
        lambda g: events(g).groupBy(F.date_trunc("minute", "ts").alias("m"), "user").count(),
        "m",
        "user",
    ),
    "melt": complete(
        lambda g: (
            g.events.select("user", "id", F.col("value").cast("bigint").alias("v"))
            .melt(["user"], ["id", "v"], "name", "number")
            .groupBy("user", "name")
            .agg(F.sum("number").alias("s"))
        )
    ),
    "lateral column alias": append(
        lambda g: (
            events(g)
            .groupBy(F.window("ts", "30 seconds"), "user")
            .agg(F.sum("value").alias("s"), F.count("*").alias("c"))
            .selectExpr("window.start AS at", "user", "s / c AS mean", "mean * 2 AS twice")
        )
    ),
    "two watermarks in a row": append(
        lambda g: (
            events(g)
            .withColumn("at", F.col("ts") + F.expr("INTERVAL 1 SECOND"))
            .withWatermark("at", "5 seconds")
            .groupBy(F.window("at", "30 seconds"))
            .count()
        )
    ),
    "chained dots": complete(
        lambda g: (
            g.events.where(col("value").isNotNull() & ~col("action").isin(["cart"]))
            .fillna("?")
            .na.drop(subset=["user"])
            .withColumn("big", F.when(col("value") >= 50, True).otherwise(False))
            .drop("payload", "tags", "nothing")
            .filter(col("user").startswith("a") | col("user").like("%b"))
            .groupBy("big")
            .agg(F.count("*").alias("n"), F.round(F.avg("value"), 2).alias("mean"))
            .sort(col("n").desc(), "big")
        )
    ),
    "global": complete(
        lambda g: g.events.agg(F.count("*").alias("n"), F.sum("value"), F.max("ts"))
    ),
    "cross join with a table": complete(
        lambda g: g.events.crossJoin(g.users.limit(2)).groupBy("tier").count()
    ),
    "subtract a table": update(
        lambda g: g.events.select("user").subtract(g.users.select("name")), "user"
    ),
    "intersect with a table": update(
        lambda g: g.events.select("user").intersect(g.users.select("name")), "user"
    ),
    "first and last": append(
        lambda g: (
            events(g)
            .groupBy(F.window("ts", "30 seconds"), "id")
            .agg(F.first("user", ignorenulls=True).isNotNull().alias("any"))
        )
    ),
    "struct in, star out": complete(
        lambda g: (
            events(g)
            .groupBy("user")
            .agg(F.max_by(F.struct("device", "action"), F.struct("ts", "id", "value")).alias("x"))
            .select("user", "x.*")
        )
    ),
    "list of structs, sorted": append(
        lambda g: (
            events(g)
            .groupBy(F.session_window("ts", "3 seconds").alias("s"), "user")
            .agg(F.sort_array(F.collect_list(F.struct("ts", "id", "action"))).alias("path"))
            .select("user", "s.start", F.col("path.action").alias("path"))
            .withColumn("steps", F.size("path"))
        )
    ),
    "metadata of the file": complete(
        lambda g: g.events.select("*", "_metadata.file_name").groupBy("file_name").agg(F.count("*"))
    ),
    "input_file_name": complete(
        lambda g: (
            g.events.withColumn("f", F.substring_index(F.input_file_name(), "/", -1))
            .groupBy("f")
            .count()
        )
    ),
    "without watermark, update": update(
        lambda g: g.events.groupBy(F.window("ts", "10 seconds"), "action").agg(F.sum("id")),
        "window",
        "action",
    ),
    "literal key": complete(
        lambda g: g.events.groupBy(F.lit("all").alias("of")).agg(F.count("*").alias("n"))
    ),
    "agg over the key": complete(
        lambda g: g.events.groupBy("device").agg(F.concat("device", F.lit("!")), F.count("*"))
    ),
}

# -- Python -----------------------------------------------------------------------------------------


@F.udf(returnType=T.ArrayType(T.StringType()), useArrow=True)
def letters(text: str) -> list[str]:
    return sorted(set(text))


@F.pandas_udf(T.DoubleType())
def batches(values: Iterator[pd.Series]) -> Iterator[pd.Series]:
    for value in values:
        yield value + 1


@F.pandas_udf(T.StructType().add("total", "double").add("twice", "double"))
def both(values: pd.Series) -> pd.DataFrame:
    return pd.DataFrame({"total": values, "twice": values * 2})


class Score:
    """A model that is made once."""

    def __init__(self, weight: float) -> None:
        self.weight = weight

    def predict(self, frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
        for frame in frames:
            yield frame.assign(score=frame["value"] * self.weight)


@F.udtf(returnType=T.StructType().add("word", "string").add("size", "integer"))
class Words:
    """Rows of a text."""

    def eval(self, text: str) -> Iterator[Any]:
        for part in text.split("a"):
            yield part, len(part)


PYTHON = {
    "arrow udf below": complete(
        lambda g: g.events.select(F.explode(letters("action")).alias("l")).groupBy("l").count()
    ),
    "iterator of series": complete(
        lambda g: g.events.withColumn("v", batches("value")).groupBy("user").agg(F.sum("v"))
    ),
    "pandas udf of a struct": complete(
        lambda g: (
            g.events.select("user", both("value").alias("b"))
            .groupBy("user")
            .agg(F.sum("b.twice").alias("twice"))
        )
    ),
    "scored by a model": append(
        lambda g: (
            events(g)
            .select("ts", "user", "value")
            .mapInPandas(
                Score(0.5).predict, "ts timestamp, user string, value double, score double"
            )
            .withWatermark("ts", WM)
            .groupBy(F.window("ts", "30 seconds"), "user")
            .agg(F.avg("score").alias("score"))
        )
    ),
    "udf in the key": append(
        lambda g: (
            events(g)
            .groupBy(F.window("ts", "30 seconds"), F.udf(lambda d: d[-1])("device").alias("d"))
            .count()
        )
    ),
    "udf in the aggregate": complete(
        lambda g: g.events.groupBy("user").agg(F.sum(batches("value")).alias("v"))
    ),
    "udf of an aggregate": complete(
        lambda g: g.events.groupBy("user").agg(
            F.udf(lambda n: "many" if n > 10 else "few")(F.count("*")).alias("n")
        )
    ),
    "udtf": complete(
        lambda g: (
            g.events.lateralJoin(Words(F.col("action").outer())).groupBy("word").agg(F.sum("size"))
        )
    ),
}

# -- SQL --------------------------------------------------------------------------------------------


def bought(g: Given) -> DataFrame:
    found: DataFrame = g.spark.sql(
        "SELECT user, count(*) AS n FROM {e} WHERE action = :what GROUP BY 1",
        args={"what": "buy"},
        e=events(g),
    )
    return found


def registered(g: Given) -> DataFrame:
    g.spark.udf.register("shout", lambda s: s.upper() + "!", "string")
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


FURTHER_SQL = {
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
    "pivot": complete(
        sql(
            "SELECT * FROM (SELECT user, action, id FROM events) "
            "PIVOT (count(id) FOR action IN ('buy' AS b, 'view' AS v))"
        )
    ),
    "star except": at_once(sql("SELECT * EXCEPT (payload, tags) FROM events WHERE user <=> 'ann'")),
    "qualified star and struct": complete(
        sql(
            "SELECT e.user, named_struct('d', e.device, 'n', count(*)) AS s FROM events e GROUP BY ALL"
        )
    ),
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


FURTHER_JOINS = {
    "views then buys": append(own_join),
    "arrays kept by a join": append(
        lambda g: events(g).join(
            clicks(g),
            F.expr("user = click_user AND click_ts BETWEEN ts AND ts + INTERVAL 9 SECONDS"),
            "left_outer",
        )
    ),
    "several tables": append(three_static),
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

# -- the second lot ---------------------------------------------------------------------------------


def attribute_join(g: Given) -> DataFrame:
    seen, hit = events(g), clicks(g)
    near = (hit.click_ts >= seen.ts) & (hit.click_ts <= seen.ts + F.expr("interval 12 seconds"))
    return seen.join(hit, (seen.user == hit.click_user) & near, "inner").drop(hit.click_user)


def same_names(g: Given) -> DataFrame:
    seen = events(g).select("user", "ts", "id")
    hit = clicks(g).select(
        F.col("click_user").alias("user"), F.col("click_ts").alias("ts"), F.col("ad").alias("id")
    )
    near = (seen["user"] == hit["user"]) & hit["ts"].between(
        seen["ts"], seen["ts"] + F.expr("interval 12 seconds")
    )
    return seen.join(hit, near).select(
        seen["user"], seen["id"].alias("event"), hit["id"].alias("ad"), hit["ts"]
    )


def vectors(g: Given) -> DataFrame:
    from pyspark.ml.feature import VectorAssembler
    from pyspark.ml.functions import vector_to_array

    made = VectorAssembler(
        inputCols=["id", "value"], outputCol="features", handleInvalid="keep"
    ).transform(events(g))
    return (
        made.withColumn(
            "sum", F.aggregate(vector_to_array("features"), F.lit(0.0), lambda a, x: a + x)
        )
        .groupBy(F.window("ts", "30 seconds"), "user")
        .agg(F.max("sum").alias("most"))
    )


def kept_vectors(g: Given) -> DataFrame:
    from pyspark.ml.feature import VectorAssembler

    made = VectorAssembler(
        inputCols=["value"], outputCol="features", handleInvalid="keep"
    ).transform(events(g))
    return made.select("id", "ts", "user", "features").dropDuplicates(["user", "ts"])


def regression(g: Given) -> DataFrame:
    from pyspark.ml import Pipeline
    from pyspark.ml.feature import StringIndexer, VectorAssembler
    from pyspark.ml.regression import LinearRegression

    rows = [("d1", 1.0, 2.0), ("d2", 2.0, 4.5), ("d3", 3.0, 6.0)]
    known = g.spark.createDataFrame(rows, "device string, value double, label double")
    steps = [
        StringIndexer(inputCol="device", outputCol="at"),
        VectorAssembler(inputCols=["value", "at"], outputCol="features"),
        LinearRegression(maxIter=2, regParam=0.1),
    ]
    model = Pipeline(stages=steps).fit(known)
    return (
        model.transform(events(g).fillna(0.0, ["value"]))
        .groupBy(F.window("ts", "30 seconds"), "device")
        .agg(F.avg("prediction").alias("p"))
    )


def broadcast_lookup(g: Given) -> DataFrame:
    tiers = g.spark.sparkContext.broadcast({"ann": "gold", "bob": "silver"})
    tier = F.udf(lambda user: tiers.value.get(user, "none"))
    return events(g).withColumn("tier", tier("user")).groupBy("tier").count()


def mixed_case(g: Given) -> DataFrame:
    """Names that only a collation takes for equal."""
    loud = F.when(F.col("id") % 2 == 0, F.upper("user")).otherwise(F.col("user"))
    return events(g).withColumn("who", F.collate(loud, "UTF8_LCASE"))


SECOND = {
    "duplicates by a collation": at_once(
        lambda g: mixed_case(g).dropDuplicates(["who"]).select(F.lower("who").alias("who"))
    ),
    "groups by a collation": append(
        lambda g: (
            mixed_case(g)
            .groupBy(F.window("ts", "30 seconds"), "who")
            .agg(F.count("*").alias("n"), F.max("value"))
            .withColumn("who", F.lower("who"))
        )
    ),
    "a join by a collation": append(
        lambda g: (
            mixed_case(g)
            .join(
                clicks(g),
                F.expr(
                    "who = collate(click_user, 'UTF8_LCASE') AND "
                    "click_ts BETWEEN ts AND ts + INTERVAL 9 SECONDS"
                ),
            )
            .select("id", "click_id")
        )
    ),
    "a join by attributes": append(attribute_join),
    "a join of equal names": append(same_names),
    "vectors": append(vectors),
    "vectors that are kept": at_once(kept_vectors),
    "a model of a pipeline": append(regression),
    "a broadcast variable": complete(broadcast_lookup),
    "milliseconds as time": append(
        lambda g: (
            g.events.withColumn("ms", (F.unix_millis("ts")))
            .drop("ts")
            .withColumn("at", (F.col("ms") / 1000).cast("timestamp"))
            .withWatermark("at", "10 seconds")
            .groupBy(F.window(F.col("at"), "30 seconds"), F.col("device"))
            .agg(F.count("*").alias("n"))
            .select(F.col("window.start").cast("string").alias("from"), "device", "n")
        )
    ),
    "time without a zone": append(
        lambda g: (
            g.events.withColumn("ts", F.col("ts").cast("timestamp_ntz"))
            .withWatermark("ts", "10 seconds")
            .groupBy(F.window("ts", "30 seconds"))
            .agg(F.max("ts").alias("newest"), F.count("*").alias("n"))
        )
    ),
    "a duration": append(
        lambda g: (
            events(g)
            .groupBy(F.session_window("ts", "5 seconds"), "user")
            .agg(
                (F.max("ts") - F.min("ts")).alias("lasted"),
                (F.max("ts").cast("long") - F.min("ts").cast("long")).alias("s"),
            )
        )
    ),
    "many aggregates by a loop": append(
        lambda g: (
            events(g)
            .groupBy(F.window("ts", "30 seconds"), "device")
            .agg(
                *[
                    f(c).alias(f"{f.__name__}_{c}")
                    for c in ("value", "id")
                    for f in (
                        F.avg,
                        F.min,
                        F.max,
                        F.sum,
                        F.count,
                        F.stddev,
                        F.variance,
                        F.approx_count_distinct,
                    )
                ]
            )
        )
    ),
    "window fields by star": append(
        lambda g: (
            events(g)
            .groupBy(F.window("ts", "30 seconds"), "user")
            .count()
            .select("window.*", "user", "count")
        )
    ),
    "missing columns": update(
        lambda g: (
            events(g)
            .select("ts", "user", "id")
            .unionByName(
                clicks(g).select(
                    F.col("click_ts").alias("ts"), F.col("click_user").alias("user"), "ad"
                ),
                allowMissingColumns=True,
            )
            .groupBy("user")
            .agg(F.count("id").alias("events"), F.count("ad").alias("clicks"))
        ),
        "user",
    ),
    "global temporary view": complete(
        lambda g: (
            events(g).createOrReplaceGlobalTempView("everything"),
            g.spark.sql("SELECT user, count(*) AS n FROM global_temp.everything GROUP BY user"),
        )[1]
    ),
    "decimals": complete(
        lambda g: (
            events(g)
            .withColumn("price", F.col("value").cast("decimal(18,4)"))
            .groupBy("user")
            .agg(F.sum("price").alias("total"), F.avg("price").alias("mean"))
        )
    ),
    "path of actions": complete(
        lambda g: (
            events(g)
            .groupBy("user")
            .agg(F.array_sort(F.collect_list(F.struct("ts", "id", "action"))).alias("all"))
            .withColumn("path", F.concat_ws(">", "all.action"))
            .drop("all")
        )
    ),
    "sorted by an ordinal": complete(
        lambda g: (
            events(g)
            .groupBy("user")
            .count()
            .sort("count", "user", ascending=[False, True])
            .limit(3)
        )
    ),
    "hash of all columns": at_once(
        lambda g: (
            events(g)
            .drop("tags")
            .withColumn(
                "row",
                F.sha2(
                    F.concat_ws(
                        "||",
                        *[
                            F.col(c).cast("string")
                            for c in ("id", "ts", "user", "device", "action", "value", "payload")
                        ],
                    ),
                    256,
                ),
            )
            .dropDuplicates(["row"])
        )
    ),
    "a column of everything": at_once(
        lambda g: (
            events(g)
            .withColumn("json", F.to_json(F.struct("*")))
            .dropDuplicates(["user", "device", "action"])
            .select("user", "device", "action")
        )
    ),
    "case in the key": complete(
        lambda g: (
            events(g)
            .groupBy(
                F.window("ts", "1 minute"),
                F.when(F.col("value") < 20, "low")
                .when(F.col("value") < 60, "mid")
                .otherwise("high")
                .alias("band"),
            )
            .agg(F.count("*").alias("n"))
            .orderBy("window", "band")
        )
    ),
    "outer join, then what is alone": append(
        lambda g: (
            events(g)
            .join(
                clicks(g),
                F.expr(
                    "user = click_user AND click_ts >= ts AND click_ts <= ts + interval 8 seconds"
                ),
                "leftOuter",
            )
            .where("click_id IS NULL")
            .select("id", "user")
        )
    ),
    "watermark on a joined stream": append(
        lambda g: (
            g.events.join(g.users, F.col("user") == F.col("name"))
            .withWatermark("ts", "10 seconds")
            .groupBy(F.window("ts", "30 seconds", "10 seconds"), "tier")
            .agg(F.sum("level").alias("levels"))
        )
    ),
    "rows to columns and back": complete(
        lambda g: (
            events(g)
            .selectExpr("user", "stack(2, 'v', value, 'i', cast(id as double)) AS (name, x)")
            .groupBy("user", "name")
            .agg(F.max("x").alias("x"))
        )
    ),
    "an aggregate of an aggregate by keys": append(
        lambda g: (
            events(g)
            .groupBy(F.window("ts", "20 seconds"), "user")
            .agg(F.sum("value").alias("v"))
            .groupBy("window")
            .agg(F.max_by("user", F.struct("v", "user")).alias("best"), F.max("v").alias("v"))
        )
    ),
    "a filter on the window": append(
        lambda g: (
            events(g)
            .groupBy(F.window("ts", "20 seconds").alias("w"))
            .count()
            .where("w.start >= '2026-03-01 12:01:00' AND count > 3")
        )
    ),
}

FORMS = PAYLOADS | COLUMNS | PYTHON | FURTHER_SQL | FURTHER_JOINS | SECOND
