"""Reads one stream-stream Join node: keys, comparisons, kept columns, and how long they are kept.

Both sides become one stream of routed rows with a column for the side, so that exchange, backlog, state
and commit are as for any operator. Catalyst computes conjuncts about one side only, below the slots. For
an inner join it also computes, above the slots, the conjuncts that slots cannot.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.operators.join.operator import EXPIRY, FIRST_LEAF, MAY_MATCH, SIDE
from headgate.operators.join.spec import LEFT, RIGHT, Comparison, JoinKind, JoinSpec
from headgate.operators.spec import NEVER_US, NO_TIME_US, Kind, Leaf, TimeKey
from headgate.spark.jvm.analysis import state_watermark_ms
from headgate.spark.jvm.expressions import column, data_type, known_not_null
from headgate.spark.jvm.gateway import Jvm, class_name, each
from headgate.spark.jvm.plans import analysed, filtered, named_as, of_rows, template
from headgate.spark.read import types
from headgate.spark.read.conditions import Condition, ConditionReader
from headgate.spark.read.expressions import (
    WATERMARK,
    attributes_used,
    event_time_us,
    seconds,
    sql_text,
)
from headgate.spark.read.plan import JoinPart, PlannedOperator, Routed
from headgate.spark.read.reading import Given, NodeReader, Reading, Taken
from headgate.spark.read.wording import WAY_OUT

_KINDS = {
    "INNER": JoinKind.INNER,
    "CROSS": JoinKind.INNER,
    "LEFT OUTER": JoinKind.LEFT_OUTER,
    "RIGHT OUTER": JoinKind.RIGHT_OUTER,
    "FULL OUTER": JoinKind.FULL_OUTER,
    "LEFT SEMI": JoinKind.LEFT_SEMI,
}
_SOME_WATERMARK_MS = 2**40
"""Watermark for asking Spark how far a side's state lags behind the watermark; any value would do."""


@dataclass
class _Side:
    """Holds the facts of one side of the join."""

    plan: Jvm
    """plan node."""
    attributes: list[Jvm]
    """list of attribute: output columns of the side."""
    leaves: list[tuple[Leaf, Column]]
    """Leaves of `attributes`, then leaves that are only compared."""
    spans: list[tuple[int, int]]
    """(first, stop) of each attribute's leaves."""
    event_time: Jvm | None
    """attribute or None."""
    lag_us: int | None = None
    """A record is removed when its time is this far behind the watermark; None: never."""
    expiry_us: Column | None = None
    compared: list[tuple[int, Jvm]] = field(default_factory=list)
    """list of (int, expression): positions of leaves that are only compared, not put out."""


class _JoinReader:
    """Reads one node; slots keep only columns to which the plan above the join refers."""

    def __init__(self, reading: Reading, node: Jvm) -> None:
        self.reading = reading
        self.spark = reading.spark
        self.node = node
        self._conditions = ConditionReader(self.spark, node)
        self.condition: Condition = self._conditions.read()
        self.kind = self._kind()
        used = attributes_used(reading.plan, node if reading.node is None else reading.node)
        for expression in self.condition.rest:
            used |= {a.exprId().toString() for a in each(expression.references().toSeq())}
        self.sides = [self._side(node.left(), LEFT, used), self._side(node.right(), RIGHT, used)]
        self._inputs = reading.arrivals([side.plan for side in self.sides])

    def _kind(self) -> JoinKind:
        name = self.node.joinType().sql()
        if name not in _KINDS:
            msg = f"cannot run a {name.lower()} join of two streams elastically; use another, {WAY_OUT}."
            raise UnsupportedQuery(msg)
        kind = _KINDS[name]
        if kind is not JoinKind.INNER and self.condition.rest:
            msg = (
                f"cannot run a {name.lower()} join on {sql_text(self.condition.rest[0])[:80]}: compare a "
                f"number or a time of one stream with one of the other, {WAY_OUT}."
            )
            raise UnsupportedQuery(msg)
        if kind is not JoinKind.INNER and not self.condition.keys:
            msg = (
                f"cannot run a {name.lower()} join without an equality; add one, or make it an inner "
                "join."
            )
            raise UnsupportedQuery(msg)
        return kind

    def _side(self, plan: Jvm, side: int, used: set[str]) -> _Side:
        attributes = [a for a in each(plan.output()) if a.exprId().toString() in used]
        if self.kind is JoinKind.LEFT_SEMI and side == RIGHT:
            attributes = []
        leaves: list[tuple[Leaf, Column]] = []
        spans = []
        for attribute in attributes:
            value = column(self.spark, attribute)
            own = types.any_leaves(data_type(attribute.dataType()), value)
            spans.append((len(leaves), len(leaves) + len(own)))
            leaves += own
        times = [a for a in each(plan.output()) if a.metadata().contains(WATERMARK)]
        return _Side(plan, attributes, leaves, spans, times[0] if times else None)

    def read(self) -> PlannedOperator:
        """Return the operator that the node becomes."""
        if not any(side.leaves for side in self.sides):
            msg = f"cannot join two streams and keep no column of them; select one, {WAY_OUT}."
            raise UnsupportedQuery(msg)
        put_out = (len(self.sides[LEFT].leaves), len(self.sides[RIGHT].leaves))
        comparisons = self._comparisons()
        keys, key_leaves = self._keys()
        self._expiries()
        left, right = self.sides
        timed = any(side.event_time is not None for side in self.sides)
        lags = [side.lag_us for side in self.sides]
        spec = JoinSpec(
            keys=tuple(key_leaves),
            sides=(tuple(x for x, _ in left.leaves), tuple(x for x, _ in right.leaves)),
            put_out=put_out,
            kind=self.kind,
            comparisons=comparisons,
            time=TimeKey(0, 1) if timed else None,
            holds_us=None if None in lags else -max(lag for lag in lags if lag is not None),
            mode=self.reading.mode,
        )
        together = self._side_frame(LEFT, keys, timed).unionByName(
            self._side_frame(RIGHT, keys, timed)
        )
        leaves = [Leaf(Kind.INTEGER)] * FIRST_LEAF + [*spec.sides[LEFT], *spec.sides[RIGHT]]
        raw = self._raw_schema(spec)
        placeholder = analysed(template(self.spark, raw))
        operator = self.reading.operator(
            "join",
            self._what(),
            spec,
            taken=Taken(
                plan=analysed(together),
                keys=[Routed(f"k{i}", x, F.col(f"k{i}")) for i, x in enumerate(key_leaves)],
                values=[Routed(f"v{i}", x, F.col(f"v{i}")) for i, x in enumerate(leaves)],
                key_names=[f"{sql_text(a)} = {sql_text(b)}" for a, b, _ in self.condition.keys],
                slice_start=F.col("t") if timed else None,
                arrival=F.col("arrival") if "arrival" in together.columns else None,
            ),
            given=Given(self._output_plan(placeholder), placeholder, raw),
        )
        operator.join = tuple(
            JoinPart(
                tuple(side.attributes),
                tuple(side.spans),
                tuple(side.compared),
                tuple(key[at] for key in self.condition.keys),
            )
            for at, side in enumerate(self.sides)
        )
        return operator

    def _what(self) -> str:
        keys = ", ".join(f"{sql_text(a)} = {sql_text(b)}" for a, b, _ in self.condition.keys)
        text = f"Join {self.kind.name.lower().replace('_', ' ')} "
        if keys:
            text += f"on {keys}"
        else:
            text += "without an equality: every slot sees every record, one stores it"
        text += "".join(f"; {said}" for said in self.condition.said)
        for name, side in zip(("left", "right"), self.sides, strict=True):
            lag = side.lag_us
            text += f"; {name} kept " + ("for ever" if lag is None else f"for {seconds(lag)}")
        if self.condition.rest:
            text += f"; Catalyst checks {', '.join(sql_text(x)[:60] for x in self.condition.rest)}"
        return text

    def _comparisons(self) -> tuple[Comparison, ...]:
        """Return the comparisons over leaves; an operand that is no output column gets a leaf."""
        comparisons = []
        for left, op, right in self.condition.comparisons:
            comparisons.append(Comparison(self._leaf(LEFT, left), self._leaf(RIGHT, right), op))
        return tuple(comparisons)

    def _leaf(self, at: int, expression: Jvm) -> int:
        side = self.sides[at]
        for attribute, (start, stop) in zip(side.attributes, side.spans, strict=True):
            if stop - start == 1 and attribute.semanticEquals(expression):
                return start
        kind, value = data_type(expression.dataType()), column(self.spark, expression)
        ((leaf, part),) = types.leaves(kind, value, sql_text(expression))
        side.compared.append((len(side.leaves), expression))
        side.leaves.append((leaf, part))
        return len(side.leaves) - 1

    def _keys(self) -> tuple[tuple[list[Column], list[Column]], list[Leaf]]:
        """Return the key columns of each side, and their leaves."""
        columns: tuple[list[Column], list[Column]] = ([], [])
        leaves: list[Leaf] = []
        for left, right, _ in self.condition.keys:
            for side, expression in enumerate((left, right)):
                kind, value = data_type(expression.dataType()), column(self.spark, expression)
                parts = types.key_leaves(kind, value)
                columns[side].extend(part for _, part in parts)
                if side == LEFT:
                    leaves += [leaf for leaf, _ in parts]
        return columns, leaves

    # -- how long a record is kept ------------------------------------------------------------------

    def _expiries(self) -> None:
        """Set, as Spark does, the time after which a record of each side can have no more partners."""
        in_key = self._watermarked_key()
        for at, side in enumerate(self.sides):
            if in_key is not None:
                expression = self.condition.keys[in_key][at]
                side.lag_us, side.expiry_us = 0, event_time_us(self.spark, expression)
            elif side.event_time is not None:
                lag_us = self._lag_us(side, self.sides[1 - at])
                if lag_us is not None:
                    side.lag_us = lag_us
                    time_us = event_time_us(self.spark, side.event_time)
                    side.expiry_us = time_us + F.lit(lag_us)

    def _watermarked_key(self) -> int | None:
        """Return the first key that is event time, first by the left side, then by the right side."""
        pairs: list[tuple[Jvm, Jvm]] = [(left, right) for left, right, _ in self.condition.keys]
        for at in (LEFT, RIGHT):
            for index, pair in enumerate(pairs):
                named = class_name(pair[at]) == "AttributeReference"
                if named and pair[at].metadata().contains(WATERMARK):
                    return index
        return None

    def _lag_us(self, side: _Side, other: _Side) -> int | None:
        """Return how far a side's state lags behind the watermark, as Spark computes it."""
        found_ms = state_watermark_ms(
            self.spark,
            side.plan.outputSet(),
            other.plan.outputSet(),
            self._conditions.between(),
            _SOME_WATERMARK_MS,
        )
        return None if found_ms is None else (_SOME_WATERMARK_MS - found_ms) * 1000

    # -- input and output ---------------------------------------------------------------------------

    def _side_frame(
        self, at: int, keys: tuple[list[Column], list[Column]], timed: bool
    ) -> DataFrame:
        """Return one side's routed columns, with nulls for the other side's."""
        side = self.sides[at]
        may = self._may_match(at)
        values = {SIDE: F.lit(at).cast("bigint"), MAY_MATCH: may.cast("int").cast("bigint")}
        never = F.lit(int(NEVER_US))
        values[EXPIRY] = never if side.expiry_us is None else F.coalesce(side.expiry_us, never)
        number = FIRST_LEAF
        for other in (LEFT, RIGHT):
            for leaf, part in self.sides[other].leaves:
                nothing = F.lit(None).cast(types.spark_type(leaf))
                values[number] = part if other == at else nothing
                number += 1
        columns = [value.alias(f"k{i}") for i, value in enumerate(keys[at])]
        columns += [value.alias(f"v{i}") for i, value in sorted(values.items())]
        if timed:
            time = side.event_time
            time_us = F.lit(NO_TIME_US) if time is None else event_time_us(self.spark, time)
            columns.append(time_us.alias("t"))
        plan, arrived = self._inputs[at]
        if arrived is not None:
            columns.append(arrived.alias("arrival"))
        frame = of_rows(self.spark, plan)
        if at not in self.kind.padded:
            frame = frame.where(may)
        return frame.select(*columns)

    def _may_match(self, at: int) -> Column:
        """Return whether a record can match at all, by the conjuncts about its own side."""
        needs = [column(self.spark, e) for e in self.condition.sides[at]]
        if at == RIGHT:
            # a conjunct without columns is in the left side's list, and holds for both sides
            needs += [
                column(self.spark, e)
                for e in self.condition.sides[LEFT]
                if e.references().isEmpty()
            ]
        for key in self.condition.keys:
            if not key[2]:
                needs.append(column(self.spark, key[at]).isNotNull())
        for comparison in self.condition.comparisons:
            needs.append(column(self.spark, comparison[0 if at == LEFT else 2]).isNotNull())
        return F.coalesce(reduce(lambda a, b: a & b, needs, F.lit(True)), F.lit(False))

    def _raw_schema(self, spec: JoinSpec) -> T.StructType:
        left, right = spec.sides
        leaves = [*left[: spec.put_out[LEFT]], *right[: spec.put_out[RIGHT]]]
        return T.StructType(
            [T.StructField(f"v{i}", types.spark_type(x)) for i, x in enumerate(leaves)]
        )

    def _output_plan(self, placeholder: Jvm) -> Jvm:
        """Return the plan of the Join's used output columns, filtered by the rest of its condition."""
        declared = {a.exprId().toString(): a for a in each(self.node.output())}
        typed: list[Column] = []
        named, first = [], 0
        for side in self.sides:
            for attribute, (start, stop) in zip(side.attributes, side.spans, strict=True):
                parts = [F.col(f"v{first + i}") for i in range(start, stop)]
                value = types.rebuild(data_type(attribute.dataType()), parts)
                out = declared[attribute.exprId().toString()]
                value = value if out.nullable() else known_not_null(value)
                typed.append(value.alias(f"o{len(typed)}"))
                named.append(out)
            first += max((stop for _, stop in side.spans), default=0)
        plan = named_as(of_rows(self.spark, placeholder).select(*typed), named)
        for expression in self.condition.rest:
            plan = filtered(self.spark, expression, plan)
        return plan


def _read(reading: Reading, node: Jvm, upstream: PlannedOperator | None) -> PlannedOperator:
    return _JoinReader(reading, node).read()


def _joins_streams(node: Jvm) -> bool:
    return all(child.isStreaming() for child in each(node.children()))


READER = NodeReader(("Join",), _read, applies=_joins_streams)
