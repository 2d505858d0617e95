"""Reads a time window back from the expressions that Spark made of ``F.window``."""

from __future__ import annotations

import re

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from headgate.core.errors import UnsupportedQuery
from headgate.spark.jvm.expressions import column, interval_parts
from headgate.spark.jvm.gateway import Jvm, class_name, each
from headgate.spark.jvm.plans import analysed, of_rows
from headgate.spark.read.expressions import sql_text
from headgate.spark.read.wording import WAY_OUT


def find_window(plan: Jvm, attribute: Jvm) -> tuple[Jvm, Jvm] | None:
    """Return (node, expression) that made a window struct: a Project or an Expand.

    A Project between may have renamed the window.
    """
    wanted = attribute.exprId()
    while True:
        name = class_name(plan)
        if name == "Project":
            for expression in each(plan.projectList()):
                made = class_name(expression) == "Alias" and expression.exprId().equals(wanted)
                if made and "precisetimestampconversion" in expression.toString():
                    return plan, expression.child()
                if made and class_name(expression.child()) == "AttributeReference":
                    wanted = expression.child().exprId()
                    break
        if name == "Expand":
            for position, out in enumerate(each(plan.output())):
                if out.exprId().equals(wanted):
                    first = next(each(plan.projections()))
                    expression = list(each(first))[position]
                    if "precisetimestampconversion" in expression.toString():
                        return plan, expression
        children = list(each(plan.children()))
        if len(children) != 1:
            return None
        plan = children[0]


def session_gap_us(spark: SparkSession, plan: Jvm, attribute: Jvm) -> int | None:
    """Return the gap of the session window that made `attribute`, in microseconds.

    None if the gap differs from record to record, as an expression or in months. Raises
    `UnsupportedQuery`: the gap is not above 0.
    """
    pair = find_window(plan, attribute)
    interval = None if pair is None else gap_of(pair[1])
    if interval is None or not interval.foldable():
        return None
    value = interval.eval(None)
    months, days, micros = interval_parts(value)
    if months:
        return None
    if days * _DAY_US + micros <= 0:
        msg = (
            f"cannot run a session window with a gap of {value.toString()}; make it longer than 0."
        )
        raise UnsupportedQuery(msg)
    return int(days * _DAY_US + micros)


def gap_of(session: Jvm) -> Jvm | None:
    """Return the gap in the struct that Spark made of a session window."""
    # from the struct's end, because the user's own time may be a sum, too
    return _added_interval(list(each(session.children()))[-1])


def _added_interval(expression: Jvm) -> Jvm | None:
    """Return the interval added to a time in `expression`; the outermost of several sums."""
    if class_name(expression) in ("TimestampAddInterval", "TimeAdd"):
        return list(each(expression.children()))[1]
    for child in each(expression.children()):
        interval = _added_interval(child)
        if interval is not None:
            return interval
    return None


_DAY_US = 86_400_000_000

_NUMBERS = re.compile(
    r"- (?P<offset>-?\d+)\) % (?P<advance>\d+)\).*\+ (?P<size>\d+)\), LongType, \w+\)\)*$"
)


def window_numbers(expression: Jvm) -> tuple[int, int, int]:
    """Return (size, advance, offset) in microseconds, read off Spark's own window expression."""
    match = _NUMBERS.search(expression.toString())
    if match is None:
        msg = f"cannot read the window {sql_text(expression)[:80]}; use F.window(...), {WAY_OUT}."
        raise UnsupportedQuery(msg)
    return int(match["size"]), int(match["advance"]), int(match["offset"])


def time_column_of(expression: Jvm) -> Jvm:
    """Return the innermost timestamp of a window expression."""
    column = None
    node = expression
    while True:
        if class_name(node) == "PreciseTimestampConversion":
            column = node.child()
        children = [c for c in each(node.children()) if class_name(c) != "Literal"]
        if not children or class_name(node) == "AttributeReference":
            break
        node = children[0]
    if column is None:
        msg = f"cannot read the window {sql_text(expression)[:80]}; use F.window(...), {WAY_OUT}."
        raise UnsupportedQuery(msg)
    return column


def check_window(
    spark: SparkSession, node: Jvm, expression: Jvm, time_column: Jvm, numbers: tuple[int, int, int]
) -> None:
    """Refuse a window that differs from `F.window` with the values read: the reader must not guess."""
    size, advance, offset = numbers
    below = of_rows(spark, next(each(node.children())))
    window = F.window(
        column(spark, time_column),
        f"{size} microseconds",
        f"{advance} microseconds",
        f"{offset} microseconds",
    )
    made = analysed(below.select("*", window.alias("window")))
    text = _first_window(made)
    strip = re.compile(r"#[0-9]+L?")
    if text is None or strip.sub("", text) != strip.sub("", expression.toString()):
        msg = f"cannot read the window {sql_text(expression)[:80]}; use F.window(...), {WAY_OUT}."
        raise UnsupportedQuery(msg)


def _first_window(plan: Jvm) -> str | None:
    for attribute in each(plan.output()):
        if attribute.name() == "window":
            pair = find_window(plan, attribute)
            if pair is None:
                continue
            text: str = pair[1].toString()
            return text
    for child in each(plan.children()):
        text_below = _first_window(child)
        if text_below is not None:
            return text_below
    return None
