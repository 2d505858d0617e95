"""Reading an ordinary PySpark query from its analysed plan.

The plan is a tree; from the top: nodes that Catalyst keeps ("above"), an Aggregate, nodes below it,
perhaps another Aggregate, and a source. Every Aggregate becomes an `Operator`: an `AggregateSpec` for
the slots, the expressions that route its input, and the expressions that turn merged buffers into what
the Aggregate would have put out, with the same attribute ids, so that everything above it stays as the
user wrote it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import UnsupportedQuery
from headgate.engines.spark import types
from headgate.engines.spark.gateway import (
    Jvm,
    alias,
    analysed,
    class_name,
    column,
    data_type,
    each,
    jvm,
    known_not_null,
    of_rows,
    project,
    replace_leaf,
    seq,
    template,
)
from headgate.operators.spec import Aggregate, AggregateSpec, Kind, Leaf, Op, OutputMode, TimeKey

_WATERMARK = "spark.watermarkDelayMs"
_ABOVE = {"Project", "Filter", "SubqueryAlias", "View", "Union", "ResolvedHint"}
_ABOVE_COMPLETE = {"Sort", "GlobalLimit", "LocalLimit"}
_BELOW = {
    "Project",
    "Filter",
    "SubqueryAlias",
    "View",
    "Union",
    "ResolvedHint",
    "EventTimeWatermark",
    "UpdateEventTimeWatermarkColumn",
    "StreamingRelation",
    "StreamingRelationV2",
    "Generate",
    "Expand",
    "Join",
    "Repartition",
    "RepartitionByExpression",
    "MapInArrow",
    "MapInPandas",
    "PythonMapInArrow",
    "BatchEvalPython",
    "ArrowEvalPython",
}
_SUPPORTED = "count, sum, min, max, avg, first, last, max_by, min_by"
_WAY_OUT = 'or .fallback("spark") to run the whole query as plain Spark'


@dataclass(frozen=True)
class Routed:
    """One column of routed input: its short name, its leaf, its expression over the input plan.

    Attributes
    ----------
    name : str
        ``k0 ..``, ``v0 ..``.
    leaf : Leaf
    value : Column
        For a value: the record's own buffer.
    """

    name: str
    leaf: Leaf
    value: Column


@dataclass
class Operator:
    """One stateful operator of a query.

    Attributes
    ----------
    id : str
        ``aggregate-0``, counted from the source upwards.
    what : str
        For people: keys, window, aggregates.
    level : int
        Operators of level n read what level n - 1 put out.
    upstream : Operator or None
        None for an operator that reads the source.
    spec : AggregateSpec
    input_plan : plan node
        What the Aggregate reads (a window already cut into slices). Its leaf is
        ``upstream.placeholder`` where there is an upstream operator.
    keys, values : list of Routed
    slice_start : Column or None
        Microseconds.
    output_plan : plan node
        What the Aggregate puts out, as a plan over ``placeholder``.
    placeholder : plan node
        Stands for the merged buffers: ``k0 ..``, ``t``, ``v0 ..``.
    key_names : list of str
        The grouping expressions as SQL.
    time_output : int or None
        Position of the time among what the Aggregate puts out, if it is there.
    arrival : Column or None
        When a record arrived, as a timestamp expression over the input.
    """

    id: str
    what: str
    level: int
    upstream: Operator | None
    spec: AggregateSpec
    input_plan: Jvm
    keys: list[Routed]
    values: list[Routed]
    slice_start: Column | None
    output_plan: Jvm
    placeholder: Jvm
    key_names: list[str] = field(default_factory=list)
    time_output: int | None = None
    arrival: Column | None = None

    @property
    def raw_schema(self) -> T.StructType:
        """Spark's schema of the merged buffers."""
        return raw_schema(self.spec, self.values)


@dataclass
class Query:
    """A query as headgate runs it.

    Attributes
    ----------
    operators : list of Operator
        From the source upwards; empty for a stateless query.
    plan : plan node
        What the user wrote above the last operators, over their placeholders.
    schema : StructType
        What the user's query puts out.
    mode : OutputMode
    notes : list of str
        What stays in Catalyst, for `explain`.
    """

    operators: list[Operator]
    plan: Jvm
    schema: T.StructType
    mode: OutputMode
    notes: list[str] = field(default_factory=list)

    @property
    def chains(self) -> list[list[Operator]]:
        """Operators in chains, each from the source to the query's output."""
        feeding = {id(x.upstream) for x in self.operators}
        chains = []
        for last in self.operators:
            if id(last) in feeding:
                continue
            chain = [last]
            while chain[0].upstream is not None:
                chain.insert(0, chain[0].upstream)
            chains.append(chain)
        return chains


def raw_schema(spec: AggregateSpec, values: list[Routed]) -> T.StructType:
    """Return the schema of merged buffers: key leaves, time, value leaves."""
    fields = [T.StructField(f"k{i}", types.spark_type(x)) for i, x in enumerate(spec.keys)]
    if spec.time is not None:
        fields.append(T.StructField("t", T.LongType()))
    return T.StructType(fields + [T.StructField(v.name, types.spark_type(v.leaf)) for v in values])


def read(df: DataFrame, mode: str, arrival: str | None = None) -> Query:
    """Return the query behind `df`.

    Parameters
    ----------
    df : DataFrame
        A streaming DataFrame.
    mode : str
        append, update or complete.
    arrival : str or None
        Name of a timestamp column that says when a record arrived.

    Raises
    ------
    UnsupportedQuery
        Some part cannot run elastically; the message names it.
    """
    spark = df.sparkSession
    plan = analysed(df)
    if not plan.isStreaming():
        msg = "this DataFrame is not streaming; read its source with spark.readStream."
        raise UnsupportedQuery(msg)
    _check_with_spark(spark, plan, mode)
    reader = _Reader(spark, OutputMode[mode.upper()], arrival)
    above = reader.above(plan)
    return Query(reader.operators, above, df.schema, reader.mode, reader.notes)


def _check_with_spark(spark: SparkSession, plan: Jvm, mode: str) -> None:
    """Let Spark itself judge the output mode, in its own words."""
    java = jvm(spark)
    checker = java.org.apache.spark.sql.catalyst.analysis.UnsupportedOperationChecker
    output_modes = java.org.apache.spark.sql.streaming.OutputMode
    factory = {"append": "Append", "update": "Update", "complete": "Complete"}
    if mode not in factory:
        msg = f'unknown output mode "{mode}"; use append, update or complete.'
        raise UnsupportedQuery(msg)
    if _contains(plan, "Aggregate"):
        checker.checkForStreaming(plan, getattr(output_modes, factory[mode])())


def _contains(plan: Jvm, name: str) -> bool:
    return class_name(plan) == name or any(_contains(c, name) for c in each(plan.children()))


class _Reader:
    """Walks the plan once."""

    def __init__(self, spark: SparkSession, mode: OutputMode, arrival: str | None) -> None:
        self.spark = spark
        self.mode = mode
        self.arrival = arrival
        self.operators: list[Operator] = []
        self.notes: list[str] = []

    def above(self, plan: Jvm) -> Jvm:
        """Return what stands above the operators, over their placeholders."""
        name = class_name(plan)
        if name == "Aggregate" and plan.isStreaming():
            return self._operator(plan).output_plan
        if not _contains(plan, "Aggregate"):
            self._check_below(plan)
            return plan
        allowed = _ABOVE | (_ABOVE_COMPLETE if self.mode is OutputMode.COMPLETE else set())
        if name not in allowed:
            msg = f"cannot keep {_describe(plan)} above an elastic aggregate; drop it, {_WAY_OUT}."
            raise UnsupportedQuery(msg)
        children = list(each(plan.children()))
        if len(children) > 1 and not all(_contains(c, "Aggregate") for c in children):
            msg = (
                f"cannot mix stateful and stateless inputs in {_describe(plan)}; write them as two "
                f"queries, {_WAY_OUT}."
            )
            raise UnsupportedQuery(msg)
        self.notes.append(name)
        replaced = [self.above(child) for child in children]
        return plan.withNewChildren(seq(self.spark, replaced))

    def _check_below(self, plan: Jvm) -> None:
        """Refuse what is stateful or unknown below an operator."""
        if not plan.isStreaming():
            return
        name = class_name(plan)
        streaming = [child for child in each(plan.children()) if child.isStreaming()]
        if name not in _BELOW or (name == "Join" and len(streaming) > 1):
            what = "a stream-stream join" if name == "Join" else _describe(plan)
            msg = f"cannot run {what} elastically; drop it, {_WAY_OUT}."
            raise UnsupportedQuery(msg)
        for child in streaming:
            self._check_below(child)

    def _operator(self, aggregate: Jvm) -> Operator:
        child = aggregate.child()
        upstream = None
        if _contains(child, "Aggregate"):
            before = len(self.operators)
            child = self.above(child)
            if len(self.operators) - before > 1 and _direct(self.operators[before:]) > 1:
                msg = f"cannot aggregate over a union of aggregates; write it as two queries, {_WAY_OUT}."
                raise UnsupportedQuery(msg)
            upstream = self.operators[-1]
        else:
            self._check_below(child)
        operator = _AggregateReader(self, aggregate, child, upstream).read()
        self.operators.append(operator)
        return operator


def _direct(operators: list[Operator]) -> int:
    feeding = {id(x.upstream) for x in operators}
    return sum(1 for x in operators if id(x) not in feeding)


def _describe(plan: Jvm) -> str:
    text = plan.simpleString(60).replace("~", "")
    return f"{class_name(plan)} ({re.sub(r'#[0-9]+L?', '', text)[:80]})"


class _AggregateReader:
    """Reads one Aggregate node."""

    def __init__(
        self, reader: _Reader, aggregate: Jvm, child: Jvm, upstream: Operator | None
    ) -> None:
        self.reader = reader
        self.spark = reader.spark
        self.aggregate = aggregate
        self.child = child
        self.upstream = upstream
        self.grouping = list(each(aggregate.groupingExpressions()))
        self.output = list(each(aggregate.aggregateExpressions()))

    def read(self) -> Operator:
        time_index, time, slice_start = self._time_key()
        keys: list[Routed] = []
        spans: list[tuple[int, int]] = []
        for index, expression in enumerate(self.grouping):
            start = len(keys)
            if index != time_index:
                keys += self._key(expression, start)
            spans.append((start, len(keys)))
        functions = _AggregateFunctions(self)
        for expression in self.output:
            functions.collect(expression)
        spec = AggregateSpec(
            keys=tuple(k.leaf for k in keys),
            time=time,
            aggregates=tuple(functions.aggregates),
            mode=self.reader.mode,
        )
        placeholder, output_plan = self._output_plan(spec, functions, spans, time_index)
        return Operator(
            id=f"aggregate-{len(self.reader.operators)}",
            what=self._what(time, time_index),
            level=0 if self.upstream is None else self.upstream.level + 1,
            upstream=self.upstream,
            spec=spec,
            input_plan=self.child,
            keys=keys,
            values=functions.values,
            slice_start=slice_start,
            output_plan=output_plan,
            placeholder=placeholder,
            key_names=[_sql(e) for e in self.grouping],
            time_output=self._position(time_index),
            arrival=self._arrival(),
        )

    def _position(self, time_index: int) -> int | None:
        if time_index < 0:
            return None
        time = self.grouping[time_index]
        found = [i for i, e in enumerate(self.output) if e.toAttribute().semanticEquals(time)]
        return found[0] if found else None

    def _what(self, time: TimeKey | None, time_index: int) -> str:
        names = [_sql(e) for i, e in enumerate(self.grouping) if i != time_index]
        text = f"Aggregate keys {', '.join(names) or '(none)'}"
        if time is not None and time.size_us:
            text += f"; window {_seconds(time.size_us)}"
            if time.sliced:
                text += f" / {_seconds(time.advance_us)} as slices of {_seconds(time.slice_us)}"
        elif time is not None:
            text += f"; time {_sql(self.grouping[time_index])}"
        calls = [_sql(e) for e in self.output if _calls(e)]
        return text + f"; {', '.join(calls)}"

    def _key(self, expression: Jvm, start: int) -> list[Routed]:
        value = column(self.spark, expression)
        found = types.leaves(data_type(expression.dataType()), value, f"key {_sql(expression)}")
        return [
            Routed(f"k{start + i}", leaf, types.normalised(leaf, part))
            for i, (leaf, part) in enumerate(found)
        ]

    def _arrival(self) -> Column | None:
        if self.reader.arrival is None or self.upstream is not None:
            return None
        for attribute in each(self.child.output()):
            if attribute.name() == self.reader.arrival:
                return column(self.spark, attribute)
        return None

    # -- time -------------------------------------------------------------------------------------

    def _time_key(self) -> tuple[int, TimeKey | None, Column | None]:
        """Find the grouping expression that is time: (index or -1, time, slice start)."""
        for index, expression in enumerate(self.grouping):
            if class_name(expression) != "AttributeReference":
                continue
            expires = expression.metadata().contains(_WATERMARK)
            kind = data_type(expression.dataType())
            if isinstance(kind, T.StructType) and kind.names == ["start", "end"]:
                found = self._window(expression, expires)
                if found is not None:
                    return index, *found
            elif isinstance(kind, T.TimestampType) and expires:
                return index, TimeKey(0, 1, 0), F.unix_micros(column(self.spark, expression))
        return -1, None, None

    def _window(self, attribute: Jvm, expires: bool) -> tuple[TimeKey, Column] | None:
        start = F.unix_micros(column(self.spark, attribute).getField("start"))
        if self.upstream is not None:
            # a window that an operator below put out: it is grouped by, not cut again
            time = self.upstream.spec.time
            if time is not None and time.size_us and self._passes(attribute):
                whole = TimeKey(time.size_us, time.size_us, time.offset_us, expires)
                return whole, start
        found = _find_window(self.child, attribute)
        if found is None:
            if expires:
                msg = (
                    f"cannot find how the window {attribute.name()} was made; group by F.window(...) "
                    f"itself, {_WAY_OUT}."
                )
                raise UnsupportedQuery(msg)
            return None
        node, expression = found
        size, advance, offset = _window_numbers(expression)
        time_column = _time_column(expression)
        _check_window(self.spark, node, expression, time_column, (size, advance, offset))
        if class_name(node) != "Expand":
            return TimeKey(size, size, offset, expires), start
        time = TimeKey(size, advance, offset, expires)
        if self._only_passed_on(node, attribute):
            self.child = self._cut_into_slices(node, attribute, time_column, time)
            return time, start
        # somebody looks into the window below: keep it whole, a record then counts once per window
        return TimeKey(size, size, offset, expires), start

    def _passes(self, attribute: Jvm) -> bool:
        wanted = attribute.exprId()
        upstream = self.upstream
        return upstream is not None and any(
            a.exprId().equals(wanted) for a in each(upstream.output_plan.output())
        )

    def _only_passed_on(self, expand: Jvm, attribute: Jvm) -> bool:
        """Whether nothing between `expand` and the Aggregate computes with the window."""
        wanted = attribute.exprId()
        for expression in [*self.grouping, *self.output]:
            if _mentions_inside(expression, wanted):
                return False
        plan = self.child
        while not plan.equals(expand):
            made_by_window = class_name(plan) == "Filter" and plan.child().equals(expand)
            if not made_by_window:
                for expression in each(plan.expressions()):
                    if _mentions_inside(expression, wanted):
                        return False
            plan = next(each(plan.children()))
        return True

    def _cut_into_slices(
        self, expand: Jvm, attribute: Jvm, time_column: Jvm, time: TimeKey
    ) -> Jvm:
        """Replace the expansion into windows by one slice per record."""
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

    # -- what comes out ---------------------------------------------------------------------------

    def _output_plan(
        self,
        spec: AggregateSpec,
        functions: _AggregateFunctions,
        spans: list[tuple[int, int]],
        time_index: int,
    ) -> tuple[Jvm, Jvm]:
        raw = template(self.spark, raw_schema(spec, functions.values))
        placeholder = analysed(raw)
        typed = []
        for index, expression in enumerate(self.grouping):
            kind = data_type(expression.dataType())
            if index == time_index:
                value = _time_value(spec.time, kind)
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
                new = alias(
                    self.spark, new, named.name(), expression.exprId(), named.metadata()
                )
            outputs.append(new)
        return placeholder, project(self.spark, outputs, made)

    def _typed(self, value: Column, name: str, nullable: bool) -> Column:
        return (value if nullable else known_not_null(value)).alias(name)


def _time_value(time: TimeKey | None, kind: T.DataType) -> Column:
    assert time is not None
    end = F.call_function("timestamp_micros", F.col("t"))
    if not isinstance(kind, T.StructType):
        return end
    start = F.call_function("timestamp_micros", F.col("t") - F.lit(time.size_us))
    # nullable unless the user's plan says otherwise, which `_typed` then declares
    return F.when(F.col("t").isNotNull(), F.struct(start.alias("start"), end.alias("end")))


@dataclass(frozen=True)
class _Buffer:
    """One of Spark's aggregation buffers: its column above the slots, and the leaves it came in."""

    name: str
    type: T.DataType
    columns: list[str]
    nullable: bool
    is_empty: bool = False

    def value(self) -> Column:
        """Return the buffer over the merged leaves."""
        if self.is_empty:
            return F.col(self.columns[0]) == 0  # Spark's "no value yet", which we keep as a count
        return types.rebuild(self.type, [F.col(n) for n in self.columns])


class _AggregateFunctions:
    """The aggregate functions of one Aggregate node, each once."""

    def __init__(self, reader: _AggregateReader) -> None:
        self.spark = reader.spark
        self.reader = reader
        self.aggregates: list[Aggregate] = []
        self.values: list[Routed] = []
        self.buffers: list[_Buffer] = []
        self._known: list[tuple[Jvm, list[str]]] = []
        self._ansi = self.spark.conf.get("spark.sql.ansi.enabled") == "true"

    def collect(self, expression: Jvm) -> None:
        """Add every aggregate function inside `expression`."""
        if class_name(expression) == "AggregateExpression":
            if self._find(expression) is None:
                self._known.append((expression.canonicalized(), self._add(expression)))
            return
        for child in each(expression.children()):
            self.collect(child)

    def _find(self, expression: Jvm) -> list[str] | None:
        wanted = expression.canonicalized()
        return next((names for known, names in self._known if known.equals(wanted)), None)

    def results(
        self, expression: Jvm, replacements: list[tuple[Jvm, Jvm]], attributes: dict[str, Jvm]
    ) -> Jvm:
        """Return `expression` over merged buffers instead of records."""
        if class_name(expression) == "AggregateExpression":
            names = self._find(expression)
            assert names is not None
            return self._evaluated(expression.aggregateFunction(), [attributes[n] for n in names])
        for grouping, attribute in replacements:
            if expression.semanticEquals(grouping):
                return attribute
        children = list(each(expression.children()))
        if not children:
            return expression
        new = [self.results(child, replacements, attributes) for child in children]
        return expression.withNewChildren(seq(self.spark, new))

    def _evaluated(self, function: Jvm, buffers: list[Jvm]) -> Jvm:
        """Return Spark's own final expression of `function` over our buffers."""
        if class_name(function) not in ("Sum", "Average"):
            return buffers[0]
        own = list(each(function.aggBufferAttributes()))
        pairs = list(zip([a.exprId() for a in own], buffers, strict=False))
        return _substitute(self.spark, function.evaluateExpression(), pairs)

    def _add(self, expression: Jvm) -> list[str]:
        function = expression.aggregateFunction()
        name = class_name(function)
        if expression.isDistinct():
            self._refuse(f"{_sql(function)} with DISTINCT")
        children = [column(self.spark, c) for c in each(function.children())]
        if expression.filter().isDefined():
            if name not in ("Count", "Sum", "Average", "Min", "Max"):
                self._refuse(f"{_sql(function)} with FILTER")
            condition = column(self.spark, expression.filter().get())
            children = [F.when(condition, c) for c in children]
        adders = {
            "Count": self._count,
            "Sum": self._sum,
            "Average": self._average,
            "Min": self._extreme,
            "Max": self._extreme,
            "First": self._edge,
            "Last": self._edge,
            "MaxBy": self._by,
            "MinBy": self._by,
        }
        if name not in adders:
            self._refuse(_sql(function))
        return adders[name](function, children)

    def _refuse(self, what: str) -> NoReturn:
        keys = ", ".join(_sql(e) for e in self.reader.grouping) or "(none)"
        msg = (
            f"cannot run {what} elastically in the aggregate keyed by {keys}; supported: {_SUPPORTED}. "
            f"Drop it, {_WAY_OUT}."
        )
        raise UnsupportedQuery(msg)

    def _value(self, leaf: Leaf, value: Column) -> str:
        name = f"v{len(self.values)}"
        self.values.append(Routed(name, leaf, value))
        return name

    def _buffer(
        self,
        kind: T.DataType,
        columns: list[str],
        *,
        nullable: bool = True,
        is_empty: bool = False,
    ) -> str:
        name = f"b{len(self.buffers)}"
        self.buffers.append(_Buffer(name, kind, columns, nullable, is_empty))
        return name

    def _counted(self, condition: Column | None) -> str:
        one = F.lit(1).cast("bigint")
        if condition is None:
            return self._value(Leaf(Kind.INTEGER), one)
        value = F.when(condition, one).otherwise(F.lit(0).cast("bigint"))
        return self._value(Leaf(Kind.INTEGER), value)

    def _count(self, function: Jvm, children: list[Column]) -> list[str]:
        nullable = [
            column_
            for column_, child in zip(children, each(function.children()), strict=True)
            if child.nullable() or "CASE" in str(column_._jc)
        ]
        condition = None
        for child in nullable:
            present = child.isNotNull()
            condition = present if condition is None else condition & present
        at = self._counted(condition)
        self.aggregates.append(Aggregate(Op.COUNT, (Leaf(Kind.INTEGER),)))
        return [self._buffer(T.LongType(), [at], nullable=False)]

    def _sum(self, function: Jvm, children: list[Column]) -> list[str]:
        kind = data_type(function.dataType())
        (child,) = children
        if "TRY" in str(function.evalContext().evalMode()):
            self._refuse("try_sum")
        if isinstance(kind, T.DecimalType):
            total, count = self._decimal_sum(child, kind)
            empty = self._buffer(T.BooleanType(), [count], nullable=False, is_empty=True)
            return [self._buffer(kind, [total]), empty]
        if isinstance(kind, T.LongType):
            at = self._value(Leaf(Kind.INTEGER), child.cast("bigint"))
            checked = "ANSI" in str(function.evalContext().evalMode())
            self.aggregates.append(
                Aggregate(Op.SUM_INTEGER, (Leaf(Kind.INTEGER),), checked=checked)
            )
            return [self._buffer(kind, [at])]
        if isinstance(kind, T.DoubleType):
            at = self._value(Leaf(Kind.FLOAT), child.cast("double"))
            self.aggregates.append(Aggregate(Op.SUM_FLOAT, (Leaf(Kind.FLOAT),)))
            return [self._buffer(kind, [at])]
        return self._refuse(_sql(function))

    def _decimal_sum(self, child: Column, kind: T.DecimalType) -> tuple[str, str]:
        leaf = Leaf(Kind.DECIMAL, kind.scale)
        wide = T.DecimalType(38, kind.scale)
        total = self._value(leaf, child.cast(wide))
        count = self._counted(child.isNotNull())
        self.aggregates.append(Aggregate(Op.SUM_DECIMAL, (leaf, Leaf(Kind.INTEGER))))
        return total, count

    def _average(self, function: Jvm, children: list[Column]) -> list[str]:
        (child,) = children
        if "TRY" in str(function.evalMode()):
            self._refuse("try_avg")
        kind = data_type(next(each(function.aggBufferAttributes())).dataType())
        if isinstance(kind, T.DecimalType):
            total, count = self._decimal_sum(child, kind)
            return [
                self._buffer(kind, [total]),
                self._buffer(T.LongType(), [count], nullable=False),
            ]
        if not isinstance(kind, T.DoubleType):
            self._refuse(_sql(function))
        total = self._value(Leaf(Kind.FLOAT), child.cast("double"))
        self.aggregates.append(Aggregate(Op.SUM_FLOAT, (Leaf(Kind.FLOAT),)))
        count = self._counted(child.isNotNull())
        self.aggregates.append(Aggregate(Op.COUNT, (Leaf(Kind.INTEGER),)))
        return [
            self._buffer(kind, [total]),
            self._buffer(T.LongType(), [count], nullable=False),
        ]

    def _leaves(self, function: Jvm, index: int, value: Column) -> list[str]:
        child = list(each(function.children()))[index]
        found = types.leaves(data_type(child.dataType()), value, _sql(child))
        return [self._value(leaf, part) for leaf, part in found]

    def _extreme(self, function: Jvm, children: list[Column]) -> list[str]:
        least = class_name(function) == "Min"
        (child,) = children
        names = self._leaves(function, 0, child)
        leaves = tuple(v.leaf for v in self.values[-len(names) :])
        self.aggregates.append(Aggregate(Op.MIN if least else Op.MAX, leaves))
        return [self._buffer(data_type(function.dataType()), names)]

    def _edge(self, function: Jvm, children: list[Column]) -> list[str]:
        first, child = class_name(function) == "First", children[0]
        skip_nulls = function.ignoreNulls()
        self._counted(child.isNotNull() if skip_nulls else None)
        names = self._leaves(function, 0, child)
        leaves = tuple(v.leaf for v in self.values[-len(names) - 1 :])
        self.aggregates.append(Aggregate(Op.FIRST if first else Op.LAST, leaves))
        return [self._buffer(data_type(function.dataType()), names)]

    def _by(self, function: Jvm, children: list[Column]) -> list[str]:
        value, ordering = children
        least = class_name(function) == "MinBy"
        order = self._leaves(function, 1, ordering)
        order_leaves = tuple(v.leaf for v in self.values[-len(order) :])
        names = self._leaves(function, 0, value)
        value_leaves = tuple(v.leaf for v in self.values[-len(names) :])
        op = Op.MIN_BY if least else Op.MAX_BY
        self.aggregates.append(Aggregate(op, order_leaves, value_leaves))
        return [self._buffer(data_type(function.dataType()), names)]


def _substitute(spark: SparkSession, expression: Jvm, pairs: list[tuple[Jvm, Jvm]]) -> Jvm:
    if class_name(expression) == "AttributeReference":
        for expr_id, new in pairs:
            if expression.exprId().equals(expr_id):
                return new
        return expression
    children = list(each(expression.children()))
    if not children:
        return expression
    return expression.withNewChildren(seq(spark, [_substitute(spark, c, pairs) for c in children]))


def _sql(expression: Jvm) -> str:
    try:
        text = expression.sql()
    except Exception:  # some expressions have no SQL form; the plan's text will do
        text = expression.toString()
    return re.sub(r"#[0-9]+L?|`", "", text)


def _seconds(micros: int) -> str:
    return f"{micros / 1e6:g} s"


def _calls(expression: Jvm) -> bool:
    return class_name(expression) == "AggregateExpression" or any(
        _calls(c) for c in each(expression.children())
    )


def _mentions_inside(expression: Jvm, expr_id: Jvm) -> bool:
    """Whether `expression` computes with an attribute, instead of being it."""
    if class_name(expression) == "AttributeReference":
        return False
    return any(
        a.exprId().equals(expr_id) for a in each(expression.references().toSeq())
    )


# -- windows --------------------------------------------------------------------------------------


def _find_window(plan: Jvm, attribute: Jvm) -> tuple[Jvm, Jvm] | None:
    """Return (node, expression) that made a window struct: a Project or an Expand."""
    wanted = attribute.exprId()
    while True:
        name = class_name(plan)
        if name == "Project":
            for expression in each(plan.projectList()):
                made = class_name(expression) == "Alias" and expression.exprId().equals(wanted)
                if made and "precisetimestampconversion" in expression.toString():
                    return plan, expression.child()
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


_NUMBERS = re.compile(
    r"- (?P<offset>-?\d+)\) % (?P<advance>\d+)\).*\+ (?P<size>\d+)\), LongType, \w+\)\)*$"
)


def _window_numbers(expression: Jvm) -> tuple[int, int, int]:
    """Return (size, advance, offset) in microseconds, read off Spark's own window expression."""
    found = _NUMBERS.search(expression.toString())
    if found is None:
        msg = f"cannot read the window {_sql(expression)[:80]}; use F.window(...), {_WAY_OUT}."
        raise UnsupportedQuery(msg)
    return int(found["size"]), int(found["advance"]), int(found["offset"])


def _time_column(expression: Jvm) -> Jvm:
    """Return the innermost timestamp of a window expression."""
    found = None
    node = expression
    while True:
        if class_name(node) == "PreciseTimestampConversion":
            found = node.child()
        children = [c for c in each(node.children()) if class_name(c) != "Literal"]
        if not children or class_name(node) == "AttributeReference":
            break
        node = children[0]
    if found is None:
        msg = f"cannot read the window {_sql(expression)[:80]}; use F.window(...), {_WAY_OUT}."
        raise UnsupportedQuery(msg)
    return found


def _check_window(
    spark: SparkSession, node: Jvm, expression: Jvm, time_column: Jvm, numbers: tuple[int, int, int]
) -> None:
    """Make the window anew from what was read and compare: the reader must never guess."""
    size, advance, offset = numbers
    below = of_rows(spark, next(each(node.children())))
    window = F.window(
        column(spark, time_column),
        f"{size} microseconds",
        f"{advance} microseconds",
        f"{offset} microseconds",
    )
    made = analysed(below.select("*", window.alias("window")))
    found = _first_window(made)
    strip = re.compile(r"#[0-9]+L?")
    if found is None or strip.sub("", found) != strip.sub("", expression.toString()):
        msg = f"cannot read the window {_sql(expression)[:80]}; use F.window(...), {_WAY_OUT}."
        raise UnsupportedQuery(msg)


def _first_window(plan: Jvm) -> str | None:
    for attribute in each(plan.output()):
        if attribute.name() == "window":
            found = _find_window(plan, attribute)
            if found is None:
                continue
            text: str = found[1].toString()
            return text
    for child in each(plan.children()):
        text_below = _first_window(child)
        if text_below is not None:
            return text_below
    return None
