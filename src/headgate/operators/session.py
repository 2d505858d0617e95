"""Runs session windows: records of a key that follow one another within a gap form one window.

A row is an aggregate's row: its time is the session's start, its first value the session's end. A record
arrives as the session ``[t, t + gap)``; sessions of a key that touch are merged.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from headgate.operators import codec
from headgate.operators.aggregate import AggregateOperator
from headgate.operators.arriving import Buffers, interned
from headgate.operators.emission import GroupResults
from headgate.operators.kernels.sessions import number_sessions
from headgate.operators.numbering import Distinct
from headgate.operators.spec import NEVER_US, AggregateSpec, OutputMode
from headgate.tables.ports import I64, Table


class SessionOperator(AggregateOperator):
    """Runs an `AggregateSpec` whose time is a session; its first aggregate is the greatest end."""

    def __init__(self, spec: AggregateSpec) -> None:
        super().__init__(spec)
        self._end_at = self.layout.value_at[0]

    def times(self, arriving: pa.Table) -> I64:
        """Return each record's end minus the spec's gap; records may each have a gap of their own."""
        assert self.spec.time is not None
        ends: I64 = arriving.column("v0").to_numpy()
        return ends - self.spec.time.size_us

    def merge(self, table: Table, batch: Buffers, start: int, stop: int) -> None:
        """Merge records ``start:stop`` with each other and with the sessions that they touch."""
        layout, time = self.layout, self.layout.time_at
        keys = interned(table, batch.keys, batch.key_strings, start, stop)
        values = interned(table, batch.values, batch.value_strings, start, stop)
        known = Distinct(_timeless(keys, time))
        live = self._sessions(table)
        of_old = known.find(_timeless(table.rows[live, 1 : 1 + layout.table.key_words], time))
        old, of_old = live[of_old >= 0], of_old[of_old >= 0]
        of = np.concatenate([of_old, known.of])
        keys = np.concatenate([table.rows[old, 1 : self._start], keys])
        values = np.concatenate([table.rows[old, self._start :], values])
        order = np.lexsort((keys[:, time], of))
        session = np.empty(len(order), dtype=np.int64)
        first = number_sessions(
            of, keys[:, time].copy(), values[:, self._end_at].copy(), order, session
        )
        touched = np.zeros(int(session.max(initial=-1)) + 1, dtype=np.bool_)
        touched[session[len(old) :]] = True
        table.delete(old[touched[session[: len(old)]]])
        own = order[touched[session[order]]]
        keys[:, time] = first[session]
        index = table.upsert(keys[own])
        self._merge_into(table, index, np.ascontiguousarray(values[own]), table)

    def emit(self, table: Table, changed: I64, emitted_us: int, watermark_us: int) -> GroupResults:
        """Return and remove the sessions that have ended; in complete mode, return all sessions."""
        live = self._sessions(table)
        if self.spec.mode is OutputMode.COMPLETE:
            return self._results(table, live)
        ended = live[table.rows[live, self._start + self._end_at] <= watermark_us]
        results = self._results(table, ended)
        self._remove(table, ended)
        return results

    def _remove(self, table: Table, ended: I64) -> None:
        table.delete(ended)

    def _results(self, table: Table, index: I64) -> GroupResults:
        """Return sessions as results: the end is the time, the start is the first value."""
        rows = table.rows[index]
        keys, values = rows[:, 1 : self._start], rows[:, self._start :]
        starts = keys[:, self.layout.time_at].copy()
        keys[:, self.layout.time_at] = values[:, self._end_at]
        values[:, self._end_at] = starts
        return GroupResults(keys, values, codec.Strings(*table.strings()))

    def entries(self, table: Table, emitted_us: int, part: int = 0) -> pa.RecordBatch:
        """Return all sessions in the form in which they are emitted."""
        del emitted_us, part  # ended sessions are removed already
        results = self._results(table, self._sessions(table))
        return pa.RecordBatch.from_arrays(self.columns(results), schema=self.schema())

    def due_us(self, table: Table, watermark_us: int) -> int:
        """Return the end of the session that ends first."""
        if not self.expires:
            return int(NEVER_US)
        live = self._sessions(table)
        return int(table.rows[live, self._start + self._end_at].min(initial=NEVER_US))

    def _sessions(self, table: Table) -> I64:
        """Return the indices of session rows."""
        return table.live()


def _timeless(keys: I64, time_at: int) -> I64:
    keys = keys.copy()
    keys[:, time_at] = 0
    return keys
