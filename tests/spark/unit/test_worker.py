"""Python workers are made ready, and leave nothing behind in shared memory; nor does their daemon."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.operators.spec import Aggregate, AggregateSpec, Kind, Leaf, Op, OutputMode
from headgate.spark.cluster import warmup
from headgate.spark.worker import worker
from headgate.tables.arena import join_run, open_run
from headgate.tables.ports import EMPTY_TOKEN

BYTES, COUNT = Leaf(Kind.BYTES), Aggregate(Op.COUNT, (Leaf(Kind.INTEGER),))


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


def test_a_worker_keeps_operators_stores_and_runs_until_it_leaves_them(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    run_id, spec = "c" * 32, AggregateSpec((BYTES,), None, (COUNT,), OutputMode.UPDATE)
    run = worker.run_named(str(tmp_path), run_id)
    operator = worker.operator_named("op", spec)
    store = worker.store_of(run, "op", operator, None)
    assert worker.run_named(str(tmp_path), run_id) is run
    assert worker.operator_named("op", replace(spec)) is operator
    assert worker.store_of(run, "op", operator, None) is store
    other = replace(spec, mode=OutputMode.COMPLETE)
    assert worker.operator_named("op", other) is not operator
    assert worker.store_of(run, "other", operator, None) is not store
    worker.leave_runs()
    assert list(tmp_path.iterdir()) == [], "the last of a host to leave a run removes it"
    again = worker.run_named(str(tmp_path), run_id)
    assert again is not run
    assert worker.store_of(again, "op", operator, None) is not store
    worker.leave_runs()


def test_state_beyond_a_bound_of_memory_goes_where_the_driver_says(tmp_path: Path) -> None:
    for name in ("arena", "spill"):
        (tmp_path / name).mkdir(mode=0o700)
    memory = {"byte_count": 4096, "key_groups": 4, "spill_root": str(tmp_path / "spill")}
    run = worker.run_named(str(tmp_path / "arena"), "d" * 32, memory)
    spec = AggregateSpec((BYTES,), None, (COUNT,), OutputMode.UPDATE)
    store = worker.store_of(run, "op", worker.operator_named("op", spec), memory)
    table = store.acquire(0, EMPTY_TOKEN, lambda _: [])
    assert table.live_count == 0
    assert store.tiering() is not None
    assert [path.name for path in (tmp_path / "spill").iterdir()] == ["d" * 32]
    store.release(0)
    worker.leave_runs()
    assert [*(tmp_path / "arena").iterdir(), *(tmp_path / "spill").iterdir()] == []


def test_a_worker_waits_as_for_a_store_that_its_driver_has_reached(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []

    def checkpoint(*given: Any, known: bool = False) -> Any:
        made.append((*given, known))
        return SimpleNamespace(settle=lambda: made.append("settled"))

    monkeypatch.setattr(worker, "Checkpoint", checkpoint)
    monkeypatch.setattr(worker, "_checkpoints", {})
    first = worker.checkpoint_at("s3://b/ck", "run", {"endpoint": "here"})
    assert worker.checkpoint_at("s3://b/ck", "run") is first
    assert made == [("s3://b/ck", {"endpoint": "here"}, True), "settled", "settled"]
