"""Tests which tables have a sink of their own, and what it looks up before the first write."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from noted_calls import Calls

from headgate.core.errors import CheckpointError, ConfigError
from headgate.spark.jvm.tables import STREAM
from headgate.spark.sinks import table_sinks

PLAN: Any = SimpleNamespace(schema=lambda: SimpleNamespace(fieldNames=lambda: ["k", "n"]))


def aim(**told: Any) -> Any:
    known: dict[str, Any] = {
        "table": None, "file_format": None, "options": {}, "checkpoint": Path("p"),
        "last_output": lambda: None, "delivered": lambda: -1,
    }  # fmt: skip
    return SimpleNamespace(**known | told)


class Tables:
    """A session with one table, whose columns may change."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.calls = calls = Calls(monkeypatch)
        self.columns = ["K", "n", "more"]
        self.kind = "iceberg"
        self.exists = True
        self.conf: dict[str, str] = {}
        self.spark: Any = SimpleNamespace(
            table=lambda name: SimpleNamespace(columns=self.columns, name=name),
            catalog=SimpleNamespace(refreshTable=calls.one("refresh")),
            conf=SimpleNamespace(get=self.conf.get),
        )
        self.table: Any = SimpleNamespace(
            name=lambda: "cat.t", schema=lambda: SimpleNamespace(fieldNames=lambda: self.columns)
        )
        self.inner: Any = SimpleNamespace(description="theirs")
        calls.put(table_sinks, identity="its id", delta_identity="delta's id", last_commit="commit",
                  last_transaction="transaction")  # fmt: skip
        monkeypatch.setattr(table_sinks, "WrittenStream", lambda *told: told)
        monkeypatch.setattr(table_sinks, "kind", lambda table: self.kind)
        monkeypatch.setattr(
            table_sinks, "NamedTable", lambda spark, name: SimpleNamespace(full=f"`db`.`{name}`")
        )
        monkeypatch.setattr(table_sinks, "delta_columns", lambda spark, path: self.columns)
        log = SimpleNamespace(exists=lambda: self.exists)
        monkeypatch.setattr(table_sinks, "HadoopPath", calls.one("HadoopPath", log))

    def iceberg(self, **told: Any) -> Any:
        return table_sinks.iceberg(self.spark, self.inner, self.table, aim(**told), PLAN)

    def delta(self, **told: Any) -> Any:
        facts = {"file_format": "Delta", "options": {"Path": "s"}} | told
        return table_sinks.delta(self.spark, self.inner, aim(**facts), PLAN)


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Tables:
    return Tables(monkeypatch)


def test_a_table_of_another_kind_has_no_sink_of_ours(tables: Tables) -> None:
    tables.kind = "hive"
    assert tables.iceberg() is None
    for told in ({"file_format": None}, {"file_format": "parquet"}, {"options": {"p": "s"}}):
        assert tables.delta(**told) is None
    assert tables.calls.did == []


def test_an_iceberg_table_is_asked_for_the_query_s_last_commit(tables: Tables) -> None:
    sink = tables.iceberg()
    assert (sink.description, sink._name, sink._table) == ("theirs", "cat.t", None)
    assert sink._stream == (tables.spark, Path("p"))
    assert sink._look("8e") == "commit"
    assert tables.calls.did == [("last_commit", tables.table, "8e", {"keys": STREAM})]
    assert sink._refresh() is None


def test_a_table_by_name_is_known_again_by_its_full_name(tables: Tables) -> None:
    sink = tables.iceberg(table="t")
    assert sink._name == "t"
    sink._refresh()
    known = sink._table
    assert (known.identity(), known.silent) == ("its id", False)
    assert tables.calls.did == [("refresh", "`db`.`t`"), ("identity", tables.spark, "`db`.`t`")]
    known.columns()
    tables.columns = ["k"]
    with pytest.raises(
        ConfigError, match=r"^table t has no column n, which the result has; add it to"
    ):
        known.columns()
    with pytest.raises(ConfigError, match=r"^table cat\.t has no column n, which the result has"):
        tables.iceberg()
    assert tables.iceberg(options={"mergeSchema": "true"}) is not None


def test_a_delta_table_is_known_by_its_path(tables: Tables) -> None:
    sink = tables.delta()
    assert (sink.description, sink._name, sink._table.silent) == ("theirs", "s", True)
    assert sink._look("8e") == "transaction"
    assert sink._table.identity() == "delta's id"
    assert tables.calls.did == [
        ("HadoopPath", tables.spark, "s", "_delta_log"),
        ("last_transaction", tables.spark, "s", "8e"), ("delta_identity", tables.spark, "s"),
    ]  # fmt: skip
    tables.exists = False
    assert sink._table.identity() is None
    assert tables.delta(table="t")._name == "t"


def test_a_delta_table_may_get_a_column_where_somebody_allows_it(tables: Tables) -> None:
    tables.columns = ["k"]
    for told in ({}, {"options": {"path": "s", "mergeSchema": "false"}}):
        with pytest.raises(
            ConfigError, match=r"^table s has no column n, which the result has; add"
        ):
            tables.delta(**told)
    sink = tables.delta(options={"path": "s", "mergeSchema": "true"})
    sink._table.columns()
    tables.conf["spark.databricks.delta.schema.autoMerge.enabled"] = "true"
    assert tables.delta() is not None
    with pytest.raises(ConfigError, match="has no column n"):
        tables.delta(options={"path": "s", "mergeschema": "false"})


def test_a_delta_table_that_is_gone_is_not_made_anew(tables: Tables) -> None:
    tables.exists, tables.columns = False, []
    assert tables.delta() is not None
    assert tables.delta(last_output=lambda: -1) is not None
    for last, said in ((0, "1 output to"), (2, "3 outputs to")):
        with pytest.raises(
            CheckpointError,
            match=f"^table s does not exist, but this query has written {said} it; restore",
        ):
            tables.delta(last_output=lambda last=last: last)
