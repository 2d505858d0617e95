"""Tests which methods of a user's processor must accept Spark's calls, and nodes of older functions."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, attribute, source
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from said_columns import F, Said

import headgate as hg
from headgate.core.errors import ConfigError
from headgate.operators.processor import TimeMode
from headgate.operators.spec import OutputMode
from headgate.spark.jvm.groupstates import BY_EVENT_TIME
from headgate.spark.read import processor, types
from headgate.spark.read.reading import Reading
from headgate.spark.worker.group_state import GroupStateProcessor
from headgate.spark.worker.pandas_processor import PandasProcessor

LONG, TEXT, TIME = T.LongType(), T.StringType(), T.TimestampType()


class Row(StatefulProcessor):
    """Fits all calls of Spark; a test takes one method away."""

    def init(self, handle: Any) -> None:
        pass

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return iter([])

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        pass

    def close(self) -> None:
        pass


class Timed(Row):
    """Has timers."""

    handle: Any = None

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        self.handle.registerTimer(1)
        return iter([])


class OfArrow(hg.ArrowProcessor):
    """Fits all calls of slots."""

    def handleBatch(self, keys: Any, batch: Any, state: Any, timers: Any) -> Any:
        return None


def checked(
    kind: Any, method: str = "", *, time: TimeMode = TimeMode.NONE, initial: bool = False
) -> str:
    """Check the calls of a processor with one wrong method; return the refusal, or an empty text."""
    made: Any = object.__new__(processor._ProcessorReader)
    made.time_mode, made.node = time, Made("node", hasInitialState=initial)
    body = {method: (lambda self, a, b, c, d, e, f: None)} if method else {}
    user = type("Mine", (kind,), body)()
    try:
        made._check_calls(user)
    except ConfigError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("kind", [Row, Timed, OfArrow])
def test_a_processor_that_fits_is_taken(kind: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checked(kind) == checked(kind, time=TimeMode.EVENT, initial=True) == ""


@pytest.mark.parametrize(
    ("kind", "method", "called_as"),
    [
        (Row, "init", "handle"),
        (Row, "close", ""),
        (Row, "handleInputRows", "key, rows, timerValues"),
        (OfArrow, "handleBatch", "keys, batch, state, timers"),
    ],
)
def test_a_method_that_is_always_called_must_accept_it(
    kind: Any, method: str, called_as: str
) -> None:
    said = checked(kind, method)
    assert said.startswith(f"Mine.{method} ")
    assert f" is called as ({called_as}), and cannot be: missing a required argument: " in said


@pytest.mark.parametrize(
    ("kind", "method", "called_as"),
    [
        (Row, "handleInitialState", "key, rows, timerValues"),
        (OfArrow, "handleInitial", "keys, batch, state, timers"),
    ],
)
def test_a_method_for_an_initial_state_must_accept_it_where_there_is_one(
    kind: Any, method: str, called_as: str
) -> None:
    assert checked(kind, method, time=TimeMode.EVENT) == ""
    said = checked(kind, method, initial=True)
    assert said.startswith(f"Mine.{method} ")
    assert f"is called as ({called_as})" in said


def test_a_handler_of_arrow_must_accept_timers_where_there_is_a_time() -> None:
    assert checked(OfArrow, "handleExpired", initial=True) == ""
    for time in (TimeMode.EVENT, TimeMode.PROCESSING):
        said = checked(OfArrow, "handleExpired", time=time)
        assert said.startswith("Mine.handleExpired ")
        assert "is called as (keys, batch, state, timers)" in said


def test_a_handler_of_timers_that_does_not_fit_is_warned_of_where_timers_are_registered() -> None:
    with pytest.warns(UserWarning, match=r"^Mine\.handleExpiredTimer .*is called as") as caught:
        assert checked(Timed, "handleExpiredTimer", time=TimeMode.EVENT) == ""
    [one] = caught
    text = str(one.message)
    assert "(key=..., timerValues=..., expiredTimerInfo=...), and cannot be: " in text
    assert text.endswith("change its parameters, or the query fails when a timer expires.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert checked(Timed, "handleExpiredTimer") == ""
        assert checked(Row, "handleExpiredTimer", time=TimeMode.EVENT) == ""


# --- functions of applyInPandasWithState ------------------------------------------------------------


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that reads a node: its timeout, and whether there is a watermark."""
    for module in (processor, types):
        monkeypatch.setattr(module, "F", F)
    for name in ("headgate.spark.read.processor", "headgate.spark.read.reading"):
        monkeypatch.setattr(f"{name}.data_type", lambda kind: kind)
        monkeypatch.setattr(f"{name}.column", lambda spark, one: Said(one.sql()))
    monkeypatch.setattr(processor, "placeholder", lambda *given: "hole")
    monkeypatch.setattr("headgate.spark.read.reading.kafka_arrival", lambda spark, plan: None)
    spark: Any = SimpleNamespace(conf=SimpleNamespace(get=lambda key, default="UTC": default))

    def read(function: Any, timeout: str, *, watermark: bool) -> Any:
        monkeypatch.setattr(processor, "function_of", lambda node: function)
        columns = [attribute("k", TEXT), attribute("at", TIME, watermark=watermark)]
        made = Made(
            "FlatMapGroupsInPandasWithState", source(*columns), groupingAttributes=columns[:1],
            output=[attribute("n", LONG)], stateType=T.StructType([T.StructField("s", LONG)]),
            timeout=SimpleNamespace(toString=lambda: timeout),
        )  # fmt: skip
        reading = Reading(spark, made, OutputMode.APPEND, None, (), 1)
        return processor.GROUP_STATE_READER.read(reading, made, None)

    return read


def count(key: Any, frames: Any, state: Any) -> Any:
    """Stand for a user's function."""
    return []


@pytest.mark.parametrize(
    ("timeout", "watermark", "mode", "timed"),
    [
        (f"{BY_EVENT_TIME}$", True, TimeMode.EVENT, True),
        (BY_EVENT_TIME, False, TimeMode.EVENT, False),
        ("NoTimeout$", True, TimeMode.PROCESSING, False),
        ("ProcessingTimeTimeout$", False, TimeMode.PROCESSING, False),
    ],
)
def test_a_function_with_a_state_is_a_processor_that_reads_the_key_too(
    node: Any, timeout: str, watermark: bool, mode: TimeMode, timed: bool
) -> None:
    made = node(count, timeout, watermark=watermark)
    assert made.what == "applyInPandasWithState count keys k"
    assert [one.name for one in made.values] == ["v0", "v1"]
    assert (made.spec.time_mode, made.spec.filters, made.initial) == (mode, timed, None)
    assert made.spec.name == "applyInPandasWithState count"
    own = made.spec.processor
    assert (type(own), own.cut, own.inputs.names) == (PandasProcessor, True, ["k", "at"])
    user = own.processor
    assert isinstance(user, GroupStateProcessor)
    assert (user.function, user.schema.names, user.columns) == (count, ["s"], ["k", "at"])
    assert (user.timeout, user.watermark) == (timeout.removesuffix("$"), watermark)


def test_a_function_with_other_parameters_is_refused_by_its_name(node: Any) -> None:
    def twice(key: Any, frames: Any) -> Any:
        return []

    with pytest.raises(
        ConfigError, match=r"^applyInPandasWithState twice .*is called as"
    ) as caught:
        node(twice, "NoTimeout$", watermark=False)
    assert "(key, frames, state), and cannot be: too many positional arguments" in str(caught.value)
    made = node(lambda key, frames, state: [], "NoTimeout$", watermark=False)
    assert made.what == "applyInPandasWithState <lambda> keys k"
