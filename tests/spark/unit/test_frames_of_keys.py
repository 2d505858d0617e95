"""Tests the frames that a key's function gets and gives in a Python worker."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import types as T

from headgate.core.errors import ProcessorError
from headgate.operators.processor import TimeMode
from headgate.spark.jvm.groupstates import BY_EVENT_TIME, NO_TIMEOUT
from headgate.spark.worker import group_state
from headgate.spark.worker.group_state import GroupStateProcessor
from headgate.spark.worker.pandas_processor import _SETTINGS, PandasProcessor

STATE = T.StructType([T.StructField("n", T.LongType())])


def frames(rows: pa.RecordBatch, *, cut: bool) -> Any:
    settings = {name: False for name in _SETTINGS} | {
        "timezone": "UTC",
        "assign_cols_by_name": True,
    }
    made = PandasProcessor(
        processor=object(),  # type: ignore[arg-type]
        keys=pa.schema([]), inputs=rows.schema, initial=pa.schema([]), outputs=rows.schema, states={},
        mode=TimeMode.NONE, settings=settings, cut=cut,
    )  # fmt: skip
    return (made._cut if cut else made._made)(rows)


def test_a_keys_frame_is_a_slice_whose_types_are_its_own_where_there_are_nulls() -> None:
    whole = pa.record_batch({"n": pa.array([1, 2, 3], pa.int32()), "s": ["a", "b", "c"]})
    frame = frames(whole, cut=True)(1, 3)
    assert frame.to_dict("list") == {"n": [2, 3], "s": ["b", "c"]}
    assert (frame["n"].dtype, list(frame.index)) == ("int32", [0, 1])
    holed = pa.record_batch({"n": pa.array([1, 2, None], pa.int32()), "s": ["a", "b", "c"]})
    made = frames(holed, cut=True)
    assert (made(0, 2)["n"].dtype, made(0, 2)["n"].tolist()) == ("int32", [1, 2])
    assert made(1, 3)["n"].dtype == "float64"
    assert made(2, 3)["s"].tolist() == ["c"]


def test_a_processors_frame_has_integers_of_64_bits() -> None:
    rows = pa.record_batch({"n": pa.array([1, 2, 3], pa.int32())})
    frame = frames(rows, cut=False)(1, 3)
    assert (frame["n"].dtype, frame["n"].tolist(), list(frame.index)) == ("int64", [2, 3], [0, 1])


class Handle:
    """Keeps one value and the timers of a key."""

    def __init__(self) -> None:
        self.value: Any = None
        self.timers = [5, 9]
        self.did: list[Any] = []

    def getValueState(self, name: str, schema: Any) -> Any:
        self.did.append((name, schema))
        return SimpleNamespace(
            get=lambda: self.value,
            update=lambda value: self.did.append(("update", value)),
            clear=lambda: self.did.append("clear"),
        )

    def listTimers(self) -> Any:
        return iter(self.timers)

    def deleteTimer(self, at_ms: int) -> None:
        self.timers.remove(at_ms)

    def registerTimer(self, at_ms: int) -> None:
        self.timers.append(at_ms)


def called(
    monkeypatch: pytest.MonkeyPatch,
    function: Any,
    *,
    timeout: str = NO_TIMEOUT,
    watermark: bool = True,
    expired: bool = False,
    **change: Any,
) -> tuple[list[Any], Handle, dict[str, Any]]:
    """Call a function for a key; return its frames, the handle, and what its state was made of."""
    told: dict[str, Any] = {}

    def state(value: Any, schema: Any, timeout: str, **facts: Any) -> str:
        told.update(facts, value=value, schema=schema, timeout=timeout)
        return "the state"

    known = {"value": None, "removed": False, "timeout_ms": None} | change
    monkeypatch.setattr(group_state, "group_state", state)
    monkeypatch.setattr(group_state, "change_of", lambda state: SimpleNamespace(**known))
    handle: Any = Handle()
    handle.value = (7,)
    made = GroupStateProcessor(function, STATE, ["k", "x"], timeout, watermark)
    made.init(handle)
    times: Any = SimpleNamespace(
        getCurrentProcessingTimeInMs=lambda: 100, getCurrentWatermarkInMs=lambda: 90
    )
    nothing: Any = None
    if expired:
        return list(made.handleExpiredTimer(["key"], times, nothing)), handle, told
    return list(made.handleInputRows(("key",), iter(["rows"]), times)), handle, told


FRAME = pd.DataFrame({"x": [1]})


def test_a_function_has_its_key_rows_and_state_and_empty_frames_are_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def function(key: Any, rows: Any, state: Any) -> Any:
        seen.append((key, list(rows), state))
        return [FRAME, FRAME.iloc[:0], FRAME]

    given, handle, told = called(monkeypatch, function, value=(8,))
    assert seen == [(("key",), ["rows"], "the state")]
    assert [len(one) for one in given] == [1, 1]
    assert told == {
        "value": (7,), "schema": STATE, "timeout": NO_TIMEOUT, "timestamp_ms": 100,
        "watermark_ms": 90, "timed_out": False,
    }  # fmt: skip
    assert handle.did == [("state", STATE), ("update", (8,))]
    assert handle.timers == [5, 9], "without a timeout no timer is looked at"


def test_a_timeout_is_one_timer_a_millisecond_later_and_a_call_for_it_has_no_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[Any] = []

    def function(key: Any, rows: Any, state: Any) -> Any:
        seen.extend((key, [(list(one.columns), len(one)) for one in rows]))
        return []

    _, handle, told = called(
        monkeypatch, function, timeout=BY_EVENT_TIME, watermark=False, expired=True, removed=True,
        timeout_ms=50,
    )  # fmt: skip
    assert seen == [("key",), [(["k", "x"], 0)]]
    assert (told["timed_out"], told["watermark_ms"]) == (True, None)
    assert (handle.did[1:], handle.timers) == (["clear"], [51])
    _, handle, _ = called(monkeypatch, lambda *given: [], timeout=BY_EVENT_TIME)
    assert (handle.did[1:], handle.timers) == ([], []), "a call that sets none cancels it"


@pytest.mark.parametrize(("given", "kind"), [(FRAME, "DataFrame"), (None, "NoneType"), (3, "int")])
def test_a_function_must_give_frames_one_by_one(
    monkeypatch: pytest.MonkeyPatch, given: Any, kind: str
) -> None:
    with pytest.raises(
        ProcessorError, match=rf"^the function gave a {kind}; it must give frames one by"
    ):
        called(monkeypatch, lambda *_: given)
