"""Checks statements of a JDBC transaction, the origin of columns, and what streams of a plan say."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from made_plans import Made, attribute, source

from headgate.spark.jvm import jdbc, lineage, streams, tables
from headgate.spark.jvm.jdbc import JdbcTransaction, transaction

SPARK: Any = "the session"


class Database:
    """Records calls to a connection, whose statements return rows and counts."""

    def __init__(self, rows: Any = ((1, "a"), (2, "b")), *, fails: bool = False) -> None:
        self.rows, self.fails = list(rows), fails
        self.calls: list[Any] = []
        self.at = -1

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *fields: self.calls.append((name, *fields))

    def prepareStatement(self, sql: str) -> Database:
        self.calls.append(("prepare", sql))
        return self

    def execute(self) -> None:
        self.calls.append(("execute",))
        if self.fails:
            raise OSError("no connection")

    def getUpdateCount(self) -> int:
        return 7

    def executeQuery(self) -> Database:
        self.execute()
        return self

    def getMetaData(self) -> Any:
        return SimpleNamespace(getColumnCount=lambda: 2, getColumnName=lambda n: f"c{n}")

    def next(self) -> bool:
        self.at += 1
        return self.at < len(self.rows)

    def getObject(self, number: int) -> Any:
        return self.rows[self.at][number - 1]


def test_a_statement_has_its_values_in_order_and_is_closed() -> None:
    database = Database()
    assert JdbcTransaction(database).run("UPDATE t", "x", 5) == 7
    assert database.calls == [
        ("prepare", "UPDATE t"), ("setObject", 1, "x"), ("setObject", 2, 5), ("execute",), ("close",),
    ]  # fmt: skip
    database = Database()
    assert JdbcTransaction(database).rows("SELECT", 5) == [[1, "a"], [2, "b"]]
    assert database.calls == [("prepare", "SELECT"), ("setObject", 1, 5), ("execute",), ("close",)]
    database = Database()
    assert JdbcTransaction(database).columns("SELECT *") == ("c1", "c2")
    assert database.calls[-1] == ("close",)


@pytest.mark.parametrize("method", ["run", "rows", "columns"])
def test_a_statement_that_fails_is_closed(method: str) -> None:
    database = Database(fails=True)
    with pytest.raises(OSError, match="no connection"):
        getattr(JdbcTransaction(database), method)("SELECT")
    assert database.calls[-1] == ("close",)


@pytest.mark.parametrize(("fails", "end"), [(False, "commit"), (True, "rollback")])
def test_a_transaction_is_committed_once_or_rolled_back_and_its_connection_closed(
    monkeypatch: pytest.MonkeyPatch, fails: bool, end: str
) -> None:
    database = Database()
    # Spark's number of no partition: the connection is the driver's
    factory = SimpleNamespace(apply={-1: database}.__getitem__)
    dialect = SimpleNamespace(createConnectionFactory=lambda options: factory)
    sql = SimpleNamespace(
        execution=SimpleNamespace(
            datasources=SimpleNamespace(jdbc=SimpleNamespace(JDBCOptions=lambda *given: given))
        ),
        jdbc=SimpleNamespace(JdbcDialects=SimpleNamespace(get=lambda url: dialect)),
    )
    java = SimpleNamespace(
        org=SimpleNamespace(apache=SimpleNamespace(spark=SimpleNamespace(sql=sql)))
    )
    monkeypatch.setattr(jdbc, "jvm", lambda spark: java)
    monkeypatch.setattr(jdbc, "scala_map", lambda spark, items: dict(items))
    try:
        with transaction(SPARK, "jdbc:x", "t", {}):
            if fails:
                raise KeyError("k")
    except KeyError:
        assert fails
    assert database.calls == [("setAutoCommit", False), (end,), ("close",)]


def numbered(column: Made, number: int) -> Made:
    vars(column)["_id"] = SimpleNamespace(id=lambda: number)
    return column


A, B = numbered(attribute("a"), 1), numbered(attribute("b"), 2)
ROWS = source(A, B)


def origin(plan: Made, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    monkeypatch.setattr(lineage, "analysed", lambda frame: frame)
    frame: Any = plan
    return lineage.summed_columns(frame)


@pytest.mark.parametrize(
    ("function", "summed"),
    [("Sum", True), ("Count", False), ("MaxBy", False), ("Max", False), ("PythonUDAF", True)],
)
def test_a_column_is_summed_where_its_function_computes_with_many_rows(
    monkeypatch: pytest.MonkeyPatch, function: str, summed: bool
) -> None:
    call = Made("AggregateExpression", A, aggregateFunction=Made(function, A))
    x = numbered(Made("Alias", Made("Add", call, B)), 3)
    node = Made("Aggregate", ROWS, output=[x, B], expressions=[x, B])
    assert origin(node, monkeypatch) == [summed, False]
    y = numbered(Made("Alias", x_of(3)), 4)
    above = Made("Project", node, output=[y, B], expressions=[y])
    assert origin(above, monkeypatch) == [summed, False]
    united = Made(
        "Union", Made("Project", ROWS, output=[B, A], expressions=[]), above, output=[A, B]
    )
    assert origin(united, monkeypatch) == [summed, False]


def x_of(number: int) -> Made:
    return numbered(attribute("x"), number)


def test_a_column_of_unknown_origin_may_be_summed(monkeypatch: pytest.MonkeyPatch) -> None:
    assert origin(ROWS, monkeypatch) == [False, False]
    assert origin(source(A, kind="CTERelationRef"), monkeypatch) == [True]
    assert origin(Made("Project", ROWS, output=[x_of(9)], expressions=[]), monkeypatch) == [True]
    y = numbered(Made("Alias", Made("Abs", x_of(9))), 4)
    assert origin(Made("Project", ROWS, output=[y], expressions=[y]), monkeypatch) == [True]


@pytest.mark.parametrize(
    ("owner", "kind"),
    [
        ("org.apache.iceberg.spark.source.SparkTable", "iceberg"),
        ("org.apache.spark.sql.delta.catalog.DeltaTableV2", "delta"),
        ("io.delta.Table", "delta"),
        ("org.apache.spark.sql.connector.catalog.V1Table", None),
    ],
)
def test_a_table_is_known_by_its_class(owner: str, kind: str | None) -> None:
    table = SimpleNamespace(getClass=lambda: SimpleNamespace(getName=lambda: owner))
    assert tables.kind(table) == kind


def test_equal_leaves_may_share_a_source_of_spark() -> None:
    one, other = source(), source()
    for leaves, counts in (([one], [1]), ([one, other], [2]), ([one, other, one, one], [2, 3, 4])):
        plan = Made("Union", collectLeaves=[*leaves, source(streams=False)])
        assert list(streams.source_counts(plan)) == counts


def test_a_plan_that_only_projects_keeps_the_rows_of_its_leaf() -> None:
    assert streams.keeps_rows(ROWS, ROWS)
    named = Made("SubqueryAlias", Made("Project", ROWS))
    assert streams.keeps_rows(named, ROWS)
    assert not streams.keeps_rows(named, source())
    assert not streams.keeps_rows(Made("Project", Made("Filter", ROWS)), ROWS)
    assert not streams.keeps_rows(Made("Union", ROWS, ROWS), ROWS)
