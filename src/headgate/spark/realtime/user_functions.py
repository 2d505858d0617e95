"""Wraps a user's Python functions in a pipe, so that they see records and never a marker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.core.errors import EngineError


@dataclass(frozen=True)
class OfRecords:
    """Calls a function that takes the values of one record."""

    function: Callable[..., Any]

    def __call__(self, marker: Any, *values: Any, **named: Any) -> Any:
        """Return the function's value; None for a marker."""
        return None if marker is not None else self.function(*values, **named)


@dataclass(frozen=True)
class OfSeries:
    """Calls a function that takes pandas objects, with the rows of records."""

    function: Callable[..., Any]
    columns: tuple[str, ...] | None
    """Of a result that is a DataFrame."""

    def __call__(self, marker: Any, *values: Any, **named: Any) -> Any:
        """Return the function's values; anything for markers."""
        is_record = marker.isna().to_numpy()
        if is_record.all():
            return self.function(*values, **named)
        if not is_record.any():
            nothing = marker.astype(object).map(lambda _: None)
            if self.columns is None:
                return nothing
            return nothing.to_frame(self.columns[0]).assign(**dict.fromkeys(self.columns, None))

        def of_records(value: Any) -> Any:
            return value[is_record].reset_index(drop=True)

        named = {name: of_records(value) for name, value in named.items()}
        found = self.function(*map(of_records, values), **named)
        return found.iloc[_places(found, is_record)]


@dataclass(frozen=True)
class OfArrays:
    """Calls a function that takes Arrow arrays, with the rows of records."""

    function: Callable[..., Any]
    kind: pa.DataType
    """pyarrow.DataType: Of its result."""

    def __call__(self, marker: pa.Array, *values: Any, **named: Any) -> Any:
        """Return the function's values; anything for markers."""
        mask = marker.is_null()
        is_record = mask.to_numpy(zero_copy_only=False)
        if is_record.all():
            return self.function(*values, **named)
        if not is_record.any():
            return pa.nulls(len(marker), self.kind)
        named = {name: value.filter(mask) for name, value in named.items()}
        found = self.function(*(value.filter(mask) for value in values), **named)
        return found.take(pa.array(_places(found, is_record)))


@dataclass(frozen=True)
class OfIterators:
    """Calls a function of iterators, once for all epochs, with the batches of records."""

    of: OfSeries | OfArrays
    """Of the same function."""

    def __call__(self, given: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield the function's values of each batch; anything for markers."""
        waiting: list[Any] = []
        results = iter(self.of.function(_until_asked(waiting)))

        def of_batch(*values: Any) -> Any:
            waiting.append(values[0] if len(values) == 1 else values)
            for result in results:
                return result
            msg = (
                "a Python function of iterators has ended too early; have it yield for each batch."
            )
            raise EngineError(msg)

        call = replace(self.of, function=of_batch)
        for marker, *values in given:
            yield call(marker, *values)


def _until_asked(waiting: list[Any]) -> Iterator[Any]:
    """Yield each batch as it comes."""
    while waiting:
        yield waiting.pop()
    msg = (
        "a Python function of iterators asked for another batch before it yielded what it made of the "
        "last one, which real time has no other for; have it yield for each batch."
    )
    raise EngineError(msg)


def _places(found: Any, is_record: np.ndarray) -> np.ndarray:
    """Return the place of each row's value among those of records; any place for a marker.

    Raises `EngineError`: there is not one value for each record, which Spark would refuse, too.
    """
    if len(found) != np.count_nonzero(is_record):
        msg = (
            f"a Python function has returned {len(found):,} values for "
            f"{np.count_nonzero(is_record):,} rows; have it return one for each row."
        )
        raise EngineError(msg)
    return np.where(is_record, np.cumsum(is_record) - 1, 0)


Batch = Any
"""A record batch, or a DataFrame of pandas; which pandas' are is left to the functions that made them."""


@dataclass
class OfBatches:
    """Calls a function of batches, as `mapInArrow` and `mapInPandas` take it: once for each epoch."""

    function: Callable[[Iterator[Batch]], Iterator[Batch]]
    names: tuple[str, ...]
    """Of the columns that it takes."""
    outputs: pa.Schema
    """pyarrow.Schema: Of the columns that it gives."""
    ours: pa.Schema
    """pyarrow.Schema: Of the columns of markers, which are the last ones."""
    pandas: bool
    """Whether batches are pandas'."""

    def __call__(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield what the function makes of records, and all markers behind those of their epoch."""
        parts = _Parts(self, batches)
        while (part := parts.next()) is not None:
            if part.is_marker:
                yield self._marker(part)
                continue
            parts.back(part)
            for made in self.function(parts.of_epoch()):
                yield self._record(made)
            for _ in parts.of_epoch():
                """What the function has left, as Spark leaves it."""
            yield from map(self._marker, parts.held)
            parts.held.clear()

    def _marker(self, part: _Part) -> Batch:
        """Return markers with nulls in the function's columns."""
        rows, last = part.rows, len(self.ours)
        if self.pandas:
            made = part.batch.iloc[:, -last:].assign(**dict.fromkeys(self.outputs.names, None))
            return made[[*self.outputs.names, *self.ours.names]]
        columns = [pa.nulls(rows, one.type) for one in self.outputs]
        columns += part.batch.columns[-last:]
        return pa.RecordBatch.from_arrays(columns, names=[*self.outputs.names, *self.ours.names])

    def _record(self, made: Batch) -> Batch:
        """Return records that are no markers."""
        if self.pandas:
            return made.assign(**dict.fromkeys(self.ours.names, None))
        columns = [
            column if column.type == wanted.type else column.cast(wanted.type)
            for column, wanted in zip(made.columns, self.outputs, strict=True)
        ]
        columns += [pa.nulls(made.num_rows, one.type) for one in self.ours]
        names = [*made.schema.names, *self.ours.names]
        return pa.RecordBatch.from_arrays(columns, names=names)


@dataclass(frozen=True)
class _Part:
    """Holds rows of a batch that are all records, or all markers."""

    batch: Batch
    is_marker: bool
    ends_epoch: bool = False

    @property
    def rows(self) -> int:
        return len(self.batch)


class _Parts:
    """Cuts batches where records and markers meet."""

    def __init__(self, of: OfBatches, batches: Iterator[Batch]) -> None:
        self._of, self._batches = of, iter(batches)
        self._waiting: list[_Part] = []
        self.held: list[_Part] = []
        """Markers within an epoch whose records are being worked on."""

    def next(self) -> _Part | None:
        while not self._waiting:
            batch = next(self._batches, None)
            if batch is None:
                return None
            self._waiting = self._cut(batch)
        return self._waiting.pop(0)

    def back(self, part: _Part) -> None:
        """Have `next` return a part again."""
        self._waiting.insert(0, part)

    def of_epoch(self) -> Iterator[Batch]:
        """Yield the records up to the end of the epoch."""
        ours = len(self._of.ours)
        while (part := self.next()) is not None:
            if part.ends_epoch:
                self.back(part)
                return
            if part.is_marker:
                self.held.append(part)
            elif self._of.pandas:
                yield part.batch.iloc[:, :-ours].reset_index(drop=True)
            else:
                names = list(self._of.names)
                yield pa.RecordBatch.from_arrays(part.batch.columns[:-ours], names=names)

    def _cut(self, batch: Batch) -> list[_Part]:
        last = len(self._of.ours)
        marker, token = (_present(self._column(batch, n)) for n in (-last, 1 - last))
        edges = [0, *(np.flatnonzero(marker[1:] != marker[:-1]) + 1).tolist(), len(marker)]
        parts = []
        for start, stop in pairwise(edges):
            if start == stop:
                continue
            one = batch.iloc[start:stop] if self._of.pandas else batch.slice(start, stop - start)
            parts.append(_Part(one, bool(marker[start]), bool(token[start:stop].any())))
        return parts

    def _column(self, batch: Batch, place: int) -> Any:
        return batch.iloc[:, place] if self._of.pandas else batch.columns[place]


def _present(column: Any) -> np.ndarray:
    """Return which values are not null."""
    if hasattr(column, "notna"):
        found: np.ndarray = column.notna().to_numpy()
        return found
    found = column.is_valid().to_numpy(zero_copy_only=False)
    return found
