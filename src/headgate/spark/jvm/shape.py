"""Reads the shape of a Catalyst expression: ids, SQL over named parts, casts, time zones."""

from __future__ import annotations

import re
from collections.abc import Iterable

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headgate.spark.jvm.folding import is_a
from headgate.spark.jvm.gateway import Jvm, class_name, each, java_class, seq

_EXPRESSIONS = "org.apache.spark.sql.catalyst.expressions."
_SEPARATOR = "\x1f"
_ID = re.compile(r"#(\d+)L?(?:-T-?\d+ms)?$")

FAILED = (Py4JError, PySparkException)
"""Exceptions of calls that the JVM answers with an exception."""

_traits: dict[tuple[str, str], bool] = {}


def ids_of(expressions: Jvm) -> list[str]:
    """Return the ids of a Scala sequence of named expressions, in one call; "" for a missing id."""
    text = str(expressions.mkString(_SEPARATOR))
    matches = [_ID.search(part) for part in text.split(_SEPARATOR)] if text else []
    return ["" if match is None else match[1] for match in matches]


def id_of(attribute: Jvm) -> str:
    """Return the id of an attribute or an alias."""
    return str(attribute.exprId().id())


def sql_over(spark: SparkSession, expression: Jvm, parts: Iterable[tuple[Jvm, str]]) -> str:
    """Return an expression as SQL with texts for its children; `parts` has (child, text)."""
    named = java_class(spark, _EXPRESSIONS + "PrettyAttribute")
    children = [named(text, child.dataType()) for child, text in parts]
    return str(expression.withNewChildren(seq(spark, children)).sql())


def sql_of_parameters(spark: SparkSession, expression: Jvm, texts: Iterable[str]) -> str:
    """Return the SQL of an expression that Spark replaces by another, with texts for its parameters."""
    return str(expression.makeSQLString(seq(spark, texts)))


_OPTIONS = ("options",)
_TYPE_AND_OPTIONS = ("schema", "options")
_UNSAID = {
    "CsvToStructs": _TYPE_AND_OPTIONS,
    "JsonToStructs": _TYPE_AND_OPTIONS,
    "XmlToStructs": _TYPE_AND_OPTIONS,
    "StructsToCsv": _OPTIONS,
    "StructsToJson": _OPTIONS,
    "StructsToXml": _OPTIONS,
    "LikeAll": ("patterns",),
    "LikeAny": ("patterns",),
    "NotLikeAll": ("patterns",),
    "NotLikeAny": ("patterns",),
    "Mode": ("reverseOpt",),
    "PercentileCont": ("reverse",),
    "PercentileDisc": ("reverse",),
    "VariantGet": ("targetType",),
}
"""Arguments that an expression's SQL and children omit, by the expression's class."""

_ORDERS = {
    "None": "no order",
    **dict.fromkeys(("false", "False", "Some(false)"), "ascending"),
    **dict.fromkeys(("true", "True", "Some(true)"), "descending"),
}
"""Words for a flag, by its text in Scala or py4j."""


def unsaid(expression: Jvm, name: str) -> str:
    """Return the arguments of an expression that its SQL omits; "" if it omits none."""
    return ", ".join(_of_argument(expression, argument) for argument in _UNSAID.get(name, ()))


def _of_argument(expression: Jvm, argument: str) -> str:
    if argument == "options":
        pairs = each(expression.options().toSeq())
        return ", ".join(sorted(f"{pair._1()}={pair._2()}" for pair in pairs)) or "no options"
    if argument == "patterns":
        return str(expression.patterns().mkString(", "))
    if argument in ("reverse", "reverseOpt"):
        return _ORDERS[str(getattr(expression, argument)())]
    kind = expression.schema() if argument == "schema" else expression.targetType()
    return str(kind.sql())


def stands_for_another(spark: SparkSession, expression: Jvm) -> bool:
    """Return whether Spark runs a replacement for an expression, and its child is the replacement."""
    return _has_trait(spark, expression, "InheritAnalysisRules")


def implicit(spark: SparkSession, cast: Jvm) -> bool:
    """Return whether Spark, not the user, added a cast."""
    tag = java_class(spark, _EXPRESSIONS + "Cast$.MODULE$").USER_SPECIFIED_CAST()
    return bool(cast.getTagValue(tag).isEmpty())


def time_zone(spark: SparkSession, expression: Jvm) -> str | None:
    """Return the session's time zone if an expression's value depends on it; None otherwise."""
    if not _has_trait(spark, expression, "TimeZoneAwareExpression"):
        return None
    if class_name(expression) == "Cast":
        casts = java_class(spark, _EXPRESSIONS + "Cast$.MODULE$")
        if not casts.needsTimeZone(expression.child().dataType(), expression.dataType()):
            return None
    zone = expression.timeZoneId()
    return str(zone.get()) if zone.isDefined() else None


def _has_trait(spark: SparkSession, expression: Jvm, trait: str) -> bool:
    key = (class_name(expression), trait)
    if key not in _traits:
        _traits[key] = is_a(spark, expression, _EXPRESSIONS + trait)
    return _traits[key]
