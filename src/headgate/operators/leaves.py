"""Converts columns to leaves of a row, and back; a processor's state consists of leaves."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

from headgate.operators.packed import pack, packable, unpack
from headgate.operators.spec import Kind, Leaf


def leaf_of(kind: pa.DataType) -> Leaf | None:
    """Return the leaf for columns of an Arrow type; None for a type that state cannot hold.

    Integers, booleans, dates, timestamps and durations in microseconds are INTEGER; floats FLOAT;
    decimals DECIMAL; text, binary and (packed, see `headgate.operators.packed`) lists, maps and structs
    BYTES.
    """
    t = pa.types
    if t.is_integer(kind) or t.is_boolean(kind) or t.is_date32(kind):
        return Leaf(Kind.INTEGER)
    if t.is_timestamp(kind) or t.is_duration(kind):
        return Leaf(Kind.INTEGER) if kind.unit == "us" else None
    if t.is_floating(kind):
        return Leaf(Kind.FLOAT)
    if t.is_decimal128(kind):
        return Leaf(Kind.DECIMAL, kind.scale)
    return Leaf(Kind.BYTES) if _is_text(kind) or packable(kind) else None


def to_leaf(column: pa.Array, leaf: Leaf) -> pa.Array:
    """Convert a column to the Arrow type of `leaf`."""
    kind = column.type
    if leaf.kind is Kind.BYTES:
        return column.cast(pa.binary()) if _is_text(kind) else pack(column)
    if leaf.kind is Kind.DECIMAL:
        return column.cast(pa.decimal128(38, leaf.scale))
    if pa.types.is_date32(kind):
        column = column.cast(pa.int32())
    return column.cast(pa.float64() if leaf.kind is Kind.FLOAT else pa.int64())


def from_leaf(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Convert a column from its leaf's type (`to_leaf`, or a key's leaf) back to `kind`."""
    if _is_text(kind):
        return column.cast(kind)
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return unpack(column, kind)
    return column.cast(pa.int32()).cast(kind) if pa.types.is_date32(kind) else column.cast(kind)


def from_leaves(columns: Sequence[pa.Array], schema: pa.Schema) -> list[pa.Array]:
    """Convert key leaves back to columns; a struct's first leaf is null where the struct is null."""
    left = list(columns)
    arrays = [_taken(left, field.type) for field in schema]
    assert not left
    return arrays


def _taken(columns: list[pa.Array], kind: pa.DataType) -> pa.Array:
    first = columns.pop(0)
    if not pa.types.is_struct(kind):
        return from_leaf(first, kind)
    parts = [_taken(columns, field.type) for field in kind]
    return pa.StructArray.from_arrays(parts, fields=list(kind), mask=first.is_null())


def one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenate batches of one schema; there is at least one batch."""
    first = batches[0]
    if len(batches) == 1:
        return first
    columns = [pa.concat_arrays([b.column(i) for b in batches]) for i in range(first.num_columns)]
    return pa.RecordBatch.from_arrays(columns, schema=first.schema)


def _is_text(kind: pa.DataType) -> bool:
    t = pa.types
    small = t.is_string(kind) or t.is_binary(kind)
    return bool(small or t.is_large_string(kind) or t.is_large_binary(kind))
