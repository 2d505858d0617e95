"""One call of a function of ``applyInPandasWithState``, and what becomes of its timeout; no session."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pyspark.sql import types as T

from headgate.core.errors import ProcessorError
from headgate.spark.worker.group_state import GroupStateProcessor

SCHEMA = T.StructType([T.StructField("n", T.LongType())])


class Times:
    def getCurrentProcessingTimeInMs(self) -> int:
        return 1000

    def getCurrentWatermarkInMs(self) -> int:
        return 500


class Handle:
    """One key's value and timers."""

    def __init__(self) -> None:
        self.value: Any = None
        self.timers: set[int] = set()

    def getValueState(self, name: str, schema: Any) -> Handle:
        return self

    def get(self) -> Any:
        return self.value

    def update(self, value: Any) -> None:
        self.value = value

    def clear(self) -> None:
        self.value = None

    def listTimers(self) -> Iterator[int]:
        return iter(sorted(self.timers))

    def registerTimer(self, at_ms: int) -> None:
        self.timers.add(at_ms)

    def deleteTimer(self, at_ms: int) -> None:
        self.timers.discard(at_ms)


def opened(function: Any, timeout: str = "ProcessingTimeTimeout") -> tuple[Any, Handle]:
    handle: Any = Handle()
    made = GroupStateProcessor(function, SCHEMA, ["v"], timeout, watermark=True)
    made.init(handle)
    return made, handle


def test_a_timeout_is_over_when_its_time_has_passed_and_one_that_is_not_set_again_is_gone() -> None:
    durations = [200, None]

    def function(key: Any, frames: Any, state: Any) -> Iterator[Any]:
        duration = durations.pop(0)
        state.update((1,))
        if duration is not None:
            state.setTimeoutDuration(duration)
        return iter(())

    made, handle = opened(function)
    times: Any = Times()
    assert list(made.handleInputRows(("a",), iter(()), times)) == []
    assert (handle.value, handle.timers) == ((1,), {1201})
    assert list(made.handleInputRows(("a",), iter(()), times)) == []
    assert (handle.value, handle.timers) == ((1,), set())


def test_a_call_for_a_timeout_gets_a_frame_without_rows_and_may_forget_the_key() -> None:
    seen = []

    def function(key: Any, frames: Any, state: Any) -> Iterator[Any]:
        (frame,) = list(frames)
        seen.append((key, len(frame), list(frame.columns), state.hasTimedOut, state.get))
        seen.append((state.getCurrentWatermarkMs(), state.getCurrentProcessingTimeMs()))
        state.remove()
        return iter(())

    made, handle = opened(function, "EventTimeTimeout")
    handle.value, handle.timers = (7,), {499}

    class Expired:
        def getExpiryTimeInMs(self) -> int:
            return 499

    times: Any = Times()
    assert list(made.handleExpiredTimer(("a",), times, Expired())) == []
    assert seen == [(("a",), 0, ["v"], True, (7,)), (500, 1000)]
    assert (handle.value, handle.timers) == (None, set())


def test_a_function_that_gives_no_frames_one_by_one_is_told_so() -> None:
    made, _ = opened(lambda key, frames, state: 3)
    times: Any = Times()
    with pytest.raises(ProcessorError, match="gave a int; it must give frames one by one"):
        list(made.handleInputRows(("a",), iter(()), times))
