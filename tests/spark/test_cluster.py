"""A job on a real cluster: slots keep their hosts, and no loss of a process changes an answer."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

CHILD = """
import json, os, signal, sys, time
from pathlib import Path
import headgate as hg
from headgate.spark.jvm.hosts import living_hosts
from headgate_demo.workloads import NEXMARK_Q5
from headgate.spark.cluster.session import session
from headgate_demo.spark.sources import register
from headgate.spark.api.verify import verify
from headgate_lab.testing.cluster import StandaloneCluster

base = Path(sys.argv[1])
options = {"rate": "2000"}


def batches(query):
    lines = query.journal.read_text().splitlines()
    return [e for e in map(json.loads, lines) if e["event"] == "batch" and e["arrived"]]


def wait_for(query, count):
    deadline = time.monotonic() + 120
    while len(batches(query)) < count and time.monotonic() < deadline:
        time.sleep(0.2)


with StandaloneCluster(base, workers=2, cores=1) as cluster:
    spark = session(cluster.master, **{"spark.executor.memory": "700m"})
    register(spark)
    while len(living_hosts(spark)) < 2:
        time.sleep(0.1)
    workload = NEXMARK_Q5
    writer = hg.writeStream(workload.build(spark, **options)).format("parquet")
    writer = writer.option("path", str(base / "out")).slots(start=4)
    query = writer.option("checkpointLocation", str(base / "ck")).start()
    wait_for(query, 3)
    placement = query._work._placements["aggregate-0"]
    before, active = dict(placement._host_of), placement.active
    kills = {
        "executor": lambda: os.kill(cluster.executor_pids()[0], signal.SIGKILL),
        "python": lambda: os.kill(cluster.python_worker_pids()[-1], signal.SIGKILL),
        "host": lambda: cluster.kill_worker("127.0.0.12"),
    }
    for victim in sys.argv[2:]:
        kills[victim]()
        wait_for(query, len(batches(query)) + 3)
    cluster.restart_worker("127.0.0.12")
    wait_for(query, len(batches(query)) + 3)
    query.stop()
    output = spark.read.parquet(str(base / "out"))
    found = verify(
        spark, workload.build, checkpoint=str(base / "ck"), output=output, options=options
    )
    found |= {"active": active, "hosts": sorted(set(before.values()))}
    print(json.dumps(found, default=str))
    spark.stop()
"""


@pytest.mark.parametrize(
    "victims",
    [
        ("host",),
        pytest.param(("executor", "python", "host"), marks=pytest.mark.thorough),
    ],
)
def test_no_killed_process_changes_an_answer_and_slots_are_spread_over_hosts(
    tmp_path: Path, victims: tuple[str, ...]
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(tmp_path), *victims],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(done.stdout.strip().splitlines()[-1])
    assert found["verified"], found
    assert found["active"], "the private classes for placement are not to be had"
    assert found["hosts"] == ["127.0.0.11", "127.0.0.12"]


ORPHANS = """
import os, signal, sys
from pathlib import Path
from headgate_lab.testing.cluster import StandaloneCluster

with StandaloneCluster(Path(sys.argv[1]), workers=1) as cluster:
    print(*(process.pid for process in cluster._processes), flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_cluster_does_not_outlive_who_started_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ORPHANS, str(tmp_path)], capture_output=True, text=True, check=False
    )
    pids = done.stdout.split()
    assert len(pids) == 2, done.stderr[-3000:]
    deadline = time.monotonic() + 10
    while any(_runs(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(_runs(pid) for pid in pids)


def _runs(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"
