"""What a writer was told, and what it refuses; here without Spark."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import ConfigError, HeadgateError
from headgate.spark.api import writer as writers
from headgate.spark.api.writer import Writer
from headgate.spark.settings import arguments
from headgate.spark.settings.query_settings import QuerySettings

SESSION = SimpleNamespace()


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Writer:
    monkeypatch.setattr(arguments, "check_interval", lambda *_: None)
    monkeypatch.setattr(writers, "start", lambda df, settings: settings)
    frame: Any = SimpleNamespace(sparkSession=SESSION)
    return Writer(frame)


def told(writer: Writer) -> dict[str, Any]:
    """Return the settings that are not what they are at first."""
    first = vars(QuerySettings())
    return {name: value for name, value in vars(writer.settings).items() if value != first[name]}


def function(*_: Any) -> None:
    """Take rows."""


@pytest.mark.parametrize(
    ("tell", "settings"),
    [
        (lambda w: w.format("memory"), {"format": "memory"}),
        (lambda w: w.outputMode("UPDATE"), {"mode": "update"}),
        (lambda w: w.queryName("clicks"), {"name": "clicks"}),
        (lambda w: w.partitionBy("a", ["b", "c"]), {"partition_by": ("a", "b", "c")}),
        (lambda w: w.clusterBy(["a"]), {"cluster_by": ("a",)}),
        (lambda w: w.option("path", "/x").option("n", 5).option("b", True),
         {"options": {"path": "/x", "n": "5", "b": "true"}}),
        (lambda w: w.options(path="/x", header=False), {"options": {"path": "/x", "header": "false"}}),
        (lambda w: w.option("path", "/x").option("path", None), {"options": {"path": "/x"}}),
        (lambda w: w.trigger(processingTime="1 second"), {"trigger": {"processingTime": "1 second"}}),
        (lambda w: w.trigger(realTime="5 minutes"), {"trigger": {"realTime": "5 minutes"}}),
        (lambda w: w.trigger(availableNow=True), {"trigger": {"availableNow": True}}),
        (lambda w: w.trigger(once=True, availableNow=False), {"trigger": {"once": True}}),
        (lambda w: w.foreach(function).foreachBatch(function), {"function": function}),
        (lambda w: w.foreachBatch(function).foreach(function), {"row_function": function}),
        (lambda w: w.keyGroups(64), {"key_groups": 64}),
        (lambda w: w.budget("800 ms"), {"budget": "800 ms"}),
        (lambda w: w.advise(), {"advise": True}),
        (lambda w: w.advise().advise(False), {}),
        (lambda w: w.slo("mean < 1 s over 1 s").slo(), {}),
        (lambda w: w.fallback("spark"), {"fallback": "spark"}),
        (lambda w: w.release("early"), {"options": {"headgate.release": "early"}}),
        (lambda w: w.option("headgate.release", "early").option("headgate.release", None), {}),
    ],
)  # fmt: skip
def test_a_writer_knows_what_it_was_told(
    writer: Writer, tell: Callable[[Writer], Writer], settings: dict[str, Any]
) -> None:
    assert tell(writer) is writer
    assert told(writer) == settings


def test_slots_policies_and_strategies_are_values(writer: Writer) -> None:
    writer.slots(2, 8, 4).policy("threshold", cooldown_s=5.0).migration("fluid")
    writer.slo("mean < 1 s over 1 s", "p99 < 2 s over 10 s")
    found = writer.settings
    assert (found.slots.min, found.slots.max, found.slots.start) == (2, 8, 4)
    assert found.policy is not None
    assert found.policy.name.startswith("threshold")
    assert found.replica_policy is None
    assert found.migration.startswith("fluid")
    assert len(found.slos) == 2
    writer.policy("psps")
    assert writer.settings.replica_policy is not None
    writer.policy("static")
    assert writer.settings.replica_policy is None


@pytest.mark.parametrize(
    ("tell", "says"),
    [
        (lambda w: w.outputMode("apend"), 'unknown output mode "apend"; did you mean "append"'),
        (lambda w: w.outputMode("zzz"), 'unknown output mode "zzz".'),
        (lambda w: w.outputMode(5), "append, update or complete"),
        (lambda w: w.trigger(), "trigger() needs processingTime=..., availableNow=True or once=True."),
        (lambda w: w.trigger(once=True, realTime="1 s"), "two kinds; use once=... or realTime=..."),
        (lambda w: w.trigger(continuous="1 s"), "trigger(continuous=...) is not supported"),
        (lambda w: w.fallback("plain"), 'fallback "plain"; use "error", "micro-batch" or "spark".'),
        (lambda w: w.release("late"), 'unknown release "late"; use "committed" or "early".'),
        (lambda w: w.foreach(5), "a function of a row, or an object with process(row)"),
        (lambda w: w.advise("yes"), "True or False"),
        (lambda w: w.slots(4, 2), "min <= start <= max"),
        (lambda w: w.option("headgate.relase", "x"), 'did you mean "headgate.release"'),
        (lambda w: w.option("path", "/x").start("/y"), 'start("/y") and option "path" both say where to'),
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    writer: Writer, tell: Callable[[Writer], Any], says: str
) -> None:
    with pytest.raises(HeadgateError) as refused:
        tell(writer)
    assert says in str(refused.value)
    assert told(writer) in ({}, {"options": {"path": "/x"}})


def test_an_object_with_a_method_for_rows_may_be_given_in_place_of_a_function(
    writer: Writer,
) -> None:
    rows = SimpleNamespace(process=function)
    assert writer.foreach(rows).settings.row_function is rows


def test_start_takes_what_sparks_start_takes(writer: Writer) -> None:
    found: Any = writer.start("/out", "parquet", "update", ["a", "b"], "clicks", header=True)
    assert found is writer.settings
    assert told(writer) == {
        "format": "parquet", "mode": "update", "partition_by": ("a", "b"), "name": "clicks",
        "options": {"header": "true", "path": "/out"},
    }  # fmt: skip


def test_a_query_may_go_into_a_table(writer: Writer) -> None:
    writer.toTable("here", "delta", "append", "a", "clicks", mergeSchema="true")
    assert told(writer) == {
        "table": "here", "format": "delta", "partition_by": ("a",), "name": "clicks",
        "options": {"mergeSchema": "true"},
    } | ({"mode": "append"} if QuerySettings().mode != "append" else {})  # fmt: skip


def test_the_text_of_a_writer_names_no_option_but_its_places(writer: Writer) -> None:
    writer.option("Path", "/out").option("checkpointLocation", "/ck").option("password", "hunter2")
    assert repr(writer).startswith(
        "<Writer: to parquet /out, mode append, checkpoint /ck; .start()"
    )
    writer.format("kafka").queryName("clicks").slo("mean < 1 s over 1 s")
    assert repr(writer).startswith(
        "<Writer: name clicks, to kafka /out, mode append, checkpoint /ck, "
    )
    assert "slo mean" in repr(writer)
    writer._with(format=None, table="t").foreachBatch(function)
    assert "to foreachBatch t," in repr(writer)


def test_a_frame_of_spark_connect_is_refused() -> None:
    class Session:
        """A session of Spark Connect."""

    Session.__module__ = "pyspark.sql.connect.session"
    frame: Any = SimpleNamespace(sparkSession=Session())
    with pytest.raises(HeadgateError, match="this session is Spark Connect"):
        Writer(frame)
    with pytest.raises(ConfigError, match="df"):
        writers.writeStream(5)  # type: ignore[arg-type]


def test_settings_tell_sparks_options_and_how_long_a_slot_may_serve(writer: Writer) -> None:
    writer.option("path", "/x").option("headgate.release", "early")
    assert writer.settings.sink_options == {"path": "/x"}
    assert not writer.settings.is_real_time
    assert writer.settings.budget_s is None
    assert writer.slo("mean < 2 s over 1 s").settings.budget_s == 1.6
    assert writer.budget("300 ms").settings.budget_s == 0.3
    assert writer.budget(None).settings.budget_s is None
    writer.budget("300 ms")
    for trigger in ({"availableNow": True}, {"once": True}, {"realTime": "1 minute"}):
        assert writer.trigger(**trigger).settings.budget_s is None
    assert writer.settings.is_real_time
