"""Converts schemas from Spark to Arrow and back, as PySpark itself does; in driver and workers."""

from __future__ import annotations

import inspect

import pyarrow as pa
from pyspark.sql.pandas import types as sparks_own
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructType

__all__ = ["from_arrow_schema", "to_arrow_schema"]

_TAKES_ZONE = "timezone" in inspect.signature(sparks_own.to_arrow_schema).parameters
"""False before Spark 4.2, whose function always returns timestamps in UTC."""


def to_arrow_schema(schema: StructType, timezone: str | None = None) -> pa.Schema:
    """Return the Arrow schema of a schema of Spark's, with timestamps in the zone `timezone`."""
    if _TAKES_ZONE:
        return sparks_own.to_arrow_schema(schema, timezone=timezone)
    made = sparks_own.to_arrow_schema(schema)
    return pa.schema([_in_zone(field, timezone) for field in made], made.metadata)


def _in_zone(field: pa.Field, zone: str | None) -> pa.Field:
    return field.with_type(_kind_in_zone(field.type, zone))


def _kind_in_zone(kind: pa.DataType, zone: str | None) -> pa.DataType:
    """Return `kind` with `zone` in place of the zone of each timestamp that has one."""
    if pa.types.is_timestamp(kind) and kind.tz is not None:
        return pa.timestamp(kind.unit, zone)
    if pa.types.is_struct(kind):
        return pa.struct([_in_zone(kind.field(i), zone) for i in range(kind.num_fields)])
    if pa.types.is_map(kind):
        key, item = _in_zone(kind.key_field, zone), _in_zone(kind.item_field, zone)
        return pa.map_(key, item, keys_sorted=kind.keys_sorted)
    if pa.types.is_large_list(kind):
        return pa.large_list(_in_zone(kind.value_field, zone))
    if pa.types.is_list(kind):
        return pa.list_(_in_zone(kind.value_field, zone))
    return kind
