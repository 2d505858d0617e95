"""Emits the first record of each key, and drops later records with this key.

A row is ``[meta | key nulls, key words ... | watermark at which the key is forgotten]``. State holds no
other column of a record.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operators import codec
from headgate.operators.arriving import interned
from headgate.operators.groupwise import Groupwise, Share, whole
from headgate.operators.hidden import of_type
from headgate.operators.numbering import Distinct
from headgate.operators.spec import (
    NEVER_US,
    NO_TIME_US,
    Kind,
    Leaf,
    OperatorSpec,
    OutputMode,
    TimeKey,
)
from headgate.operators.step import Request
from headgate.tables.ports import Table, TableLayout

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class DeduplicateSpec(OperatorSpec):
    """Describes a deduplication: records with equal keys are duplicates."""

    keys: tuple[Leaf, ...]
    outputs: pa.Schema
    """pyarrow.Schema: the columns of a record."""
    time: TimeKey | None
    """Event time of a record, as a `TimeKey` of size 0. None if the query has no watermark."""
    keep_us: int | None
    """Microseconds from the event time of a key's first record to the watermark that forgets the key.
    None: state remembers the key for ever."""
    mode: OutputMode = OutputMode.APPEND
    """APPEND or UPDATE; both have the same effect here."""

    def to_json(self) -> dict[str, Any]:
        """Return the part of the spec that a checkpoint's state depends on."""
        return {"keys": [[int(x.kind), x.scale] for x in self.keys], "keep_us": self.keep_us}


@dataclass(frozen=True)
class KeyLayout:
    """Maps the leaves of a key to the words of a row."""

    table: TableLayout
    key_at: tuple[int, ...]
    """Word of each leaf within the key part."""


@dataclass(frozen=True)
class _Work:
    """Holds the rows of a step: their keys as words, and all their columns."""

    keys: codec.Words
    forget_us: I64
    records: pa.RecordBatch


class DeduplicateOperator(Groupwise):
    """Runs one `DeduplicateSpec`."""

    spec: DeduplicateSpec
    layout: KeyLayout

    def __init__(self, spec: DeduplicateSpec) -> None:
        self.spec = spec
        key_at, words = codec.positions(spec.keys)
        self.layout = KeyLayout(TableLayout(words, (0,)), key_at)
        self._forget_at = 1 + words
        self.string_words = tuple(
            1 + w for w, x in zip(key_at, spec.keys, strict=True) if x.kind is Kind.BYTES
        )

    @property
    def time(self) -> TimeKey | None:
        """Event time of a record."""
        return self.spec.time

    def input_schema(self) -> pa.Schema:
        """Return the schema of arriving columns: ``t`` (with a watermark), ``k0 ..``, ``v0 ..``."""
        keys = [pa.field(f"k{i}", codec.arrow_type(x)) for i, x in enumerate(self.spec.keys)]
        time = [pa.field("t", pa.int64())] if self.spec.time is not None else []
        return pa.schema([*time, *keys, *self.schema()])

    def schema(self) -> pa.Schema:
        """Return the schema of the output: ``v0 ..``."""
        return pa.schema([pa.field(f"v{i}", x.type) for i, x in enumerate(self.spec.outputs)])

    def entries(self, table: Table, emitted_us: int, part: int = 0) -> pa.RecordBatch:
        """Return the remembered keys, ``k0 ..``, and the watermark that forgets each key, ``t``."""
        del part
        rows = table.rows[table.live()]
        rows = rows[rows[:, self._forget_at] > emitted_us]
        words, strings = rows[:, 1 : self._forget_at], codec.Strings(*table.strings())
        keys = codec.decode(words, self.spec.keys, self.layout.key_at, strings)
        forget_us = pa.array(np.ascontiguousarray(rows[:, self._forget_at]))
        names = [f"k{i}" for i in range(len(keys))]
        return pa.RecordBatch.from_arrays([*keys, forget_us], names=[*names, "t"])

    def _read(self, _: Request, chosen: pa.Table) -> _Work:
        columns = [whole(chosen.column(f"k{i}")) for i in range(len(self.spec.keys))]
        layout = self.layout
        keys = codec.encode(columns, self.spec.keys, layout.key_at, layout.table.key_words)
        schema = self.schema()
        values = [of_type(whole(chosen.column(x.name)), x.type) for x in schema]
        records = pa.RecordBatch.from_arrays(values, schema=schema)
        forget_us = np.full(chosen.num_rows, NEVER_US, dtype=np.int64)
        if self.spec.keep_us is not None:
            times_us = chosen.column("t").to_numpy()
            known = times_us != NO_TIME_US
            forget_us[known] = times_us[known] + self.spec.keep_us
        return _Work(keys, forget_us, records)

    def _serve(
        self, table: Table, work: _Work, share: Share, watermark_us: int
    ) -> pa.RecordBatch | None:
        put_out, start, stop = None, share.start, share.stop
        if stop > start:
            keys = Distinct(interned(table, work.keys.matrix, work.keys.strings, start, stop))
            fresh = table.find(keys.rows) < 0
            first = start + keys.first[fresh]
            index = table.upsert(keys.rows[fresh])
            table.rows[index, self._forget_at] = work.forget_us[first]
            put_out = work.records.take(pa.array(np.sort(first)))
        live = table.live()
        table.delete(live[table.rows[live, self._forget_at] <= watermark_us])
        return put_out

    def _due_us(self, table: Table) -> int:
        forget_us = table.rows[table.live(), self._forget_at]
        return int(forget_us.min(initial=NEVER_US))
