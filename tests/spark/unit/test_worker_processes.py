"""What Python workers and their daemon do beside their work, each function alone."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from headgate.core.errors import HeadgateError
from headgate.operators.step import RECORDS
from headgate.spark.worker import daemon, whereabouts
from headgate.spark.worker.hot_key import hottest_key
from headgate.spark.worker.whereabouts import executor_and_host, ran, waited_for_core_ms

# --- The daemon ---------------------------------------------------------------------------------------


def test_a_worker_is_silent_about_a_jvm_that_has_gone_and_about_nothing_else() -> None:
    def worker(error: Exception | None) -> int:
        if error is not None:
            raise error
        return 5

    quiet = daemon.quiet(worker)
    assert (quiet(None), quiet(BrokenPipeError())) == (5, 1)
    with pytest.raises(ValueError, match="mine"):
        quiet(ValueError("mine"))


def test_a_process_that_plans_a_source_shows_all_errors_but_a_broken_pipe(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shown: list[Any] = []
    monkeypatch.setattr(sys, "__excepthook__", lambda *told: shown.append(told))
    monkeypatch.setattr(sys, "excepthook", "Python's")
    runner = "pyspark.sql.streaming.python_streaming_source_runner"
    main = SimpleNamespace(__spec__=SimpleNamespace(name="another"), worker="worker")
    monkeypatch.setitem(sys.modules, "__main__", main)
    daemon.quiet_here()
    assert [sys.excepthook, main.worker] == ["Python's", "worker"]
    main.__spec__.name = runner
    daemon.quiet_here()
    broken, other = BrokenPipeError(), ValueError()
    sys.excepthook(BrokenPipeError, broken, None)
    sys.excepthook(ValueError, other, None)
    assert shown == [(ValueError, other, None)]


@pytest.mark.parametrize("asked", ["true", "TRUE", "false", None])
def test_sockets_of_a_daemon_are_in_a_directory_that_goes_with_it(
    asked: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTHON_UNIX_DOMAIN_ENABLED", raising=False)
    if asked is not None:
        monkeypatch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", asked)
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SOCK_DIR", str(tmp_path))
    with ExitStack() as undo:
        daemon.own_directory(undo)
        made = Path(os.environ["PYTHON_WORKER_FACTORY_SOCK_DIR"])
        if asked in ("true", "TRUE"):
            assert made.parent == tmp_path
            assert made.name.startswith(".")
            assert made.stat().st_mode & 0o777 == 0o700
        else:
            assert made == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_sockets_are_in_the_temporary_directory_where_the_wish_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHON_UNIX_DOMAIN_ENABLED", "true")
    monkeypatch.setenv("PYTHON_WORKER_FACTORY_SOCK_DIR", str(tmp_path / "none"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with ExitStack() as undo:
        daemon.own_directory(undo)
        assert Path(os.environ["PYTHON_WORKER_FACTORY_SOCK_DIR"]).parent == tmp_path


@pytest.fixture
def cleared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what a daemon swept; its arenas and what is spilled lie in two directories."""
    swept: list[Any] = []
    arena = SimpleNamespace(
        sweep=swept.append,
        arena_root=lambda: tmp_path / "arenas",
        spill_path=lambda: tmp_path / "spilled",
    )
    modules = {
        "headgate.tables.arena": arena,
        "headgate.core.errors": SimpleNamespace(HeadgateError=HeadgateError),
    }
    monkeypatch.setattr(daemon, "importlib", SimpleNamespace(import_module=modules.get))
    monkeypatch.setattr(daemon, "_has_children", lambda: False)
    return swept


def test_a_daemon_removes_the_arenas_and_what_is_spilled(
    cleared: list[Any], tmp_path: Path
) -> None:
    daemon.clear_away()
    assert cleared == [tmp_path / "arenas"]
    (tmp_path / "spilled").mkdir()
    daemon.clear_away()
    assert cleared[1:] == [tmp_path / "arenas", tmp_path / "spilled"]


def test_a_daemon_waits_for_its_workers_but_five_seconds(
    cleared: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(daemon, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    left = [True, True, False]
    monkeypatch.setattr(daemon, "_has_children", lambda: left.pop(0))
    daemon.clear_away()
    assert now[0] == pytest.approx(100.02)
    assert len(cleared) == 1
    monkeypatch.setattr(daemon, "_has_children", lambda: True)
    daemon.clear_away()
    assert now[0] == pytest.approx(105.02, abs=0.02)
    assert len(cleared) == 2


@pytest.mark.parametrize("error", [HeadgateError("no directory"), OSError("not ours")])
def test_a_directory_that_cannot_be_used_is_left(
    error: Exception, cleared: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> Any:
        raise error

    modules: Any = daemon
    modules.importlib.import_module("headgate.tables.arena").arena_root = refuse
    daemon.clear_away()
    assert cleared == []


def test_a_process_has_children_until_the_last_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: int) -> Any:
        raise ChildProcessError

    asked: list[Any] = []
    monkeypatch.setattr(os, "waitpid", lambda *told: asked.append(told))
    assert daemon._has_children()
    assert asked == [(-1, os.WNOHANG)]
    monkeypatch.setattr(os, "waitpid", none)
    assert not daemon._has_children()


def test_a_module_that_is_missing_keeps_no_other_from_being_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []

    def load(name: str) -> None:
        asked.append(name)
        raise ImportError(name)

    monkeypatch.setattr(daemon, "importlib", SimpleNamespace(import_module=load))
    daemon.preload()
    assert {"numpy", "headgate.spark.worker.slot", "confluent_kafka.admin"} <= set(asked)


# --- Where a worker runs ------------------------------------------------------------------------------


@pytest.fixture
def processes(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """Return the files of /proc, by path."""
    files: dict[str, bytes] = {}

    class Proc:
        def __init__(self, path: str) -> None:
            self.path = path

        def read_bytes(self) -> bytes:
            if self.path not in files:
                raise FileNotFoundError
            return files[self.path]

        def read_text(self) -> str:
            return self.read_bytes().decode()

    monkeypatch.setattr(whereabouts, "Path", Proc)
    monkeypatch.setattr(os, "getpid", lambda: 30)
    monkeypatch.setattr(whereabouts.socket, "gethostname", lambda: "this")  # type: ignore[attr-defined]
    monkeypatch.delenv("HEADGATE_AGENT_HOST", raising=False)
    executor_and_host.cache_clear()
    yield files
    executor_and_host.cache_clear()


EXECUTOR = b"java\0--hostname\0node-3\0--executor-id\0" + b"7\0--cores\0" + b"2"


def test_a_worker_finds_the_executor_that_started_it_among_its_parents(
    processes: dict[str, bytes],
) -> None:
    processes |= {
        "/proc/30/cmdline": b"python\0-m\0daemon",
        "/proc/30/stat": b"30 (a) b) S 20 5",
        "/proc/20/cmdline": EXECUTOR,
    }
    assert executor_and_host() == ("7", "node-3")


@pytest.mark.parametrize(
    "files",
    [
        {},
        {
            "/proc/30/cmdline": b"python",
            "/proc/30/stat": b"30 (p) S 1 5",
            "/proc/1/cmdline": EXECUTOR,
        },
        {"/proc/30/cmdline": b"java\0--executor-id\0" + b"7"},
        {"/proc/30/cmdline": b"python", "/proc/30/stat": b"30"},
    ],
)
def test_a_worker_without_an_executor_is_the_drivers(
    files: dict[str, bytes], processes: dict[str, bytes]
) -> None:
    processes |= files
    assert executor_and_host() == ("driver", "this")


def test_a_slot_of_an_agent_is_on_the_host_that_it_was_told(
    processes: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADGATE_AGENT_HOST", "node-9")
    assert executor_and_host() == ("agent", "node-9")


@pytest.mark.parametrize(
    ("said", "waited_ms"),
    [(b"5 2500000 7", 2.5), (b"5", 0.0), (b"", 0.0), (b"a b c", 0.0), (None, 0.0)],
)
def test_what_the_kernel_says_of_waiting_is_in_milliseconds(
    said: bytes | None, waited_ms: float, processes: dict[str, bytes]
) -> None:
    if said is not None:
        processes["/proc/thread-self/schedstat"] = said
    assert waited_for_core_ms() == waited_ms


def test_a_task_says_where_and_when_it_ran(
    processes: dict[str, bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whereabouts, "time", SimpleNamespace(time=lambda: 7.5))
    monkeypatch.setattr(os, "getloadavg", lambda: (1.5, 2.0, 3.0))
    task = ran(7000.0)
    assert (task.host, task.began_ms, task.ended_ms, task.load) == ("this", 7000.0, 7500.0, 1.5)

    def none() -> Any:
        raise OSError

    monkeypatch.setattr(os, "getloadavg", none)
    assert ran(7000.0).load is None


# --- The hottest key ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("columns", "found"),
    [
        ({"k0": ["a", "b", "a"], RECORDS: [1, 9, 2]}, (9, "b")),
        ({"k0": [b"x\xff", b"y", b"x\xff"], RECORDS: [2, 3, 2]}, (4, "'x\ufffd'")),
        ({"k0": ["a", "a"], "k1": [7, 8], RECORDS: [2, 3], "xk1": [1, 1]}, (3, "a, 8")),
        ({"k0": ["v" * 200], RECORDS: [1]}, (1, "v" * 80)),
        ({"k0": [b"v" * 200], RECORDS: [1]}, (1, repr("v" * 80))),
        ({"v0": ["a"], RECORDS: [1]}, None),
    ],
)
def test_the_hottest_key_is_the_one_of_most_records(
    columns: dict[str, list[Any]], found: tuple[int, str] | None
) -> None:
    assert hottest_key(pa.table(columns)) == found


def test_of_no_record_no_key_is_the_hottest() -> None:
    assert hottest_key(pa.table({"k0": pa.array([], pa.string()), RECORDS: []})) is None
