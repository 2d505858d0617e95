"""Tests what a writer takes and refuses, and what a processor may say on the driver, without Spark."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import (
    ListState,
    MapState,
    StatefulProcessor,
    ValueState,
)

from headgate.core.errors import ConfigError, UnsupportedQuery
from headgate.core.slo import parse_slo
from headgate.operators.processor import TimeMode
from headgate.spark.api import writer as module
from headgate.spark.api.writer import Writer
from headgate.spark.read.declaration import declared


@pytest.fixture
def made() -> Any:
    writer: Any = object.__new__(Writer)
    super(Writer, writer).__init__(SimpleNamespace(sparkSession=None))
    return writer


def test_what_a_writer_is_told_is_in_its_settings(made: Any) -> None:
    made.keyGroups(64).budget("800 ms").advise().fallback("spark").slots(2, 8, 3)
    made.slo("mean < 1 s over 1 s", parse_slo("p95 < 2 s over 1 s")).outputMode("UPDATE")
    told = made.settings
    assert (told.key_groups, told.budget, told.advise, told.fallback) == (
        64,
        "800 ms",
        True,
        "spark",
    )
    assert (told.slots.min, told.slots.max, told.slots.start) == (2, 8, 3)
    assert told.slos == (parse_slo("mean < 1 s over 1 s"), parse_slo("p95 < 2 s over 1 s"))
    assert told.mode == "update"
    made.slots().advise(False).budget(None).slo().format("parquet").migration("subscale")
    told = made.settings
    assert (told.slots.min, told.slots.max, told.slots.start) == (1, "auto", "auto")
    assert (told.advise, told.budget, told.slos, told.format) == (False, None, (), "parquet")
    assert told.migration.startswith("subscale")


def test_a_policy_over_slots_takes_the_place_of_one_over_replicas(made: Any) -> None:
    made.policy("psps")
    assert made.settings.replica_policy.name.startswith("psps")
    made.policy("static", hysteresis=2)
    assert (made.settings.policy.name, made.settings.replica_policy) == (
        "static(hysteresis=2)",
        None,
    )
    own = SimpleNamespace(name="own", decide=lambda observation: None)
    own.applied = own.slot_failed = lambda *given: None
    assert made.policy(own).settings.policy is own


def test_a_function_for_batches_takes_the_place_of_one_for_rows(made: Any) -> None:
    def write(df: Any, number: int) -> None:
        del df, number

    made._with(row_function="a function")
    made.foreachBatch(write)
    assert (made.settings.function, made.settings.row_function) == (write, None)


WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda w: w.keyGroups(0), "keyGroups"),
    (lambda w: w.keyGroups(32_768), r"^keyGroups=32768 is out of range; use 1 to 32767\.$"),
    (lambda w: w.slots(3, 2), "slots"),
    (lambda w: w.budget("800"), "800"),
    (lambda w: w.slo("soon"), 'cannot read SLO "soon"'),
    (lambda w: w.policy("streamswich"), "streamswitch"),
    (lambda w: w.policy("static", nothing=1), "nothing"),
    (lambda w: w.advise("yes"), "advise"),
    (lambda w: w.migration("fluidd"), "fluid"),
    (lambda w: w.migration(3), "migration"),
    (
        lambda w: w.fallback("plain"),
        '^unknown fallback "plain"; use "error", "micro-batch" or "spark"',
    ),
    (lambda w: w.release("late"), '^unknown release "late"; use "committed" or "early"'),
    (lambda w: w.format(3), "format"),
    (lambda w: w.option(3, "x"), "option name"),
    (lambda w: w.option("headgate.nothing", "x"), r"headgate\.nothing"),
    (lambda w: w.outputMode("updat"), '^unknown output mode "updat"; did you mean "update"'),
    (lambda w: w.outputMode(3), "output mode"),
    (lambda w: w.foreachBatch("a function"), "foreachBatch"),
    (lambda w: w.toTable(3), "toTable: tableName"),
]


@pytest.mark.parametrize(("tell", "message"), WRONG)
def test_a_writer_refuses_at_once_what_it_cannot_do(
    made: Any, tell: Callable[[Any], Any], message: str
) -> None:
    before = made.settings
    with pytest.raises(ConfigError, match=message):
        tell(made)
    assert made.settings == before


def test_an_option_of_ours_is_unset_by_none_and_one_of_the_sinks_is_not(made: Any) -> None:
    made.option("headgate.release", "early").option("a", 1)
    assert made.settings.options == {"headgate.release": "early", "a": "1"}
    made.option("headgate.release", None).option("a", None)
    assert made.settings.options == {"a": "1"}
    assert made.release("committed").settings.options["headgate.release"] == "committed"


def test_arguments_of_start_are_settings_too(monkeypatch: pytest.MonkeyPatch, made: Any) -> None:
    started: list[Any] = []

    def start(df: Any, settings: Any) -> str:
        started.append(settings)
        return "query"

    monkeypatch.setattr(module, "start", start)
    assert made.start("out", "json", "update", ["k"], "clicks", header=True) == "query"
    [told] = started
    assert (told.format, told.mode, told.name, list(told.partition_by)) == (
        "json", "update", "clicks", ["k"],
    )  # fmt: skip
    assert told.options == {"header": "true", "path": "out"}
    with pytest.raises(
        ConfigError,
        match=r'^start\("more"\) and option "path" both say where to; leave one out, as',
    ):
        made.start("more")
    assert made.toTable("t", "parquet", "append", None, "other") == "query"
    told = started[-1]
    assert (told.table, told.format, told.mode, told.name) == ("t", "parquet", "append", "other")


# --- init of a processor ----------------------------------------------------------------------------

NUMBER = T.StructType([T.StructField("n", T.LongType())])


def run(init: Callable[[Any], Any], mode: TimeMode = TimeMode.NONE) -> Any:
    """Return what a processor of this ``init`` declares."""
    body = {
        "init": lambda self, handle: init(handle),
        "handleInputRows": lambda self, key, rows, timerValues: iter([]),
    }
    return declared(type("Mine", (StatefulProcessor,), body)(), mode)


@pytest.mark.parametrize(
    ("init", "message"),
    [
        (lambda h: h.registerTimer(1), r"^Mine\.init registers a timer; do so in handleInputRows\.$"),
        (lambda h: h.deleteTimer(1), r"^Mine\.init deletes a timer; do so in handleInputRows\.$"),
        (lambda h: h.listTimers(), r"^Mine\.init lists timers; do so in handleInputRows\.$"),
        (lambda h: 1 / 0, r"^Mine\.init failed with ZeroDivisionError: division by zero; headgate calls"),
        (lambda h: h.getValueState("", NUMBER), r'^Mine\.init declares state "" twice, or without'),
        (lambda h: [h.getValueState("s", NUMBER), h.getListState("s", NUMBER)],
         r'^Mine\.init declares state "s" twice, or without a name\.$'),
        (lambda h: h.getValueState("s", NUMBER, 5), r'^state "s" of Mine has a time to live, which'),
        (lambda h: h.getValueState("s", T.StructType([])), r'^state "s" of Mine needs a struct with'),
    ],
)  # fmt: skip
def test_an_init_that_does_more_than_declare_is_refused(
    init: Callable[[Any], Any], message: str
) -> None:
    with pytest.raises(UnsupportedQuery, match=message):
        run(init)


def test_states_are_handed_out_as_they_are_declared() -> None:
    made: list[Any] = []

    def init(handle: Any) -> None:
        made.append(handle.getValueState("v", NUMBER, 5))
        made.append(handle.getListState("l", NUMBER, 6))
        made.append(handle.getMapState("m", NUMBER, NUMBER, 7))

    states = run(init, TimeMode.PROCESSING)
    assert [type(one) for one in made] == [ValueState, ListState, MapState]
    assert [fields[2:] for fields in states.values()] == [(5, False), (6, True), (7, False)]
    with pytest.raises(UnsupportedQuery, match="a time to live of 0 ms"):
        run(lambda handle: handle.getValueState("v", NUMBER, 0), TimeMode.PROCESSING)
