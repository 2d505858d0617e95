"""Tests what of a program is sent to executors, which sources are registered, and facts of a host."""

from __future__ import annotations

import errno
import os
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headgate.core.errors import EngineError
from headgate.core.installed import SOURCES
from headgate.spark.cluster import host_facts, shipping, sources

SPARK: Any = SimpleNamespace(name="the session")


@pytest.mark.parametrize(
    ("file", "in_driver", "sent"),
    [
        ("job.py", False, True), ("job.py", True, False), (None, False, False),
        ("lib/site-packages/job.py", False, False), ("../elsewhere/job.py", False, False),
    ],
)  # fmt: skip
def test_a_program_s_own_module_is_sent_by_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, file: str | None, in_driver: bool, sent: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    did: list[Any] = []
    module = SimpleNamespace(__file__=file and str(tmp_path / file))
    monkeypatch.setitem(sys.modules, "a_program", module)
    monkeypatch.setattr(
        shipping, "ExecutorPool", lambda spark: SimpleNamespace(in_driver=in_driver)
    )
    monkeypatch.setattr(shipping, "send_by_value", did.append)
    function: Any = SimpleNamespace(__module__="a_program")
    shipping.ship(SPARK, function)
    assert did == [module] * sent
    nowhere: Any = SimpleNamespace(__module__="no_such_module")
    shipping.ship(SPARK, nowhere)
    assert did == [module] * sent


@pytest.mark.parametrize("fails", [False, True])
def test_installed_sources_are_registered_by_a_worker_on_tcp(
    monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    did: list[Any] = []
    key = "spark.python.unix.domain.socket.enabled"

    def register(source: str) -> None:
        did.append(source)
        if fails:
            raise EngineError("no worker")

    def get(name: str, default: str) -> str:
        assert (name, default) == (key, "false")
        return "true"

    conf = SimpleNamespace(get=get, set=lambda *told: did.append(told))
    plugins = {name: SimpleNamespace(load=lambda name=name: f"class {name}") for name in "ab"}
    monkeypatch.setattr(sources, "installed", lambda group: plugins if group == SOURCES else {})
    monkeypatch.setattr(sources, "driver_conf", lambda spark: conf)
    spark: Any = SimpleNamespace(dataSource=SimpleNamespace(register=register))
    if fails:
        with pytest.raises(EngineError, match="no worker"):
            sources.register_installed(spark)
        assert did == [(key, "false"), "class a", (key, "true")]
    else:
        sources.register_installed(spark)
        assert did == [(key, "false"), "class a", "class b", (key, "true")]


# --- A host -------------------------------------------------------------------------------------------


def test_versions_are_those_that_are_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name == host_facts.PACKAGES[0]:
            raise host_facts.importlib.metadata.PackageNotFoundError  # type: ignore[attr-defined]
        return f"{name} 1"

    monkeypatch.setattr(host_facts.importlib.metadata, "version", version)  # type: ignore[attr-defined]
    import headgate

    first, *others = host_facts.PACKAGES
    assert host_facts._versions() == {
        "python": "{}.{}.{}".format(*sys.version_info), "headgate": headgate.__version__, first: None,
        **{name: f"{name} 1" for name in others},
    }  # fmt: skip


def test_an_arena_that_cannot_hold_state_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host_facts, "arena_root", lambda: tmp_path)
    assert host_facts._tried_arena() == (str(tmp_path), None)
    assert list(tmp_path.iterdir()) == []

    def full(descriptor: int, size: int) -> None:
        assert size == host_facts._TRIED_BYTES
        raise OSError(errno.ENOSPC, "No space left")

    monkeypatch.setattr(host_facts, "allocate", full)
    said = f"a file of {host_facts._TRIED_BYTES} bytes cannot be allocated there (No space left)"
    assert host_facts._tried_arena() == (str(tmp_path), said)
    assert list(tmp_path.iterdir()) == []

    def refused() -> Path:
        raise EngineError("it is not ours")

    monkeypatch.setattr(host_facts, "arena_root", refused)
    assert host_facts._tried_arena() == ("", "it is not ours")


def test_a_mark_is_answered_beside_it_with_what_it_says(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    said = host_facts._tried_checkpoint(mark, "a/1")
    assert said == "the driver's file there cannot be read (No such file or directory)"
    mark.write_bytes(b"seen")
    answer = tmp_path / "mark-a_1"
    answer.write_bytes(b"something longer")
    assert host_facts.answer_name(mark, "a/1") == answer
    assert host_facts._tried_checkpoint(mark, "a/1") is None
    assert answer.read_bytes() == b"seen"
    (tmp_path / "mark-b").mkdir()
    assert (
        host_facts._tried_checkpoint(mark, "b") == "nothing can be written there (Is a directory)"
    )


def test_room_and_memory_are_in_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status = SimpleNamespace(f_frsize=4096, f_blocks=100, f_bavail=25)
    monkeypatch.setattr(host_facts, "os", SimpleNamespace(statvfs=lambda directory: status))
    assert host_facts._room("d") == (409_600, 102_400)
    statm = tmp_path / "statm"
    monkeypatch.setattr(host_facts, "Path", lambda path: statm)
    monkeypatch.setattr(host_facts, "resource", SimpleNamespace(getpagesize=lambda: 4096))
    assert host_facts._mapped_bytes() == 0
    statm.write_text("what is this")
    assert host_facts._mapped_bytes() == 0
    statm.write_text("300 20 1")
    assert host_facts._mapped_bytes() == 300 * 4096


def test_shuffle_files_are_in_the_first_directory_that_there_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in ("SPARK_EXECUTOR_DIRS", "SPARK_LOCAL_DIRS"):
        monkeypatch.delenv(name, raising=False)
    assert host_facts._local_directory() == tempfile.gettempdir()
    (tmp_path / "local").mkdir()
    (tmp_path / "executor").mkdir()
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path / 'local'},/more")
    assert host_facts._local_directory() == str(tmp_path / "local")
    monkeypatch.setenv("SPARK_EXECUTOR_DIRS", str(tmp_path / "absent"))
    assert host_facts._local_directory() == str(tmp_path / "local")
    monkeypatch.setenv("SPARK_EXECUTOR_DIRS", f"{tmp_path / 'executor'}{os.pathsep}/more")
    assert host_facts._local_directory() == str(tmp_path / "executor")
