"""Routes the pipe's rows to the slots, in a Python worker that lives as long as the pipe."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark import TaskContext

from headgate.operators.step import GROUP, RECORDS
from headgate.spark.job.columns import MARKER_TO, MARKER_TOKEN, MARKER_US
from headgate.spark.realtime import words
from headgate.spark.realtime.channels import Channel, host_of

DROPPED = -1
"""Value of `MARKER_TO` in a row that a filter above the watermark has dropped; its time still counts."""

_FLUSH_ROWS, _FLUSH_BYTES = 8192, 1 << 24
"""Rows, or their bytes, at which a router sends them before the epoch's end. Chosen, not tuned."""

_OURS = (MARKER_TO, MARKER_TOKEN, MARKER_US)
"""Prefixes of the names of markers' columns."""


@dataclass(frozen=True)
class Router:
    """Routes the rows of one task; the function that `mapInArrow` runs."""

    meeting: words.Meeting
    operator: str
    """Operator whose slots get the rows."""
    shared: bool
    """Whether each slot gets every row."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Route until the feeder has ended."""
        context = TaskContext.get()
        assert context is not None
        routing = _Routing(self, context.partitionId())
        try:
            for batch in batches:
                routing.route(batch)
        finally:
            routing.close()
        yield from ()


@dataclass
class _Routing:
    """Holds the state of a router between two Arrow batches."""

    of: Router
    number: int
    slots: dict[str, Channel] = field(default_factory=dict)
    """Slots by address, in the order of the assignment; where each slot gets every row, one per host."""
    behind: dict[str, list[str]] = field(default_factory=dict)
    """By address of such a slot: those of its host's other slots, which get their messages from it."""
    slot_of: np.ndarray | None = None
    waiting: list[pa.RecordBatch] = field(default_factory=list)
    rows: int = 0
    byte_count: int = 0
    newest_us: dict[int, int] = field(default_factory=dict)
    epoch: object = None
    lost: bool = False
    """Whether a slot is lost; then rows are dropped until the feeder reads again."""
    rewound: int = 0
    """Number of times that the feeder has read again."""

    def route(self, batch: pa.RecordBatch) -> None:
        token = batch.column(batch.schema.get_field_index(MARKER_TOKEN))
        start = 0
        if token.null_count < batch.num_rows:
            for at in np.flatnonzero(token.is_valid().to_numpy(zero_copy_only=False)).tolist():
                self._add(batch.slice(start, at - start))
                self._heed(json.loads(token[at].as_py()))
                start = at + 1
        self._add(batch.slice(start))

    def _heed(self, said: dict[str, Any]) -> None:
        # a plan that multiplies rows multiplies markers as well; each marker counts once
        if said.get(words.REWIND, self.rewound) != self.rewound:
            self.rewound = said[words.REWIND]
            self._forget()
            self.lost = False
        if self.lost:
            return
        if said.get(words.EPOCH, self.epoch) != self.epoch:
            self.epoch = said[words.EPOCH]
            last = self._parts()
            for number, address in enumerate(self.slots):
                self._tell(address, (words.EPOCH, self.epoch, self.newest_us, last.get(number)))
            self.newest_us = {}
        if self.of.operator in said:
            self._switch(said[self.of.operator])

    def _tell(self, address: str, message: tuple[Any, ...]) -> None:
        """Send a message to a slot, unless a slot is lost."""
        if self.lost:
            return
        if behind := self.behind.get(address):
            message = (words.RELAY, behind, message)
        try:
            self.slots[address].send(message)
        except (OSError, EOFError):
            self._lose(address)

    def _lose(self, address: str) -> None:
        """Report a lost slot to the driver, and drop rows until the feeder reads again."""
        self.lost = True
        with self.of.meeting.connect(self.of.meeting.driver) as driver:
            driver.send((words.LOST, self.number, address))

    def _forget(self) -> None:
        """Forget the waiting rows, and the slots."""
        self.close()
        self.slots, self.newest_us, self.epoch = {}, {}, None
        self.waiting, self.rows, self.byte_count = [], 0, 0

    def _switch(self, routes: dict[str, Any]) -> None:
        """Send the following rows to the slots of new routes."""
        self.behind = by_host(routes["slots"]) if self.of.shared else {}
        addresses, before = list(self.behind) or routes["slots"], self.slots
        for address in before.keys() - set(addresses):
            before[address].close()
        self.slots = {}
        for address in addresses:
            try:
                slot = before.get(address) or self.of.meeting.connect(address)
                if address not in before:
                    slot.send(self.number)
            except (OSError, EOFError, AuthenticationError):  # lost, or another slot has its port
                self._lose(address)
                return
            self.slots[address] = slot
        self.slot_of = np.array(routes["slot_of"], dtype=np.int32)

    def _add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows == 0 or self.lost:
            return
        to = batch.column(batch.schema.get_field_index(MARKER_TO))
        for name in batch.schema.names:
            if name.startswith(MARKER_US):
                times = batch.column(batch.schema.get_field_index(name))
                if times.null_count < batch.num_rows:
                    newest = pc.max(times).as_py()
                    number = int(name.removeprefix(MARKER_US))
                    self.newest_us[number] = max(newest, self.newest_us.get(number, newest))
        if to.null_count == 0:
            return
        if to.null_count < batch.num_rows:
            batch = batch.filter(to.is_null())
        if batch.num_rows:
            kept = [name for name in batch.schema.names if not name.startswith(_OURS)]
            self.waiting.append(batch.select(kept))
            self.rows += batch.num_rows
            self.byte_count += batch.nbytes
            if self.rows >= _FLUSH_ROWS or self.byte_count >= _FLUSH_BYTES:
                self._flush()

    def _flush(self) -> None:
        addresses = list(self.slots)
        for number, part in self._parts().items():
            self._tell(addresses[number], (words.RECORDS, part))

    def _parts(self) -> dict[int, bytes]:
        """Return the waiting records by slot, as Arrow streams; none wait afterwards."""
        if not self.waiting:
            return {}
        table = pa.Table.from_batches(self.waiting).combine_chunks()
        self.waiting, self.rows, self.byte_count = [], 0, 0
        assert self.slot_of is not None
        return by_slot(table, self.slot_of, len(self.slots), shared=self.of.shared)

    def close(self) -> None:
        for slot in self.slots.values():
            slot.close()


def by_host(addresses: Sequence[str]) -> dict[str, list[str]]:
    """Return the first slot of each host, and with it the other slots of that host.

    A slot that is reached by a socket of this host stands alone.
    """
    first: dict[str, str] = {}
    found: dict[str, list[str]] = {}
    for address in addresses:
        leader = first.setdefault(host_of(address) or address, address)
        found.setdefault(leader, []).extend([address] * (address != leader))
    return found


def by_slot(table: pa.Table, slot_of: np.ndarray, slots: int, *, shared: bool) -> dict[int, bytes]:
    """Return the rows of each slot as an Arrow stream; if `shared`, each slot gets every row."""
    if shared:
        return dict.fromkeys(range(slots), for_all(table, len(slot_of)))
    parts = to_slots(table, slot_of, slots)
    return {number: as_bytes(part) for number, part in parts.items() if part.num_rows}


def for_all(table: pa.Table, key_groups: int) -> bytes:
    """Return rows for all slots, as an Arrow stream: each row has a key group by lot, which stores it."""
    groups = np.random.default_rng().integers(0, key_groups, table.num_rows, np.int32)
    return as_bytes(table.set_column(table.column_names.index(GROUP), GROUP, pa.array(groups)))


def stored_at(table: pa.Table, groups: Iterable[int]) -> pa.Table:
    """Return the rows of `for_all` for a slot: only those of its own `groups` count as records."""
    here = np.isin(table.column(GROUP).to_numpy(), list(groups))
    counts = np.where(here, table.column(RECORDS).to_numpy(), 0)
    return table.set_column(table.column_names.index(RECORDS), RECORDS, pa.array(counts))


def to_slots(table: pa.Table, slot_of: np.ndarray, slots: int) -> dict[int, pa.Table]:
    """Return each slot's rows by the slot's number, sorted by key group if divided among several slots.

    Parameters
    ----------
    table : pyarrow.Table    Routed rows.
    slot_of : int[G]
    """
    if slots == 1:
        return {0: table}
    groups = table.column(GROUP).to_numpy()
    order = np.argsort(groups, kind="stable")  # so that a slot need not sort
    to = slot_of[groups[order]]
    mine = {number: order[to == number] for number in range(slots)}
    return {n: table.take(pa.array(places)) for n, places in mine.items() if len(places)}


def as_bytes(table: pa.Table) -> bytes:
    """Return a table as an Arrow stream."""
    stream = pa.BufferOutputStream()
    with pa.ipc.new_stream(stream, table.schema) as writer:
        writer.write_table(table)
    found: bytes = stream.getvalue().to_pybytes()
    return found
