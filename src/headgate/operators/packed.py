"""Packs nested values (lists, maps, structs) as byte strings; unpacking never executes anything in them.

A null value is the byte 0. Any other value is the byte 1 and its content: eight bytes for a number, date
or timestamp; one byte for a boolean; a length of four bytes and the bytes for a text, binary or decimal;
a count of four bytes and the items for a list or map (key, value, key, ...); the fields for a struct.
All numbers are little-endian. ``docs/format.md`` describes the same format.
"""

from __future__ import annotations

import struct
from decimal import Decimal
from typing import Any

import pyarrow as pa

from headgate.core.errors import StateError

_INTEGER, _FLOAT, _COUNT = struct.Struct("<q"), struct.Struct("<d"), struct.Struct("<I")


def packable(kind: pa.DataType) -> bool:
    """Return whether values of a type can be packed."""
    t = pa.types
    if t.is_list(kind):
        return packable(kind.value_type)
    if t.is_map(kind):
        return packable(kind.key_type) and packable(kind.item_type)
    if t.is_struct(kind):
        return all(packable(field.type) for field in kind)
    plain = t.is_boolean(kind) or t.is_integer(kind) or t.is_floating(kind) or t.is_decimal128(kind)
    text = t.is_string(kind) or t.is_binary(kind)
    return bool(plain or text or t.is_date32(kind) or t.is_timestamp(kind) or t.is_duration(kind))


def pack(column: pa.Array) -> pa.Array:
    """Return a column of nested values as binary; nulls stay nulls."""
    stored = _stored(column.type)
    packed = []
    for value in column.cast(stored).to_pylist():
        out = bytearray()
        _write(value, stored, out)
        packed.append(None if value is None else bytes(out))
    return pa.array(packed, pa.binary())


def unpack(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return the column that `pack` packed.

    Raises `StateError` if the bytes do not encode a value of the type.
    """
    stored = _stored(kind)
    values = []
    for data in column.to_pylist():
        try:
            values.append(None if data is None else _whole(data, stored))
        except (struct.error, IndexError, ValueError, ArithmeticError) as error:
            msg = (
                f"a packed value of state is no {kind}: the checkpoint is damaged; see "
                "`headgate inspect --verify`"
            )
            raise StateError(msg) from error
    return pa.array(values, stored).cast(kind)


def _stored(kind: pa.DataType) -> pa.DataType:
    """Return the type with integers in place of dates and times."""
    t = pa.types
    if t.is_list(kind):
        return pa.list_(_stored(kind.value_type))
    if t.is_map(kind):
        return pa.map_(_stored(kind.key_type), _stored(kind.item_type))
    if t.is_struct(kind):
        return pa.struct([pa.field(f.name, _stored(f.type)) for f in kind])
    if t.is_date32(kind):
        return pa.int32()
    return pa.int64() if t.is_timestamp(kind) or t.is_duration(kind) else kind


def _write(value: Any, kind: pa.DataType, out: bytearray) -> None:
    t = pa.types
    out.append(value is not None)
    if value is None:
        return
    if t.is_boolean(kind):
        out.append(value)
    elif t.is_integer(kind):
        out += _INTEGER.pack(value)
    elif t.is_floating(kind):
        out += _FLOAT.pack(value)
    elif t.is_list(kind):
        out += _COUNT.pack(len(value))
        for item in value:
            _write(item, kind.value_type, out)
    elif t.is_map(kind):
        out += _COUNT.pack(len(value))
        for key, item in value:
            _write(key, kind.key_type, out)
            _write(item, kind.item_type, out)
    elif t.is_struct(kind):
        for field in kind:
            _write(value[field.name], field.type, out)
    else:
        data = value if isinstance(value, bytes) else str(value).encode()
        out += _COUNT.pack(len(data))
        out += data


def _whole(data: bytes, kind: pa.DataType) -> Any:
    value, end = _read(memoryview(data), 0, kind)
    if end != len(data):
        msg = f"it ends at {end} of {len(data)} bytes"
        raise ValueError(msg)
    return value


def _read(data: memoryview, at: int, kind: pa.DataType) -> tuple[Any, int]:
    """Return the value that begins at byte `at`, and the index of the byte after it."""
    t = pa.types
    there, at = data[at], at + 1
    if not there:
        return None, at
    if t.is_boolean(kind):
        return bool(data[at]), at + 1
    if t.is_integer(kind):
        return _INTEGER.unpack_from(data, at)[0], at + 8
    if t.is_floating(kind):
        return _FLOAT.unpack_from(data, at)[0], at + 8
    if t.is_struct(kind):
        fields = {}
        for field in kind:
            fields[field.name], at = _read(data, at, field.type)
        return fields, at
    (count,), at = _COUNT.unpack_from(data, at), at + 4
    if t.is_list(kind) or t.is_map(kind):
        items = []
        for _ in range(count):
            item, at = _read(data, at, kind.value_type if t.is_list(kind) else kind.key_type)
            if t.is_map(kind):
                held, at = _read(data, at, kind.item_type)
                item = (item, held)
            items.append(item)
        return items, at
    raw, at = bytes(data[at : at + count]), at + count
    if t.is_binary(kind):
        return raw, at
    text = raw.decode()
    return Decimal(text) if t.is_decimal128(kind) else text, at
