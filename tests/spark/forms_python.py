"""Forms with functions in Python."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import pandas as pd
from forms import WM, append, complete, events
from pyspark import cloudpickle
from pyspark.sql import functions as F
from pyspark.sql import types as T

# workers do not have this file
cloudpickle.register_pickle_by_value(sys.modules[__name__])

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
            g.events.select("ts", "user", "value")
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
