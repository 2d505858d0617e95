"""Plans a job once, and then runs the rows of each batch through the same physical plan.

Planning a batch's job takes tens of milliseconds, and gives the same plan as long as slots and
aggregation stay the same. So for each batch only the scan at the plan's bottom gets another RDD. Nodes
above the scan are copied, because Spark's nodes keep the results of their run.
"""

from __future__ import annotations

from collections.abc import Callable

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from headgate.spark.jvm.expressions import tree_patterns
from headgate.spark.jvm.gateway import Jvm, class_name, each, java_class, jvm
from headgate.spark.jvm.plans import (
    Graft,
    analysed,
    internal_rows,
    leaf,
    no_rows,
    of_rows,
    physical,
)

Stage = Callable[[Jvm], Jvm]
"""Takes an RDD of rows, and returns another."""

_SCAN = "RDDScanExec"
_PER_BATCH = ("CURRENT_LIKE", "PLAN_EXPRESSION")
"""Patterns of expressions that Catalyst computes during planning, so that each batch needs a new plan."""


class Planned:
    """Runs rows through a plan that is planned once.

    `frame`: the plan, in the session of the batches. `hole` (plan node): the leaf of the plan, which
    the rows replace.
    """

    def __init__(self, frame: DataFrame, hole: Jvm) -> None:
        spark = frame.sparkSession
        self._spark = spark
        self._hole = hole
        plan = analysed(frame)
        self._graft = Graft(spark, plan, hole)
        self._copy: PhysicalCopy | None = None
        if not planned_per_batch(spark, plan):
            self._copy = copy_of(spark, physical(frame))

    def rows(self, below: Jvm) -> Jvm:
        """Return the RDD of rows that the plan computes from the RDD `below`."""
        if self._copy is not None:
            return self._copy.rows(below)
        plan = self._graft.onto(leaf(self._spark, self._hole.output(), below))
        return internal_rows(of_rows(self._spark, plan))


class PhysicalCopy:
    """Copies a physical plan over one scan for each input RDD.

    `above` (list of plan nodes): from the scan's parent up. `scan`: plan node.
    """

    def __init__(self, spark: SparkSession, above: list[Jvm], scan: Jvm) -> None:
        self._above = above
        self._scan = scan
        self._conf = spark._jsparkSession.sessionState().conf()
        gateway = spark.sparkContext._gateway
        assert gateway is not None
        fields = [scan.productElement(i) for i in range(scan.productArity())]
        self._fields = gateway.new_array(jvm(spark).java.lang.Object, len(fields))
        for i, field in enumerate(fields):
            self._fields[i] = field
        rdd = scan.rdd()
        (self._rdd_at,) = (i for i, field in enumerate(fields) if rdd.equals(field))
        self._nil = java_class(spark, "scala.collection.immutable.Nil$.MODULE$")
        self._wrap = java_class(spark, "org.apache.spark.sql.execution.SQLExecutionRDD")

    def rows(self, below: Jvm) -> Jvm:
        """Return the RDD of rows that the plan computes from the RDD `below`."""
        self._fields[self._rdd_at] = below
        node = self._scan.makeCopy(self._fields)
        for operator in self._above:
            node = operator.withNewChildren(getattr(self._nil, "$colon$colon")(node))
        return self._wrap(node.execute(), self._conf)


def copy_of(spark: SparkSession, plan: Jvm) -> PhysicalCopy | None:
    """Return a copier of a physical plan; None unless it is one line of nodes over a scan of an RDD."""
    above: list[Jvm] = []
    while class_name(plan) != _SCAN:
        children = list(each(plan.children()))
        if len(children) != 1:
            return None
        above.insert(0, plan)
        (plan,) = children
    return PhysicalCopy(spark, above, plan)


def hole_of(spark: SparkSession, schema: StructType) -> Jvm:
    """Return a leaf without rows, which the caller replaces."""
    return analysed(no_rows(spark, schema))


def planned_per_batch(spark: SparkSession, plan: Jvm) -> bool:
    """Return whether each batch needs a new plan, because planning computes a part of the plan."""
    return any(plan.containsPattern(pattern) for pattern in tree_patterns(spark, _PER_BATCH))
