"""Where a checkpoint lies by what Spark says of paths, and warm workers; Spark is made up."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from headgate.core.errors import CheckpointError, ConfigError
from headgate.spark.cluster import location as module
from headgate.spark.cluster import warmup
from headgate.spark.cluster.location import Place, check_seen, place, resolved
from headgate.spark.cluster.warmup import Warming, warm_workers
from headgate.spark.jvm.files import Uri


@pytest.fixture
def hadoop(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Return what Hadoop says: `scheme` and `resolved` of a path, the `default` scheme, what `exists`."""
    says: dict[str, Any] = {"scheme": None, "resolved": "file", "default": "file", "exists": True}

    class FakePath:
        def __init__(self, _: Any, path: str) -> None:
            if path == ":":
                raise AnalysisException("Relative path in absolute URI.\nat java.net.URI")
            self.path, self.uri = path, Uri(says["scheme"], path, path)

        def resolved(self) -> Uri:
            if says["resolved"] is None:
                raise AnalysisException("wrong host")
            return Uri(says["resolved"], self.path, f"{says['resolved']}:{self.path}")

        def exists(self) -> bool:
            if says["exists"] is None:
                raise AnalysisException("no such name")
            return bool(says["exists"])

    monkeypatch.setattr(module, "HadoopPath", FakePath)
    monkeypatch.setattr(
        module, "default_file_system", lambda _: Uri(says["default"], "", f"{says['default']}://n")
    )
    return says


def session(**conf: str) -> Any:
    known = {f"spark.sql.streaming.{key}": value for key, value in conf.items()}
    return SimpleNamespace(conf=SimpleNamespace(get=known.get))


@pytest.mark.parametrize("scheme", [None, "file"])
def test_a_directory_is_what_it_is_to_spark(scheme: str | None, hadoop: dict[str, Any]) -> None:
    hadoop["scheme"] = scheme
    assert resolved(session(), "/data/ck") == Path("/data/ck")


@pytest.mark.parametrize(
    ("says", "path", "refusal"),
    [
        (
            {},
            ":",
            r'checkpoint ":" is no path \(Relative path in absolute URI\); write it as /path',
        ),
        ({"default": "hdfs"}, "/ck", "checkpoint /ck lies on hdfs://n to Spark, whose default"),
        ({"scheme": "s3a"}, "/ck", "checkpoint /ck .*s3a:"),
        ({"scheme": "file", "resolved": None}, "/ck", "/ck names no directory; write it as file:/"),
        ({"resolved": "odd"}, "/ck", "checkpoint /ck lies on odd:/ck to Spark"),
    ],
)
def test_a_place_that_is_not_local_to_spark_is_refused(
    says: dict[str, Any], path: str, refusal: str, hadoop: dict[str, Any]
) -> None:
    hadoop |= says
    with pytest.raises(CheckpointError, match=refusal):
        resolved(session(), path)


def test_a_default_that_is_not_local_is_no_matter_to_a_path_that_says_file(
    hadoop: dict[str, Any],
) -> None:
    hadoop |= {"scheme": "file", "default": "hdfs"}
    assert resolved(session(), "/ck") == Path("/ck")


@pytest.mark.parametrize("exists", [True, False, None])
def test_a_file_that_spark_does_not_see_is_refused(
    exists: bool | None, hadoop: dict[str, Any], tmp_path: Path
) -> None:
    hadoop["exists"] = exists
    if exists:
        check_seen(session(), tmp_path)
        return
    with pytest.raises(CheckpointError, match=f"JVM does not see {tmp_path}, so its log .*C.UTF-8"):
        check_seen(session(), tmp_path)


def test_what_was_asked_for_wins_over_sparks_setting(hadoop: dict[str, Any]) -> None:
    spark = session(checkpointLocation="/all")
    assert place(spark, "/mine", "q", one_time=True) == Place(Path("/mine"))
    assert place(spark, None, "q", one_time=True) == Place(Path("/all/q"))
    first, second = (place(spark, None, None, one_time=True).path for _ in range(2))
    assert first.parent == second.parent == Path("/all")
    assert first != second


@pytest.mark.parametrize(("forced", "goes"), [("false", False), ("TRUE", True), (None, False)])
def test_a_query_that_needs_no_checkpoint_says_where_its_state_lies(
    forced: str | None, goes: bool, hadoop: dict[str, Any]
) -> None:
    conf = {} if forced is None else {"forceDeleteTempCheckpointLocation": forced}
    with pytest.warns(UserWarning, match="goes when the query ends; add") as said:
        made = place(session(**conf), None, "q", one_time=True)
    assert str(made.path) in str(said[0].message)
    assert (made.temporary, made.forced) == (True, goes)
    assert made.path.is_dir()
    made.leave(failed=True)
    assert made.path.is_dir() == (not goes)
    made.leave(failed=False)
    assert not made.path.exists()


def test_a_query_to_files_without_a_place_is_told_how_to_name_one(hadoop: dict[str, Any]) -> None:
    with pytest.raises(
        ConfigError, match=r'add \.option\("checkpointLocation", \.\.\.\).*, or set'
    ):
        place(session(), None, "q", one_time=False)


def test_a_checkpoint_on_a_store_leaves_its_journal_where_the_driver_wrote_it(
    tmp_path: Path,
) -> None:
    for name in ("offsets", "commits", "sources", "headgate"):
        (tmp_path / name).mkdir()
    Place(tmp_path, temporary=True, url="s3://b/ck").leave(failed=False)
    assert [path.name for path in tmp_path.iterdir()] == ["headgate"]


# --- Warming up ---------------------------------------------------------------------------------------

SPARK: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=3))


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return what was warmed in the driver, and how many tasks loaded which specs."""
    did: list[Any] = []
    monkeypatch.setattr(warmup, "check_interpreter", lambda _: did.append("checked"))
    monkeypatch.setattr(warmup, "warm", did.append)
    monkeypatch.setattr(warmup, "_load", lambda _, specs, tasks: did.append((tuple(specs), tasks)))
    return did


def test_the_first_worker_starts_at_once_and_one_for_each_core_with_the_kernels(
    loads: list[Any],
) -> None:
    warming = Warming(SPARK)
    warming.wait()
    assert loads == ["checked", ((), 1)]
    warming.load(["a", "b"])  # type: ignore[list-item]
    warming.wait()
    assert loads[2:] == ["a", "b", (("a", "b"), 3)]
    loads.clear()
    specs: Any = ["c"]
    small: Any = SimpleNamespace(sparkContext=SimpleNamespace(defaultParallelism=0))
    warm_workers(small, specs)
    assert loads == ["c", (("c",), 1)]


@pytest.mark.parametrize(
    ("error", "raised"), [(ConfigError("no Python"), True), (OSError("busy"), False)]
)
def test_a_python_that_cannot_run_slots_ends_the_start_and_a_failed_first_worker_does_not(
    error: Exception, raised: bool, loads: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Any) -> None:
        raise error

    monkeypatch.setattr(warmup, "check_interpreter", fail)
    warming = Warming(SPARK)
    with pytest.raises(type(error), match=str(error)):
        warming.wait()
    warming.load([])
    if raised:
        with pytest.raises(ConfigError, match="no Python"):
            warming.wait()
        assert loads == []
    else:
        warming.wait()
        assert loads == [((), 3)]


def frame(fails: Exception | None, ranges: list[Any]) -> Any:
    """Return a session whose jobs fail so."""

    def count() -> int:
        if fails is not None:
            raise fails
        return 0

    def made(*told: int) -> Any:
        ranges.append(told)
        return SimpleNamespace(mapInArrow=lambda *_: SimpleNamespace(count=count))

    return SimpleNamespace(range=made)


def test_only_the_loss_of_a_worker_is_left_to_the_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warmup, "computed_rows", lambda rows: rows)
    ranges: list[Any] = []
    warmup._load(frame(None, ranges), (), 4)
    assert ranges == [(0, 4, 1, 4)]
    warmup._load(frame(RuntimeError("Python worker exited unexpectedly"), ranges), (), 1)
    with pytest.raises(RuntimeError, match="out of memory"):
        warmup._load(frame(RuntimeError("out of memory"), ranges), (), 1)


def test_a_warming_keeps_no_program_from_ending(loads: list[Any]) -> None:
    threads: list[Any] = []
    warmup._beside(lambda: threads.append(threading.current_thread())).result()
    assert threads[0].daemon
