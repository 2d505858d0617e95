"""What headgate calls in Spark's JVM is in a table, and this Spark has it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import headgate
from headgate.cli.cluster import doctor_lines
from headgate.spark.cluster.doctor import check_contract
from headgate.spark.jvm import contract
from headgate.spark.jvm.gateway import jvm
from headgate.spark.jvm.minors import MINORS, adapter

ROOM = Path(headgate.__file__).parent / "spark" / "jvm"


def test_this_spark_has_all_that_the_contract_of_its_minor_names(spark) -> None:
    assert contract.missing(spark, adapter().name) == []


def test_what_a_spark_lacks_is_named(spark) -> None:
    there = contract.PrivateCall("org.apache.spark.sql.Encoders", "LONG", 0)
    renamed = contract.PrivateCall("org.apache.spark.sql.Encoders", "LONGER", 0)
    asked_more = contract.PrivateCall("org.apache.spark.sql.Encoders", "LONG", 3)
    gone = contract.PrivateCall("org.apache.spark.sql.Gone", "<init>", 1)
    found = contract.absent(jvm(spark), [there, renamed, asked_more, gone])
    assert found == [renamed, asked_more, gone]


def test_a_constructor_is_part_of_it(spark) -> None:
    name = "org.apache.spark.sql.catalyst.plans.logical.Filter"
    two, three = (contract.PrivateCall(name, "<init>", count) for count in (2, 3))
    assert contract.absent(jvm(spark), [two, three]) == [three]


def test_doctor_compares_the_contract_alone_and_names_what_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minor = adapter().name
    assert check_contract()["sound"]
    table = tmp_path / "calls.tsv"
    gone = f"org.apache.spark.sql.Encoders\tLONGER\t0\t{minor}\n"
    table.write_text(contract.TABLE.read_text(encoding="utf-8") + gone, encoding="utf-8")
    monkeypatch.setattr(contract, "TABLE", table)
    result = check_contract()
    assert not result["sound"]
    first, problem, last = doctor_lines(result)
    members = result["contract"]["members"]
    assert (
        first
        == f"contract  {members - 1} of the {members} members that headgate calls in Spark {minor}"
    )
    assert "lacks org.apache.spark.sql.Encoders.LONGER/0" in problem
    assert last == "sound     no"


def test_every_minor_has_its_lines() -> None:
    for minor in MINORS:
        assert len([call for call in contract.calls() if minor in call.minors]) > 100


def test_every_class_that_the_room_names_is_in_the_table() -> None:
    # names that stand in one piece; those put together from parts are recorded like all others
    known = {call.owner.split("$")[0] for call in contract.calls()}
    named = {
        name
        for path in sorted(ROOM.glob("*.py"))
        for name in re.findall(r"org\.apache\.spark(?:\.[a-z0-9]+)+\.[A-Z]\w+", path.read_text())
    }
    assert len(named) > 20
    assert named - known <= NOT_CALLED


NOT_CALLED = {
    # what an object is asked for, or is, and not what is called
    "org.apache.spark.sql.catalyst.InternalRow",
    "org.apache.spark.sql.catalyst.expressions.RuntimeReplaceable",
    "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
    "org.apache.spark.sql.internal.connector.SupportsStreamingUpdateAsAppend",
    "org.apache.spark.sql.types.BinaryType",
    "org.apache.spark.sql.types.LongType",
    # of Delta, which puts its classes below Spark's names; another jar, with versions of its own
    "org.apache.spark.sql.delta.DeltaLog",
    # what we are for the JVM, which calls us
    "org.apache.spark.sql.streaming.PythonStreamingQueryListener",
    "org.apache.spark.sql.streaming.StreamingQueryProgress",
}
"""Classes whose names are read or handed on, and of which nothing is called."""
