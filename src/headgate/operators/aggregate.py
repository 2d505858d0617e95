"""Runs a keyed aggregate over one key group's table: merges arriving records, emits due results.

References
----------
[STRETCH] 4.2, the operator O+ with ``update`` (merge), ``output`` and ``slide`` (emit, expire), in its
columnar form. Differs: state holds slices of windows. So ``update`` changes one entry per record, and
``output`` merges the slices of a window when the watermark reaches the window's end.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isqrt

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.core.errors import EngineError
from headgate.operators import codec
from headgate.operators.arriving import Buffers, interned
from headgate.operators.emission import COPIED_ROWS, Emission, GroupResults
from headgate.operators.groupwise import whole
from headgate.operators.kernels.merge import OVERFLOW, expand_windows, merge
from headgate.operators.kernels.merge_each import merge_each
from headgate.operators.layout import RowLayout, row_layout
from headgate.operators.operator import Operator
from headgate.operators.program import Leaves
from headgate.operators.spec import (
    BEFORE_ALL_US,
    NEVER_US,
    AggregateSpec,
    Leaf,
    OutputMode,
    TimeKey,
)
from headgate.operators.step import (
    ARRIVED_FIRST,
    ARRIVED_LAST,
    GROUP,
    RECORDS,
    SlotStep,
    slice_starts,
)
from headgate.tables import together
from headgate.tables.heap import HeapStore
from headgate.tables.ports import EMPTY_TOKEN, I64, Table
from headgate.tables.table import BufferTable

_NO_ROWS = np.zeros(0, dtype=np.int64)
_BLOCKS_FROM_DUE = 4
_BLOCKS_FROM_SLICES = 16
"""Least number of windows due at once, and of slices per window, at which slices are first merged into
blocks (`_parts`). Larger values use blocks more rarely."""


def overflow() -> EngineError:
    """Return the error for an integer sum that leaves the range of bigint."""
    return EngineError(
        "[ARITHMETIC_OVERFLOW] a sum of integers left the range of bigint; sum a decimal or "
        "double instead, or set spark.sql.ansi.enabled to false to let it wrap."
    )


class AggregateOperator(Operator):
    """Computes one `AggregateSpec`; holds no state of its own."""

    spec: AggregateSpec
    layout: RowLayout

    def __init__(self, spec: AggregateSpec) -> None:
        self.spec = spec
        self.layout = row_layout(spec)
        self.fresh = np.array(self.layout.table.fresh, dtype=np.int64)
        self._start = self.layout.value_start
        self._value_width = self.layout.table.width - self._start
        self._programs = [
            Leaves(aggregate.program, self.layout.leaves[first : first + count])
            for aggregate, (_, first, count, *_) in zip(
                spec.aggregates, self.layout.ops.tolist(), strict=False
            )
            if aggregate.program is not None
        ]

    def encode(self, keys: list[pa.Array], slices: I64, values: list[pa.Array]) -> Buffers:
        """Encode arriving buffers as words, one matrix row per record.

        Parameters
        ----------
        keys : list of pyarrow.Array, one per key leaf, each of n values
        slices : int64[n]    Start of each record's slice, microseconds; ignored if the key has no time.
        values : list of pyarrow.Array, one per value leaf
        """
        layout = self.layout
        count = len(slices)
        key = codec.encode(keys, self.spec.keys, layout.key_at, layout.table.key_words)
        matrix = key.matrix
        if not keys:
            matrix = np.zeros((count, layout.table.key_words), dtype=np.int64)
        if layout.time_at >= 0:
            matrix[:, layout.time_at] = slices
        value = codec.encode(values, layout.value_leaves, layout.value_at, self._value_width)
        return Buffers(matrix, key.strings, value.matrix, value.strings)

    def _encoded(self, rows: pa.Table) -> Buffers:
        """Encode arriving rows as words, one matrix row per record."""
        names = AggregateOperator.schema(self).names
        keys = [rows.column(n).combine_chunks() for n in names if n[0] == "k"]
        values = [rows.column(n).combine_chunks() for n in names if n[0] == "v"]
        slices = slice_starts(self.time, rows)
        return self.encode([whole(c) for c in keys], slices, [whole(c) for c in values])

    def _arriving(self, step: SlotStep, rows: pa.Table) -> Buffers:
        """Encode a step's rows as words."""
        del step
        return self._encoded(rows)

    def merge(self, table: Table, batch: Buffers, start: int, stop: int) -> None:
        """Merge records ``start:stop`` of `batch` into `table`.

        Raises `EngineError` if a checked integer sum overflows; a retry would overflow again.
        """
        keys = interned(table, batch.keys, batch.key_strings, start, stop)
        values = interned(table, batch.values, batch.value_strings, start, stop)
        index = table.upsert(keys)
        self._merge_into(table, index, values, table)

    def _merge_into(self, target: Table, index: I64, values: I64, strings: Table) -> None:
        part = target.rows[:, self._start :]
        offsets, data = strings.strings()
        layout = self.layout
        status = merge(
            part,
            part.view(np.float64),
            index,
            values,
            values.view(np.float64),
            layout.ops,
            layout.leaves,
            offsets,
            data,
        )
        for program in self._programs:
            program.merge(part, index, values)
        if status == OVERFLOW:
            raise overflow()

    def run(
        self,
        step: SlotStep,
        chosen: pa.Table,
        starts: I64,
        watermarks_us: Mapping[int, int],
        initial: tuple[pa.Table, I64] | None = None,
    ) -> pa.RecordBatch:
        """Serve rows ``starts[g]:starts[g + 1]`` of each key group g; return the results."""
        del initial
        batch = self._arriving(step, chosen)
        emission = Emission(
            self.layout, self.schema(), self.columns, has_lists=bool(self.spec.kept)
        )
        work, edges = _GroupStep(self, step, batch, emission), starts.tolist()
        few: list[int] = []
        states, most = step.request.groups, COPIED_ROWS if self._merges_plainly else 0
        for group, watermark_us in watermarks_us.items():
            start, stop = edges[group], edges[group + 1]
            if 0 < stop - start <= most and not states[group].snapshot:
                few.append(group)
            else:
                work.run(group, start, stop, watermark_us)
        if few:
            spans = np.array([(edges[group], edges[group + 1]) for group in few], dtype=np.int64)
            work.run_together(few, spans, [watermarks_us[group] for group in few])
        return emission.batch()

    @property
    def _merges_plainly(self) -> bool:
        """Return whether one kernel call can merge the records of several key groups."""
        time = self.spec.time
        plain = type(self) is AggregateOperator and not self._programs and not self.shows_all
        return together.ENABLED and plain and (time is None or not time.sliced)

    def merged(self, rows: pa.Table) -> pa.Table:
        """Merge arriving rows with each other; return one row per key and slice."""
        batch = self._encoded(rows)
        table = HeapStore(self.layout.table).acquire(0, EMPTY_TOKEN, lambda _: [])
        table.begin()
        index = table.upsert(interned(table, batch.keys, batch.key_strings, 0, rows.num_rows))
        values = interned(table, batch.values, batch.value_strings, 0, rows.num_rows)
        self._merge_into(table, index, values, table)
        _, first, entry = np.unique(index, return_index=True, return_inverse=True)
        words = table.rows[index[first]]
        results = GroupResults(
            words[:, 1 : self._start], words[:, self._start :], codec.Strings(*table.strings())
        )
        columns = dict(zip(self.schema().names, self.columns(results), strict=True))
        columns[GROUP] = rows.column(GROUP).to_numpy()[first]
        columns[RECORDS] = np.bincount(entry, rows.column(RECORDS).to_numpy()).astype(np.int64)
        for name, extreme in ((ARRIVED_FIRST, np.fmin), (ARRIVED_LAST, np.fmax)):
            if name in rows.column_names:
                columns[name] = at_ms = np.full(len(first), np.nan)
                extreme.at(at_ms, entry, rows.column(name).to_numpy())
        return pa.table(
            {
                name: (c if isinstance(c, pa.Array) else pa.array(c)).cast(field.type)
                for name, field in zip(rows.column_names, rows.schema, strict=True)
                for c in (columns[name],)
            }
        )

    @property
    def time(self) -> TimeKey | None:
        """Time part of the key; None if the key has no time."""
        return self.spec.time

    @property
    def shows_all(self) -> bool:
        """Return whether a key group emits all its results in every step (complete mode)."""
        return self.spec.mode is OutputMode.COMPLETE

    @property
    def expires(self) -> bool:
        """Return whether the watermark makes records late and removes rows."""
        return self._expiring() is not None

    @property
    def waits_for_time(self) -> bool:
        """Return whether a window's result is emitted when the watermark has passed the window."""
        return self.spec.results_after_us is not None

    def late(self, slices: I64, watermark_us: int | I64) -> npt.NDArray[np.bool_]:
        """Return a mask of records whose windows all end at or before the watermark."""
        time = self._expiring()
        if time is None:
            return np.zeros(len(slices), dtype=np.bool_)
        last = slices
        if time.sliced:
            last = slices - (slices - time.offset_us) % time.advance_us
        late: npt.NDArray[np.bool_] = last + time.size_us <= watermark_us
        return late

    def partly_late(self, slices: I64, watermark_us: int | I64) -> npt.NDArray[np.bool_]:
        """Return a mask of records with at least one ended and at least one open window."""
        time = self._expiring()
        if time is None or not time.sliced:
            return np.zeros(len(slices), dtype=np.bool_)
        slice_ends = slices + time.slice_us
        first_ends = slice_ends + (time.offset_us + time.size_us - slice_ends) % time.advance_us
        partly: npt.NDArray[np.bool_] = (first_ends <= watermark_us) & ~self.late(
            slices, watermark_us
        )
        return partly

    def emit(self, table: Table, changed: I64, emitted_us: int, watermark_us: int) -> GroupResults:
        """Return the results that this step emits; remove rows that no later step can emit.

        Parameters
        ----------
        changed : int64[n]    Rows that this step changed, each once; UPDATE emits these.
        emitted_us : int    Watermark up to which this group has emitted already.
        watermark_us : int    The group's watermark now; never below `emitted_us`.
        """
        mode, time = self.spec.mode, self._expiring()
        if mode is OutputMode.COMPLETE:
            return self._windows(table, table.live(), BEFORE_ALL_US, NEVER_US)
        if mode is OutputMode.UPDATE:
            results = self._updated(table, changed, emitted_us)
        elif time is None or watermark_us <= emitted_us:
            results = self._windows(table, changed[:0], 0, 0)
        else:
            live = table.live()
            starts = table.rows[live, 1 + self.layout.time_at]
            due = live[starts < watermark_us] if time.size_us else live[starts <= watermark_us]
            results = self._windows(table, due, emitted_us, watermark_us)
        if time is not None and watermark_us > emitted_us:
            self._expire(table, watermark_us)
        return results

    def entries(self, table: Table, emitted_us: int, part: int = 0) -> pa.RecordBatch:
        """Return all results that the state holds now; of windows, only the open ones."""
        del part
        after_us = emitted_us if self._expiring() is not None else int(BEFORE_ALL_US)
        results = self._windows(table, table.live(), after_us, int(NEVER_US))
        return pa.RecordBatch.from_arrays(self.columns(results), schema=self.schema())

    def due_us(self, table: Table, watermark_us: int) -> int:
        """Return the next watermark at which the group must emit results or remove rows."""
        time = self._expiring()
        if time is None or table.live_count == 0:
            return int(NEVER_US)
        oldest = table.least(1 + self.layout.time_at)
        if not time.sliced:
            return oldest + time.size_us
        # end of the first window that holds the oldest slice; below, of the first open one
        first_end = oldest - (oldest - time.offset_us) % time.slice_us + time.slice_us
        end = first_end + (-(first_end - time.offset_us - time.size_us)) % time.advance_us
        if end <= watermark_us:
            end += ((watermark_us - end) // time.advance_us + 1) * time.advance_us
        return end

    def _expiring(self) -> TimeKey | None:
        """Return the time that makes rows late; None in complete mode, which keeps all rows."""
        time = self.spec.time
        complete = self.spec.mode is OutputMode.COMPLETE
        return time if time is not None and time.expires and not complete else None

    def _expire(self, table: Table, watermark_us: int) -> None:
        word = 1 + self.layout.time_at
        if table.live_count == 0 or not self.late(np.array(table.least(word)), watermark_us):
            return
        live = table.live()
        starts = table.rows[live, word]
        table.delete(live[self.late(starts, watermark_us)])

    def _updated(self, table: Table, changed: I64, emitted_us: int) -> GroupResults:
        time = self.spec.time
        if time is None or not time.sliced:
            return self._windows(table, changed, BEFORE_ALL_US, NEVER_US)
        # emit every window that holds a changed slice; merging such a window needs all its slices
        starts = table.rows[:, 1 + self.layout.time_at]
        live = table.live()
        if len(changed):
            near = starts[live]
            reach = time.size_us
            live = live[
                (near > starts[changed].min() - reach) & (near < starts[changed].max() + reach)
            ]
        after = emitted_us if time.expires else int(BEFORE_ALL_US)
        keys = table.rows[changed][:, 1 : self._start]
        wanted = self._window_keys(keys, time.slice_us, 0, after, int(NEVER_US))[1]
        return self._windows(table, live, after, int(NEVER_US), only=wanted)

    def _window_keys(
        self, keys: I64, span_us: int, within_us: int, after_us: int, until_us: int
    ) -> tuple[I64, I64]:
        """Return (position in `keys`, key words with the window's end for the start) of all windows.

        `expand_windows` explains `span_us` and `within_us`.
        """
        time, at = self.spec.time, self.layout.time_at
        assert time is not None
        out = np.empty((len(keys) * time.overlap, 2), dtype=np.int64)
        edges = (time.size_us, time.advance_us, time.offset_us, after_us, until_us)
        starts = np.ascontiguousarray(keys[:, at])
        count = expand_windows(starts, span_us, within_us, *edges, out)
        position = out[:count, 0]
        keys = keys[position]
        keys[:, at] = out[:count, 1]
        return position, keys

    def _windows(
        self, table: Table, index: I64, after_us: int, until_us: int, only: I64 | None = None
    ) -> GroupResults:
        """Merge rows into windows with ``after < end <= until`` and return them as columns."""
        time, at = self.spec.time, self.layout.time_at
        rows = table.rows[index]
        keys, values = rows[:, 1 : self._start], rows[:, self._start :]
        if time is not None and time.sliced:
            parts = self._parts(table, keys, values, after_us, until_us)
            keys, values = (np.concatenate(column) for column in zip(*parts, strict=True))
            keys, values = self._merged(table, keys, values, only)
        elif time is not None:
            ends = keys[:, at]
            ends += time.size_us
            due = (ends > after_us) & (ends <= until_us)
            keys, values = keys[due], values[due]
        return GroupResults(keys, values, codec.Strings(*table.strings()))

    def _parts(
        self, table: Table, keys: I64, values: I64, after_us: int, until_us: int
    ) -> list[tuple[I64, I64]]:
        """Return rows keyed by a window's end; merging rows of equal keys yields the windows.

        If many windows are due, slices are first merged into blocks. A window of n slices then takes
        about 3 sqrt(n) rows (whole blocks, and single slices at both edges) instead of n.
        """
        time, at = self.spec.time, self.layout.time_at
        assert time is not None
        slices, block_us = time.size_us // time.slice_us, 0
        due = (int(until_us) - int(after_us)) // time.advance_us
        if min(due, time.overlap) >= _BLOCKS_FROM_DUE and slices >= _BLOCKS_FROM_SLICES:
            block_us = isqrt(slices) * time.slice_us
        position, ends = self._window_keys(keys, time.slice_us, block_us, after_us, until_us)
        parts = [(ends, values[position])]
        if block_us:
            keys = keys.copy()
            keys[:, at] -= (keys[:, at] - time.offset_us) % block_us
            keys, values = self._merged(table, keys, values, None)
            position, ends = self._window_keys(keys, block_us, 0, after_us, until_us)
            parts.append((ends, values[position]))
        return parts

    def _merged(self, table: Table, keys: I64, values: I64, only: I64 | None) -> tuple[I64, I64]:
        windows = HeapStore(self.layout.table).acquire(0, EMPTY_TOKEN, lambda _: [])
        windows.begin()
        index = windows.upsert(np.ascontiguousarray(keys))
        self._merge_into(windows, index, values, table)
        # windows in `only` hold changed slices, so the merge above has created these windows
        live = windows.live() if only is None else np.unique(windows.upsert(only))
        rows = windows.rows[live]
        return rows[:, 1 : self._start], rows[:, self._start :]

    def columns(self, results: GroupResults) -> list[pa.Array]:
        """Return results as Arrow columns: key leaves, window end (with a time), value leaves."""
        layout = self.layout
        columns = codec.decode(results.keys, self.spec.keys, layout.key_at, results.strings)
        if layout.time_at >= 0:
            columns.append(pa.array(np.ascontiguousarray(results.keys[:, layout.time_at])))
        leaves = layout.value_leaves
        return columns + codec.decode(results.values, leaves, layout.value_at, results.strings)

    def input_schema(self) -> pa.Schema:
        """Return the schema of arriving columns; each record arrives as a buffer of the aggregates."""
        return self._schema(codec.arriving_type)

    def schema(self) -> pa.Schema:
        """Return the schema of `columns`: ``k0 ..``, ``t`` (if the key has a time), ``v0 ..``."""
        return self._schema(codec.arrow_type)

    def _schema(self, type_of: Callable[[Leaf], pa.DataType]) -> pa.Schema:
        fields = [pa.field(f"k{i}", codec.arrow_type(x)) for i, x in enumerate(self.spec.keys)]
        if self.layout.time_at >= 0:
            fields.append(pa.field("t", pa.int64()))
        leaves = enumerate(self.layout.value_leaves)
        return pa.schema(fields + [pa.field(f"v{i}", type_of(x)) for i, x in leaves])


@dataclass(frozen=True)
class _GroupStep:
    """Serves key groups: acquires a table, merges records, emits results, commits the changes."""

    operator: AggregateOperator
    step: SlotStep
    batch: Buffers
    emission: Emission

    def run(self, group: int, start: int, stop: int, watermark_us: int) -> None:
        """Serve records ``start:stop`` of the batch, all of one group."""
        operator, state = self.operator, self.step.request.groups[group]
        unchanged = start == stop and watermark_us < state.due_us and not state.snapshot
        if unchanged and (not operator.shows_all or state.token == EMPTY_TOKEN):
            return
        table = self.step.acquire(group)
        try:
            if unchanged:
                self._put_out(group, operator.emit(table, _NO_ROWS, state.emitted_us, watermark_us))
                return
            table.begin()
            if stop > start:
                operator.merge(table, self.batch, start, stop)
            self._finish(group, table, watermark_us)
        finally:
            self.step.release(group)

    def _finish(self, group: int, table: Table, watermark_us: int) -> None:
        """Emit a group's results and commit its changes."""
        operator, state = self.operator, self.step.request.groups[group]
        self.step.half_written(group)
        changed = table.changed()
        self._put_out(group, operator.emit(table, changed, state.emitted_us, watermark_us))
        self.step.commit(
            group,
            table,
            watermark_us=watermark_us,
            due_us=operator.due_us(table, watermark_us),
            strings=operator.layout.string_words,
        )

    def run_together(self, groups: Sequence[int], spans: I64, watermarks_us: Sequence[int]) -> None:
        """Serve several groups that have few records each; the result equals `run` for each group.

        Parameters
        ----------
        groups : sequence of int
        spans : int64[n, 2]
            Index of each group's first record, and of the record after its last one.
        watermarks_us : sequence of int
        """
        held: list[BufferTable] = []
        try:
            for group in groups:
                table = self.step.acquire(group)
                assert isinstance(table, BufferTable)
                held.append(table)
                table.begin()
            self._merge_together(held, spans)
            self._finish_together(groups, held, watermarks_us)
        finally:
            for group, _ in zip(groups, held, strict=False):
                self.step.release(group)

    def _merge_together(self, tables: list[BufferTable], spans: I64) -> None:
        operator, batch = self.operator, self.batch
        keys = self._interned(tables, spans, batch.keys, batch.key_strings)
        values = self._interned(tables, spans, batch.values, batch.value_strings)
        index = np.zeros(len(keys), dtype=np.int64)

        def upsert(at: I64, first: int) -> int:
            return together.upsert_each(at, first, spans, operator.fresh, keys, index)

        def upsert_alone(number: int, start: int, stop: int) -> None:
            index[start:stop] = tables[number].upsert(keys[start:stop])

        at = _in_each(tables, spans, upsert, upsert_alone)
        layout = operator.layout
        values_float = values.view(np.float64)
        done = merge_each(
            at, spans, index, values, values_float, layout.value_start, layout.ops, layout.leaves
        )
        if done < len(tables):
            raise overflow()

    def _interned(
        self,
        tables: list[BufferTable],
        spans: I64,
        matrix: I64,
        strings: tuple[tuple[int, codec.Strings, codec.Mask | None], ...],
    ) -> I64:
        """Replace the strings of records by ids + 1; each string is interned in its record's table."""
        if not strings:
            return matrix
        matrix = matrix.copy()
        for word, column, null in strings:
            ids = _interned_in_each(tables, spans, column)
            matrix[:, word] = ids + 1 if null is None else np.where(null, 0, ids + 1)
        return matrix

    def _finish_together(
        self, groups: Sequence[int], tables: list[BufferTable], watermarks_us: Sequence[int]
    ) -> None:
        operator, layout, time = self.operator, self.operator.layout, self.operator.spec.time
        at, due_us = together.places(tables), [int(NEVER_US)] * len(groups)
        if time is not None and time.expires:
            due_us = (together.least_each(at, 1 + layout.time_at) + time.size_us).tolist()
        known = [number for number, us in enumerate(due_us) if us > watermarks_us[number]]
        words = np.array(layout.string_words, dtype=np.int64)
        starts = together.changed_each(at[known], words) if known else None
        if starts is None or starts[0][0] < 0:
            known = []
        else:
            edges, rows, copied, offsets, data = starts
            ends = edges.tolist()
            for place, number in enumerate(known):
                group = groups[number]
                self.step.half_written(group)
                self.step.commit(
                    group,
                    tables[number],
                    watermark_us=watermarks_us[number],
                    due_us=due_us[number],
                    strings=layout.string_words,
                    rows=rows[ends[place] : ends[place + 1]],
                )
            if operator.spec.mode is OutputMode.UPDATE:
                keys = copied[:, 1 : layout.value_start]
                if time is not None:
                    keys[:, layout.time_at] += time.size_us
                results = GroupResults(
                    keys, copied[:, layout.value_start :], codec.Strings(offsets, data)
                )
                self.emission.add_apart(results)
        for number in sorted(set(range(len(groups))) - set(known)):
            self._finish(groups[number], tables[number], watermarks_us[number])

    def _put_out(self, group: int, results: GroupResults) -> None:
        if self.operator.waits_for_time:
            self.step.note_results(group, results.keys[:, self.operator.layout.time_at])
        self.emission.add(results)


def _interned_in_each(tables: list[BufferTable], spans: I64, column: codec.Strings) -> I64:
    """Return the ids of strings; each string is interned in its record's table."""
    ids = np.zeros(len(column.offsets) - 1, dtype=np.int64)
    offsets, data = column.offsets, np.require(column.data, np.uint8, ("C", "W"))

    def intern(at: I64, first: int) -> int:
        return together.intern_each(at, first, spans, offsets, data, ids)

    def intern_alone(number: int, start: int, stop: int) -> None:
        ids[start:stop] = tables[number].intern(offsets[start : stop + 1], data)

    _in_each(tables, spans, intern, intern_alone)
    return ids


def _in_each(
    tables: list[BufferTable],
    spans: I64,
    run: Callable[[I64, int], int],
    run_alone: Callable[[int, int, int], None],
) -> I64:
    """Run a kernel over the records of all tables; return the places of the tables.

    A table that must grow stops the kernel; `run_alone` then processes this table's records.

    Parameters
    ----------
    tables : list of BufferTable
    spans : int64[n, 2]
        Index of each table's first record, and of the record after its last one.
    run : callable
        Processes tables from a given number on; returns the number of the first that must grow.
    run_alone : callable
        Processes the records of one table; the table may grow.
    """
    at, number = together.places(tables), 0
    while (number := run(at, number)) < len(tables):
        start, stop = spans[number].tolist()
        run_alone(number, start, stop)
        at, number = together.places(tables), number + 1
    return at
