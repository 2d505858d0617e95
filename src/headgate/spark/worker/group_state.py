"""Runs the function of ``applyInPandasWithState`` as a processor, with PySpark's own ``GroupState``.

A key's state is one value, and its timeout one timer: a call that does not set the timeout cancels it, as
in Spark. Imported in Python workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    StatefulProcessorHandle,
    TimerValues,
)

from headgate.core.errors import ProcessorError
from headgate.spark.jvm.groupstates import NO_TIMEOUT, StateChange, change_of, group_state

_STATE = "state"


@dataclass
class GroupStateProcessor(StatefulProcessor):
    """Calls the user's function with a key, its frames and its state."""

    function: Callable[[Any, Iterator[Any], Any], Iterable[Any]]
    """Takes a key, its frames and PySpark's ``GroupState``; returns frames."""
    schema: T.StructType
    """Schema of the state."""
    columns: list[str]
    """Columns of the stream; a call for a timeout gets an empty frame with these columns."""
    timeout: str
    """As in PySpark's ``GroupStateTimeout``."""
    watermark: bool
    """Whether the stream has a watermark."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state."""
        self._handle = handle
        self._value = handle.getValueState(_STATE, self.schema)

    def handleInputRows(
        self, key: Any, rows: Iterator[Any], timerValues: TimerValues
    ) -> Iterator[Any]:
        """Call the function with a key's rows."""
        return self._call(key, rows, timerValues, timed_out=False)

    def handleExpiredTimer(
        self, key: Any, timerValues: TimerValues, expiredTimerInfo: ExpiredTimerInfo
    ) -> Iterator[Any]:
        """Call the function for a timeout."""
        # empty text columns become pandas columns of type object, which Spark passes, too
        nothing = pa.schema([(name, pa.string()) for name in self.columns]).empty_table()
        return self._call(tuple(key), iter([nothing.to_pandas()]), timerValues, timed_out=True)

    def close(self) -> None:
        """Do nothing: there is no resource to release."""

    def _call(
        self, key: Any, frames: Iterator[Any], times: TimerValues, *, timed_out: bool
    ) -> Iterator[Any]:
        state = group_state(
            self._value.get(),
            self.schema,
            self.timeout,
            timestamp_ms=times.getCurrentProcessingTimeInMs(),
            watermark_ms=times.getCurrentWatermarkInMs() if self.watermark else None,
            timed_out=timed_out,
        )
        frames_out = self.function(key, frames, state)
        if hasattr(frames_out, "iloc") or not isinstance(frames_out, Iterable):
            msg = (
                f"the function gave a {type(frames_out).__name__}; it must give frames one by one: yield "
                "them, or return a list of them."
            )
            raise ProcessorError(msg)
        for frame in frames_out:
            if len(frame):
                yield frame
        self._keep(change_of(state))

    def _keep(self, change: StateChange) -> None:
        if change.value is not None:
            self._value.update(change.value)
        elif change.removed:
            self._value.clear()
        if self.timeout == NO_TIMEOUT:
            return
        for at_ms in list(self._handle.listTimers()):
            self._handle.deleteTimer(at_ms)
        if change.timeout_ms is not None:
            # a timeout fires after its time, but a timer at its time: so add 1 ms
            self._handle.registerTimer(change.timeout_ms + 1)
