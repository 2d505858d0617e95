"""Forms of joins, models, times and keys."""

from __future__ import annotations

import sys

from forms import append, at_once, clicks, complete, events, update
from grammar_data import Given
from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

# workers do not have this file
cloudpickle.register_pickle_by_value(sys.modules[__name__])


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
        StringIndexer(inputCol="device", outputCol="at", handleInvalid="keep"),
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


MORE = {
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
