"""Python workers are made ready, and leave nothing behind in shared memory; nor does their daemon."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
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
        "import headgate.spark.realtime.clocked, headgate.spark.realtime.kafka_feed\n"
        "import headgate.spark.realtime.in_run\n"
        "print(sorted(set(sys.modules) - loaded))\n"
    )
    made = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True
    )
    assert made.stdout.strip() == "[]"


def test_a_worker_does_not_read_archives_again_that_its_daemon_has_read(tmp_path: Path) -> None:
    """PySpark has each new worker look anew at the whole path, and Spark's own archive is large."""
    archive = tmp_path / "some.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.writestr("some_package/__init__.py", "")
        made.writestr("some_package/here.py", "")
        made.writestr("some_package/there.py", "text = 'found'")
    program = (
        "import importlib, runpy, zipimport\n"
        "import some_package.here\n"
        "from pyspark import daemon\n"
        "def work():\n"
        "    read, known = [], zipimport._read_directory\n"
        "    zipimport._read_directory = lambda archive: read.append(archive) or known(archive)\n"
        "    importlib.invalidate_caches()\n"
        "    from some_package import there\n"
        "    print(there.text, read)\n"
        "daemon.manager = work\n"
        "runpy.run_module('headgate.spark.worker.daemon', run_name='__main__')\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(archive), *filter(None, sys.path)])},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "found []"
