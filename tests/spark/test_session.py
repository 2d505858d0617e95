"""What the session of the tests promises."""

from __future__ import annotations

import importlib.machinery
import json
import os
import shutil
import subprocess
import sys
import types
import warnings
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pyspark
import pytest

import headgate as hg
from headgate.core.errors import ConfigError
from headgate.spark.cluster import warmup
from headgate.spark.cluster.interpreter import check_interpreter
from headgate.spark.cluster.session import _settings_of_headgate
from headgate.spark.jvm.sessions import PIPELINED
from headgate.spark.worker.daemon import own_directory, quiet_here


def test_workers_run_the_same_python_as_the_driver(spark: Any) -> None:
    assert spark.sparkContext.pythonExec == sys.executable


def test_two_cores_and_no_web_page(spark: Any) -> None:
    assert spark.sparkContext.master == "local[2]"
    assert spark.sparkContext.uiWebUrl is None


def test_arrow_batches_pass_through_a_worker(spark: Any) -> None:
    seen = spark.range(10).mapInArrow(lambda batches: batches, "id long").collect()
    assert sorted(row.id for row in seen) == list(range(10))


JOB = """
import json, os, warnings
import headgate as hg

os.umask(0)
spark = hg.session(**{"spark.scheduler.mode": "FIFO"})
keys = ["ui.enabled", "sql.shuffle.partitions", "driver.host", "driver.bindAddress", "scheduler.mode"]
found = {key: spark.conf.get(f"spark.{key}") for key in keys}
found |= {"master": spark.sparkContext.master, "name": spark.sparkContext.appName}
sources = spark._jsparkSession.sessionState().dataSourceManager()
found["a source of the demo is known"] = sources.dataSourceExists("nexmark")
print(json.dumps(found))
"""


def test_what_spark_submit_says_wins_over_headgate_and_the_call_over_both(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(JOB)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    said = ("ui.enabled=true", "sql.shuffle.partitions=9", "driver.host=localhost")
    confs = [f"--conf=spark.{one}" for one in (*said, "scheduler.mode=NONE", "ui.port=0")]
    command = [str(submit), "--master", "local[1]", "--name", "myapp", *confs, str(job)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "ui.enabled": "true",
        "sql.shuffle.partitions": "9",
        "driver.host": "localhost",
        "driver.bindAddress": "127.0.0.1",
        "scheduler.mode": "FIFO",
        "master": "local[1]",
        "name": "myapp",
        "a source of the demo is known": False,
    }


def test_what_a_running_session_cannot_change_is_said_in_one_sentence(spark: Any) -> None:
    key = "spark.sql.shuffle.partitions"
    before = spark.conf.get(key)
    try:
        with pytest.warns(
            UserWarning, match="can no longer set spark.master, spark.ui.enabled; stop"
        ):
            hg.session(master="local[7]", **{key: 3, "spark.ui.enabled": "true"})
        assert spark.conf.get(key) == "3"
    finally:
        spark.conf.set(key, before)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert hg.session(master="local[2]").sparkContext is spark.sparkContext
        assert hg.session() is spark
    assert spark.conf.get(key) == before


def test_nobody_else_reaches_a_socket_of_the_workers(spark: Any) -> None:
    spark.range(2).mapInArrow(lambda batches: batches, "id long").collect()
    folder = Path(spark.conf.get("spark.python.unix.domain.socket.dir"))
    assert folder.stat().st_mode & 0o777 == 0o700
    listening = [line.split()[-1] for line in Path("/proc/net/unix").read_text().splitlines()]
    assert [path for path in listening if Path(path).is_relative_to(folder)]


@pytest.mark.parametrize("given", ["there", "gone"])
def test_a_daemon_has_its_socket_in_a_directory_of_its_own_under_any_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: str
) -> None:
    key = "PYTHON_WORKER_FACTORY_SOCK_DIR"
    (tmp_path / "there").mkdir()
    monkeypatch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", "True")
    monkeypatch.setenv(key, str(tmp_path / given))
    umask = os.umask(0)
    try:
        with ExitStack() as undo:
            own_directory(undo)
            made = Path(os.environ[key])
            assert made.stat().st_mode & 0o777 == 0o700
            assert (made.parent == tmp_path / "there") == (given == "there")
    finally:
        os.umask(umask)
    assert not made.exists()


def python_that_says(tmp_path: Path, text: str) -> str:
    program = tmp_path / "python3"
    program.write_text(f"#!/bin/sh\necho {text}\n")
    program.chmod(0o755)
    return str(program)


HERE = f"{sys.version_info.major} {sys.version_info.minor}"


@pytest.mark.parametrize(
    ("says", "problem"),
    [
        ("3 9 False", "is Python 3.9 where this is"),
        (f"{HERE} True", "has no headgate"),
        ("", "cannot"),
    ],
)
def test_a_python_that_cannot_run_headgate_is_refused_before_the_start(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, says: str, problem: str
) -> None:
    named = python_that_says(tmp_path, says)
    monkeypatch.setattr(spark.sparkContext, "pythonExec", named)
    counts = spark.readStream.format("rate").load().groupBy("value").count()
    writer = hg.writeStream(counts).outputMode("update").format("noop")
    with pytest.raises(ConfigError, match=f"would be {named}, which {problem}.*PYSPARK_PYTHON="):
        writer.option("checkpointLocation", str(tmp_path / "checkpoint")).start()
    assert not (tmp_path / "checkpoint").exists()
    # its output, read as the address of a worker, could end the JVM
    monkeypatch.setattr(warmup, "_load", lambda *_: pytest.fail("a worker is started"))
    with pytest.raises(ConfigError, match=problem):
        warmup.Warming(spark).wait()


@pytest.mark.parametrize("named", ["./environment/bin/python", sys.executable])
def test_a_python_out_of_an_archive_is_none_of_the_drivers_business(
    spark: Any, monkeypatch: pytest.MonkeyPatch, named: str
) -> None:
    monkeypatch.setattr(spark.sparkContext, "pythonExec", named)
    check_interpreter(spark)


def test_a_worker_that_dies_while_it_is_warmed_up_ends_no_start(
    spark: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(batches: Any) -> Any:
        os._exit(3)

    def warm_beside() -> None:
        warming = warmup.Warming(spark)
        warming.load([])
        warming.wait()

    monkeypatch.setattr(warmup, "_Load", lambda specs: die)
    warmup.warm_workers(spark, [])
    warm_beside()

    def fail(batches: Any) -> Any:
        raise RuntimeError("this is no accident")

    monkeypatch.setattr(warmup, "_Load", lambda specs: fail)
    for warm in (lambda: warmup.warm_workers(spark, []), warm_beside):
        with pytest.raises(Exception, match="this is no accident"):
            warm()


def test_workers_that_plan_a_source_are_silent_when_spark_closes_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def worker(*args: Any) -> int:
        raise BrokenPipeError

    main = types.ModuleType("__main__")
    main.__spec__ = importlib.machinery.ModuleSpec("pyspark.daemon", None)
    main.worker = worker  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "__main__", main)
    quiet_here()
    assert main.worker() == 1  # type: ignore[attr-defined]


def test_a_headgate_that_is_shipped_as_an_archive_of_modules_needs_no_daemon_of_its_own(
    tmp_path: Path,
) -> None:
    package = Path(hg.__file__).parent
    archive = shutil.make_archive(str(tmp_path / "modules"), "zip", package.parent, package.name)
    program = "import sys; sys.path.insert(0, sys.argv[1])\n" + (
        "from headgate.spark.cluster import session\n"
        "assert session.__file__.startswith(sys.argv[1])\n"
        "print('spark.python.daemon.module' in session._settings_of_headgate({'spark.master': 'spark://h:7077'}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, archive], capture_output=True, text=True, check=False
    )
    assert done.stdout.split() == ["False"], done.stderr


@pytest.mark.parametrize(("master", "pipelines"), [("spark://h:7077", "true"), ("local[2]", None)])
def test_executors_of_a_cluster_start_so_that_python_can_run_in_real_time(
    master: str, pipelines: str | None
) -> None:
    """In this process a query in real time sets it while it runs."""
    settings = _settings_of_headgate({"spark.master": master})
    assert settings.get(PIPELINED) == pipelines
