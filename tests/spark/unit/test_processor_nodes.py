"""Tests what becomes of nodes that run a user's processor: keys, columns and times, without Spark."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from made_plans import Made, attribute, source
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import types as T
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from said_columns import F, Said

import headgate as hg
from headgate.core.errors import UnsupportedQuery
from headgate.operators.processor import TimeMode
from headgate.operators.spec import NO_TIME_US, Kind, Leaf, OutputMode
from headgate.spark.read import processor, types
from headgate.spark.read.reading import Reading
from headgate.spark.worker.pandas_processor import PandasProcessor
from headgate.spark.worker.user_processor import RowProcessor

LONG, TEXT, DOUBLE, TIME = T.LongType(), T.StringType(), T.DoubleType(), T.TimestampType()
SETTINGS = {"spark.sql.session.timeZone": "Europe/Berlin"}
SPARK: Any = SimpleNamespace(
    conf=SimpleNamespace(get=lambda key, default="": SETTINGS.get(key, default))
)
OUT = [attribute("k", TEXT), attribute("sum", LONG)]


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (processor, types):
        monkeypatch.setattr(module, "F", F)
    monkeypatch.setattr(processor, "column", lambda spark, one: Said(one.sql()))
    monkeypatch.setattr("headgate.spark.read.reading.column", lambda spark, one: Said(one.sql()))
    for name in ("headgate.spark.read.processor", "headgate.spark.read.reading"):
        monkeypatch.setattr(f"{name}.data_type", lambda kind: kind)
    monkeypatch.setattr(
        processor, "placeholder", lambda spark, schema, output: ("hole", schema.names, list(output))
    )
    monkeypatch.setattr("headgate.spark.read.reading.kafka_arrival", lambda spark, plan: None)


class Summing(StatefulProcessor):
    """Fits all calls of Spark."""

    def init(self, handle: Any) -> None:
        handle.getValueState("s", T.StructType([T.StructField("n", LONG)]))

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Any:
        return iter([])

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        pass


class OfArrow(hg.ArrowProcessor):
    """Reads one of the stream's columns, by its name."""

    keys = pa.schema([("k", pa.string())])
    inputs = pa.schema([("x", pa.float64())])
    initial = pa.schema([("n", pa.int64())])

    def handleBatch(self, keys: Any, batch: Any, state: Any, timers: Any) -> Any:
        return None


def stateful(
    monkeypatch: pytest.MonkeyPatch,
    user: Any,
    *,
    time: str = "NoTime",
    frames: bool = False,
    columns: list[Made] | None = None,
    initial: Any = None,
    keys: list[Made] | None = None,
    **facts: Any,
) -> Any:
    """Return the operator of a node of ``transformWithState`` whose child puts the key first."""
    monkeypatch.setattr(processor, "processor_of", lambda node: user)
    monkeypatch.setattr(processor, "takes_frames", lambda node: frames)
    keys = keys if keys is not None else [attribute("k", TEXT)]
    columns = columns if columns is not None else [attribute("k", TEXT), attribute("x", DOUBLE)]
    node = Made(
        "TransformWithStateInPySpark", source(*keys, *columns), leftAttributes=keys, output=OUT,
        timeMode=SimpleNamespace(toString=lambda: time), hasInitialState=initial is not None,
        initialState=initial, rightAttributes=[attribute("ik", TEXT)],
    )  # fmt: skip
    known: dict[str, Any] = {"arrival": None, "ordered": (), "number": 3}
    reading = Reading(SPARK, node, OutputMode.UPDATE, **(known | facts))
    return processor.READER.read(reading, node, facts.get("upstream"))


def parts(routed: Any) -> list[tuple[str, str]]:
    return [(one.name, str(one.value)) for one in routed]


def test_a_processor_of_rows_gets_all_columns_behind_the_key(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = stateful(monkeypatch, Summing())
    assert (made.id, made.what, made.level, made.key_names) == (
        "processor-3", "Summing keys k", 0, ["k"],
    )  # fmt: skip
    assert (parts(made.keys), parts(made.values)) == (
        [("k0", "k.cast(binary)")],
        [("v0", "k"), ("v1", "x")],
    )
    assert (made.slice_start, made.arrival, made.initial) == (None, None, None)
    spec = made.spec
    assert (spec.keys, spec.name, spec.mode) == ((Leaf(Kind.BYTES),), "Summing", OutputMode.UPDATE)
    assert (spec.time_mode, spec.filters, spec.order) == (TimeMode.NONE, False, ())
    assert (spec.outputs.names, type(spec.processor)) == (["k", "sum"], RowProcessor)
    own = spec.processor
    assert (own.keys.names, own.inputs.names, own.initial.names) == (["k"], ["k", "x"], [])
    assert (own.outputs.names, list(own.states), own.mode) == (["k", "sum"], ["s"], TimeMode.NONE)
    assert made.output_plan == made.placeholder == ("hole", ["k", "sum"], OUT)
    assert [(f.name, f.dataType) for f in made.raw_schema] == [("v0", TEXT), ("v1", LONG)]


def test_a_processor_of_frames_knows_sparks_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    own = stateful(monkeypatch, Summing(), frames=True).spec.processor
    assert (type(own), own.cut, own.returns.names) == (PandasProcessor, False, ["k", "sum"])
    assert own.settings == {
        "timezone": "Europe/Berlin", "assign_cols_by_name": True, "safecheck": False,
        "prefer_int_ext_dtype": False, "int_to_decimal_coercion_enabled": False,
    }  # fmt: skip


def test_columns_that_order_records_and_that_have_their_arrival_are_found_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    columns = [attribute("k", TEXT), attribute("x", DOUBLE), attribute("at", TIME)]
    made = stateful(monkeypatch, Summing(), columns=columns, ordered=("at", "x"), arrival="at")
    assert (made.spec.order, str(made.arrival)) == ((2, 1), "at")
    zones = [
        field.type.tz for field in made.spec.processor.inputs if pa.types.is_timestamp(field.type)
    ]
    assert zones == ["Europe/Berlin"]


@pytest.mark.parametrize(
    ("kind", "start"),
    [
        (TIME, "unix_micros(t)"),
        (T.StructType([T.StructField("end", TIME)]), "unix_micros(t.getField(end))"),
    ],
)
def test_with_event_times_the_column_under_the_watermark_is_a_records_time(
    monkeypatch: pytest.MonkeyPatch, kind: Any, start: str
) -> None:
    columns = [attribute("k", TEXT), attribute("t", kind, watermark=True), attribute("u", TIME)]
    made = stateful(monkeypatch, Summing(), time="EventTime", columns=columns)
    assert str(made.slice_start) == f"coalesce({start}, {NO_TIME_US})"
    assert (made.spec.filters, made.spec.time_mode) == (True, TimeMode.EVENT)
    made = stateful(monkeypatch, Summing(), time="ProcessingTime", columns=columns)
    assert (made.slice_start, made.spec.filters) == (None, False)
    assert made.spec.time_mode is TimeMode.PROCESSING
    made = stateful(monkeypatch, Summing(), time="EventTime")
    assert (made.slice_start, made.spec.filters) == (None, False)


def test_an_initial_state_has_its_own_keys_and_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    table = source(attribute("ik", TEXT), attribute("n", LONG), attribute("m", LONG), streams=False)
    initial = stateful(monkeypatch, Summing(), initial=table).initial
    assert initial.plan is table
    assert (parts(initial.keys), parts(initial.values)) == (
        [("k0", "ik.cast(binary)")],
        [("i0", "n"), ("i1", "m")],
    )
    made = stateful(monkeypatch, OfArrow(), initial=table)
    assert (parts(made.values), parts(made.initial.values)) == ([("v0", "x")], [("i0", "n")])
    own = stateful(monkeypatch, Summing(), initial=table).spec.processor
    assert own.initial.names == ["n", "m"]
    with pytest.raises(
        UnsupportedQuery, match="with an initial state that is a stream; read it as a"
    ):
        stateful(monkeypatch, Summing(), initial=source(attribute("ik", TEXT)))


def test_what_is_no_processor_that_slots_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Bare(hg.ArrowProcessor):
        def handleBatch(self, keys: Any, batch: Any, state: Any, timers: Any) -> Any:
            return None

    both = [attribute("k", TEXT), attribute("j", TEXT)]
    other = OfArrow()
    other.keys = pa.schema([("z", pa.string())])
    cases: list[tuple[Any, dict[str, Any], str]] = [
        (Bare(), {}, r"^Bare declares no keys and no inputs; see hg\.ArrowProcessor\.$"),
        (OfArrow(), {"frames": True}, "^cannot run OfArrow with pandas: it takes Arrow; use"),
        (object(), {}, "^cannot run object elastically: it is no StatefulProcessor, or"),
        (OfArrow(), {"keys": both}, "^OfArrow declares the keys k, the query groups by k, j; make them"),
        (other, {}, "^OfArrow declares the keys z, the query groups by k; make them agree"),
        (OfArrow(), {"columns": [attribute("y", LONG)]},
         '^OfArrow reads column "x", which the stream lacks; it has y'),
    ]  # fmt: skip
    for user, given, message in cases:
        with pytest.raises(UnsupportedQuery, match=message):
            stateful(monkeypatch, user, **given)


def test_a_processor_that_is_too_large_for_a_task_is_refused() -> None:
    def dropped(node: Any) -> None:
        raise PySparkRuntimeError("gone")

    with pytest.raises(UnsupportedQuery, match="that takes more than 1 MB with all that it holds"):
        processor._unpacked(dropped, None)
    assert processor._unpacked(lambda node: (node, 1), "node") == ("node", 1)
