"""Compiling an operator's kernels before a batch needs them."""

from __future__ import annotations

import pyarrow as pa

from headgate.operators.aggregate import AggregateOperator
from headgate.operators.build import Spec, operator_of
from headgate.operators.process import ProcessorOperator
from headgate.operators.serve import GROUP, RECORDS, GroupState, Request, serve
from headgate.state import kernels
from headgate.state.heap import HeapStore
from headgate.state.ports import EMPTY_TOKEN, Section


def warm(spec: Spec) -> None:
    """Have every kernel compiled, or loaded from its cache.

    An aggregate is run on two rows in the heap. A processor is called without a row: only its author
    knows which rows it can take.
    """
    operator = operator_of(spec)
    kernels.warm()
    if isinstance(operator, ProcessorOperator):
        operator.rehearse()
    else:
        _warm_aggregate(operator)


def _warm_aggregate(operator: AggregateOperator) -> None:
    store = HeapStore(operator.layout.table)
    schema = operator.schema()
    columns = {GROUP: pa.array([0, 0], pa.int32()), RECORDS: pa.array([1, 1])}
    columns |= {
        f.name: pa.array([0, 0], pa.int64()).cast(f.type)
        if not _bytes(f)
        else pa.array([b"a", b"b"])
        for f in schema
    }
    arriving = pa.table(columns)
    token = EMPTY_TOKEN
    far_us = 2**60
    for number, watermark_us in ((1, 0), (2, far_us)):
        groups = {0: GroupState(token, 0, 0, snapshot=number > 1)}
        token = f"{number:032x}"
        serve(
            operator, store, Request(token, watermark_us, groups, lambda _: _no_sections), arriving
        )


def _no_sections(_: str) -> list[Section]:
    return []


def _bytes(field: pa.Field) -> bool:
    return bool(pa.types.is_binary(field.type))
