"""Reads one Aggregate node: keys, time, functions and output."""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.operators.spec import NO_TIME_US, AggregateSpec, Kind, Leaf, TimeKey
from headgate.spark.jvm.expressions import alias, column, data_type, known_not_null
from headgate.spark.jvm.gateway import Jvm, class_name, each
from headgate.spark.jvm.plans import analysed, of_rows, project, replace_leaf, template
from headgate.spark.read import types
from headgate.spark.read.buffers import Buffer
from headgate.spark.read.expressions import (
    SESSION_WINDOW,
    WATERMARK,
    calls_aggregate,
    mentions_inside,
    seconds,
    sql_text,
)
from headgate.spark.read.functions import AggregateFunctions
from headgate.spark.read.order import RecordOrder
from headgate.spark.read.plan import AggregateParts, PlannedOperator, Routed, raw_schema
from headgate.spark.read.reading import Given, NodeReader, Reading, Taken
from headgate.spark.read.windows import (
    check_window,
    find_window,
    session_gap_us,
    time_column_of,
    window_numbers,
)
from headgate.spark.read.wording import WAY_OUT

_ANY_GAP_US = 1
"""Replaces a gap that differs from record to record; the row of each record has its session's end."""


class _AggregateReader:
    """Reads one Aggregate node."""

    def __init__(self, reading: Reading, aggregate: Jvm, upstream: PlannedOperator | None) -> None:
        self.reading = reading
        self.spark = reading.spark
        self.aggregate = aggregate
        self.child = aggregate.child()
        self.upstream = upstream
        self.grouping = list(each(aggregate.groupingExpressions()))
        self.output = list(each(aggregate.aggregateExpressions()))
        self._keeps_start = False
        self._advance_us = 0
        self._shown: dict[int, Buffer] = {}

    def read(self) -> PlannedOperator:
        """Return the operator that the node becomes."""
        time_index, time, slice_start = self._time_key()
        keys: list[Routed] = []
        spans: list[tuple[int, int]] = []
        for index, expression in enumerate(self.grouping):
            start = len(keys)
            if index != time_index:
                keys += self._key(expression, start)
            elif self._keeps_start:
                keys.append(self._start(index, start))
            spans.append((start, len(keys)))
        order = RecordOrder(self.reading, each(self.child.output()))
        functions = AggregateFunctions(self.spark, self.grouping, order)
        if time is not None and time.session:
            functions.add_end(F.unix_micros(self._column(time_index).getField("end")))
        for index, expression in enumerate(self.grouping):
            kind = data_type(expression.dataType())
            if types.collated(kind):
                # of equal texts under a collation, the output has the first record's text
                self._shown[index] = functions.add_first(kind, self._column(index))
        for expression in self.output:
            functions.collect(expression)
        spec = AggregateSpec(
            keys=tuple(k.leaf for k in keys),
            time=time,
            aggregates=tuple(functions.aggregates),
            mode=self.reading.mode,
            kept=tuple(collection.kept for collection in functions.kept),
        )
        placeholder, output_plan = self._output_plan(spec, functions, spans, time_index)
        operator = self.reading.operator(
            "aggregate",
            self._what(time, time_index) + functions.how(),
            spec,
            taken=Taken(
                plan=self.child,
                keys=keys,
                values=[*functions.values, *functions.kept_values],
                key_names=[sql_text(e) for e in self.grouping],
                slice_start=slice_start,
                arrival=self.reading.arrived(each(self.child.output()), self.upstream),
            ),
            given=Given(
                plan=output_plan,
                placeholder=placeholder,
                raw_schema=raw_schema(spec, functions.values),
                time_output=self._position(time_index),
            ),
            upstream=self.upstream,
        )
        operator.aggregate = AggregateParts(
            tuple(self.grouping),
            tuple(spans),
            time_index,
            self._keeps_start,
            tuple(functions.parts),
            self._advance_us,
            tuple(order.used),
        )
        return operator

    def _column(self, index: int) -> Column:
        return column(self.spark, self.grouping[index])

    def _position(self, time_index: int) -> int | None:
        if time_index < 0:
            return None
        time = self.grouping[time_index]
        positions = [i for i, e in enumerate(self.output) if e.toAttribute().semanticEquals(time)]
        return positions[0] if positions else None

    def _what(self, time: TimeKey | None, time_index: int) -> str:
        names = [sql_text(e) for i, e in enumerate(self.grouping) if i != time_index]
        text = f"Aggregate keys {', '.join(names) or '(none)'}"
        if time is not None and time.size_us:
            one_by_one = time.session and time.size_us == _ANY_GAP_US
            what = "session with a gap of" if time.session else "window"
            text += f"; {what} " + ("each record's own" if one_by_one else seconds(time.size_us))
            if time.sliced:
                text += f" / {seconds(time.advance_us)} as slices of {seconds(time.slice_us)}"
        elif time is not None:
            text += f"; time {sql_text(self.grouping[time_index])}"
        calls = [sql_text(e) for e in self.output if calls_aggregate(e)]
        return text + f"; {', '.join(calls)}"

    def _start(self, index: int, start: int) -> Routed:
        leaf = Leaf(Kind.INTEGER)
        return Routed(f"k{start}", leaf, F.unix_micros(self._column(index).getField("start")))

    def _key(self, expression: Jvm, start: int) -> list[Routed]:
        value = column(self.spark, expression)
        kind = data_type(expression.dataType())
        leaves = types.key_leaves(kind, value)
        return [Routed(f"k{start + i}", leaf, part) for i, (leaf, part) in enumerate(leaves)]

    # -- time -------------------------------------------------------------------------------------

    def _time_key(self) -> tuple[int, TimeKey | None, Column | None]:
        """Return the grouping expression that is the time: (index or -1, time, slice start)."""
        for index, expression in enumerate(self.grouping):
            if class_name(expression) != "AttributeReference":
                continue
            expires = expression.metadata().contains(WATERMARK)
            kind = data_type(expression.dataType())
            if isinstance(kind, T.StructType) and kind.names == ["start", "end"]:
                window = self._window(expression, expires)
                if window is not None:
                    return index, *window
            elif isinstance(kind, T.TimestampType) and expires:
                time_us = F.unix_micros(column(self.spark, expression))
                return index, TimeKey(0, 1, 0), F.coalesce(time_us, F.lit(NO_TIME_US))
        return -1, None, None

    def _window(self, attribute: Jvm, expires: bool) -> tuple[TimeKey, Column] | None:
        start = F.unix_micros(column(self.spark, attribute).getField("start"))
        if attribute.metadata().contains(SESSION_WINDOW):
            gap_us = session_gap_us(self.spark, self.child, attribute) or _ANY_GAP_US
            return TimeKey(gap_us, gap_us, expires=expires, session=True), start
        if self.upstream is not None:
            # the window comes from the upstream operator: group by the window, without cutting it
            time = self.upstream.spec.time
            if time is not None and time.size_us and self._passes(attribute):
                whole = TimeKey(time.size_us, time.size_us, time.offset_us, expires)
                return whole, start
        pair = find_window(self.child, attribute)
        if pair is None:
            if expires and (self.reading.feeds or self.upstream is not None):
                # the rows bring windows of any length: the start becomes a key, the end the time
                self._keeps_start = True
                end = F.unix_micros(column(self.spark, attribute).getField("end"))
                return TimeKey(0, 1, 0), F.coalesce(end, F.lit(NO_TIME_US))
            if expires:
                msg = (
                    f"cannot find how the window {attribute.name()} was made; group by F.window(...) "
                    f"itself, {WAY_OUT}."
                )
                raise UnsupportedQuery(msg)
            return None
        node, expression = pair
        size, advance, offset = window_numbers(expression)
        time_column = time_column_of(expression)
        check_window(self.spark, node, expression, time_column, (size, advance, offset))
        if class_name(node) != "Expand":
            self._advance_us = advance
            return TimeKey(size, size, offset, expires), start
        time = TimeKey(size, advance, offset, expires)
        passed_on = self._only_passed_on(node, attribute)
        self._advance_us = advance if passed_on else 0
        if not self.reading.whole_windows and passed_on:
            self.child = self._cut_into_slices(node, attribute, time_column, time)
            return time, start
        # the user wants whole windows, or computes with them: a record counts in each of its windows
        return TimeKey(size, size, offset, expires), start

    def _passes(self, attribute: Jvm) -> bool:
        wanted = attribute.exprId()
        upstream = self.upstream
        return upstream is not None and any(
            a.exprId().equals(wanted) for a in each(upstream.output_plan.output())
        )

    def _only_passed_on(self, expand: Jvm, attribute: Jvm) -> bool:
        """Return whether no node from `expand` to Aggregate computes with the window or renames it."""
        wanted = attribute.exprId()
        if not any(out.exprId().equals(wanted) for out in each(expand.output())):
            return False
        for expression in [*self.grouping, *self.output]:
            if mentions_inside(expression, wanted):
                return False
        plan = self.child
        while not plan.equals(expand):
            made_by_window = class_name(plan) == "Filter" and plan.child().equals(expand)
            if not made_by_window:
                for expression in each(plan.expressions()):
                    if mentions_inside(expression, wanted):
                        return False
            plan = next(each(plan.children()))
        return True

    def _cut_into_slices(self, expand: Jvm, attribute: Jvm, time_column: Jvm, time: TimeKey) -> Jvm:
        """Replace the expansion into windows by one slice for each record."""
        below = expand.child()
        micros = f"{time.slice_us} microseconds"
        offset = f"{time.offset_us % time.slice_us} microseconds"
        window = F.window(column(self.spark, time_column), micros, micros, offset)
        sliced = of_rows(self.spark, below).select("*", window.alias("window"))
        made = analysed(sliced)
        slice_attribute = list(each(made.output()))[-1]
        outputs = []
        for out in each(expand.output()):
            if out.exprId().equals(attribute.exprId()):
                named = alias(
                    self.spark, slice_attribute, out.name(), out.exprId(), attribute.metadata()
                )
                outputs.append(named)
            else:
                outputs.append(out)
        replacement = project(self.spark, outputs, made)
        return replace_leaf(self.spark, self.child, expand, replacement)

    # -- output -----------------------------------------------------------------------------------

    def _output_plan(
        self,
        spec: AggregateSpec,
        functions: AggregateFunctions,
        spans: list[tuple[int, int]],
        time_index: int,
    ) -> tuple[Jvm, Jvm]:
        raw = template(self.spark, raw_schema(spec, functions.values))
        placeholder = analysed(raw)
        typed = []
        for index, expression in enumerate(self.grouping):
            kind = data_type(expression.dataType())
            if index == time_index:
                begins = F.col(f"k{spans[index][0]}") if self._keeps_start else None
                value = time_value(spec.time, kind, begins)
            elif index in self._shown:
                value = self._shown[index].value()
            else:
                start, stop = spans[index]
                value = types.rebuild(kind, [F.col(f"k{i}") for i in range(start, stop)])
            typed.append(self._typed(value, f"g{index}", expression.nullable()))
        for buffer in functions.buffers:
            typed.append(self._typed(buffer.value(), buffer.name, buffer.nullable))
        frame = raw.select(*typed)
        made = analysed(frame)
        attributes = {a.name(): a for a in each(made.output())}
        replacements = [(e, attributes[f"g{i}"]) for i, e in enumerate(self.grouping)]
        outputs = []
        for expression in self.output:
            new = functions.results(expression, replacements, attributes)
            if class_name(new) not in ("Alias",) or not new.exprId().equals(expression.exprId()):
                named = expression.toAttribute()
                new = alias(self.spark, new, named.name(), expression.exprId(), named.metadata())
            outputs.append(new)
        return placeholder, project(self.spark, outputs, made)

    def _typed(self, value: Column, name: str, nullable: bool) -> Column:
        return (value if nullable else known_not_null(value)).alias(name)


def time_value(time: TimeKey | None, kind: T.DataType, begins: Column | None = None) -> Column:
    """Return the time of a row; `begins` is the window's start, if the start is a key."""
    assert time is not None
    end = F.call_function("timestamp_micros", F.col("t"))
    if not isinstance(kind, T.StructType):
        return F.when(F.col("t") != F.lit(NO_TIME_US), end)
    # a session's first value is its start
    start_us = F.col("v0") if time.session else F.col("t") - F.lit(time.size_us)
    start_us = start_us if begins is None else begins
    start = F.call_function("timestamp_micros", start_us)
    # nullable; if it is not so in the user's plan, `_typed` declares that
    there = F.col("t").isNotNull() if begins is None else begins.isNotNull()
    return F.when(there, F.struct(start.alias("start"), end.alias("end")))


def _read(reading: Reading, node: Jvm, upstream: PlannedOperator | None) -> PlannedOperator:
    return _AggregateReader(reading, node, upstream).read()


READER = NodeReader(("Aggregate",), _read)
