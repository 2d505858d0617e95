"""Routes a query's input: computes the key group of each row, and sends the row to its slot.

The routed columns of an operator are ``g`` (key group), ``t`` (slice start), ``k0 ..``, ``v0 ..``, ``n``
(records) and ``a0``, ``a1`` (arrival of the first and last record, ms). In the streaming query of several
chains their names have the operator's id as a prefix, because all chains share one read of the source.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.assignment import Assignment
from headgate.operators.step import ARRIVED_FIRST, ARRIVED_LAST, GROUP, RECORDS, TIME
from headgate.spark.job.columns import INITIAL, MARKER_TO, MARKER_TOKEN, MARKER_US
from headgate.spark.jvm.expressions import column, null_where_present, present_or
from headgate.spark.jvm.gateway import Jvm, class_name, each, seq
from headgate.spark.jvm.plans import (
    analysed,
    filtered,
    internal_rows,
    leaf,
    of_rows,
    project,
    replace_leaf,
    template,
    without_constraints,
    without_watermarks,
)
from headgate.spark.read.plan import InitialState, PlannedOperator, PlannedQuery

_ROUTE = "route"
"""Column of the slot that a row goes to; exists only if some key group is split."""

_COPY_FOR = "copy_for"
"""Column of the slot that gets a copy of a shared record."""

_FEW = 8
"""Most routed columns for which Catalyst may infer constraints: they are few. Chosen, not tuned."""

MARKERS = T.StructType(
    [
        T.StructField(MARKER_TO, T.IntegerType()),
        T.StructField(MARKER_TOKEN, T.StringType()),
        T.StructField(MARKER_US, T.LongType()),
    ]
)
"""Columns of a marker row, with which an upstream slot tells the next operator's slot `m_to` its end."""


def routed_columns(operator: PlannedOperator, key_groups: int) -> dict[str, Column]:
    """Return the routed columns of `operator`, as expressions over its input."""
    columns = {GROUP: _group(operator, key_groups)}
    if operator.slice_start is not None:
        columns[TIME] = operator.slice_start
    columns |= {routed.name: routed.value for routed in [*operator.keys, *operator.values]}
    columns[RECORDS] = F.lit(1).cast("bigint")
    if operator.arrival is not None:
        arrived = F.unix_micros(operator.arrival) / F.lit(1000.0)
        columns |= {ARRIVED_FIRST: arrived, ARRIVED_LAST: arrived}
    return columns


def _group(operator: PlannedOperator, key_groups: int) -> Column:
    """Return the key group of a row: by its key, or by its window if the window is the whole key."""
    by = [routed.value for routed in operator.keys]
    time = operator.spec.time
    if not by and operator.slice_start is not None and time is not None:
        by = [] if time.sliced or time.session else [operator.slice_start]
    if not by:
        return F.lit(0)
    return _group_of(by, key_groups)


def _group_of(by: list[Column], key_groups: int) -> Column:
    return F.pmod(F.xxhash64(*by), F.lit(key_groups)).cast("int")


def streaming_input(spark: SparkSession, query: PlannedQuery, key_groups: int) -> DataFrame:
    """Return the streaming DataFrame of a query's routed rows; without operators, the user's own."""
    if not query.operators:
        return of_rows(spark, query.plan)
    frames = []
    for chain in query.sources:
        first = chain[0]
        columns = routed_columns(first, key_groups)
        prefix = f"{first.id}:" if len(query.sources) > 1 else ""
        named = [value.alias(prefix + name) for name, value in columns.items()]
        frame = of_rows(spark, first.input_plan).select(*named)
        # the node that hides constraints costs a copy of each row
        frames.append(without_constraints(frame) if len(named) > _FEW else frame)
    together = frames[0]
    for frame in frames[1:]:
        together = together.unionByName(frame, allowMissingColumns=True)
    return together


def with_ticks(frame: DataFrame, ticks: DataFrame) -> DataFrame:
    """Return a streaming DataFrame that has a batch at every tick, even without rows."""
    nothing = [F.lit(None).cast(field.dataType).alias(field.name) for field in frame.schema.fields]
    return frame.unionByName(ticks.select(*nothing))


def with_initial(frame: DataFrame, operator: PlannedOperator, key_groups: int) -> DataFrame:
    """Return the first step's routed rows together with those of the operator's initial state."""
    if operator.initial is None:
        return frame
    rows = initial_rows(frame.sparkSession, operator.initial, key_groups)
    return frame.unionByName(rows, allowMissingColumns=True)


def initial_rows(spark: SparkSession, initial: InitialState, key_groups: int) -> DataFrame:
    """Return the routed rows of an initial state; their column `INITIAL` is true."""
    columns = {GROUP: _group_of([key.value for key in initial.keys], key_groups)}
    columns |= {key.name: key.value for key in initial.keys}
    columns |= {passed.name: passed.value for passed in initial.values}
    columns[INITIAL] = F.lit(True)
    rows = of_rows(spark, initial.plan)
    return rows.select(*(value.alias(name) for name, value in columns.items()))


def chain_input(batch: DataFrame, operator: PlannedOperator, *, alone: bool) -> DataFrame:
    """Return the rows of a batch that belong to a chain's first operator, without the names' prefix.

    `alone`: True if the batch has rows of this chain only; then the names have no prefix.
    """
    if alone:
        return batch
    prefix = f"{operator.id}:"
    names = [name for name in batch.columns if name.startswith(prefix)]
    columns = [F.col(f"`{name}`").alias(name.removeprefix(prefix)) for name in names]
    return batch.where(F.col(f"`{prefix}{GROUP}`").isNotNull()).select(*columns)


def slot_column(assignment: Assignment) -> Column:
    """Return the slot of a row's key group; for a split key group, one of its slots at random."""
    slots = ",".join(str(s) for s in assignment.slot_of)
    column = F.expr(f"element_at(array({slots}), {GROUP} + 1)")
    for group, shares in assignment.split.items():
        # hash of the row's position: rows of a hot key may be equal, and lie in any pattern
        share = F.pmod(F.xxhash64(F.monotonically_increasing_id()), F.lit(len(shares)))
        drawn = F.element_at(F.array(*[F.lit(slot) for slot in shares]), share.cast("int") + 1)
        column = F.when(F.col(GROUP) == group, drawn).otherwise(column)
    return column


def to_slots(frame: DataFrame, assignment: Assignment, *, shared: bool) -> DataFrame:
    """Return `frame` with one partition per slot; a marker row goes to its slot `m_to`.

    `shared`: every slot gets a copy of every record; only the stored copy counts as a record.
    """
    if shared:
        # any group may store the record; a hash of position and content spreads equal records, too
        drawn = F.xxhash64(F.monotonically_increasing_id(), *frame.columns)
        group = F.pmod(drawn, F.lit(len(assignment.slot_of))).cast("int")
        slots = F.array(*[F.lit(slot) for slot in range(assignment.slots)])
        copies = frame.withColumn(GROUP, group).withColumn(_COPY_FOR, F.explode(slots))
        stored = slot_column(assignment) == F.col(_COPY_FOR)
        copies = copies.withColumn(RECORDS, F.when(stored, F.col(RECORDS)).otherwise(F.lit(0)))
        return copies.repartitionById(assignment.slots, _COPY_FOR).drop(_COPY_FOR)
    target = slot_column(assignment)
    if MARKER_TO in frame.columns:
        target = F.coalesce(F.col(MARKER_TO), target)
    if assignment.split:
        # Spark knows a row's position in a projection only
        routed = frame.withColumn(_ROUTE, target)
        return routed.repartitionById(assignment.slots, _ROUTE).drop(_ROUTE)
    return frame.repartitionById(assignment.slots, target)


def fed_input(
    spark: SparkSession, operator: PlannedOperator, put_out: Mapping[str, Jvm], key_groups: int
) -> DataFrame:
    """Return the routed rows of an operator that reads other operators' output of this step.

    `spark`: session of the batches. `put_out` (mapping of str to plan node): output rows of each
    parent, by its id, with the parent's columns.
    """
    plan = without_watermarks(spark, operator.input_plan)
    for parent in operator.parents:
        plan = replace_leaf(spark, plan, parent.placeholder, put_out[parent.id])
    columns = routed_columns(operator, key_groups)
    return of_rows(spark, plan).select(*(value.alias(name) for name, value in columns.items()))


class Relay:
    """Turns the output of an operator's slots into the routed input of the next operator.

    Catalyst runs the user's plan between the two operators. Marker rows pass through the same plan
    unchanged: a second plan would run the upstream slots a second time.

    `operator`: the downstream operator.

    Attributes
    ----------
    hole : plan node    Leaf of `plan`, which the rows of the upstream slots replace.
    plan : plan node    Computes the routed columns from these rows.
    """

    def __init__(self, spark: SparkSession, operator: PlannedOperator, key_groups: int) -> None:
        upstream = operator.upstream
        assert upstream is not None
        empty = analysed(template(spark, MARKERS))
        markers = list(each(empty.output()))
        # in a marker row all output columns are null, whatever the user's schema says
        outputs = [a.withNullability(True) for a in each(upstream.placeholder.output())]
        attributes = seq(spark, [*outputs, *markers])
        hole = leaf(spark, attributes, internal_rows(of_rows(spark, empty)))
        plan = _with_markers(spark, operator.input_plan, upstream.placeholder, hole, markers)
        marker = column(spark, markers[0]).isNotNull()
        columns = []
        for name, value in routed_columns(operator, key_groups).items():
            # no user's expression is computed for a marker row: nulls could make it fail
            columns.append(F.when(~marker, value).alias(name))
        marked = [column(spark, m).alias(m.name()) for m in markers]
        routed = of_rows(spark, plan).select(*columns, *marked)
        self.plan = analysed(routed)
        self.hole = hole


def _with_markers(spark: SparkSession, plan: Jvm, old: Jvm, new: Jvm, markers: list[Jvm]) -> Jvm:
    """Return `plan` over the leaf `new`, letting marker rows and columns through."""
    if plan.equals(old):
        return new
    (child,) = list(each(plan.children()))
    below = _with_markers(spark, child, old, new, markers)
    name = class_name(plan)
    if name == "Project":
        guarded = [unless_marker(spark, e, markers[0]) for e in each(plan.projectList())]
        return project(spark, [*guarded, *markers], below)
    if name == "Filter":
        return filtered(spark, present_or(spark, markers[0], plan.condition()), below)
    return below  # all other nodes that marker rows pass only describe columns


def unless_marker(spark: SparkSession, expression: Jvm, marker: Jvm) -> Jvm:
    """Return a named expression that is null, not computed, in marker rows."""
    if class_name(expression) != "Alias":
        return expression
    guarded = null_where_present(spark, marker, expression.child())
    return expression.withNewChildren(seq(spark, [guarded]))
