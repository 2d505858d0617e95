"""A sink of one's own: `examples/sqlitesink`, found by its entry point, written to by real queries."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession
from test_sinks import elastic, events, finish, per_key, per_window, put  # noqa: F401

import headgate as hg
from headgate.core.errors import CheckpointError, ConfigError
from headgate.spark.job.faults import CRASH

sys.path.insert(0, str(Path(__file__).parents[1] / "control"))
import own_policies

EXAMPLE = own_policies.EXAMPLE.parent / "sqlitesink"


@pytest.fixture(autouse=True)
def sqlite(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    own_policies.install_example(monkeypatch, tmp_path / "site", EXAMPLE)


def into(frame: DataFrame, folder: Path, mode: str = "append") -> Any:
    made = elastic(frame).outputMode(mode).format("sqlite").option("TABLE", "out")
    return made.option("path", str(folder / "out.db"))


def rows_of(folder: Path) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(folder / "out.db")) as database:
        return sorted(database.execute("SELECT * FROM out").fetchall())


def numbers_of(folder: Path) -> list[int]:
    with closing(sqlite3.connect(folder / "out.db")) as database:
        return [n for (n,) in database.execute("SELECT number FROM outputs ORDER BY number")]


def batch_of(spark: SparkSession, folder: Path) -> DataFrame:
    return spark.read.schema("k int, t timestamp").json(str(folder / "events"))


def test_a_query_into_an_installed_sink_has_the_answer_of_sparks_batch(
    spark: SparkSession,
    events: DataFrame,  # noqa: F811
    tmp_path: Path,
) -> None:
    finish(into(per_key(events), tmp_path, "complete"), tmp_path / "ck")
    assert rows_of(tmp_path) == sorted(map(tuple, per_key(batch_of(spark, tmp_path)).collect()))
    assert numbers_of(tmp_path) == [0, 1, 2]
