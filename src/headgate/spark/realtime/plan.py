"""Makes the plan of a pipe: a query's own plan over feeders, which lets markers pass.

The plan is Catalyst's optimised plan. Catalyst moves filters below the watermark where this is allowed,
and the rows that a watermark counts depend on this.
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
"""Days of a month, and ms of a day, in Spark's conversion of a watermark's delay."""

_POLICY = "spark.sql.streaming.multipleWatermarkPolicy"


@dataclass(frozen=True)
class Branch:
    """Holds the plan between one source and an operator."""

    operator: str
    """Operator whose slots get the branch's rows."""
    plan: Jvm
    """plan node: optimised; each node has one streaming input."""
    leaf: Jvm
    """plan node: the source."""
    watermarks: dict[str, int]
    """Numbers of the watermarks in the branch, by the id of their node."""
    stages: int
    """Number of the branch's nodes that run Python."""

    def over(self, source: DataFrame) -> Jvm:
        """Return the plan of the routed rows of `source`, which has the source's columns and `MARKERS`.

        Each watermark has a further column with its event times, in microseconds. Raises
        `UnsupportedQuery`: markers cannot pass a part of the plan.
        """
        return passing(source.sparkSession, self.plan, analysed(source), self.watermarks)


@dataclass(frozen=True)
class PipePlan:
    """Holds the plan of a query up to its first operators."""

    branches: tuple[Branch, ...]
    """In the order of Spark's sources."""
    delays_ms: tuple[int, ...]
    """Delay of each watermark, by its number."""
    least: bool
    """True if the query's watermark is the least of several, False if it is the greatest."""

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
                # Catalyst would compute such a function once, when the pipe starts
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

        `sources`: number of the source of each branch.
        """
        sources_of: dict[int, set[int]] = defaultdict(set)
        for branch, source in zip(self.branches, sources, strict=True):
            for number in branch.watermarks.values():
                sources_of[number].add(source)
        greatest_counts = not self.least and len(sources_of) > 1
        return greatest_counts or any(len(several) > 1 for several in sources_of.values())

    def watermark_us(self, newest_us: dict[int, int]) -> int:
        """Return the query's watermark, in microseconds that are whole milliseconds, as in Spark.

        `newest_us`: newest event time by watermark; as in Spark, one without an event time is 0.
        """
        found = [
            (newest_us[number] // 1000 - delay_ms) * 1000 if number in newest_us else 0
            for number, delay_ms in enumerate(self.delays_ms)
        ]
        return max((min if self.least else max)(found, default=0), 0)


def _lines(spark: SparkSession, plan: Jvm) -> list[Jvm]:
    """Return one plan for each source; nodes above a union are copied above each of its inputs."""
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
    """Return the columns of one input of a union, with the union's names and ids."""
    return [
        old
        if old.exprId().equals(new.exprId())
        else alias(spark, old, new.name(), new.exprId(), new.metadata())
        for old, new in zip(each(child.output()), each(union.output()), strict=True)
    ]


def _nodes(plan: Jvm) -> list[Jvm]:
    """Return the nodes of a plan with one source, the source last."""
    found = [plan]
    while children := [child for child in each(found[-1].children()) if child.isStreaming()]:
        found += children
    return found


def _delays_ms(nodes: list[Jvm]) -> dict[str, int]:
    """Return the delay of each watermark among `nodes`, by the id of its node."""
    delays_ms = {}
    for node in nodes:
        if class_name(node) == "EventTimeWatermark":
            months, days, micros = interval_parts(node.delay())
            delay_ms = (months * _MONTH_DAYS + days) * _DAY_MS + micros // 1000
            delays_ms[str(node.nodeId().toString())] = delay_ms
    return delays_ms
