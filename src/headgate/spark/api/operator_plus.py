"""Implements `hg.stateful`: STRETCH's generalised stateful operator O+ over streaming DataFrames.

::

    input 0 ─ keys ┐
    input 1 ─ keys ┼─ union ─ groupBy(key) ─ transformWithState(WindowProcessor) ─► time, payload
    input 2 ─ keys ┘

A record with several keys is copied once for each of them, by `explode`: corollary 1 of STRETCH. All of
it is public PySpark, so the DataFrame runs by ``df.writeStream`` as well as by ``hg.writeStream``.
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
"""Of a record: a column of an array of keys, or of one key, or a function of the record."""
Schema = str | T.DataType
_WATERMARK = "spark.watermarkDelayMs"
_OWN = {"headgate.payload": True}
"""Metadata of a record's columns, in place of the user's: one column only may carry the watermark."""


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

    It has the column `time`, the right boundary of the window that put a row out, and those of `schema`.
    It runs by ``hg.writeStream`` and by plain Spark, in output mode append.

    Parameters
    ----------
    inputs : DataFrame or sequence of DataFrame
        As many as the operator has, of any schemas, each with a watermark on `time`.
    operator : OperatorPlus
        Times in microseconds since 1970, as `OperatorPlus.over` has them.
    time : str
        Name of the event-time column of every input.
    schema : str or StructType
        Of what the operator puts out.
    keys : Column, str or callable, or a sequence of one for each input
        f_MK: a column of an array of keys, or of one key; or its name; or a function as that of the
        operator, which is used where this is None, and then `key_type` says what a key is. A record
        may have no key, or several: it is copied for each.
    state : str, DataType or a sequence of one for each input, optional
        What a window keeps, as ``"bigint"`` or ``"n bigint, last string"``; None, the default, keeps
        a tuple of records.
    ordered : bool
        Whether multi windows take records in the order of their times, as single ones always do: a record
        waits until the watermark has passed it, and one that comes later than that is late.

    Raises
    ------
    ConfigError
        A parameter is out of range, or does not fit an input.

    References
    ----------
    [STRETCH] 4.2. Differs: a copy for each key (corollary 1); what is late is what Spark says is late.
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
    # Where records wait for the watermark, one that it has passed is late. Elsewhere one is late for
    # the windows that have ended, each for itself, hence a row for each window: as Spark groups.
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
    """Return an input as rows that all inputs share: a copy of a record for each of its keys."""
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
    """Return f_MK as Spark calls it: with a time and the values of a record."""
    # a function with type hints PySpark would take for one of pandas
    return lambda at_us, *values: [
        *operator.keys_of(Record(at_us, Row(*names)(*values), number)),
    ]


def _inputs(inputs: Sequence[DataFrame], states: Sequence[T.DataType | None]) -> list[InputColumns]:
    """Return the columns that rows carry of each input; their position is set later."""
    zone = inputs[0].sparkSession.conf.get("spark.sql.session.timeZone")
    return [
        InputColumns(df.columns, 0, to_arrow_schema(df.schema, timezone=zone), df.schema, state)
        for df, state in zip(inputs, states, strict=True)
    ]


def _placed(inputs: Sequence[InputColumns], columns: Sequence[str]) -> list[InputColumns]:
    return [replace(part, first=columns.index(f"c{i}_0")) for i, part in enumerate(inputs)]


def _column(name: str) -> Column:
    """Return a column by its name, whatever characters that has."""
    return F.col("`" + name.replace("`", "``") + "`")


def _has_map(kind: T.DataType) -> bool:
    """Return whether Spark cannot hash a type."""
    if isinstance(kind, T.ArrayType):
        return _has_map(kind.elementType)
    if isinstance(kind, T.StructType):
        return any(_has_map(field.dataType) for field in kind)
    return isinstance(kind, T.MapType)


# -- what was given -----------------------------------------------------------------------------------


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
    """Return one for each input of what may be given once for all."""
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
    # a Column can be called, too
    return callable(keys) and not isinstance(keys, Column)
