"""Which settings a session gets, lacks or can still take, and which Java is new enough; without Spark."""

from __future__ import annotations

import atexit
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from headgate.core.errors import ConfigError, HeadgateError
from headgate.spark.cluster import session as module
from headgate.spark.cluster import sockets
from headgate.spark.cluster.session import (
    SETTINGS,
    advice,
    check,
    partitions_wanted,
    session,
)
from headgate.spark.cluster.sockets import sweep

FILES = "spark.sql.streaming.checkpointFileManagerClass"
RECORDS = "spark.sql.execution.arrow.maxRecordsPerBatch"
PARTITIONS = "spark.sql.shuffle.partitions"
SOCKETS = "spark.python.unix.domain.socket.enabled"
DIRECTORY = "spark.python.unix.domain.socket.dir"
DAEMON = "spark.python.daemon.module"
DEBUGGING = "spark.python.sql.dataFrameDebugging.enabled"
STARTED = {setting.key: setting.value for setting in SETTINGS if not setting.running}
"""What only a session that headgate has started has."""


class Conf:
    """Settings of a session, of which those in `fixed` cannot be changed."""

    def __init__(self, values: dict[str, str], fixed: tuple[str, ...] = ()) -> None:
        self.values, self.fixed = values, fixed

    def get(self, key: str, default: str | None = "none") -> str | None:
        return self.values.get(key, default)

    def set(self, key: str, value: str) -> None:
        if key in self.fixed:
            raise AnalysisException(f"{key} cannot be modified")
        self.values[key] = value


def running(*fixed: str, master: str = "local[2]", **values: str) -> Any:
    context = SimpleNamespace(
        master=master, appName="tests", getConf=lambda: Conf({"spark.speculation": "false"})
    )
    conf = Conf({**STARTED, PARTITIONS: "200", **values}, fixed)
    return SimpleNamespace(conf=conf, sparkContext=context)


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Forget what this process was advised."""
    monkeypatch.setattr(module, "_warned", set())
    monkeypatch.setattr(module, "check_interpreter", lambda _: None)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


# --- A session that headgate makes --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("others", "chosen"),
    [
        ({}, {"spark.master": "local[*]", "spark.app.name": "headgate", PARTITIONS: "4"}),
        ({"spark.app.name": "mine", PARTITIONS: "7"}, {"spark.app.name": None, PARTITIONS: None}),
        ({}, {"spark.ui.enabled": "false", "spark.scheduler.mode": "FAIR"}),
        ({}, {"spark.python.authenticate.socketTimeout": "120s", RECORDS: "65536"}),
        ({}, {"spark.driver.host": "127.0.0.1", SOCKETS: "true", DIRECTORY: "/sockets"}),
        ({"spark.master": "spark://h:7077"}, {"spark.driver.host": None, DIRECTORY: None}),
        ({"spark.master": "spark://127.0.0.1:1"}, {"spark.driver.host": "127.0.0.1"}),
        ({"spark.master": "spark://localhost:1"}, {"spark.driver.bindAddress": "127.0.0.1"}),
    ],
)
def test_what_nobody_has_set_is_headgates(
    others: dict[str, str], chosen: dict[str, str | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SPARK_MASTER", "SPARK_LOCAL_IP", "SPARK_LOCAL_HOSTNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(module, "socket_directory", lambda: "/sockets")
    settings = module._settings_of_headgate(others)
    assert {key: settings.get(key) for key in chosen} == chosen


def test_an_address_of_this_host_that_the_environment_names_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SPARK_LOCAL_IP", "10.0.0.1")
    assert "spark.driver.host" not in module._settings_of_headgate({"spark.master": "local[1]"})
    monkeypatch.setenv("SPARK_MASTER", "local[3]")
    assert module._settings_of_headgate({})["spark.master"] == "local[3]"


@pytest.mark.parametrize(("mask", "kept"), [(0o077, "true"), (0o022, "true"), (0o002, None)])
def test_executors_have_sockets_only_where_others_cannot_write_to_them(
    mask: int, kept: str | None
) -> None:
    before = os.umask(mask)
    try:
        settings = module._settings_of_headgate({"spark.master": "spark://h:7077"})
        assert os.umask(mask) == mask, "asked for, and left as it was"
    finally:
        os.umask(before)
    assert settings.get(SOCKETS) == kept


@pytest.mark.parametrize("asked", [{"master": 3}, {"name": b"mine"}])
def test_a_master_and_a_name_are_texts(asked: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=rf"hg\.session: {next(iter(asked))}.*a text"):
        session(**asked)


def test_what_spark_says_of_itself_is_no_wish_of_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    said = {
        "spark.app.name": "pyspark-shell",
        "spark.ui.showConsoleProgress": "true",
        "spark.master": "local[*]",
        "spark.a": "1",
        "spark.b": "2",
    }
    started: list[Any] = []
    monkeypatch.setattr(module, "SparkConf", lambda: SimpleNamespace(getAll=said.items))
    monkeypatch.setattr(module, "start_jvm", started.append)
    monkeypatch.setattr(module, "_launched_with", {})
    monkeypatch.setattr(module, "has_jvm", lambda: bool(started))
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.delenv("SPARK_MASTER", raising=False)
    master = {"spark.master": "local[*]"}
    assert module._settings_of_user({"spark.a": "1"}) == master | {"spark.b": "2"}
    assert started == [{"spark.a": "1"}]
    # the JVM knows what it was started with, whatever is asked for now
    assert module._settings_of_user({"spark.b": "2"}) == master | {"spark.b": "2"}
    monkeypatch.setenv("SPARK_MASTER", "local[*]")
    assert module._settings_of_user({}) == {"spark.b": "2"}
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    shown = {"spark.ui.showConsoleProgress": "true"}
    assert module._settings_of_user({}) == {"spark.b": "2"} | shown


# --- A session that runs ------------------------------------------------------------------------------


def adapted(spark: Any, monkeypatch: pytest.MonkeyPatch, **asked: Any) -> Any:
    """Return what `session` returns where `spark` runs."""
    builder = SimpleNamespace(getOrCreate=lambda: spark)
    monkeypatch.setattr(module, "SparkSession", SimpleNamespace(builder=builder))
    monkeypatch.setattr(module, "is_running", lambda: True)
    return session(**asked)


def test_a_running_session_takes_what_can_be_set(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = running()
    asked = {"master": "local[2]", "name": "tests", PARTITIONS: 8, SOCKETS: "true"}
    assert adapted(spark, monkeypatch, **asked) is spark
    assert spark.conf.values[PARTITIONS] == "8"


def test_a_running_session_names_all_that_it_cannot_take(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = running("spark.a", DAEMON, **{DAEMON: "other", DEBUGGING: "true"})
    asked = {"master": "local[9]", "name": "tests", "spark.a": 1, DAEMON: "third"}
    wanted = rf"can no longer set spark\.master, spark\.a, {DAEMON}, {DEBUGGING}; stop it first"
    with pytest.warns(UserWarning, match=wanted):
        adapted(spark, monkeypatch, **asked)
    assert advice(spark, "/checkpoint") is not None
    check(spark, "/checkpoint")  # and says nothing of it a second time


def test_a_running_session_gets_what_its_user_left_alone() -> None:
    spark = running(**{RECORDS: "100"})
    assert advice(spark, "s3://bucket/checkpoint") is None
    assert spark.conf.values[RECORDS] == "100"
    assert FILES not in spark.conf.values, "it is for a local disk"
    assert advice(spark, "file:///checkpoint") is None
    assert spark.conf.values[FILES].endswith("FileSystemBasedCheckpointFileManager")


def test_a_session_of_another_is_advised_once_of_what_it_lacks() -> None:
    spark = running(**{SOCKETS: "false", DEBUGGING: "true"})
    wanted = rf"faster.*hg\.session\(\), which also sets {SOCKETS}, {DEBUGGING}\."
    with pytest.warns(UserWarning, match=wanted):
        check(spark, "/checkpoint")
    check(spark, "/checkpoint")


@pytest.mark.parametrize(("partitions", "warns"), [("200", False), ("4", False), ("16", True)])
def test_partitions_that_a_user_chose_are_no_slots(partitions: str, warns: bool) -> None:
    spark = running(**{PARTITIONS: partitions})
    said = partitions_wanted(spark)
    assert (said is not None) == warns
    if said is not None:
        assert f"{PARTITIONS}=16 counts for what Spark itself computes" in said
        assert "query.scale(16)" in said
        with pytest.warns(UserWarning, match="not for slots"):
            check(spark, "/checkpoint")
        check(spark, "/checkpoint")  # once


def test_a_session_that_speculates_is_refused() -> None:
    spark = running()
    spark.sparkContext.getConf = lambda: Conf({"spark.speculation": "true"})
    with pytest.raises(ConfigError, match=r"spark\.speculation is on.*Switch it off"):
        check(spark, "/checkpoint")


# --- Java ---------------------------------------------------------------------------------------------


def java(folder: Path, says: str, mode: int = 0o755) -> Path:
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{says}' >&2\n")
    program.chmod(mode)
    return program


@pytest.mark.parametrize(
    ("says", "refused"),
    [
        ('openjdk version "17.0.9"', None),
        ('openjdk version "21" 2023', None),
        ('java version "1.8.0_392"', "is Java 8; install one"),
        ('openjdk version "16.0.1"', "is Java 16; install one"),
        ("Picked up options", None),
    ],
)
def test_java_is_17_or_newer(
    says: str, refused: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "has_jvm", lambda: False)
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    program = java(tmp_path, says)
    if refused is None:
        module._require_java()
        return
    with pytest.raises(HeadgateError, match=f"needs Java 17 or newer and {program} {refused}"):
        module._require_java()
    monkeypatch.setattr(module, "has_jvm", lambda: True)
    module._require_java()  # Spark has taken one


def test_a_java_that_cannot_be_run_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "has_jvm", lambda: False)
    java(tmp_path / "dead", "", 0o644)
    living = java(tmp_path / "living", 'version "17"')
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "dead"))
    monkeypatch.setenv("PATH", str(living.parent))
    with pytest.raises(HeadgateError, match="there is no java on PATH or in JAVA_HOME; install"):
        module._require_java()
    monkeypatch.delenv("JAVA_HOME")
    monkeypatch.setenv(
        "PATH", os.pathsep.join(["", str(tmp_path / "dead/bin"), str(living.parent)])
    )
    assert module._find_java() == living
    assert module._java_version(tmp_path) is None


# --- Sockets ------------------------------------------------------------------------------------------


def test_a_directory_of_sockets_is_locked_and_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / "deep".ljust(61, "p")
    (deep / "hg-left").mkdir(parents=True)
    (deep / "hg-left" / ".in-use").touch()
    ended: list[Any] = []
    monkeypatch.setattr(atexit, "register", lambda *told, **_: ended.append(told[1]))
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    swept: list[Path] = []
    monkeypatch.setattr(sockets, "sweep", swept.append)
    made = Path(sockets.socket_directory.__wrapped__())
    try:
        assert made.parent == Path("/tmp")
        assert list(deep.iterdir()) == [deep / "hg-left"], "what was too long is gone"
        assert [one.name for one in made.iterdir()] == [".in-use"]
        assert (swept, ended) == ([Path("/tmp")], [str(made)])
        with monkeypatch.context() as patch:
            patch.setattr(Path, "glob", lambda *_: [made / ".in-use"])
            assert sweep(Path("/tmp")) == [], "it is in use"
    finally:
        (made / ".in-use").unlink()
        made.rmdir()
    assert sweep(deep) == [deep / "hg-left"]
    assert list(deep.iterdir()) == []
