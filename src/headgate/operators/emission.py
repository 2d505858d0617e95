"""Collects the results of a step's key groups and converts them to columns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headgate.operators import codec
from headgate.operators.layout import RowLayout
from headgate.tables.ports import I64
from headgate.tables.table import gather

COPIED_ROWS = 64
"""Largest number of results of a key group whose strings are copied. Results above it become columns of
their own; this costs the same for one result as for some hundred. Not tuned."""


@dataclass(frozen=True)
class GroupResults:
    """Holds the output of a step for one key group, still as words."""

    keys: I64
    """int64[n, key_words]: key words; the window's end (for a plain time, the time) replaces the slice
    start."""
    values: I64
    """int64[n, value_words]: merged buffers; the engine computes results from them."""
    strings: codec.Strings
    """Strings of the table; their memory may change after the table's release."""


class Emission:
    """Collects results of key groups, and converts results of many groups to columns in one call.

    A result's strings belong to a table and are lost at the table's release. The strings of few results
    are copied. Many results, and lists of collected values, become columns before the release.

    Parameters
    ----------
    layout : RowLayout
        Layout of the tables.
    schema : pyarrow.Schema
        Schema of the columns.
    columns : callable
        Converts results to columns.
    has_lists : bool
        True if results contain lists of collected values.
    """

    def __init__(
        self,
        layout: RowLayout,
        schema: pa.Schema,
        columns: Callable[[GroupResults], list[pa.Array]],
        *,
        has_lists: bool,
    ) -> None:
        self._schema, self._as_columns, self._has_lists = schema, columns, has_lists
        self._string_words, self._start = layout.string_words, layout.value_start
        self._words: list[GroupResults] = []
        self._strings = 0
        """Number of strings of the results in `_words`."""
        self._columns: list[list[pa.Array]] = []

    def add(self, results: GroupResults) -> None:
        """Add results whose table is not released yet."""
        if len(results.keys) == 0:
            return
        if self._has_lists or (self._string_words and len(results.keys) > COPIED_ROWS):
            self._flush()
            self._columns.append(self._as_columns(results))
        else:
            self._words.append(self._apart(results) if self._string_words else results)

    def add_apart(self, results: GroupResults) -> None:
        """Add results with strings of their own, one string per id."""
        if len(results.keys) == 0:
            return
        if self._string_words:
            start = self._start
            for word in self._string_words:
                part = results.keys if word < start else results.values
                column = part[:, word - 1 if word < start else word - start]
                column[column > 0] += self._strings
            self._strings += len(results.strings.offsets) - 1
        self._words.append(results)

    def _apart(self, results: GroupResults) -> GroupResults:
        """Return a copy of results with strings of their own; ids continue those of earlier results."""
        start = self._start
        keys, values = results.keys.copy(), results.values.copy()
        columns = [
            keys[:, w - 1] if w < start else values[:, w - start] for w in self._string_words
        ]
        ids = np.concatenate(columns)
        named = ids > 0
        offsets, data = gather(results.strings.offsets, results.strings.data, ids[named] - 1)
        ids[named] = np.arange(1, len(offsets)) + self._strings
        self._strings += len(offsets) - 1
        for number, column in enumerate(columns):
            column[:] = ids[number * len(keys) : (number + 1) * len(keys)]
        return GroupResults(keys, values, codec.Strings(offsets, data))

    def _flush(self) -> None:
        """Convert the collected words to columns."""
        if not self._words:
            return
        keys = np.concatenate([r.keys for r in self._words])
        values = np.concatenate([r.values for r in self._words])
        strings = self._words[0].strings
        if self._string_words:
            strings = codec.joined([r.strings for r in self._words])
        self._columns.append(self._as_columns(GroupResults(keys, values, strings)))
        self._words, self._strings = [], 0

    def batch(self) -> pa.RecordBatch:
        """Return all collected results as columns."""
        self._flush()
        if not self._columns:
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        parts = zip(*self._columns, strict=True)
        return pa.RecordBatch.from_arrays([pa.concat_arrays(p) for p in parts], schema=self._schema)
