"""On a real cluster executors follow slots: one, three with three slots, and one again."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import groupby
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CHILD = """
import json, sys, time
from pathlib import Path
import headgate as hg
from headgate.spark.jvm.executors import ExecutorPool
from headgate_demo.workloads import NEXMARK_Q5
from headgate.spark.cluster.session import session
from headgate_demo.spark.sources import register
from headgate.spark.api.verify import verify
from headgate_lab.testing.cluster import StandaloneCluster

base = Path(sys.argv[1])
options = {"rate": "1000"}


def events(kind):
    return [e for e in map(json.loads, query.journal.read_text().splitlines()) if e["event"] == kind]


def until(done):
    deadline = time.monotonic() + 90
    while not done() and time.monotonic() < deadline:
        time.sleep(0.1)


def slots():
    return next((e["slots"] for e in reversed(events("batch"))), 0)


with StandaloneCluster(base, workers=3, cores=1) as cluster:
    settings = {"spark.executor.memory": "600m", "spark.executor.cores": 1, "spark.cores.max": 3}
    # a standalone master starts all it can all the same: what exceeds this is given back
    settings["spark.executor.instances"] = 1
    spark = session(cluster.master, **settings)
    register(spark)
    pool = ExecutorPool(spark)
    until(lambda: len(pool.living()) == 3)
    (base / "ck").mkdir()
    found = {"doctor": hg.doctor(spark, state="1 MB", checkpoint=str(base / "ck"))}
    workload = NEXMARK_Q5
    writer = hg.writeStream(workload.build(spark, **options)).format("parquet")
    writer = writer.option("path", str(base / "out")).slots(start=1)
    query = writer.option("checkpointLocation", str(base / "ck")).start()
    counts = []
    for wanted in (1, 3, 1):
        query.scale(wanted)
        until(lambda: slots() == wanted and len(pool.living()) == wanted)
        counts.append([slots(), len(pool.living())])
    query.stop()
    found["counts"], found["acts"] = counts, [e["act"] for e in events("executors")]
    output = spark.read.parquet(str(base / "out"))
    found |= verify(
        spark, workload.build, checkpoint=str(base / "ck"), output=output, options=options
    )
    spark.stop()
print(json.dumps(found, default=str))
"""


@pytest.mark.thorough
def test_executors_follow_slots_and_doctor_reaches_each_of_them(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["counts"] == [[1, 1], [3, 3], [1, 1]], found["acts"]
    acts = [act for act, _ in groupby(found["acts"])]
    assert acts == ["gave back", "asked", "gave back"], "one by one, as migrations leave hosts"
    assert found["verified"], found
    doctor = found["doctor"]
    assert doctor["problems"] == []
    assert doctor["placement"]
    hosts = sorted(one["host"] for one in doctor["executors"])
    assert hosts == ["127.0.0.11", "127.0.0.12", "127.0.0.13"]
