"""A fleet of a user's queries on two executors, one of which is killed: it goes on and loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FILES, ROWS = 24, 40

# lies in the working directory only, which executors do not have
QUERIES = """
from pyspark.sql import functions as F


def files(spark, given):
    rows = spark.readStream.schema("n long, at timestamp").option("maxFilesPerTrigger", 1)
    return rows.parquet(given)


def windows(spark, given):
    rows = files(spark, given).withWatermark("at", "1 second")
    return rows.groupBy(F.window("at", "10 seconds"), "n").count()


def doubled(spark, given):
    return files(spark, given).select("n").mapInArrow(_double, "n long, twice long")


def _double(batches):
    import pyarrow.compute as pc
    for batch in batches:
        yield batch.append_column("twice", pc.multiply(batch.column("n"), 2))
"""

FLEET = """
[fleet]
slots = 6
round = "1 s"
observe = "2 s"

[defaults]
slots = {{ min = 1, max = 4, start = 2 }}
key_groups = 8
trigger = {{ processingTime = "500 milliseconds" }}

[jobs.windows]
query = "myqueries:windows"
slo = "juice >= 0.9 over 10 s"
options = {{ given = "{given}" }}

[jobs.doubled]
query = "myqueries:doubled"
policy = "psps"
interval = "2 s"
slo = "throughput >= 10/s"
options = {{ given = "{given}" }}
"""

CHILD = """
import json, sys
from pathlib import Path
from headgate.scenario.fleet import run_fleet_file

found = run_fleet_file(Path("fleet.toml"), duration_s=40.0, kill_host_at_s=4.0, work=Path.cwd() / "work")
states = {name: job["state"] for name, job in found["jobs"].items()}
print(json.dumps({"killed": found["killed"], "states": states}))
"""


def test_a_fleet_goes_on_and_loses_nothing_where_an_executor_is_killed(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    for number in range(FILES):
        # ten seconds a file: each one ends the window before it
        at = pa.array([number * 10_000_000] * ROWS, pa.timestamp("us", "UTC"))
        rows = pa.table({"n": list(range(ROWS)), "at": at})
        pq.write_table(rows, given / f"{number:03}.parquet")
    (tmp_path / "myqueries.py").write_text(QUERIES)
    (tmp_path / "fleet.toml").write_text(FLEET.format(given=given))
    (tmp_path / "child.py").write_text(CHILD)
    done = subprocess.run(
        [sys.executable, "child.py"],
        cwd=tmp_path,
        env={**os.environ, "SPARK_MASTER": "local-cluster[2,1,1024]"},
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["killed"].startswith("executor ")
    assert found["states"] == {"windows": "running", "doubled": "running"}
    doubled = pq.read_table(tmp_path / "work" / "doubled" / "output").to_pydict()
    assert Counter(doubled["n"]) == dict.fromkeys(range(ROWS), FILES)
    assert all(twice == 2 * n for n, twice in zip(doubled["n"], doubled["twice"], strict=True))
    windows = pq.read_table(tmp_path / "work" / "windows" / "output").to_pylist()
    # the last file's window is not over
    assert Counter(row["n"] for row in windows) == dict.fromkeys(range(ROWS), FILES - 1)
    assert {row["count"] for row in windows} == {1}
