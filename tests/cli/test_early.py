"""What cannot work is refused before Spark is started, which takes seconds."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import hostile
import pytest
from typer.main import get_command
from typer.testing import CliRunner

from headgate.checkpoint.hdfs import HdfsFiles
from headgate.checkpoint.objects import ObjectFiles
from headgate.cli import app
from headgate.core.errors import CheckpointError, EngineError

NO_SIZES = ("nan", "inf", "-1", "1e300", "nan GB", "0 B", "", " ", "1 XB", "True", "0x10", "-1 GB")
NO_NAMES = ("", " ", "\x1b[2J", "a" * 10_000, "\0", "\udcff")
NO_SETTINGS = (
    "spark.master=nope", "spark.master=", "spark.master=local[0]", "spark.driver.memory=nan",
    "spark.executor.memory=-1", "spark.sql.shuffle.partitions=x", "spark.sql.shuffle.partitions=-1",
    "spark.executor.instances=-3", "spark.ui.port=x", "spark.ui.enabled=perhaps",
    "spark.sql.session.timeZone=Mars/Olympus", "spark.executor.cores=0",
)  # fmt: skip
SETTINGS = (
    "spark.master=local[2]", "spark.master=spark://host:7077", "spark.driver.memory=2g",
    "spark.sql.shuffle.partitions=8", "spark.sql.session.timeZone=Europe/Paris",
    "spark.sql.session.timeZone=+01:00", "spark.sql.session.timeZone=PST",
    "spark.sql.session.timeZone=UTC", "spark.ui.enabled=false",
    "spark.executor.memoryOverhead=512m", "spark.x=anything at all", "spark.ui.port=0",
)  # fmt: skip
NO_QUERIES = (
    "os:system", "pydoc:pipepager", "json:loads", "builtins:exit", "sys:exit", "time:sleep",
    "headgate.cli:main", "queries_here:nothing", "queries_here:two", "nosuch:x",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _gate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Let Spark never start."""
    command = get_command(app)
    monkeypatch.setattr("typer.testing._get_command", lambda _: command)

    def reached(*_: Any, **__: Any) -> Any:
        msg = "Spark was started."
        raise EngineError(msg)

    monkeypatch.setattr("headgate.scenario.spark.SparkEngine.session", reached)
    monkeypatch.setattr("headgate.spark.cluster.doctor.session", reached)
    monkeypatch.chdir(tmp_path)
    module = "def nothing(): ...\ndef two(spark, more): ...\ndef one(spark, n=1): ...\n"
    (tmp_path / "queries_here.py").write_text(module)


def started(*words: str) -> bool:
    done = CliRunner().invoke(app, list(words))
    if "Spark was started" in done.output:
        return True
    assert done.exit_code == 2, (words, done.output)
    assert done.stderr.count("\n") == 1, (words, done.stderr)
    return False


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("--memory-max", NO_SIZES),
        ("--table", NO_NAMES),
        ("--arrival", NO_NAMES),
        ("--conf", NO_SETTINGS),
        ("--policy", ("psps", "dabs", "nosuch")),
        ("--floor", ("", "x", "1")),
        ("--budget", ("", "0 s", "nan s")),
        ("--out", ("/", "/etc/passwd", "s3://b/k")),
        ("--checkpoint", ("/", "/etc/passwd", "s3://b", "/dev/null")),
    ],
)
def test_run_refuses_values_before_spark_starts(option: str, values: tuple[str, ...]) -> None:
    assert [v for v in values if started("run", "nexmark-q5", f"{option}={v}")] == []


@pytest.mark.parametrize("command", ["run", "explain", "adopt", "export"])
def test_what_makes_no_query_is_refused(command: str, tmp_path: Path) -> None:
    carried = command in ("adopt", "export")
    words = [str(tmp_path), str(tmp_path / "new"), "--query"] if carried else []
    assert [q for q in NO_QUERIES if started(command, *words, q)] == []


def test_what_can_work_comes_through() -> None:
    for setting in SETTINGS:
        assert started("run", "nexmark-q5", "--conf", setting), setting
    assert started("run", "queries_here:one")
    assert started("run", "queries_here:one", "--option", "n=3")
    assert not started("run", "queries_here:one", "--option", "m=3")
    assert started("run", "nexmark-q5", "--memory-max", "500 MB", "--table", "a.b")


def test_a_module_of_the_users_that_has_a_name_of_pythons_is_theirs(tmp_path: Path) -> None:
    (tmp_path / "this.py").write_text("def query(spark): ...\n")
    assert started("run", "this:query")


@pytest.mark.parametrize("command", ["adopt", "export"])
def test_places_are_looked_at_before_spark_starts(tmp_path: Path, command: str) -> None:
    fifo, file = tmp_path / "fifo", tmp_path / "file"
    os.mkfifo(fifo)
    file.write_text("x")
    new, empty = str(tmp_path / "new"), tmp_path / "empty"
    empty.mkdir()
    query = ("--query", "nexmark-q5")
    for origin in (fifo, file, empty, tmp_path / "missing", "/dev/zero", "/"):
        assert not started(command, str(origin), new, *query), origin
    (empty / "headgate").mkdir()
    (empty / "headgate" / "identity.json").write_text("{}")
    for target in (fifo, file, tmp_path, empty / "within", "/dev/null"):
        assert not started(command, str(empty), str(target), *query), target
    assert not started(command, str(empty), new, *query, "--output-mode", "nosuch")
    assert command == "adopt" or started(command, str(empty), new, *query)


def test_verify_wants_a_journal_and_an_output(tmp_path: Path) -> None:
    for name in ("empty", "empty-output"):
        (tmp_path / name).mkdir()
    assert not started("verify", str(tmp_path / "empty"), "nexmark-q5")
    for place in hostile.Files(tmp_path / "files").paths():
        assert not started("verify", place, "nexmark-q5", "--out", str(tmp_path)), place


def test_explain_looks_at_its_checkpoint(tmp_path: Path) -> None:
    for place in ("/etc/passwd", "/dev/zero", "s3://b"):
        assert not started("explain", "nexmark-q5", "--checkpoint", place)


def test_a_host_that_nobody_knows_is_refused_at_once() -> None:
    with pytest.raises(CheckpointError, match=r"nobody answers at hdfs://nope\.invalid:1"):
        HdfsFiles("hdfs://nope.invalid:1/x", {}).exists("y")
    with pytest.raises(CheckpointError, match=r"nobody knows the host nope\.invalid"):
        ObjectFiles("s3://b/k", {"endpoint": "http://nope.invalid:9"}).exists("y")


def test_who_has_a_proxy_needs_to_know_no_host(monkeypatch: pytest.MonkeyPatch) -> None:
    store = ObjectFiles("s3://b/k", {"endpoint": "http://nope.invalid:9"})
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)
    with pytest.raises(CheckpointError, match=r"nobody knows the host nope\.invalid"):
        store._reach("http://nope.invalid:9", first=True)
    monkeypatch.setenv("Https_Proxy", "http://127.0.0.1:1")
    store._reach("http://nope.invalid:9", first=True)
