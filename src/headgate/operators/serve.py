"""Does a slot's work in a step: drops late records, serves the backlog first, emits, logs changes.

An engine, on which the module does not depend, passes an Arrow table of arriving records and a `Request`,
and gets a `Served`. The request alone, never the clock, decides which records are served, so a retry
serves by the same rule.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operators import counts
from headgate.operators.inputs import input_counts, newest_by_slice
from headgate.operators.operator import Operator
from headgate.operators.quota import fair_shares
from headgate.operators.spec import NEVER_US
from headgate.operators.step import (
    ARRIVED_FIRST,
    ARRIVED_LAST,
    GROUP,
    MERGED,
    RECORDS,
    Request,
    Served,
    SlotStep,
    slice_starts,
)
from headgate.tables.ports import I64, Store

F64 = npt.NDArray[np.float64]
_NO_ROWS = np.zeros(0, dtype=np.int64)


def serve(
    operator: Operator,
    store: Store,
    request: Request,
    arriving: pa.Table,
    backlog: pa.Table | None = None,
    *,
    initial: pa.Table | None = None,
    now_ms: Callable[[], float] = lambda: time.time() * 1000,
    on_group: Callable[[int], None] | None = None,
) -> Served:
    """Do one slot's work in one step.

    Raises `StateError` if a key group cannot be brought to its token; `EngineError` if an aggregate
    overflows, or if a processor fails or returns rows that do not fit its schema.

    Parameters
    ----------
    arriving : pyarrow.Table    New records; each key group's in the sequence of the source.
    backlog : pyarrow.Table or None    Waiting records; each key group's oldest first.
    initial : pyarrow.Table or None
        A processor's initial state for the slot's groups; it never joins the backlog.
    now_ms : callable    Clock for completion times, ms since 1970.
    on_group : callable, optional
        Called while a key group is half written, before its state has the new token; for fault tests.
    """
    began_ms = now_ms()
    arriving = _by_group(arriving)
    emitted = _emitted_by_group(request)
    if operator.shared:
        # a record reaches a group only now, so no group may be on hold; the task fetches its state
        request = replace(request, held=frozenset())
        # records of all groups arrive and none waits, so all groups have emitted to the same watermark
        groups_seen = _column(arriving, GROUP)
        emitted = np.full(
            max(len(emitted), int(groups_seen.max(initial=0)) + 1), emitted.max(initial=0)
        )
    arrived = arriving
    served, arriving = _turn_away(operator, arriving, emitted)
    both, waited = _behind_backlog(arriving, backlog)
    now = _servable(_column(both, GROUP), request)
    chosen = both if now.all() else both.filter(pa.array(now)).combine_chunks()
    served.served_rows = chosen.num_rows
    chosen = _set_apart(operator, request, served, chosen)
    served.waiting = both.filter(pa.array(~now & ~waited))
    served.taken = _counts(_column(both, GROUP)[now & waited])
    groups = _column(chosen, GROUP)
    starts = np.searchsorted(groups, np.arange(len(emitted) + 1))
    held = _held_by_waiting(operator, both.filter(pa.array(~now)), len(emitted))
    weights = _counted(chosen, served)
    watermarks_us = {}
    edges, held_us = starts.tolist(), held.tolist()
    for group, state in request.groups.items():
        start, stop = edges[group], edges[group + 1]
        allowed_us = state.emitted_us if group in request.held else request.watermark_us
        if state.split and state.stands_us is not None:
            allowed_us = min(allowed_us, state.stands_us)
            served.apart_holds_us[group] = held_us[group]
        watermarks_us[group] = max(state.emitted_us, min(allowed_us, held_us[group]))
        if stop > start:
            served.served_by_group[group] = int(weights[start:stop].sum())
    served.apart_holds_us |= {group: held_us[group] for group in request.shares}
    served.holds_us = min(watermarks_us.values(), default=served.holds_us)
    served.holds_us = operator.holds_us(served.holds_us)
    step = SlotStep(store, _without_held(operator, request), served, on_group)
    ready_us = {group: watermarks_us[group] for group in step.request.groups}
    served.output = operator.run(step, chosen, starts, ready_us, _initial(initial, starts))
    served.served_records += int(weights.sum())
    if request.origins:
        served.inputs = input_counts(operator, arrived, served.late, chosen)
        served.newest_ms = newest_by_slice(operator, chosen)
    if request.delta_ms or ARRIVED_FIRST in chosen.column_names:
        _measure(served, request, arriving, chosen, began_ms, now_ms())
    return served


def _column(table: pa.Table, name: str) -> npt.NDArray[np.int64]:
    column: npt.NDArray[np.int64] = table.column(name).to_numpy()
    return column


def _by_group(table: pa.Table) -> pa.Table:
    """Sort the table by key group; the sort is stable."""
    groups = _column(table, GROUP).astype(np.int16)
    if len(groups) == 0 or bool(np.all(groups[1:] >= groups[:-1])):
        return table.combine_chunks()
    return table.combine_chunks().take(pa.array(np.argsort(groups, kind="stable")))


def _initial(initial: pa.Table | None, starts: I64) -> tuple[pa.Table, I64] | None:
    """Return the initial state sorted by group, and the index of each group's first row."""
    if initial is None or initial.num_rows == 0:
        return None
    initial = _by_group(initial)
    return initial, np.searchsorted(_column(initial, GROUP), np.arange(len(starts)))


def _emitted_by_group(request: Request) -> I64:
    """Return, by group, the watermark that decides whether arriving records are late."""
    groups = request.groups
    emitted = np.zeros(max([*groups, *request.shares], default=-1) + 1, dtype=np.int64)
    for group, state in groups.items():
        emitted[group] = state.emitted_us if state.stands_us is None else state.stands_us
    for group, stands_us in request.shares.items():
        emitted[group] = stands_us
    return emitted


def _set_apart(operator: Operator, request: Request, served: Served, chosen: pa.Table) -> pa.Table:
    """Merge the rows of shares (other slots' key groups); return the rows of the slot's own groups."""
    if not request.shares or chosen.num_rows == 0:
        return chosen
    apart = np.isin(_column(chosen, GROUP), np.fromiter(request.shares, np.int64))
    if not apart.any():
        return chosen
    rows = chosen.filter(pa.array(apart)).combine_chunks()
    groups, weights = _column(rows, GROUP), _counted(rows, served)
    served.served_records = int(weights.sum())
    for group in np.unique(groups).tolist():
        served.served_by_group[group] = int(weights[groups == group].sum())
    if MERGED in rows.column_names:
        rows = rows.drop_columns([MERGED])
    merged = _by_group(operator.merged(rows))
    served.touched_by_group |= _counts(_column(merged, GROUP))
    served.apart = merged.append_column(MERGED, pa.array(np.ones(merged.num_rows, dtype=np.bool_)))
    return chosen.filter(pa.array(~apart)).combine_chunks()


def _counted(rows: pa.Table, served: Served) -> I64:
    """Return each row's records, 0 if another slot merged the row; count these in `merged_rows`."""
    weights = _column(rows, RECORDS)
    if MERGED not in rows.column_names:
        return weights
    merged = rows.column(MERGED).fill_null(False).to_numpy()
    served.merged_rows += int(merged.sum())
    return np.where(merged, 0, weights)


def _turn_away(operator: Operator, arriving: pa.Table, emitted: I64) -> tuple[Served, pa.Table]:
    """Split off late records: on arrival, their group has emitted all their windows."""
    empty = arriving.slice(0, 0)
    none_late = empty.append_column("emitted", pa.array(_NO_ROWS))
    arrived = int(_column(arriving, RECORDS).sum())
    served = Served(empty, none_late, none_late, arrived_records=arrived)
    if not operator.expires or arriving.num_rows == 0:
        return served, arriving
    met = emitted[_column(arriving, GROUP)]
    slices = operator.times(arriving)
    late = operator.late(slices, met)
    partly = operator.partly_late(slices, met)
    if late.any():
        served.late = _with_met(arriving, late, met)
        served.late_records = int(_column(served.late, RECORDS).sum())
    if partly.any():
        served.partly_late = _with_met(arriving, partly, met)
    if late.any():
        arriving = arriving.filter(pa.array(~late)).combine_chunks()
    return served, arriving


def _with_met(table: pa.Table, which: npt.NDArray[np.bool_], met: I64) -> pa.Table:
    return table.filter(pa.array(which)).append_column("emitted", pa.array(met[which]))


def _behind_backlog(
    arriving: pa.Table, backlog: pa.Table | None
) -> tuple[pa.Table, npt.NDArray[np.bool_]]:
    """Return all rows by group, each group's backlog first, and a mask of the backlog's rows."""
    if backlog is None or backlog.num_rows == 0:
        return arriving, np.zeros(arriving.num_rows, dtype=np.bool_)
    parts = [backlog]
    if arriving.num_rows:
        parts.append(arriving)
    # one of them may lack arrival times: an earlier run may not have recorded them
    both = pa.concat_tables(parts, promote_options="default")
    groups = _column(both, GROUP).astype(np.int16)
    order = np.argsort(groups, kind="stable")
    return both.combine_chunks().take(pa.array(order)), order < backlog.num_rows


def _counts(groups: I64) -> dict[int, int]:
    numbers, counts = np.unique(groups, return_counts=True)
    return dict(zip(numbers.tolist(), counts.tolist(), strict=True))


def _without_held(operator: Operator, request: Request) -> Request:
    """Return `request` without groups on hold, whose state may be on another host.

    Complete mode emits every group in every step, so none is left out; the task fetches their state.
    """
    if operator.shows_all or not request.held:
        return request
    ready = {g: state for g, state in request.groups.items() if g not in request.held}
    return replace(request, groups=ready)


def _servable(groups: I64, request: Request) -> npt.NDArray[np.bool_]:
    """Return a mask of rows (sorted by group) to serve now: within the quota, no group on hold."""
    if not request.held:
        return _within_quota(groups, request.quota_records, request.turn)
    ready = ~np.isin(groups, np.fromiter(request.held, np.int64))
    ready[ready] = _within_quota(groups[ready], request.quota_records, request.turn)
    return ready


def _within_quota(groups: I64, quota: int | None, turn: int) -> npt.NDArray[np.bool_]:
    """Return a mask of rows (sorted by group) to serve now.

    Every key group gets the same share of the quota as long as it has records, so a hot group delays
    only itself. A group's first rows are served first.
    """
    if quota is None or len(groups) <= quota:
        return np.ones(len(groups), dtype=np.bool_)
    starts = np.flatnonzero(np.r_[True, groups[1:] != groups[:-1]])
    counts = np.diff(np.r_[starts, len(groups)])
    rank = np.arange(len(groups)) - np.repeat(starts, counts)
    served: npt.NDArray[np.bool_] = rank < np.repeat(fair_shares(counts, quota, turn), counts)
    return served


def _held_by_waiting(operator: Operator, waiting: pa.Table, groups: int) -> I64:
    """Return, by group, the largest watermark that the waiting records allow."""
    held = np.full(groups, NEVER_US, dtype=np.int64)
    if waiting.num_rows and operator.time is not None:
        plain = 1 if operator.time.size_us == 0 else 0
        np.minimum.at(held, _column(waiting, GROUP), slice_starts(operator.time, waiting) - plain)
    return held


def stamped(table: pa.Table, at_ms: float) -> pa.Table:
    """Return `table` with `at_ms` as the arrival of all rows that have no arrival time.

    A waiting record keeps its arrival time, so it counts once, in the tick of its arrival.
    """
    if ARRIVED_FIRST not in table.column_names:
        stamps = pa.array(np.full(table.num_rows, at_ms))
        return table.append_column(ARRIVED_FIRST, stamps).append_column(ARRIVED_LAST, stamps)
    for name in (ARRIVED_FIRST, ARRIVED_LAST):
        if table.column(name).null_count:
            place = table.column_names.index(name)
            table = table.set_column(place, name, table.column(name).fill_null(at_ms))
    return table


def _measure(
    served: Served,
    request: Request,
    arriving: pa.Table,
    chosen: pa.Table,
    began_ms: float,
    ended_ms: float,
) -> None:
    """Fill in the latencies of the `chosen` rows and, if the request has `delta_ms`, the counts."""
    completions = _arrived(chosen)
    row_done_ms = counts.completed_ms(_column(chosen, RECORDS), began_ms, ended_ms)
    done_ms = row_done_ms[completions.row]
    served.latency = _latency(completions, done_ms)
    delta_ms = request.delta_ms
    if delta_ms:
        served.counts = counts.Counts(
            counts.count_arrivals(_arrived(arriving), delta_ms, began_ms),
            counts.count_completions(completions, done_ms, delta_ms, request.bound_ms),
            counts.tick_of(ended_ms, delta_ms),
        )


def _arrived(table: pa.Table) -> counts.Arrived:
    groups, records = _column(table, GROUP).astype(np.int64), _column(table, RECORDS)
    if ARRIVED_FIRST not in table.column_names:
        return counts.arrived(groups, records, None, None)
    first, last = (table.column(name).to_numpy() for name in (ARRIVED_FIRST, ARRIVED_LAST))
    return counts.arrived(groups, records, first, last)


def _latency(completions: counts.Arrived, done_ms: F64) -> tuple[F64, F64]:
    """Return latencies (ms) and weights of the records with a known arrival."""
    known = ~np.isnan(completions.at_ms)
    if not known.any():
        return np.zeros(0), np.zeros(0)
    latency_ms = done_ms - completions.at_ms
    if known.all():
        return latency_ms, completions.records
    return latency_ms[known], completions.records[known]
