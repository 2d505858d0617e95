"""Reaches into Spark's JVM from Python: classes by their names, Scala's collections.

Classes are asked for by name in this package only; a contract test per Spark minor release covers them.
Elsewhere an object of the JVM is a handle that is passed on, or asked what it is.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from headgate.core.errors import HeadgateError, require

Jvm = Any
"""An object living in the JVM (py4j is untyped)."""


def require_classic(spark: object) -> None:
    """Raise HeadgateError unless `spark` is a classic session."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        msg = (
            "this session is Spark Connect; headgate runs foreachBatch in the driver and needs Spark "
            "Classic (builder.master(...))."
        )
        raise HeadgateError(msg)


def require_session(spark: object, what: str) -> None:
    """Refuse what is no classic session; `what` names the function and its argument."""
    require_classic(spark)
    acts_as_one = hasattr(spark, "sparkContext")
    require(acts_as_one, what, spark, "a SparkSession, such as hg.session()")


def require_frame(df: object, what: str) -> None:
    """Refuse what is no DataFrame of a classic session; `what` names the function and its argument."""
    require_classic(getattr(df, "sparkSession", None))
    require(isinstance(df, DataFrame), what, df, "a DataFrame of PySpark")


def jvm(spark: SparkSession) -> Jvm:
    """Return the entry to the JVM's classes."""
    return spark.sparkContext._jvm


_classes: dict[tuple[int, str], Jvm] = {}


def java_class(spark: SparkSession, name: str) -> Jvm:
    """Return a class of the JVM by its full name; looked up once, since every dot is a call."""
    java = jvm(spark)
    key = (id(java), name)
    if key not in _classes:
        member = java
        for part in name.split("."):
            member = getattr(member, part)
        _classes[key] = member
    return _classes[key]


def seq(spark: SparkSession, items: Iterable[Any]) -> Jvm:
    """Return a Scala Seq of `items`."""
    return java_class(spark, "PythonUtils").toSeq(list(items))


def seq_of_one(spark: SparkSession, item: Jvm) -> Jvm:
    """Return a Scala Seq of one item, with the fewest calls."""
    return java_class(spark, "scala.Some")(item).toList()


def scala_map(spark: SparkSession, items: Mapping[str, str]) -> Jvm:
    """Return an immutable Scala Map of texts."""
    return jvm(spark).PythonUtils.toScalaMap(dict(items))


def string_map(spark: SparkSession, items: Mapping[str, str]) -> Jvm:
    """Return options as newer sources take them: keys in any case."""
    made = jvm(spark).java.util.HashMap()
    for key, value in items.items():
        made.put(key, value)
    return jvm(spark).org.apache.spark.sql.util.CaseInsensitiveStringMap(made)


def each(scala_collection: Jvm) -> Iterator[Jvm]:
    """Iterate over a Scala collection."""
    iterator = scala_collection.iterator()
    while iterator.hasNext():
        yield iterator.next()


def class_name(node: Jvm) -> str:
    """Return the simple class name of a plan node, expression or function."""
    name: str = node.getClass().getSimpleName()
    return name
