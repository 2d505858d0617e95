"""Forms of payloads and of columns."""

from __future__ import annotations

from forms import append, at_once, complete, events, update
from grammar_data import Given
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T
from pyspark.sql.functions import col

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
