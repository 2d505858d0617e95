"""Converts values of state between PySpark's form and Arrow's.

The forms differ in three types: in PySpark, times with a zone are local times without a zone, maps are
dictionaries, and structs are Rows. Imported in Python workers.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import Row


def same_when_read(kind: pa.DataType) -> bool:
    """Return whether PySpark reads values of a type in Arrow's form."""
    if pa.types.is_list(kind):
        return same_when_read(kind.value_type)
    nested = pa.types.is_map(kind) or pa.types.is_struct(kind)
    return not nested and not _has_zone(kind)


def read(value: Any, kind: pa.DataType) -> Any:
    """Return an Arrow value as PySpark passes it to a processor."""
    if value is None:
        return None
    if _has_zone(kind):
        return value.astimezone().replace(tzinfo=None)
    if pa.types.is_list(kind):
        return [read(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        return {read(k, kind.key_type): read(v, kind.item_type) for k, v in value}
    if pa.types.is_struct(kind):
        return Row(*kind.names)(*(read(value[f.name], f.type) for f in kind))
    return value


def same_when_written(kind: pa.DataType) -> bool:
    """Return whether Arrow takes values of a type as a processor writes them."""
    if pa.types.is_map(kind):
        return same_when_written(kind.key_type) and same_when_written(kind.item_type)
    if pa.types.is_struct(kind):
        return all(same_when_written(field.type) for field in kind)
    if pa.types.is_list(kind):
        return same_when_written(kind.value_type)
    return not _has_zone(kind)


def written(value: Any, kind: pa.DataType) -> Any:
    """Return a value that a processor writes as Arrow takes it; a time without a zone is local.

    Raises `TypeError`, `ValueError`, `AttributeError`: the value is not of the type.
    """
    if value is None:
        return None
    if _has_zone(kind):
        return _zoned(value)
    if pa.types.is_list(kind):
        return [written(item, kind.value_type) for item in value]
    if pa.types.is_map(kind):
        pairs = value.items() if isinstance(value, dict) else value
        return [(written(k, kind.key_type), written(v, kind.item_type)) for k, v in pairs]
    if pa.types.is_struct(kind):
        fields = value if isinstance(value, dict) else dict(zip(kind.names, value, strict=True))
        return {f.name: written(fields.get(f.name), f.type) for f in kind}
    return value


def copied(value: Any) -> Any:
    """Return a copy that does not change when the user changes the value's lists, maps or arrays."""
    if isinstance(value, Row) and hasattr(value, "__fields__"):
        return Row(*value.__fields__)(*map(copied, value))
    if isinstance(value, list | tuple):
        return (
            [copied(item) for item in value] if isinstance(value, list) else (*map(copied, value),)
        )
    if isinstance(value, dict):
        return {key: copied(item) for key, item in value.items()}
    return value.copy() if isinstance(value, bytearray | np.ndarray) else value


def name_of(kinds: Sequence[pa.DataType]) -> Callable[[tuple[Any, ...]], tuple[Any, ...]]:
    """Return a function that makes a map's key hashable; `kinds` are the types of the key's columns."""
    t = pa.types
    plain = not any(t.is_nested(kind) or t.is_binary(kind) or _has_zone(kind) for kind in kinds)
    return tuple if plain else _hashable


def _hashable(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    if isinstance(value, dt.datetime):
        return _zoned(value).astimezone(dt.UTC)
    return bytes(value) if isinstance(value, bytearray) else value


def _zoned(value: Any) -> Any:
    if hasattr(value, "to_pydatetime"):  # a pandas time, whose astimezone needs a zone
        value = value.to_pydatetime()
    naive = isinstance(value, dt.datetime) and value.tzinfo is None
    return value.astimezone() if naive else value


def _has_zone(kind: pa.DataType) -> bool:
    return pa.types.is_timestamp(kind) and kind.tz is not None
