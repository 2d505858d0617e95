"""Makes the plan of a pipe: a query's own plan over feeders, with markers that pass it untouched.

The plan is taken as Catalyst has optimised it: Catalyst moves filters below the watermark where that is
allowed, and which rows a watermark counts depends on it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, SparkSession

from headgate.spark.jvm.expressions import alias, interval_parts, tree_patterns
from headgate.spark.jvm.gateway import Jvm, class_name, each, seq
from headgate.spark.jvm.plans import analysed, of_rows, optimised_stream, project
from headgate.spark.jvm.streams import streams_of
from headgate.spark.read.plan import PlannedOperator
from headgate.spark.realtime.markers import PYTHON, passing, refused
from headgate.spark.step.exchange import routed_columns

_MONTH_DAYS, _DAY_MS = 31, 86_400_000
"""As Spark counts a watermark's delay."""

_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


@dataclass(frozen=True)
class Branch:
    """Holds the plan between one source and an operator."""

    operator: str
    """To whose slots its rows go."""
    plan: Jvm
    """plan node: optimised; each node has one input that is a stream."""
    leaf: Jvm
    """plan node: the source."""
    watermarks: dict[str, int]
    """Numbers of the watermarks in it, by the id of their node."""
    stages: int
    """How many of its nodes run Python."""

    def over(self, source: DataFrame) -> Jvm:
        """Return the plan of the routed rows of `source`, which has the source's columns and `MARKERS`.

        The times of each watermark are a column more, in microseconds. Raises `UnsupportedQuery`:
        Markers cannot pass a part of the plan.
        """
        return passing(source.sparkSession, self.plan, analysed(source), self.watermarks)


@dataclass(frozen=True)
class PipePlan:
    """Holds the plan of a query up to its first operators."""

    branches: tuple[Branch, ...]
    """In the order of Spark's sources."""
    delays_ms: tuple[int, ...]
    """Of each watermark."""
    least: bool
    """Whether of several watermarks the least counts, and not the greatest."""

    @classmethod
    def of(
        cls, spark: SparkSession, operators: Sequence[PlannedOperator], key_groups: int
    ) -> PipePlan:
        """Return the plan below operators that read sources.

        Raises `UnsupportedQuery`: a part of it cannot run in a pipe.
        """
        branches: list[Branch] = []
        delays_ms: dict[str, int] = {}
        for operator in operators:
            columns = routed_columns(operator, key_groups)
            frame = of_rows(spark, operator.input_plan)
            frame = frame.select(*(value.alias(name) for name, value in columns.items()))
            whole = analysed(frame)
            if any(map(whole.containsPattern, tree_patterns(spark, ["CURRENT_LIKE"]))):
                # Catalyst would compute it once, when the pipe starts
                raise refused("a function such as current_timestamp()")
            lines = _lines(spark, optimised_stream(frame))
            if len(lines) != len(streams_of(whole)):
                raise refused("a stream of which no row can come")
            for line in lines:
                *above, leaf = _nodes(line)
                delays = _delays_ms(above)
                delays_ms |= delays
                numbers = {one: list(delays_ms).index(one) for one in delays}
                stages = sum(class_name(node) in PYTHON for node in above)
                branches.append(Branch(operator.id, line, leaf, numbers, stages))
        least = str(spark.conf.get(_POLICY, "min")).lower() == "min"
        return cls(tuple(branches), tuple(delays_ms.values()), least)

    def shares_watermark(self, sources: Sequence[int]) -> bool:
        """Return whether records of several sources move one watermark.

        `sources`: of each branch, the number of its source.
        """
        sources_of: dict[int, set[int]] = defaultdict(set)
        for branch, source in zip(self.branches, sources, strict=True):
            for number in branch.watermarks.values():
                sources_of[number].add(source)
        greatest_counts = not self.least and len(sources_of) > 1
        return greatest_counts or any(len(several) > 1 for several in sources_of.values())

    def watermark_us(self, newest_us: dict[int, int]) -> int:
        """Return the watermark by the newest event time of each; Spark has 0 where none has come.

        In whole milliseconds, as Spark has it.
        """
        found = [
            (newest_us[number] // 1000 - delay_ms) * 1000 if number in newest_us else 0
            for number, delay_ms in enumerate(self.delays_ms)
        ]
        return max((min if self.least else max)(found, default=0), 0)


def _lines(spark: SparkSession, plan: Jvm) -> list[Jvm]:
    """Return the plan from each source: what stands above a union stands above each of its inputs."""
    children = list(each(plan.children()))
    streams = [place for place, child in enumerate(children) if child.isStreaming()]
    if not streams:
        return [plan]
    if class_name(plan) == "Union":
        return [
            project(spark, _named_as(spark, child, plan), line)
            for child in children
            for line in _lines(spark, child)
        ]
    if len(streams) > 1:
        raise refused("a join of two streams")
    (at,) = streams
    return [
        plan.withNewChildren(seq(spark, [*children[:at], line, *children[at + 1 :]]))
        for line in _lines(spark, children[at])
    ]


def _named_as(spark: SparkSession, child: Jvm, union: Jvm) -> list[Jvm]:
    """Return the columns of one input of a union as the union has them."""
    return [
        old
        if old.exprId().equals(new.exprId())
        else alias(spark, old, new.name(), new.exprId(), new.metadata())
        for old, new in zip(each(child.output()), each(union.output()), strict=True)
    ]


def _nodes(plan: Jvm) -> list[Jvm]:
    """Return the nodes of a line, the source last."""
    found = [plan]
    while children := [child for child in each(found[-1].children()) if child.isStreaming()]:
        found += children
    return found


def _delays_ms(nodes: list[Jvm]) -> dict[str, int]:
    """Return the delay of each watermark among nodes, by its id."""
    delays_ms = {}
    for node in nodes:
        if class_name(node) == "EventTimeWatermark":
            months, days, micros = interval_parts(node.delay())
            delay_ms = (months * _MONTH_DAYS + days) * _DAY_MS + micros // 1000
            delays_ms[str(node.nodeId().toString())] = delay_ms
    return delays_ms
