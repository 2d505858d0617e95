"""What came of each input of an operator in one step, and what became of it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operators.operator import Operator
from headgate.operators.step import ARRIVED_LAST, RECORDS, TIME, InputCounts
from headgate.state.ports import I64

F64 = npt.NDArray[np.float64]

_FEW = 64
"""Up to here slices are looked for one after the other, which costs less than a sort."""


def input_counts(
    operator: Operator, arrived: pa.Table, late: pa.Table, chosen: pa.Table
) -> tuple[InputCounts, ...]:
    """Return the counts of each input.

    Parameters
    ----------
    operator : Operator
    arrived, late, chosen : pyarrow.Table
        What came with the step, what of it was turned away, and what was served.
    """
    executed = _records(operator, late) + _records(operator, chosen)
    newest_ms = _newest_ms(operator, arrived)
    return tuple(
        InputCounts(int(new), int(done), float(newest))
        for new, done, newest in zip(_records(operator, arrived), executed, newest_ms, strict=True)
    )


def _records(operator: Operator, table: pa.Table) -> I64:
    records: I64 = table.column(RECORDS).to_numpy()
    if operator.inputs == 1:
        return np.array([records.sum()])
    summed = np.bincount(_input_of(operator, table), records, operator.inputs)
    return summed.astype(np.int64)


def _newest_ms(operator: Operator, table: pa.Table) -> list[float]:
    if ARRIVED_LAST not in table.column_names or table.num_rows == 0:
        return [np.nan] * operator.inputs
    at_ms = table.column(ARRIVED_LAST).to_numpy()
    if operator.inputs == 1:
        return [_greatest(at_ms)]
    inputs = _input_of(operator, table)
    return [_greatest(at_ms[inputs == place]) for place in range(operator.inputs)]


def _greatest(at_ms: F64) -> float:
    known = at_ms[~np.isnan(at_ms)]
    return float(known.max()) if len(known) else np.nan


def _input_of(operator: Operator, table: pa.Table) -> I64:
    column: I64 = table.column(operator.input_column).to_numpy()
    return column


def newest_by_slice(operator: Operator, chosen: pa.Table) -> dict[int, float]:
    """Return when the newest record of each slice that was served arrived, ms since 1970.

    Nothing where the operator puts out results with the records that cause them, or where records
    do not say when they arrived.
    """
    if not operator.waits_for_time or ARRIVED_LAST not in chosen.column_names:
        return {}
    at_ms: F64 = chosen.column(ARRIVED_LAST).to_numpy()
    slices: I64 = chosen.column(TIME).to_numpy()
    found: dict[int, float] = {}
    while len(slices) and len(found) < _FEW:
        begin_us = int(slices[0])
        rest = slices != begin_us
        newest_ms = _greatest(at_ms[~rest])
        if not np.isnan(newest_ms):
            found[begin_us] = newest_ms
        slices, at_ms = slices[rest], at_ms[rest]
    begins_us, place = np.unique(slices, return_inverse=True)
    newest = np.full(len(begins_us), -np.inf)
    np.maximum.at(newest, place, np.nan_to_num(at_ms, nan=-np.inf))
    more = zip(begins_us.tolist(), newest.tolist(), strict=True)
    return found | {begin_us: at for begin_us, at in more if at > -np.inf}


def results_by_time(operator: Operator, put_out: pa.RecordBatch) -> dict[int, int]:
    """Return how many results of each window were put out, by the window's end."""
    if not operator.waits_for_time or put_out.num_rows == 0:
        return {}
    ends, counts = np.unique(put_out.column(TIME).to_numpy(), return_counts=True)
    return dict(zip(ends.tolist(), counts.tolist(), strict=True))
