"""A plain query's checkpoint goes on as headgate's, and headgate's as a plain one."""

from __future__ import annotations

from pathlib import Path

import answers
import carried_state as carry
import pytest
from carried_queries import ADOPTED, EXPORTED
from pyspark.sql import SparkSession

PROVIDERS = {"hdfs": carry.HDFS, "rocksdb": carry.ROCKSDB}


@pytest.fixture(scope="module")
def session(spark: SparkSession) -> SparkSession:
    own = spark.newSession()
    own.conf.set("spark.sql.session.timeZone", "UTC")
    own.conf.set("spark.sql.shuffle.partitions", "2")
    return own


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "in"
    carry.write_files(folder, seed=1)
    return folder


def provide(session: SparkSession, name: str, provider: str) -> None:
    if name == "processor" and provider == "hdfs":
        pytest.skip("Spark keeps the state of transformWithState in RocksDB only")
    session.conf.set("spark.sql.streaming.stateStore.providerClass", PROVIDERS[provider])


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("name", ADOPTED)
def test_headgate_goes_on_where_plain_spark_stopped(
    session: SparkSession, files: Path, tmp_path: Path, name: str, provider: str
) -> None:
    query = ADOPTED[name]
    provide(session, name, provider)
    got, told = carry.adopted(session, query, files, tmp_path, at=3)
    expected = carry.expected(session, query, files, tmp_path)
    assert expected
    assert sum(one["entries"] for one in told["operators"]) > 0
    assert answers.differences(expected, got) == ""


@pytest.mark.parametrize("provider", PROVIDERS)
@pytest.mark.parametrize("name", EXPORTED)
def test_plain_spark_goes_on_where_headgate_stopped(
    session: SparkSession, files: Path, tmp_path: Path, name: str, provider: str
) -> None:
    query = EXPORTED[name]
    provide(session, name, provider)
    got, told = carry.exported(session, query, files, tmp_path, at=3)
    expected = carry.expected(session, query, files, tmp_path)
    assert expected
    assert sum(one["entries"] for one in told["operators"]) > 0
    assert answers.differences(expected, got) == ""
