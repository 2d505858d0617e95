"""Compiles an operator's kernels before a batch needs them."""

from __future__ import annotations

import pyarrow as pa

from headgate.operators.build import Spec, operator_of
from headgate.operators.operator import Operator
from headgate.operators.serve import serve
from headgate.operators.step import GROUP, RECORDS, GroupState, Request
from headgate.tables.heap import HeapStore
from headgate.tables.heap import warm as warm_tables
from headgate.tables.ports import EMPTY_TOKEN


def warm(spec: Spec) -> None:
    """Compile every kernel, or load it from its cache.

    An operator serves two rows in the heap. A processor is called without rows, because only its
    author knows which rows it accepts.
    """
    operator = operator_of(spec)
    warm_tables()
    if not operator.rehearse():
        _serve_two_rows(operator)


def _serve_two_rows(operator: Operator) -> None:
    store = HeapStore(operator.layout.table)
    schema = operator.input_schema()
    columns = {GROUP: pa.array([0, 0], pa.int32()), RECORDS: pa.array([1, 1])}
    columns |= {
        f.name: pa.array([b"a", b"b"]) if pa.types.is_binary(f.type) else _two(f.type)
        for f in schema
    }
    arriving = pa.table(columns)
    token = EMPTY_TOKEN
    far_us = 2**60
    for number, watermark_us in ((1, 0), (2, far_us)):
        groups = {0: GroupState(token, 0, 0, snapshot=number > 1)}
        token = f"{number:032x}"
        request = Request(token, watermark_us, groups, lambda _: lambda _: [])
        serve(operator, store, request, arriving)


def _two(kind: pa.DataType) -> pa.Array:
    """Return two numbers as a type, or two nulls if Arrow cannot cast numbers to it."""
    try:
        return pa.array([0, 1], pa.int64()).cast(kind)
    except pa.ArrowException:
        return pa.nulls(2, kind)
