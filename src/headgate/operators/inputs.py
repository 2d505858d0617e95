"""Counts the records of each input of an operator in one step: arrived, late and served."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa

from headgate.operators.counts import F64
from headgate.operators.operator import Operator
from headgate.operators.step import ARRIVED_LAST, GROUP, RECORDS, TIME, InputCounts
from headgate.tables.ports import I64

_FEW = 64
"""Slices that are searched one by one, which is cheaper than to sort them; the rest is sorted."""


def input_counts(
    operator: Operator, arrived: pa.Table, late: pa.Table, chosen: pa.Table
) -> tuple[InputCounts, ...]:
    """Return the counts of each input.

    `arrived`, `late`, `chosen` (pyarrow.Table): the step's new rows, the late rows among them, and
    the served rows.
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
    inputs = table.column(operator.input_column).to_numpy()
    return np.bincount(inputs, records, operator.inputs).astype(np.int64)


def _newest_ms(operator: Operator, table: pa.Table) -> list[float]:
    if ARRIVED_LAST not in table.column_names or table.num_rows == 0:
        return [np.nan] * operator.inputs
    at_ms = table.column(ARRIVED_LAST).to_numpy()
    if operator.inputs == 1:
        return [_greatest(at_ms)]
    inputs = table.column(operator.input_column).to_numpy()
    return [_greatest(at_ms[inputs == place]) for place in range(operator.inputs)]


def _greatest(at_ms: F64) -> float:
    known = at_ms[~np.isnan(at_ms)]
    return float(known.max()) if len(known) else np.nan


def newest_by_slice(operator: Operator, chosen: pa.Table) -> dict[int, dict[int, float]]:
    """Return, by key group and slice, the latest arrival of a served record, ms since 1970.

    Empty if the operator's results do not wait for time, or if records have no arrival time.
    `chosen` is sorted by key group.
    """
    if not operator.waits_for_time or ARRIVED_LAST not in chosen.column_names:
        return {}
    at_ms: F64 = np.nan_to_num(chosen.column(ARRIVED_LAST).to_numpy(), nan=-np.inf)
    groups: I64 = chosen.column(GROUP).to_numpy()
    slices: I64 = chosen.column(TIME).to_numpy()
    newest: dict[int, dict[int, float]] = {}
    looked = 0
    while len(slices) and looked < _FEW:
        looked += 1
        begin_us = int(slices[0])
        rest = slices != begin_us
        _note_newest(newest, begin_us, groups[~rest], at_ms[~rest])
        slices, groups, at_ms = slices[rest], groups[rest], at_ms[rest]
    order = np.argsort(slices, kind="stable")
    slices, groups, at_ms = slices[order], groups[order], at_ms[order]
    edges = np.flatnonzero(np.r_[True, slices[1:] != slices[:-1], True])
    for start, stop in itertools.pairwise(edges if len(slices) else ()):
        _note_newest(newest, int(slices[start]), groups[start:stop], at_ms[start:stop])
    return newest


def _note_newest(
    newest_of: dict[int, dict[int, float]], begin_us: int, groups: I64, at_ms: F64
) -> None:
    """Note the latest arrival of each key group; `groups` is sorted."""
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])
    newest_ms = np.maximum.reduceat(at_ms, starts)
    for group, newest in zip(groups[starts].tolist(), newest_ms.tolist(), strict=True):
        if newest > -np.inf:
            newest_of.setdefault(group, {})[begin_us] = newest
