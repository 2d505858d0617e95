"""Collects the results of key groups of a step, and makes columns of them."""

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
"""Results of a key group up to which their strings are copied, byte by byte, rather than made columns of
their own: that costs the same for one result as for some hundred. Not tuned."""


@dataclass(frozen=True)
class GroupResults:
    """Holds the output of a step for one key group, still as words."""

    keys: I64
    """int64[n, key_words]: with the window's end (the time itself for a plain time) in place of the
    slice start."""
    values: I64
    """int64[n, value_words]: the merged buffers, which the engine turns into results."""
    strings: codec.Strings
    """The table's strings, as of now; what they hold may change once the table is released."""


class Emission:
    """Collects results of key groups, and turns those of many into columns together.

    Strings are a table's, and gone when that is released: a few are copied. Many results become columns
    while the table is held, and so do lists of what is kept, of which one group's fit into a cache.

    Parameters
    ----------
    layout : RowLayout
        Of the tables that results come from.
    schema : pyarrow.Schema
        Of the columns.
    columns : callable
        Turns results into columns.
    has_lists : bool
        Whether results are lists of what is kept.
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
        """Of the results in `_words`."""
        self._columns: list[list[pa.Array]] = []

    def add(self, results: GroupResults) -> None:
        """Add results of a table that is held."""
        if len(results.keys) == 0:
            return
        if self._has_lists or (self._string_words and len(results.keys) > COPIED_ROWS):
            self._flush()
            self._columns.append(self._as_columns(results))
        else:
            self._words.append(self._apart(results) if self._string_words else results)

    def add_apart(self, results: GroupResults) -> None:
        """Add results with strings of their own, one for each id."""
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
        """Return results with strings of their own, numbered behind those of the results before."""
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
        """Turn the results that are words into columns."""
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
        """Return all results as columns."""
        self._flush()
        if not self._columns:
            return pa.RecordBatch.from_pylist([], schema=self._schema)
        parts = zip(*self._columns, strict=True)
        return pa.RecordBatch.from_arrays([pa.concat_arrays(p) for p in parts], schema=self._schema)
