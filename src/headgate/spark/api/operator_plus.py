"""Implements `hg.stateful`: STRETCH's generalised stateful operator O+ over streaming DataFrames.

::

    input 0 ─ keys ┐
    input 1 ─ keys ┼─ union ─ groupBy(key) ─ transformWithState(WindowProcessor) ─► time, payload
    input 2 ─ keys ┘

`explode` copies a record with several keys once for each key: corollary 1 of STRETCH. The plan uses only
public PySpark, so the DataFrame runs by ``df.writeStream`` as well as by ``hg.writeStream``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, TypeGuard

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, Row
from pyspark.sql import functions as F
from pyspark.sql import types as T

from headgate.core.errors import ConfigError, nearest, require
from headgate.operators.operator_plus import (
    Key,
    OperatorPlus,
    Record,
    WindowType,
)
from headgate.spark.jvm.arrow import to_arrow_schema
from headgate.spark.jvm.gateway import require_frame
from headgate.spark.worker.window_processor import InputColumns, WindowProcessor

KeysOf = Callable[[Record], Iterable[Key]]
Keys = Column | str | KeysOf
"""Keys of a record: a column with an array of keys or with one key, or a function of the record."""
Schema = str | T.DataType
_WATERMARK = "spark.watermarkDelayMs"
_OWN = {"headgate.payload": True}
"""Replaces the metadata of a record's columns, because only one column may carry the watermark."""


def stateful(
    inputs: DataFrame | Sequence[DataFrame],
    operator: OperatorPlus,
    *,
    time: str,
    schema: str | T.StructType,
    keys: Keys | Sequence[Keys] | None = None,
    key_type: Schema | None = None,
    state: Schema | Sequence[Schema | None] | None = None,
    ordered: bool = False,
) -> DataFrame:
    """Return the output of a generalised stateful operator, a streaming DataFrame.

    Its columns are `time`, the right boundary of a row's window, and the columns of `schema`. The
    DataFrame runs by ``hg.writeStream`` and by plain Spark, in output mode append.

    Parameters
    ----------
    inputs : DataFrame or sequence of DataFrame
        The operator's number of inputs, of any schemas, each with a watermark on `time`.
    operator : OperatorPlus
        The operator; its times are in microseconds since 1970, as in `OperatorPlus.over`.
    time : str
        Name of the event-time column of every input.
    schema : str or StructType
        Schema of the operator's output.
    keys : Column, str or callable, or a sequence with one entry for each input
        f_MK: a column with an array of keys or with one key, its name, or a function of a record;
        None takes the operator's function. A record may have no key or several keys.
    key_type : str or DataType, optional
        Type of a key; needed if f_MK is a function.
    state : str, DataType or a sequence with one entry for each input, optional
        Type of a window's state, as ``"bigint"`` or ``"n bigint, last string"``; None, the default,
        keeps a tuple of records.
    ordered : bool
        Whether multi windows take records in the order of their times, as single windows always do. Then
        a record waits until the watermark has passed its time, and a record after the watermark is late.

    Raises
    ------
    ConfigError
        A parameter is out of range, or does not fit an input.

    References
    ----------
    [STRETCH] 4.2. Differs: a copy for each key (corollary 1); Spark decides which records are late.
    """
    sources = list(inputs) if isinstance(inputs, Sequence) else [inputs]
    for source in sources:
        require_frame(source, "hg.stateful: inputs")
    fits = isinstance(operator, OperatorPlus)
    require(fits, "hg.stateful: operator", operator, "hg.OperatorPlus.over(...)")
    single = operator.window_type is WindowType.SINGLE
    columns = _struct(schema, "schema")
    _check(sources, operator, time, columns)
    key_of = _each(operator.keys if keys is None else keys, len(sources), "keys")
    states = [
        None if kind is None else _type(kind, "state")
        for kind in _each(state, len(sources), "state")
    ]
    described = _inputs(sources, states)
    # If records wait for the watermark, a record behind the watermark is late. Else a record is late for
    # each window that has ended, so it becomes one row for each window, as in Spark's grouping.
    waits = single or ordered
    tagged = [
        _tagged(
            df,
            i,
            described,
            time,
            _keys(df, key_of[i], operator, number=i, time=time, key_type=key_type),
        )
        for i, df in enumerate(sources)
    ]
    rows = tagged[0]
    for more in tagged[1:]:
        rows = rows.union(more)
    if not waits:
        size, advance = operator.window_size, operator.window_advance
        window = F.window("event", f"{size} microseconds", f"{advance} microseconds")
        rows = rows.withColumn("event", window)
        rows = rows.withColumn("left_us", F.unix_micros("event.start"))
    keyed = rows.schema["key"].dataType
    parts = keyed.fields if isinstance(keyed, T.StructType) else []
    if parts:
        named = [F.col("key").getField(part.name).alias(f"key{i}") for i, part in enumerate(parts)]
        rows = rows.select(*named, *[name for name in rows.columns if name != "key"])
    names = [f"key{i}" for i in range(len(parts))] or ["key"]
    zone = sources[0].sparkSession.conf.get("spark.sql.session.timeZone")
    key_kinds = T.StructType([rows.schema[name] for name in names])
    processor = WindowProcessor(
        operator,
        to_arrow_schema(key_kinds, timezone=zone),
        _placed(described, rows.columns),
        [time, *columns.names],
        ordered=waits,
    )
    put_out = T.StructType([T.StructField(time, T.TimestampType()), *columns.fields])
    return rows.groupBy(*names).transformWithState(processor, put_out, "append", "EventTime")


# -- parts of the plan ------------------------------------------------------------------------------


def _tagged(
    df: DataFrame, number: int, inputs: Sequence[InputColumns], time: str, keys: Column
) -> DataFrame:
    """Return an input in the schema that all inputs share, with a copy of a record for each key."""
    at = _column(time)
    hashable = [_column(name) for name in df.columns if not _has_map(df.schema[name].dataType)]
    payloads = []
    for i, part in enumerate(inputs):
        for j, field in enumerate(part.fields):
            value = _column(df.columns[j]) if i == number else F.lit(None).cast(field.dataType)
            payloads.append(value.alias(f"c{i}_{j}", metadata=_OWN))
    return df.where(at.isNotNull()).select(
        F.lit(number).alias("input"),
        at.alias("event"),
        F.unix_micros(at).alias("at_us"),
        F.xxhash64(*hashable).alias("tie"),
        F.explode(keys).alias("key"),
        *payloads,
    )


def _keys(
    df: DataFrame,
    keys: Keys | None,
    operator: OperatorPlus,
    *,
    number: int,
    time: str,
    key_type: Schema | None,
) -> Column:
    """Return f_MK as a column of arrays."""
    if keys is None:
        msg = "nothing says what the keys of a record are; give keys, a column or a function."
        raise ConfigError(msg)
    if _is_function(keys):
        if key_type is None:
            msg = (
                'keys is a function, whose type Spark cannot see; give key_type, such as "string".'
            )
            raise ConfigError(msg)
        kind = T.ArrayType(_type(key_type, "key_type"))
        names = df.columns
        call = F.udf(_call_of(replace(operator, keys=keys), names, number), kind)
        return call(F.unix_micros(_column(time)), *[_column(name) for name in names])
    column = _column(keys) if isinstance(keys, str) else keys
    assert isinstance(column, Column)
    if not isinstance(df.select(column).schema[0].dataType, T.ArrayType):
        return F.array(column)
    return F.array_distinct(column) if operator.distinct else column


def _call_of(operator: OperatorPlus, names: Sequence[str], number: int) -> Callable[..., list[Key]]:
    """Return f_MK as a function of a time and the values of a record, for a Spark UDF."""
    # a lambda, because PySpark would take a function with type hints for a pandas UDF
    return lambda at_us, *values: [
        *operator.keys_of(Record(at_us, Row(*names)(*values), number)),
    ]


def _inputs(inputs: Sequence[DataFrame], states: Sequence[T.DataType | None]) -> list[InputColumns]:
    """Return the columns of each input in the shared rows; `_placed` sets their positions."""
    zone = inputs[0].sparkSession.conf.get("spark.sql.session.timeZone")
    return [
        InputColumns(df.columns, 0, to_arrow_schema(df.schema, timezone=zone), df.schema, state)
        for df, state in zip(inputs, states, strict=True)
    ]


def _placed(inputs: Sequence[InputColumns], columns: Sequence[str]) -> list[InputColumns]:
    return [replace(part, first=columns.index(f"c{i}_0")) for i, part in enumerate(inputs)]


def _column(name: str) -> Column:
    """Return a column by its name, which may have any characters."""
    return F.col("`" + name.replace("`", "``") + "`")


def _has_map(kind: T.DataType) -> bool:
    """Return whether a type has a map inside, which Spark cannot hash."""
    if isinstance(kind, T.ArrayType):
        return _has_map(kind.elementType)
    if isinstance(kind, T.StructType):
        return any(_has_map(field.dataType) for field in kind)
    return isinstance(kind, T.MapType)


# -- arguments ----------------------------------------------------------------------------------------


def _check(
    inputs: Sequence[DataFrame], operator: OperatorPlus, time: str, schema: T.StructType
) -> None:
    if len(inputs) != operator.inputs:
        msg = f"the operator has {operator.inputs} inputs, and {len(inputs)} were given; make them agree."
        raise ConfigError(msg)
    for number, df in enumerate(inputs):
        what = f'input {number} needs the event time "{time}"'
        if time not in df.columns:
            hint = nearest(time, df.columns) or f"; it has {', '.join(df.columns)}."
            raise ConfigError(f"{what}, which it lacks{hint}")
        field = df.schema[time]
        if not isinstance(field.dataType, T.TimestampType):
            msg = f"{what} as a timestamp, and it is {field.dataType.simpleString()}; cast it."
            raise ConfigError(msg)
        if _WATERMARK not in field.metadata:
            msg = f'{what} with a watermark; use withWatermark("{time}", "10 seconds").'
            raise ConfigError(msg)
    for length in (operator.window_advance, operator.window_size):
        if length % 1000:
            msg = f"a window of {length} microseconds is no whole number of milliseconds; round it."
            raise ConfigError(msg)
    if operator.schema and operator.schema != tuple(schema.names):
        msg = (
            f"the operator puts out {', '.join(operator.schema)} and schema has "
            f"{', '.join(schema.names)}; make them agree."
        )
        raise ConfigError(msg)
    if time in schema.names:
        msg = f'"{time}" is the output\'s time and stands in schema as well; rename the latter.'
        raise ConfigError(msg)


def _each(values: Any, count: int, what: str) -> list[Any]:
    """Return a list with one value for each input; a single value counts for all inputs."""
    if not isinstance(values, list | tuple):
        return [values] * count
    if len(values) != count:
        msg = f"{what} has {len(values)} entries for {count} inputs; give one, or one for each."
        raise ConfigError(msg)
    return list(values)


def _type(schema: Schema, what: str) -> T.DataType:
    if isinstance(schema, T.DataType):
        return schema
    try:
        return T.DataType.fromDDL(schema)
    except PySparkException as error:
        msg = f'{what}="{schema}" is no type; use one such as "bigint" or "n bigint, last string".'
        raise ConfigError(msg) from error


def _struct(schema: str | T.StructType, what: str) -> T.StructType:
    kind = _type(schema, what)
    if not isinstance(kind, T.StructType) or not kind.fields:
        msg = f'{what}="{schema}" has no named columns; use one such as "word string, n bigint".'
        raise ConfigError(msg)
    return kind


def _is_function(keys: object) -> TypeGuard[KeysOf]:
    # a Column is callable, too
    return callable(keys) and not isinstance(keys, Column)
