"""Wraps a user's Python functions in a pipe, so that they get records and never a marker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headgate.core.errors import EngineError
from headgate.spark.job.columns import MARKER_TO
from headgate.spark.realtime.router import DROPPED


@dataclass(frozen=True)
class OfRecords:
    """Calls a function that takes the values of one record."""

    function: Callable[..., Any]

    def __call__(self, marker: Any, /, *values: Any, **named: Any) -> Any:
        """Return the function's value; None for a marker."""
        return None if marker is not None else self.function(*values, **named)


@dataclass(frozen=True)
class OfSeries:
    """Calls a function that takes pandas objects, with the rows of records."""

    function: Callable[..., Any]
    columns: tuple[str, ...] | None
    """Columns of a result that is a DataFrame; None if the result is a Series."""

    def __call__(self, marker: Any, /, *values: Any, **named: Any) -> Any:
        """Return the function's values; any value for markers."""
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
    """pyarrow.DataType: type of the function's result."""

    def __call__(self, marker: pa.Array, /, *values: Any, **named: Any) -> Any:
        """Return the function's values; any value for markers."""
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
    """Calls a function of iterators once for all epochs, with the batches of records."""

    of: OfSeries | OfArrays
    """Wraps the same function, for one batch."""

    def __call__(self, given: Iterator[tuple[Any, ...]]) -> Iterator[Any]:
        """Yield the function's values of each batch; any value for markers."""
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
    """Yield the waiting batch; raise EngineError if none waits."""
    while waiting:
        yield waiting.pop()
    msg = (
        "a Python function of iterators asked for another batch before it yielded what it made of the "
        "last one, which real time has no other for; have it yield for each batch."
    )
    raise EngineError(msg)


def _places(found: Any, is_record: np.ndarray) -> np.ndarray:
    """Return for each row the index of its value in `found`; any index for a marker.

    Raises `EngineError`: `found` has not one value for each record, which Spark refuses as well.
    """
    if len(found) != np.count_nonzero(is_record):
        msg = (
            f"a Python function has returned {len(found):,} values for "
            f"{np.count_nonzero(is_record):,} rows; have it return one for each row."
        )
        raise EngineError(msg)
    return np.where(is_record, np.cumsum(is_record) - 1, 0)


Batch = Any
"""A record batch of Arrow, or a pandas DataFrame."""

_MARKS = 2
"""Number of a marker's columns; behind them are the times of watermarks."""


@dataclass
class OfBatches:
    """Calls a function of batches, of `mapInArrow` or `mapInPandas`, once for each epoch with records."""

    function: Callable[[Iterator[Batch]], Iterator[Batch]]
    names: tuple[str, ...]
    """Names of the columns that the function takes."""
    outputs: pa.Schema
    """pyarrow.Schema: columns that the function returns."""
    ours: pa.Schema
    """pyarrow.Schema: columns of markers, the last ones of a batch."""
    pandas: bool
    """Whether batches are pandas DataFrames."""

    def __call__(self, batches: Iterator[Batch]) -> Iterator[Batch]:
        """Yield the function's results on an epoch's records, then the markers of the epoch."""
        parts = _Parts(self, batches)
        while (part := parts.next()) is not None:
            if part.is_marker:
                yield self._marker(part)
                continue
            parts.back(part)
            for made in self.function(parts.of_epoch()):
                if self.pandas and made.empty and not len(made.columns):
                    continue  # Spark takes such a frame for no rows
                yield self._record(made)
            for _ in parts.of_epoch():
                """Skips records that the function has not read, as Spark does."""
            if parts.newest:
                yield self._times(parts.newest)
                parts.newest.clear()
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

    def _times(self, newest: Mapping[str, int]) -> Batch:
        """Return a dropped row's marker with the newest times of an epoch's records.

        Watermarks that are set below the function count them; the function's results have no times.
        """
        columns = [
            pa.array([DROPPED if one.name == MARKER_TO else newest.get(one.name)], one.type)
            for one in self.ours
        ]
        made = pa.RecordBatch.from_arrays(columns, schema=self.ours)
        return self._marker(_Part(made.to_pandas() if self.pandas else made, is_marker=True))

    def _record(self, made: Batch) -> Batch:
        """Return the function's results, with nulls in the columns of markers."""
        if self.pandas:
            if not any(isinstance(name, str) for name in made.columns):
                made = made.set_axis(self._positions(len(made.columns)), axis=1)
            return made.assign(**dict.fromkeys(self.ours.names, None))
        columns = [
            column if column.type == wanted.type else column.cast(wanted.type)
            for column, wanted in zip(made.columns, self.outputs, strict=True)
        ]
        columns += [pa.nulls(made.num_rows, one.type) for one in self.ours]
        names = [*self.outputs.names, *self.ours.names]
        return pa.RecordBatch.from_arrays(columns, names=names)

    def _positions(self, columns: int) -> list[str]:
        """Return the names of columns that the function has not named, which Spark takes in order."""
        names = list(self.outputs.names)
        if columns != len(names):
            msg = (
                f"a function of mapInPandas has returned {columns} columns without names, but its schema "
                f"has {len(names)}; have it return as many."
            )
            raise EngineError(msg)
        return names


@dataclass(frozen=True)
class _Part:
    """Holds consecutive rows of a batch, all records or all markers."""

    batch: Batch
    is_marker: bool
    ends_epoch: bool = False

    @property
    def rows(self) -> int:
        return len(self.batch)


class _Parts:
    """Cuts batches between records and markers."""

    def __init__(self, of: OfBatches, batches: Iterator[Batch]) -> None:
        self._of, self._batches = of, iter(batches)
        self._waiting: list[_Part] = []
        self.held: list[_Part] = []
        """Markers within the epoch whose records the function reads."""
        self.newest: dict[str, int] = {}
        """Newest times of the records of the epoch, by the column of the watermark."""

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
                continue
            self._note_times(part.batch)
            if self._of.pandas:
                yield part.batch.iloc[:, :-ours].reset_index(drop=True)
            else:
                names = list(self._of.names)
                yield pa.RecordBatch.from_arrays(part.batch.columns[:-ours], names=names)

    def _note_times(self, records: Batch) -> None:
        ours = self._of.ours.names
        for place in range(_MARKS, len(ours)):
            times, name = self._column(records, place - len(ours)), ours[place]
            newest = times.max() if self._of.pandas else pc.max(times).as_py()
            if newest is not None and newest == newest:  # noqa: PLR0124 - NaN: all are null
                self.newest[name] = max(int(newest), self.newest.get(name, int(newest)))

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
