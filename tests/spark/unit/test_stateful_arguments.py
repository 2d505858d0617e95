"""Arguments of `hg.stateful`, what is refused of them, and the columns that are made; without Spark."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import PySparkValueError
from pyspark.sql import types as T
from said_columns import F, Said, shown

from headgate.core.errors import ConfigError
from headgate.operators.operator_plus import OperatorPlus, Record
from headgate.spark.api import operator_plus
from headgate.spark.worker.window_processor import InputColumns

LONG, TIME, TEXT = T.LongType(), T.TimestampType(), T.StringType()
ARRAY = T.ArrayType(TEXT)
OUT = T.StructType([T.StructField("n", LONG)])
PLUS = OperatorPlus(1_000_000, 2_000_000, update=lambda windows, record: ((), ()))


class Stream:
    """A stream with columns of some types, the time under a watermark."""

    def __init__(self, *, watermark: bool = True, **kinds: T.DataType) -> None:
        given = {"spark.watermarkDelayMs": 10_000} if watermark else {}
        fields = [
            T.StructField(name, kind, metadata=given if name == "at" else None)
            for name, kind in kinds.items()
        ]
        self.schema, self.columns = T.StructType(fields), list(kinds)
        self.sparkSession = SimpleNamespace(conf=SimpleNamespace(get=lambda _: "Europe/Berlin"))
        self.text = "stream"

    def select(self, column: Said) -> Any:
        return SimpleNamespace(schema=[self.schema[str(column).strip("`")]])

    def where(self, condition: Said) -> Said:
        return Said(f"{self.text}.where({condition})")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_plus, "F", F)
    monkeypatch.setattr(operator_plus, "Column", Said)


def stream(**more: Any) -> Any:
    return Stream(**{"at": TIME, "word": TEXT, **more})


# --- What is refused ----------------------------------------------------------------------------------


def test_what_fits_is_taken() -> None:
    operator_plus._check([stream()], PLUS, "at", OUT)


@pytest.mark.parametrize(
    ("inputs", "given", "says"),
    [
        ([], {}, "the operator has 1 inputs, and 0 were given; make them agree."),
        ([stream()] * 2, {}, "the operator has 1 inputs, and 2 were given"),
        ([stream()], {"time": "ta"}, 'event time "ta", which it lacks; did you mean "at"?'),
        ([stream()], {"time": "other"}, "which it lacks; it has at, word."),
        ([stream(at=LONG)], {}, 'event time "at" as a timestamp, and it is bigint; cast it.'),
        ([stream(watermark=False)], {}, 'with a watermark; use withWatermark("at", "10 seconds").'),
        ([stream()], {"advance": 1_500_500}, "of 1500500 microseconds is no whole number of mill"),
        ([stream()], {"size": 2_000_001}, "a window of 2000001 microseconds is no whole"),
        ([stream()], {"puts_out": ("m",)}, "puts out m and schema has n; make them agree."),
        (
            [stream()],
            {"schema": T.StructType([T.StructField("at", LONG)])},
            '"at" is the output\'s time',
        ),
    ],
)
def test_what_does_not_fit_an_input_is_named(inputs: Any, given: dict[str, Any], says: str) -> None:
    asked = OperatorPlus(
        given.get("advance", 1_000_000), given.get("size", 2_000_000),
        schema=given.get("puts_out", ()), output=lambda windows: (),
    )  # fmt: skip
    with pytest.raises(ConfigError, match=re.escape(says)):
        operator_plus._check(inputs, asked, given.get("time", "at"), given.get("schema", OUT))


def test_the_second_input_is_named_as_such() -> None:
    two = OperatorPlus(1_000_000, 2_000_000, inputs=2, output=lambda windows: (), schema=("n",))
    operator_plus._check([stream(), stream()], two, "at", OUT)
    with pytest.raises(ConfigError, match=r"^input 1 needs the event time"):
        operator_plus._check([stream(), stream(watermark=False)], two, "at", OUT)


def test_one_for_all_inputs_or_one_for_each() -> None:
    assert operator_plus._each("k", 3, "keys") == ["k", "k", "k"]
    assert operator_plus._each(("k", None), 2, "keys") == ["k", None]
    with pytest.raises(
        ConfigError, match="keys has 1 entries for 2 inputs; give one, or one for each"
    ):
        operator_plus._each(["k"], 2, "keys")


def test_a_type_is_one_or_a_text_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    def parsed(text: str) -> T.DataType:
        known = {"bigint": LONG, "n bigint": OUT, "": T.StructType([])}
        if text not in known:
            raise PySparkValueError("no type")
        return known[text]

    monkeypatch.setattr(T.DataType, "fromDDL", parsed)
    assert operator_plus._type(TEXT, "state") is TEXT
    assert operator_plus._type("bigint", "state") is LONG
    with pytest.raises(ConfigError, match=r'^state="bigot" is no type; use one such as "bigint"'):
        operator_plus._type("bigot", "state")
    assert operator_plus._struct("n bigint", "schema") is OUT
    for text in ("bigint", ""):
        with pytest.raises(ConfigError, match=f'^schema="{text}" has no named columns; use one'):
            operator_plus._struct(text, "schema")


# --- Keys ---------------------------------------------------------------------------------------------


def keys(given: Any, frame: Any, operator: OperatorPlus = PLUS, key_type: Any = None) -> Any:
    return operator_plus._keys(frame, given, operator, number=1, time="at", key_type=key_type)


def test_keys_are_an_array_of_one_or_as_many_as_the_column_has() -> None:
    distinct = OperatorPlus(1_000, 1_000, output=lambda windows: (), distinct=True)
    frame = stream(words=ARRAY)
    assert str(keys("word", frame)) == "array(`word`)"
    assert str(keys(Said("words"), frame)) == "words"
    assert str(keys("words", frame, distinct)) == "array_distinct(`words`)"
    assert str(keys("word", frame, distinct)) == "array(`word`)"


def test_keys_that_nobody_says_or_whose_type_nobody_says_are_refused() -> None:
    with pytest.raises(ConfigError, match="nothing says what the keys of a record are; give keys"):
        keys(None, stream())
    with pytest.raises(ConfigError, match="whose type Spark cannot see; give key_type, such as"):
        keys(lambda record: [], stream())


def test_a_function_of_a_record_is_called_with_its_time_and_values(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []

    def udf(call: Any, kind: T.DataType) -> Any:
        made.append((call, kind))
        return Said("function")

    monkeypatch.setattr(operator_plus.F, "udf", udf, raising=False)
    seen: list[Record] = []

    def of_record(record: Record) -> list[Any]:
        seen.append(record)
        return [record.payload.word, record.payload.word]

    found = keys(of_record, stream(), key_type=TEXT)
    assert str(found) == "function(unix_micros(`at`), `at`, `word`)"
    ((call, kind),) = made
    assert kind == ARRAY
    assert call(7, "a time", "#a") == ["#a", "#a"]
    assert (seen[0].time, seen[0].input, tuple(seen[0].payload)) == (7, 1, ("a time", "#a"))


# --- Rows ---------------------------------------------------------------------------------------------


def columns(frame: Any, state: T.DataType | None = None) -> InputColumns:
    return InputColumns(frame.columns, 0, pa.schema([]), frame.schema, state)


def test_rows_of_all_inputs_share_columns_and_only_an_inputs_own_have_values() -> None:
    first, second = stream(), Stream(at=TIME, price=LONG, tags=T.MapType(TEXT, TEXT))
    described = [columns(first), columns(second)]
    tagged = operator_plus._tagged(second, 1, described, "at", Said("keys"))  # type: ignore[arg-type]
    own = "metadata={'headgate.payload': True}"
    assert str(tagged) == (
        "stream.where(`at`.isNotNull()).select(1.alias(input), `at`.alias(event), "
        "unix_micros(`at`).alias(at_us), xxhash64(`at`, `price`).alias(tie), "
        "explode(keys).alias(key), "
        f"None.cast({TIME!r}).alias(c0_0, {own}), None.cast({TEXT!r}).alias(c0_1, {own}), "
        f"`at`.alias(c1_0, {own}), `price`.alias(c1_1, {own}), `tags`.alias(c1_2, {own}))"
    )


def test_an_input_begins_where_its_first_column_stands() -> None:
    first, second = columns(stream()), columns(stream())
    names = ["input", "key", "c0_0", "c0_1", "c1_0", "c1_1"]
    assert [part.first for part in operator_plus._placed([first, second], names)] == [2, 4]


def test_inputs_are_described_with_the_sessions_zone_and_what_windows_keep() -> None:
    frame = stream()
    (made,) = operator_plus._inputs([frame], [LONG])
    assert (made.names, made.state, made.fields) == (["at", "word"], LONG, frame.schema)
    assert made.kinds.names == ["at", "word"]


def test_maps_are_not_hashed_however_deep_they_are() -> None:
    of_map = T.MapType(TEXT, LONG)
    deep = T.StructType([T.StructField("n", LONG), T.StructField("m", T.ArrayType(of_map))])
    for kind in (of_map, T.ArrayType(of_map), deep):
        assert operator_plus._has_map(kind)
    for kind in (TEXT, T.ArrayType(TEXT), OUT):
        assert not operator_plus._has_map(kind)
    assert str(operator_plus._column("a`b")) == "`a``b`"


# --- The frame as a whole -----------------------------------------------------------------------------


class Rows(Said):
    """Rows of all inputs."""

    def __init__(self, text: str, key: T.DataType, names: list[str]) -> None:
        schema = {name: T.StructField(name, key) for name in names} | {
            f"key{n}": part for n, part in enumerate(getattr(key, "fields", []))
        }
        super().__init__(text, columns=names, schema=schema)

        def derived(method: str) -> Any:
            def made(*given: Any) -> Rows:
                more = [given[0]] if method == "withColumn" else []
                return Rows(
                    f"{text}.{method}({', '.join(map(shown, given))})", key, [*names, *more]
                )

            return made

        self.known |= {name: derived(name) for name in ("union", "withColumn", "select")}
        self.known["groupBy"] = lambda *keys: SimpleNamespace(
            transformWithState=lambda processor, *more: (str(self), keys, processor, more)
        )


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the rows, the keys, the processor and the output of `hg.stateful`."""
    processors: list[Any] = []

    def processor(*given: Any, **named: Any) -> Any:
        processors.append((given, named))
        return "processor"

    def require_frame(frame: Any, what: str) -> None:
        if not isinstance(frame, Stream):
            raise ConfigError(what)

    monkeypatch.setattr(operator_plus, "require_frame", require_frame)
    monkeypatch.setattr(operator_plus, "WindowProcessor", processor)
    monkeypatch.setattr(
        operator_plus, "to_arrow_schema", lambda schema, timezone: (schema, timezone)
    )

    def make(operator: OperatorPlus, inputs: Any, key: T.DataType = TEXT, **more: Any) -> Any:
        def tagged(df: Any, number: int, described: Any, time: str, keys: Said) -> Rows:
            return Rows(f"rows {number} by {keys}", key, ["key", "c0_0", "c1_0"])

        monkeypatch.setattr(operator_plus, "_tagged", tagged)
        given = {"time": "at", "schema": OUT, "keys": "word", **more}
        return operator_plus.stateful(inputs, operator, **given), processors[-1]

    return make


def test_a_row_stands_for_a_window_unless_records_wait_for_the_watermark(made: Any) -> None:
    single = OperatorPlus.over(
        "1 second", "2 seconds", output=lambda windows: (), window_type="single"
    )
    windows = (
        "rows 0 by array(`word`).withColumn(event, window(event, 2000000 microseconds, "
        "1000000 microseconds)).withColumn(left_us, unix_micros(event.start))"
    )
    for operator, ordered, text in [
        (PLUS, False, windows),
        (PLUS, True, "rows 0 by array(`word`)"),
        (single, False, "rows 0 by array(`word`)"),
    ]:
        (rows, keys, _, more), (_, named) = made(operator, stream(), ordered=ordered)
        assert (rows, keys) == (text, ("key",))
        assert named == {"ordered": text != windows}
        put_out = T.StructType([T.StructField("at", TIME), T.StructField("n", LONG)])
        assert more == (put_out, "append", "EventTime")


def test_all_inputs_are_united_and_a_key_of_several_columns_is_taken_apart(made: Any) -> None:
    two = OperatorPlus(1_000_000, 2_000_000, inputs=2, output=lambda windows: (), schema=("n",))
    key = T.StructType([T.StructField("a", TEXT), T.StructField("b", LONG)])
    (rows, keys, _, _), (given, _) = made(
        two,
        [stream(), stream()],
        key,
        keys=["word", Said("word")],
        state=[LONG, None],
        ordered=True,
    )
    assert rows == (
        "rows 0 by array(`word`).union(rows 1 by array(word)).select("
        "key.getField(a).alias(key0), key.getField(b).alias(key1), c0_0, c1_0)"
    )
    assert keys == ("key0", "key1")
    operator, kinds, inputs, outputs = given
    assert operator is two
    assert (kinds[0].fields, kinds[1]) == (key.fields, "Europe/Berlin")
    assert [(part.first, part.state) for part in inputs] == [(1, LONG), (2, None)]
    assert outputs == ["at", "n"]


def test_what_is_no_operator_is_refused(made: Any) -> None:
    with pytest.raises(
        ConfigError, match=r"hg\.stateful: operator='sum' is not allowed; use hg\.Op"
    ):
        made("sum", stream())
    with pytest.raises(ConfigError, match=r"hg\.stateful: inputs"):
        made(PLUS, ["no stream"])
    with pytest.raises(ConfigError, match="with a watermark"):
        made(PLUS, stream(watermark=False))


def test_records_have_no_order_and_the_operators_keys_unless_others_are_given(made: Any) -> None:
    keyed = OperatorPlus(1_000_000, 2_000_000, output=lambda windows: (), keys=lambda record: ["k"])
    with pytest.raises(ConfigError, match="keys is a function, whose type Spark cannot see"):
        made(keyed, stream(), keys=None)
    (rows, _, _, _), (_, named) = made(keyed, stream())
    assert named == {"ordered": False}
    assert rows.startswith("rows 0 by array(`word`)")
