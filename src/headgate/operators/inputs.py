"""What came of each input of an operator in one step."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operators.operator import Operator
from headgate.operators.step import ARRIVED_LAST, RECORDS, InputCounts
from headgate.state.ports import I64

F64 = npt.NDArray[np.float64]


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
