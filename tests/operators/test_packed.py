"""Nested values as bytes: what is packed comes back, and what was damaged does not."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headgate.core.errors import StateError
from headgate.operators.packed import pack, packable, unpack

MONEY = pa.decimal128(12, 2)
PLAIN: list[tuple[pa.DataType, st.SearchStrategy[Any]]] = [
    (pa.bool_(), st.booleans()),
    (pa.int8(), st.integers(-128, 127)),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    (pa.float64(), st.floats(allow_nan=False)),
    (pa.string(), st.text(max_size=5)),
    (pa.binary(), st.binary(max_size=5)),
    (pa.date32(), st.dates(date(1900, 1, 1), date(2100, 1, 1))),
    (
        pa.timestamp("us", "UTC"),
        st.datetimes(datetime(1900, 1, 1), datetime(2100, 1, 1), timezones=st.just(UTC)),
    ),
    (pa.duration("us"), st.timedeltas(timedelta(-9), timedelta(9))),
    (MONEY, st.decimals(-(10**9), 10**9, places=2)),
]


def nested(
    inner: st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]],
) -> st.SearchStrategy[tuple[pa.DataType, st.SearchStrategy[Any]]]:
    """Return types that hold others, each with its values, null among them."""

    def a_list(of: Any) -> Any:
        return pa.list_(of[0]), st.lists(st.none() | of[1], max_size=3)

    def a_struct(of: Any) -> Any:
        fields = [pa.field(f"f{n}", kind) for n, (kind, _) in enumerate(of)]
        values = {f"f{n}": st.none() | each for n, (_, each) in enumerate(of)}
        return pa.struct(fields), st.fixed_dictionaries(values)

    def a_map(of: Any) -> Any:
        key, item = of
        pairs = st.tuples(key[1], st.none() | item[1])
        return pa.map_(key[0], item[0]), st.lists(pairs, max_size=3)

    lists = inner.map(a_list)
    structs = st.lists(inner, min_size=1, max_size=3).map(a_struct)
    maps = st.tuples(st.sampled_from(PLAIN), inner).map(a_map)
    return lists | structs | maps


KINDS = nested(st.recursive(st.sampled_from(PLAIN), nested, max_leaves=4))


@given(st.data())
def test_what_was_packed_comes_back_whatever_its_type(data: st.DataObject) -> None:
    kind, values = data.draw(KINDS)
    column = pa.array(data.draw(st.lists(st.none() | values, max_size=4)), kind)
    assert packable(kind)
    packed = pack(column)
    assert packed.type == pa.binary()
    assert packed.is_null().equals(column.is_null())
    assert unpack(packed, kind).equals(column)


@given(st.data())
def test_bytes_that_were_cut_or_have_grown_are_refused(data: st.DataObject) -> None:
    kind, values = data.draw(KINDS)
    (whole,) = pack(pa.array([data.draw(values)], kind)).to_pylist()
    end = data.draw(st.integers(0, len(whole) - 1))
    for damaged in (whole[:end], whole + b"\1"):
        with pytest.raises(
            StateError, match=r"a packed value of state is no .*: the checkpoint is"
        ):
            unpack(pa.array([damaged], pa.binary()), kind)


@pytest.mark.parametrize(
    "kind", [pa.null(), pa.time64("us"), pa.large_string(), pa.month_day_nano_interval()]
)
def test_what_cannot_be_packed_is_known_at_any_depth(kind: pa.DataType) -> None:
    fine = pa.int64()
    assert not packable(kind)
    assert not packable(pa.list_(kind))
    assert not packable(pa.map_(fine, kind))
    assert not packable(pa.struct([pa.field("a", fine), pa.field("b", kind)]))
    assert packable(pa.struct([pa.field("a", fine), pa.field("b", pa.map_(fine, pa.list_(fine)))]))


def test_values_lie_as_the_format_page_says() -> None:
    kind = pa.struct(
        [
            pa.field("n", pa.int32()),
            pa.field("ok", pa.bool_()),
            pa.field("t", pa.list_(pa.string())),
        ]
    )
    (raw,) = pack(pa.array([{"n": -2, "ok": True, "t": ["é", None]}], kind)).to_pylist()
    number = b"\1" + (-2).to_bytes(8, "little", signed=True)
    text = b"\1" + (2).to_bytes(4, "little") + "é".encode()
    assert raw == b"\1" + number + b"\1\1" + b"\1" + (2).to_bytes(4, "little") + text + b"\0"
    (money,) = pack(pa.array([[Decimal("1.50")]], pa.list_(MONEY))).to_pylist()
    assert money.endswith(b"1.50")
