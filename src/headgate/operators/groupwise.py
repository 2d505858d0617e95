"""Runs an operator one key group after another: acquires its table, serves its rows, commits it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headgate.operators.operator import Operator
from headgate.operators.step import Request, SlotStep
from headgate.tables.ports import Table

I64 = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Share:
    """Holds one key group's part of a step's rows: those from `start` to before `stop`."""

    group: int
    start: int
    stop: int


class Groupwise(Operator, Protocol):
    """Runs an operator over rows of one key group at a time; holds no state of its own.

    Subclasses turn a batch into words (`_read`), serve a group's rows (`_serve`), and compute the
    watermark at which the group has work without new rows (`_due_us`).
    """

    string_words: tuple[int, ...]
    """Words of a whole row that hold interned strings."""

    @abstractmethod
    def _read(self, request: Request, chosen: pa.Table) -> Any:
        """Return the rows of a step in the form that `_serve` needs."""

    @abstractmethod
    def _serve(
        self, table: Table, work: Any, share: Share, watermark_us: int
    ) -> pa.RecordBatch | None:
        """Serve a group's rows; remove rows that `watermark_us` has passed; return the output."""

    @abstractmethod
    def _due_us(self, table: Table) -> int:
        """Return the watermark at which the group must emit or remove rows."""

    @property
    def expires(self) -> bool:
        """Return whether records can be late."""
        return self.time is not None and self.time.expires

    def late(self, times_us: I64, watermark_us: int | I64) -> npt.NDArray[np.bool_]:
        """Return a mask of late records: their event time is at or before the watermark."""
        late: npt.NDArray[np.bool_] = times_us <= watermark_us
        return late

    def run(
        self,
        step: SlotStep,
        chosen: pa.Table,
        starts: I64,
        watermarks_us: Mapping[int, int],
        initial: tuple[pa.Table, I64] | None = None,
    ) -> pa.RecordBatch:
        """Serve rows ``starts[g]:starts[g + 1]`` of each group g, or all rows if it is shared."""
        del initial
        work = self._read(step.request, chosen)
        parts = []
        for group, watermark_us in watermarks_us.items():
            state = step.request.groups[group]
            share = Share(group, int(starts[group]), int(starts[group + 1]))
            if self.shared:
                share = Share(group, 0, chosen.num_rows)
            if share.start == share.stop and watermark_us < state.due_us and not state.snapshot:
                continue
            table = step.acquire(group)
            try:
                table.begin()
                put_out = self._serve(table, work, share, watermark_us)
                step.half_written(group)
                step.commit(
                    group,
                    table,
                    watermark_us=watermark_us,
                    due_us=self._due_us(table),
                    strings=self.string_words,
                )
            finally:
                step.release(group)
            if put_out is not None and put_out.num_rows:
                parts.append(put_out)
        return joined(parts, self.schema())


def joined(parts: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    """Concatenate record batches of one schema."""
    if not parts:
        return pa.RecordBatch.from_pylist([], schema=schema)
    if len(parts) == 1:
        return parts[0]
    columns = [pa.concat_arrays([part.column(i) for part in parts]) for i in range(len(schema))]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def whole(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    """Return a column as one contiguous array."""
    if isinstance(column, pa.Array):
        return column
    return pa.concat_arrays(column.chunks) if column.num_chunks else column.combine_chunks()
