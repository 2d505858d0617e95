"""Runs a processor over the key groups of one slot: its rounds of calls, and its state in tables.

A step has up to three rounds, each with one call: the initial state (first step only), the arriving rows,
the fired timers. A round looks up the entries of its keys, calls the processor with all keys at once, and
writes the changes, so the next round reads them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.core.errors import ProcessorError
from headgate.operators import codec
from headgate.operators.arriving import interned
from headgate.operators.changes import Before, Writes, writes
from headgate.operators.entries import (
    HEAD,
    EntryLayout,
    Found,
    decoded_keys,
    ended,
    entry_layout,
    find,
    named,
    row_keys,
)
from headgate.operators.failure import FAILURES, explained
from headgate.operators.hidden import of_type
from headgate.operators.leaves import from_leaves, one_batch
from headgate.operators.numbering import Distinct
from headgate.operators.operator import Operator
from headgate.operators.processor import (
    TIMERS,
    Keyed,
    ProcessorSpec,
    State,
    TimeMode,
    Timers,
    fitted,
)
from headgate.operators.row_order import in_order
from headgate.operators.spec import NEVER_US, TimeKey
from headgate.operators.step import SlotStep
from headgate.operators.time_limit import TimeLimit
from headgate.tables.ports import Table

I64 = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
Call = Callable[[pa.RecordBatch, State, Timers], pa.RecordBatch | None]

_PURGE_SHARE = 8
"""Largest number of times that ended entries are removed per time to live. A larger value scans tables
more often; until their removal, entries that ended are hidden from the processor. Chosen, not tuned."""


@dataclass
class _Held:
    """Holds one key group during a step."""

    group: int
    table: Table
    """`begin` has been called."""
    watermark_us: int
    due_us: int
    """Earliest time at which the group has work without a record, microseconds."""


@dataclass(frozen=True)
class _Keys:
    """Holds the keys of a round, by key group."""

    words: list[I64]
    """list of int64[k, variable_at]: one array per acquired group."""
    base: I64 = field(init=False)
    """int64[groups + 1]: position of each group's first key in the round."""

    def __post_init__(self) -> None:
        base = np.cumsum([0, *(len(words) for words in self.words)])
        object.__setattr__(self, "base", base.astype(np.int64))

    @property
    def count(self) -> int:
        return int(self.base[-1])


class ProcessorOperator(Operator):
    """Runs one `ProcessorSpec`; holds no state of its own."""

    spec: ProcessorSpec
    layout: EntryLayout

    def __init__(self, spec: ProcessorSpec) -> None:
        self.spec = spec
        self.layout = entry_layout(spec.keys, spec.variables)
        self._timed = spec.time_mode is not TimeMode.NONE

    @property
    def time(self) -> TimeKey | None:
        """Event time of a record; None unless late records are filtered."""
        return self.spec.time

    @property
    def expires(self) -> bool:
        """Return whether records can be late."""
        return self.spec.filters

    def input_schema(self) -> pa.Schema:
        """Return the schema of arriving columns: ``k0 ..`` as leaves, ``v0 ..`` in their own types."""
        return self._columns("v", self.spec.processor.inputs)

    def initial_schema(self) -> pa.Schema:
        """Return the schema of the initial state: ``k0 ..``, ``i0 ..``."""
        return self._columns("i", self.spec.processor.initial)

    def _columns(self, prefix: str, schema: pa.Schema) -> pa.Schema:
        fields = [pa.field(f"k{i}", codec.arrow_type(x)) for i, x in enumerate(self.spec.keys)]
        return pa.schema(fields + [pa.field(f"{prefix}{i}", x.type) for i, x in enumerate(schema)])

    def schema(self) -> pa.Schema:
        """Return the schema of the output: ``v0 ..``."""
        return pa.schema([pa.field(f"v{i}", x.type) for i, x in enumerate(self.spec.outputs)])

    def entries(self, table: Table, emitted_us: int, part: int = 0) -> pa.RecordBatch:
        """Return the entries of a variable: ``k0 ..``, then its columns as ``v0 ..``."""
        del emitted_us
        layout, columns = self.layout, self.layout.variables[part]
        rows = table.rows[table.live()]
        rows = rows[rows[:, layout.value_at - 2] == columns.number]
        texts = named(table, rows[:, layout.table.width - layout.texts :].ravel())
        decoded = columns.decoded(
            rows[:, layout.value_at :], texts, layout.texts_from, layout.texts
        )
        words, strings = rows[:, 1 : 1 + layout.variable_at], codec.Strings(*table.strings())
        keys = codec.decode(words, self.spec.keys, layout.key_at, strings)
        values = decoded.columns if columns.leaves else []
        names = [f"k{i}" for i in range(len(keys))] + [f"v{i}" for i in range(len(values))]
        return pa.RecordBatch.from_arrays([*keys, *values], names=names)

    def late(self, times_us: I64, emitted_us: I64) -> Mask:
        """Return a mask of late records: the watermark of an earlier step has passed their time."""
        flags: Mask = times_us <= emitted_us
        return flags

    def run(
        self,
        step: SlotStep,
        chosen: pa.Table,
        starts: I64,
        watermarks_us: Mapping[int, int],
        initial: tuple[pa.Table, I64] | None = None,
    ) -> pa.RecordBatch:
        """Serve `chosen`; rows ``starts[g]:starts[g + 1]`` are key group g's.

        Acquires all groups at once that have rows or due work, or that write a snapshot.

        `watermarks_us`: watermark of every group of the slot. `initial` ((pyarrow.Table,
        int64[groups + 1]) or None): initial state, in the form of `chosen` and `starts`; None in all
        steps after the first.
        """
        held: list[_Held] = []
        try:
            for group, state in step.request.groups.items():
                rows = int(starts[group + 1] - starts[group])
                if initial is not None:
                    rows += int(initial[1][group + 1] - initial[1][group])
                due = self._timed and state.due_us <= self._now_us(step, watermarks_us[group])
                if rows or due or state.snapshot:
                    table = step.acquire(group)
                    held.append(_Held(group, table, watermarks_us[group], state.due_us))
                    table.begin()
            return self._served(step, held, chosen, starts, initial)
        finally:
            for held_group in held:
                step.release(held_group.group)

    def rehearse(self) -> bool:
        """Call the processor without keys, so that it compiles or loads its code.

        Only its author knows which rows it accepts, so the call has no rows.
        """
        processor = self.spec.processor
        keys = pa.RecordBatch.from_pylist([], schema=processor.keys)
        nothing = np.zeros(0, dtype=np.int64)
        before = {
            v.name: Keyed(nothing, pa.RecordBatch.from_pylist([], schema=v.schema))
            for v in self.spec.variables
        }
        state = State(self.spec.variables, before, 0)
        timers = Timers(state, self.spec.time_mode, -1, nothing)
        batch = Keyed(nothing, pa.RecordBatch.from_pylist([], schema=processor.inputs))
        processor.handleBatch(keys, batch, state, timers)
        processor.close()
        Distinct(np.zeros((1, self.layout.variable_at), dtype=np.int64))
        return True

    # -- rounds -------------------------------------------------------------------------------------

    def _now_us(self, step: SlotStep, watermark_us: int) -> int:
        """Return the time with which due times are compared."""
        return step.request.timestamp_ms * 1000 if self.spec.by_clock else watermark_us

    def _served(
        self,
        step: SlotStep,
        held: list[_Held],
        chosen: pa.Table,
        starts: I64,
        initial: tuple[pa.Table, I64] | None,
    ) -> pa.RecordBatch:
        processor = self.spec.processor
        output = []
        if initial is not None:
            take = processor.handleInitial
            self._rows_round(step, held, *initial, "i", processor.initial, take)
        output += self._rows_round(
            step, held, chosen, starts, "v", processor.inputs, processor.handleBatch
        )
        output += self._due_round(step, held)
        try:
            processor.close()
        except FAILURES as error:
            raise explained(error, f"{self.spec.label}.close") from None
        for held_group in held:
            step.half_written(held_group.group)
            step.commit(
                held_group.group,
                held_group.table,
                watermark_us=held_group.watermark_us,
                due_us=held_group.due_us,
                strings=self.layout.string_words,
            )
        if not output:
            return pa.RecordBatch.from_pylist([], schema=self.schema())
        return one_batch(output)

    def _rows_round(
        self,
        step: SlotStep,
        held: list[_Held],
        rows: pa.Table,
        starts: I64,
        prefix: str,
        schema: pa.Schema,
        method: Callable[[pa.RecordBatch, Keyed, State, Timers], pa.RecordBatch | None],
    ) -> list[pa.RecordBatch]:
        """Call `method` with rows sorted by key; `spec.order`, or else arrival, sorts a key's rows."""
        if rows.num_rows == 0:
            return []
        columns = [_whole(rows.column(f"k{i}")) for i in range(len(self.spec.keys))]
        layout = self.layout
        words = codec.encode(columns, self.spec.keys, layout.key_at, layout.variable_at)
        parts = []
        for held_group in held:
            start, stop = int(starts[held_group.group]), int(starts[held_group.group + 1])
            parts.append(
                (
                    start,
                    Distinct(interned(held_group.table, words.matrix, words.strings, start, stop)),
                )
            )
        keys = _Keys([distinct.rows for _, distinct in parts])
        by_key = [np.argsort(distinct.of, kind="stable") for _, distinct in parts]
        order = _joined([start + x for (start, _), x in zip(parts, by_key, strict=True)])
        of = _joined([b + p.of[x] for b, (_, p), x in zip(keys.base, parts, by_key, strict=False)])
        first = pa.array(_joined([start + distinct.first for start, distinct in parts]))
        place = pa.array(order)
        inputs = [
            of_type(_whole(rows.column(f"{prefix}{i}")).take(place), column.type)
            for i, column in enumerate(schema)
        ]
        if prefix == "v" and self.spec.order:
            sorted_ = pa.array(in_order(inputs, self.spec.order, of))
            inputs = [column.take(sorted_) for column in inputs]
        batch = Keyed(of, pa.RecordBatch.from_arrays(inputs, schema=schema))
        key_schema = self.spec.processor.keys
        typed = from_leaves([column.take(first) for column in columns], key_schema)
        of_keys = pa.RecordBatch.from_arrays(typed, schema=key_schema)
        return self._round(step, held, keys, of_keys, lambda k, s, t: method(k, batch, s, t))

    def _due_round(self, step: SlotStep, held: list[_Held]) -> list[pa.RecordBatch]:
        """Call the processor with fired timers, and remove ended entries."""
        due = [
            held_group
            for held_group in held
            if held_group.due_us <= self._now_us(step, held_group.watermark_us)
        ]
        if not due or not self._timed:
            return []
        fired = [self._scan(step, held_group)[0] for held_group in due]
        output = self._timers_round(step, due, fired) if any(map(len, fired)) else []
        gone = [self._scan(step, held_group)[1] for held_group in due]
        self._round(step, due, _Keys([self._distinct_keys(x) for x in gone]), None, None)
        for held_group in due:
            held_group.due_us = self._next_due(step, held_group)
        return output

    def _timers_round(
        self, step: SlotStep, due: list[_Held], fired: list[I64]
    ) -> list[pa.RecordBatch]:
        layout, at = self.layout, self.layout.value_at + 1
        distinct = [Distinct(rows[:, 1 : 1 + layout.variable_at]) for rows in fired]
        keys = _Keys([x.rows for x in distinct])
        key_schema = self.spec.processor.keys
        of_keys = one_batch(
            [
                decoded_keys(layout, d.table, x.rows, key_schema)
                for d, x in zip(due, distinct, strict=True)
            ]
        )
        of = _joined([b + x.of for b, x in zip(keys.base, distinct, strict=False)])
        at_ms = _joined([rows[:, at] for rows in fired])
        order = np.lexsort((at_ms, of))
        times = pa.RecordBatch.from_arrays([pa.array(at_ms[order])], schema=TIMERS.schema)
        expired = Keyed(of[order], times)

        def call(keys: pa.RecordBatch, state: State, timers: Timers) -> pa.RecordBatch | None:
            timers.delete(expired.of, at_ms[order])  # first, so timers that the call registers stay
            return self.spec.processor.handleExpired(keys, expired, state, timers)

        return self._round(step, due, keys, of_keys, call)

    def _round(
        self,
        step: SlotStep,
        held: list[_Held],
        keys: _Keys,
        of_keys: pa.RecordBatch | None,
        call: Call | None,
    ) -> list[pa.RecordBatch]:
        """Look up the entries of keys, make the call, write the changes; return the output."""
        if keys.count == 0:
            return []
        spec, layout = self.spec, self.layout
        now_ms = step.request.timestamp_ms
        variables = [
            find(layout, held_group.table, words)
            for held_group, words in zip(held, keys.words, strict=True)
        ]
        before = self._before(keys, variables, now_ms)
        shown = {c.variable.name: before[c.number].there for c in layout.variables}
        state = State(spec.variables, shown, keys.count)
        output = []
        if call is not None and of_keys is not None:
            said = self._called(step, call, of_keys, state, self._timers(step, held, keys, state))
            if said is not None:
                output = [pa.RecordBatch.from_arrays(said.columns, schema=self.schema())]
        planned = []
        for columns in layout.variables:
            change = state.changes[columns.variable.name]
            made = writes(layout, columns, before[columns.number], change, keys.count, now_ms)
            if made is not None:
                planned.append(made)
        self._note_due(held, keys, state, now_ms)
        if planned:
            heads = _new_heads(layout, variables, planned)
            for index, held_group in enumerate(held):
                _write(layout, held_group.table, keys, index, planned, heads)
        return output

    def _called(
        self, step: SlotStep, call: Call, keys: pa.RecordBatch, state: State, timers: Timers
    ) -> pa.RecordBatch | None:
        """Call the user's code and return its output in the declared schema."""
        name = self.spec.label
        try:
            with TimeLimit(step.request.time_limit_s):
                said = call(keys, state, timers)
            if said is None:
                return None
            if not isinstance(said, pa.RecordBatch):
                msg = f"it returned {type(said).__name__}, not a pyarrow.RecordBatch."
                raise ProcessorError(msg)
            return fitted(said, self.spec.outputs, "the output")
        except FAILURES as error:
            raise explained(error, f"{name} with {keys.num_rows} keys") from None

    def _timers(self, step: SlotStep, held: list[_Held], keys: _Keys, state: State) -> Timers:
        mode = self.spec.time_mode
        if mode is TimeMode.NONE:
            return Timers(state, mode, -1, np.full(keys.count, -1, dtype=np.int64))
        watermarks_ms = np.array(
            [held_group.watermark_us // 1000 for held_group in held], dtype=np.int64
        )
        each = np.repeat(watermarks_ms, np.diff(keys.base))
        return Timers(state, mode, step.request.timestamp_ms, each)

    def _before(self, keys: _Keys, variables: list[Found], now_ms: int) -> list[Before]:
        """Return the entries of all keys of a round, per variable."""
        layout = self.layout
        of = _joined([b + f.of for b, f in zip(keys.base, variables, strict=False)])
        width = layout.table.width
        rows = np.concatenate([np.zeros((0, width), dtype=np.int64), *(f.rows for f in variables)])
        heads = np.concatenate([f.heads for f in variables])
        texts = pa.concat_arrays([pa.array([], pa.large_binary()), *(f.texts for f in variables)])
        over = ended(layout, rows, now_ms)
        variable, number = rows[:, layout.value_at - 2], rows[:, layout.value_at - 1]
        made = []
        for columns in layout.variables:
            same = variable == columns.number
            there, dead = np.flatnonzero(same & ~over), np.flatnonzero(same & over)
            first = count = np.zeros(keys.count, dtype=np.int64)
            if columns.head_at:
                first, count = heads[:, columns.head_at - 1], heads[:, columns.head_at]
            own = texts
            if layout.texts and len(there) < len(rows):
                own = texts.take(pa.array(_spans(there, layout.texts)))
            decoded = columns.decoded(
                rows[there, layout.value_at :], own, layout.texts_from, layout.texts
            )
            shown = Keyed(of[there], decoded)
            ended_of, ended_number = of[dead], number[dead]
            made.append(
                Before(shown, rows[there], number[there], ended_of, ended_number, first, count)
            )
        return made

    # -- due work -----------------------------------------------------------------------------------

    def _note_due(self, held: list[_Held], keys: _Keys, state: State, now_ms: int) -> None:
        """Lower the due times of groups to those of registered timers and of the ends of new entries."""
        soonest = np.full(len(held), NEVER_US, dtype=np.int64)

        def note(of: I64, at_ms: I64) -> None:
            groups = np.searchsorted(keys.base, of, side="right") - 1
            far_ms = NEVER_US // 1000  # a later time would overflow in microseconds
            np.minimum.at(soonest, groups, np.clip(at_ms, -far_ms, far_ms) * 1000)

        for variable in self.spec.variables:
            for of, rows in state.changes[variable.name].put:
                if variable is TIMERS:
                    note(of, rows.column(0).to_numpy())
                elif variable.ttl_ms is not None:
                    note(of, np.full(len(of), now_ms + variable.ttl_ms))
        for held_group, at_us in zip(held, soonest.tolist(), strict=True):
            held_group.due_us = min(held_group.due_us, at_us)

    def _scan(self, step: SlotStep, held_group: _Held) -> tuple[I64, I64]:
        """Return the rows of fired timers, and of ended entries."""
        rows = held_group.table.rows[held_group.table.live()]
        layout, now_ms = self.layout, self._now_us(step, held_group.watermark_us) // 1000
        gone = rows[ended(layout, rows, step.request.timestamp_ms)]
        timers = rows[rows[:, layout.value_at - 2] == 0]
        return timers[timers[:, layout.value_at + 1] <= now_ms], gone

    def _distinct_keys(self, rows: I64) -> I64:
        return Distinct(rows[:, 1 : 1 + self.layout.variable_at]).rows

    def _next_due(self, step: SlotStep, held_group: _Held) -> int:
        """Return when a group is due next, after all its due work is done."""
        rows = held_group.table.rows[held_group.table.live()]
        layout, now_ms = self.layout, step.request.timestamp_ms
        now_us = self._now_us(step, held_group.watermark_us)
        variable, due_us = rows[:, layout.value_at - 2], [int(NEVER_US)]
        for columns in layout.variables:
            own = rows[variable == columns.number]
            if len(own) == 0:
                continue
            if columns.variable is TIMERS:
                first_ms = min(int(own[:, layout.value_at + 1].min()), int(NEVER_US) // 1000)
                # a timer that was registered for a past time fires in the next step
                due_us.append(max(first_ms * 1000, now_us + 1))
            elif columns.variable.ttl_ms is not None:
                first_ms = int(own[:, layout.value_at + columns.ends_at].min())
                pause_ms = columns.variable.ttl_ms // _PURGE_SHARE + 1
                due_us.append(max(first_ms, now_ms + pause_ms) * 1000)
        return min(due_us)


def _new_heads(
    layout: EntryLayout, variables: list[Found], planned: list[Writes]
) -> tuple[I64, Mask]:
    """Return the heads of a round's keys after the round, and a mask of changed heads."""
    before = np.concatenate([f.heads for f in variables])
    heads = before.copy()
    for made in planned:
        at = layout.variables[made.variable].head_at
        if at:
            heads[:, at - 1], heads[:, at] = made.first, made.count
            heads[made.count == 0, at - 1] = 0
    return heads, (heads != before).any(axis=1)


def _write(
    layout: EntryLayout,
    table: Table,
    keys: _Keys,
    index: int,
    planned: list[Writes],
    heads: tuple[I64, Mask],
) -> None:
    """Write one group's part of a round's changes."""
    low, high, words = int(keys.base[index]), int(keys.base[index + 1]), keys.words[index]

    def part(of: I64) -> slice:
        start, stop = np.searchsorted(of, [low, high])
        return slice(int(start), int(stop))

    def at(of: I64, variable: int, number: I64) -> I64:
        return row_keys(words, of - low, variable, number)

    gone, there, values = [], [], []
    for made in planned:
        span = part(made.gone_of)
        gone.append(at(made.gone_of[span], made.variable, made.gone_number[span]))
        span = part(made.moved_of)
        there.append(at(made.moved_of[span], made.variable, made.moved_number[span]))
        values.append(made.moved[span])
        span = part(made.put_of)
        there.append(at(made.put_of[span], made.variable, made.put_number[span]))
        values.append(interned(table, made.put.matrix, made.put.strings, span.start, span.stop))
    own, changed = heads[0][low:high], heads[1][low:high]
    living, dropped = changed & (own != 0).any(axis=1), changed & ~(own != 0).any(axis=1)
    for which, into in ((living, there), (dropped, gone)):
        of = np.flatnonzero(which)
        into.append(row_keys(words, of, HEAD, np.zeros(len(of), dtype=np.int64)))
    value = np.zeros((int(living.sum()), len(layout.table.fresh)), dtype=np.int64)
    value[:, 1 : 1 + own.shape[1]] = own[living]
    values.append(value)
    places = table.find(np.concatenate(gone))
    table.delete(places[places >= 0])
    placed = table.upsert(np.concatenate(there))
    table.rows[placed, layout.value_at :] = np.concatenate(values)


def _spans(rows: I64, width: int) -> I64:
    """Return the positions of `rows` in a flat array that has ``width`` values per row."""
    return (rows[:, None] * width + np.arange(width)).ravel()


def _joined(parts: list[I64]) -> I64:
    return np.concatenate([np.zeros(0, dtype=np.int64), *parts])


def _whole(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one contiguous array."""
    return pa.concat_arrays(column.chunks) if column.num_chunks else column.combine_chunks()
