"""Python workers are made ready, and leave nothing behind in shared memory; nor does their daemon."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

from headgate.spark.cluster import warmup
from headgate.spark.worker import worker
from headgate.tables.arena import join_run, open_run


def test_the_daemon_removes_the_arena_of_a_driver_that_was_killed(tmp_path: Path) -> None:
    """It is the last of its processes, and the next start of the job may never come."""
    tmp_path.chmod(0o700)
    killed, other = open_run(tmp_path), open_run(tmp_path)
    killed.close(remove=False)
    subprocess.run(
        [sys.executable, "-m", "headgate.spark.worker.daemon"],
        env=os.environ | {"HEADGATE_ARENA_DIR": str(tmp_path)},
        stdin=subprocess.DEVNULL,  # as when the JVM has ended
        stdout=subprocess.DEVNULL,
        check=False,
    )
    assert list(tmp_path.iterdir()) == [other.path]
    other.close()


def test_a_worker_leaves_the_run_that_was_on_a_checkpoint_before(tmp_path: Path) -> None:
    """On a host of its own no driver could tell it that the run is over."""
    tmp_path.chmod(0o700)
    first, second = "a" * 32, "b" * 32
    for run_id in (first, second):
        worker.run_named(str(tmp_path), run_id)
        worker.checkpoint_at("/some/checkpoint", run_id)
        worker.checkpoint_at("/another/checkpoint", first)
    assert [path.name for path in tmp_path.iterdir()] == [second]
    join_run(tmp_path, second).end()


def test_driver_and_workers_compile_what_the_operators_of_a_query_need(monkeypatch):
    warmed, given = [], []

    def map_in_arrow(function, schema):
        given.append(function)
        return function

    frame = SimpleNamespace(mapInArrow=map_in_arrow)
    spark = SimpleNamespace(
        sparkContext=SimpleNamespace(defaultParallelism=2), range=lambda *bounds: frame
    )
    monkeypatch.setattr(warmup, "warm", warmed.append)
    monkeypatch.setattr(warmup, "_HOLD_S", 0.0)
    monkeypatch.setattr(warmup.slot, "freeze_once", lambda: warmed.append("frozen"))
    counted = SimpleNamespace(count=lambda: 2)
    monkeypatch.setattr(warmup, "computed_rows", lambda rows: counted)
    warmup.warm_workers(spark, ["one", "two"])
    assert warmed == ["one", "two"]
    assert list(given[0](iter([]))) == []
    assert warmed == ["one", "two", "one", "two", "frozen"]


def test_a_worker_has_loaded_what_it_runs_of_a_pipe_before_it_is_forked() -> None:
    """In real time nothing comes out until the workers of a new pipe have begun."""
    program = (
        "import sys\n"
        "from headgate.spark.worker.daemon import preload\n"
        "preload()\n"
        "loaded = set(sys.modules)\n"
        "import confluent_kafka.admin, pyspark.worker\n"
        "import headgate.spark.realtime.feeder, headgate.spark.realtime.kafka_feed\n"
        "import headgate.spark.realtime.router\n"
        "print(sorted(set(sys.modules) - loaded))\n"
    )
    made = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
    )
    assert made.stdout.strip() == "[]"
