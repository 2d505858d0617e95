"""Creates PySpark's own ``GroupState`` as its workers do, and reads a function's changes from it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pyspark.sql import Row
from pyspark.sql import types as T
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

NO_TIMEOUT = GroupStateTimeout.NoTimeout
BY_EVENT_TIME = GroupStateTimeout.EventTimeTimeout


@dataclass(frozen=True)
class StateChange:
    """Holds the change that one call of a function made to the state of its key."""

    value: tuple[Any, ...] | None
    """The new state; None if the function has not set it."""
    removed: bool
    timeout_ms: int | None
    """Time of the function's next call; None without a timeout."""


def group_state(
    value: tuple[Any, ...] | None,
    schema: T.StructType,
    timeout: str,
    *,
    timestamp_ms: int,
    watermark_ms: int | None,
    timed_out: bool,
) -> GroupState:
    """Return the state of a key, for a call of the user's function.

    Parameters
    ----------
    value : tuple or None    The key's state; None if it has no state.
    timeout : str    A value of ``GroupStateTimeout``.
    timestamp_ms : int    Processing time of the batch.
    watermark_ms : int or None    None if the stream has no watermark.
    timed_out : bool    Whether the call is for a timeout.
    """
    before: Any = None if value is None else Row(*value)
    return GroupState(
        optionalValue=before,
        batchProcessingTimeMs=timestamp_ms,
        eventTimeWatermarkMs=GroupState.NO_TIMESTAMP if watermark_ms is None else watermark_ms,
        timeoutConf=timeout,
        hasTimedOut=timed_out,
        watermarkPresent=watermark_ms is not None,
        defined=value is not None,
        updated=False,
        removed=False,
        timeoutTimestamp=GroupState.NO_TIMESTAMP,
        keyAsUnsafe=b"",
        valueSchema=schema,
    )


def change_of(state: GroupState) -> StateChange:
    """Return the changes that a call has made."""
    at_ms = int(state._timeout_timestamp)
    return StateChange(
        tuple(state.get) if state._updated else None,
        bool(state._removed),
        None if at_ms == GroupState.NO_TIMESTAMP else at_ms,
    )
