"""Computes the table rows that a processor's call writes, moves and removes.

Each function handles all keys of a call at once. Arrays of key positions (`gone_of`, `moved_of`,
`put_of` of `Writes`) are ascending, so a slice selects a key group's part.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operators import codec
from headgate.operators.entries import Columns, EntryLayout
from headgate.operators.hidden import of_type
from headgate.operators.leaves import one_batch, to_leaf
from headgate.operators.numbering import Distinct
from headgate.operators.processor import Keyed, VariableChanges
from headgate.operators.spec import Kind

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
_NONE: I64 = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Before:
    """Holds the entries of one variable before the call."""

    there: Keyed
    """Entries that the call could read."""
    rows: I64
    """int64[n, width]: whole table rows of `there`."""
    number: I64
    """int64[n]: entry numbers of `there`."""
    ended_of: I64
    ended_number: I64
    """`ended_of`, `ended_number`: int64[m]: key and number of entries whose time to live is over."""
    first: I64
    count: I64
    """`first`, `count`: int64[keys]: first number and count in the key's head; 0 for a single value."""


@dataclass(frozen=True)
class Writes:
    """Holds the changes of one variable's entries."""

    variable: int
    gone_of: I64
    gone_number: I64
    """`gone_of`, `gone_number`: int64[n]: key and number of rows to remove, before the writes."""
    moved_of: I64
    moved_number: I64
    """`moved_of`, `moved_number`: int64[m]: key and new number of entries that get another number."""
    moved: I64
    """int64[m, value words]: value parts of these entries; their texts are ids of their own table."""
    put_of: I64
    put_number: I64
    """`put_of`, `put_number`: int64[k]: key and number of entries that are written."""
    put: codec.Words
    """Value parts of the k written entries."""
    first: I64
    count: I64
    """`first`, `count`: int64[keys]: first number and count for the key's head."""


def writes(
    layout: EntryLayout,
    columns: Columns,
    before: Before,
    change: VariableChanges,
    keys: int,
    now_ms: int,
) -> Writes | None:
    """Return the writes that a call's changes to one variable cause; None without any change.

    `keys`: number of keys of the call. `now_ms`: time stamp from which times to live count.
    """
    touched = change.cleared or change.removed or change.put
    if not touched and len(before.ended_of) == 0:
        return None
    put_of, put_rows = _together(change.put, columns.variable.schema)
    cleared = np.zeros(keys, dtype=np.bool_)
    for of in change.cleared:
        cleared[of] = True
    if columns.variable.single:
        for of, _ in change.removed:
            cleared[of] = True
        plan = _value(before, cleared, put_of)
    elif columns.variable.ordered:
        plan = _list(before, cleared, put_of)
    else:
        plan = _map(columns, before, cleared, change, put_of, put_rows)
    source, numbers = plan.put_source, plan.put_number
    order = np.argsort(put_of[source], kind="stable")
    source = source[order]
    ends_ms = now_ms + (columns.variable.ttl_ms or 0)
    words = columns.encoded(put_rows.take(pa.array(source)), ends_ms, len(layout.table.fresh))
    moved = before.rows[plan.moved, layout.value_at :]
    return Writes(
        columns.number, plan.gone_of, plan.gone_number,
        before.there.of[plan.moved], plan.moved_number, moved,
        put_of[source], numbers[order], words, plan.first, plan.count,
    )  # fmt: skip


@dataclass(frozen=True)
class _Plan:
    gone_of: I64
    gone_number: I64
    put_source: I64
    put_number: I64
    first: I64
    count: I64
    moved: I64 = field(default_factory=lambda: _NONE)
    moved_number: I64 = field(default_factory=lambda: _NONE)


def _together(
    parts: list[tuple[I64, pa.RecordBatch]], schema: pa.Schema
) -> tuple[I64, pa.RecordBatch]:
    if len(parts) == 1:
        return parts[0]
    if not parts:
        return _NONE, pa.RecordBatch.from_pylist([], schema=schema)
    of = np.concatenate([of for of, _ in parts])
    batches = [rows for _, rows in parts]
    return of, one_batch(batches)


def _last_of_each(of: I64, keys: int) -> I64:
    """Return the last row of each key, -1 for a key without rows."""
    last = np.full(keys, -1, dtype=np.int64)
    np.maximum.at(last, of, np.arange(len(of)))
    return last


def _value(before: Before, cleared: Mask, put_of: I64) -> _Plan:
    last = _last_of_each(put_of, len(cleared))
    gone = np.zeros(len(cleared), dtype=np.bool_)
    gone[before.there.of] = cleared[before.there.of]
    gone[before.ended_of] = True
    gone &= last < 0
    gone_of = np.flatnonzero(gone)
    source = last[last >= 0]
    nothing = np.zeros(len(cleared), dtype=np.int64)
    gone_number, put_number = np.zeros_like(gone_of), np.zeros_like(source)
    return _Plan(gone_of, gone_number, source, put_number, nothing, nothing)


def _list(before: Before, cleared: Mask, put_of: I64) -> _Plan:
    # only ended entries at the list's head are removed; ended ones behind a live entry stay, hidden
    lead = np.zeros(len(cleared), dtype=np.int64)
    rank = before.ended_number - before.first[before.ended_of]
    place = _rank(before.ended_of)
    np.add.at(lead, before.ended_of[rank == place], 1)
    dropped = np.where(cleared, before.count, lead)
    gone_of = np.repeat(np.arange(len(cleared)), dropped)
    gone_number = before.first[gone_of] + _rank(gone_of)
    added = np.bincount(put_of, minlength=len(cleared))
    left = before.count - dropped
    first = np.where(left > 0, before.first + dropped, 0)
    order = np.argsort(put_of, kind="stable")
    sorted_of = put_of[order]
    number = (first + left)[sorted_of] + _rank(sorted_of)
    return _Plan(gone_of, gone_number, order, number, first, left + added)


def _map(
    columns: Columns,
    before: Before,
    cleared: Mask,
    change: VariableChanges,
    put_of: I64,
    put_rows: pa.RecordBatch,
) -> _Plan:
    keys, there = len(cleared), before.there
    removed_of, removed_rows = _together(change.removed, columns.variable.entry)
    known, removed = len(there.of), len(removed_of)
    distinct = Distinct(
        _identity(columns, [(there.of, there.rows), (removed_of, removed_rows), (put_of, put_rows)])
    )
    held = np.full(len(distinct.rows), -1, dtype=np.int64)
    held[distinct.of[:known]] = np.arange(known)
    gone = cleared[there.of]
    rows_removed = held[distinct.of[known : known + removed]]
    gone[rows_removed[rows_removed >= 0]] = True
    last = _last_of_each(distinct.of[known + removed :], len(distinct.rows))
    put = np.flatnonzero(last >= 0)
    over = held[put] >= 0
    gone[held[put[over]]] = False
    source, new_source = last[put[over]], last[put[~over]]

    number = before.number.copy()
    dead_of = np.concatenate([there.of[gone], before.ended_of])
    dead_number = np.concatenate([number[gone], before.ended_number])
    added = np.bincount(put_of[new_source], minlength=keys)
    count = before.count - np.bincount(dead_of, minlength=keys) + added
    more = np.maximum(count - before.count, 0)
    more_of = np.repeat(np.arange(keys), more)
    holes = dead_number < count[dead_of]
    free_of = np.concatenate([dead_of[holes], more_of])
    free_number = np.concatenate([dead_number[holes], before.count[more_of] + _rank(more_of)])
    free = np.lexsort((free_number, free_of))

    moves = np.flatnonzero(~gone & (number >= count[there.of]))
    homeless_of = np.concatenate([there.of[moves], put_of[new_source]])
    homeless = np.argsort(homeless_of, kind="stable")
    numbers = np.empty(len(homeless_of), dtype=np.int64)
    numbers[homeless] = free_number[free]
    number[moves] = numbers[: len(moves)]

    less = np.maximum(before.count - count, 0)
    gone_of = np.repeat(np.arange(keys), less)
    gone_number = count[gone_of] + _rank(gone_of)
    overwritten = np.zeros(known, dtype=np.bool_)
    overwritten[held[put[over]]] = True
    moves = moves[~overwritten[moves]]
    moves = moves[np.argsort(there.of[moves], kind="stable")]
    return _Plan(
        gone_of, gone_number,
        np.concatenate([source, new_source]),
        np.concatenate([number[held[put[over]]], numbers[len(numbers) - len(new_source) :]]),
        np.zeros(keys, dtype=np.int64), count, moves, number[moves],
    )  # fmt: skip


def _rank(of: I64) -> I64:
    """Return each row's position among the rows of its key; `of` is ascending."""
    starts = np.flatnonzero(np.r_[True, of[1:] != of[:-1]])
    return np.arange(len(of)) - np.repeat(starts, np.diff(np.r_[starts, len(of)]))


def _identity(columns: Columns, parts: list[tuple[I64, pa.RecordBatch]]) -> I64:
    """Return rows of words that are equal for equal entries: key position, then the entry columns."""
    words = [np.concatenate([of for of, _ in parts])]
    for index, wanted in enumerate(columns.variable.entry):
        column = pa.concat_arrays([of_type(rows.column(index), wanted.type) for _, rows in parts])
        leaf = columns.leaves[index]
        carried = to_leaf(column, leaf)
        if leaf.kind is Kind.BYTES:
            codes = carried.dictionary_encode().indices.fill_null(-1)
            words.append(codes.to_numpy().astype(np.int64))
        else:
            encoded = codec.encode([carried], [leaf], [1], 1 + leaf.words).matrix
            words += list(encoded.T)
    return np.column_stack(words)
