"""A fleet of a user's queries on two executors, one of which is killed: it goes on and loses nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from itertools import pairwise
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headgate.journal.reader import locate, read

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

FILES, ROWS = 120, 40
"""More files than batches come to."""

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
import json, time
from pathlib import Path
import headgate.spark.cluster.host_loss as losing
from headgate.scenario.fleet import run_fleet_file

kill, killed_ms = losing.kill_executor, []


def noted(spark):
    killed_ms.append(time.time() * 1e3)
    return kill(spark)


losing.kill_executor = noted
work = Path.cwd() / "work"
found = run_fleet_file(Path("fleet.toml"), duration_s=50.0, kill_host_at_s=4.0, work=work)
states = {name: job["state"] for name, job in found["jobs"].items()}
print(json.dumps({"killed": found["killed"], "at_ms": killed_ms, "states": states}))
"""


def logged(output: Path) -> pa.Table:
    """Return the rows of the files that Spark's log names; a task that was killed leaves others."""
    logs = [
        path
        for path in (output / "_spark_metadata").iterdir()
        if path.name.partition(".")[0].isdigit()
    ]
    entries = [json.loads(line) for path in logs for line in path.read_text().splitlines()[1:]]
    names = {Path(entry["path"]).name for entry in entries}
    return pa.concat_tables([pq.read_table(output / name) for name in sorted(names)])


@pytest.mark.thorough
def test_a_fleet_goes_on_and_loses_nothing_where_an_executor_is_killed(tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.mkdir()
    for number in range(FILES):
        # ten seconds a file: each one ends the window before it
        at = pa.array([number * 10_000_000] * ROWS, pa.timestamp("us", "UTC"))
        rows = pa.table({"n": list(range(ROWS)), "at": at})
        path = given / f"{number:03}.parquet"
        pq.write_table(rows, path)
        os.utime(path, (number, number))  # the order in which they are read
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
    (killed_ms,) = found["at_ms"]
    work = tmp_path / "work"
    for name in ("windows", "doubled"):
        events = read(locate(work / name / "checkpoint"))
        committed = [event.at_ms for event in events if event.KIND == "batch"]
        assert sum(at_ms > killed_ms + 5_000 for at_ms in committed) >= 2
    # of each file that was read every row once, and of each window that is over every count
    doubled = logged(work / "doubled" / "output").to_pydict()
    each = Counter(doubled["n"])
    assert each == dict.fromkeys(range(ROWS), each[0])
    assert all(twice == 2 * n for n, twice in zip(doubled["n"], doubled["twice"], strict=True))
    windows = logged(work / "windows" / "output").to_pylist()
    ends = sorted({row["window"]["end"] for row in windows})
    assert len(windows) == ROWS * len(ends)
    assert {row["count"] for row in windows} == {1}
    assert all(b - a == timedelta(seconds=10) for a, b in pairwise(ends))
