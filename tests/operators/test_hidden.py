"""Null structs whose fields are never null keep their place through a cast."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.operators.hidden import of_type, without_hidden_nulls

VARIANT = pa.struct(
    [
        pa.field("value", pa.binary(), nullable=False),
        pa.field("metadata", pa.binary(), nullable=False),
    ]
)
KINDS = [
    VARIANT,
    pa.struct([pa.field("n", pa.int64(), nullable=False), pa.field("m", pa.string())]),
    pa.struct([pa.field("at", pa.timestamp("us", "UTC"), nullable=False)]),
    pa.struct([pa.field("d", pa.decimal128(10, 2), nullable=False), pa.field("v", VARIANT)]),
    pa.struct([pa.field("v", VARIANT, nullable=False)]),
    pa.struct([pa.field("l", pa.list_(VARIANT), nullable=False)]),
    pa.list_(VARIANT),
    pa.map_(pa.string(), VARIANT),
    pa.list_(pa.map_(pa.int32(), pa.struct([pa.field("b", pa.bool_(), nullable=False)]))),
]


def of_spark(values: list, kind: pa.DataType) -> pa.Array:
    """Return values as Spark writes them: what is below a null is null."""
    if pa.types.is_struct(kind):
        parts = [
            of_spark([None if v is None else v[field.name] for v in values], field.type)
            for field in kind
        ]
        mask = pa.array([v is None for v in values], pa.bool_())
        return pa.StructArray.from_arrays(parts, fields=list(kind), mask=mask)
    if pa.types.is_list(kind) or pa.types.is_map(kind):
        flat = [one for v in values for one in v or []]
        ends = [0]
        for v in values:
            ends.append(ends[-1] + len(v or []))
        offsets = pa.array(
            [None if v is None else ends[i] for i, v in enumerate(values)] + ends[-1:]
        )
        offsets = offsets.cast(pa.int32())
        if pa.types.is_list(kind):
            return pa.ListArray.from_arrays(offsets, of_spark(flat, kind.value_type), type=kind)
        keys = of_spark([k for k, _ in flat], kind.key_type)
        items = of_spark([i for _, i in flat], kind.item_type)
        return pa.MapArray.from_arrays(offsets, keys, items)
    return pa.array(values, kind)


def values(kind: pa.DataType, *, nullable: bool = True) -> st.SearchStrategy:
    if pa.types.is_struct(kind):
        made = st.fixed_dictionaries({f.name: values(f.type, nullable=f.nullable) for f in kind})
    elif pa.types.is_list(kind):
        made = st.lists(values(kind.value_type), max_size=3)
    elif pa.types.is_map(kind):
        keys = values(kind.key_type, nullable=False)
        pairs = st.tuples(keys, values(kind.item_type))
        made = st.lists(pairs, max_size=3, unique_by=lambda pair: pair[0])
    else:
        made = st.sampled_from(_SOME[str(kind)])
    return st.none() | made if nullable else made


_SOME = {
    "binary": [b"", b"x"],
    "int64": [0, 7],
    "int32": [0, 7],
    "bool": [False, True],
    "string": ["", "ä"],
    "decimal128(10, 2)": [0],
    "timestamp[us, tz=UTC]": [0, 10**15],
}


@pytest.mark.parametrize("kind", KINDS, ids=str)
@given(data=st.data())
def test_rows_with_null_structs_can_be_cast_and_stay_what_they_are(kind: pa.DataType, data):
    column = of_spark(data.draw(st.lists(values(kind), max_size=6)), kind)
    start = data.draw(st.integers(0, len(column)))
    chunks = [column.slice(0, start), column.slice(start)]
    table = pa.Table.from_arrays([pa.chunked_array(chunks, column.type)], names=["x"])
    made = without_hidden_nulls(table)
    made.validate(full=True)
    assert made.column("x").to_pylist() == table.column("x").to_pylist()
    made.cast(made.schema)


def test_arrow_refuses_them_as_spark_writes_them():
    column = of_spark([None], VARIANT)
    with pytest.raises(pa.ArrowInvalid, match="non-nullable"):
        column.cast(VARIANT)


def test_a_type_that_differs_elsewhere_is_cast_all_the_same():
    def kind(zone: str) -> pa.DataType:
        return pa.struct([pa.field("at", pa.timestamp("us", zone)), pa.field("v", VARIANT)])

    column = of_spark([None, {"at": 0, "v": None}], kind("Etc/UTC"))
    made = of_type(column, kind("UTC"))
    assert made.type == kind("UTC")
    assert made.to_pylist() == column.to_pylist()
    assert of_type(made, kind("UTC")) is made
