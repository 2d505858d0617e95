"""Accesses Spark's JVM from Python: classes by their names, Scala's collections.

Only this package accesses classes by name; a contract test for each Spark minor release covers them.
Other packages pass objects of the JVM on as handles, or read the object's class.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from py4j.java_gateway import JavaPackage
from pyspark import SparkContext
from pyspark.sql import DataFrame, SparkSession

from headgate.core.errors import HeadgateError, require

Jvm = Any
"""An object in the JVM (py4j is untyped)."""


def require_classic(spark: object) -> None:
    """Raise HeadgateError unless `spark` is a classic session."""
    if type(spark).__module__.startswith("pyspark.sql.connect"):
        msg = (
            "this session is Spark Connect; headgate runs foreachBatch in the driver and needs Spark "
            "Classic (builder.master(...))."
        )
        raise HeadgateError(msg)


def require_session(spark: object, what: str) -> None:
    """Raise an error unless `spark` is a classic session; `what` names the function and its argument."""
    require_classic(spark)
    acts_as_one = hasattr(spark, "sparkContext")
    require(acts_as_one, what, spark, "a SparkSession, such as hg.session()")


def require_frame(df: object, what: str) -> None:
    """Raise an error unless `df` is a DataFrame of a classic session.

    `what` names the function and its argument.
    """
    require_classic(getattr(df, "sparkSession", None))
    require(isinstance(df, DataFrame), what, df, "a DataFrame of PySpark")


class _Names:
    """Looks up packages and classes of the JVM, each once.

    In plain py4j, every dot of a name is a call to the JVM, which searches all jars.
    """

    def __init__(self, known: Jvm) -> None:
        self._known = known

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._known, name)
        if isinstance(found, JavaPackage):
            if name[0].isupper():
                return found  # a missing class is not cached: a jar that is added later may have it
            found = _Names(found)
        setattr(self, name, found)
        return found


_names: dict[int, _Names] = {}


def jvm(spark: SparkSession) -> Jvm:
    """Return the entry to the JVM's classes."""
    return _jvm_of(spark.sparkContext)


def active_jvm() -> Jvm:
    """Return the entry to the JVM's classes, without a session as argument.

    A Spark context must be running.
    """
    context = SparkContext._active_spark_context
    assert context is not None
    return _jvm_of(context)


def _jvm_of(context: SparkContext) -> Jvm:
    """Return the entry to the classes of a context's JVM."""
    java = context._jvm
    if id(java) not in _names:
        _names[id(java)] = _Names(java)  # has a reference to `java`, so its id is not used again
    return _names[id(java)]


_classes: dict[tuple[int, str], Jvm] = {}


def java_class(spark: SparkSession, name: str) -> Jvm:
    """Return a class of the JVM, or a static field of a class, by its full name; looked up once."""
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
    """Return options in a map with case-insensitive keys, the form for newer sources (DSv2)."""
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
