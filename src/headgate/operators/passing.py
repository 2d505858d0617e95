"""Passes records through unchanged, so that later operators read them like an operator's output."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa

from headgate.operators.processor import Keyed, State, Timers

PLACE = pa.schema([("place", pa.int64())])
"""Key of a passing record; it only decides to which slot the record goes."""

_PASSED, _NONE, _COUNT = "passed", pa.schema([]), pa.schema([("n", pa.int64())])


@dataclass
class Passing:
    """Passes every row of a stateless branch unchanged."""

    inputs: pa.Schema
    """pyarrow.Schema."""
    keys: pa.Schema = PLACE
    initial: pa.Schema = field(default_factory=lambda: pa.schema([]))
    states: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def handleInitial(
        self, keys: pa.RecordBatch, initial: Keyed, state: State, timers: Timers
    ) -> None:
        """Do nothing: there is no initial state."""

    def handleBatch(
        self, keys: pa.RecordBatch, batch: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch:
        """Return the rows."""
        return batch.rows

    def handleExpired(
        self, keys: pa.RecordBatch, expired: Keyed, state: State, timers: Timers
    ) -> None:
        """Do nothing: there are no timers."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


@dataclass
class Limiting(Passing):
    """Limits the number of rows that a query ever emits; all rows have one key."""

    most: int = 0
    """Largest number of rows that pass."""
    states: Mapping[str, tuple[Any, ...]] = field(
        default_factory=lambda: {_PASSED: (_NONE, _COUNT)}
    )

    def handleBatch(
        self, keys: pa.RecordBatch, batch: Keyed, state: State, timers: Timers
    ) -> pa.RecordBatch:
        """Return rows until `most` rows have passed."""
        before = state[_PASSED].rows.column("n").to_pylist()
        passed = before[0] if before else 0
        rows = batch.rows.slice(0, max(self.most - passed, 0))
        if rows.num_rows:
            count = pa.RecordBatch.from_pydict({"n": [passed + rows.num_rows]}, schema=_COUNT)
            state.put(_PASSED, np.zeros(1, dtype=np.int64), count)
        return rows
