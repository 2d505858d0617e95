"""Replaces nulls below null structs in non-nullable fields: Spark writes them, Arrow refuses them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa


def without_hidden_nulls(table: pa.Table) -> pa.Table:
    """Return the same rows in a form that Arrow can cast.

    Spark writes a null ``variant``, or a null struct with a non-nullable field, with a null in that
    field. Arrow refuses to cast such a column, even to its own type; PySpark's `createDataFrame` makes
    such a cast. This function fills the field with an arbitrary value; the struct stays null.
    """
    columns = [_shown(column) if _hides(column.type) else column for column in table.columns]
    return pa.Table.from_arrays(columns, schema=table.schema)


def of_type(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Cast a column to a type, after its hidden nulls are filled."""
    return column if column.type == kind else _filled(column).cast(kind)


def _hides(kind: pa.DataType) -> bool:
    """Return whether a column of a type may hold a hidden null."""
    fields = [kind.field(i) for i in range(kind.num_fields)]
    is_struct = pa.types.is_struct(kind)
    return any((is_struct and not field.nullable) or _hides(field.type) for field in fields)


def _shown(column: pa.ChunkedArray) -> pa.Array:
    whole = column.combine_chunks()
    if isinstance(whole, pa.ChunkedArray):  # a column without rows
        whole = pa.array([], column.type)
    return _filled(whole)


def _filled(column: pa.Array) -> pa.Array:
    kind = column.type
    if not _hides(kind):
        return column
    column = pa.concat_arrays([column, pa.nulls(0, kind)])  # a copy with offset 0
    if pa.types.is_struct(kind):
        parts = [_filled(column.field(i)) for i in range(kind.num_fields)]
        children = [_present(p, f) for p, f in zip(parts, kind, strict=True)]
        buffers = 1
    elif pa.types.is_map(kind):
        entries = [_filled(column.keys), _filled(column.items)]
        fields = [kind.key_field, kind.item_field]
        children = [pa.StructArray.from_arrays(entries, fields=fields)]
        buffers = 2
    else:
        children = [_filled(column.values)]
        buffers = 2
    shape = column.buffers()[:buffers]
    return pa.Array.from_buffers(kind, len(column), shape, children=children)


def _present(column: pa.Array, field: pa.Field) -> pa.Array:
    """Return a struct's field; a value replaces each null of a non-nullable field."""
    if field.nullable or not column.null_count:
        return column
    values = pa.concat_arrays([column, pa.array([_any_value(field.type)], field.type)])
    places = np.arange(len(column))
    places[column.is_null().to_numpy(zero_copy_only=False)] = len(column)
    return values.take(pa.array(places))


def _any_value(kind: pa.DataType) -> Any:
    t = pa.types
    if t.is_struct(kind):
        return {field.name: None if field.nullable else _any_value(field.type) for field in kind}
    if t.is_list(kind) or t.is_map(kind):
        return []
    if t.is_string(kind) or t.is_large_string(kind):
        return ""
    if t.is_boolean(kind):
        return False
    return b"" if t.is_binary(kind) or t.is_large_binary(kind) else 0
