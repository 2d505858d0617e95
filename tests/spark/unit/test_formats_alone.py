"""What Spark's formats can do, and a user's function read back from a plan; Spark is made up."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError
from pyspark import cloudpickle
from pyspark.util import PythonEvalType

from headgate.spark.jvm import formats as module
from headgate.spark.jvm import userfunctions
from headgate.spark.jvm.formats import (
    Format,
    clustering,
    of_session_catalog,
    quoted,
    writes_streams,
)
from headgate.spark.jvm.userfunctions import (
    call,
    called_by,
    function_of,
    processor_of,
    takes_frames,
)

SQL = "org.apache.spark.sql"
V2 = f"{SQL}.execution.datasources.v2"
CATALOG = f"{SQL}.connector.catalog"


class Provider:
    """A format of Spark's of some interfaces."""

    def __init__(self, *interfaces: str) -> None:
        self.interfaces = interfaces
        self.short_name = ""

    def setShortName(self, name: str) -> None:
        self.short_name = name

    def supportsExternalMetadata(self) -> bool:
        if "outside" in self.interfaces:
            return True
        if "inside" in self.interfaces:
            return False
        raise Py4JError("no such method")


class Table(Provider):
    """A table with capabilities."""

    def __init__(self, *interfaces: str, can: tuple[str, ...] = ()) -> None:
        super().__init__(*interfaces)
        self.can = can

    def capabilities(self) -> Any:
        return SimpleNamespace(contains=lambda one: one in [f"can {name}" for name in self.can])

    def v1Table(self) -> str:
        return "an entry"


@pytest.fixture(autouse=True)
def java(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the JVM; it finds one provider by the name "mine"."""

    class Capabilities:
        def __getattr__(self, name: str) -> str:
            return f"can {name}"

    java = SimpleNamespace(provider=None, asked=[])
    found = SimpleNamespace(
        newInstance=lambda: java.provider, getCanonicalName=lambda: "com.example.Mine"
    )
    lookup = SimpleNamespace(lookupDataSource=lambda name, _: found if name == "mine" else None)

    def table(*told: Any) -> str:
        java.asked.append(told)
        return "a table"

    utils = SimpleNamespace(
        extractSessionConfigs=lambda *_: session_conf, getTableFromProvider=table
    )
    conf = {"URL": "of the session", "fetch": "7"}
    session_conf: Any = SimpleNamespace(
        iterator=lambda: iterator([SimpleNamespace(_1=lambda key=key: key) for key in conf]),
        apply=conf.get,
    )
    clusters = SimpleNamespace(
        CLUSTERING_COLUMNS_KEY=lambda: "clusters", encodePartitioningColumns=json.dumps
    )
    sources = SimpleNamespace(
        DataSource=lookup, DataSourceUtils=clusters, v2=SimpleNamespace(DataSourceV2Utils=utils)
    )
    execution = SimpleNamespace(datasources=sources)
    spark = SimpleNamespace(sql=SimpleNamespace(execution=execution))
    java.org = SimpleNamespace(apache=SimpleNamespace(spark=spark))
    java.scala = SimpleNamespace(Option=SimpleNamespace(apply=lambda value: ("option", value)))
    monkeypatch.setattr(module, "jvm", lambda _: java)
    monkeypatch.setattr(module, "java_class", lambda *_: Capabilities())
    monkeypatch.setattr(module, "seq", lambda _, columns: list(columns))
    monkeypatch.setattr(module, "string_map", lambda _, items: dict(items))
    monkeypatch.setattr(module, "is_instance_of", lambda _, value, name: name in value.interfaces)
    return java


def iterator(items: list[Any]) -> Any:
    return SimpleNamespace(hasNext=lambda: bool(items), next=lambda: items.pop(0))


def session(disabled: str = "") -> Any:
    conf = SimpleNamespace(disabledV2StreamingWriters=lambda: disabled)
    state = SimpleNamespace(conf=lambda: conf)
    return SimpleNamespace(
        _jsparkSession=SimpleNamespace(sessionState=lambda: state),
        sparkContext=SimpleNamespace(_gateway=None),
    )


def found(java: Any, *interfaces: str, disabled: str = "") -> Format:
    java.provider = Provider(*interfaces)
    return Format(session(disabled), "mine")


@pytest.mark.parametrize(
    ("disabled", "interfaces", "older"),
    [
        ("", (), False),
        ("com.other.A, com.example.Mine ", (), True),
        ("com.example.MineToo", (), False),
        ("", (f"{V2}.FileDataSourceV2",), True),
    ],
)
def test_a_format_is_written_by_the_older_interface_where_the_newer_is_off_or_is_of_files(
    disabled: str, interfaces: tuple[str, ...], older: bool, java: Any
) -> None:
    assert found(java, *interfaces, disabled=disabled).older is older


def test_a_format_is_known_by_its_interfaces(java: Any) -> None:
    assert found(java, f"{SQL}.sources.StreamSinkProvider").makes_sinks
    assert not found(java).makes_sinks
    assert found(java, f"{SQL}.execution.datasources.FileFormat").is_files
    assert found(java, f"{V2}.FileDataSourceV2").is_files
    assert not found(java, f"{SQL}.sources.StreamSinkProvider").is_files


def test_a_batch_can_be_appended_by_an_older_format_or_to_a_table_that_takes_it(java: Any) -> None:
    older = found(java, f"{SQL}.sources.CreatableRelationProvider")
    assert older.appends(None)
    newer = found(java)
    assert not newer.appends(None)
    assert not newer.appends(Table(can=("STREAMING_WRITE",)))
    assert newer.appends(Table(can=("BATCH_WRITE",)))


@pytest.mark.parametrize(
    ("interfaces", "can", "writes"),
    [
        ((f"{CATALOG}.SupportsWrite",), ("STREAMING_WRITE",), True),
        ((f"{CATALOG}.SupportsWrite",), ("BATCH_WRITE",), False),
        ((), ("STREAMING_WRITE",), False),
    ],
)
def test_a_table_takes_streams_if_it_can_write_them(
    interfaces: tuple[str, ...], can: tuple[str, ...], writes: bool
) -> None:
    assert writes_streams(session(), Table(*interfaces, can=can)) is writes


PROVIDES = f"{CATALOG}.TableProvider"


@pytest.mark.parametrize(
    ("interfaces", "schema"), [(("outside",), "schema"), (("inside",), None), ((), None)]
)
def test_a_newer_format_gives_a_table_by_its_options_and_the_sessions(
    interfaces: tuple[str, ...], schema: str | None, java: Any
) -> None:
    table = found(java, PROVIDES, *interfaces).table({"url": "mine"}, "schema")
    assert table == "a table"
    told = (java.provider, {"url": "mine", "fetch": "7"}, ("option", schema))
    assert java.asked == [told]
    assert java.provider.short_name == ""


def test_a_format_of_python_is_told_its_name_and_an_older_one_gives_no_table(java: Any) -> None:
    found(java, PROVIDES, f"{V2}.python.PythonDataSourceV2").table({}, "schema")
    assert java.provider.short_name == "mine"
    assert found(java).table({}, "schema") is None


@pytest.mark.parametrize(
    ("interface", "entry"),
    [("V1Table", "an entry"), ("V2TableWithV1Fallback", "an entry"), ("Table", None)],
)
def test_only_tables_of_sparks_own_catalog_have_an_entry_there(
    interface: str, entry: str | None
) -> None:
    assert of_session_catalog(session(), Table(f"{CATALOG}.{interface}")) == entry


def test_names_and_columns_are_told_as_spark_takes_them() -> None:
    assert quoted("a`b.c") == "`a``b.c`"
    assert clustering(session(), ["a", "b"]) == {"clusters": '["a", "b"]'}


# --- A user's function --------------------------------------------------------------------------------


def expression(function: Any, **facts: Any) -> Any:
    """Return a call of a function as a plan holds it."""
    packed = cloudpickle.dumps((function, "long"))  # type: ignore[no-untyped-call]
    command = SimpleNamespace(elemTag=lambda: "bytes", toArray=lambda tag: packed)
    values = {"dataType": "long", "name": "f", "udfDeterministic": True} | facts
    methods = {name: lambda value=value: value for name, value in values.items()}
    return SimpleNamespace(func=lambda: SimpleNamespace(command=lambda: command), **methods)


def test_a_function_comes_back_from_its_plan() -> None:
    one = expression(lambda value: value + 1)
    assert called_by(one)(2) == 3
    assert function_of(SimpleNamespace(functionExpr=lambda: one))(2) == 3


class Calls:
    """The method of an object that has a processor."""

    def __init__(self, processor: str) -> None:
        self._stateful_processor = processor

    def run(self) -> None: ...


def test_the_processor_of_a_node_is_the_one_that_its_function_calls() -> None:
    node = SimpleNamespace(functionExpr=lambda: expression(Calls("mine").run))
    assert processor_of(node) == "mine"


@pytest.mark.parametrize(
    ("kind", "frames"),
    [
        (PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_UDF, True),
        (PythonEvalType.SQL_TRANSFORM_WITH_STATE_PANDAS_INIT_STATE_UDF, True),
        (PythonEvalType.SQL_TRANSFORM_WITH_STATE_PYTHON_ROW_UDF, False),
    ],
)
def test_a_processor_takes_frames_or_rows(kind: int, frames: bool) -> None:
    node = SimpleNamespace(functionExpr=lambda: SimpleNamespace(evalType=lambda: kind))
    assert takes_frames(node) is frames


@pytest.mark.parametrize(("deterministic", "marks"), [(True, []), (False, ["not deterministic"])])
def test_a_function_is_called_as_the_expression_calls_it(
    deterministic: bool, marks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    class Function:
        def __init__(self, *told: Any, **named: Any) -> None:
            made.append((told, named))

        def asNondeterministic(self) -> Function:
            made.append("not deterministic")
            return self

        def __call__(self, *values: Any, **named: Any) -> Any:
            return values, named

    monkeypatch.setattr(userfunctions, "UserDefinedFunction", Function)
    monkeypatch.setattr(userfunctions, "data_type", lambda kind: f"type {kind}")
    of = expression(None, evalType=PythonEvalType.SQL_BATCHED_UDF, udfDeterministic=deterministic)
    values: Any = ["a", "b"]
    named: Any = {"n": "c"}
    assert call("function", of, values, named) == (("a", "b"), {"n": "c"})
    options = {"name": "f", "evalType": PythonEvalType.SQL_BATCHED_UDF}
    assert made == [(("function", "type long"), options), *marks]
