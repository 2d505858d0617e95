"""Runs aggregates that store the value of each record; the engine computes the result from the values.

Most aggregates merge their records into a small buffer. Some have no buffer that two slots, or a Python
worker, can merge: only Spark can read buffers that Spark serialises, and ``DISTINCT`` must know all
earlier values. The values that are stored for such an aggregate are a collection (`Kept`). Each value is
a row in the key group's table, so windows, expiry, changelog, snapshots and migration treat values as any
row. A result has the merged buffers of the other aggregates, and a list of the values of each collection,
from which the engine computes the aggregate.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headgate.operators import codec
from headgate.operators.aggregate import AggregateOperator
from headgate.operators.arriving import Buffers, KeptRows, interned
from headgate.operators.emission import GroupResults
from headgate.operators.groupwise import whole
from headgate.operators.numbering import Distinct
from headgate.operators.session import SessionOperator
from headgate.operators.spec import Keep, Kept
from headgate.operators.step import SlotStep
from headgate.tables.ports import I64, Table

_PLACES = 32
"""Bits of a record's position in its step; the step's number fills the bits above."""

_WORD = 64
"""Bits of a word, including the sign bit."""


def present_name(collection: int) -> str:
    """Return the name of the column that is null for records without a value in a collection."""
    return f"h{collection}"


def leaf_name(collection: int, leaf: int) -> str:
    """Return the name of the column of a collection's leaf."""
    return f"h{collection}_{leaf}"


class KeptOperator(AggregateOperator):
    """Runs an `AggregateSpec` with collections: values of its records are stored one by one."""

    def input_schema(self) -> pa.Schema:
        """Return the schema of arriving columns: the aggregates', then the collections'."""
        fields = list(super().input_schema())
        for number, kept in enumerate(self.spec.kept):
            fields.append(pa.field(present_name(number), pa.int64()))
            fields += [
                pa.field(leaf_name(number, i), codec.arrow_type(leaf))
                for i, leaf in enumerate(kept.leaves)
            ]
        return pa.schema(fields)

    def schema(self) -> pa.Schema:
        """Return the schema of `columns`: the aggregates', then lists ``l0 ..`` of structs ``x0 ..``."""
        lists = enumerate(self.spec.kept)
        more = [pa.field(f"l{number}", pa.list_(_item(kept))) for number, kept in lists]
        return pa.schema([*super().schema(), *more])

    def _arriving(self, step: SlotStep, rows: pa.Table) -> Buffers:
        encoded = self._encoded(rows)
        places = (step.request.turn << _PLACES) + np.arange(rows.num_rows)
        kept = tuple(self._kept_rows(n, rows, places) for n in range(len(self.spec.kept)))
        return Buffers(
            encoded.keys, encoded.key_strings, encoded.values, encoded.value_strings, kept
        )

    def _kept_rows(self, number: int, rows: pa.Table, places: I64) -> KeptRows:
        layout, kept = self.layout, self.spec.kept[number]
        columns = [
            whole(rows.column(leaf_name(number, i)).combine_chunks())
            for i in range(len(kept.leaves))
        ]
        width = layout.table.key_words
        encoded = codec.encode(columns, kept.leaves, layout.kept_at[number], width)
        keys = encoded.matrix
        keys[:, 0] <<= self._first_bit(number)
        keys[:, layout.tag_at] = number + 1
        if kept.keep is Keep.LIST:
            keys[:, layout.place_at] = places
        present = rows.column(present_name(number)).is_valid().to_numpy()
        return KeptRows(present, keys, encoded.strings)

    def _first_bit(self, number: int) -> int:
        return len(self.spec.keys) + sum(len(h.leaves) for h in self.spec.kept[:number])

    def merge(self, table: Table, batch: Buffers, start: int, stop: int) -> None:
        """Merge records ``start:stop`` of `batch` into `table`, and store their values."""
        super().merge(table, batch, start, stop)
        keys = interned(table, batch.keys, batch.key_strings, start, stop)
        for kept in batch.kept:
            present = kept.present[start:stop]
            own = interned(table, kept.keys, kept.strings, start, stop)
            index = table.upsert(np.ascontiguousarray((keys | own)[present]))
            counted = np.tile(np.array(self.layout.table.fresh, dtype=np.int64), (len(index), 1))
            counted[:, self.layout.count_at] = 1
            self._merge_into(table, index, counted, table)

    def columns(self, results: GroupResults) -> list[pa.Array]:
        """Return results as Arrow columns, with the lists of stored values."""
        tags = results.keys[:, self.layout.tag_at]
        own = tags == 0
        shown = GroupResults(results.keys[own], results.values[own], results.strings)
        known = Distinct(self._bare(shown.keys))
        lists = []
        for number, kept in enumerate(self.spec.kept):
            tagged = tags == number + 1
            some = GroupResults(results.keys[tagged], results.values[tagged], results.strings)
            lists.append(self._list(number, kept, some, known))
        return super().columns(shown) + lists

    def _list(self, number: int, kept: Kept, some: GroupResults, known: Distinct) -> pa.Array:
        layout = self.layout
        of = known.find(self._bare(some.keys))
        order = _in_order(of, some.keys[:, layout.place_at])
        if kept.keep is Keep.BAG:
            order = np.repeat(order, some.values[order, layout.count_at])
        words = some.keys[order]
        words[:, 0] >>= self._first_bit(number)
        parts = codec.decode(words, kept.leaves, layout.kept_at[number], some.strings)
        ends = np.cumsum(np.bincount(of[order], minlength=len(known.rows)))
        offsets = pa.array(np.r_[0, ends].astype(np.int32))
        items = pa.StructArray.from_arrays(parts, fields=list(_item(kept)))
        return pa.ListArray.from_arrays(offsets, items)

    def _bare(self, keys: I64) -> I64:
        """Return the part of rows' keys that an aggregate's row and its value rows have in common."""
        bare = keys[:, : self.layout.tag_at].copy()
        bare[:, 0] &= (1 << len(self.spec.keys)) - 1
        return bare

    def _updated(self, table: Table, changed: I64, emitted_us: int) -> GroupResults:
        time = self.spec.time
        if time is None or not time.sliced:
            # one new value makes the step emit all values of its key again
            known = Distinct(self._bare(table.rows[changed][:, 1 : self._start]))
            live = table.live()
            of = known.find(self._bare(table.rows[live][:, 1 : self._start]))
            changed = live[of >= 0]
        return super()._updated(table, changed, emitted_us)

    def _merged(self, table: Table, keys: I64, values: I64, only: I64 | None) -> tuple[I64, I64]:
        keys, values = super()._merged(table, keys, values, None)
        if only is None:
            return keys, values
        wanted = Distinct(self._bare(only)).find(self._bare(keys)) >= 0
        return keys[wanted], values[wanted]


class KeptSessionOperator(KeptOperator, SessionOperator):
    """Runs sessions over stored values; a value's row has its record's time, also after merges."""

    def _sessions(self, table: Table) -> I64:
        live = table.live()
        own: I64 = live[table.rows[live, 1 + self.layout.tag_at] == 0]
        return own

    def _results(self, table: Table, index: I64) -> GroupResults:
        shown = super()._results(table, index)
        entries, of = self._within(table, index)
        rows = table.rows[entries]
        keys, values = rows[:, 1 : self._start], rows[:, self._start :]
        keys[:, self.layout.time_at] = shown.keys[of, self.layout.time_at]
        # value rows now have the session's time instead of their own, so rows of equal values are merged
        keys, values = self._merged(table, keys, values, None)
        keys = np.concatenate([shown.keys, keys])
        return GroupResults(keys, np.concatenate([shown.values, values]), shown.strings)

    def _remove(self, table: Table, ended: I64) -> None:
        table.delete(np.concatenate([ended, self._within(table, ended)[0]]))

    def _within(self, table: Table, index: I64) -> tuple[I64, I64]:
        """Return the value rows that lie within sessions `index`, and each row's position in `index`."""
        layout = self.layout
        live = table.live()
        entries = live[table.rows[live, 1 + layout.tag_at] > 0]
        sessions, values = table.rows[index], table.rows[entries]
        at = 1 + layout.time_at
        starts, times = sessions[:, at].copy(), values[:, at].copy()
        ends = sessions[:, self._start + self._end_at]
        bare = []
        for rows in (sessions, values):
            keys = self._bare(rows[:, 1 : self._start])
            keys[:, layout.time_at] = 0
            bare.append(keys)
        known = Distinct(bare[0])
        of_key = known.find(bare[1])
        # find the key's last session that begins at or before the value's time
        order = np.lexsort((starts, known.of))
        ranks = np.unique(starts)
        place = np.searchsorted(ranks, times, side="right")
        codes = known.of[order] * (len(ranks) + 1) + np.searchsorted(ranks, starts[order]) + 1
        position = np.searchsorted(codes, of_key * (len(ranks) + 1) + place, side="right") - 1
        inside = (of_key >= 0) & (position >= 0)
        session = order[np.where(inside, position, 0)] if len(order) else np.zeros_like(position)
        if len(order):
            inside &= (known.of[session] == of_key) & (times < ends[session])
        return entries[inside], session[inside]


def _in_order(of: I64, places: I64) -> I64:
    """Return positions sorted by `of`, then by place."""
    if len(of) == 0:
        return of
    later = places - places.min()
    bits = int(later.max()).bit_length()
    order: I64
    if bits + int(of.max()).bit_length() < _WORD:  # sorting by one number is several times faster
        order = np.argsort((of << bits) | later)
    else:
        order = np.lexsort((places, of))
    return order


def _item(kept: Kept) -> pa.StructType:
    """Return the type of a value of a collection."""
    fields = [pa.field(f"x{i}", codec.arrow_type(leaf)) for i, leaf in enumerate(kept.leaves)]
    return pa.struct(fields)
